/* Adding a parameter, with states of the allocator or in the caller's memory. */
#include "optim/optim.h"

#include "base/options.h"

#include <inttypes.h>

static memopt_status check_state(const mo_parameter *p, uint64_t parameter, uint64_t index,
                                 const memopt_tensor *state, const memopt_tensor *want)
{
    if (state->data == NULL && want->count != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer: state %" PRIu64 " of parameter %" PRIu64 ": data is NULL", index,
                       parameter);
    if (state->dtype != want->dtype || state->count != want->count)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer: state %" PRIu64 " of parameter %" PRIu64 " is %" PRIu64
                       " elements of %s; with %" PRIu64 " elements in state format %" PRIu32
                       " it must be %" PRIu64 " of %s",
                       index, parameter, state->count, memopt_dtype_name(state->dtype),
                       p->tensor.count, p->format, want->count, memopt_dtype_name(want->dtype));
    if ((uintptr_t)state->data % memopt_dtype_size(state->dtype) != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer: state %" PRIu64 " of parameter %" PRIu64 ": address %p is not a "
                       "multiple of its element size %" PRIu64,
                       index, parameter, state->data, memopt_dtype_size(state->dtype));
    return MEMOPT_OK;
}

/* Checks overlap with the parameter, its copy and earlier parts; parts is steps, then the
 * states. */
static memopt_status check_apart(const mo_parameter *p, uint64_t parameter,
                                 const memopt_tensor *part, const memopt_tensor *before,
                                 uint64_t count)
{
    int overlaps =
        mo_optim_tensors_overlap(part, &p->tensor) || mo_optim_tensors_overlap(part, &p->copy);
    for (uint64_t i = 0; i < count; i++)
        overlaps = overlaps || mo_optim_tensors_overlap(part, &before[i]);
    return overlaps ? mo_fail(MEMOPT_INVALID_ARGUMENT,
                              "optimizer: states of parameter %" PRIu64 " at %p overlap one "
                              "another, its step count, the parameter or its model copy",
                              parameter, part->data)
                    : MEMOPT_OK;
}

static memopt_status check_states(const memopt_optimizer *o, const mo_parameter *p,
                                  const memopt_tensor *states, uint64_t count, uint64_t *steps)
{
    uint64_t index = o->parameter_count, wanted = mo_parameter_states(p);
    memopt_tensor parts[1 + MO_STATES_MAX];
    if (count != wanted)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer: %" PRIu64 " states for parameter %" PRIu64 "; in state format "
                       "%" PRIu32 " it has %" PRIu64,
                       count, index, p->format, wanted);
    if ((uintptr_t)steps % sizeof *steps != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer: steps of parameter %" PRIu64 " at %p are not aligned to a u64",
                       index, (const void *)steps);
    parts[0] = (memopt_tensor){steps, sizeof *steps, MEMOPT_DTYPE_U8};
    memopt_status status = check_apart(p, index, &parts[0], parts, 0);
    if (status == MEMOPT_OK)
        status =
            mo_optim_tensor_reachable(o->device, "optimizer: steps of parameter", index, parts);
    for (uint64_t i = 0; i < count && status == MEMOPT_OK; i++) {
        memopt_tensor want = mo_parameter_state(p, i);
        status = check_state(p, index, i, &states[i], &want);
        if (status == MEMOPT_OK)
            status = check_apart(p, index, &states[i], parts, i + 1);
        if (status == MEMOPT_OK && want.count != 0)
            status = mo_optim_tensor_reachable(o->device, "optimizer: a state of parameter", index,
                                               &states[i]);
        parts[i + 1] = states[i];
    }
    return status;
}

/* Appends it with states in the caller's memory. */
static memopt_status add_external(memopt_optimizer *o, mo_parameter *p,
                                  const memopt_parameter_options *options, uint64_t *out_index)
{
    const memopt_tensor *states = options->states;
    void *places[MO_STATES_MAX];
    if (p->moments == 0 && options->state_count > (p->split != 0))
        p->moments = 1; /* a buffer from when there was a momentum */
    if (p->moments == 0 || (options->state_count != 0 && states[0].dtype == MEMOPT_DTYPE_F32))
        p->format = MEMOPT_STATE_F32;
    MO_TRY(check_states(o, p, states, options->state_count, options->steps));
    for (uint64_t i = 0; i < options->state_count; i++)
        places[i] = states[i].data;
    mo_parameter_describe(p, places, options->steps);
    mo_parameter_append(o, p, out_index);
    return MEMOPT_OK;
}

memopt_status memopt_optimizer_add_parameter(memopt_optimizer *o, uint32_t group,
                                             const memopt_tensor *parameter,
                                             const memopt_parameter_options *options,
                                             memopt_stream stream, uint64_t *out_index)
{
    memopt_parameter_options given;
    if (o == NULL || parameter == NULL || out_index == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer: %s is NULL",
                       o == NULL           ? "the handle"
                       : parameter == NULL ? "parameter"
                                           : "out_index");
    if (mo_device_inherited(o->device))
        return mo_fail_inherited("optimizer_add_parameter");
    MO_TRY(mo_options_read(&given, sizeof given, options, "memopt_parameter_options"));
    if (given.state_count != 0 && (given.states == NULL || given.steps == NULL))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer: state_count is %" PRIu64 ", but %s is NULL", given.state_count,
                       given.states == NULL ? "states" : "steps");
    const memopt_tensor *copy = &given.model_copy;
    if ((copy->data == NULL || parameter->count == 0) && copy->count == 0) {
        given.model_copy.data = NULL;
        copy = NULL;
    }
    MO_TRY(mo_parameter_check(o, group, parameter, copy, &given.shard));
    MO_TRY(mo_matrices_check(o, parameter, &given));
    MO_TRY(mo_parameter_room(o));
    mo_parameter p = mo_parameter_of(o, group, parameter, &given);
    MO_TRY(mo_optimizer_use_stream(o, stream));
    return given.steps != NULL ? add_external(o, &p, &given, out_index)
                               : mo_parameter_add(o, &p, stream, out_index);
}
