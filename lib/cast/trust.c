/* Trust ratios: checks, then launches over the chunks of all tensors. The device's scratch holds
 * the sums of chunks, or the rates. */
#include "kernels/trust/trust.h"
#include "base/checked.h"
#include "base/options.h"
#include "cast/gradients.h"
#include "cast/tensors.h"
#include "kernels/cast/accumulate.h"

#include <inttypes.h>

/* What a call works on. */
typedef struct call {
    memopt_device *device;
    memopt_trust what;
    const memopt_tensor *parameters, *updates;
    uint64_t count;
    const double *squares;
    memopt_stream stream;
    mo_scratch *piece;
    void *scratch;
} call;

/* --- checks ---------------------------------------------------------------------------------- */

static memopt_status check_tensors(const call *c, int moves_parameters)
{
    const memopt_tensor *written = moves_parameters ? c->parameters : c->updates;
    const memopt_tensor *read = moves_parameters ? c->updates : c->parameters;
    memopt_status status = mo_pairs_check("trust", written, read, c->count, mo_dtype_is_gradient);
    for (uint64_t i = 0; status == MEMOPT_OK && i < c->count; i++)
        if (c->updates[i].dtype != MEMOPT_DTYPE_F32)
            status =
                mo_fail(MEMOPT_UNSUPPORTED, "trust: update %" PRIu64 " is %s; f32 is supported", i,
                        memopt_dtype_name(c->updates[i].dtype));
    return status == MEMOPT_OK
               ? mo_pairs_memory_check(c->device, "trust", written, read, c->count, 0, NULL)
               : status;
}

static memopt_status check_cells(const call *c)
{
    if (c->squares == NULL || (uintptr_t)c->squares % sizeof(double) != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "trust: squares %p is NULL or not aligned to 8",
                       (const void *)c->squares);
    memopt_status status = mo_reachable(c->device, "trust: squares", 0, c->squares, 16 * c->count);
    if (status == MEMOPT_OK && (uintptr_t)c->what.found_inf % sizeof(float) != 0)
        status = mo_fail(MEMOPT_INVALID_ARGUMENT, "trust: found_inf %p is not aligned to an f32",
                         (const void *)c->what.found_inf);
    if (status == MEMOPT_OK && c->what.found_inf != NULL)
        status = mo_reachable(c->device, "trust: found_inf", 0, c->what.found_inf, sizeof(float));
    return status;
}

/* The options are read, and all is well. */
static memopt_status check(call *c, const memopt_trust *what, int moves_parameters)
{
    if (c->device == NULL || what == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "trust: %s is NULL",
                       c->device == NULL ? "device" : "what");
    if (mo_device_inherited(c->device))
        return mo_fail_inherited("trust");
    memopt_status status = mo_options_read(&c->what, sizeof c->what, what, "memopt_trust");
    const mo_value_range ranges[] = {
        {"lr", c->what.lr, 0.0, MO_F32_MOST},
        {"weight_decay", c->what.weight_decay, 0.0, MO_F32_MOST},
        {"max_ratio", c->what.max_ratio, 0.0, MO_F32_MOST},
    };
    if (status == MEMOPT_OK)
        status = mo_ranges_check("trust", ranges, sizeof ranges / sizeof ranges[0]);
    if (status == MEMOPT_OK && c->count != 0)
        status = check_tensors(c, moves_parameters);
    return status == MEMOPT_OK && c->count != 0 ? check_cells(c) : status;
}

/* --- squares --------------------------------------------------------------------------------- */

