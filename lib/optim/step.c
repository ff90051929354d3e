/*
 * One step. Everything that can fail on the host comes first; then, in stream order: tables that
 * changed, the reductions (if a verdict or a norm is asked for), the prologue, and as the very last
 * launch the update, the only one that writes parameters, states and step counts.
 */
#include "optim/optim.h"

#include "kernels/reduce/reduce.h"

#include "base/checked.h"
#include "base/memory.h"
#include "base/options.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* The one float that a step reads or writes in the caller's or a scaler's memory. */
static memopt_status check_scalar(const memopt_optimizer *o, const char *subject, const float *at)
{
    return at == NULL ? MEMOPT_OK : mo_reachable(o->device, subject, 0, at, sizeof *at);
}

/* What belongs to the halves of a step of trust. */
static memopt_status check_half(const memopt_optimizer *o, const memopt_step_options *s)
{
    if (s->squares == NULL && s->half == 0)
        return MEMOPT_OK;
    if (!o->options.trust || s->half < 1 || s->half > 2 || s->squares == NULL ||
        (uintptr_t)s->squares % sizeof(double) != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer step: half is %" PRIu32 ", squares %p, trust %" PRIu32
                       "; with trust half is 1 or 2 and squares is aligned to an f64",
                       s->half, (void *)s->squares, o->options.trust);
    if (s->half == 2 && !o->halfway)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer step: half is 2, but no first half was made since the last step");
    return mo_reachable(o->device, "optimizer step: squares", 0, s->squares,
                        2 * o->parameter_count * sizeof(double));
}

static memopt_status check_scalars(const memopt_optimizer *o, const memopt_step_options *s)
{
    memopt_status status = check_scalar(o, "optimizer step: out_norm", s->out_norm);
    if (status == MEMOPT_OK)
        status = check_scalar(o, "optimizer step: grad_scale", s->grad_scale);
    if (status == MEMOPT_OK)
        status = check_scalar(o, "optimizer step: found_inf", s->found_inf);
    if (status == MEMOPT_OK && s->square_sum != NULL)
        status = mo_reachable(o->device, "optimizer step: square_sum", 0, s->square_sum,
                              sizeof *s->square_sum);
    return status != MEMOPT_OK ? status
                               : check_scalar(o, "optimizer step: the scale of scaler",
                                              memopt_scaler_get_scale(s->scaler));
}

/* What asks for the total of squares: clipping, a norm or a check. */
static int has_verdict(const memopt_step_options *s)
{
    return s->skip_non_finite || s->scaler != NULL || s->max_norm > 0.0;
}

static int wants_sum(const memopt_step_options *s)
{
    const int norm = s->max_norm > 0.0 || s->out_norm != NULL;
    return s->square_sum == NULL && (norm || (!s->already_unscaled && has_verdict(s)));
}

/* Sums over the shards of one process say nothing of all. */
static memopt_status check_sums(const memopt_optimizer *o, const memopt_step_options *s)
{
    if (o->is_cut && s->half != 2 && wants_sum(s))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer step: parameters are shards, so max_norm (%g), skip_non_finite "
                       "(%" PRIu32 "), a scaler and out_norm need square_sum, the sum over all "
                       "processes",
                       s->max_norm, s->skip_non_finite);
    if (o->is_cut && o->options.trust && s->half == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer step: parameters are shards, so trust needs two halves, with "
                       "squares added up over all processes");
    return MEMOPT_OK;
}

static memopt_status check_options(const memopt_optimizer *o, const memopt_step_options *s)
{
    if (!isfinite(s->max_norm) || s->max_norm < 0.0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer step: max_norm is %g; it must be finite and at least 0",
                       s->max_norm);
    if (s->skip_non_finite > 1 || s->already_unscaled > 1)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer step: skip_non_finite is %" PRIu32 ", already_unscaled %" PRIu32
                       "; each must be 0 or 1",
                       s->skip_non_finite, s->already_unscaled);
    if (s->already_unscaled && s->scaler == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer step: already_unscaled needs the scaler whose flag holds the "
                       "verdict");
    if ((uintptr_t)s->out_norm % sizeof(float) != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer step: out_norm %p is not aligned to an f32",
                       (const void *)s->out_norm);
    if (s->scaler != NULL && (s->grad_scale != NULL || s->found_inf != NULL))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer step: grad_scale and found_inf are for steps without a scaler");
    if ((uintptr_t)s->grad_scale % sizeof(float) != 0 ||
        (uintptr_t)s->found_inf % sizeof(float) != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer step: grad_scale %p or found_inf %p is not aligned to an f32",
                       (const void *)s->grad_scale, (const void *)s->found_inf);
    if ((uintptr_t)s->square_sum % sizeof(double) != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer step: square_sum %p is not aligned to an f64",
                       (const void *)s->square_sum);
    if (s->square_sum != NULL && s->already_unscaled)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer step: square_sum is of gradients as they are, already_unscaled "
                       "for a verdict that was made before");
    MO_TRY(check_half(o, s));
    MO_TRY(check_sums(o, s));
    return check_scalars(o, s);
}

