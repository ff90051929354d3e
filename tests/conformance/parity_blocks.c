/* Block-scaled matrices: the same bits as on the cpu for every format, type, rounding and shape. */
#include "conformance.h"

#include "support/sweep.h"

#include <stdlib.h>
#include <string.h>

enum { FORMATS = MEMOPT_BLOCKS_DYNAMIC8, ROUNDED = MEMOPT_BLOCKS_E5M2_TENSOR };

/* Ragged and whole, narrower and wider than blocks and items. */
static const struct {
    uint64_t rows, columns;
} shapes[] = {{1, 1}, {3, 31}, {5, 128}, {2, 1000}, {130, 129}, {45, 768}, {1, 40001}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void *device_bytes(world *w, uint64_t bytes)
{
    void *memory = NULL;
    OK(memopt_allocator_alloc(w->allocator, bytes, MEMOPT_TAG_OTHER, w->stream, &memory));
    OK(memopt_fill(w->device, memory, 0, bytes, w->stream));
    return memory;
}

/* A matrix of a format, and the bytes of its two parts. */
static memopt_blocks new_blocks(world *w, uint32_t format, uint64_t rows, uint64_t columns,
                                uint64_t shift, memopt_blocks_layout *layout)
{
    memopt_blocks blocks = {.rows = rows, .columns = columns, .format = format};
    *layout = (memopt_blocks_layout)MEMOPT_BLOCKS_LAYOUT_INIT;
    OK(memopt_blocks_get_layout(format, rows, columns, layout));
    blocks.codes = (char *)device_bytes(w, layout->code_bytes + shift) + shift;
    blocks.scales = device_bytes(w, layout->scale_bytes);
    return blocks;
}

static void free_blocks(world *w, memopt_blocks *blocks, uint64_t shift)
{
    OK(memopt_allocator_free(w->allocator, (char *)blocks->codes - shift));
    OK(memopt_allocator_free(w->allocator, blocks->scales));
}

static int has_tensor_amax(uint32_t format)
{
    return format == MEMOPT_BLOCKS_NVFP4 ||
           (format >= MEMOPT_BLOCKS_E4M3_TENSOR && format != MEMOPT_BLOCKS_DYNAMIC8);
}

static void one_matrix(world *w, const memopt_tensor *source, uint32_t format, int shape,
                       uint32_t rounding, uint64_t shift)
{
    memopt_blocks_options options = MEMOPT_BLOCKS_OPTIONS_INIT;
    memopt_blocks_layout layout;
    memopt_blocks blocks =
        new_blocks(w, format, shapes[shape].rows, shapes[shape].columns, shift, &layout);
    float *cells = device_bytes(w, 8);
    memopt_tensor back = new_raw_tensor(w, source->count, source->dtype, NULL, shift);
    options.rounding = rounding;
    options.power_of_two = shape % 2;
    options.seed = 42 + w->options->seed;
    options.sequence = source->count;
    options.amax = cells;
    label(w, "format %u from %s, %llu x %llu, rounding %u, shifted by %llu", format,
          memopt_dtype_name(source->dtype), (unsigned long long)blocks.rows,
          (unsigned long long)blocks.columns, rounding, (unsigned long long)shift);
    OK(memopt_blocks_quantize(w->device, &blocks, source, 1, &options, w->stream));
    result_of(w, blocks.codes, layout.code_bytes);
    result_of(w, blocks.scales, layout.scale_bytes);
    result_of(w, cells, 4);
    if (has_tensor_amax(format)) { /* again with what the first pass has found */
        options.amax = cells + 1;
        blocks.tensor_amax = cells;
        OK(memopt_blocks_quantize(w->device, &blocks, source, 1, &options, w->stream));
        result_of(w, blocks.codes, layout.code_bytes);
        result_of(w, blocks.scales, layout.scale_bytes);
    }
    OK(memopt_blocks_dequantize(w->device, &back, &blocks, 1, w->stream));
    result_of_tensor(w, &back);
    free_tensor(w, &back);
    OK(memopt_allocator_free(w->allocator, cells));
    free_blocks(w, &blocks, shift);
}

static void formats_agree(world *w)
{
    float *values = host_memory(4 * 40001);
    uint32_t turn = 0;
    for (uint32_t format = 1; format <= FORMATS; format++)
        for (int shape = 0; shape < SHAPES; shape++)
            for (int type = 0; type < WIDE_TYPES; type++)
                for (uint32_t rounding = 0; rounding <= (format <= ROUNDED); rounding++, turn++) {
                    uint64_t count = shapes[shape].rows * shapes[shape].columns;
                    if (w->options->scale == SCALE_SMALL && turn % (is_long() ? 5 : 19) != 0)
                        continue;
                    if (turn % 3)
                        fill_smooth(values, count, turn, 3.0f);
                    else
                        fill_any_floats(values, count, turn);
                    memopt_tensor source =
                        new_shifted_tensor(w, count, float_types[type], values, turn / 2 % 2);
                    one_matrix(w, &source, format, shape, rounding, turn % 2);
                    free_tensor(w, &source);
                }
    free(values);
}

/* More matrices than a launch takes, some of them empty; each has its own random bits. */
static void many_agree(world *w)
{
    enum { MATRICES = 130, COLUMNS = 40 };
    memopt_blocks_options options = MEMOPT_BLOCKS_OPTIONS_INIT;
    memopt_blocks blocks[MATRICES];
    memopt_tensor from[MATRICES];
    float values[COLUMNS];
    memopt_blocks_layout layout;
    fill_smooth(values, COLUMNS, 3, 1.0f);
    memopt_tensor source = new_tensor(w, COLUMNS, MEMOPT_DTYPE_F32, values);
    unsigned char *codes = device_bytes(w, MATRICES * COLUMNS);
    float *scales = device_bytes(w, 4 * MATRICES * COLUMNS);
    for (uint32_t i = 0; i < MATRICES; i++) {
        blocks[i] = (memopt_blocks){codes + i * COLUMNS, scales + i * COLUMNS, NULL, i % 3, 13,
                                    1 + i % ROUNDED};
        from[i] = (memopt_tensor){source.data, (uint64_t)13 * (i % 3), MEMOPT_DTYPE_F32};
        OK(memopt_blocks_get_layout(
            blocks[i].format, i % 3, 13,
            (layout = (memopt_blocks_layout)MEMOPT_BLOCKS_LAYOUT_INIT, &layout)));
        CHECK(layout.code_bytes <= COLUMNS);
    }
    options.rounding = MEMOPT_ROUND_STOCHASTIC;
    label(w, "%d matrices", MATRICES);
    OK(memopt_blocks_quantize(w->device, blocks, from, MATRICES, &options, w->stream));
    result_of(w, codes, MATRICES * COLUMNS);
    result_of(w, scales, 4 * MATRICES * COLUMNS);
    FAILS(MEMOPT_INVALID_ARGUMENT,
          memopt_blocks_dequantize(w->device, from, blocks, MATRICES, w->stream));
    OK(memopt_blocks_quantize(w->device, NULL, NULL, 0, NULL, w->stream));
    free_tensor(w, &source);
    OK(memopt_allocator_free(w->allocator, codes));
    OK(memopt_allocator_free(w->allocator, scales));
}

const conformance_case block_cases[] = {
    {"blocks_formats", formats_agree, 1, 0, 0},
    {"blocks_many", many_agree, 1, 0, 0},
    {NULL, NULL, 0, 0, 0},
};