/* The total of each tensor's chunks, whose sums lie one behind the other. */
static memopt_status enqueue_totals(const call *c, double *totals)
{
    mo_trust_totals_args args = {.partials = c->scratch};
    memopt_status status = MEMOPT_OK;
    for (uint64_t next = 0; next < c->count && status == MEMOPT_OK;) {
        const uint64_t rest = c->count - next;
        const uint64_t taken = rest < MO_TRUST_TENSORS ? rest : (uint64_t)MO_TRUST_TENSORS;
        for (uint64_t i = 0; i < taken; i++)
            args.first[i + 1] = args.first[i] + mo_chunks_of(c->parameters[next + i].count);
        args.totals = totals + next;
        status = mo_launch(c->device, c->stream, &mo_kernel_trust_totals, &args, taken);
        args.first[0] = args.first[taken];
        next += taken;
    }
    return status;
}

static memopt_status enqueue_squares(const call *c, const memopt_tensor *tensors, double *totals)
{
    mo_reduce_args args = {.partials = c->scratch};
    MO_TRY(
        mo_gradients_reduce(c->device, &mo_kernel_square_sum, &args, tensors, c->count, c->stream));
    return enqueue_totals(c, totals);
}

static memopt_status enqueue_decay(const call *c)
{
    const double sign = c->what.negated ? -1.0 : 1.0;
    mo_accumulate_args decay = {.scale = (float)(sign * c->what.weight_decay),
                                .found_inf = c->what.found_inf};
    return c->what.weight_decay == 0.0
               ? MEMOPT_OK
               : mo_pairs_launch(c->device, &mo_kernel_accumulate, &decay, decay.segments,
                                 &decay.count, c->updates, c->parameters, c->count, c->stream);
}

memopt_status memopt_trust_squares(memopt_device *device, const memopt_trust *what,
                                   const memopt_tensor *parameters, const memopt_tensor *updates,
                                   uint64_t count, double *squares, memopt_stream stream)
{
    call c = {.device = device,
              .parameters = parameters,
              .updates = updates,
              .count = count,
              .squares = squares,
              .stream = stream};
    MO_TRY(check(&c, what, 0));
    if (count == 0)
        return MEMOPT_OK;
    uint64_t chunks = 0; /* of a list that passed the checks it does not overflow */
    for (uint64_t i = 0; i < count; i++)
        chunks += mo_chunks_of(parameters[i].count);
    MO_TRY(mo_scratch_take(device, chunks * sizeof(double), stream, &c.piece, &c.scratch));
    memopt_status status = enqueue_decay(&c);
    if (status == MEMOPT_OK)
        status = enqueue_squares(&c, parameters, squares);
    if (status == MEMOPT_OK)
        status = enqueue_squares(&c, updates, squares + count);
    mo_scratch_return(device, c.piece);
    return status;
}

/* --- the step -------------------------------------------------------------------------------- */

memopt_status memopt_trust_apply(memopt_device *device, const memopt_trust *what,
                                 const memopt_tensor *parameters, const memopt_tensor *updates,
                                 uint64_t count, const double *squares, memopt_stream stream)
{
    call c = {.device = device,
              .parameters = parameters,
              .updates = updates,
              .count = count,
              .squares = squares,
              .stream = stream};
    MO_TRY(check(&c, what, 1));
    if (count == 0)
        return MEMOPT_OK;
    MO_TRY(mo_scratch_take(device, count * sizeof(float), stream, &c.piece, &c.scratch));
    const mo_trust_rates_args rates = {.squares = squares,
                                       .rates = c.scratch,
                                       .scale = c.what.negated ? c.what.lr : -c.what.lr,
                                       .most = c.what.max_ratio,
                                       .count = count,
                                       .clip = c.what.clip};
    memopt_status status = mo_launch(device, stream, &mo_kernel_trust_rates, &rates,
                                     mo_ceil_div_u64(count, MO_ONE_THREADS));
    mo_accumulate_args step = {.scales = c.scratch, .found_inf = c.what.found_inf};
    if (status == MEMOPT_OK)
        status = mo_pairs_launch(device, &mo_kernel_accumulate, &step, step.segments, &step.count,
                                 parameters, updates, count, stream);
    mo_scratch_return(device, c.piece);
    return status;
}
