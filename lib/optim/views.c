/* State tensors of a parameter as the caller sees them. */
#include "optim/layout.h"

#include "base/options.h"

#include <inttypes.h>

static const char *moment_name(uint32_t kind, const mo_parameter *p, uint64_t index)
{
    static const char *const own[][3] = {
        [MEMOPT_OPTIMIZER_SGD] = {"momentum_buffer"},
        [MEMOPT_OPTIMIZER_SCHEDULE_FREE] = {"z", "exp_avg_sq"},
        [MEMOPT_OPTIMIZER_RMSPROP] = {"square_avg"},
        [MEMOPT_OPTIMIZER_ADAGRAD] = {"sum"},
        [MEMOPT_OPTIMIZER_RMSPROP_MOMENTUM] = {"momentum_buffer", "square_avg"},
        [MEMOPT_OPTIMIZER_ADEMAMIX] = {"exp_avg", "exp_avg_slow", "exp_avg_sq"},
        [MEMOPT_OPTIMIZER_ADAFACTOR] = {"variance"},
    };
    static const char *const factored[] = {"row_var", "col_var"};
    static const char *const usual[] = {"exp_avg", "exp_avg_sq"};
    if (p->columns != 0)
        return factored[index];
    const char *name = kind < sizeof own / sizeof *own ? own[kind][index] : NULL;
    return name != NULL ? name : usual[index];
}

static const char *scale_name(uint32_t format, uint64_t index)
{
    static const char *const absmax[] = {"absmax1", "absmax2", "absmax3"};
    static const char *const power[] = {"power1", "power2", "power3"};
    static const char *const companded[] = {"companded1", "companded2"};
    return format == MEMOPT_STATE_8BIT_DYNAMIC ? absmax[index]
           : mo_format_is_4bit(format)         ? companded[index]
                                               : power[index];
}

memopt_status memopt_optimizer_get_state(memopt_optimizer *o, uint64_t parameter, uint64_t index,
                                         memopt_state_view *out_view)
{
    if (o == NULL || out_view == NULL || parameter >= o->parameter_count)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer state: a pointer is NULL or there is no parameter %" PRIu64,
                       parameter);
    if (mo_device_inherited(o->device))
        return mo_fail_inherited("optimizer_get_state");
    const mo_parameter *p = &o->parameters[parameter];
    uint64_t moments = p->moments, views = mo_parameter_states(p);
    if (index >= views)
        return mo_fail(MEMOPT_NOT_FOUND,
                       "optimizer state: parameter %" PRIu64 " has %" PRIu64
                       " state tensors; index is %" PRIu64,
                       parameter, views, index);
    memopt_state_view view = {.tensor = mo_parameter_state(p, index)};
    view.name = p->split && index == views - 1 ? "weight_residual"
                : index < moments              ? moment_name(o->options.kind, p, index)
                                               : scale_name(p->format, index - moments);
    mo_state_part parts[MO_EXPORT_PARTS];
    (void)mo_state_parts(p, parts);
    view.tensor.data = parts[index].data;
    return mo_result_write(out_view, &view, sizeof view, "memopt_state_view");
}
