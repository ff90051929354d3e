/* Which engine runs a step. */
#include "parallel/parallel.h"

const mo_plan_engine *mo_plan_engine_of(const mo_plan_run *r)
{
    if (r->world_size < 2)
        return &mo_plan_engine_none;
    return r->sharding >= MO_PLAN_ZERO2 ? &mo_plan_engine_fsdp : &mo_plan_engine_ddp;
}
