/* Parameters and their states. */
#include "optim/optim.h"

#include "base/checked.h"
#include "base/memory.h"

#include <inttypes.h>
#include <string.h>

/* Parts of a state block start at multiples of this. */
enum { PART_ALIGNMENT = 256 };

_Static_assert(MEMOPT_SHARD_ALIGNMENT % MO_BLOCK_SIZE == 0 &&
                   MEMOPT_SHARD_ALIGNMENT % MO_BLOCK4_SIZE == 0,
               "a shard cuts no block");

uint64_t mo_parameter_blocks(const mo_parameter *p)
{
    return mo_ceil_div_u64(p->tensor.count, p->block);
}

uint64_t mo_parameter_states(const mo_parameter *p)
{
    return (mo_format_has_scales(p->format) ? 2 * p->moments : p->moments) + (p->split != 0);
}

memopt_tensor mo_parameter_state(const mo_parameter *p, uint64_t index)
{
    memopt_tensor t = {NULL, mo_parameter_blocks(p), MEMOPT_DTYPE_F32};
    if (index < p->moments) {
        t.dtype = p->format == MEMOPT_STATE_F32    ? MEMOPT_DTYPE_F32
                  : p->format == MEMOPT_STATE_BF16 ? MEMOPT_DTYPE_BF16
                                                   : MEMOPT_DTYPE_U8;
        t.count = mo_format_bytes(p->format, p->tensor.count) / memopt_dtype_size(t.dtype);
        if (p->columns != 0)
            t.count = p->tensor.count / (index == 0 ? p->columns : p->rows);
    } else if (p->split && index == mo_parameter_states(p) - 1) {
        t.dtype = p->split == 1 ? MEMOPT_DTYPE_U8 : MEMOPT_DTYPE_I16;
        t.count = p->tensor.count;
    }
    return t;
}

/* A matrix has means of rows and of columns. */
static uint32_t moments_of(const memopt_optimizer *o, const mo_parameter *p)
{
    return mo_optimizer_moments(o, p->group) + (p->columns != 0);
}

mo_parameter mo_parameter_of(const memopt_optimizer *o, uint32_t group,
                             const memopt_tensor *parameter,
                             const memopt_parameter_options *options)
{
    mo_parameter p = {.tensor = *parameter,
                      .group = group,
                      .format = o->options.state_format,
                      .block = mo_format_block(o->options.state_format),
                      .copy = options->model_copy,
                      .rows = (uint32_t)options->rows,
                      .columns = (uint32_t)options->columns,
                      .first = options->shard.first,
                      .whole = options->shard.whole};
    if (p.whole == 0)
        p.whole = parameter->count;
    if (parameter->count == 0)
        p.tensor.data = NULL;
    p.moments = moments_of(o, &p);
    p.split = parameter->dtype == MEMOPT_DTYPE_BF16 ? o->options.split_weights : 0;
    return p;
}

void mo_parameter_place(const mo_parameter *p, void *const *states, mo_optim_tensor *out)
{
    uint32_t n = p->moments;
    void *const *scales = mo_format_has_scales(p->format) && n != 0 ? states + n : NULL;
    out->m = n != 0 ? states[0] : NULL;
    out->slow = n == 3 ? states[1] : NULL;
    out->v = n >= 2 ? states[n - 1] : NULL;
    out->absmax1 = scales != NULL ? scales[0] : NULL;
    out->slow_absmax = scales != NULL && n == 3 ? scales[1] : NULL;
    out->absmax2 = scales != NULL && n >= 2 ? scales[n - 1] : NULL;
    out->residual = p->split ? states[mo_parameter_states(p) - 1] : NULL;
}

void mo_parameter_describe(mo_parameter *p, void *const *states, void *steps)
{
    p->device = (mo_optim_tensor){
        .first = p->first,
        .parameter = p->tensor.data,
        .copy = p->copy.data,
        .steps = steps,
        .parameter_dtype = p->tensor.dtype,
        .copy_dtype = p->copy.dtype,
        .group = p->group,
        .format = p->format,
        .residual_bytes = p->split,
    };
    mo_parameter_place(p, states, &p->device);
}

