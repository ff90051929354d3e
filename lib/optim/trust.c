/*
 * A step whose updates are bounded by norms (kernels/trust/trust.h). Its launches are of batches of
 * gradients, which bound the scratch; both halves of a step of shards are of one batch. The scratch
 * is the device's: updates, sources, sums, tables.
 */
#include "kernels/trust/trust.h"
#include "optim/optim.h"

#include "base/checked.h"
#include "base/precondition.h"

/* Elements of a batch, or one parameter; scratch that stays between steps; floats to which updates
 * are aligned. */
enum { BATCH_ELEMENTS = 1 << 22, KEPT_BYTES = 40 << 20, ALIGNMENT = 64 };

/* A run of the step's gradients. */
typedef struct batch {
    uint64_t first, count, chunks;
    uint64_t floats; /* of updates, and as many of sources */
    int direct;      /* the moments are the updates */
} batch;

/* Whether an f32 moment of SGD is the update, so that gradient i needs no scratch. */
static int is_direct(const memopt_optimizer *o, uint64_t i)
{
    const memopt_optimizer_group *g = &o->groups[o->parameters[o->segments[i].number].group];
    return o->options.kind == MEMOPT_OPTIMIZER_SGD && o->options.state_format == MEMOPT_STATE_F32 &&
           g->momentum != 0.0 && !g->nesterov;
}

static uint64_t floats_of(const batch *b, const mo_tensor_segment *gradient)
{
    return b->direct ? 0 : mo_ceil_div_u64(gradient->count, ALIGNMENT) * ALIGNMENT;
}

static void append(const memopt_optimizer *o, uint64_t i, batch *b)
{
    b->count++;
    b->chunks += mo_chunks_of(o->segments[i].count);
    b->floats += floats_of(b, &o->segments[i]);
}

/* The batch that begins with gradient number `first`. */
static batch batch_at(const memopt_optimizer *o, uint64_t first)
{
    batch b = {.first = first, .direct = is_direct(o, first)};
    for (uint64_t i = first; i < o->segment_count && is_direct(o, i) == b.direct; i++)
        if (i == first || b.floats + floats_of(&b, &o->segments[i]) <= BATCH_ELEMENTS)
            append(o, i, &b);
        else
            break;
    return b;
}

/* The batch of a half: all gradients. */
static batch all_of(const memopt_optimizer *o, int direct)
{
    batch b = {.direct = direct};
    for (uint64_t i = 0; i < o->segment_count; i++)
        append(o, i, &b);
    return b;
}

static int all_direct(const memopt_optimizer *o)
{
    int direct = 1;
    for (uint64_t i = 0; i < o->segment_count; i++)
        direct = direct && is_direct(o, i);
    return direct;
}

/* --- scratch --------------------------------------------------------------------------------- */

static uint64_t zeros_of(const memopt_optimizer *o, const batch *b)
{
    return b->floats * (o->options.kind == MEMOPT_OPTIMIZER_SGD ? 8 : 4);
}

static uint64_t bytes_of(const memopt_optimizer *o, const batch *b)
{
    return zeros_of(o, b) + 8 * (b->chunks + 2 * o->parameter_count + b->count) +
           b->count * (2 * sizeof(mo_optim_tensor) + MO_TRUST_COEFS * sizeof(mo_rule_coef) +
                       MO_TRUST_SEGMENTS * sizeof(mo_tensor_segment));
}

