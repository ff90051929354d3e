/* Trust: the same bits as on the cpu for every format of states, type, size and alignment, in steps
 * that are whole and in halves. */
#include "conformance.h"

#include <stdlib.h>

enum { MOST_SIZES = 32, STEPS = 2 };

/* What varies beside the type of parameters. */
static const struct {
    const char *name;
    uint32_t kind, format, nesterov, halves, stochastic;
} runs[] = {
    {"LAMB", MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_F32, 0, 1, 0},
    {"LAMB, companded", MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT, 0, 0, 1},
    {"LARS", MEMOPT_OPTIMIZER_SGD, MEMOPT_STATE_F32, 0, 0, 1},
    {"LARS, 8-bit, Nesterov", MEMOPT_OPTIMIZER_SGD, MEMOPT_STATE_8BIT_DYNAMIC, 1, 1, 0},
};
enum { RUNS = sizeof runs / sizeof runs[0] };

static memopt_optimizer *new_optimizer(world *w, int run)
{
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_LAMB_INIT;
    memopt_optimizer *o = NULL;
    uint32_t number;
    options.kind = runs[run].kind;
    options.state_format = runs[run].format;
    options.stochastic_rounding = runs[run].stochastic;
    options.min_8bit_size = 64;
    options.trust = 1;
    group.lr = 0.1;
    group.weight_decay = 0.1;
    group.momentum = 0.9;
    group.nesterov = runs[run].nesterov;
    group.max_ratio = runs[run].stochastic ? 0.02 : 1.0;
    group.trust_clip = !runs[run].stochastic;
    group.uncorrected = runs[run].stochastic;
    OK(memopt_optimizer_create(w->allocator, &options, &o));
    OK(memopt_optimizer_add_group(o, &group, &number));
    return o;
}

static void step(world *w, memopt_optimizer *o, const memopt_tensor *gradients, uint32_t count,
                 double *squares)
{
    memopt_step_options options = MEMOPT_STEP_OPTIONS_INIT;
    options.squares = squares;
    options.half = squares != NULL;
    OK(memopt_optimizer_step(o, gradients, count, &options, w->stream));
    options.half = 2;
    if (squares != NULL)
        OK(memopt_optimizer_step(o, gradients, count, &options, w->stream));
}

static void one_run(world *w, int run, int type, const uint64_t *size, uint32_t sizes,
                    float *values)
{
    memopt_optimizer *o = new_optimizer(w, run);
    memopt_tensor parameters[MOST_SIZES], gradients[MOST_SIZES];
    memopt_tensor squares = new_raw_tensor(w, 16 * sizes, MEMOPT_DTYPE_U8, NULL, 0);
    for (uint32_t i = 0; i < sizes; i++) {
        uint64_t index;
        fill_smooth(values, size[i], 7 + i, 0.3f);
        parameters[i] = new_shifted_tensor(w, size[i], float_types[type], values, i % 2);
        fill_smooth(values, size[i], 70 + i, i % 3 ? 2.0f : 0.01f);
        if (i == 1) /* infinities and NaNs */
            fill_any_floats(values, size[i], i);
        gradients[i] = new_tensor(w, size[i], float_types[(type + run) % WIDE_TYPES], values);
        OK(memopt_optimizer_add_parameter(o, 0, &parameters[i], NULL, w->stream, &index));
    }
    for (int steps = 0; steps < STEPS; steps++)
        step(w, o, gradients, sizes, runs[run].halves ? squares.data : NULL);
    for (uint32_t i = 0; i < sizes; i++) {
        memopt_state_view view = MEMOPT_STATE_VIEW_INIT;
        label(w, "%s, %llu of %s", runs[run].name, (unsigned long long)size[i],
              memopt_dtype_name(float_types[type]));
        result_of_tensor(w, &parameters[i]);
        OK(memopt_optimizer_get_state(o, i, 0, &view));
        result_of_tensor(w, &view.tensor);
    }
    OK(memopt_optimizer_destroy(o));
    for (uint32_t i = 0; i < sizes; i++) {
        free_tensor(w, &parameters[i]);
        free_tensor(w, &gradients[i]);
    }
    free_tensor(w, &squares);
}

static void steps_agree(world *w)
{
    uint32_t sizes = 0;
    const uint64_t *size = odd_sizes(w->options->scale, &sizes);
    float *values = host_memory(4 * size[sizes - 1]);
    CHECK(sizes <= MOST_SIZES);
    for (int run = 0; run < RUNS; run++)
        for (int type = 0; type < WIDE_TYPES; type++)
            if (w->options->scale != SCALE_SMALL || type == run % WIDE_TYPES)
                one_run(w, run, type, size, sizes, values);
    free(values);
}

const conformance_case trust_cases[] = {
    {"trust", steps_agree, 1, 0, 0},
    {NULL, NULL, 0, 0, 0},
};
