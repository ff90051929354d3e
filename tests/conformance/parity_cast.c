/* Casts: the same bits as on the cpu for every pair of types, rounding, size and alignment. */
#include "conformance.h"

#include <stdlib.h>
#include <string.h>

static const char *name_of(memopt_dtype dtype)
{
    return memopt_dtype_name(dtype);
}

/* What a cast can be told: every rounding with and without saturation. */
static const struct {
    const char *name;
    uint32_t rounding, saturate;
} ways[] = {
    {"nearest", MEMOPT_ROUND_NEAREST_EVEN, 0},
    {"nearest saturating", MEMOPT_ROUND_NEAREST_EVEN, 1},
    {"stochastic", MEMOPT_ROUND_STOCHASTIC, 0},
    {"stochastic saturating", MEMOPT_ROUND_STOCHASTIC, 1},
};
enum { WAYS = sizeof ways / sizeof ways[0] };

static void cast_one(world *w, const memopt_tensor *source, memopt_dtype to, int way,
                     uint64_t shift)
{
    memopt_cast_options options = MEMOPT_CAST_OPTIONS_INIT;
    memopt_tensor target = new_raw_tensor(w, source->count, to, NULL, shift);
    options.rounding = ways[way].rounding;
    options.saturate = ways[way].saturate;
    options.seed = 42 + w->options->seed;
    options.sequence = source->count;
    label(w, "%llu of %s to %s, %s, shifted by %llu", (unsigned long long)source->count,
          name_of(source->dtype), name_of(to), ways[way].name, (unsigned long long)shift);
    OK(memopt_cast(w->device, &target, source, 1, &options, w->stream));
    result_of_tensor(w, &target);
    free_tensor(w, &target);
}

/* Every pair in every way; sizes and alignments go round, so that each meets each pair's kernels
 * on some way, and on a larger scale all of them. */
static void pairs_agree(world *w)
{
    uint32_t sizes = 0, turn = 0;
    const uint64_t *size = odd_sizes(w->options->scale, &sizes);
    float *values = host_memory(4 * size[sizes - 1]);
    uint32_t each = w->options->scale == SCALE_LARGE ? sizes : 1;
    fill_any_floats(values, size[sizes - 1], 11);
    for (int from = 0; from < FLOAT_TYPES; from++)
        for (int to = 0; to < FLOAT_TYPES; to++)
            for (int way = 0; way < WAYS; way++)
                for (uint32_t i = 0; i < each; i++, turn++) {
                    uint64_t count = size[turn % sizes];
                    memopt_tensor source =
                        new_shifted_tensor(w, count, float_types[from], values, turn / 2 % 2);
                    cast_one(w, &source, float_types[to], way, turn % 2);
                    free_tensor(w, &source);
                }
    free(values);
}

/* Every size, from each alignment to each. */
static void sizes_agree(world *w)
{
    static const memopt_dtype pairs[][2] = {{MEMOPT_DTYPE_F32, MEMOPT_DTYPE_BF16},
                                            {MEMOPT_DTYPE_BF16, MEMOPT_DTYPE_F32},
                                            {MEMOPT_DTYPE_F16, MEMOPT_DTYPE_BF16},
                                            {MEMOPT_DTYPE_F32, MEMOPT_DTYPE_F8_E4M3},
                                            {MEMOPT_DTYPE_F8_E5M2, MEMOPT_DTYPE_F16}};
    uint32_t sizes = 0;
    const uint64_t *size = odd_sizes(w->options->scale, &sizes);
    float *values = host_memory(4 * size[sizes - 1]);
    fill_floats(values, size[sizes - 1], 12);
    for (size_t p = 0; p < sizeof pairs / sizeof pairs[0]; p++)
        for (uint32_t i = 0; i < sizes; i++) {
            memopt_tensor source = new_shifted_tensor(w, size[i], pairs[p][0], values, i % 2);
            cast_one(w, &source, pairs[p][1], 0, 0);
            cast_one(w, &source, pairs[p][1], 2, 1);
            cast_one(w, &source, pairs[p][1], 0, 3);
            free_tensor(w, &source);
        }
    free(values);
}

