/* Blocks of other sizes than a format's own: the same bits as on the cpu, for every rule and format
 * that has blocks, every size, and block-wise codes on their own. w->kind is the rule, or 0. */
#include "conformance.h"

#include <stdlib.h>
#include <string.h>

static const uint32_t sizes[] = {32, 64, 128, 256, 512, 1024, 2048, 4096};
enum { SIZES = sizeof sizes / sizeof *sizes, PARAMETERS = 5, STEPS = 3 };

static memopt_optimizer *new_optimizer(world *w, uint32_t size, uint32_t split)
{
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    memopt_optimizer *o = NULL;
    uint32_t number = 0;
    options.kind = w->kind;
    options.state_format = w->format;
    options.block_size = size;
    options.min_8bit_size = 20;
    options.stochastic_rounding = !split;
    options.split_weights = split;
    options.page_bytes = split && strcmp(w->properties.backend, "cpu") != 0 ? 3000 : 0;
    group.momentum = 0.9;
    group.beta3 = 0.9999;
    group.alpha = 5;
    OK(memopt_optimizer_create(w->allocator, &options, &o));
    OK(memopt_optimizer_add_group(o, &group, &number));
    return o;
}

/* Parameters that keep 32-bit states, that have less than a block, a piece of one more, several
 * chunks; clipped, and in the last step with a gradient that makes some blocks not finite. */
static void train(world *w, uint32_t size, uint32_t split)
{
    const uint64_t counts[PARAMETERS] = {19, 27, size + 13, 16384 + 2 * size + 5, 4096};
    memopt_step_options options = MEMOPT_STEP_OPTIONS_INIT;
    memopt_optimizer *o = new_optimizer(w, size, split);
    memopt_tensor parameters[PARAMETERS], gradients[PARAMETERS];
    float *values = host_memory(4 * (16384 + 3 * 4096));
    uint64_t index, bytes = 0;
    label(w, "blocks of %u, %s", size, split ? "split weights" : "stochastic");
    for (uint32_t i = 0; i < PARAMETERS; i++) {
        memopt_dtype type = split && i % 2 ? MEMOPT_DTYPE_BF16 : float_types[split ? 0 : i % 3];
        fill_smooth(values, counts[i], i + 1, 0.5f);
        parameters[i] = new_shifted_tensor(w, counts[i], type, values, i % 2);
        fill_smooth(values, counts[i], i + 101, 2.0f);
        for (uint64_t k = 0; k < counts[i]; k += 97)
            values[k] *= k % 2 ? 1e-3f : 1e-8f;
        gradients[i] =
            new_shifted_tensor(w, counts[i], float_types[i / 2 % WIDE_TYPES], values, i / 2 % 2);
        OK(memopt_optimizer_add_parameter(o, 0, &parameters[i], NULL, w->stream, &index));
    }
    for (int i = 0; i < STEPS; i++) {
        options.max_norm = i == 1 ? 0.5 : 0.0;
        if (i == 2) {
            fill_any_floats(values, counts[3], 7);
            free_tensor(w, &gradients[3]);
            gradients[3] = new_tensor(w, counts[3], MEMOPT_DTYPE_F32, values);
        }
        OK(memopt_optimizer_step(o, gradients, PARAMETERS, &options, w->stream));
    }
    for (uint32_t i = 0; i < PARAMETERS; i++)
        result_of_tensor(w, &parameters[i]);
    OK(memopt_optimizer_get_export_size(o, &bytes));
    void *state = host_memory(bytes);
    OK(memopt_optimizer_export_sync(o, bytes, w->stream, state));
    result(w, state, bytes);
    OK(memopt_optimizer_destroy(o));
    for (uint32_t i = 0; i < PARAMETERS; i++) {
        free_tensor(w, &parameters[i]);
        free_tensor(w, &gradients[i]);
    }
    free(state);
    free(values);
}