static memopt_status check_gradient(const mo_parameter *p, uint64_t index, const memopt_tensor *g)
{
    memopt_status status =
        mo_optim_tensor_check("optimizer step: gradient", index, g, p->tensor.count);
    if (status != MEMOPT_OK)
        return status;
    if (g->count != p->tensor.count)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer step: gradient %" PRIu64 " has %" PRIu64
                       " elements, its parameter %" PRIu64,
                       index, g->count, p->tensor.count);
    int in_place =
        g->data == p->copy.data && memopt_dtype_size(g->dtype) == memopt_dtype_size(p->copy.dtype);
    if (mo_optim_tensors_overlap(g, &p->tensor) ||
        (!in_place && mo_optim_tensors_overlap(g, &p->copy)))
        return mo_fail(
            MEMOPT_INVALID_ARGUMENT,
            "optimizer step: gradient %" PRIu64 " overlaps its parameter or its model copy", index);
    return MEMOPT_OK;
}

/* An address that is the same as in the last step was checked then. */
static memopt_status check_memory(const memopt_optimizer *o, uint64_t index, uint64_t place,
                                  const memopt_tensor *g)
{
    const mo_tensor_segment *last = place < o->segment_count ? &o->segments[place] : NULL;
    if (last != NULL && last->data == g->data && last->count == g->count &&
        last->dtype == (uint32_t)g->dtype)
        return MEMOPT_OK;
    return mo_optim_tensor_reachable(o->device, "optimizer step: gradient", index, g);
}

/* Every gradient, for steps of all pages. */
#define ALL_PAGES UINT64_MAX

/* Fills o->next with the gradients of a page that are not NULL; *out_chunks counts their chunks. */
static memopt_status gather(memopt_optimizer *o, const memopt_tensor *gradients, uint64_t page,
                            uint64_t *out_count, uint64_t *out_chunks)
{
    uint64_t count = 0, chunks = 0;
    if (!mo_grow((void **)&o->next, &o->next_capacity, o->parameter_count, sizeof *o->next))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    for (uint64_t i = 0; i < o->parameter_count; i++) {
        const memopt_tensor *g = &gradients[i];
        if (g->data == NULL || (page != ALL_PAGES && o->parameters[i].page != page))
            continue;
        memopt_status status = check_gradient(&o->parameters[i], i, g);
        if (status == MEMOPT_OK && g->count == 0) /* of an empty shard */
            continue;
        if (status == MEMOPT_OK)
            status = check_memory(o, i, count, g);
        if (status != MEMOPT_OK)
            return status;
        o->next[count++] =
            (mo_tensor_segment){g->data, g->count, chunks, (uint32_t)g->dtype, (uint32_t)i};
        chunks += mo_chunks_of(g->count);
    }
    *out_count = count;
    *out_chunks = chunks;
    return MEMOPT_OK;
}

/* Moments that were not needed when a parameter was added, or at its last step. */
static memopt_status grow_states(memopt_optimizer *o, const memopt_tensor *gradients,
                                 memopt_stream stream)
{
    memopt_status status = MEMOPT_OK;
    for (uint64_t i = 0; i < o->parameter_count && status == MEMOPT_OK; i++) {
        const mo_parameter *p = &o->parameters[i];
        if (p->moments == 0 && gradients[i].data != NULL && mo_optimizer_moments(o, p->group) != 0)
            status = mo_parameter_grow(o, i, stream);
    }
    return status;
}

static memopt_status upload_tables(memopt_optimizer *o, uint64_t count, memopt_stream stream)
{
    memopt_status status =
        mo_table_reserve(o, &o->coef_table, mo_max_u64(count, 8) * sizeof(mo_rule_coef), stream);
    if (status == MEMOPT_OK)
        status = mo_table_reserve(o, &o->control, sizeof(mo_optim_control), stream);
    if (status == MEMOPT_OK)
        status = mo_upload_tensors(o, stream);
    if (status == MEMOPT_OK)
        status = mo_upload_groups(o, stream);
    if (status == MEMOPT_OK)
        status = mo_upload_segments(o, count, stream);
    return status;
}

/* The total of squares of all gradients; *out_sum is its address. */
static memopt_status reduce(memopt_optimizer *o, uint64_t count, uint64_t chunks,
                            memopt_stream stream, const double **out_sum)
{
    uint64_t bytes = mo_total_scratch(chunks) * sizeof(double);
    memopt_status status = mo_table_reserve(o, &o->scratch, bytes, stream);
    if (status != MEMOPT_OK)
        return status;
    double *scratch = o->scratch.data;
    mo_reduce_args args = {
        .table = o->segment_table.data, .partials = scratch, .count = (uint32_t)count};
    status = mo_launch(o->device, stream, &mo_kernel_square_sum, &args, chunks);
    return status == MEMOPT_OK ? mo_launch_sum(o->device, stream, scratch, chunks, out_sum)
                               : status;
}

