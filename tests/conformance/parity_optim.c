/*
 * Optimizers: the same bits as on the cpu for every kind, format of states, type of parameter and
 * gradient, option, size and alignment.
 *
 * Kinds and formats are those that the library makes.
 */
#include "conformance.h"
#include "kernels/optim/steps.def"
#include "support/sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_KINDS = 16, MOST_FORMATS = 16, MOST_PARAMETERS = 16 };

#define RULE(id, number, name, word, kernel) [number] = word,
#define FORMAT(id, number, name, word) [number] = word,
static const char *const kind_names[MOST_KINDS] = {MO_EACH_RULE(RULE)};
static const char *const format_names[MOST_FORMATS] = {MO_EACH_FORMAT(FORMAT)};

/* --- what is varied ------------------------------------------------------------------------ */

typedef struct variant {
    const char *name;
    double weight_decay, max_norm;
    memopt_dtype copy; /* of the model copy; INVALID: none. Only f32 parameters have one. */
    uint32_t maximize, stochastic, scaler, unscaled, check;
    int bad_step;          /* the step with a gradient that is not finite; -1: none */
    int absent;            /* every third parameter has no gradient */
    double lr, beta1, eps; /* 0: the default; below 0: zero */
    int over;              /* the copies are the gradients' memory */
    uint32_t split;        /* bytes of a bf16 parameter's residual */
    uint64_t page_bytes;   /* of states in host memory; on a CPU they stay where they are */
} variant;

