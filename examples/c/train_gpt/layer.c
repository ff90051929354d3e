/*
 * A transformer layer, forward and backward, as a checkpoint region (layer.h).
 */
#include "layer.h"

#include "attention.h"

#include <stdio.h>
#include <string.h>

/* --- shapes -------------------------------------------------------------------------------- */

static size_t rows_of(const layer *l)
{
    return (size_t)l->options->batch * l->options->context;
}

static attention_shape attention_of(const layer *l)
{
    const options *o = l->options;
    return (attention_shape){o->batch, o->context, o->width, o->heads};
}

static uint64_t value_count(const layer *l, int value)
{
    const options *o = l->options;
    uint64_t rows = rows_of(l);
    switch (value) {
    case NORM1_STATS:
    case NORM2_STATS:
        return 2 * rows;
    case QKV:
        return 3 * rows * o->width;
    case PROBABILITIES:
        return rows * o->heads * o->context;
    case UP:
    case ACTIVE:
        return 4 * rows * o->width;
    default:
        return rows * o->width;
    }
}

static memopt_dtype value_dtype(const layer *l, int value)
{
    int statistics = value == NORM1_STATS || value == NORM2_STATS;
    return statistics ? MEMOPT_DTYPE_F32 : l->options->dtype;
}

double layer_operations(const layer *l)
{
    double rows = (double)rows_of(l), width = l->options->width;
    return rows * width * (24 * width + 4 * l->options->context);
}

/* Memory for one value: a lease of the region, or a block that can be offloaded. */
static memopt_status take_value(layer *l, int value)
{
    saved *v = &l->values[value];
    uint64_t count = value_count(l, value);
    memopt_dtype dtype = value_dtype(l, value);
    if (l->own_values)
        return saved_create(l->memory, dtype, count, v);
    void *data = NULL;
    TRY(memopt_region_alloc(l->region, count * memopt_dtype_size(dtype), &data));
    v->tensor = (memopt_tensor){data, count, dtype};
    return memory_sync(l->memory);
}

/* --- forward ------------------------------------------------------------------------------- */

static memopt_status normalise(layer *l, const memopt_tensor *in, int gain, int out, int stats)
{
    TRY(take_value(l, out));
    TRY(take_value(l, stats));
    frame f = frame_begin(l->memory);
    const float *x = frame_read(&f, in);
    const float *g = frame_read(&f, &l->parameters[gain].weight);
    const float *b = frame_read(&f, &l->parameters[gain + 1].weight);
    float *y = frame_write(&f, &l->values[out].tensor);
    if (frame_ok(&f))
        norm_forward(x, g, b, y, l->values[stats].tensor.data, rows_of(l), l->options->width);
    return frame_end(&f);
}

static memopt_status project(layer *l, int in, int weight, int out, size_t columns)
{
    TRY(take_value(l, out));
    frame f = frame_begin(l->memory);
    const float *x = frame_read(&f, &l->values[in].tensor);
    const float *w = frame_read(&f, &l->parameters[weight].weight);
    const float *b = frame_read(&f, &l->parameters[weight + 1].weight);
    float *y = frame_write(&f, &l->values[out].tensor);
    if (frame_ok(&f))
        linear_forward(x, w, b, y, rows_of(l), l->options->width, columns);
    return frame_end(&f);
}

static memopt_status attend(layer *l)
{
    TRY(take_value(l, PROBABILITIES));
    TRY(take_value(l, ATTENDED));
    frame f = frame_begin(l->memory);
    const float *qkv = frame_read(&f, &l->values[QKV].tensor);
    float *probabilities = frame_write(&f, &l->values[PROBABILITIES].tensor);
    float *out = frame_write(&f, &l->values[ATTENDED].tensor);
    if (frame_ok(&f))
        attention_forward(attention_of(l), qkv, probabilities, out);
    return frame_end(&f);
}

static memopt_status activate(layer *l)
{
    TRY(take_value(l, ACTIVE));
    frame f = frame_begin(l->memory);
    const float *x = frame_read(&f, &l->values[UP].tensor);
    float *y = frame_write(&f, &l->values[ACTIVE].tensor);
    if (frame_ok(&f))
        gelu_forward(x, y, value_count(l, UP));
    return frame_end(&f);
}

/* out = base + dropout(value · weight + bias): the end of both halves of the layer. */
static memopt_status add_branch(layer *l, int in, int weight, size_t inner,
                                const memopt_tensor *base, uint64_t mask_key,
                                const memopt_tensor *out)
{
    size_t width = l->options->width, count = rows_of(l) * width;
    frame f = frame_begin(l->memory);
    const float *x = frame_read(&f, &l->values[in].tensor);
    const float *w = frame_read(&f, &l->parameters[weight].weight);
    const float *b = frame_read(&f, &l->parameters[weight + 1].weight);
    const float *from = frame_read(&f, base);
    float *branch = frame_scratch(&f, count);
    float *to = frame_write(&f, out);
    if (frame_ok(&f)) {
        linear_forward(x, w, b, branch, rows_of(l), inner, width);
        dropout(mask_key, l->dropout, branch, count);
        add(from, branch, to, count);
    }
    return frame_end(&f);
}

