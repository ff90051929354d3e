/*
 * One optimizer step after another (train.h).
 */
#include "train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cblas.h>

/* Groups of the optimizer: matrices decay, gains and biases do not. */
enum { GROUP_PLAIN, GROUP_DECAY, GROUPS };

/* Streams of the seed's random numbers beside dropout's own. */
#define BATCH_SEED UINT64_C(0x6261746368)
#define HELD_OUT_SEED UINT64_C(0x68656C64)

double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* --- making and ending --------------------------------------------------------------------- */

static double learning_rate(const trainer *t)
{
    const options *o = &t->options;
    return t->step + 1 < o->warmup ? o->lr * (double)(t->step + 1) / (double)o->warmup : o->lr;
}

static memopt_optimizer_group group_values(const trainer *t, uint32_t group)
{
    memopt_optimizer_group values = MEMOPT_OPTIMIZER_GROUP_INIT;
    values.lr = learning_rate(t);
    values.beta2 = 0.99; /* short runs: a second moment that follows sooner */
    values.weight_decay = group == GROUP_DECAY ? t->options.weight_decay : 0;
    return values;
}

/* With --ranks: what the optimizer has of a parameter here, which may be nothing. */
static memopt_tensor shard_of(const trainer *t, const parameter *p, memopt_parameter_options *given)
{
    memopt_tensor weight = p->weight;
    weight.data = (char *)weight.data + p->first * memopt_dtype_size(weight.dtype);
    weight.count = p->own;
    given->shard = (memopt_shard){p->first, p->weight.count};
    if (weight.dtype == MEMOPT_DTYPE_F32 || !t->options.master)
        return weight;
    given->model_copy = weight;
    return p->master;
}

static memopt_status add_parameters(trainer *t)
{
    for (uint64_t i = 0; i < t->model.parameters.count; i++) {
        parameter *p = &t->model.parameters.list[i];
        /* With masters the optimizer updates those and rounds them into the weights. */
        const memopt_tensor *trained = p->master.data ? &p->master : &p->weight;
        memopt_parameter_options given = MEMOPT_PARAMETER_OPTIONS_INIT;
        uint64_t index;
        if (p->master.data)
            given.model_copy = p->weight;
        memopt_tensor shard;
        if (t->ranks.count) {
            shard = shard_of(t, p, &given);
            trained = &shard;
        }
        TRY(memopt_optimizer_add_parameter(t->optimizer, p->decays ? GROUP_DECAY : GROUP_PLAIN,
                                           trained, &given, NULL, &index));
        t->gradients[index] = t->ranks.count ? p->sum : p->gradient;
    }
    return memory_sync(&t->memory);
}

static memopt_status create_optimizer(trainer *t)
{
    const options *o = &t->options;
    memopt_optimizer_options how = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    how.state_format = o->adamw8bit ? MEMOPT_STATE_8BIT : MEMOPT_STATE_F32;
    how.stochastic_rounding = o->dtype != MEMOPT_DTYPE_F32 && !o->master;
    how.seed = o->seed;
    TRY(memopt_optimizer_create(t->memory.allocator, &how, &t->optimizer));
    for (uint32_t group = 0; group < GROUPS; group++) {
        memopt_optimizer_group values = group_values(t, group);
        uint32_t number;
        TRY(memopt_optimizer_add_group(t->optimizer, &values, &number));
    }
    t->gradients = calloc(t->model.parameters.count, sizeof *t->gradients);
    if (!t->gradients)
        return gpt_fail(MEMOPT_OUT_OF_HOST_MEMORY, "trainer: no memory for the gradients' list");
    return add_parameters(t);
}

/* An update that is skipped, since a gradient is not finite: behind it the optimizer has all the memory
 * that it keeps between steps, and a budget can count it. */
