/*
 * Reads the caller's descriptions; the run's checks and defaults.
 */
#include "plan/settings.h"

#include "base/checked.h"
#include "base/options.h"

/* The largest counts that make sense; what is above is a mistake. */
enum { MAX_BATCH = 1 << 24, MAX_SEQUENCE = 1 << 24, MAX_WORLD = 1 << 20 };

memopt_status mo_settings_range(const char *name, uint64_t value, uint64_t low, uint64_t high)
{
    if (value >= low && value <= high)
        return MEMOPT_OK;
    return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: %s is %llu; it must be from %llu to %llu", name,
                   (unsigned long long)value, (unsigned long long)low, (unsigned long long)high);
}

static memopt_status check_dtype(const char *name, memopt_dtype dtype, int none)
{
    if ((none && dtype == MEMOPT_DTYPE_INVALID) || dtype == MEMOPT_DTYPE_F32 ||
        dtype == MEMOPT_DTYPE_F16 || dtype == MEMOPT_DTYPE_BF16)
        return MEMOPT_OK;
    return mo_fail(MEMOPT_INVALID_ARGUMENT,
                   "plan: %s is element type %d (%s); a training run has f32, f16 or bf16", name,
                   (int)dtype, memopt_dtype_name(dtype));
}

/* Two 16-bit types meet in f32: torch promotes what is added, and neither is saved by the other. */
static memopt_status check_mix(const char *name, memopt_dtype dtype, memopt_dtype weights)
{
    if (dtype == 0 || dtype == weights || dtype == MEMOPT_DTYPE_F32 ||
        (weights != MEMOPT_DTYPE_F16 && weights != MEMOPT_DTYPE_BF16))
        return MEMOPT_OK;
    return mo_fail(MEMOPT_INVALID_ARGUMENT,
                   "plan: %s is %s over weights of %s; sums of the two are f32, which is more than "
                   "either: use one 16-bit type, or weights of f32",
                   name, memopt_dtype_name(dtype), memopt_dtype_name(weights));
}

static memopt_status check_dtypes(memopt_plan_run *r)
{
    memopt_status status = check_dtype("weight_dtype", r->weight_dtype, 1);
    if (status == MEMOPT_OK)
        status = check_dtype("compute_dtype", r->compute_dtype, 1);
    if (status == MEMOPT_OK)
        status = check_dtype("gradient_dtype", r->gradient_dtype, 1);
    if (status == MEMOPT_OK)
        status = check_dtype("master_dtype", r->master_dtype, 1);
    if (status == MEMOPT_OK)
        status = check_dtype("state_dtype", r->state_dtype, 1);
    if (status == MEMOPT_OK)
        status = check_dtype("image_dtype", r->image_dtype, 1);
    if (status == MEMOPT_OK)
        status = check_dtype("gather_dtype", r->gather_dtype, 1);
    if (status == MEMOPT_OK)
        status = check_dtype("adapter_dtype", r->adapter_dtype, 1);
    if (status == MEMOPT_OK)
        status = check_mix("compute_dtype", r->compute_dtype, r->weight_dtype);
    if (status == MEMOPT_OK)
        status = check_mix("adapter_dtype", r->adapter_dtype, r->weight_dtype);
    return status;
}

static int is_ours(uint32_t optimizer)
{
    return (optimizer >= MEMOPT_PLAN_ADAMW_8BIT && optimizer <= MEMOPT_PLAN_LION_8BIT) ||
           optimizer == MEMOPT_PLAN_SGD_8BIT;
}

static void default_dtypes(memopt_plan_run *r)
{
    if (r->weight_dtype == 0)
        r->weight_dtype = MEMOPT_DTYPE_F32;
    if (r->zero_engine == MEMOPT_PLAN_ENGINE_DEEPSPEED)
        mo_settings_deepspeed_dtypes(r);
    if (r->compute_dtype == MEMOPT_DTYPE_F32 && r->weight_dtype == MEMOPT_DTYPE_F32)
        r->compute_dtype = 0; /* with 16-bit weights of its own type it still has losses in f32 */
    if (r->image_dtype == 0)
        r->image_dtype = MEMOPT_DTYPE_F32;
    if (r->adapter_dtype == 0)
        r->adapter_dtype = MEMOPT_DTYPE_F32;
    if (r->gradient_dtype == 0)
        r->gradient_dtype = r->weight_dtype;
    if (r->state_dtype == 0)
        r->state_dtype =
            is_ours(r->optimizer) || r->master_dtype ? MEMOPT_DTYPE_F32 : r->weight_dtype;
}