/* What a recomputation compares; a rehearsal has no region. */
static memopt_status check_value(memopt_region *region, const char *name, const saved *value)
{
    return region ? memopt_region_check(region, name, &value->tensor) : MEMOPT_OK;
}

/* The region's callback: the same work each time, so that the leases are the same too. The random
 * numbers are drawn inside it; the region winds the generator back for the second run. Only the
 * layer's output is left out of that, since backward does not read it. */
static memopt_status layer_run(void *user, memopt_region *region, memopt_region_pass pass,
                               memopt_stream stream)
{
    layer *l = user;
    size_t width = l->options->width;
    (void)stream;
    for (int half = 0; half < 2; half++)
        l->mask_keys[half] = l->dropout > 0 ? random_next(l->random) : 0;

    TRY(normalise(l, &l->input, NORM1_GAIN, NORM1_OUT, NORM1_STATS));
    TRY(project(l, NORM1_OUT, QKV_WEIGHT, QKV, 3 * width));
    TRY(attend(l));
    TRY(take_value(l, MIDDLE));
    TRY(add_branch(l, ATTENDED, PROJECT_WEIGHT, width, &l->input, l->mask_keys[0],
                   &l->values[MIDDLE].tensor));
    TRY(check_value(region, "middle", &l->values[MIDDLE]));

    TRY(normalise(l, &l->values[MIDDLE].tensor, NORM2_GAIN, NORM2_OUT, NORM2_STATS));
    TRY(project(l, NORM2_OUT, UP_WEIGHT, UP, 4 * width));
    TRY(activate(l));
    TRY(check_value(region, "active", &l->values[ACTIVE]));
    for (int i = 0; i < LAYER_VALUES; i++)
        saved_keep(l->memory, &l->values[i]);
    if (pass == MEMOPT_PASS_RECOMPUTE)
        return MEMOPT_OK;
    return add_branch(l, ACTIVE, DOWN_WEIGHT, 4 * width, &l->values[MIDDLE].tensor, l->mask_keys[1],
                      &l->output);
}

static memopt_status save_random(void *user, void *state)
{
    memcpy(state, ((layer *)user)->random, sizeof(random_state));
    return MEMOPT_OK;
}

static memopt_status restore_random(void *user, const void *state)
{
    memcpy(((layer *)user)->random, state, sizeof(random_state));
    return MEMOPT_OK;
}

/* --- backward ------------------------------------------------------------------------------ */

static memopt_status linear_gradients(layer *l, int in, int weight, const float *d_out, float *d_in,
                                      size_t inner, size_t columns)
{
    frame f = frame_begin(l->memory);
    const float *x = frame_read(&f, &l->values[in].tensor);
    const float *w = frame_read(&f, &l->parameters[weight].weight);
    float *d_weight = frame_update(&f, &l->parameters[weight].gradient);
    float *d_bias = frame_update(&f, &l->parameters[weight + 1].gradient);
    if (frame_ok(&f))
        linear_backward(x, w, d_out, d_in, d_weight, d_bias, rows_of(l), inner, columns);
    return frame_end(&f);
}

static memopt_status norm_gradients(layer *l, const memopt_tensor *in, int stats, int gain,
                                    const float *d_out, float *d_in)
{
    size_t width = l->options->width;
    frame f = frame_begin(l->memory);
    const float *x = frame_read(&f, in);
    const float *g = frame_read(&f, &l->parameters[gain].weight);
    float *d_gain = frame_update(&f, &l->parameters[gain].gradient);
    float *d_bias = frame_update(&f, &l->parameters[gain + 1].gradient);
    float *scratch = frame_scratch(&f, 2 * width);
    if (frame_ok(&f))
        norm_backward(x, l->values[stats].tensor.data, g, d_out, d_in, d_gain, d_bias, scratch,
                      rows_of(l), width);
    return frame_end(&f);
}

static memopt_status gelu_gradients(layer *l, float *d)
{
    frame f = frame_begin(l->memory);
    const float *x = frame_read(&f, &l->values[UP].tensor);
    if (frame_ok(&f))
        gelu_backward(x, d, value_count(l, UP));
    return frame_end(&f);
}

static memopt_status attention_gradients(layer *l, const float *d_out, float *d_qkv)
{
    size_t context = l->options->context;
    frame f = frame_begin(l->memory);
    const float *qkv = frame_read(&f, &l->values[QKV].tensor);
    const float *probabilities = frame_read(&f, &l->values[PROBABILITIES].tensor);
    float *scratch = frame_scratch(&f, context * context);
    if (frame_ok(&f))
        attention_backward(attention_of(l), qkv, probabilities, d_out, d_qkv, scratch);
    return frame_end(&f);
}