/* Where the parts of a state block lie: the states in their order, and steps. The codes of signed
 * moments end, and those of v begin, at `plain`. */
typedef struct state_layout {
    uint64_t states[MO_STATES_MAX], plain, steps, bytes;
} state_layout;

static int layout_of(const mo_parameter *p, int has_second, state_layout *out)
{
    uint64_t at = 0;
    out->plain = 0;
    if (p->tensor.count > UINT64_MAX / 64)
        return 0;
    for (uint64_t k = 0, n = mo_parameter_states(p); k < n; k++) {
        const memopt_tensor t = mo_parameter_state(p, k);
        uint64_t bytes = t.count * memopt_dtype_size(t.dtype);
        out->states[k] = at;
        if (!mo_round_up_u64(bytes, PART_ALIGNMENT, &bytes))
            return 0;
        at += bytes;
        if (k + (uint64_t)(has_second != 0) < p->moments)
            out->plain = at;
    }
    out->steps = at;
    out->bytes = at + sizeof(uint64_t);
    return 1;
}

/* steps: where the step count is. */
static void describe(mo_parameter *p, const state_layout *layout, unsigned char *state, void *steps)
{
    void *states[MO_STATES_MAX];
    for (uint64_t k = 0; k < mo_parameter_states(p); k++)
        states[k] = state == NULL ? NULL : state + layout->states[k];
    mo_parameter_describe(p, states, steps);
}

static memopt_status fill_device(memopt_optimizer *o, mo_parameter *p, const state_layout *layout,
                                 memopt_stream stream)
{
    p->state_bytes = layout->bytes;
    memopt_status status = memopt_allocator_alloc(o->allocator, layout->bytes, MEMOPT_TAG_OPTIMIZER,
                                                  stream, &p->state);
    if (status != MEMOPT_OK)
        return status;
    int zero_code = (int)mo_format_zero(p->format, mo_rule_first_signed(o->options.kind));
    unsigned char *state = p->state, *rest = state + layout->plain;
    status = layout->plain == 0 ? MEMOPT_OK
                                : memopt_fill(o->device, state, zero_code, layout->plain, stream);
    if (status == MEMOPT_OK)
        status = memopt_fill(o->device, rest, 0, layout->bytes - layout->plain, stream);
    if (status != MEMOPT_OK)
        (void)memopt_allocator_free(o->allocator, p->state);
    else
        describe(p, layout, state, state + layout->steps);
    return status;
}

/* The step count is on the device, everything else in page-locked memory. */
static memopt_status fill_host(memopt_optimizer *o, mo_parameter *p, const state_layout *layout,
                               memopt_stream stream)
{
    p->host = NULL;
    p->state_bytes = sizeof(uint64_t);
    memopt_status status = memopt_allocator_alloc(o->allocator, p->state_bytes,
                                                  MEMOPT_TAG_OPTIMIZER, stream, &p->state);
    if (status != MEMOPT_OK)
        return status;
    if (layout->steps != 0)
        status = memopt_host_alloc(o->device, layout->steps, &p->host);
    if (status == MEMOPT_OK)
        status = memopt_fill(o->device, p->state, 0, p->state_bytes, stream);
    if (status != MEMOPT_OK) {
        (void)memopt_host_free(o->device, p->host);
        (void)memopt_allocator_free(o->allocator, p->state);
        return status;
    }
    if (layout->steps != 0) {
        memset(p->host, (int)mo_format_zero(p->format, mo_rule_first_signed(o->options.kind)),
               (size_t)layout->plain);
        memset((unsigned char *)p->host + layout->plain, 0,
               (size_t)(layout->steps - layout->plain));
    }
    describe(p, layout, p->host, p->state);
    return MEMOPT_OK;
}