#define NO_COPY MEMOPT_DTYPE_INVALID
static const variant variants[] = {
    {"defaults", 0.01, 0, NO_COPY, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0},
    {"no decay, lr 0.1", 0, 0, NO_COPY, 0, 0, 0, 0, 0, -1, 0, 0.1, 0, 0, 0, 0, 0},
    {"maximize", 0.3, 0, NO_COPY, 1, 0, 0, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0},
    {"stochastic", 0.01, 0, NO_COPY, 0, 1, 0, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0},
    {"clip", 0.01, 0.5, NO_COPY, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0},
    {"clip, bad step", 0.01, 0.5, NO_COPY, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0},
    {"check, bad step", 0.01, 0, NO_COPY, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0},
    {"scaler", 0.01, 0, NO_COPY, 0, 0, 1, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0},
    {"scaler, clip, bad step", 0.01, 1.5, NO_COPY, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
    {"scaler, unscaled, bad step", 0.01, 1.5, NO_COPY, 0, 1, 1, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0},
    {"absent gradients", 0.01, 0.1, NO_COPY, 0, 0, 0, 0, 0, -1, 1, 0, 0, 0, 0, 0, 0},
    {"bf16 copy", 0.01, 0, MEMOPT_DTYPE_BF16, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0},
    {"f16 copy, scaler, bad step", 0.01, 0, MEMOPT_DTYPE_F16, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0,
     0},
    {"stochastic bf16 copy", 0.01, 0, MEMOPT_DTYPE_BF16, 0, 1, 0, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0},
    {"copy over the gradient, clip, bad step", 0.01, 0.5, MEMOPT_DTYPE_BF16, 0, 0, 0, 0, 0, 1, 0, 0,
     0, 0, 1, 0, 0},
    {"betas 0, eps 0", 0.01, 0, NO_COPY, 0, 0, 0, 0, 0, -1, 0, 0, -1, -1, 0, 0, 0},
    {"large eps, lr 0", 0.01, 0, NO_COPY, 0, 0, 0, 0, 0, -1, 0, -1, 0.5, 1, 0, 0, 0},
    {"split weights, clip, bad step", 0.01, 0.5, NO_COPY, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0},
    {"paged, stochastic, clip", 0.01, 0.5, NO_COPY, 0, 1, 0, 0, 0, -1, 0, 0, 0, 0, 0, 0, 3000},
    {"paged, split weights, bad step", 0.01, 0.5, NO_COPY, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1},
    {"split weights of 16 bits, clip", 0.01, 0.5, NO_COPY, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0, 0, 2, 0},
    {"paged, split weights of 16 bits", 0.01, 0, NO_COPY, 0, 0, 0, 0, 0, -1, 1, 0, 0, 0, 0, 2, 1},
};
enum { VARIANTS = sizeof variants / sizeof variants[0], STEPS = 3 };

/* A run: parameters and gradients of an optimizer under one variant. */
typedef struct run {
    const variant *variant;
    memopt_optimizer *optimizer;
    memopt_scaler *scaler;
    uint32_t count;
    memopt_tensor parameters[MOST_PARAMETERS], copies[MOST_PARAMETERS], gradients[MOST_PARAMETERS];
    memopt_tensor norm;
} run;

static double chosen(double value, double otherwise)
{
    return value > 0 ? value : value < 0 ? 0 : otherwise;
}

/* NULL where the library does not make this one. */
static memopt_optimizer *new_optimizer(world *w, const variant *v)
{
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    memopt_optimizer *optimizer = NULL;
    uint32_t number = 0;
    options.kind = w->kind;
    options.state_format = w->format;
    options.min_8bit_size = 64;
    options.seed = 7 + w->options->seed;
    options.stochastic_rounding = v->stochastic;
    options.split_weights = v->split;
    options.page_bytes = strcmp(w->properties.backend, "cpu") == 0 ? 0 : v->page_bytes;
    group.weight_decay = v->weight_decay;
    group.maximize = v->maximize;
    group.lr = chosen(v->lr, group.lr);
    group.beta1 = chosen(v->beta1, group.beta1);
    group.eps = chosen(v->eps, group.eps);
    /* SGD's: without momentum, with Nesterov's, with dampening */
    group.momentum = v->beta1 < 0 ? 0 : 0.9;
    group.nesterov = group.momentum > 0 && v->weight_decay > 0 && v->max_norm > 0;
    group.dampening = group.nesterov ? 0 : 0.25;
    /* AdEMAMix's: while both grow, and without */
    group.beta3 = 0.9999;
    group.alpha = 5;
    group.t_alpha = v->copy != NO_COPY ? 2 : 0;
    group.t_beta3 = v->copy != NO_COPY ? 100 : 0;
    if (memopt_optimizer_create(w->allocator, &options, &optimizer) != MEMOPT_OK)
        return NULL;
    OK(memopt_optimizer_add_group(optimizer, &group, &number));
    return optimizer;
}

static void begin(world *w, run *r, const variant *v, memopt_dtype type, memopt_dtype slope)
{
    uint32_t sizes = 0;
    /* long tensors, of several chunks, where that can make a difference */
    int several = type == slope && (v == &variants[0] || (v->stochastic && v->bad_step < 0));
    suite_scale scale = several ? w->options->scale : SCALE_SMALL;
    const uint64_t *size = odd_sizes(scale, &sizes);
    float *values = host_memory(4 * size[sizes - 1]);
    uint64_t index = 0;
    memset(r, 0, sizeof *r);
    r->variant = v;
    r->optimizer = new_optimizer(w, v);
    CHECK(r->optimizer != NULL);
    r->count = sizes;
    r->norm = new_tensor(w, 1, MEMOPT_DTYPE_F32, NULL);
    if (v->scaler) {
        memopt_scaler_options options = MEMOPT_SCALER_OPTIONS_INIT;
        options.init_scale = 8;
        options.growth_interval = 2;
        OK(memopt_scaler_create(w->device, &options, &r->scaler));
    }
    for (uint32_t i = 0; i < sizes; i++) {
        fill_smooth(values, size[i], i + 1, 0.5f);
        r->parameters[i] = new_shifted_tensor(w, size[i], type, values, i % 2);
        fill_smooth(values, size[i], i + 101, i % 4 == 3 ? 1e-6f : 2.0f);
        for (uint64_t k = 0; k < size[i]; k += 97)
            values[k] *= k % 2 ? 1e-3f : 1e-8f; /* blocks of many powers of two */
        r->gradients[i] = new_shifted_tensor(w, size[i], slope, values, i / 2 % 2);
        if (v->over)
            r->copies[i] = r->gradients[i];
        else if (v->copy != NO_COPY)
            r->copies[i] = new_raw_tensor(w, size[i], v->copy, NULL, i / 4 % 2);
        OK(memopt_optimizer_add_parameter(
            r->optimizer, 0, &r->parameters[i],
            &(memopt_parameter_options){sizeof(memopt_parameter_options),
                                        v->copy != NO_COPY ? r->copies[i]
                                                           : (memopt_tensor){NULL, 0, 0},
                                        NULL,
                                        0,
                                        NULL,
                                        0,
                                        0,
                                        {0, 0}},
            w->stream, &index));
    }
    free(values);
}

/* Puts one value that is not finite into a gradient, or takes it out again. */
static void spoil(world *w, run *r, const void *saved)
{
    static const uint32_t infinite = 0x7F800000u;
    const memopt_tensor *t = &r->gradients[r->count - 1];
    uint64_t size = memopt_dtype_size(t->dtype);
    unsigned char bytes[4] = {0};
    uint16_t half = t->dtype == MEMOPT_DTYPE_F16 ? 0x7C00 : 0x7F80;
    memcpy(bytes, size == 4 ? (const void *)&infinite : (const void *)&half, size);
    OK(memopt_copy(w->device, (char *)t->data + (t->count / 2) * size, saved ? saved : bytes, size,
                   w->stream));
    OK(memopt_stream_sync(w->device, w->stream));
}

static void one_step(world *w, run *r, int bad)
{
    memopt_step_options options = MEMOPT_STEP_OPTIONS_INIT;
    const variant *v = r->variant;
    const memopt_tensor *last = &r->gradients[r->count - 1];
    uint64_t size = memopt_dtype_size(last->dtype);
    unsigned char saved[4];
    memopt_tensor gradients[MOST_PARAMETERS];
    options.scaler = r->scaler;
    options.max_norm = v->max_norm;
    options.skip_non_finite = v->check;
    options.already_unscaled = v->unscaled;
    options.out_norm = v->max_norm > 0 ? r->norm.data : NULL;
    memcpy(gradients, r->gradients, sizeof gradients);
    for (uint32_t i = 2; v->absent && i < r->count; i += 3)
        gradients[i].data = NULL;
    if (bad) {
        OK(memopt_copy(w->device, saved, (char *)last->data + (last->count / 2) * size, size,
                       w->stream));
        OK(memopt_stream_sync(w->device, w->stream));
        spoil(w, r, NULL);
    }
    if (v->unscaled)
        OK(memopt_scaler_unscale(r->scaler, r->gradients, r->count, w->stream));
    OK(memopt_optimizer_step(r->optimizer, gradients, r->count, &options, w->stream));
    if (r->scaler != NULL)
        OK(memopt_scaler_update(r->scaler, w->stream));
    if (bad)
        spoil(w, r, saved);
}

static void report(world *w, run *r)
{
    uint64_t steps = 0, bytes = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        OK(memopt_optimizer_get_steps_sync(r->optimizer, i, w->stream, &steps));
        result(w, &steps, sizeof steps);
        result_of_tensor(w, &r->parameters[i]);
        if (r->copies[i].data != NULL)
            result_of_tensor(w, &r->copies[i]);
    }
    result_of_tensor(w, &r->norm);
    OK(memopt_optimizer_export_sync(r->optimizer, 0, NULL, NULL, &bytes));
    void *state = host_memory(bytes);
    OK(memopt_optimizer_export_sync(r->optimizer, bytes, w->stream, state, NULL));
    result(w, state, bytes);
    OK(memopt_optimizer_import_sync(r->optimizer, state, bytes, 0, w->stream));
    free(state);
}

