/* A matrix and its transpose from one call have the bits of two calls of the scalar form, one of
 * them on a source that was transposed before: each format, type and rounding, ragged shapes,
 * unaligned codes, any split of the items, with the matrix and without it; nothing else is written.
 */
#include "kernels/cast/blocks.h"

#include "support.h"

enum { ELEMENTS = 140 * 1100, GUARD = 64, ROOM = ELEMENTS + 2 * GUARD };

static _Alignas(64) unsigned char source[4 * ELEMENTS], turned_source[4 * ELEMENTS];

/* Codes and scales of a matrix and of its transpose. */
typedef struct result {
    _Alignas(64) unsigned char codes[2][ROOM], scales[2][ROOM];
    uint32_t amax;
} result;

static result wanted, got;

static const struct {
    uint64_t rows, columns;
} shapes[] = {{1, 1},     {1, 200},   {200, 1},  {16, 33},    {128, 128}, {128, 1024},
              {129, 130}, {256, 512}, {300, 77}, {135, 1099}, {384, 96},  {96, 384}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

typedef struct way {
    uint32_t format;
    const format *type;
    int shape, stochastic, power_of_two, shift, streaming;
} way;

/* Magnitudes of many sizes, some of them not finite. */
static void fill(const way *how, uint64_t seed)
{
    const uint64_t rows = shapes[how->shape].rows, columns = shapes[how->shape].columns;
    const uint64_t size = how->type->size;
    for (uint64_t i = 0; i < rows * columns; i++) {
        uint64_t r = next_random(&seed);
        uint32_t bits = (uint32_t)r;
        if (r >> 32 & 511) {
            bits = (bits & 0x807fffffu) | (uint32_t)(110 + i / 40 % 30 + (r >> 50 & 3)) << 23;
            bits = how->type->dtype == MO_DTYPE_F16    ? mo_f32_to_f16(mo_f32_from_bits(bits))
                   : how->type->dtype == MO_DTYPE_BF16 ? mo_f32_to_bf16(mo_f32_from_bits(bits))
                                                       : bits;
        }
        memcpy(source + i * size, &bits, size);
        memcpy(turned_source + (i % columns * rows + i / columns) * size, &bits, size);
    }
}

/* As lib/cast/blocks.c cuts it. */
static uint64_t cut(mo_blocks_segment *s, int tile)
{
    uint32_t across = s->columns < MO_CHUNK_ELEMENTS ? (uint32_t)s->columns : MO_CHUNK_ELEMENTS;
    tile |= mo_blocks_height(s->format) > 1;
    s->item_columns = tile ? MO_BLOCKS_TILE : across;
    s->item_rows = tile ? MO_BLOCKS_TILE : MO_CHUNK_ELEMENTS / across;
    s->items_across = (s->columns + s->item_columns - 1) / s->item_columns;
    return (s->rows + s->item_rows - 1) / s->item_rows * s->items_across;
}

static mo_blocks_args args_of(const way *how, float *tensor_amax, result *to)
{
    mo_blocks_args args = {.seed = 0x1234567890abcdefu,
                           .sequence = 7,
                           .count = 1,
                           .stochastic = (uint8_t)how->stochastic,
                           .power_of_two = (uint8_t)how->power_of_two,
                           .streaming = (uint8_t)how->streaming};
    args.segments[0] = (mo_blocks_segment){.values = source,
                                           .tensor_amax = tensor_amax,
                                           .amax = &to->amax,
                                           .rows = shapes[how->shape].rows,
                                           .columns = shapes[how->shape].columns,
                                           .tensor = 3,
                                           .dtype = how->type->dtype,
                                           .format = (uint16_t)how->format};
    return args;
}

static void clear(result *to)
{
    memset(to, 0xa5, sizeof *to);
    to->amax = 5;
}

/* Each matrix by itself; `first` is 1 where only the transpose is wanted. */
static void make_wanted(const way *how, float *tensor_amax, int first)
{
    clear(&wanted);
    for (int side = first; side < 2; side++) {
        mo_blocks_args args = args_of(how, tensor_amax, &wanted);
        mo_blocks_segment *s = &args.segments[0];
        s->codes = wanted.codes[side] + GUARD + how->shift;
        s->scales = wanted.scales[side] + GUARD;
        if (side) {
            s->values = turned_source;
            s->rows = shapes[how->shape].columns;
            s->columns = shapes[how->shape].rows;
        }
        mo_kernel_blocks_quantize.cpu[MO_ISA_SCALAR](&args, 0, cut(s, 0));
    }
}

static void make_both(const way *how, float *tensor_amax, int first, int isa, int split)
{
    mo_blocks_args args = args_of(how, tensor_amax, &got);
    mo_blocks_segment *s = &args.segments[0];
    clear(&got);
    s->turned_codes = got.codes[1] + GUARD + how->shift;
    s->turned_scales = got.scales[1] + GUARD;
    if (first == 0) {
        s->codes = got.codes[0] + GUARD + how->shift;
        s->scales = got.scales[0] + GUARD;
    }
    const uint64_t items = cut(s, 1), middle = split ? items / 3 : items;
    if (middle < items)
        mo_kernel_blocks_transpose.cpu[isa](&args, middle, items);
    if (middle > 0)
        mo_kernel_blocks_transpose.cpu[isa](&args, 0, middle);
}

static void compare(const way *how)
{
    static float tensor_amax = 3e3f;
    float *given =
        how->shape % 3 && (how->format == MO_BLOCKS_NVFP4 || how->format >= MO_BLOCKS_E4M3_TENSOR)
            ? &tensor_amax
            : NULL;
    for (int first = 0; first < 2; first++) {
        make_wanted(how, given, first);
        FOR_EACH_FORM (isa, &mo_kernel_blocks_transpose) {
            make_both(how, given, first, isa, how->shift);
            for (int side = 0; side < 2; side++)
                if (memcmp(wanted.codes[side], got.codes[side], ROOM) != 0 ||
                    memcmp(wanted.scales[side], got.scales[side], ROOM) != 0 ||
                    wanted.amax != got.amax)
                    fail_msg("format %u from %s, shape %d, stochastic %d, form %d, %s, %s: %s",
                             how->format, how->type->name, how->shape, how->stochastic, isa,
                             first ? "alone" : "both", side ? "transpose" : "matrix",
                             memcmp(wanted.codes[side], got.codes[side], ROOM) != 0 ? "codes"
                             : wanted.amax != got.amax                              ? "amax"
                                                                                    : "scales");
        }
    }
}

static void both_are_as_from_two_calls(void **state)
{
    (void)state;
    for (uint32_t number = MO_BLOCKS_MXFP8_E4M3; number <= MO_BLOCKS_E5M2_TENSOR; number++)
        for (int type = 0; type < 3; type++)
            for (int shape = 0; shape < SHAPES; shape++)
                for (int stochastic = 0; stochastic <= 1; stochastic++) {
                    const way how = {number,    &formats[type],    shape,    stochastic,
                                     shape & 1, shape % 2 ? 3 : 0, shape % 3};
                    fill(&how, number * 100 + (uint64_t)(shape * 3 + type));
                    compare(&how);
                }
}

/* Blocks of 128 by 128, and one scale: what a caller may rely on. */
static void square_blocks_are_the_same_codes(void **state)
{
    static const uint32_t numbers[] = {MO_BLOCKS_E4M3_128X128, MO_BLOCKS_E4M3_TENSOR,
                                       MO_BLOCKS_E5M2_TENSOR};
    (void)state;
    for (int n = 0; n < 3; n++) {
        const way how = {numbers[n], &formats[2], 9, 0, 0, 0, 0};
        const uint64_t rows = shapes[how.shape].rows, columns = shapes[how.shape].columns;
        fill(&how, 4);
        make_both(&how, NULL, 0, MO_ISA_SCALAR, 0);
        for (uint64_t i = 0; i < rows * columns; i++)
            assert_int_equal(got.codes[0][GUARD + i],
                             got.codes[1][GUARD + i % columns * rows + i / columns]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_are_as_from_two_calls),
        cmocka_unit_test(square_blocks_are_the_same_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
