/*
 * Forward and backward over the whole model (model.h).
 */
#include "model.h"

#include <stdlib.h>
#include <string.h>

static size_t rows_of(const model *m)
{
    return (size_t)m->options->batch * m->options->context;
}

static uint64_t stream_count(const model *m)
{
    return (uint64_t)rows_of(m) * m->options->width;
}

memopt_status model_create(model *m, memory *device, const options *o, random_state *random)
{
    memset(m, 0, sizeof *m);
    m->memory = device;
    m->options = o;
    m->random = random;
    m->layers = calloc(o->layers, sizeof *m->layers);
    m->inputs = calloc((size_t)o->layers + 1, sizeof *m->inputs);
    if (!m->layers || !m->inputs)
        return gpt_fail(MEMOPT_OUT_OF_HOST_MEMORY, "model: no memory for %u layers", o->layers);
    TRY(parameters_create(&m->parameters, device, o));
    for (uint32_t i = 0; i < o->layers; i++)
        layer_prepare(&m->layers[i], device, o, m->parameters.layers + (size_t)i * LAYER_PARAMETERS,
                      random);
    return MEMOPT_OK;
}

memopt_status model_destroy(model *m)
{
    memopt_status first = MEMOPT_OK;
    for (uint32_t i = 0; m->layers && i < m->options->layers; i++) {
        memopt_status status = layer_destroy(&m->layers[i]);
        first = first == MEMOPT_OK ? status : first;
    }
    if (m->memory) {
        memopt_status status = parameters_free(&m->parameters, m->memory);
        first = first == MEMOPT_OK ? status : first;
    }
    free(m->layers);
    free(m->inputs);
    memset(m, 0, sizeof *m);
    return first;
}

/* --- embeddings ---------------------------------------------------------------------------- */

static memopt_status embed(model *m, const batch *b, uint64_t mask_key, double probability)
{
    size_t width = m->options->width, context = m->options->context;
    TRY(saved_create(m->memory, m->options->dtype, stream_count(m), &m->inputs[0]));
    frame f = frame_begin(m->memory);
    const float *tokens = frame_read(&f, &m->parameters.list[TOKEN_EMBEDDING].weight);
    const float *places = frame_read(&f, &m->parameters.list[POSITION_EMBEDDING].weight);
    float *out = frame_write(&f, &m->inputs[0].tensor);
    if (frame_ok(&f)) {
        for (size_t row = 0; row < rows_of(m); row++)
            add(tokens + b->inputs[row] * width, places + row % context * width, out + row * width,
                width);
        dropout(mask_key, probability, out, stream_count(m));
    }
    return frame_end(&f);
}

static memopt_status embed_backward(model *m, const batch *b, uint64_t mask_key, float *d)
{
    size_t width = m->options->width, context = m->options->context;
    frame f = frame_begin(m->memory);
    float *d_tokens = frame_update(&f, &m->parameters.list[TOKEN_EMBEDDING].gradient);
    float *d_places = frame_update(&f, &m->parameters.list[POSITION_EMBEDDING].gradient);
    if (frame_ok(&f))
        dropout(mask_key, m->options->dropout, d, stream_count(m));
    for (size_t row = 0; frame_ok(&f) && row < rows_of(m); row++) {
        float *token = d_tokens + b->inputs[row] * width;
        float *place = d_places + row % context * width;
        add(token, d + row * width, token, width);
        add(place, d + row * width, place, width);
    }
    return frame_end(&f);
}

/* --- the head ------------------------------------------------------------------------------ */

/* The buffers of the head in one frame. */
typedef struct head_buffers {
    float *normed, *stats, *logits, *scratch, *losses;
    memopt_cross_entropy_row *rows;
    int32_t *targets;
} head_buffers;

/* The sum of all rows' losses; with `learns` the gradient of `scale` times it in the place of the
 * logits. */
