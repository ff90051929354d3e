/* Every form of the block kernels gives the scalar form's bits: each format, type and rounding,
 * ragged shapes, unaligned starts, many matrices, any split of the items; and writes nothing else.
 * (bindings/python/tests/test_blocks.py compares the scalar form with the specifications.) */
#include "kernels/cast/blocks.h"

#include "support.h"

enum { ELEMENTS = 1 << 16, SHIFT = 3, GUARD = 64 };

static _Alignas(64) unsigned char source[4 * ELEMENTS + 64];
static _Alignas(64) unsigned char codes[2][ELEMENTS + 4 * GUARD];
static _Alignas(64) unsigned char scales[2][ELEMENTS + 4 * GUARD];
static _Alignas(64) unsigned char values[2][4 * ELEMENTS + 4 * GUARD];

static const struct {
    uint64_t rows, columns;
} shapes[] = {{1, 1},   {1, 15},    {3, 16},    {2, 33},   {5, 127},
              {4, 128}, {3, 129},   {1, 2048},  {2, 2049}, {1, 4500},
              {7, 640}, {128, 128}, {129, 130}, {300, 5},  {2, 20000}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* Ordinary magnitudes of many sizes, with every kind of special number among them. */
static void fill(const format *from, uint64_t count, uint64_t seed)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t r = next_random(&seed);
        uint32_t bits = (uint32_t)r;
        if (r >> 32 & 15) {
            bits = (bits & 0x807fffffu) | (uint32_t)(100 + i / 40 % 50 + (r >> 40 & 3)) << 23;
            bits = from->dtype == MO_DTYPE_F16    ? mo_f32_to_f16(mo_f32_from_bits(bits))
                   : from->dtype == MO_DTYPE_BF16 ? mo_f32_to_bf16(mo_f32_from_bits(bits))
                                                  : bits;
        }
        memcpy(source + i * from->size, &bits, from->size);
    }
}

static int has_tensor_amax(uint32_t number)
{
    return number == MO_BLOCKS_NVFP4 || mo_blocks_is_tensor(number) ||
           mo_blocks_codes(number) == MO_CODES_NF4;
}

typedef struct way {
    int stochastic, power_of_two, shift;
} way;

static mo_blocks_args args_of(uint32_t number, const format *type, int shape, way how, int side,
                              float *amax, uint32_t *out_amax)
{
    mo_blocks_args args = {.seed = 0x1234567890abcdefu,
                           .sequence = 7,
                           .count = 1,
                           .stochastic = (uint8_t)how.stochastic,
                           .power_of_two = (uint8_t)how.power_of_two,
                           .streaming = 1};
    uint64_t rows = shapes[shape].rows, columns = shapes[shape].columns;
    int tall = mo_blocks_height(number) > 1;
    uint32_t across = columns < MO_CHUNK_ELEMENTS ? (uint32_t)columns : MO_CHUNK_ELEMENTS;
    args.segments[0] = (mo_blocks_segment){.values = source + (uint64_t)how.shift * type->size,
                                           .codes = codes[side] + GUARD + how.shift,
                                           .scales = scales[side] + GUARD,
                                           .tensor_amax = has_tensor_amax(number) ? amax : NULL,
                                           .amax = out_amax,
                                           .rows = rows,
                                           .columns = columns,
                                           .items_across = tall ? (columns + 127) / 128
                                                                : (columns + across - 1) / across,
                                           .item_rows = tall ? 128 : MO_CHUNK_ELEMENTS / across,
                                           .item_columns = tall ? 128 : across,
                                           .tensor = 3,
                                           .dtype = type->dtype,
                                           .format = (uint16_t)number};
    return args;
}

static uint64_t items_of(const mo_blocks_segment *s)
{
    return (s->rows + s->item_rows - 1) / s->item_rows * s->items_across;
}

static void clear(int side)
{
    memset(codes[side], 0xa5, sizeof codes[side]);
    memset(scales[side], 0xa5, sizeof scales[side]);
    memset(values[side], 0xa5, sizeof values[side]);
}

static void run(const mo_kernel *kernel, int isa, const mo_blocks_args *args, int split)
{
    uint64_t items = items_of(&args->segments[0]), middle = split ? items / 2 : items;
    if (middle < items)
        kernel->cpu[isa](args, middle, items);
    if (middle > 0)
        kernel->cpu[isa](args, 0, middle);
}

/* There and back, on `side`; the values end in values[side]. */
static void both_ways(uint32_t number, const format *type, int shape, way how, int side, int isa,
                      uint32_t *amax)
{
    static float tensor_amax = 3e9f;
    mo_blocks_args args = args_of(number, type, shape, how, side, &tensor_amax, amax);
    clear(side);
    run(&mo_kernel_blocks_quantize, isa, &args, how.shift);
    args.segments[0].values = values[side] + GUARD + (uint64_t)how.shift * type->size;
    args.segments[0].amax = NULL;
    args.stochastic = 0;
    run(&mo_kernel_blocks_dequantize, isa, &args, how.shift);
}

