/*
 * Fills in the defaults of a run and checks what depends on other settings.
 */
#include "settings/settings.h"

#include "base/checked.h"

#include <string.h>

/* The largest sums that make sense; what is above is a mistake. */
enum { MAX_ROWS = 1 << 24, MAX_TOKENS = 1 << 24 };

/* Two 16-bit types meet in f32: torch promotes what is added, and neither is saved by the other. */
static memopt_status check_mix(const char *name, memopt_dtype dtype, memopt_dtype weights)
{
    if (dtype == 0 || dtype == weights || dtype == MEMOPT_DTYPE_F32 ||
        (weights != MEMOPT_DTYPE_F16 && weights != MEMOPT_DTYPE_BF16))
        return MEMOPT_OK;
    return mo_fail(MEMOPT_INVALID_ARGUMENT,
                   "plan: %s is %s over weights of %s; sums of the two are fp32 and larger than "
                   "either; use one 16-bit type, or weights of fp32",
                   name, mo_plan_dtype_word(dtype), mo_plan_dtype_word(weights));
}

static memopt_status check_dtypes(const mo_plan_run *r)
{
    MO_TRY(check_mix("run.compute_dtype", r->compute_dtype, r->weight_dtype));
    MO_TRY(check_mix("run.base_dtype", r->base_dtype, r->weight_dtype));
    return check_mix("run.adapter_dtype", r->adapter_dtype, r->weight_dtype);
}

/* Quantised weights do not learn. Those of bitsandbytes' 4 bits alone are divided: its int8 loses
 * its scales, and those of GPTQ and AWQ are buffers, which stay whole on each device. */
static memopt_status check_quantized(const mo_plan_settings *s)
{
    const char *kind = MO_PLAN_WORD(model.quantize, s->model.quantize);
    const mo_plan_run *r = &s->run;
    int shares = s->model.quantize == MO_PLAN_QUANTIZE_NF4 ||
                 s->model.quantize == MO_PLAN_QUANTIZE_NF4_DOUBLE;
    if (s->model.quantize == MO_PLAN_QUANTIZE_NONE)
        return MEMOPT_OK;
    MO_TRY(mo_plan_model_check_learns(&s->model));
    if (r->world_size > 1 && r->sharding >= MO_PLAN_ZERO2 && !shares)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: FSDP does not divide weights of %s; take nf4, or run.sharding=ddp or "
                       "zero1",
                       kind);
    return MEMOPT_OK;
}

int mo_plan_is_ours(uint32_t optimizer)
{
    return (optimizer >= MO_PLAN_ADAMW_8BIT && optimizer <= MO_PLAN_LION_8BIT) ||
           optimizer == MO_PLAN_SGD_8BIT;
}

static void default_dtypes(mo_plan_run *r)
{
    if (r->weight_dtype == 0)
        r->weight_dtype = MEMOPT_DTYPE_F32;
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
            mo_plan_is_ours(r->optimizer) || r->master_dtype ? MEMOPT_DTYPE_F32 : r->weight_dtype;
}

static void one_if_zero(uint64_t *value, uint64_t other)
{
    if (*value == 0)
        *value = other;
}

static void default_counts(mo_plan_settings *s)
{
    mo_plan_run *r = &s->run;
    const mo_plan_model *m = &s->model;
    one_if_zero(&r->batch, 1);
    one_if_zero(&r->sequence, m->positions > 0 ? mo_min_u64(512, m->positions) : 512);
    one_if_zero(&r->sequence_mean, r->sequence);
    if (m->vision_layers > 0)
        one_if_zero(&r->images, 1);
    if (m->head == MO_PLAN_HEAD_CONTRASTIVE)
        one_if_zero(&r->positives, 1);
    one_if_zero(&r->accumulation, 1);
    one_if_zero(&r->world_size, 1);
    one_if_zero(&r->checkpoint_every, 2);
    one_if_zero(&r->min_8bit_size, 4096);
    if (r->use_cache == MO_PLAN_DEFAULT)
        r->use_cache = MO_PLAN_YES;
    if (r->gradient_sync == MO_PLAN_DEFAULT)
        r->gradient_sync = MO_PLAN_YES;
    if (r->bucket_view == MO_PLAN_DEFAULT)
        r->bucket_view = MO_PLAN_NO;
}