static memopt_status cross_entropy(model *m, head_buffers *b, const uint8_t *targets, float scale,
                                   int learns, double *out_sum)
{
    memopt_device *device = m->memory->device;
    memopt_logits logits = MEMOPT_LOGITS_INIT;
    logits.data = b->logits;
    logits.rows = rows_of(m);
    logits.columns = CLASSES;
    memset(b->rows, 0, logits.rows * sizeof *b->rows);
    for (size_t row = 0; row < logits.rows; row++)
        b->targets[row] = targets[row];
    TRY(memopt_cross_entropy_add(device, &logits, b->targets, b->rows, NULL));
    TRY(memopt_cross_entropy_losses(device, b->rows, b->targets, logits.rows, b->losses, NULL));
    if (learns)
        TRY(memopt_cross_entropy_gradient(device, &logits, b->targets, b->rows, scale, NULL));
    TRY(memory_sync(m->memory));
    *out_sum = 0;
    for (size_t row = 0; row < logits.rows; row++)
        *out_sum += (double)b->losses[row];
    return MEMOPT_OK;
}

static memopt_status head_gradients(model *m, const head_buffers *b, const float *x,
                                    const float *gain, const float *weight, float *d)
{
    size_t rows = rows_of(m), width = m->options->width;
    parameter *list = m->parameters.list;
    frame f = frame_begin(m->memory);
    float *d_weight = frame_update(&f, &m->parameters.head->gradient);
    float *d_gain = frame_update(&f, &list[FINAL_GAIN].gradient);
    float *d_bias = frame_update(&f, &list[FINAL_BIAS].gradient);
    float *d_normed = frame_scratch(&f, stream_count(m));
    if (frame_ok(&f)) {
        head_backward(b->normed, weight, b->logits, d_normed, d_weight, rows, width, CLASSES);
        memset(d, 0, stream_count(m) * sizeof *d);
        norm_backward(x, b->stats, gain, d_normed, d, d_gain, d_bias, b->scratch, rows, width);
    }
    return frame_end(&f);
}

/* The loss, and where d is not NULL the gradient of the last layer's output. */
static memopt_status head(model *m, const batch *given, float scale, float *d, double *out_loss)
{
    size_t rows = rows_of(m), width = m->options->width;
    parameter *list = m->parameters.list;
    frame f = frame_begin(m->memory);
    const float *x = frame_read(&f, &m->inputs[m->options->layers].tensor);
    const float *gain = frame_read(&f, &list[FINAL_GAIN].weight);
    const float *bias = frame_read(&f, &list[FINAL_BIAS].weight);
    const float *weight = frame_read(&f, &m->parameters.head->weight);
    head_buffers b;
    b.normed = frame_scratch(&f, stream_count(m));
    b.stats = frame_scratch(&f, 2 * rows);
    b.logits = frame_scratch(&f, rows * CLASSES);
    b.scratch = frame_scratch(&f, 2 * width);
    b.losses = frame_scratch(&f, rows);
    b.rows = (void *)frame_scratch(&f, rows * sizeof *b.rows / sizeof(float));
    b.targets = (void *)frame_scratch(&f, rows);
    if (frame_ok(&f)) {
        norm_forward(x, gain, bias, b.normed, b.stats, rows, width);
        head_forward(b.normed, weight, b.logits, rows, width, CLASSES);
        double sum = 0;
        f.status = cross_entropy(m, &b, given->targets, scale / (float)rows, d != NULL, &sum);
        *out_loss = sum / (double)rows;
    }
    if (d && f.status == MEMOPT_OK)
        f.status = head_gradients(m, &b, x, gain, weight, d);
    return frame_end(&f);
}

/* --- the chain of layers ------------------------------------------------------------------- */

/* Starts sending what of layer i goes away, and holds compute back until that of layer i - 2 has gone:
 * so at most three layers' values are on the device, however slow the copies are. A budget counts on
 * memory that is free at once. */
