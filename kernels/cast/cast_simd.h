/*
 * The cast kernel over the vectors of one instruction set: include a vector_*.h first. What is left
 * over of groups at the end of a piece goes to the scalar form.
 */
#include "kernels/cast/cast_lanes.h"
#include "kernels/core/prefetch.h"

#include <stddef.h>

/* --- e4m3 to bf16 ----------------------------------------------------------------------------- */

/* In 16-bit lanes, without f32 in between: half of the instructions. A code's magnitude moves by
 * four bits; the table, by the magnitude up to 8 (9: NaN), has what is to be added. */
MO_INLINE void cast_e4m3_bf16(const mo_cast_piece *p, uint64_t i)
{
    static const uint8_t low[16] = {0, 0xf0, 0x60, 0x90, 0xc0, 0xd0, 0xe0, 0xf0, 0, 0xd0};
    static const uint8_t high[16] = {0, 0x3a, 0x3b, 0x3b, 0x3b, 0x3b, 0x3b, 0x3b, 0x3c, 0x77};
    VI code = v_zip_order(v_loadi(p->source + i)), a = v_and(code, v_seti(0x7f7f7f7f));
    VI cell = v_add_bytes(v_min_bytes(a, v_seti(0x08080808)), v_less_bytes(a, v_seti(0x7e7e7e7e)));
    VI more = v_lookup(low, cell), upper = v_or(v_lookup(high, cell), v_xor(code, a));
    VI first = v_sll(v_zip8_low(a, v_seti(0)), 4), second = v_sll(v_zip8_high(a, v_seti(0)), 4);
    unsigned char *at = p->destination + 2 * i;
    if (p->streaming)
        mo_prefetch_page_ahead(p->source + i, CAST_GROUP);
    v_put(at, v_addi(first, v_zip8_low(more, upper)), p->streaming);
    v_put(at + sizeof(VI), v_addi(second, v_zip8_high(more, upper)), p->streaming);
}

/* --- pieces ---------------------------------------------------------------------------------- */

MO_INLINE void cast_load_ahead(const mo_cast_piece *p, uint64_t i, uint32_t from, VI v[4])
{
    const unsigned char *at = p->source + i * mo_element_size(from);
    if (p->streaming)
        mo_prefetch_page_ahead(at, CAST_GROUP * mo_element_size(from));
    cast_load(p->source, i, from, v);
}

MO_INLINE void cast_nearest(const mo_cast_piece *p, uint64_t i, uint32_t from, uint32_t to)
{
    for (; i + CAST_GROUP <= p->count; i += CAST_GROUP) {
        VI v[4];
        if (from == MO_DTYPE_F8_E4M3 && to == MO_DTYPE_BF16) {
            cast_e4m3_bf16(p, i);
            continue;
        }
        cast_load_ahead(p, i, from, v);
        cast_store(p, i, to, v, NULL);
    }
    mo_cast_scalar_table[0][from][to](p, i);
}

MO_INLINE void cast_stochastic(const mo_cast_piece *p, uint64_t i, uint32_t from, uint32_t to)
{
    while (i + 2 * CAST_GROUP <= p->count) {
        VI v[4], random[4];
        mo_random_lanes(&p->stream, p->first + i, random);
        for (int half = 0; half < 4; half += 2, i += CAST_GROUP) {
            cast_load_ahead(p, i, from, v);
            cast_store(p, i, to, v, random + half);
        }
    }
    mo_cast_scalar_table[1][from][to](p, i);
}

#define CAST_NEAREST(from, to, from_dtype, to_dtype)                                               \
    static void nearest_##from##_##to(const mo_cast_piece *piece, uint64_t start)                  \
    {                                                                                              \
        cast_nearest(piece, start, from_dtype, to_dtype);                                          \
    }

#define CAST_BOTH(from, to, from_dtype, to_dtype)                                                  \
    CAST_NEAREST(from, to, from_dtype, to_dtype)                                                   \
    static void stochastic_##from##_##to(const mo_cast_piece *piece, uint64_t start)               \
    {                                                                                              \
        cast_stochastic(piece, start, from_dtype, to_dtype);                                       \
    }

MO_CAST_PAIRS(CAST_NEAREST, CAST_BOTH)

static const mo_cast_table cast_table = MO_CAST_TABLE;

/* --- the largest magnitude ------------------------------------------------------------------- */

MO_INLINE VI cast_larger(VI a, VI b, uint32_t size)
{
    return size == 4 ? v_maxi(a, b) : size == 2 ? v_max_halves(a, b) : v_maxb(a, b);
}

/* Of elements of `size` bytes. Codes without sign are not negative as signed lanes. */
MO_INLINE uint32_t cast_largest(const unsigned char *source, uint64_t count, uint32_t dtype,
                                uint32_t size)
{
    const VI mask = v_seti(size == 4 ? 0x7fffffff : size == 2 ? 0x7fff7fff : 0x7f7f7f7f);
    const uint64_t lanes = sizeof(VI) / size;
    VI even = v_seti(0), odd = v_seti(0), least = v_seti(0);
    unsigned char left[sizeof(VI)];
    uint64_t i = 0;
    for (; i + 2 * lanes <= count; i += 2 * lanes) {
        const unsigned char *at = source + i * size;
        mo_prefetch_page_ahead(at, 2 * sizeof(VI));
        even = cast_larger(even, v_and(v_loadi(at), mask), size);
        odd = cast_larger(odd, v_and(v_loadi(at + sizeof(VI)), mask), size);
        if (dtype >= MO_DTYPE_F8_E4M3FNUZ) /* its NaN is the least signed byte */
            least = v_minb(least, v_minb(v_loadi(at), v_loadi(at + sizeof(VI))));
    }
    if (dtype >= MO_DTYPE_F8_E4M3FNUZ) {
        v_put(left, least, 0);
        for (uint64_t k = 0; k < sizeof left; k++)
            if (left[k] == 0x80)
                return 0x80;
    }
    v_put(left, cast_larger(even, odd, size), 0);
    uint32_t most = mo_largest_code_scalar(source + i * size, count - i, dtype);
    uint32_t vectors = mo_largest_code_scalar(left, lanes, dtype);
    return vectors > most ? vectors : most;
}

static uint32_t cast_largest_code(const unsigned char *source, uint64_t count, uint32_t dtype)
{
    if (mo_element_size(dtype) == 4)
        return cast_largest(source, count, dtype, 4);
    return mo_element_size(dtype) == 2 ? cast_largest(source, count, dtype, 2)
                                       : cast_largest(source, count, dtype, 1);
}

void MO_FORM(mo_cast)(const void *args, uint64_t begin, uint64_t end)
{
    if (mo_cast_run(args, begin, end, cast_table))
        mo_store_fence();
}

void MO_FORM(mo_cast_amax)(const void *args, uint64_t begin, uint64_t end)
{
    if (mo_cast_amax_run(args, begin, end, cast_table, cast_largest_code))
        mo_store_fence();
}