/* Where the sizes are small, other rules than AdamW take some sizes each. */
static void steps_agree(world *w)
{
    int all = w->options->scale != SCALE_SMALL || w->kind == MEMOPT_OPTIMIZER_ADAMW;
    for (uint32_t k = 0; k < SIZES; k++)
        for (uint32_t split = 0; split < 2; split++)
            if (all || (k + w->kind) % 3 == 0)
                train(w, sizes[k], split ? 1 + k % 2 : 0);
}

static void codes_agree(world *w)
{
    enum { MOST = 16384 + 4096 + 333 };
    float *values = host_memory(MOST * sizeof *values);
    uint64_t units = w->format == MEMOPT_STATE_4BIT || w->format == MEMOPT_STATE_COMPANDED4 ? 2 : 1;
    memopt_dtype type = w->format == MEMOPT_STATE_F8 ? MEMOPT_DTYPE_F8_E4M3 : MEMOPT_DTYPE_U8;
    for (int k = 0; k < 4 * SIZES; k++) {
        uint64_t size = sizes[k / 4], count = k / 2 % 2 ? MOST : size + 7;
        fill_floats(values, count, 31);
        fill_any_floats(values, size / 2, 33);
        memopt_tensor source =
            new_shifted_tensor(w, count, float_types[k % 3], values, (uint64_t)k % 2);
        memopt_tensor codes =
            new_raw_tensor(w, (count + units - 1) / units, type, NULL, (uint64_t)k % 2);
        memopt_tensor scales = new_tensor(w, (count + size - 1) / size, MEMOPT_DTYPE_F32, NULL);
        label(w, "blocks of %u, %s", (unsigned)size, k % 2 ? "signed" : "unsigned");
        OK(memopt_quantize(w->device, w->format, &codes, &scales, &source, k % 2, w->stream));
        result_of_tensor(w, &codes);
        result_of_tensor(w, &scales);
        OK(memopt_dequantize(w->device, w->format, &source, &codes, &scales, k % 2, w->stream));
        result_of_tensor(w, &source);
        free_tensor(w, &source);
        free_tensor(w, &codes);
        free_tensor(w, &scales);
    }
    free(values);
}

#define STEPS_OF(name, kind, format)                                                               \
    {                                                                                              \
        "sized_" name, steps_agree, 1, kind, format                                                \
    }
#define CODES_OF(name, format)                                                                     \
    {                                                                                              \
        "sized_codes_" name, codes_agree, 1, 0, format                                             \
    }

const conformance_case sized_cases[] = {
    STEPS_OF("adamw_8bit", MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT),
    STEPS_OF("adamw_4bit", MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_4BIT),
    STEPS_OF("adamw_e4m3", MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_F8),
    STEPS_OF("adamw_companded", MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_COMPANDED),
    STEPS_OF("adamw_companded4", MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_COMPANDED4),
    STEPS_OF("lion_8bit", MEMOPT_OPTIMIZER_LION, MEMOPT_STATE_8BIT),
    STEPS_OF("sgd_8bit", MEMOPT_OPTIMIZER_SGD, MEMOPT_STATE_8BIT),
    STEPS_OF("adam_8bit", MEMOPT_OPTIMIZER_ADAM, MEMOPT_STATE_8BIT),
    STEPS_OF("rmsprop_8bit", MEMOPT_OPTIMIZER_RMSPROP, MEMOPT_STATE_8BIT),
    STEPS_OF("adagrad_8bit", MEMOPT_OPTIMIZER_ADAGRAD, MEMOPT_STATE_8BIT),
    STEPS_OF("rmsprop_momentum_8bit", MEMOPT_OPTIMIZER_RMSPROP_MOMENTUM, MEMOPT_STATE_8BIT),
    STEPS_OF("ademamix_8bit", MEMOPT_OPTIMIZER_ADEMAMIX, MEMOPT_STATE_8BIT),
    CODES_OF("8bit", MEMOPT_STATE_8BIT),
    CODES_OF("4bit", MEMOPT_STATE_4BIT),
    CODES_OF("e4m3", MEMOPT_STATE_F8),
    CODES_OF("companded", MEMOPT_STATE_COMPANDED),
    CODES_OF("companded4", MEMOPT_STATE_COMPANDED4),
    {NULL, NULL, 0, 0, 0},
};
