/*
 * Every one of the 2^32 f32 through every form of the cast kernel to every narrower format, to
 * nearest, against an oracle that shares nothing with it: since rounding is monotone, a code's
 * inputs are a range of f32 bit patterns, whose ends are the midpoints between neighbouring values,
 * computed in double from the definition of the format. And every code back to f32.
 *
 * Two threads. With MEMOPT_TEST_LONG every input, else every 32nd run of 65,536 inputs, from one
 * that the seed names.
 */
#include "support.h"

#include "support/sweep.h"

#include <pthread.h>

#ifdef __SANITIZE_ADDRESS__
enum { SAMPLE = 512 };
#else
enum { SAMPLE = 32 };
#endif
enum { RUN = 65536 };

static uint32_t every = 1, phase;

/* first_above[c]: the smallest magnitude (as f32 bits) that rounds beyond code c. */
typedef struct oracle {
    const format *to;
    int saturate;
    uint32_t *first_above;
} oracle;

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static oracle make_oracle(const format *to, int saturate)
{
    oracle o = {to, saturate, malloc((to->largest + 1) * sizeof(uint32_t))};
    assert_non_null(o.first_above);
    for (uint32_t code = 0; code <= to->largest; code++) {
        double middle = (code_value(to, code) + code_value(to, code + 1)) / 2;
        float exact = (float)middle;
        assert_true((double)exact == middle);
        o.first_above[code] = bits_of(exact) + (code % 2 == 0); /* a tie goes to the even code */
    }
    return o;
}

static uint32_t nan_code(const format *to, uint32_t magnitude)
{
    switch (to->dtype) {
    case MO_DTYPE_F16: /* the upper 10 of 23 mantissa bits, and quiet */
        return 0x7e00 | (magnitude >> 13 & 0x3ff);
    case MO_DTYPE_BF16:
        return 0x7fc0 | (magnitude >> 16 & 0x3f);
    case MO_DTYPE_F8_E4M3FNUZ:
    case MO_DTYPE_F8_E5M2FNUZ:
        return 0x80;
    default:
        return 0x7f;
    }
}

static uint32_t overflow_code(const oracle *o)
{
    return o->saturate && o->to->size == 1 ? o->to->largest : o->to->overflow;
}

/* The codes of RUN consecutive bit patterns. */
static void expect(const oracle *o, uint32_t first, unsigned char *out)
{
    const format *to = o->to;
    uint32_t start = first & 0x7fffffff, sign = (first >> 31) << (8 * to->size - 1), code = 0;
    for (uint32_t step = 1u << 15; step > 0; step /= 2) /* the code of `start`, by bisection */
        if (code + step <= to->largest + 1 && o->first_above[code + step - 1] <= start)
            code += step;
    for (uint32_t i = 0; i < RUN; i++) {
        uint32_t magnitude = start + i, result;
        while (code <= to->largest && o->first_above[code] <= magnitude)
            code++;
        result = code > to->largest ? overflow_code(o) : code;
        if (magnitude > 0x7f800000)
            result = nan_code(to, magnitude);
        if (!is_fnuz(to) || result != 0)
            result |= sign;
        if (to->size == 2)
            memcpy(out + 2 * i, &(uint16_t){(uint16_t)result}, 2);
        else
            out[i] = (unsigned char)result;
    }
}

typedef struct job {
    const oracle *o;
    uint32_t part;
    uint32_t wrong_form; /* isa + 1 */
    uint32_t wrong_input;
    uint64_t runs;
} job;

static int same(const unsigned char *a, const unsigned char *b, uint32_t size, uint32_t *index)
{
    if (memcmp(a, b, RUN * size) == 0)
        return 1;
    for (*index = 0; memcmp(a + *index * size, b + *index * size, size) == 0;)
        ++*index;
    return 0;
}