static memopt_status find_square_sum(memopt_optimizer *o, const memopt_step_options *s,
                                     uint64_t count, uint64_t chunks, memopt_stream stream,
                                     const double **out_sum)
{
    *out_sum = s->square_sum;
    return wants_sum(s) && chunks != 0 ? reduce(o, count, chunks, stream, out_sum) : MEMOPT_OK;
}

/* Tells the finder of races what the launches of a step use. The second half of one reads neither
 * gradients nor states, the first one writes no parameter. */
static void tell_uses(memopt_optimizer *o, const memopt_step_options *s, uint64_t count,
                      memopt_stream stream)
{
    static const char what[] = "optimizer step";
    const float *scale = s->scaler != NULL ? memopt_scaler_get_scale(s->scaler) : s->grad_scale;
    const float *found = s->scaler != NULL ? memopt_scaler_get_found_inf(s->scaler) : s->found_inf;
    if (!mo_device_finds_races(o->device))
        return;
    for (uint64_t i = 0; i < count; i++) {
        const mo_tensor_segment *g = &o->segments[i];
        const mo_parameter *p = &o->parameters[g->number];
        const memopt_tensor gradient = {g->data, g->count, (memopt_dtype)g->dtype};
        memopt_state_view view = MEMOPT_STATE_VIEW_INIT;
        mo_tensor_used(o->device, what, &p->tensor, s->half != 1, stream);
        if (s->half != 1)
            mo_tensor_used(o->device, what, &p->copy, 1, stream);
        if (s->half == 2)
            continue;
        mo_tensor_used(o->device, what, &gradient, 0, stream);
        if (o->options.page_bytes != 0)
            mo_writes(o->device, stream, what, o->pages.areas[p->page % 2], o->pages.area_bytes);
        for (uint64_t k = 0; k < mo_parameter_states(p) && o->options.page_bytes == 0; k++)
            if (memopt_optimizer_get_state(o, g->number, k, &view) == MEMOPT_OK)
                mo_tensor_used(o->device, what, &view.tensor, 1, stream);
    }
    if (s->half == 2)
        return;
    mo_reads(o->device, stream, what, s->already_unscaled ? NULL : scale, sizeof *scale);
    mo_reads(o->device, stream, what, found, sizeof *found);
    mo_reads(o->device, stream, what, s->square_sum, sizeof *s->square_sum);
    mo_writes(o->device, stream, what, s->out_norm, sizeof *s->out_norm);
}

/* The kernel of the uploaded segments, whose types it may be made for. */
static const mo_kernel *kernel_of(const memopt_optimizer *o, uint64_t count)
{
    const mo_kernel *kernel = mo_optimizer_kernel(o->options.kind, o->options.state_format);
    mo_step_types types = MO_TYPES_ANY;
    for (uint64_t i = 0; i < count; i++) {
        const mo_tensor_segment *g = &o->segments[i];
        mo_step_types own = mo_step_types_of(&o->parameters[g->number].device, g->dtype,
                                             o->options.stochastic_rounding != 0);
        if (own == MO_TYPES_ANY || (i != 0 && own != types))
            return kernel;
        types = own;
    }
    return types == MO_TYPES_ANY ? kernel : &kernel->typed[types - 1];
}

/* Launches the prologue and the update of the uploaded segments. */
static memopt_status launch(memopt_optimizer *o, const memopt_step_options *s,
                            const double *square_sum, uint64_t count, uint64_t chunks,
                            memopt_stream stream)
{
    mo_optim_prologue_args prologue = {
        .tensors = o->tensor_table.data,
        .gradients = o->segment_table.data,
        .groups = o->group_table.data,
        .coefs = o->coef_table.data,
        .control = o->control.data,
        .square_sum = square_sum,
        .scale = s->already_unscaled ? NULL
                 : s->scaler != NULL ? memopt_scaler_get_scale(s->scaler)
                                     : s->grad_scale,
        .found_inf = s->scaler != NULL ? memopt_scaler_get_found_inf(s->scaler) : s->found_inf,
        .out_norm = s->out_norm,
        .max_norm = s->max_norm,
        .count = (uint32_t)count,
        .check = (uint32_t)has_verdict(s),
        .rule = o->options.kind,
        .trust = o->options.trust,
    };
    tell_uses(o, s, count, stream);
    memopt_status status = mo_launch(o->device, stream, &mo_kernel_optim_prologue, &prologue, 1);
    if (status != MEMOPT_OK)
        return status;
    if (o->options.kind == MEMOPT_OPTIMIZER_ADAFACTOR)
        return mo_adafactor_launch(o, stream);
    if (o->options.trust)
        return mo_trust_launch(o, s, stream);
    mo_optim_step_args step = {
        .tensors = prologue.tensors,
        .gradients = prologue.gradients,
        .coefs = prologue.coefs,
        .control = prologue.control,
        .seed = o->options.seed,
        .count = (uint32_t)count,
        .stochastic = o->options.stochastic_rounding,
    };
    return mo_launch(o->device, stream, kernel_of(o, count), &step, chunks);
}