/* The gradient of one half's branch. */
static void branch_gradient(const layer *l, int half, const float *d, float *d_branch)
{
    size_t count = rows_of(l) * l->options->width;
    if (l->memory->tape)
        return;
    memcpy(d_branch, d, count * sizeof *d);
    dropout(l->mask_keys[half], l->dropout, d_branch, count);
}

/* d_branch and d_wide are scratch of rows * width and rows * 4 * width. */
static memopt_status backward_with(layer *l, float *d, float *d_branch, float *d_wide)
{
    size_t width = l->options->width, count = rows_of(l) * width;

    branch_gradient(l, 1, d, d_branch);
    TRY(linear_gradients(l, ACTIVE, DOWN_WEIGHT, d_branch, d_wide, 4 * width, width));
    TRY(gelu_gradients(l, d_wide));
    TRY(linear_gradients(l, NORM2_OUT, UP_WEIGHT, d_wide, d_branch, width, 4 * width));
    TRY(norm_gradients(l, &l->values[MIDDLE].tensor, NORM2_STATS, NORM2_GAIN, d_branch, d));

    float *d_attended = d_wide + 3 * count; /* d_qkv takes the first three quarters */
    branch_gradient(l, 0, d, d_branch);
    TRY(linear_gradients(l, ATTENDED, PROJECT_WEIGHT, d_branch, d_attended, width, width));
    TRY(attention_gradients(l, d_attended, d_wide));
    TRY(linear_gradients(l, NORM1_OUT, QKV_WEIGHT, d_wide, d_branch, width, 3 * width));
    return norm_gradients(l, &l->input, NORM1_STATS, NORM1_GAIN, d_branch, d);
}

memopt_status layer_backward(layer *l, float *d)
{
    uint64_t count = (uint64_t)rows_of(l) * l->options->width;
    frame f = frame_begin(l->memory);
    float *d_branch = frame_scratch(&f, count);
    float *d_wide = frame_scratch(&f, 4 * count);
    if (f.status == MEMOPT_OK)
        f.status = backward_with(l, d, d_branch, d_wide);
    return frame_end(&f);
}

/* --- the region ---------------------------------------------------------------------------- */

void layer_prepare(layer *l, memory *m, const options *o, parameter *parameters,
                   random_state *random)
{
    memset(l, 0, sizeof *l);
    l->memory = m;
    l->options = o;
    l->parameters = parameters;
    l->random = random;
    l->dropout = o->dropout;
    l->own_values = 1;
}

memopt_status layer_create(layer *l, uint32_t number)
{
    const options *o = l->options;
    memory *m = l->memory;
    char name[24];
    l->own_values = 0;
    for (int i = 0; !l->recomputed && i < LAYER_VALUES; i++)
        l->own_values |= l->values[i].away;
    snprintf(name, sizeof name, "layer %u", number);
    memopt_region_options region = MEMOPT_REGION_OPTIONS_INIT;
    region.name = name;
    region.mode = l->recomputed ? MEMOPT_REGION_RECOMPUTE : MEMOPT_REGION_KEEP;
    region.check = o->check;
    region.random_bytes = sizeof(random_state);
    memopt_region_callbacks callbacks = {sizeof callbacks, layer_run, save_random, restore_random,
                                         l};
    return memopt_region_create(m->device, m->allocator, &callbacks, &region, &l->region);
}

memopt_status layer_destroy(layer *l)
{
    memopt_status status = memopt_region_destroy(l->region);
    l->region = NULL;
    return status;
}

memopt_status layer_forward(layer *l)
{
    if (l->memory->tape)
        return layer_run(l, NULL, MEMOPT_PASS_FORWARD, NULL);
    TRY(memopt_region_forward(l->region, NULL));
    return memory_sync(l->memory);
}

memopt_status layer_restore(layer *l)
{
    for (int i = 0; l->own_values && i < LAYER_VALUES; i++)
        TRY(saved_fetch(l->memory, &l->values[i]));
    if (l->memory->tape)
        return MEMOPT_OK;
    TRY(memopt_region_recompute(l->region, NULL));
    return memory_sync(l->memory);
}

memopt_status layer_release(layer *l)
{
    for (int i = 0; l->own_values && i < LAYER_VALUES; i++)
        TRY(saved_drop(l->memory, &l->values[i]));
    return l->memory->tape ? MEMOPT_OK : memopt_region_release(l->region);
}

memopt_status layer_send(layer *l)
{
    for (int i = 0; l->own_values && i < LAYER_VALUES; i++)
        TRY(saved_send(l->memory, &l->values[i]));
    return MEMOPT_OK;
}

memopt_status layer_wait_sent(layer *l)
{
    for (int i = 0; l->own_values && i < LAYER_VALUES; i++)
        TRY(saved_wait(l->memory, &l->values[i]));
    return MEMOPT_OK;
}

memopt_status layer_prefetch(layer *l)
{
    for (int i = 0; l->own_values && i < LAYER_VALUES; i++)
        TRY(saved_prefetch(l->memory, &l->values[i]));
    return MEMOPT_OK;
}