/* All values of the narrow types, to every type in every way. */
static void all_narrow_values_agree(world *w)
{
    uint16_t *wide = host_memory(65536 * sizeof *wide);
    uint8_t bytes[256];
    for (uint32_t i = 0; i < 65536; i++)
        wide[i] = (uint16_t)i;
    for (uint32_t i = 0; i < 256; i++)
        bytes[i] = (uint8_t)i;
    for (int from = 1; from < FLOAT_TYPES; from++) {
        int narrow = memopt_dtype_size(float_types[from]) == 1;
        memopt_tensor source = new_raw_tensor(w, narrow ? 256 : 65536, float_types[from],
                                              narrow ? (const void *)bytes : (const void *)wide, 0);
        for (int to = 0; to < FLOAT_TYPES; to++)
            for (int way = 0; way < WAYS; way++)
                cast_one(w, &source, float_types[to], way, 0);
        free_tensor(w, &source);
    }
    free(wide);
}

/* The first `count` bit patterns of a type (each `step`-th), as tensors of it and as floats. */
static memopt_tensor patterns(world *w, memopt_dtype dtype, uint32_t count, uint32_t step,
                              float *out_values)
{
    size_t size = memopt_dtype_size(dtype);
    unsigned char *codes = host_memory(size * count);
    for (uint32_t i = 0; i < count; i++) {
        uint16_t code = (uint16_t)(i * step);
        memcpy(codes + size * i, &code, size); /* the lower byte comes first */
    }
    memopt_tensor narrow = new_raw_tensor(w, count, dtype, codes, 0);
    memopt_tensor exact = new_raw_tensor(w, count, MEMOPT_DTYPE_F32, NULL, 0);
    OK(memopt_cast(w->device, &exact, &narrow, 1, NULL, w->stream));
    OK(memopt_copy(w->device, out_values, exact.data, tensor_bytes(&exact), w->stream));
    OK(memopt_stream_sync(w->device, w->stream));
    free_tensor(w, &exact);
    free(codes);
    return narrow;
}

/* Floats on, just below and just above the middle between two neighbours of the target: its value
 * as an f32, with half of what rounding drops added, in integers. */
static void halfway_values_agree(world *w)
{
    static const struct {
        memopt_dtype to;
        uint32_t dropped, values; /* bits; how many bit patterns the target has */
    } targets[] = {{MEMOPT_DTYPE_F16, 13, 65536},       {MEMOPT_DTYPE_BF16, 16, 65536},
                   {MEMOPT_DTYPE_F8_E4M3, 20, 256},     {MEMOPT_DTYPE_F8_E5M2, 21, 256},
                   {MEMOPT_DTYPE_F8_E4M3FNUZ, 20, 256}, {MEMOPT_DTYPE_F8_E5M2FNUZ, 21, 256}};
    for (size_t t = 0; t < sizeof targets / sizeof targets[0]; t++) {
        uint32_t step = w->options->scale != SCALE_LARGE && targets[t].values > 256 ? 7 : 1;
        uint32_t count = targets[t].values / step;
        float *values = host_memory(sizeof *values * count);
        uint32_t *middles = host_memory(3 * sizeof *middles * count);
        memopt_tensor narrow = patterns(w, targets[t].to, count, step, values);
        for (uint32_t i = 0; i < 3 * count; i++) {
            memcpy(&middles[i], &values[i / 3], sizeof *middles);
            middles[i] += (1u << (targets[t].dropped - 1)) + i % 3 - 1;
        }
        memopt_tensor source = new_raw_tensor(w, 3 * (uint64_t)count, MEMOPT_DTYPE_F32, middles, 0);
        for (int way = 0; way < WAYS; way++)
            cast_one(w, &source, targets[t].to, way, 0);
        free_tensor(w, &narrow);
        free_tensor(w, &source);
        free(middles);
        free(values);
    }
}