static void compare(uint32_t number, const format *type, int shape, way how)
{
    uint32_t wanted = 5, got;
    both_ways(number, type, shape, how, 0, MO_ISA_SCALAR, &wanted);
    FOR_EACH_WIDE_FORM (isa, &mo_kernel_blocks_quantize) {
        got = 5;
        both_ways(number, type, shape, how, 1, isa, &got);
        if (got != wanted || memcmp(codes[0], codes[1], sizeof codes[0]) != 0 ||
            memcmp(scales[0], scales[1], sizeof scales[0]) != 0 ||
            memcmp(values[0], values[1], sizeof values[0]) != 0)
            fail_msg("format %u from %s, shape %d, stochastic %d, shift %d, form %d: %s differ",
                     number, type->name, shape, how.stochastic, how.shift, isa,
                     got != wanted                                         ? "amax"
                     : memcmp(codes[0], codes[1], sizeof codes[0]) != 0    ? "codes"
                     : memcmp(scales[0], scales[1], sizeof scales[0]) != 0 ? "scales"
                                                                           : "values");
    }
}

TEST(forms_agree)
{
    for (uint32_t number = MO_BLOCKS_MXFP8_E4M3; number <= MO_BLOCKS_LAST; number++)
        for (int type = 0; type < 3; type++) {
            fill(&formats[type], ELEMENTS, number * 10 + (uint64_t)type);
            for (int shape = 0; shape < SHAPES; shape++)
                for (int stochastic = 0;
                     stochastic <= !mo_codes_are_mapped(mo_blocks_codes(number)); stochastic++) {
                    way how = {stochastic, shape & 1, shape % 2 ? SHIFT : 0};
                    compare(number, &formats[type], shape, how);
                }
        }
}

/* What lies around codes, scales and values is not written. */
TEST(nothing_else_is_written)
{
    FOR_EACH_FORM (isa, &mo_kernel_blocks_quantize)
        for (uint32_t number = MO_BLOCKS_MXFP8_E4M3; number <= MO_BLOCKS_LAST; number++)
            for (int shape = 0; shape < SHAPES; shape++) {
                const way how = {0, 0, SHIFT};
                uint64_t rows = shapes[shape].rows, columns = shapes[shape].columns;
                uint64_t code_bytes = rows * mo_blocks_code_bytes(number, columns);
                uint64_t scale_bytes = mo_blocks_of(rows, mo_blocks_height_bits(number)) *
                                       mo_blocks_of(columns, mo_blocks_width_bits(number)) *
                                       mo_blocks_scale_size(number);
                if (mo_blocks_is_tensor(number))
                    scale_bytes = 4;
                fill(&formats[0], ELEMENTS, 9);
                both_ways(number, &formats[0], shape, how, 0, isa, NULL);
                for (int k = 1; k <= GUARD / 2; k++) {
                    assert_int_equal(codes[0][GUARD + SHIFT - k], 0xa5);
                    assert_int_equal(codes[0][GUARD + SHIFT + code_bytes + (uint64_t)k - 1], 0xa5);
                    assert_int_equal(scales[0][GUARD - k], 0xa5);
                    assert_int_equal(scales[0][GUARD + scale_bytes + (uint64_t)k - 1], 0xa5);
                    assert_int_equal(values[0][GUARD + 4 * SHIFT - k], 0xa5);
                    assert_int_equal(
                        values[0][GUARD + 4 * (SHIFT + rows * columns) + (uint64_t)k - 1], 0xa5);
                }
            }
}

/* Every code of every format times scales of every kind, also codes that nothing here writes. */
TEST(every_code_comes_back)
{
    for (uint32_t number = MO_BLOCKS_MXFP8_E4M3; number <= MO_BLOCKS_LAST; number++)
        for (int type = 0; type < 3; type++) {
            const way how = {0, 0, 0};
            float amax = 1e20f;
            mo_blocks_args args = args_of(number, &formats[type], 7, how, 0, &amax, NULL);
            args.segments[0].rows = 32;
            args.segments[0].item_rows = 32 < args.segments[0].item_rows ? 32 : 8;
            uint64_t seed = number;
            for (uint64_t i = 0; i < 32 * 2048; i++)
                codes[0][GUARD + i] = (unsigned char)(i + (i >> 8));
            for (uint64_t i = 0; i < 16384; i += 4) {
                uint32_t bits = i & 4 ? (uint32_t)next_random(&seed) : (uint32_t)i * 0x01010101u;
                memcpy(scales[0] + GUARD + i, &bits, 4);
            }
            FOR_EACH_FORM (isa, &mo_kernel_blocks_dequantize) {
                int side = isa != MO_ISA_SCALAR;
                memset(values[side], 0, sizeof values[side]);
                args.segments[0].values = values[side];
                mo_kernel_blocks_dequantize.cpu[isa](&args, 0, items_of(&args.segments[0]));
                assert_memory_equal(values[0], values[side], sizeof values[0]);
            }
        }
}