static memopt_status skip_update(trainer *t)
{
    parameter_set *p = &t->model.parameters;
    const memopt_tensor *first = t->ranks.count ? &t->shards.total : &p->list[0].gradient;
    memopt_step_options how = MEMOPT_STEP_OPTIONS_INIT;
    how.max_norm = t->options.clip;
    how.skip_non_finite = 1;
    how.out_norm = t->norm.data;
    how.square_sum = t->shards.total.data;
    TRY(parameters_zero_gradients(p, &t->memory));
    TRY(memopt_fill(t->memory.device, first->data, 0xFF,
                    t->ranks.count ? sizeof(double) : memopt_dtype_size(first->dtype), NULL));
    TRY(parameters_write(p, &t->memory));
    TRY(memopt_optimizer_step(t->optimizer, t->gradients, p->count, &how, NULL));
    TRY(memory_sync(&t->memory));
    return parameters_written(p, &t->memory);
}

static memopt_status create_scaler(trainer *t)
{
    memopt_scaler_options how = MEMOPT_SCALER_OPTIONS_INIT;
    how.init_scale = t->options.init_scale;
    how.growth_interval = t->options.scale_growth;
    return t->options.dtype == MEMOPT_DTYPE_F16
               ? memopt_scaler_create(t->memory.device, &how, &t->scaler)
               : MEMOPT_OK;
}

static memopt_status create_all(trainer *t)
{
    const options *o = &t->options;
    size_t bytes = (size_t)o->batch * o->context;
    TRY(memory_open(&t->memory, o));
    t->inputs = malloc(bytes);
    t->targets = malloc(bytes);
    t->losses = calloc(o->accumulation, sizeof *t->losses);
    if (!t->inputs || !t->targets || !t->losses)
        return gpt_fail(MEMOPT_OUT_OF_HOST_MEMORY, "trainer: no memory for a batch");
    TRY(model_create(&t->model, &t->memory, o, &t->random));
    TRY(memory_tensor(&t->memory, MEMOPT_DTYPE_F32, 1, MEMOPT_TAG_OTHER, &t->norm));
    TRY(create_scaler(t));
    if (t->ranks.count) {
        TRY(shards_create(&t->shards, &t->memory, &t->ranks, &t->model.parameters, o->layers));
        t->model.shards = &t->shards;
    }
    TRY(create_optimizer(t));
    if (o->budget)
        TRY(skip_update(t));
    return model_create_layers(&t->model);
}

memopt_status trainer_create(trainer *t, const options *o, const corpus *text)
{
    memset(t, 0, sizeof *t);
    t->options = *o;
    t->text = text;
    t->random.seed = o->seed;
    t->ranks = (ranks){o->rank, o->ranks};
    if (o->threads)
        openblas_set_num_threads((int)o->threads);
    memopt_status status = create_all(t);
    if (status != MEMOPT_OK)
        trainer_destroy(t);
    return status;
}

memopt_status trainer_destroy(trainer *t)
{
    memopt_status results[6] = {MEMOPT_OK};
    results[0] = memopt_optimizer_destroy(t->optimizer);
    results[1] = memopt_scaler_destroy(t->scaler);
    if (t->memory.device) {
        results[2] = memory_free(&t->memory, &t->norm);
        results[3] = shards_destroy(&t->shards);
        results[4] = model_destroy(&t->model);
        results[5] = memory_close(&t->memory);
    }
    free(t->gradients);
    free(t->inputs);
    free(t->targets);
    free(t->losses);
    memset(t, 0, sizeof *t);
    for (int i = 0; i < 6; i++)
        TRY(results[i]);
    return MEMOPT_OK;
}

/* --- a step -------------------------------------------------------------------------------- */

/* Micro-batch `micro` is number micro / N of rank micro % N. */
static memopt_status add_losses(trainer *t, step_result *result)
{
    const uint32_t all = t->options.accumulation, n = t->ranks.count ? t->ranks.count : 1;
    if (t->ranks.count) {
        for (uint32_t k = 0; k <= n; k++)
            t->shards.at[k] = (uint64_t)k * (all / n) * sizeof *t->losses;
        TRY(shards_receive(&t->shards));
        TRY(ranks_gather(&t->ranks, t->losses, t->shards.at));
    }
    for (uint32_t micro = 0; micro < all; micro++)
        result->loss += t->losses[micro % n * (all / n) + micro / n] / all;
    return MEMOPT_OK;
}

