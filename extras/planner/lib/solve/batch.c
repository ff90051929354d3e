/* The largest micro-batch that fits, and accumulation for an effective batch. */
#include "solve/solve.h"

#include "base/checked.h"

static memopt_status fits_with(const mo_plan_case *c, uint64_t batch, int *fits)
{
    mo_plan_case at = *c;
    mo_plan_cost cost;
    at.run.batch = batch;
    MO_TRY(mo_plan_case_cost(&at, &cost));
    *fits = mo_plan_cost_fits(&cost);
    return MEMOPT_OK;
}

memopt_status mo_plan_largest_batch(const mo_plan_case *c, uint64_t most, uint64_t *batch)
{
    uint64_t fitting = 0, beyond = most + 1; /* doubles, then halves the gap */
    while (beyond - fitting > 1) {
        uint64_t doubled = fitting == 0 ? 1 : 2 * fitting;
        uint64_t next =
            beyond == most + 1 ? mo_min_u64(doubled, most) : fitting + (beyond - fitting) / 2;
        int fits = 0;
        MO_TRY(fits_with(c, next, &fits));
        if (fits)
            fitting = next;
        else
            beyond = next;
    }
    *batch = fitting;
    return MEMOPT_OK;
}

static uint64_t distance(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

mo_plan_split mo_plan_split_of(uint64_t target, uint64_t batch, uint64_t world)
{
    uint64_t step = batch * world;
    uint64_t fewer = target / step, more = fewer + 1;
    if (fewer == 0 || distance(more * step, target) < distance(fewer * step, target))
        fewer = more;
    return (mo_plan_split){batch, fewer, fewer * step};
}

mo_plan_split mo_plan_split_batch(uint64_t target, uint64_t most, uint64_t world)
{
    uint64_t per_device = target / world + (target % world != 0);
    uint64_t top = mo_min_u64(most, per_device);
    mo_plan_split best = mo_plan_split_of(target, top, world);
    /* Exact with a micro-batch that is not far smaller, else the nearest of the larger half. */
    for (uint64_t batch = top; batch > 0 && batch >= top / 4; batch--) {
        mo_plan_split s = mo_plan_split_of(target, batch, world);
        int exact = s.effective == target;
        if (exact ||
            (batch >= top / 2 && distance(s.effective, target) < distance(best.effective, target)))
            best = s;
        if (exact)
            break;
    }
    return best;
}
