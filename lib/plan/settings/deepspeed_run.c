/*
 * A run under DeepSpeed's ZeRO: what it does not have or is not planned, its types, and its
 * defaults, which are counted in elements (runtime/zero/config.py of DeepSpeed 0.19).
 */
#include "plan/settings/settings.h"

static int other_than(memopt_dtype dtype, memopt_dtype expected)
{
    return dtype != MEMOPT_DTYPE_INVALID && dtype != expected;
}

/* Types that DeepSpeed does not have, or that are not planned. */
static memopt_status check_types(const mo_plan_run *r)
{
    memopt_dtype weights = r->weight_dtype ? r->weight_dtype : MEMOPT_DTYPE_F32;
    const struct {
        const char *name;
        memopt_dtype dtype, expected;
    } all[] = {{"run.gradient_dtype", r->gradient_dtype, weights},
               {"run.adapter_dtype", r->adapter_dtype, weights},
               {"run.gather_dtype", r->gather_dtype, weights},
               {"run.compute_dtype", r->compute_dtype, weights},
               {"run.master_dtype", r->master_dtype, MEMOPT_DTYPE_F32},
               {"run.state_dtype", r->state_dtype, MEMOPT_DTYPE_F32}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (other_than(all[i].dtype, all[i].expected))
            return mo_fail(
                MEMOPT_UNSUPPORTED,
                "plan: %s is %s, but DeepSpeed uses %s over weights of %s; leave it out, or "
                "plan with torch's own ZeRO",
                all[i].name, mo_plan_dtype_word(all[i].dtype), mo_plan_dtype_word(all[i].expected),
                mo_plan_dtype_word(weights));
    return MEMOPT_OK;
}

static memopt_status check_rest(const mo_plan_run *r)
{
    if (r->optimizer == MO_PLAN_NO_OPTIMIZER)
        return mo_fail(
            MEMOPT_INVALID_ARGUMENT,
            "plan: DeepSpeed's ZeRO %u divides an optimizer's states, but run.optimizer is none",
            (unsigned)r->sharding);
    if (r->bucket_view == MO_PLAN_YES)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: run.bucket_view is an option of DDP's buckets; leave it out with "
                       "DeepSpeed");
    if (r->offload & MO_PLAN_OFFLOAD_OPTIMIZER)
        return mo_fail(
            MEMOPT_UNSUPPORTED,
            "plan: run.offload has optimizer, which is not planned with DeepSpeed; leave it out, "
            "or plan with torch's own ZeRO");
    return MEMOPT_OK;
}

memopt_status mo_plan_deepspeed_check(const mo_plan_run *r)
{
    if (r->zero_engine != MO_PLAN_ENGINE_DEEPSPEED)
        return MEMOPT_OK;
    if (r->sharding == MO_PLAN_DDP)
        return mo_fail(
            MEMOPT_INVALID_ARGUMENT,
            "plan: run.zero_engine is deepspeed, but run.sharding is ddp; give zero1, zero2 or "
            "zero3");
    MO_PLAN_TRY(check_types(r));
    return check_rest(r);
}

void mo_plan_deepspeed_dtypes(mo_plan_run *r)
{
    r->adapter_dtype = r->gradient_dtype = r->gather_dtype = r->weight_dtype;
    r->compute_dtype = 0;
    r->master_dtype = r->state_dtype = MEMOPT_DTYPE_F32;
}

void mo_plan_deepspeed_counts(mo_plan_run *r)
{
    if (r->bucket_bytes == 0)
        r->bucket_bytes = UINT64_C(500000000) * memopt_dtype_size(r->weight_dtype);
    if (r->overlap_comm == MO_PLAN_DEFAULT)
        r->overlap_comm = r->sharding == MO_PLAN_ZERO3 ? MO_PLAN_YES : MO_PLAN_NO;
}
