/*
 * A run under DeepSpeed's ZeRO: what it does not have or is not told of here, its types, and its
 * defaults, which are counted in elements (runtime/zero/config.py of DeepSpeed 0.19).
 */
#include "plan/settings.h"

/* More elements than that are a mistake. */
#define MOST_ELEMENTS (UINT64_C(1) << 48)

static memopt_status check_counts(const memopt_plan_run *r)
{
    const struct {
        const char *name;
        uint64_t value, nothing;
    } all[] = {{"prefetch_bucket", r->prefetch_bucket, 1},
               {"persistence_threshold", r->persistence_threshold, 1},
               {"live_parameters", r->live_parameters, 1},
               {"reuse_distance", r->reuse_distance, 1},
               {"sub_group", r->sub_group, 0}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].nothing && all[i].value == MEMOPT_PLAN_NOTHING)
            continue;
        memopt_status status = mo_settings_range(all[i].name, all[i].value, 0, MOST_ELEMENTS);
        if (status != MEMOPT_OK)
            return status;
    }
    return MEMOPT_OK;
}

static int other_than(memopt_dtype dtype, memopt_dtype expected)
{
    return dtype != MEMOPT_DTYPE_INVALID && dtype != expected;
}

/* Types that DeepSpeed does not have, or with settings of which nothing is told. */
static memopt_status check_types(const memopt_plan_run *r)
{
    memopt_dtype weights = r->weight_dtype ? r->weight_dtype : MEMOPT_DTYPE_F32;
    const struct {
        const char *name;
        memopt_dtype dtype, expected;
    } all[] = {{"gradient_dtype", r->gradient_dtype, weights},
               {"adapter_dtype", r->adapter_dtype, weights},
               {"gather_dtype", r->gather_dtype, weights},
               {"compute_dtype", r->compute_dtype, weights},
               {"master_dtype", r->master_dtype, MEMOPT_DTYPE_F32},
               {"state_dtype", r->state_dtype, MEMOPT_DTYPE_F32}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (other_than(all[i].dtype, all[i].expected))
            return mo_fail(
                MEMOPT_UNSUPPORTED,
                "plan: %s is %s with DeepSpeed over weights of %s, where it is %s; leave "
                "it out, or plan with torch's own ZeRO",
                all[i].name, memopt_dtype_name(all[i].dtype), memopt_dtype_name(weights),
                memopt_dtype_name(all[i].expected));
    return MEMOPT_OK;
}

static memopt_status check_rest(const memopt_plan_run *r)
{
    if (r->optimizer == MEMOPT_PLAN_NO_OPTIMIZER)
        return mo_fail(
            MEMOPT_INVALID_ARGUMENT,
            "plan: DeepSpeed's ZeRO %u shares out an optimizer's states, but there is no "
            "optimizer",
            (unsigned)r->sharding);
    if (r->bucket_view == MEMOPT_PLAN_YES)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: bucket_view is of DDP's buckets; DeepSpeed has its own "
                       "(contiguous_gradients)");
    if (r->offload & MEMOPT_PLAN_OFFLOAD_OPTIMIZER)
        return mo_fail(
            MEMOPT_UNSUPPORTED,
            "plan: DeepSpeed's offload of optimizer states is not told of; leave it out, "
            "or plan with torch's own ZeRO");
    if (r->sharding == MEMOPT_PLAN_ZERO3 && r->checkpointing == MEMOPT_PLAN_CHECKPOINT_BUDGET)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "plan: checkpoints by budget are not told of with DeepSpeed's ZeRO 3, which "
                       "gathers weights by the order of layers; take full checkpointing");
    return MEMOPT_OK;
}

memopt_status mo_settings_deepspeed(const memopt_plan_run *r)
{
    if (r->zero_engine != MEMOPT_PLAN_ENGINE_DEEPSPEED)
        return MEMOPT_OK;
    if (r->sharding == MEMOPT_PLAN_DDP)
        return mo_fail(
            MEMOPT_INVALID_ARGUMENT,
            "plan: zero_engine is DeepSpeed with sharding 0; give a stage of ZeRO from 1 "
            "to 3");
    memopt_status status = check_counts(r);
    if (status == MEMOPT_OK)
        status = check_types(r);
    return status == MEMOPT_OK ? check_rest(r) : status;
}

void mo_settings_deepspeed_dtypes(memopt_plan_run *r)
{
    r->adapter_dtype = r->gradient_dtype = r->gather_dtype = r->weight_dtype;
    r->compute_dtype = 0;
    r->master_dtype = r->state_dtype = MEMOPT_DTYPE_F32;
}

static void fill(uint64_t *value, uint64_t elements)
{
    if (*value == 0)
        *value = elements;
}

void mo_settings_deepspeed_counts(memopt_plan_run *r)
{
    fill(&r->bucket_bytes, UINT64_C(500000000) * memopt_dtype_size(r->weight_dtype));
    fill(&r->prefetch_bucket, 50000000);
    fill(&r->persistence_threshold, 100000);
    fill(&r->live_parameters, 1000000000);
    fill(&r->reuse_distance, 1000000000);
    fill(&r->sub_group, 1000000000);
    if (r->contiguous_gradients == MEMOPT_PLAN_DEFAULT)
        r->contiguous_gradients = MEMOPT_PLAN_YES;
    if (r->overlap_comm == MEMOPT_PLAN_DEFAULT)
        r->overlap_comm = r->sharding == MEMOPT_PLAN_ZERO3 ? MEMOPT_PLAN_YES : MEMOPT_PLAN_NO;
}