/* Quantises the first `columns` bf16 of `source` as one row by every form. */
static void compare_row(uint32_t number, uint64_t columns, float *tensor_amax, way how)
{
    mo_blocks_args args = {.count = 1,
                           .seed = columns,
                           .stochastic = (uint8_t)how.stochastic,
                           .power_of_two = (uint8_t)how.power_of_two};
    args.segments[0] = (mo_blocks_segment){.values = source,
                                           .tensor_amax = tensor_amax,
                                           .rows = 1,
                                           .columns = columns,
                                           .items_across = 1,
                                           .item_rows = 1,
                                           .item_columns = (uint32_t)columns,
                                           .dtype = MO_DTYPE_BF16,
                                           .format = (uint16_t)number};
    FOR_EACH_FORM (isa, &mo_kernel_blocks_quantize) {
        const int side = isa != MO_ISA_SCALAR;
        clear(side);
        args.segments[0].codes = codes[side];
        args.segments[0].scales = scales[side];
        mo_kernel_blocks_quantize.cpu[isa](&args, 0, 1);
        if (memcmp(codes[0], codes[side], sizeof codes[0]) != 0 ||
            memcmp(scales[0], scales[side], sizeof scales[0]) != 0)
            fail_msg("format %u, largest magnitudes from %04x, form %d", number,
                     ((const uint16_t *)(const void *)source)[0], isa);
    }
}

/* Blocks that begin with `largest` and go on with the magnitudes [first, last), of either sign.
 * Returns how many elements. */
static uint64_t fill_blocks(uint32_t largest, uint32_t first, uint32_t last, uint64_t width)
{
    uint16_t *halves = (uint16_t *)(void *)source;
    uint64_t count = 0;
    for (uint32_t at = first; at < last; count++)
        if (count % width == 0)
            halves[count] = (uint16_t)largest;
        else {
            halves[count] = (uint16_t)(at | (at ^ at >> 3) << 15);
            at++;
        }
    for (; count % 512 != 0; count++)
        halves[count] = (uint16_t)largest;
    return count;
}

/* Every magnitude of bf16 beside every exponent of the largest one of its block. */
TEST(every_bf16_at_every_scale)
{
    for (uint32_t largest = 0x7f; largest <= 0x7f80; largest += 0x80)
        for (uint32_t number = MO_BLOCKS_MXFP8_E4M3; number <= MO_BLOCKS_MXFP4; number++)
            for (int stochastic = 0; stochastic < 2; stochastic++)
                compare_row(number, fill_blocks(largest, 0, largest + 1, 32), NULL,
                            (way){stochastic, 0, 0});
}

/* NVFP4: its scales are no powers of two; those of ordinary, tiny and huge tensors. */
TEST(every_mantissa_at_every_nvfp4_scale)
{
    static float tensor_amaxes[] = {0.37f, 3e-38f, 3e38f};
    for (uint32_t largest = 0x3c00; largest < 0x3f00; largest += 3)
        for (int t = 0; t < 4; t++) {
            uint32_t shift = t == 2 ? 0x3b00 : 0, up = t == 3 ? 0x3f80 : 0;
            compare_row(MO_BLOCKS_NVFP4,
                        fill_blocks(largest - shift + up, largest - shift + up - 0x280,
                                    largest - shift + up + 1, 16),
                        t == 0 ? NULL : &tensor_amaxes[t - 1], (way){0, 0, 0});
        }
}

/* e4m3 with a scale of f32: every magnitude that has a normal code, and those around, beside every
 * mantissa of the largest one; and every magnitude with the scales of some tensors. */
TEST(every_bf16_at_every_f32_scale)
{
    static const uint32_t exponents[] = {0x0d00, 0x0d80, 0x3f80, 0x7f00};
    static float tensor_amaxes[] = {448, 1, 3.3f, 0x1.fffffep5f, 3e-38f, 3e38f};
    for (int e = 0; e < 4; e++)
        for (uint32_t largest = exponents[e]; largest < exponents[e] + 0x80; largest++)
            for (int power = 0; power < 2; power++) {
                const uint32_t first = largest > 0xa00 ? largest - 0xa00 : 0;
                compare_row(MO_BLOCKS_E4M3_1X128, fill_blocks(largest, first, largest + 1, 128),
                            NULL, (way){0, power, 0});
            }
    for (int t = 0; t < 6; t++)
        for (int power = 0; power < 2; power++)
            compare_row(MO_BLOCKS_E4M3_TENSOR, fill_blocks(0x3f80, 0, 0x8000, 128),
                        &tensor_amaxes[t], (way){0, power, 0});
}