static void end(world *w, run *r)
{
    OK(memopt_stream_sync(w->device, w->stream));
    OK(memopt_optimizer_destroy(r->optimizer));
    if (r->scaler != NULL)
        OK(memopt_scaler_destroy(r->scaler));
    for (uint32_t i = 0; i < r->count; i++) {
        free_tensor(w, &r->parameters[i]);
        free_tensor(w, &r->gradients[i]);
        if (r->copies[i].data != NULL && !r->variant->over)
            free_tensor(w, &r->copies[i]);
    }
    free_tensor(w, &r->norm);
}

static void train(world *w, const variant *v, memopt_dtype type, memopt_dtype slope)
{
    run r;
    label(w, "%s: %s parameters, %s gradients", v->name, memopt_dtype_name(type),
          memopt_dtype_name(slope));
    begin(w, &r, v, type, slope);
    for (int i = 0; i < STEPS; i++)
        one_step(w, &r, i == v->bad_step);
    report(w, &r);
    one_step(w, &r, 0); /* goes on from the imported state */
    for (uint32_t i = 0; i < r.count; i++)
        result_of_tensor(w, &r.parameters[i]);
    end(w, &r);
}

/* SGD whose momentum, dampening and Nesterov's form change from step to step. Its parameters begin
 * without a momentum buffer or with one, which is not used at first; the first step with a momentum
 * is skipped, or not. */
