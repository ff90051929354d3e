/* Non-finite check, unscale, norm, clip, sums, the scale itself and cross-entropy: the same bits as on the
 * cpu. */
#include "conformance.h"

#include <stdlib.h>
#include <string.h>

static memopt_scaler *new_scaler(world *w, double scale, uint32_t disabled)
{
    memopt_scaler_options options = MEMOPT_SCALER_OPTIONS_INIT;
    memopt_scaler *scaler = NULL;
    options.init_scale = scale;
    options.growth_interval = 2;
    options.disabled = disabled;
    OK(memopt_scaler_create(w->device, &options, &scaler));
    return scaler;
}

static void end_scaler(world *w, memopt_scaler *scaler)
{
    OK(memopt_stream_sync(w->device, w->stream));
    OK(memopt_scaler_destroy(scaler));
}

static void result_of_state(world *w, memopt_scaler *scaler)
{
    memopt_scaler_state state = {.struct_size = sizeof state};
    OK(memopt_scaler_get_state_sync(scaler, w->stream, &state));
    result(w, &state.scale, sizeof state.scale);
    result(w, &state.growth_tracker, sizeof state.growth_tracker);
    result_of(w, memopt_scaler_get_found_inf(scaler), 4);
}

/* Check, unscale, norm and clip of one list; then the update. */
static void whole_step(world *w, memopt_scaler *scaler, const memopt_tensor *tensors,
                       uint64_t count, double max_norm)
{
    memopt_tensor norm = new_tensor(w, 2, MEMOPT_DTYPE_F32, NULL);
    OK(memopt_check_finite(w->device, tensors, count, memopt_scaler_get_found_inf(scaler),
                           w->stream));
    result_of_state(w, scaler);
    OK(memopt_scaler_unscale(scaler, tensors, count, w->stream));
    OK(memopt_norm(w->device, norm.data, tensors, count, 0, w->stream));
    OK(memopt_norm(w->device, (float *)norm.data + 1, tensors, count, max_norm, w->stream));
    result_of_tensor(w, &norm);
    OK(memopt_scaler_update(scaler, w->stream));
    result_of_state(w, scaler);
    free_tensor(w, &norm);
}

/* Each size alone and all together, in each type, aligned and not. */
static void sizes_agree(world *w)
{
    uint32_t sizes = 0;
    const uint64_t *size = odd_sizes(w->options->scale, &sizes);
    float *values = host_memory(4 * size[sizes - 1]);
    memopt_tensor tensors[16];
    fill_smooth(values, size[sizes - 1], 21, 3.0f);
    for (int type = 0; type < WIDE_TYPES; type++) {
        memopt_scaler *scaler = new_scaler(w, 1024, 0);
        for (uint32_t i = 0; i < sizes; i++) {
            tensors[i] = new_shifted_tensor(w, size[i], float_types[type], values, i % 2);
            label(w, "%llu of %s", (unsigned long long)size[i],
                  memopt_dtype_name(float_types[type]));
            whole_step(w, scaler, &tensors[i], 1, 1e-4);
            result_of_tensor(w, &tensors[i]);
        }
        label(w, "all sizes of %s", memopt_dtype_name(float_types[type]));
        whole_step(w, scaler, tensors, sizes, 1e-6);
        for (uint32_t i = 0; i < sizes; i++) {
            result_of_tensor(w, &tensors[i]);
            free_tensor(w, &tensors[i]);
        }
        end_scaler(w, scaler);
    }
    free(values);
}

/* A value that is not finite, wherever it is: at each end of a tensor, of a block, in the last of
 * many tensors. */
