/*
 * The card: its checks and defaults, and what it takes beside tensors.
 */
#include "plan/settings.h"

#include "base/checked.h"
#include "base/options.h"

#include <stdio.h>

#define MIB ((uint64_t)1 << 20)

static int is_gpu(const memopt_plan_card *c)
{
    return c->device == MEMOPT_PLAN_DEVICE_CUDA || c->device == MEMOPT_PLAN_DEVICE_HIP ||
           (c->device == MEMOPT_PLAN_DEVICE_ANY && c->capacity > 0);
}

static memopt_status check(const memopt_plan_card *c)
{
    if (c->device > MEMOPT_PLAN_DEVICE_HIP || c->allocator > MEMOPT_PLAN_ALLOCATOR_EXPANDABLE)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: device %u or allocator %u is none",
                       c->device, c->allocator);
    if (!(c->margin >= 0 && c->margin <= 1))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: the safety margin is %g; it is the share of the card that may be "
                       "used, above 0 and at most 1",
                       c->margin);
    if (!(c->link_bytes_per_second >= 0 && c->disk_bytes_per_second >= 0 &&
          c->flops_per_second >= 0) ||
        c->link_bytes_per_second > 1e18 || c->disk_bytes_per_second > 1e18 ||
        c->flops_per_second > 1e30)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "plan: the rates of link (%g), disk (%g) and compute (%g) must be finite "
                       "and not negative",
                       c->link_bytes_per_second, c->disk_bytes_per_second, c->flops_per_second);
    return MEMOPT_OK;
}

static void fill_in(memopt_plan_card *c)
{
    if (c->margin == 0)
        c->margin = 0.85;
    if (is_gpu(c)) {
        uint64_t context = c->device == MEMOPT_PLAN_DEVICE_HIP ? 300 * MIB : 450 * MIB;
        c->context_bytes = c->context_bytes == 0 ? context : c->context_bytes;
        c->workspace_bytes = c->workspace_bytes == 0 ? 72 * MIB : c->workspace_bytes;
    }
    if (c->link_bytes_per_second == 0)
        c->link_bytes_per_second = 12e9;
    if (c->disk_bytes_per_second == 0)
        c->disk_bytes_per_second = 2e9;
    if (c->flops_per_second == 0)
        c->flops_per_second = 60e12;
}

memopt_status mo_card_read(memopt_plan_card *c, const memopt_plan_card *given)
{
    memopt_status status = mo_options_read(c, sizeof *c, given, "memopt_plan_card");
    if (status == MEMOPT_OK)
        status = check(c);
    if (status == MEMOPT_OK)
        fill_in(c);
    return status;
}

uint64_t mo_card_limit(const memopt_plan_card *c)
{
    return (uint64_t)((long double)c->capacity * (long double)c->margin);
}

static uint64_t sum(uint64_t a, uint64_t b)
{
    uint64_t all;
    return mo_add_u64(a, b, &all) ? all : UINT64_MAX;
}

/* What the allocator rounds up: with classic segments a share of what changes from step to step,
 * with expandable ones a page per stream and pool. */
static uint64_t rounding(const memopt_plan_card *c, const memopt_plan_bytes *b)
{
    if (!is_gpu(c))
        return 0;
    uint64_t moving = b->activations / 16 + b->logits / 16 + b->gradients / 32;
    uint64_t resting = b->parameters / 128 + b->optimizer / 128;
    if (c->allocator == MEMOPT_PLAN_ALLOCATOR_EXPANDABLE)
        return (moving + resting) / 4 + 20 * MIB;
    return moving + resting + 20 * MIB;
}

void mo_card_add_overhead(const memopt_plan_card *c, memopt_plan_bytes *b)
{
    b->overhead =
        sum(sum(c->context_bytes, c->workspace_bytes), sum(c->other_bytes, rounding(c, b)));
    b->total = sum(b->total, b->overhead);
}

void mo_card_tell_overhead(const memopt_plan_card *c, const memopt_plan_bytes *b, char *text,
                           size_t size)
{
    if (b->overhead == 0)
        (void)snprintf(text, size, "none: tensors alone are counted");
    else
        (void)snprintf(
            text, size, "context %s, workspaces %s, other use %s, rounding of the %s allocator %s",
            MO_SIZE(c->context_bytes), MO_SIZE(c->workspace_bytes), MO_SIZE(c->other_bytes),
            c->allocator == MEMOPT_PLAN_ALLOCATOR_EXPANDABLE ? "expandable" : "classic",
            MO_SIZE(b->overhead - c->context_bytes - c->workspace_bytes - c->other_bytes));
}

memopt_status memopt_plan_add_overhead(const memopt_plan_card *card, memopt_plan_bytes *bytes,
                                       uint64_t *out_limit)
{
    memopt_plan_card c;
    if (bytes == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "plan: bytes is NULL");
    memopt_status status = mo_card_read(&c, card);
    if (status != MEMOPT_OK)
        return status;
    uint64_t live =
        sum(sum(bytes->parameters, bytes->gradients), sum(bytes->optimizer, bytes->activations));
    bytes->total = sum(live, sum(bytes->logits, bytes->batch));
    mo_card_add_overhead(&c, bytes);
    if (out_limit != NULL)
        *out_limit = mo_card_limit(&c);
    return MEMOPT_OK;
}