static memopt_status check_enums(const memopt_plan_run *r)
{
    const struct {
        const char *name;
        uint64_t value, last;
    } all[] = {{"optimizer", r->optimizer, MEMOPT_PLAN_NO_OPTIMIZER},
               {"attention", r->attention, MEMOPT_PLAN_ATTENTION_FLASH},
               {"checkpointing", r->checkpointing, MEMOPT_PLAN_CHECKPOINT_BUDGET},
               {"offload", r->offload, 3},
               {"sharding", r->sharding, MEMOPT_PLAN_ZERO3},
               {"loss", r->loss, MEMOPT_PLAN_LOSS_CHUNKED},
               {"use_cache", r->use_cache, MEMOPT_PLAN_YES},
               {"keep_outputs", r->keep_outputs, MEMOPT_PLAN_YES},
               {"attention_mask", r->attention_mask, MEMOPT_PLAN_YES},
               {"bucket_view", r->bucket_view, MEMOPT_PLAN_YES},
               {"zero_engine", r->zero_engine, MEMOPT_PLAN_ENGINE_DEEPSPEED},
               {"contiguous_gradients", r->contiguous_gradients, MEMOPT_PLAN_YES},
               {"overlap_comm", r->overlap_comm, MEMOPT_PLAN_YES},
               {"reserved_zero", r->reserved_zero, 0},
               {"gradient_sync", r->gradient_sync, MEMOPT_PLAN_YES},
               {"reserved_end", r->reserved_end, 0}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        memopt_status status = mo_settings_range(all[i].name, all[i].value, 0, all[i].last);
        if (status != MEMOPT_OK)
            return status;
    }
    return MEMOPT_OK;
}

static memopt_status check_counts(const memopt_plan_run *r)
{
    const struct {
        const char *name;
        uint64_t value, low, high;
    } all[] = {{"batch", r->batch, 1, MAX_BATCH},
               {"sequence", r->sequence, 1, MAX_SEQUENCE},
               {"sequence_mean", r->sequence_mean, 1, r->sequence},
               {"images", r->images, 0, MAX_SEQUENCE},
               {"positives", r->positives, 0, MAX_SEQUENCE},
               {"negatives", r->negatives, 0, MAX_SEQUENCE},
               {"accumulation", r->accumulation, 1, MAX_BATCH},
               {"world_size", r->world_size, 1, MAX_WORLD},
               {"checkpoint_every", r->checkpoint_every, 1, MAX_SEQUENCE},
               {"bucket_bytes", r->bucket_bytes, 1, UINT64_C(1) << 50}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        memopt_status status =
            mo_settings_range(all[i].name, all[i].value, all[i].low, all[i].high);
        if (status != MEMOPT_OK)
            return status;
    }
    if (r->checkpointing == MEMOPT_PLAN_CHECKPOINT_BUDGET && r->checkpoint_budget == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: checkpointing is by budget, but checkpoint_budget is 0");
    return MEMOPT_OK;
}

static void one_if_zero(uint64_t *value, uint64_t other)
{
    if (*value == 0)
        *value = other;
}

static void default_counts(mo_settings *s)
{
    memopt_plan_run *r = &s->run;
    const memopt_plan_model *m = &s->model;
    one_if_zero(&r->batch, 1);
    one_if_zero(&r->sequence, m->positions > 0 ? mo_min_u64(512, m->positions) : 512);
    one_if_zero(&r->sequence_mean, r->sequence);
    if (m->vision_layers > 0)
        one_if_zero(&r->images, 1);
    if (m->head == MEMOPT_PLAN_HEAD_CONTRASTIVE)
        one_if_zero(&r->positives, 1);
    one_if_zero(&r->accumulation, 1);
    one_if_zero(&r->world_size, 1);
    one_if_zero(&r->checkpoint_every, 2);
    one_if_zero(&r->min_8bit_size, 4096);
    if (r->zero_engine == MEMOPT_PLAN_ENGINE_DEEPSPEED)
        mo_settings_deepspeed_counts(r);
    one_if_zero(&r->bucket_bytes, UINT64_C(25) << 20);
    if (r->use_cache == MEMOPT_PLAN_DEFAULT)
        r->use_cache = MEMOPT_PLAN_YES;
    if (r->keep_outputs == MEMOPT_PLAN_DEFAULT)
        r->keep_outputs = MEMOPT_PLAN_NO;
    if (r->gradient_sync == MEMOPT_PLAN_DEFAULT)
        r->gradient_sync = MEMOPT_PLAN_YES;
    if (r->bucket_view == MEMOPT_PLAN_DEFAULT)
        r->bucket_view = MEMOPT_PLAN_NO;
}

/* Sequences, tokens and images of a micro-batch. */
static memopt_status derive(mo_settings *s)
{
    const memopt_plan_model *m = &s->model;
    const memopt_plan_run *r = &s->run;
    uint64_t group = 1, added = 0;
    if (m->head == MEMOPT_PLAN_HEAD_CONTRASTIVE)
        group = 1 + r->positives + r->negatives;
    uint64_t side = m->image_size / m->patch_size;
    s->patches = side * side;
    if (m->family == MEMOPT_PLAN_VIT)
        group *= mo_max_u64(r->images, 1);
    if (m->vision_layers > 0)
        added = m->vision_tokens;
    int fits = mo_mul_u64(r->batch, group, &s->rows) && mo_mul_u64(added, r->images, &added) &&
               mo_add_u64(r->sequence, added, &s->tokens) &&
               mo_mul_u64(s->rows, mo_max_u64(r->images, 1), &s->images);
    if (m->family == MEMOPT_PLAN_VIT) {
        s->tokens = s->patches + 1;
        s->images = s->rows;
    }
    if (!fits || s->rows > MAX_BATCH || s->tokens > MAX_SEQUENCE)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: %llu samples of %llu sequences of %llu tokens and %llu images are "
                       "more than a device is ever given",
                       (unsigned long long)r->batch, (unsigned long long)group,
                       (unsigned long long)r->sequence, (unsigned long long)r->images);
    if (m->positions > 0 && m->family != MEMOPT_PLAN_VIT && s->tokens > m->positions)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: %llu tokens, but the model has %llu learned positions; take a "
                       "shorter sequence",
                       (unsigned long long)s->tokens, (unsigned long long)m->positions);
    return MEMOPT_OK;
}