typedef struct phase {
    double momentum, dampening;
    uint32_t nesterov;
} phase;
static const phase phases[] = {{0.0, 0.25, 0}, {0.9, 0.25, 0}, {0.9, 0.25, 0}, {0.0, 0.5, 0},
                               {0.5, 0.5, 0},  {0.5, 0.0, 1},  {0.25, 0.0, 0}};

static void set_phase(run *r, const phase *now)
{
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    OK(memopt_optimizer_get_group(r->optimizer, 0, &group));
    group.momentum = now->momentum;
    group.dampening = now->dampening;
    group.nesterov = now->nesterov;
    OK(memopt_optimizer_set_group(r->optimizer, 0, &group));
}

static void switch_momentum(world *w, memopt_dtype type, int buffers, int bad_step)
{
    static const variant with = {"", 0.01, 0, NO_COPY, 0, 1, 0, 0, 1, -1, 0, 0, 0, 0, 0, 0, 0};
    static const variant without = {"", 0.01, 0, NO_COPY, 0, 1, 0, 0, 1, -1, 0, 0, -1, 0, 0, 0, 0};
    run r;
    label(w, "momentum switched: %s parameters, %s buffers, bad step %d", memopt_dtype_name(type),
          buffers ? "with" : "without", bad_step);
    begin(w, &r, buffers ? &with : &without, type, type);
    for (int i = 0; i < (int)(sizeof phases / sizeof phases[0]); i++) {
        set_phase(&r, &phases[i]);
        one_step(w, &r, i == bad_step);
        if (i % 2 == 0) /* else a state that was not imported goes on */
            report(w, &r);
    }
    end(w, &r);
}