/* Sequences, tokens and images of a micro-batch. */
static memopt_status derive(mo_plan_settings *s)
{
    const mo_plan_model *m = &s->model;
    const mo_plan_run *r = &s->run;
    uint64_t group = 1, added = 0;
    int images_only = mo_plan_family_of(m)->images;
    if (m->head == MO_PLAN_HEAD_CONTRASTIVE)
        group = 1 + r->positives + r->negatives;
    uint64_t side = m->image_size / m->patch_size;
    s->patches = side * side;
    if (images_only)
        group *= mo_max_u64(r->images, 1);
    if (m->vision_layers > 0)
        added = m->vision_tokens;
    int fits = mo_mul_u64(r->batch, group, &s->rows) && mo_mul_u64(added, r->images, &added) &&
               mo_add_u64(r->sequence, added, &s->tokens) &&
               mo_mul_u64(s->rows, mo_max_u64(r->images, 1), &s->images);
    if (images_only) {
        s->tokens = s->patches + 1;
        s->images = s->rows;
    }
    if (!fits || s->rows > MAX_ROWS || s->tokens > MAX_TOKENS)
        return mo_fail(
            MEMOPT_INVALID_ARGUMENT,
            "plan: %llu samples of %llu sequences of %llu tokens and %llu images exceed %d "
            "sequences or %d tokens; take a smaller run.batch or run.sequence",
            (unsigned long long)r->batch, (unsigned long long)group,
            (unsigned long long)r->sequence, (unsigned long long)r->images, MAX_ROWS, MAX_TOKENS);
    if (m->positions > 0 && !images_only && s->tokens > m->positions)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: %llu tokens, but the model has %llu learned positions; take a "
                       "shorter sequence",
                       (unsigned long long)s->tokens, (unsigned long long)m->positions);
    return MEMOPT_OK;
}

/* Types and counts, and what goes with what. */
static memopt_status fill_run(mo_plan_settings *s)
{
    MO_TRY(check_dtypes(&s->run));
    default_dtypes(&s->run);
    default_counts(s);
    return mo_plan_at_most("run.sequence_mean", s->run.sequence_mean, "run.sequence",
                           s->run.sequence);
}

/* A copy on the host would take the same memory a second time. */
static memopt_status check_unified(const mo_plan_settings *s)
{
    char words[64] = "";
    mo_plan_given given = {.run = s->run};
    if (s->card.unified != MO_PLAN_YES || s->run.offload == 0)
        return MEMOPT_OK;
    (void)mo_plan_key_text(mo_plan_key_of(offsetof(mo_plan_given, run.offload)), &given, words,
                           sizeof words);
    return mo_fail(
        MEMOPT_INVALID_ARGUMENT,
        "plan: run.offload is %s and card.unified is yes: what goes to the host stays in "
        "the card's memory; leave run.offload out",
        words);
}

static void read(mo_plan_settings *s, const mo_plan_model *model, const mo_plan_run *run,
                 const mo_plan_card *card)
{
    memset(s, 0, sizeof *s);
    if (model != NULL)
        s->model = *model;
    if (run != NULL)
        s->run = *run;
    if (card != NULL)
        s->card = *card;
}

memopt_status mo_plan_settings_fill(mo_plan_settings *s, const mo_plan_model *model,
                                    const mo_plan_run *run, const mo_plan_card *card)
{
    read(s, model, run, card);
    MO_TRY(mo_plan_model_fill(s));
    MO_TRY(fill_run(s));
    MO_TRY(check_unified(s));
    MO_TRY(check_quantized(s));
    MO_TRY(derive(s));
    mo_plan_card_fill(&s->card);
    return MEMOPT_OK;
}

memopt_status mo_plan_settings_fill_measured(mo_plan_settings *s, const mo_plan_model *model,
                                             const mo_plan_run *run, const mo_plan_card *card)
{
    read(s, NULL, run, card);
    MO_TRY(mo_plan_model_fill_measured(s, model));
    uint64_t sequence = s->run.sequence, mean = s->run.sequence_mean;
    MO_TRY(fill_run(s));
    MO_TRY(check_unified(s));
    s->run.sequence = sequence;
    s->run.sequence_mean = mean;
    mo_plan_card_fill(&s->card);
    return MEMOPT_OK;
}