static void non_finite_values_are_found(world *w)
{
    static const uint32_t bad[] = {0x7F800000u, 0xFF800000u, 0x7FC00000u, 0xFF800001u};
    enum { COUNT = 4100, TENSORS = 5 };
    static const uint64_t places[] = {0, 1, 255, 256, 2047, 2048, COUNT - 1};
    float values[COUNT];
    memopt_tensor tensors[TENSORS];
    memopt_scaler *scaler = new_scaler(w, 65536, 0);
    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
        for (uint32_t t = 0; t < TENSORS; t++) {
            fill_smooth(values, COUNT, t + 1, 100.0f);
            if (t == p % TENSORS)
                memcpy(&values[places[p]], &bad[p % 4], sizeof bad[0]);
            tensors[t] = new_shifted_tensor(w, COUNT, float_types[t % WIDE_TYPES], values, p % 2);
        }
        label(w, "a bad value at %llu", (unsigned long long)places[p]);
        float flag = 0.0f;
        OK(memopt_check_finite(w->device, tensors, TENSORS, memopt_scaler_get_found_inf(scaler),
                               w->stream));
        OK(memopt_copy(w->device, &flag, memopt_scaler_get_found_inf(scaler), 4, w->stream));
        OK(memopt_stream_sync(w->device, w->stream));
        CHECK(flag == 1.0f);
        whole_step(w, scaler, tensors, TENSORS, 1.0);
        for (uint32_t t = 0; t < TENSORS; t++) {
            result_of_tensor(w, &tensors[t]);
            free_tensor(w, &tensors[t]);
        }
    }
    end_scaler(w, scaler);
}

/* Squares that leave the range of floats, sums that depend on their order, empty lists. */
static void norms_agree(world *w)
{
    static const float sizes[] = {1e-30f, 1.0f, 1e30f};
    enum { COUNT = 40000 };
    float *values = host_memory(sizeof *values * COUNT);
    memopt_scaler *scaler = new_scaler(w, 1, 0);
    memopt_tensor norm = new_tensor(w, 1, MEMOPT_DTYPE_F32, NULL);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        fill_smooth(values, COUNT, i, sizes[i]);
        for (int type = 0; type < WIDE_TYPES; type++) {
            memopt_tensor t = new_shifted_tensor(w, COUNT - i, float_types[type], values, i);
            label(w, "norm of %s around %g", memopt_dtype_name(t.dtype), (double)sizes[i]);
            OK(memopt_norm(w->device, norm.data, &t, 1, 0, w->stream));
            result_of_tensor(w, &norm);
            OK(memopt_norm(w->device, norm.data, &t, 1, 1e-3, w->stream));
            result_of_tensor(w, &t);
            free_tensor(w, &t);
        }
    }
    label(w, "norm of nothing");
    OK(memopt_fill(w->device, norm.data, 0xFF, 4, w->stream));
    OK(memopt_norm(w->device, norm.data, NULL, 0, 0, w->stream));
    result_of_tensor(w, &norm);
    OK(memopt_norm(w->device, norm.data, NULL, 0, 1, w->stream));
    OK(memopt_scaler_unscale(scaler, NULL, 0, w->stream));
    OK(memopt_check_finite(w->device, NULL, 0, memopt_scaler_get_found_inf(scaler), w->stream));
    result_of_state(w, scaler);
    free_tensor(w, &norm);
    end_scaler(w, scaler);
    free(values);
}

static void thousands_agree(world *w)
{
    enum { TENSORS = 3000, MOST = 7 };
    float *values = host_memory(sizeof *values * TENSORS * MOST);
    memopt_tensor *tensors = host_memory(TENSORS * sizeof *tensors);
    memopt_scaler *scaler = new_scaler(w, 128, 0);
    fill_smooth(values, TENSORS * MOST, 23, 50.0f);
    memopt_tensor all = new_tensor(w, TENSORS * MOST, MEMOPT_DTYPE_F32, values);
    for (uint64_t i = 0; i < TENSORS; i++)
        tensors[i] =
            (memopt_tensor){(float *)all.data + i * MOST, i % (MOST + 1), MEMOPT_DTYPE_F32};
    label(w, "%d tensors", TENSORS);
    whole_step(w, scaler, tensors, TENSORS, 0.5);
    result_of_tensor(w, &all);
    free_tensor(w, &all);
    end_scaler(w, scaler);
    free(values);
    free(tensors);
}