/* Thousands of small parameters in one step, of all types. */
static void train_thousands(world *w)
{
    enum { TENSORS = 3000, MOST = 8 };
    float *values = host_memory(sizeof *values * TENSORS * MOST);
    memopt_tensor *gradients = host_memory(TENSORS * sizeof *gradients);
    memopt_optimizer *optimizer = new_optimizer(w, &variants[0]);
    uint64_t index = 0, bytes = 0;
    CHECK(optimizer != NULL);
    label(w, "%d parameters", TENSORS);
    fill_smooth(values, TENSORS * MOST, 5, 1.0f);
    memopt_tensor parameters = new_tensor(w, TENSORS * MOST, MEMOPT_DTYPE_F32, values);
    memopt_tensor slopes = new_tensor(w, TENSORS * MOST, MEMOPT_DTYPE_F32, values);
    for (uint64_t i = 0; i < TENSORS; i++) {
        memopt_tensor p = {(float *)parameters.data + i * MOST, 1 + i % MOST,
                           float_types[i % WIDE_TYPES]};
        OK(memopt_optimizer_add_parameter(optimizer, 0, &p, NULL, w->stream, &index));
        gradients[i] =
            (memopt_tensor){(float *)slopes.data + i * MOST, 1 + i % MOST, MEMOPT_DTYPE_F32};
    }
    for (int i = 0; i < 2; i++)
        OK(memopt_optimizer_step(optimizer, gradients, TENSORS, NULL, w->stream));
    result_of_tensor(w, &parameters);
    OK(memopt_optimizer_export_sync(optimizer, 0, NULL, NULL, &bytes));
    void *state = host_memory(bytes);
    OK(memopt_optimizer_export_sync(optimizer, bytes, w->stream, state, NULL));
    result(w, state, bytes);
    OK(memopt_optimizer_destroy(optimizer));
    free_tensor(w, &parameters);
    free_tensor(w, &slopes);
    free(state);
    free(gradients);
    free(values);
}

/* A quarter of the cases, another one for every seed, where the sizes are small. */
static int left_out(const world *w, uint64_t number)
{
    static uint64_t seed;
    static int read;
    if (!read)
        seed = first_seed();
    read = 1;
    return w->options->scale == SCALE_SMALL && !is_long() && (number + seed) % 4 != 0;
}

static void steps_agree(world *w)
{
    for (int type = 0; type < WIDE_TYPES; type++)
        for (int slope = 0; slope < WIDE_TYPES; slope++)
            if (!left_out(w, (uint64_t)(type + slope)))
                train(w, &variants[0], float_types[type], float_types[slope]);
    int small = w->options->scale == SCALE_SMALL; /* then each with one type, in turn */
    for (int i = 1; i < VARIANTS; i++) {
        if (left_out(w, w->kind + w->format + (uint64_t)i))
            continue;
        for (int type = 0; type < WIDE_TYPES; type++)
            if (variants[i].split             ? float_types[type] == MEMOPT_DTYPE_BF16
                : variants[i].copy != NO_COPY ? type == 0
                                              : !small || type == i % WIDE_TYPES)
                train(w, &variants[i], float_types[type],
                      variants[i].over ? variants[i].copy : float_types[type]);
    }
    for (int type = 0; type < WIDE_TYPES && w->kind == MEMOPT_OPTIMIZER_SGD; type++)
        for (int buffers = 0; buffers < 2; buffers++)
            for (int bad_step = -1; bad_step < 2; bad_step += 2)
                if (!small || (buffers + bad_step + 1) % WIDE_TYPES == type)
                    switch_momentum(w, float_types[type], buffers, bad_step);
    train_thousands(w);
    steps_on_memory_of_the_caller(w);
}

uint32_t optimizer_cases(world *w, conformance_case *out, uint32_t most)
{
    static char names[MOST_KINDS * MOST_FORMATS][48];
    uint32_t count = 0;
    for (uint32_t kind = 1; kind < MOST_KINDS; kind++)
        for (uint32_t format = 1; format < MOST_FORMATS && count < most; format++) {
            char k[16], f[16];
            if (kind == MEMOPT_OPTIMIZER_ADAFACTOR) /* parity_adafactor.c */
                continue;
            w->kind = kind;
            w->format = format;
            memopt_optimizer *optimizer = new_optimizer(w, &variants[0]);
            if (optimizer == NULL)
                continue;
            OK(memopt_optimizer_destroy(optimizer));
            snprintf(k, sizeof k, "kind%u", kind);
            snprintf(f, sizeof f, "format%u", format);
            snprintf(names[count], sizeof names[count], "optimizer_%s_%s",
                     kind_names[kind] ? kind_names[kind] : k,
                     format_names[format] ? format_names[format] : f);
            out[count] = (conformance_case){names[count], steps_agree, 1, kind, format};
            count++;
        }
    return count;
}
