/* The optimizer's life and its groups. */
#include "kernels/adafactor/adafactor.h"
#include "optim/optim.h"

#include "allocator/allocator.h"

#include "base/memory.h"
#include "base/options.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { DEFAULT_MIN_8BIT = 4096 };

/* By kind. */
static const struct kind {
    const char *name;
    const mo_kernel *plain; /* of 32-bit states */
} kinds[MO_RULES] = {
#define KIND(id, number, name, word, kernel) [number] = {name, &mo_kernel_step_##kernel},
    MO_EACH_RULE(KIND)};

/* By kind and state format: those of coded states. */
static const mo_kernel *const coded[MO_RULES][MO_STATE_FORMATS] = {
#define STEP(kernel, rule, format) [MO_RULE_##rule][MO_STATE_##format] = &mo_kernel_step_##kernel,
    MO_EACH_STEP(STEP)};

const mo_kernel *mo_optimizer_kernel(uint32_t kind, uint32_t format)
{
    if (kind == 0 || kind >= MO_RULES || format >= MO_STATE_FORMATS)
        return NULL;
    return format == MO_STATE_F32 ? kinds[kind].plain
                                  : coded[kind == MO_RULE_ADAGRAD ? MO_RULE_RMSPROP : kind][format];
}

const char *mo_format_name(uint32_t format)
{
#define FORMAT(id, number, name, word) [number] = name,
    static const char *const names[MO_STATE_FORMATS] = {[0] = "no", MO_EACH_FORMAT(FORMAT)};
    return format < MO_STATE_FORMATS ? names[format] : "unknown";
}

const char *mo_format_list(char *text, uint32_t set)
{
    size_t used = 0;
    for (uint32_t format = 1; format < MO_STATE_FORMATS; format++)
        if (set >> format & 1)
            used += (size_t)snprintf(text + used, MO_FORMAT_LIST - used, "%s%s (%" PRIu32 ")",
                                     used == 0 ? "" : ", ", mo_format_name(format), format);
    return text;
}

/* 0: it is not old. */
static uint32_t heir_of(uint32_t format)
{
#define HEIR(id, heir) [MO_STATE_##id] = MO_STATE_##heir,
    static const uint32_t heirs[MO_STATE_FORMATS] = {MO_EACH_OLD_FORMAT(HEIR)};
    return format < MO_STATE_FORMATS ? heirs[format] : 0;
}

int mo_format_is_old(uint32_t format)
{
    return heir_of(format) != 0;
}

memopt_status mo_format_fail_old(const char *subject, uint32_t format)
{
    uint32_t heir = heir_of(format);
    return mo_fail(MEMOPT_UNSUPPORTED,
                   "%s: state_format %" PRIu32 ", %s, is of older versions; %s (%" PRIu32
                   ") takes the same bytes and is nearer to 32-bit states",
                   subject, format, mo_format_name(format), mo_format_name(heir), heir);
}

uint32_t mo_optimizer_moments(const memopt_optimizer *o, uint32_t group)
{
    if (o->options.kind == MEMOPT_OPTIMIZER_SGD && o->groups[group].momentum == 0.0)
        return 0;
    return 1u + (uint32_t)mo_rule_has_second(o->options.kind) +
           (uint32_t)mo_rule_has_slow(o->options.kind);
}

static memopt_status no_such_kind(const memopt_optimizer_options *o)
{
#define NAME(id, number, name, word, kernel) " " name " (" #number ")"
    return mo_fail(MEMOPT_UNSUPPORTED,
                   "optimizer: kind %" PRIu32 "; the kinds are" MO_EACH_RULE(NAME), o->kind);
}

static memopt_status no_such_format(const memopt_optimizer_options *o)
{
    char list[MO_FORMAT_LIST];
    uint32_t set = 0;
    for (uint32_t format = 0; format < MO_STATE_FORMATS; format++)
        set |= (uint32_t)(mo_optimizer_kernel(o->kind, format) != NULL) << format;
    return mo_fail(MEMOPT_UNSUPPORTED,
                   "optimizer: %s with state_format %" PRIu32 "; it has the formats %s",
                   kinds[o->kind].name, o->state_format, mo_format_list(list, set));
}

static memopt_status adafactor_check(const memopt_optimizer_options *o)
{
    if (o->stochastic_rounding || o->split_weights || o->page_bytes)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "optimizer: Adafactor with stochastic_rounding %" PRIu32
                       ", split_weights %" PRIu32 ", page_bytes %" PRIu64 "; each must be 0",
                       o->stochastic_rounding, o->split_weights, o->page_bytes);
    return MEMOPT_OK;
}

static memopt_status trust_check(const memopt_optimizer_options *o)
{
    if (o->trust > 1)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer: trust is %" PRIu32 ", must be 0 or 1",
                       o->trust);
    if (o->trust && o->kind != MEMOPT_OPTIMIZER_ADAMW && o->kind != MEMOPT_OPTIMIZER_SGD)
        return mo_fail(MEMOPT_UNSUPPORTED, "optimizer: %s with trust; AdamW and SGD have it",
                       kinds[o->kind].name);
    if (o->trust && (o->split_weights || o->page_bytes))
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "optimizer: trust with split_weights %" PRIu32 ", page_bytes %" PRIu64
                       "; each must be 0",
                       o->split_weights, o->page_bytes);
    return MEMOPT_OK;
}

