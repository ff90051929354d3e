/* Step counts, which live in device memory with the states. */
#include "optim/optim.h"

#include <inttypes.h>

static memopt_status check(const memopt_optimizer *o, uint64_t parameter)
{
    if (o == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer steps: the handle is NULL");
    if (mo_device_inherited(o->device))
        return mo_fail_inherited("optimizer_steps");
    if (parameter >= o->parameter_count)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer steps: no parameter %" PRIu64 "; there are %" PRIu64, parameter,
                       o->parameter_count);
    return MEMOPT_OK;
}

memopt_status memopt_optimizer_get_steps_sync(memopt_optimizer *o, uint64_t parameter,
                                              memopt_stream stream, uint64_t *out_steps)
{
    memopt_status status = check(o, parameter);
    if (status == MEMOPT_OK && out_steps == NULL)
        status = mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer steps: out_steps is NULL");
    if (status == MEMOPT_OK)
        status = mo_optimizer_use_stream(o, stream);
    if (status == MEMOPT_OK)
        status = memopt_copy(o->device, &o->mailbox, o->parameters[parameter].device.steps,
                             sizeof o->mailbox, stream);
    if (status == MEMOPT_OK)
        status = memopt_stream_sync(o->device, stream);
    if (status == MEMOPT_OK)
        *out_steps = mo_steps_taken(o->mailbox);
    return status;
}

memopt_status memopt_optimizer_set_steps_sync(memopt_optimizer *o, uint64_t parameter,
                                              uint64_t steps, memopt_stream stream)
{
    memopt_status status = check(o, parameter);
    if (status == MEMOPT_OK && steps >= MO_STEPS_LIMIT)
        status = mo_fail(MEMOPT_INVALID_ARGUMENT,
                         "optimizer steps: %" PRIu64 "; the count must be below 2^53", steps);
    if (status == MEMOPT_OK)
        status = mo_optimizer_use_stream(o, stream);
    if (status == MEMOPT_OK)
        status = mo_upload(o, o->parameters[parameter].device.steps, &steps, sizeof steps, stream);
    if (status == MEMOPT_OK)
        status = memopt_stream_sync(o->device, stream);
    return status;
}
