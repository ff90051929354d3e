/* The optimizer's life and its groups. */
#include "optim/optim.h"

#include "base/memory.h"
#include "base/options.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { DEFAULT_MIN_8BIT = 4096 };

static memopt_status options_check(memopt_optimizer_options *o)
{
    o->kind = o->kind ? o->kind : MEMOPT_OPTIMIZER_ADAMW;
    o->state_format = o->state_format ? o->state_format : MEMOPT_STATE_F32;
    o->block_size = o->block_size ? o->block_size : MO_BLOCK_SIZE;
    o->min_8bit_size = o->min_8bit_size ? o->min_8bit_size : DEFAULT_MIN_8BIT;
    if (o->kind != MEMOPT_OPTIMIZER_ADAMW)
        return mo_fail(MEMOPT_UNSUPPORTED, "optimizer: kind %" PRIu32 "; AdamW (1) is supported",
                       o->kind);
    if (o->state_format != MEMOPT_STATE_F32 && o->state_format != MEMOPT_STATE_8BIT)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "optimizer: state_format %" PRIu32
                       "; 32-bit (1) and 8-bit (2) are supported",
                       o->state_format);
    if (o->block_size != MO_BLOCK_SIZE)
        return mo_fail(MEMOPT_UNSUPPORTED, "optimizer: block_size %" PRIu32 "; 256 is supported",
                       o->block_size);
    if (o->stochastic_rounding > 1)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer: stochastic_rounding is %" PRIu32 ", must be 0 or 1",
                       o->stochastic_rounding);
    return MEMOPT_OK;
}

memopt_status memopt_optimizer_create(memopt_allocator *allocator,
                                      const memopt_optimizer_options *options,
                                      memopt_optimizer **out_optimizer)
{
    memopt_optimizer_options copy;
    if (allocator == NULL || out_optimizer == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer: %s is NULL",
                       allocator == NULL ? "allocator" : "out_optimizer");
    memopt_status status = mo_options_read(&copy, sizeof copy, options, "memopt_optimizer_options");
    if (status == MEMOPT_OK)
        status = options_check(&copy);
    if (status != MEMOPT_OK)
        return status;
    memopt_optimizer *o = mo_calloc(1, sizeof *o);
    if (o == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    o->allocator = allocator;
    o->device = memopt_allocator_device(allocator);
    o->options = copy;
    mo_optimizer_listen(o);
    *out_optimizer = o;
    return MEMOPT_OK;
}

static void keep_first(memopt_status *result, memopt_status status)
{
    if (*result == MEMOPT_OK)
        *result = status;
}

memopt_status memopt_optimizer_destroy(memopt_optimizer *o)
{
    memopt_status result = MEMOPT_OK;
    if (o == NULL)
        return MEMOPT_OK;
    int lost = mo_device_lost(o->device);
    mo_table *const tables[] = {&o->tensor_table, &o->segment_table, &o->group_table,
                                &o->coef_table,   &o->scratch,       &o->control};
    for (uint64_t i = 0; i < o->parameter_count; i++)
        keep_first(&result, mo_optimizer_release(o, o->parameters[i].state));
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        keep_first(&result, mo_optimizer_release(o, tables[i]->data));
    mo_free(o->groups);
    mo_free(o->parameters);
    mo_free(o->segments);
    mo_free(o->next);
    mo_optimizer_unlisten(o);
    mo_free(o);
    return mo_end_status(lost, result);
}

/* --- groups ---------------------------------------------------------------------------------- */

static int is_decay(double beta)
{
    return beta >= 0.0 && beta < 1.0;
}

static int is_amount(double value)
{
    return isfinite(value) && value >= 0.0;
}

memopt_status mo_optimizer_group_check(const memopt_optimizer_group *g)
{
    if (!is_amount(g->lr) || !is_amount(g->eps) || !is_amount(g->weight_decay))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer group: lr %g, eps %g, weight_decay %g: each must be finite and "
                       "at least 0",
                       g->lr, g->eps, g->weight_decay);
    if (!is_decay(g->beta1) || !is_decay(g->beta2))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer group: beta1 %g, beta2 %g: each must be in [0, 1)", g->beta1,
                       g->beta2);
    if (g->maximize > 1 || g->reserved != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer group: maximize %" PRIu32 " must be 0 or 1, reserved %" PRIu32
                       " must be 0",
                       g->maximize, g->reserved);
    return MEMOPT_OK;
}

static memopt_status group_read(const memopt_optimizer *o, const memopt_optimizer_group *group,
                                memopt_optimizer_group *copy)
{
    if (o == NULL || group == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer group: %s is NULL",
                       o == NULL ? "optimizer" : "group");
    memopt_status status = mo_options_read(copy, sizeof *copy, group, "memopt_optimizer_group");
    return status == MEMOPT_OK ? mo_optimizer_group_check(copy) : status;
}

static memopt_status no_such_group(const memopt_optimizer *o, uint32_t group)
{
    return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer: no group %" PRIu32 "; there are %" PRIu64,
                   group, o->group_count);
}

memopt_status memopt_optimizer_add_group(memopt_optimizer *o, const memopt_optimizer_group *group,
                                         uint32_t *out_group)
{
    memopt_optimizer_group copy;
    memopt_status status = group_read(o, group, &copy);
    if (status != MEMOPT_OK)
        return status;
    if (out_group == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer: out_group is NULL");
    if (o->group_count >= UINT32_MAX)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer: too many groups");
    if (!mo_grow((void **)&o->groups, &o->group_capacity, o->group_count + 1, sizeof *o->groups))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    o->groups[o->group_count] = copy;
    o->group_table.current = 0;
    *out_group = (uint32_t)o->group_count++;
    return MEMOPT_OK;
}

memopt_status memopt_optimizer_set_group(memopt_optimizer *o, uint32_t group,
                                         const memopt_optimizer_group *values)
{
    memopt_optimizer_group copy;
    memopt_status status = group_read(o, values, &copy);
    if (status != MEMOPT_OK)
        return status;
    if (group >= o->group_count)
        return no_such_group(o, group);
    o->groups[group] = copy;
    o->group_table.current = 0;
    return MEMOPT_OK;
}

memopt_status memopt_optimizer_get_group(memopt_optimizer *o, uint32_t group,
                                         memopt_optimizer_group *out_values)
{
    if (o == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer: the handle is NULL");
    if (group >= o->group_count)
        return no_such_group(o, group);
    return mo_result_write(out_values, &o->groups[group], sizeof *out_values,
                           "memopt_optimizer_group");
}