memopt_status trainer_gradients(trainer *t, step_result *result)
{
    const options *o = &t->options;
    const uint32_t n = o->ranks ? o->ranks : 1;
    result->scale = t->scaler ? (double)*memopt_scaler_get_scale(t->scaler) : 1;
    result->loss = 0;
    float scale = (float)(result->scale / o->accumulation);
    TRY(parameters_zero_gradients(&t->model.parameters, &t->memory));
    for (uint32_t micro = o->rank; micro < o->accumulation; micro += n) {
        uint64_t number = t->step * o->accumulation + micro;
        uint64_t key = random_draw(o->seed ^ BATCH_SEED, number);
        batch b = {t->inputs, t->targets};
        if (o->ranks) /* dropout's draws are the micro-batch's, whichever rank has it */
            t->random.draws = number << 16;
        t->model.replaces = micro < n;
        text_batch(t->text, key, 0, o->batch, o->context, t->inputs, t->targets);
        TRY(model_learn(&t->model, &b, scale,
                        &t->losses[micro % n * (o->accumulation / n) + micro / n]));
    }
    return add_losses(t, result);
}

static memopt_status update(trainer *t)
{
    if (t->ranks.count)
        TRY(shards_square_sum(&t->shards));
    memopt_step_options how = MEMOPT_STEP_OPTIONS_INIT;
    how.scaler = t->scaler;
    how.max_norm = t->options.clip;
    how.skip_non_finite = 1;
    how.out_norm = t->norm.data;
    how.square_sum = t->shards.total.data; /* of all ranks; NULL: the step's own */
    TRY(memopt_optimizer_step(t->optimizer, t->gradients, t->model.parameters.count, &how, NULL));
    if (t->scaler)
        TRY(memopt_scaler_update(t->scaler, NULL));
    TRY(memory_sync(&t->memory));
    return t->ranks.count ? shards_gather_weights(&t->shards) : MEMOPT_OK;
}

memopt_status trainer_update(trainer *t, step_result *result)
{
    for (uint32_t group = 0; group < GROUPS; group++) {
        memopt_optimizer_group values = group_values(t, group);
        TRY(memopt_optimizer_set_group(t->optimizer, group, &values));
    }
    result->lr = learning_rate(t);
    TRY(parameters_write(&t->model.parameters, &t->memory));
    memopt_status status = update(t);
    memopt_status written = parameters_written(&t->model.parameters, &t->memory);
    TRY(status);
    TRY(written);
    result->norm = (double)*(const float *)t->norm.data;
    result->skipped = !isfinite(result->norm);
    t->step++;
    return MEMOPT_OK;
}

memopt_status trainer_step(trainer *t, step_result *out_result)
{
    double start = seconds_now();
    memopt_stream_stats before, after;
    random_state random = t->random;
    TRY(memory_streamed(&t->memory, &before));
    memopt_status status = trainer_gradients(t, out_result);
    if (status == MEMOPT_OK)
        status = trainer_update(t, out_result);
    if (status != MEMOPT_OK)
        t->random = random;
    TRY(status);
    out_result->seconds = seconds_now() - start;
    TRY(memory_streamed(&t->memory, &after));
    out_result->copies = after.copies - before.copies;
    out_result->copied_bytes = after.copied_bytes - before.copied_bytes;
    return MEMOPT_OK;
}

memopt_status trainer_evaluate(trainer *t, uint32_t batches, double *out_loss)
{
    const options *o = &t->options;
    double sum = 0;
    for (uint32_t i = 0; i < batches; i++) {
        batch b = {t->inputs, t->targets};
        double loss;
        text_batch(t->text, random_draw(HELD_OUT_SEED, i), 1, o->batch, o->context, t->inputs,
                   t->targets);
        TRY(model_evaluate(&t->model, &b, &loss));
        sum += loss;
    }
    *out_loss = sum / batches;
    return MEMOPT_OK;
}