/* Growth, backoff, growth that would overflow, a state that is set, a scaler that is off. */
static void the_scale_agrees(world *w)
{
    float one = 1.0f, infinite;
    uint32_t bits = 0x7F800000u;
    memopt_scaler_state state = {sizeof state, 1.5e38, 2.0, 0.25, 3, 2};
    memcpy(&infinite, &bits, sizeof infinite);
    for (uint32_t disabled = 0; disabled < 2; disabled++) {
        memopt_scaler *scaler = new_scaler(w, 1e38, disabled);
        memopt_tensor t = new_tensor(w, 1, MEMOPT_DTYPE_F32, &one);
        for (int step = 0; step < 12; step++) {
            const float *value = step % 5 == 4 ? &infinite : &one;
            label(w, "step %d%s", step, disabled ? ", disabled" : "");
            OK(memopt_copy(w->device, t.data, value, 4, w->stream));
            OK(memopt_scaler_unscale(scaler, &t, 1, w->stream));
            OK(memopt_scaler_update(scaler, w->stream));
            result_of_state(w, scaler);
            result_of_tensor(w, &t);
            if (step == 6 && !disabled)
                OK(memopt_scaler_set_state_sync(scaler, &state, w->stream));
        }
        free_tensor(w, &t);
        end_scaler(w, scaler);
    }
}

/* A type that sums are kept in, in the order of float_types. */
typedef struct wide_format {
    uint32_t fraction_bits, bias;
} wide_format;

static const wide_format wide_formats[WIDE_TYPES] = {{23, 127}, {10, 15}, {7, 127}};

/* Codes at which forms may differ, without their sign: zero, subnormals and their ends, infinity, a
 * signalling and quiet NaNs with a payload; and one, the largest number, and halves of their last
 * places in each type, each with what is next to it, so that sums are ties, nearly ties, and just
 * above the largest number. Their odd number (0 comes twice) brings each to every place of a pack.
 */
enum { MAGNITUDES = 30, ODD_CODES = 2 * MAGNITUDES + 1, ODD_SUMS = ODD_CODES * ODD_CODES + 5 };
static uint32_t odd_code(const wide_format *f, uint32_t i)
{
    static const int powers[] = {0, -8, -11, -24, -14, -126, 4, 103, 119};
    const uint32_t one = 1u << f->fraction_bits, infinity = (2 * f->bias + 1) * one;
    const uint32_t codes[] = {0,
                              1,
                              2,
                              one / 2,
                              one - 1,
                              one,
                              infinity - 2,
                              infinity - 1,
                              infinity,
                              infinity + 1,
                              infinity + one / 2,
                              infinity + one - 3};
    enum { CODES = sizeof codes / sizeof codes[0] };
    uint32_t sign = i / MAGNITUDES * (infinity + one), k = i % MAGNITUDES;
    if (k < CODES)
        return sign | codes[k];
    k -= CODES;
    int exponent = powers[k / 2] + (int)f->bias;
    if (exponent <= 0 || exponent > 2 * (int)f->bias)
        exponent = (int)f->bias + 1;
    return sign | ((uint32_t)exponent * one + k % 2);
}

/* A tensor of such codes, each of which is `each` elements long and comes again in turn. */
static memopt_tensor odd_tensor(world *w, uint32_t type, uint32_t each, uint64_t shift)
{
    size_t size = memopt_dtype_size(float_types[type]);
    unsigned char *codes = host_memory(size * ODD_SUMS);
    for (uint32_t i = 0; i < ODD_SUMS; i++) {
        uint32_t code = odd_code(&wide_formats[type], i / each % ODD_CODES);
        memcpy(codes + size * i, &code, size); /* the lower byte comes first */
    }
    memopt_tensor tensor = new_raw_tensor(w, ODD_SUMS, float_types[type], codes, shift);
    free(codes);
    return tensor;
}

/* Every odd code plus every other one, in every pair of types, aligned and not, by factors that
 * keep them, turn them round, round them and make them overflow. */