static memopt_status send_layer(model *m, uint32_t i)
{
    uint32_t lag = m->options->budget ? 0 : 2;
    TRY(saved_send(m->memory, &m->inputs[i]));
    TRY(layer_send(&m->layers[i]));
    if (i < lag || m->memory->tape)
        return MEMOPT_OK;
    TRY(saved_wait(m->memory, &m->inputs[i - lag]));
    return layer_wait_sent(&m->layers[i - lag]);
}

static memopt_status prefetch_layer(model *m, uint32_t i)
{
    if (m->options->budget)
        return MEMOPT_OK;
    TRY(saved_prefetch(m->memory, &m->inputs[i]));
    return layer_prefetch(&m->layers[i]);
}

static memopt_status run_layer(model *m, uint32_t i, double probability)
{
    layer *l = &m->layers[i];
    TRY(saved_create(m->memory, m->options->dtype, stream_count(m), &m->inputs[i + 1]));
    l->dropout = probability;
    l->input = m->inputs[i].tensor;
    l->output = m->inputs[i + 1].tensor;
    TRY(parameters_to_device(l->parameters, m->memory, i));
    saved_keep(m->memory, &m->inputs[i]);
    if (m->memory->tape)
        tape_enter(m->memory->tape, i, layer_operations(l), &l->recomputed);
    TRY(layer_forward(l));
    if (m->memory->tape)
        tape_leave(m->memory->tape, i);
    return parameters_to_host(l->parameters, m->memory, i);
}

static void note_place(model *m, const char *name, uint32_t number)
{
    if (m->memory->tape)
        tape_place(m->memory->tape, name, number);
}

static memopt_status forward(model *m)
{
    for (uint32_t i = 0; i < m->options->layers; i++) {
        note_place(m, "the forward of layer", i);
        TRY(run_layer(m, i, m->options->dropout));
        TRY(send_layer(m, i));
    }
    if (m->memory->tape)
        tape_backward(m->memory->tape);
    return MEMOPT_OK;
}

/* Backward of one layer, while the values of the one before it are coming back. */
static memopt_status backward_layer(model *m, uint32_t i, float *d)
{
    layer *l = &m->layers[i];
    note_place(m, "the backward of layer", i);
    if (i > 0)
        TRY(prefetch_layer(m, i - 1));
    TRY(saved_fetch(m->memory, &m->inputs[i]));
    l->input = m->inputs[i].tensor;
    TRY(parameters_to_device(l->parameters, m->memory, i));
    TRY(layer_restore(l));
    TRY(layer_backward(l, d));
    TRY(layer_release(l));
    TRY(parameters_to_host(l->parameters, m->memory, i));
    return saved_drop(m->memory, &m->inputs[i]);
}

static memopt_status backward(model *m, const batch *b, float scale, uint64_t mask_key, float *d,
                              double *out_loss)
{
    uint32_t layers = m->options->layers;
    note_place(m, "the head, behind layer", layers - 1);
    TRY(head(m, b, scale, d, out_loss));
    TRY(saved_drop(m->memory, &m->inputs[layers]));
    for (uint32_t i = layers; i-- > 0;) {
        TRY(backward_layer(m, i, d));
        if (m->shards) /* on their way while the next layer computes */
            TRY(shards_send(m->shards, i, m->replaces));
    }
    TRY(embed_backward(m, b, mask_key, d));
    return m->shards ? shards_send(m->shards, layers, m->replaces) : MEMOPT_OK;
}

/* Behind a failure: everything between forward and backward goes, so that the next step can begin. */
static void abandon(model *m)
{
    for (uint32_t i = 0; i < m->options->layers; i++) {
        layer *l = &m->layers[i];
        if (l->parameters->host)
            (void)parameters_to_host(l->parameters, m->memory, i);
        (void)layer_release(l);
        (void)saved_drop(m->memory, &m->inputs[i]);
    }
    (void)saved_drop(m->memory, &m->inputs[m->options->layers]);
}