static memopt_status options_check(memopt_optimizer_options *o)
{
    o->kind = o->kind ? o->kind : MEMOPT_OPTIMIZER_ADAMW;
    o->state_format = o->state_format ? o->state_format : MEMOPT_STATE_F32;
    o->min_8bit_size = o->min_8bit_size ? o->min_8bit_size : DEFAULT_MIN_8BIT;
    if (o->kind >= MO_RULES)
        return no_such_kind(o);
    if (mo_optimizer_kernel(o->kind, o->state_format) == NULL)
        return mo_format_is_old(o->state_format) ? mo_format_fail_old("optimizer", o->state_format)
                                                 : no_such_format(o);
    MO_TRY(trust_check(o));
    if (o->kind == MEMOPT_OPTIMIZER_ADAFACTOR)
        return adafactor_check(o);
    if (o->stochastic_rounding > 1)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer: stochastic_rounding is %" PRIu32 ", must be 0 or 1",
                       o->stochastic_rounding);
    if (o->split_weights > 2 || (o->split_weights && o->stochastic_rounding))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer: split_weights is %" PRIu32 ", must be 0, 1 or 2, and 0 with "
                       "stochastic_rounding",
                       o->split_weights);
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
    memopt_device *device = mo_allocator_device(allocator);
    if (mo_device_inherited(device))
        return mo_fail_inherited("optimizer_create");
    memopt_status status = mo_options_read(&copy, sizeof copy, options, "memopt_optimizer_options");
    if (status == MEMOPT_OK)
        status = options_check(&copy);
    if (status != MEMOPT_OK)
        return status;
    memopt_optimizer *o = mo_calloc(1, sizeof *o);
    if (o == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    o->allocator = allocator;
    o->device = device;
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
    if (mo_device_inherited(o->device))
        return mo_fail_inherited("optimizer_destroy");
    int lost = mo_device_lost(o->device);
    keep_first(&result, mo_paged_close(o));
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
    if (!is_decay(g->beta3) || !is_amount(g->alpha) || !is_amount(g->t_alpha) ||
        !is_amount(g->t_beta3) || (g->t_beta3 > 0.0 && (g->beta1 == 0.0 || g->beta3 == 0.0)))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer group: beta3 %g must be in [0, 1), alpha %g, t_alpha %g and "
                       "t_beta3 %g finite and at least 0; t_beta3 above 0 needs beta1 (%g) and "
                       "beta3 above 0",
                       g->beta3, g->alpha, g->t_alpha, g->t_beta3, g->beta1);
    if (!(g->average >= 0.0 && g->average <= 1.0))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer group: average %g must be in [0, 1]",
                       g->average);
    if (!isfinite(g->beta2_decay) || g->beta2_decay > 0.0 || !is_amount(g->eps2) ||
        !is_amount(g->d) || (g->d != 0.0 && g->d < 1.0))
        return mo_fail(
            MEMOPT_INVALID_ARGUMENT,
            "optimizer group: beta2_decay %g must be finite and at most 0, eps2 %g finite "
            "and at least 0, d %g finite and 0 or at least 1",
            g->beta2_decay, g->eps2, g->d);
    if (!is_amount(g->momentum) || !isfinite(g->dampening))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer group: momentum %g must be finite and at least 0, dampening %g "
                       "finite",
                       g->momentum, g->dampening);
    if (g->maximize > 1 || g->nesterov > 1 || g->trust_clip > 1 || g->uncorrected > 1)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer group: maximize %" PRIu32 ", nesterov %" PRIu32
                       ", trust_clip %" PRIu32 " and uncorrected %" PRIu32 " must be 0 or 1",
                       g->maximize, g->nesterov, g->trust_clip, g->uncorrected);
    if (!is_amount(g->max_ratio))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer group: max_ratio %g must be finite and at least 0", g->max_ratio);
    if ((uintptr_t)g->device_lr % sizeof(float) != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer group: device_lr %p is not aligned to an f32",
                       (const void *)g->device_lr);
    if (g->nesterov && (g->momentum == 0.0 || g->dampening != 0.0))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer group: nesterov needs a momentum (%g) and no dampening (%g)",
                       g->momentum, g->dampening);
    return MEMOPT_OK;
}

static memopt_status group_read(const memopt_optimizer *o, const memopt_optimizer_group *group,
                                memopt_optimizer_group *copy)
{
    if (o == NULL || group == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer group: %s is NULL",
                       o == NULL ? "optimizer" : "group");
    if (mo_device_inherited(o->device))
        return mo_fail_inherited("optimizer group");
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
    if (mo_device_inherited(o->device))
        return mo_fail_inherited("optimizer_get_group");
    if (group >= o->group_count)
        return no_such_group(o, group);
    return mo_result_write(out_values, &o->groups[group], sizeof *out_values,
                           "memopt_optimizer_group");
}
