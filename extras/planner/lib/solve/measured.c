/* Plans of bytes that were measured or traced elsewhere: phases, overhead, peak and what fits. */
#include "solve/plan.h"

#include "base/checked.h"

#include <stdio.h>

static memopt_status add_up(mo_plan_bytes *b)
{
    const uint64_t live[] = {b->gradients, b->optimizer, b->activations, b->logits, b->batch};
    b->total = b->parameters;
    for (size_t i = 0; i < sizeof live / sizeof *live; i++)
        if (!mo_add_u64(b->total, live[i], &b->total))
            return mo_fail(MEMOPT_INVALID_ARGUMENT,
                           "plan: the measured bytes of a phase do not fit 64 bits");
    return MEMOPT_OK;
}

/* Of a step, beside one without: backward takes two thirds of it, and layers that run again a part
 * of the rest. How many bytes go to the host and how long the step computes is not known: copies
 * take what they take of a Llama of a billion weights at 60 TFLOP/s and 12 GB/s. */
double mo_plan_measured_time(const mo_plan_run *run)
{
    double factor = run->checkpointing == MO_PLAN_CHECKPOINT_FULL ? 4.0 / 3 : 1;
    if (run->checkpointing == MO_PLAN_CHECKPOINT_EVERY)
        factor += (1 - 1 / (double)run->checkpoint_every) / 3;
    if (run->offload & MO_PLAN_OFFLOAD_ACTIVATIONS)
        factor += 2;
    return run->offload & MO_PLAN_OFFLOAD_OPTIMIZER ? factor + 0.1 : factor;
}

memopt_status mo_plan_estimate_measured(mo_plan_estimate *e, const mo_plan_bytes *phases)
{
    mo_plan_report *r = &e->report;
    const mo_plan_run *run = &e->settings.run;
    for (uint32_t i = 0; i < MO_PLAN_PHASES; i++) {
        r->phases[i] = phases[i];
        MO_TRY(add_up(&r->phases[i]));
    }
    mo_plan_fill_moments(e);
    mo_plan_fill_peak_reason(e, "");
    r->samples = run->batch * run->accumulation * run->world_size;
    r->time_factor = mo_plan_measured_time(run);
    (void)snprintf(r->time_assumption, sizeof r->time_assumption,
                   "backward takes twice forward; activations to the host are taken to triple a "
                   "step, states to add a tenth");
    return MEMOPT_OK;
}