static void odd_sums_agree(world *w)
{
    static const float scales[] = {1.0f, -1.0f, 1.0f / 3, 0.0f, 0x1p100f, -0x1p-120f};
    enum { PAIRS = WIDE_TYPES * WIDE_TYPES, SCALES = sizeof scales / sizeof scales[0] };
    memopt_tensor to[PAIRS], from[PAIRS];
    for (uint32_t i = 0; i < PAIRS; i++)
        from[i] = odd_tensor(w, i / WIDE_TYPES, ODD_CODES, i % 2);
    for (uint32_t s = 0; s < SCALES; s++) {
        for (uint32_t i = 0; i < PAIRS; i++)
            to[i] = odd_tensor(w, i % WIDE_TYPES, 1, (i + s) % 2);
        OK(memopt_accumulate(w->device, to, from, PAIRS, scales[s], w->stream));
        for (uint32_t i = 0; i < PAIRS; i++) {
            label(w, "%s times %g to %s", memopt_dtype_name(from[i].dtype), (double)scales[s],
                  memopt_dtype_name(to[i].dtype));
            result_of_tensor(w, &to[i]);
            free_tensor(w, &to[i]);
        }
    }
    for (uint32_t i = 0; i < PAIRS; i++)
        free_tensor(w, &from[i]);
}

/* Every length around a pack, a warp and a thread block of packs: what is past the end stays. */
static void short_sums_agree(world *w)
{
    enum { MOST = 70, PAIRS = WIDE_TYPES * WIDE_TYPES };
    float values[MOST];
    memopt_tensor to[MOST], from[MOST];
    fill_any_floats(values, MOST, 31);
    for (uint32_t pair = 0; pair < PAIRS; pair++) {
        memopt_tensor sums = new_tensor(w, MOST * MOST, float_types[pair % WIDE_TYPES], NULL);
        for (uint32_t i = 0; i < MOST; i++) {
            size_t size = memopt_dtype_size(sums.dtype);
            to[i] = (memopt_tensor){(char *)sums.data + i * MOST * size, i, sums.dtype};
            from[i] = new_shifted_tensor(w, i, float_types[pair / WIDE_TYPES], values, i / 9 % 2);
        }
        OK(memopt_accumulate(w->device, to, from, MOST, 3.0f, w->stream));
        label(w, "0 to %d elements, pair %u", MOST - 1, pair);
        result_of_tensor(w, &sums);
        for (uint32_t i = 0; i < MOST; i++)
            free_tensor(w, &from[i]);
        free_tensor(w, &sums);
    }
}

/* Sums of every pair of types in one call, aligned and not, with values that are not finite; then
 * the sums are scaled and checked by a factor and a flag of the caller's. */
static void accumulation_agrees(world *w)
{
    static const uint32_t odd[] = {0x7F800000u, 0xFF800000u, 0x7F800001u, 0x00000001u};
    enum { PAIRS = WIDE_TYPES * WIDE_TYPES };
    uint32_t sizes = 0;
    const uint64_t *size = odd_sizes(w->options->scale, &sizes);
    float *values = host_memory(4 * size[sizes - 1]), cells[3] = {-0.75f, 0.0f, 0.0f};
    memopt_tensor to[PAIRS], from[PAIRS], memory = new_tensor(w, 3, MEMOPT_DTYPE_F32, cells);
    float *cell = memory.data;
    for (uint32_t round = 0; round < sizes; round++) {
        for (uint32_t i = 0; i < PAIRS; i++) {
            uint64_t count = size[(round + i) % sizes];
            fill_smooth(values, count, i, 3.0f);
            memcpy(&values[count / 2], &odd[i % 4], round % 2 ? sizeof odd[0] : 0);
            to[i] = new_shifted_tensor(w, count, float_types[i % WIDE_TYPES], values, i % 2);
            fill_smooth(values, count, 100 + i, 0.5f);
            memcpy(&values[count / 3], &odd[round % 4], i % 5 == 4 ? sizeof odd[0] : 0);
            from[i] = new_shifted_tensor(w, count, float_types[i / WIDE_TYPES], values, i % 3);
        }
        label(w, "round %u", round);
        OK(memopt_accumulate(w->device, to, from, PAIRS, -1.0f / 3, w->stream));
        for (uint32_t i = 0; i < PAIRS; i++)
            result_of_tensor(w, &to[i]);
        OK(memopt_check_finite(w->device, to, PAIRS, cell + 1, w->stream));
        OK(memopt_scale(w->device, from, PAIRS, cell, cell + 2, w->stream));
        result_of_tensor(w, &memory);
        for (uint32_t i = 0; i < PAIRS; i++) {
            result_of_tensor(w, &from[i]);
            free_tensor(w, &to[i]);
            free_tensor(w, &from[i]);
        }
    }
    free_tensor(w, &memory);
    free(values);
}