static memopt_status step_page(memopt_optimizer *o, const memopt_tensor *gradients, uint64_t page,
                               const memopt_step_options *s, const double *square_sum,
                               memopt_stream stream)
{
    uint64_t count = 0, chunks = 0;
    memopt_status status = gather(o, gradients, page, &count, &chunks);
    if (status != MEMOPT_OK || count == 0)
        return status;
    status = mo_upload_segments(o, count, stream);
    if (status == MEMOPT_OK)
        status = mo_paged_bring(o, page, count, stream);
    if (status != MEMOPT_OK)
        return status;
    o->pages.torn = 1; /* until all pages are on their way back */
    status = launch(o, s, square_sum, count, chunks, stream);
    return status == MEMOPT_OK ? mo_paged_return(o, page, count, stream) : status;
}

static memopt_status step_pages(memopt_optimizer *o, const memopt_tensor *gradients,
                                const memopt_step_options *s, const double *square_sum,
                                memopt_stream stream)
{
    memopt_status status = mo_paged_begin(o, stream);
    for (uint64_t page = 0; page < o->pages.count && status == MEMOPT_OK; page++)
        status = step_page(o, gradients, page, s, square_sum, stream);
    if (status == MEMOPT_OK)
        status = mo_paged_end(o, stream);
    if (status == MEMOPT_OK)
        o->pages.torn = 0;
    return status;
}

/* The second half of a step of `count` gradients, which are gathered. */
static memopt_status finish(memopt_optimizer *o, const memopt_step_options *s, uint64_t count,
                            memopt_stream stream)
{
    if (count != o->segment_count ||
        (count != 0 && memcmp(o->next, o->segments, (size_t)count * sizeof *o->next) != 0))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer step: half is 2 of %" PRIu64
                       " gradients, which are not the %" PRIu64 " of the first half",
                       count, o->segment_count);
    MO_TRY(mo_optimizer_use_stream(o, stream));
    tell_uses(o, s, count, stream);
    return mo_trust_launch(o, s, stream);
}

memopt_status memopt_optimizer_step(memopt_optimizer *o, const memopt_tensor *gradients,
                                    uint64_t count, const memopt_step_options *options,
                                    memopt_stream stream)
{
    memopt_step_options s;
    const double *square_sum = NULL;
    uint64_t present, chunks;
    if (o == NULL || (gradients == NULL && count != 0))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer step: %s is NULL",
                       o == NULL ? "the handle" : "gradients");
    if (mo_device_inherited(o->device))
        return mo_fail_inherited("optimizer_step");
    if (count != o->parameter_count)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer step: %" PRIu64 " gradients for %" PRIu64 " parameters", count,
                       o->parameter_count);
    memopt_status status = mo_options_read(&s, sizeof s, options, "memopt_step_options");
    if (status == MEMOPT_OK)
        status = check_options(o, &s);
    if (status == MEMOPT_OK)
        status = mo_paged_check(o, "optimizer step");
    if (status == MEMOPT_OK)
        status = gather(o, gradients, ALL_PAGES, &present, &chunks);
    if (status == MEMOPT_OK && s.half == 2)
        return finish(o, &s, present, stream);
    if (status == MEMOPT_OK)
        status = mo_optimizer_use_stream(o, stream);
    if (status == MEMOPT_OK)
        status = grow_states(o, gradients, stream);
    if (status == MEMOPT_OK && o->options.page_bytes != 0)
        status = mo_paged_prepare(o, stream);
    if (status == MEMOPT_OK)
        status = upload_tables(o, present, stream);
    if (status == MEMOPT_OK && o->options.kind == MEMOPT_OPTIMIZER_ADAFACTOR)
        status = mo_adafactor_prepare(o, stream);
    if (status == MEMOPT_OK && o->options.trust)
        status = mo_trust_prepare(o, &s, stream);
    if (status == MEMOPT_OK)
        status = find_square_sum(o, &s, present, chunks, stream, &square_sum);
    if (status != MEMOPT_OK)
        return status;
    return o->options.page_bytes != 0 ? step_pages(o, gradients, &s, square_sum, stream)
                                      : launch(o, &s, square_sum, present, chunks, stream);
}