static memopt_status learn(model *m, const batch *b, float scale, double *out_loss)
{
    uint64_t mask_key = m->options->dropout > 0 ? random_next(m->random) : 0;
    TRY(embed(m, b, mask_key, m->options->dropout));
    TRY(forward(m));
    /* The gradient of the residual stream: one buffer, from the head down to the embeddings. */
    frame f = frame_begin(m->memory);
    float *d = frame_scratch(&f, stream_count(m));
    if (f.status == MEMOPT_OK)
        f.status = backward(m, b, scale, mask_key, d, out_loss);
    return frame_end(&f);
}

memopt_status model_learn(model *m, const batch *b, float scale, double *out_loss)
{
    memopt_status status = learn(m, b, scale, out_loss);
    if (status != MEMOPT_OK)
        abandon(m);
    return status;
}

/* --- the layers' parts --------------------------------------------------------------------- */

/* What a run of several ranks needs beside a micro-batch: its last sums, and a save's masters. */
static memopt_status rehearse_ranks(model *m)
{
    const options *o = m->options;
    TRY(shards_receive(m->shards));
    if (!o->save || !o->master || o->dtype == MEMOPT_DTYPE_F32)
        return MEMOPT_OK;
    note_place(m, "a save, behind layer", o->layers - 1);
    for (uint32_t n = 0; n <= o->layers; n++) {
        memopt_tensor masters;
        TRY(shards_gather_masters(m->shards, n, &masters));
        TRY(memory_free(m->memory, &masters));
    }
    return MEMOPT_OK;
}

/* A micro-batch without its work, for the tape. */
static memopt_status rehearse(model *m)
{
    random_state before = *m->random;
    batch none = {NULL, NULL};
    double loss;
    memopt_status status = model_learn(m, &none, 1, &loss);
    if (m->shards && status == MEMOPT_OK)
        status = rehearse_ranks(m);
    *m->random = before;
    return status;
}

static memopt_status plan(model *m)
{
    const options *o = m->options;
    memory_figures figures;
    TRY(memory_measure(m->memory, &figures));
    tape *t = m->memory->tape = tape_create();
    if (!t)
        return gpt_fail(MEMOPT_OUT_OF_HOST_MEMORY, "model: no memory for a plan");
    memopt_status status = rehearse(m);
    m->memory->tape = NULL;
    if (status == MEMOPT_OK) /* the offloader rounds by at most 3 % */
        status =
            tape_fit(t, figures.exact, o->budget, o->host_limit - o->host_limit / 32, &m->plan);
    tape_free(t);
    return status;
}

/* What --checkpoint and --offload say. The last layer's backward follows at once. */
static void choose(model *m)
{
    const options *o = m->options;
    for (uint32_t i = 0; i < o->layers; i++) {
        layer *l = &m->layers[i];
        l->recomputed = o->checkpoint;
        m->inputs[i].away = o->offload && i + 1 < o->layers;
        for (int value = 0; value < LAYER_VALUES; value++)
            l->values[value].away = m->inputs[i].away && !o->checkpoint;
    }
}

memopt_status model_create_layers(model *m)
{
    if (m->options->budget)
        TRY(plan(m));
    else
        choose(m);
    for (uint32_t i = 0; i < m->options->layers; i++)
        TRY(layer_create(&m->layers[i], i));
    return MEMOPT_OK;
}

memopt_status model_evaluate(model *m, const batch *b, double *out_loss)
{
    uint32_t layers = m->options->layers;
    TRY(embed(m, b, 0, 0));
    for (uint32_t i = 0; i < layers; i++) {
        TRY(run_layer(m, i, 0));
        TRY(layer_release(&m->layers[i]));
        TRY(saved_drop(m->memory, &m->inputs[i]));
    }
    TRY(head(m, b, 1, NULL, out_loss));
    return saved_drop(m->memory, &m->inputs[layers]);
}
