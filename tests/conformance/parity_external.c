/*
 * Steps on the caller's memory: states and step counts, the learning rate, the scale of gradients
 * and the verdict on them. States start one element behind an aligned address, as a view of a
 * larger tensor may.
 */
#include "conformance.h"

#include <string.h>

enum { TENSORS = 2, PARTS = 6 };

typedef struct external {
    memopt_optimizer *optimizer;
    memopt_tensor parameters[TENSORS], gradients[TENSORS], states[TENSORS][PARTS], steps[TENSORS];
    uint64_t parts[TENSORS];
    memopt_tensor facts; /* learning rate, scale, verdict */
} external;

/* The second parameter is small and keeps 32-bit states. */
static const uint64_t sizes[TENSORS] = {5003, 61};

static memopt_optimizer *new_optimizer(world *w, const float *device_lr)
{
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    memopt_optimizer *optimizer;
    uint32_t number;
    options.kind = w->kind;
    options.state_format = w->format;
    options.min_8bit_size = 64;
    group.momentum = 0.9;
    group.beta3 = 0.999;
    group.alpha = 5.0;
    group.device_lr = device_lr;
    OK(memopt_optimizer_create(w->allocator, &options, &optimizer));
    OK(memopt_optimizer_add_group(optimizer, &group, &number));
    return optimizer;
}

/* Memory like the states that an optimizer makes itself, with their values. */
static void mirror(world *w, external *e, memopt_optimizer *like, uint32_t i)
{
    memopt_state_view view = {sizeof view, NULL, {NULL, 0, 0}};
    while (memopt_optimizer_get_state(like, i, e->parts[i], &view) == MEMOPT_OK) {
        memopt_tensor t = new_raw_tensor(w, view.tensor.count, view.tensor.dtype, NULL, 1);
        OK(memopt_copy(w->device, t.data, view.tensor.data, tensor_bytes(&t), w->stream));
        e->states[i][e->parts[i]++] = t;
    }
    CHECK(e->parts[i] != 0);
    e->steps[i] = new_tensor(w, 2, MEMOPT_DTYPE_F32, NULL);
}

static void begin(world *w, external *e, memopt_dtype type)
{
    static const float facts[3] = {0.25f, 8.0f, 0.0f};
    float values[5003];
    uint64_t index;
    memset(e, 0, sizeof *e);
    e->facts = new_tensor(w, 3, MEMOPT_DTYPE_F32, facts);
    memopt_optimizer *like = new_optimizer(w, NULL);
    e->optimizer = new_optimizer(w, e->facts.data);
    for (uint32_t i = 0; i < TENSORS; i++) {
        fill_smooth(values, sizes[i], i + 1, 0.5f);
        e->parameters[i] = new_tensor(w, sizes[i], type, values);
        fill_smooth(values, sizes[i], i + 11, 2.0f);
        e->gradients[i] = new_tensor(w, sizes[i], MEMOPT_DTYPE_F32, values);
        OK(memopt_optimizer_add_parameter(like, 0, &e->parameters[i], NULL, w->stream, &index));
        mirror(w, e, like, i);
        OK(memopt_optimizer_add_parameter(
            e->optimizer, 0, &e->parameters[i],
            &(memopt_parameter_options){sizeof(memopt_parameter_options),
                                        {NULL, 0, 0},
                                        e->states[i],
                                        e->parts[i],
                                        e->steps[i].data,
                                        0,
                                        0,
                                        {0, 0}},
            w->stream, &index));
    }
    OK(memopt_stream_sync(w->device, w->stream));
    OK(memopt_optimizer_destroy(like));
}

static void set_fact(world *w, external *e, uint64_t which, float value)
{
    OK(memopt_copy(w->device, (float *)e->facts.data + which, &value, sizeof value, w->stream));
    OK(memopt_stream_sync(w->device, w->stream));
}

static void step(world *w, external *e)
{
    memopt_step_options options = MEMOPT_STEP_OPTIONS_INIT;
    options.grad_scale = (const float *)e->facts.data + 1;
    options.found_inf = (float *)e->facts.data + 2;
    OK(memopt_optimizer_step(e->optimizer, e->gradients, TENSORS, &options, w->stream));
}

static void report(world *w, external *e)
{
    for (uint32_t i = 0; i < TENSORS; i++) {
        result_of_tensor(w, &e->parameters[i]);
        result_of_tensor(w, &e->steps[i]);
        for (uint64_t k = 0; k < e->parts[i]; k++)
            result_of_tensor(w, &e->states[i][k]);
    }
}

static void end(world *w, external *e)
{
    OK(memopt_optimizer_destroy(e->optimizer));
    OK(memopt_stream_sync(w->device, w->stream));
    for (uint32_t i = 0; i < TENSORS; i++) {
        free_tensor(w, &e->parameters[i]);
        free_tensor(w, &e->gradients[i]);
        free_tensor(w, &e->steps[i]);
        for (uint64_t k = 0; k < e->parts[i]; k++)
            free_tensor(w, &e->states[i][k]);
    }
    free_tensor(w, &e->facts);
}

/* SGD with the momentum of each step; what a step without one leaves alone is there for later. */
static void switch_momentum(world *w, memopt_dtype type)
{
    static const double momenta[] = {0.0, 0.9, 0.0, 0.5, 0.5};
    external e;
    label(w, "memory of the caller's, momentum switched: %s parameters", memopt_dtype_name(type));
    begin(w, &e, type);
    for (size_t i = 0; i < sizeof momenta / sizeof momenta[0]; i++) {
        memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
        OK(memopt_optimizer_get_group(e.optimizer, 0, &group));
        group.momentum = momenta[i];
        group.dampening = 0.25;
        OK(memopt_optimizer_set_group(e.optimizer, 0, &group));
        set_fact(w, &e, 2, i == 1 ? 1.0f : 0.0f); /* the first of them is skipped */
        step(w, &e);
        report(w, &e);
    }
    end(w, &e);
}

void steps_on_memory_of_the_caller(world *w)
{
    for (int type = 0; type < WIDE_TYPES && w->kind == MEMOPT_OPTIMIZER_SGD; type++)
        switch_momentum(w, float_types[type]);
    for (int type = 0; type < WIDE_TYPES; type++) {
        external e;
        label(w, "memory of the caller's: %s parameters", memopt_dtype_name(float_types[type]));
        begin(w, &e, float_types[type]);
        step(w, &e);
        set_fact(w, &e, 0, 0.125f);
        step(w, &e);
        report(w, &e);
        set_fact(w, &e, 2, 1.0f); /* a verdict: the step changes nothing */
        step(w, &e);
        report(w, &e);
        end(w, &e);
    }
}