/* Pre: the scratch has bytes_of() the batch. */
static mo_trust_args args_of(const memopt_optimizer *o, const batch *b, double *squares)
{
    float *updates = o->scratch.data;
    double *partials = (double *)(void *)((unsigned char *)o->scratch.data + zeros_of(o, b));
    double *own = partials + b->chunks;
    uint64_t *places = (uint64_t *)(void *)(own + 2 * o->parameter_count);
    mo_optim_tensor *targets = (mo_optim_tensor *)(void *)(places + b->count);
    mo_tensor_segment *segments = (mo_tensor_segment *)(void *)(targets + 2 * b->count);
    mo_rule_coef *steps = (mo_rule_coef *)(void *)(segments + MO_TRUST_SEGMENTS * b->count);
    MO_PRE((unsigned char *)(steps + MO_TRUST_COEFS * b->count) ==
               (unsigned char *)o->scratch.data + bytes_of(o, b) &&
           bytes_of(o, b) <= o->scratch.capacity);
    return (mo_trust_args){
        .tensors = o->tensor_table.data,
        .gradients = (const mo_tensor_segment *)o->segment_table.data + b->first,
        .groups = o->group_table.data,
        .coefs = (const mo_rule_coef *)o->coef_table.data + b->first,
        .places = places,
        .updates = updates,
        .sources = updates + b->floats,
        .targets = targets,
        .segments = segments,
        .steps = steps,
        .partials = partials,
        .squares = squares != NULL ? squares : own,
        .count = (uint32_t)b->count,
        .parameters = (uint32_t)o->parameter_count,
        .rule = o->options.kind,
        .direct = (uint32_t)b->direct,
    };
}

memopt_status mo_trust_prepare(memopt_optimizer *o, const memopt_step_options *s,
                               memopt_stream stream)
{
    const batch all = all_of(o, all_direct(o));
    uint64_t bytes = s->half != 0 ? bytes_of(o, &all) : 0;
    o->halfway = 0;
    for (uint64_t i = 0; s->half == 0 && i < o->segment_count;) {
        const batch b = batch_at(o, i);
        bytes = mo_max_u64(bytes, bytes_of(o, &b));
        i += b.count;
    }
    return mo_table_reserve(o, &o->scratch, bytes, stream);
}

/* Behind the step: much scratch goes back, but for what a graph uses. */
static memopt_status let_go(memopt_optimizer *o, memopt_stream stream)
{
    int32_t recorded = 0;
    MO_TRY(mo_stream_capturing(o->device, stream, &recorded));
    o->recorded |= recorded;
    if (o->recorded || o->scratch.capacity <= KEPT_BYTES)
        return MEMOPT_OK;
    void *old = o->scratch.data;
    o->scratch = (mo_table){NULL, 0, 0};
    return mo_optimizer_release(o, old);
}

/* --- launches -------------------------------------------------------------------------------- */

/* A step of these tensors by a list of segments. */
static memopt_status move(const memopt_optimizer *o, const batch *b, const mo_trust_args *a,
                          const mo_kernel *kernel, const mo_optim_tensor *tensors, int list,
                          int coefs, memopt_stream stream)
{
    const mo_optim_step_args args = {
        .tensors = tensors,
        .gradients = a->segments + (uint64_t)list * b->count,
        .coefs = a->steps + (uint64_t)coefs * b->count,
        .control = o->control.data,
        .seed = o->options.seed,
        .count = a->count,
        .stochastic = coefs == MO_TRUST_RATE ? o->options.stochastic_rounding : 0,
    };
    return mo_launch(o->device, stream, kernel, &args, b->chunks);
}

static memopt_status sum_squares(const memopt_optimizer *o, const batch *b, const mo_trust_args *a,
                                 int list, memopt_stream stream)
{
    mo_trust_args totals = *a;
    totals.segments += (uint64_t)list * b->count;
    totals.list = (uint32_t)list;
    const mo_reduce_args sums = {
        .table = totals.segments, .partials = (double *)a->partials, .count = a->count};
    MO_TRY(mo_launch(o->device, stream, &mo_kernel_square_sum, &sums, b->chunks));
    return mo_launch(o->device, stream, &mo_kernel_trust_totals, &totals, b->count);
}