static memopt_status read_run(mo_settings *s)
{
    memopt_status status = check_enums(&s->run);
    if (status == MEMOPT_OK)
        status = check_dtypes(&s->run);
    if (status != MEMOPT_OK)
        return status;
    status = mo_settings_deepspeed(&s->run);
    if (status != MEMOPT_OK)
        return status;
    default_dtypes(&s->run);
    default_counts(s);
    status = check_counts(&s->run);
    return status == MEMOPT_OK ? derive(s) : status;
}

memopt_status mo_settings_read(mo_settings *s, const memopt_plan_model *model,
                               const memopt_plan_run *run, const memopt_plan_card *card)
{
    memopt_status status;
    if (model == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: the model is NULL");
    status = mo_options_read(&s->model, sizeof s->model, model, "memopt_plan_model");
    if (status == MEMOPT_OK)
        status = mo_options_read(&s->run, sizeof s->run, run, "memopt_plan_run");
    s->extra_per_layer = 0;
    s->earlier = 0;
    if (status == MEMOPT_OK)
        status = mo_settings_model(s);
    if (status == MEMOPT_OK)
        status = read_run(s);
    if (status == MEMOPT_OK)
        status = mo_card_read(&s->card, card);
    return status;
}

memopt_status mo_settings_measured(mo_settings *s, const memopt_plan_run *run,
                                   const memopt_plan_card *card)
{
    *s = (mo_settings){.model = MEMOPT_PLAN_MODEL_INIT};
    memopt_status status = mo_options_read(&s->run, sizeof s->run, run, "memopt_plan_run");
    if (status == MEMOPT_OK)
        status = check_enums(&s->run);
    if (status == MEMOPT_OK)
        status = check_dtypes(&s->run);
    if (status != MEMOPT_OK)
        return status;
    status = mo_settings_deepspeed(&s->run);
    if (status != MEMOPT_OK)
        return status;
    uint64_t sequence = s->run.sequence, mean = s->run.sequence_mean;
    default_dtypes(&s->run);
    default_counts(s);
    status = check_counts(&s->run);
    s->run.sequence = sequence;
    s->run.sequence_mean = mean;
    return status == MEMOPT_OK ? mo_card_read(&s->card, card) : status;
}