static void *sweep(void *user)
{
    job *j = user;
    const format *to = j->o->to;
    uint32_t *source = aligned_alloc(64, RUN * 4), index;
    unsigned char *wanted = aligned_alloc(64, RUN * 2), *got = aligned_alloc(64, RUN * 2);
    for (uint32_t run = j->part; run < RUN && j->wrong_form == 0; run += 2) {
        if (run / 2 % every != phase)
            continue;
        for (uint32_t i = 0; i < RUN; i++)
            source[i] = (run << 16) + i;
        expect(j->o, run << 16, wanted);
        j->runs++;
        FOR_EACH_FORM (isa, &mo_kernel_cast) {
            mo_cast_args args = cast_args(got, to, source, &formats[0], RUN);
            args.saturate = (uint8_t)j->o->saturate;
            args.streaming = run & 1;
            mo_kernel_cast.cpu[isa](&args, 0, RUN / MO_CHUNK_ELEMENTS);
            if (!same(got, wanted, to->size, &index)) {
                j->wrong_form = (uint32_t)isa + 1;
                j->wrong_input = source[index];
                break;
            }
        }
    }
    free(source);
    free(wanted);
    free(got);
    return NULL;
}

static void sweep_all(const format *to, int saturate)
{
    oracle o = make_oracle(to, saturate);
    job jobs[2] = {{.o = &o, .part = 0}, {.o = &o, .part = 1}};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, sweep, &jobs[1]), 0);
    sweep(&jobs[0]);
    assert_int_equal(pthread_join(thread, NULL), 0);
    free(o.first_above);
    for (int i = 0; i < 2; i++)
        if (jobs[i].wrong_form != 0)
            fail_msg("f32 to %s: form %u differs at input %08x", to->name, jobs[i].wrong_form - 1,
                     jobs[i].wrong_input);
    assert_int_equal(jobs[0].runs + jobs[1].runs, RUN / every);
}

TEST(every_f32_to_bf16)
{
    sweep_all(&formats[2], 0);
}

TEST(every_f32_to_f16)
{
    sweep_all(&formats[1], 0);
}

TEST(every_f32_to_8_bits)
{
    for (int saturate = 0; saturate <= 1; saturate++) {
        sweep_all(&formats[3], saturate);
        sweep_all(&formats[4], saturate);
        sweep_all(&formats[5], saturate);
        sweep_all(&formats[6], saturate);
    }
}

/* What a code is worth, as f32 bits; NaNs as the specification says. */
static uint32_t value_bits(const format *from, uint32_t code)
{
    uint32_t sign_bit = 1u << (8 * from->size - 1), magnitude = code & (sign_bit - 1);
    uint32_t sign = code & sign_bit ? 0x80000000u : 0;
    uint32_t infinity = from->largest + 1;
    if (is_fnuz(from) && code == 0x80)
        return 0x7fc00000;
    if (magnitude <= from->largest)
        return sign | bits_of((float)code_value(from, magnitude));
    if (from->dtype == MO_DTYPE_F8_E4M3)
        return sign | 0x7fc00000;
    if (magnitude == infinity)
        return sign | 0x7f800000;
    if (from->dtype == MO_DTYPE_BF16)
        return code << 16; /* bits are moved, signalling NaNs stay */
    return sign | 0x7fc00000 | (magnitude - infinity) << (23 - from->mantissa);
}

TEST(every_code_to_f32)
{
    static uint32_t wanted[RUN], got[RUN];
    static unsigned char source[2 * RUN];
    for (int f = 1; f < FORMATS; f++) {
        const format *from = &formats[f];
        uint32_t codes = from->size == 2 ? 65536 : 256;
        for (uint32_t code = 0; code < codes; code++) {
            memcpy(source + code * from->size, &code, from->size);
            wanted[code] = value_bits(from, code);
        }
        FOR_EACH_FORM (isa, &mo_kernel_cast) {
            mo_cast_args args = cast_args(got, &formats[0], source, from, codes);
            memset(got, 0xee, sizeof got);
            mo_kernel_cast.cpu[isa](&args, 0, (codes + MO_CHUNK_ELEMENTS - 1) / MO_CHUNK_ELEMENTS);
            for (uint32_t code = 0; code < codes; code++)
                if (got[code] != wanted[code])
                    fail_msg("%s %x to f32, form %d: %08x, not %08x", from->name, code, isa,
                             got[code], wanted[code]);
        }
    }
}

int main(void)
{
    every = is_long() ? 1 : SAMPLE;
    phase = (uint32_t)(first_seed() % every);
    return run_all_tests(NULL, NULL);
}