/* Moves the moments and finds the updates. */
static memopt_status find_updates(const memopt_optimizer *o, const batch *b, const mo_trust_args *a,
                                  memopt_stream stream)
{
    const mo_kernel *add = mo_optimizer_kernel(MEMOPT_OPTIMIZER_SGD, MEMOPT_STATE_F32);
    const mo_kernel *rule = mo_optimizer_kernel(o->options.kind, o->options.state_format);
    const mo_optim_tensor *updates = a->targets, *sources = a->targets + b->count;
    const int is_lars = o->options.kind == MEMOPT_OPTIMIZER_SGD && !b->direct;
    if (is_lars) {
        MO_TRY(move(o, b, a, add, sources, MO_TRUST_GRADIENTS, MO_TRUST_COPY, stream));
        MO_TRY(move(o, b, a, add, sources, MO_TRUST_PARAMETERS, MO_TRUST_DECAY, stream));
    }
    MO_TRY(move(o, b, a, rule, updates, is_lars ? MO_TRUST_SOURCES : MO_TRUST_GRADIENTS,
                MO_TRUST_RULE, stream));
    return o->options.kind == MEMOPT_OPTIMIZER_SGD
               ? MEMOPT_OK
               : move(o, b, a, add, updates, MO_TRUST_PARAMETERS, MO_TRUST_DECAY, stream);
}

/* Writes where the updates of each gradient begin. */
static memopt_status upload_places(memopt_optimizer *o, const batch *b, const mo_trust_args *a,
                                   memopt_stream stream)
{
    uint64_t some[MO_UPLOAD_BYTES / sizeof(uint64_t)], at = 0;
    for (uint64_t done = 0; done < b->count;) {
        const uint64_t n = mo_min_u64(b->count - done, sizeof some / sizeof *some);
        for (uint64_t k = 0; k < n; k++) {
            some[k] = at;
            at += floats_of(b, &o->segments[b->first + done + k]);
        }
        MO_TRY(mo_upload(o, (uint64_t *)a->places + done, some, n * sizeof *some, stream));
        done += n;
    }
    return MEMOPT_OK;
}

static memopt_status first_half(memopt_optimizer *o, const batch *b, const mo_trust_args *a,
                                memopt_stream stream)
{
    const uint64_t plans = mo_ceil_div_u64(b->count, MO_ONE_THREADS);
    if (!b->direct)
        MO_TRY(memopt_fill(o->device, a->updates, 0, zeros_of(o, b), stream));
    MO_TRY(upload_places(o, b, a, stream));
    MO_TRY(mo_launch(o->device, stream, &mo_kernel_trust_plan, a, plans));
    MO_TRY(sum_squares(o, b, a, MO_TRUST_PARAMETERS, stream));
    o->pages.torn = 1; /* until the step is whole */
    MO_TRY(find_updates(o, b, a, stream));
    return sum_squares(o, b, a, MO_TRUST_UPDATES, stream);
}

static memopt_status second_half(memopt_optimizer *o, const batch *b, const mo_trust_args *a,
                                 memopt_stream stream)
{
    const uint64_t rates = mo_ceil_div_u64(b->count, MO_ONE_THREADS);
    const mo_kernel *add = mo_optimizer_kernel(MEMOPT_OPTIMIZER_SGD, MEMOPT_STATE_F32);
    MO_TRY(mo_launch(o->device, stream, &mo_kernel_trust_rates, a, rates));
    return move(o, b, a, add, a->tensors, MO_TRUST_UPDATES, MO_TRUST_RATE, stream);
}

/* Launches a half of all gradients. */
static memopt_status launch_half(memopt_optimizer *o, const memopt_step_options *s,
                                 memopt_stream stream)
{
    const int direct = s->half == 1 ? all_direct(o) : o->halfway == 2;
    const batch b = all_of(o, direct);
    const mo_trust_args a = args_of(o, &b, s->squares);
    if (b.count != 0)
        MO_TRY(s->half == 1 ? first_half(o, &b, &a, stream) : second_half(o, &b, &a, stream));
    o->halfway = s->half == 1 ? 1 + direct : 0;
    return MEMOPT_OK;
}

memopt_status mo_trust_launch(memopt_optimizer *o, const memopt_step_options *s,
                              memopt_stream stream)
{
    if (s->half != 0)
        MO_TRY(launch_half(o, s, stream));
    for (uint64_t i = 0; s->half == 0 && i < o->segment_count;) {
        const batch b = batch_at(o, i);
        const mo_trust_args a = args_of(o, &b, NULL);
        MO_TRY(first_half(o, &b, &a, stream));
        MO_TRY(second_half(o, &b, &a, stream));
        i += b.count;
    }
    o->pages.torn = 0;
    return s->half == 1 ? MEMOPT_OK : let_go(o, stream);
}