/* Thousands of tensors in one call, some of them empty; each has its own random bits. */
static void thousands_agree(world *w)
{
    enum { TENSORS = 3000, MOST = 9 };
    memopt_cast_options options = MEMOPT_CAST_OPTIONS_INIT;
    float *values = host_memory(sizeof *values * TENSORS * MOST);
    memopt_tensor *from = host_memory(TENSORS * sizeof *from);
    memopt_tensor *to = host_memory(TENSORS * sizeof *to);
    fill_floats(values, TENSORS * MOST, 13);
    memopt_tensor source = new_tensor(w, TENSORS * MOST, MEMOPT_DTYPE_F32, values);
    memopt_tensor target = new_tensor(w, TENSORS * MOST, MEMOPT_DTYPE_BF16, NULL);
    for (uint64_t i = 0; i < TENSORS; i++) {
        from[i] =
            (memopt_tensor){(float *)source.data + i * MOST, i % (MOST + 1), MEMOPT_DTYPE_F32};
        to[i] = (memopt_tensor){(uint16_t *)target.data + i * MOST, i % (MOST + 1),
                                i % 3 ? MEMOPT_DTYPE_BF16 : MEMOPT_DTYPE_F16};
    }
    options.rounding = MEMOPT_ROUND_STOCHASTIC;
    options.seed = 5;
    label(w, "%d tensors", TENSORS);
    OK(memopt_cast(w->device, to, from, TENSORS, &options, w->stream));
    result_of_tensor(w, &target);
    OK(memopt_cast(w->device, to, from, TENSORS, NULL, w->stream));
    result_of_tensor(w, &target);
    OK(memopt_cast(w->device, NULL, NULL, 0, NULL, w->stream));
    free_tensor(w, &source);
    free_tensor(w, &target);
    free(values);
    free(from);
    free(to);
}

/* In place between types of one size, and what does not fit is refused with nothing written. */
static void casts_in_place_agree(world *w)
{
    enum { COUNT = 1000 };
    float values[COUNT];
    fill_floats(values, COUNT, 14);
    memopt_tensor half = new_tensor(w, COUNT, MEMOPT_DTYPE_F16, values);
    memopt_tensor brain = half, wide = half;
    brain.dtype = MEMOPT_DTYPE_BF16;
    wide.dtype = MEMOPT_DTYPE_F32;
    wide.count = COUNT / 2;
    memopt_tensor part = half;
    part.count = COUNT / 2;
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_cast(w->device, &wide, &part, 1, NULL, w->stream));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_cast(w->device, &part, &half, 1, NULL, w->stream));
    label(w, "after refusals");
    result_of_tensor(w, &half);
    OK(memopt_cast(w->device, &brain, &half, 1, NULL, w->stream));
    label(w, "in place");
    result_of_tensor(w, &brain);
    free_tensor(w, &half);
}

/* With the largest magnitudes in the same pass, and alone. */
static void amax_agrees(world *w)
{
    uint32_t sizes = 0;
    const uint64_t *size = odd_sizes(w->options->scale, &sizes);
    float *values = host_memory(4 * size[sizes - 1]);
    float zeros[2] = {0};
    for (uint32_t i = 0; i < sizes; i++)
        for (int type = 0; type < FLOAT_TYPES; type++) {
            memopt_cast_options options = MEMOPT_CAST_OPTIONS_INIT;
            if (w->options->scale == SCALE_SMALL && (i + (uint32_t)type) % 4 != 0)
                continue;
            if (i % 2)
                fill_any_floats(values, size[i], i);
            else
                fill_smooth(values, size[i], i, 3.0f);
            memopt_tensor source = new_shifted_tensor(w, size[i], float_types[type], values, i % 2);
            memopt_tensor target =
                new_raw_tensor(w, size[i], float_types[(type + (int)i) % FLOAT_TYPES], NULL, i % 3);
            memopt_tensor cells = new_tensor(w, 2, MEMOPT_DTYPE_F32, zeros);
            options.rounding = i & 1;
            options.amax = cells.data;
            label(w, "amax of %llu of %s to %s", (unsigned long long)size[i], name_of(source.dtype),
                  name_of(target.dtype));
            OK(memopt_cast(w->device, &target, &source, 1, &options, w->stream));
            OK(memopt_cast(w->device, NULL, &source, 1,
                           &(memopt_cast_options){.struct_size = sizeof(memopt_cast_options),
                                                  .amax = (float *)cells.data + 1},
                           w->stream));
            result_of_tensor(w, &target);
            result_of_tensor(w, &cells);
            free_tensor(w, &cells);
            free_tensor(w, &target);
            free_tensor(w, &source);
        }
    free(values);
}

const conformance_case cast_cases[] = {
    {"cast_amax", amax_agrees, 1, 0, 0},
    {"cast_pairs", pairs_agree, 1, 0, 0},
    {"cast_sizes", sizes_agree, 1, 0, 0},
    {"cast_all_values", all_narrow_values_agree, 1, 0, 0},
    {"cast_halfway", halfway_values_agree, 1, 0, 0},
    {"cast_thousands", thousands_agree, 1, 0, 0},
    {"cast_in_place", casts_in_place_agree, 1, 0, 0},
    {NULL, NULL, 0, 0, 0},
};