/* Allocates the state that its group needs and zeroes it in stream order. */
static memopt_status make_state(memopt_optimizer *o, mo_parameter *p, uint64_t index,
                                memopt_stream stream)
{
    state_layout layout;
    uint64_t least = o->groups[p->group].min_8bit_size;
    least = least != 0 ? least : o->options.min_8bit_size;
    p->moments = moments_of(o, p);
    p->format =
        p->moments == 0 || p->whole < least ? (uint32_t)MEMOPT_STATE_F32 : o->options.state_format;
    if (!layout_of(p, mo_rule_has_second(o->options.kind), &layout))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer: parameter %" PRIu64 ": states of %" PRIu64
                       " elements do not fit 64 bits",
                       index, p->tensor.count);
    return o->options.page_bytes != 0 ? fill_host(o, p, &layout, stream)
                                      : fill_device(o, p, &layout, stream);
}

memopt_status mo_parameter_grow(memopt_optimizer *o, uint64_t index, memopt_stream stream)
{
    mo_parameter *p = &o->parameters[index], grown = *p;
    if (p->state == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer step: parameter %" PRIu64
                       " was added without a momentum buffer, but its group now has momentum %g; "
                       "add it with a buffer",
                       index, o->groups[p->group].momentum);
    memopt_status status = make_state(o, &grown, index, stream);
    if (status != MEMOPT_OK)
        return status;
    status = memopt_copy(o->device, grown.device.steps, p->device.steps, sizeof(uint64_t), stream);
    if (status == MEMOPT_OK && p->split)
        status = memopt_copy(o->device, grown.device.residual, p->device.residual,
                             p->tensor.count * p->split, stream);
    if (status == MEMOPT_OK) /* MO_STEPS_NOT_BEGUN, in the count's highest byte */
        status = memopt_fill(o->device, (unsigned char *)grown.device.steps + 7, 0x80, 1, stream);
    if (status != MEMOPT_OK) {
        (void)memopt_stream_sync(o->device, stream); /* a copy may still write to the host's */
        (void)memopt_host_free(o->device, grown.host);
        (void)mo_optimizer_release(o, grown.state);
        return status;
    }
    mo_parameter old = *p;
    *p = grown;
    o->tensor_table.current = o->pages.planned = 0;
    status = old.host == NULL ? MEMOPT_OK : memopt_stream_sync(o->device, stream);
    if (status == MEMOPT_OK)
        status = memopt_host_free(o->device, old.host);
    memopt_status released = mo_optimizer_release(o, old.state);
    return status == MEMOPT_OK ? released : status;
}

static memopt_status check_copy(const memopt_tensor *parameter, const memopt_tensor *copy,
                                uint64_t index)
{
    if (copy->dtype == MEMOPT_DTYPE_F32)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "optimizer: model copy %" PRIu64 " is f32; f16 and bf16 are supported",
                       index);
    memopt_status status = mo_optim_tensor_check("optimizer: model copy", index, copy, 1);
    if (status != MEMOPT_OK)
        return status;
    if (copy->count != parameter->count)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer: model copy %" PRIu64 " has %" PRIu64
                       " elements, its parameter %" PRIu64,
                       index, copy->count, parameter->count);
    if (mo_optim_tensors_overlap(parameter, copy))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer: model copy %" PRIu64 " overlaps its parameter", index);
    return MEMOPT_OK;
}

static memopt_status check_overlap(const memopt_optimizer *o, const memopt_tensor *tensor,
                                   const char *what)
{
    for (uint64_t i = 0; i < o->parameter_count; i++)
        if (mo_optim_tensors_overlap(tensor, &o->parameters[i].tensor) ||
            mo_optim_tensors_overlap(tensor, &o->parameters[i].copy))
            return mo_fail(MEMOPT_INVALID_ARGUMENT,
                           "optimizer: %s %" PRIu64 " overlaps parameter %" PRIu64
                           " or its model copy",
                           what, o->parameter_count, i);
    return MEMOPT_OK;
}

