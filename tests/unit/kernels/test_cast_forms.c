/* Every form of the cast kernel gives the scalar form's bits: each pair of types and rounding,
 * ragged sizes, unaligned starts, several segments, a table instead of inline segments, any split
 * of the items. (tests/machines has the scalar form's bits written down.) */
#include "support.h"

enum { ROOM = 3 * MO_CHUNK_ELEMENTS };

static _Alignas(64) unsigned char source[4 * ROOM + 64];
static _Alignas(64) unsigned char wanted[4 * ROOM + 128], got[4 * ROOM + 128];

/* Bits of every kind: uniform bit patterns, ordinary magnitudes, values near each format's limits,
 * NaNs and infinities. */
static uint32_t f32_sample(uint64_t *seed)
{
    static const uint32_t special[] = {0x00000000, 0x00000001, 0x007fffff, 0x00800000, 0x33000000,
                                       0x33000001, 0x387fffff, 0x38800000, 0x3f800000, 0x43e00000,
                                       0x43e80000, 0x43f00000, 0x47600000, 0x477fe000, 0x477ff000,
                                       0x47800000, 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fc12345};
    uint64_t r = next_random(seed);
    uint32_t low = (uint32_t)r, sign = low & 0x80000000u;
    switch (r >> 32 & 7) {
    case 0:
        return low;
    case 1:
        return sign | special[(r >> 40) % (sizeof special / sizeof *special)];
    case 2: /* around the subnormals of 16- and 8-bit floats */
        return sign | (0x31000000 + (low & 0x0fffffff));
    default:
        return sign | (0x3c000000 + (low & 0x0bffffff));
    }
}

static void fill(const format *from, unsigned char *at, uint64_t count, uint64_t seed)
{
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits = from->size == 4 ? f32_sample(&seed) : (uint32_t)next_random(&seed);
        memcpy(at + i * from->size, &bits, from->size);
    }
}

/* Compares a form with the scalar one on `count` elements; both starts are `offset` elements off an
 * aligned address, and not a byte around the output changes. */
static void compare(const format *from, const format *to, int stochastic, uint64_t count,
                    uint64_t offset, int isa)
{
    unsigned char *in = source + offset * from->size;
    uint64_t at = 64 + offset * to->size, items = mo_chunks_of(count);
    mo_cast_args args = cast_args(wanted + at, to, in, from, count);
    args.stochastic = (uint8_t)stochastic;
    args.saturate = offset & 1;
    args.streaming = 1;
    memset(wanted, 0xa5, sizeof wanted);
    memset(got, 0xa5, sizeof got);
    mo_kernel_cast.cpu[0](&args, 0, items);
    args.segments[0].destination = got + at;
    mo_kernel_cast.cpu[isa](&args, 0, items);
    if (memcmp(wanted, got, 128 + (count + offset) * to->size) != 0)
        fail_msg("%s to %s, rounding %d, %u elements at %u, form %d", from->name, to->name,
                 stochastic, (unsigned)count, (unsigned)offset, isa);
}

typedef void (*pair_check)(const format *from, const format *to, int stochastic, int isa);

static void for_each_pair(pair_check check)
{
    FOR_EACH_WIDE_FORM (isa, &mo_kernel_cast)
        for (int from = 0; from < FORMATS; from++)
            for (int to = 0; to < FORMATS; to++)
                for (int stochastic = 0; stochastic <= 1; stochastic++)
                    check(&formats[from], &formats[to], stochastic, isa);
}

static void check_small(const format *from, const format *to, int stochastic, int isa)
{
    fill(from, source, 300, from->dtype * 100u + to->dtype);
    for (uint64_t count = 1; count <= 257; count++)
        compare(from, to, stochastic, count, count % 5, isa);
}

TEST(odd_sizes_and_starts)
{
    for_each_pair(check_small);
}

/* Segments of different sizes and types, from a table, split at every item, equal one after
 * another. */
TEST(segments_and_splits)
{
    static const uint64_t counts[] = {5, 2 * MO_CHUNK_ELEMENTS + 3, 1, MO_CHUNK_ELEMENTS, 300};
    static mo_cast_segment table[5];
    mo_cast_args args = {.seed = 9, .sequence = 1, .table = table, .count = 5, .stochastic = 1};
    uint64_t chunks = 0, offset = 0;
    fill(&formats[0], source, ROOM, 77);
    memset(wanted, 0, sizeof wanted);
    memset(got, 0, sizeof got);
    for (uint32_t i = 0; i < 5; i++) {
        const format *to = &formats[1 + i % 4];
        mo_cast_args one = cast_args(wanted + offset, to, source + 4 * i, &formats[0], counts[i]);
        one.seed = 9;
        one.sequence = 1;
        one.stochastic = 1;
        one.segments[0].tensor = 10 + i;
        mo_kernel_cast.cpu[0](&one, 0, mo_chunks_of(counts[i]));
        table[i] = one.segments[0];
        table[i].destination = got + offset;
        table[i].first_chunk = chunks;
        chunks += mo_chunks_of(counts[i]);
        offset += 2 * counts[i] + 64;
    }
    FOR_EACH_FORM (isa, &mo_kernel_cast)
        for (uint64_t split = 0; split <= chunks; split++) {
            memset(got, 0, sizeof got);
            if (split < chunks)
                mo_kernel_cast.cpu[isa](&args, split, chunks);
            if (split > 0)
                mo_kernel_cast.cpu[isa](&args, 0, split);
            assert_memory_equal(wanted, got, offset);
        }
}

/* Elements beyond 2^36 of one tensor: only their chunk exists, at the end of a range of addresses.
 */
TEST(far_elements)
{
    const uint64_t chunk = (uint64_t)1 << 22, first = chunk * MO_CHUNK_ELEMENTS, count = 1000;
    mo_random_stream stream = mo_random_stream_of(0x1234567890abcdefu, 7, 3);
    fill(&formats[0], source, count, 31);
    FOR_EACH_FORM (isa, &mo_kernel_cast) {
        mo_cast_args args =
            cast_args((void *)((uintptr_t)got - 2 * first), &formats[2],
                      (void *)((uintptr_t)source - 4 * first), &formats[0], first + count);
        args.stochastic = 1;
        mo_kernel_cast.cpu[isa](&args, chunk, chunk + 1);
        for (uint64_t i = 0; i < count; i++) {
            float value;
            uint16_t code;
            memcpy(&value, source + 4 * i, 4);
            memcpy(&code, got + 2 * i, 2);
            assert_int_equal(
                code, mo_f32_to_bf16_stochastic(value, mo_random_element(&stream, first + i)));
        }
    }
}
