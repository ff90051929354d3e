/* Plans of bytes that were measured or traced elsewhere: phases, overhead, peak and what fits. */
#include "plan/plan.h"

#include "base/checked.h"

static memopt_status add_up(memopt_plan_bytes *b)
{
    const uint64_t live[] = {b->gradients, b->optimizer, b->activations, b->logits, b->batch};
    b->overhead = 0;
    b->total = b->parameters;
    for (size_t i = 0; i < sizeof live / sizeof *live; i++)
        if (!mo_add_u64(b->total, live[i], &b->total))
            return mo_fail(MEMOPT_INVALID_ARGUMENT,
                           "plan: the measured bytes of a phase do not fit 64 bits");
    return MEMOPT_OK;
}

memopt_status mo_plan_measured(memopt_plan *plan, const memopt_plan_bytes *phases)
{
    memopt_plan_report *r = &plan->report;
    const memopt_plan_run *run = &plan->settings.run;
    r->struct_size = sizeof *r;
    for (uint32_t i = 0; i < MEMOPT_PLAN_PHASES; i++) {
        r->phases[i] = phases[i];
        memopt_status status = add_up(&r->phases[i]);
        if (status != MEMOPT_OK)
            return status;
    }
    mo_plan_moments(plan);
    mo_plan_tell_peak(plan, "");
    r->samples = run->batch * run->accumulation * run->world_size;
    r->time_factor = r->recompute_factor = r->offload_factor = 1;
    return MEMOPT_OK;
}

memopt_status memopt_plan_create_measured(const memopt_plan_bytes *phases,
                                          const memopt_plan_run *run, const memopt_plan_card *card,
                                          memopt_plan **out_plan)
{
    if (phases == NULL || out_plan == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: phases or the result pointer is NULL");
    memopt_plan *plan = mo_calloc(1, sizeof *plan);
    if (plan == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memopt_status status = mo_settings_measured(&plan->settings, run, card);
    if (status == MEMOPT_OK)
        status = mo_plan_measured(plan, phases);
    if (status == MEMOPT_OK)
        *out_plan = plan;
    else
        mo_free(plan);
    return status;
}