static int is_border(uint64_t place, uint64_t whole)
{
    return place % MEMOPT_SHARD_ALIGNMENT == 0 || place == whole;
}

int mo_shard_is_right(uint64_t first, uint64_t count, uint64_t whole)
{
    return first <= whole && count <= whole - first && is_border(first, whole) &&
           is_border(first + count, whole);
}

static memopt_status check_shard(const memopt_optimizer *o, const memopt_tensor *parameter,
                                 const memopt_shard *s)
{
    const uint64_t first = s->first, whole = s->whole, count = parameter->count;
    if (whole == 0 && first == 0)
        return MEMOPT_OK;
    if (whole >> 56 != 0 || !mo_shard_is_right(first, count, whole))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer: parameter %" PRIu64 ": a shard of %" PRIu64
                       " elements from %" PRIu64 " on, of %" PRIu64
                       " in all (below 2^56); it must begin and end at multiples of %d or at the "
                       "end",
                       o->parameter_count, count, first, whole, MEMOPT_SHARD_ALIGNMENT);
    if (o->options.kind == MEMOPT_OPTIMIZER_ADAFACTOR && count != 0 && count != whole)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "optimizer: parameter %" PRIu64 ": a shard of %" PRIu64 " of %" PRIu64
                       " elements; Adafactor takes means over the whole: give it to one process, "
                       "and the others an empty shard",
                       o->parameter_count, count, whole);
    return MEMOPT_OK;
}

memopt_status mo_parameter_check(const memopt_optimizer *o, uint32_t group,
                                 const memopt_tensor *parameter, const memopt_tensor *copy,
                                 const memopt_shard *shard)
{
    if (group >= o->group_count)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer: no group %" PRIu32 "; there are %" PRIu64, group,
                       o->group_count);
    if (o->parameter_count >= UINT32_MAX)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer: too many parameters");
    memopt_status status = mo_optim_tensor_check("optimizer: parameter", o->parameter_count,
                                                 parameter, shard->whole == 0);
    if (status == MEMOPT_OK)
        status = check_shard(o, parameter, shard);
    if (status == MEMOPT_OK && o->options.split_weights && parameter->dtype == MEMOPT_DTYPE_F16)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "optimizer: parameter %" PRIu64 " is f16; split_weights is for bf16",
                       o->parameter_count);
    if (status == MEMOPT_OK)
        status = check_overlap(o, parameter, "parameter");
    if (status == MEMOPT_OK && copy != NULL)
        status = check_copy(parameter, copy, o->parameter_count);
    if (status == MEMOPT_OK && copy != NULL)
        status = check_overlap(o, copy, "model copy");
    if (status == MEMOPT_OK && parameter->count != 0)
        status = mo_optim_tensor_reachable(o->device, "optimizer: parameter", o->parameter_count,
                                           parameter);
    if (status == MEMOPT_OK && copy != NULL)
        status =
            mo_optim_tensor_reachable(o->device, "optimizer: model copy", o->parameter_count, copy);
    return status;
}

memopt_status mo_parameter_room(memopt_optimizer *o)
{
    return mo_grow((void **)&o->parameters, &o->parameter_capacity, o->parameter_count + 1,
                   sizeof *o->parameters)
               ? MEMOPT_OK
               : MEMOPT_OUT_OF_HOST_MEMORY;
}

void mo_parameter_append(memopt_optimizer *o, const mo_parameter *p, uint64_t *out_index)
{
    o->parameters[o->parameter_count] = *p;
    o->is_cut |= mo_parameter_is_cut(p);
    o->tensor_table.current = o->pages.planned = 0;
    *out_index = o->parameter_count++;
}

memopt_status mo_parameter_add(memopt_optimizer *o, mo_parameter *p, memopt_stream stream,
                               uint64_t *out_index)
{
    memopt_status status = make_state(o, p, o->parameter_count, stream);
    if (status == MEMOPT_OK)
        mo_parameter_append(o, p, out_index);
    return status;
}