/* Widths around a stripe and a block's eight, two pieces, in each type; rows of special values. */
static void cross_entropies_agree(world *w)
{
    static const uint32_t odd[] = {0x7F800000u, 0xFF800000u, 0x7F800001u, 0xC2F00000u};
    static const uint64_t widths[] = {1, 33, 1000, 1025, 9000};
    enum { ROWS = 5, MOST = 9000 };
    float *values = host_memory(sizeof *values * ROWS * MOST);
    memopt_tensor targets = new_tensor(w, ROWS, MEMOPT_DTYPE_F32, NULL);
    memopt_tensor losses = new_tensor(w, ROWS, MEMOPT_DTYPE_F32, NULL);
    memopt_tensor rows = new_tensor(w, ROWS * 6, MEMOPT_DTYPE_F32, NULL);
    for (uint32_t round = 0; round < 5 * WIDE_TYPES; round++) {
        uint64_t columns = widths[round % 5], half = columns > 1024 ? 1024 : columns;
        int32_t wanted[ROWS] = {-1, 0, (int32_t)columns - 1, (int32_t)columns / 2, 12345};
        memopt_logits l = MEMOPT_LOGITS_INIT;
        fill_smooth(values, ROWS * columns, round, 20.0f);
        for (uint64_t r = 1; r < ROWS; r++) /* any but the target's */
            memcpy(&values[r * columns + columns / 3], &odd[(r + round) % 4], round % 2 ? 4 : 0);
        memopt_tensor logits = new_shifted_tensor(
            w, ROWS * columns, float_types[round % WIDE_TYPES], values, round % 3);
        label(w, "%llu classes of %s", (unsigned long long)columns,
              memopt_dtype_name(logits.dtype));
        OK(memopt_copy(w->device, targets.data, wanted, sizeof wanted, w->stream));
        OK(memopt_fill(w->device, rows.data, 0, ROWS * sizeof(memopt_cross_entropy_row),
                       w->stream));
        for (int pass = 0; pass < 2; pass++) {
            for (uint64_t at = 0; at < columns; at += half, half = columns - half) {
                l.data = (char *)logits.data + at * memopt_dtype_size(logits.dtype);
                l.rows = ROWS, l.columns = half, l.stride = columns, l.first_class = at;
                l.dtype = logits.dtype;
                if (pass == 0)
                    OK(memopt_cross_entropy_add(w->device, &l, targets.data, rows.data, w->stream));
                else
                    OK(memopt_cross_entropy_gradient(w->device, &l, targets.data, rows.data, 0.3f,
                                                     w->stream));
                if (half == columns)
                    break;
            }
            half = columns > 1024 ? 1024 : columns;
            OK(memopt_cross_entropy_losses(w->device, rows.data, targets.data, ROWS, losses.data,
                                           w->stream));
        }
        result_of_tensor(w, &rows);
        result_of_tensor(w, &losses);
        result_of_tensor(w, &logits);
        free_tensor(w, &logits);
    }
    free_tensor(w, &rows);
    free_tensor(w, &losses);
    free_tensor(w, &targets);
    free(values);
}

const conformance_case scaler_cases[] = {
    {"scaler_sizes", sizes_agree, 1, 0, 0},
    {"scaler_non_finite", non_finite_values_are_found, 1, 0, 0},
    {"scaler_norms", norms_agree, 1, 0, 0},
    {"scaler_thousands", thousands_agree, 1, 0, 0},
    {"accumulate", accumulation_agrees, 1, 0, 0},
    {"accumulate_odd", odd_sums_agree, 1, 0, 0},
    {"accumulate_short", short_sums_agree, 1, 0, 0},
    {"scaler_scale", the_scale_agrees, 1, 0, 0},
    {"cross_entropy", cross_entropies_agree, 1, 0, 0},
    {NULL, NULL, 0, 0, 0},
};
