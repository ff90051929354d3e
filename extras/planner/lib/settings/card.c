/*
 * The card: its checks and defaults, and what it takes beside tensors.
 */
#include "settings/settings.h"

#include "base/checked.h"

#include <stdio.h>

#define MIB ((uint64_t)1 << 20)

int mo_plan_card_is_gpu(const mo_plan_card *c)
{
    return c->device == MO_PLAN_DEVICE_CUDA || c->device == MO_PLAN_DEVICE_HIP;
}

void mo_plan_card_fill(mo_plan_card *c)
{
    if (c->margin == 0)
        c->margin = 0.85;
    if (c->device == MO_PLAN_DEVICE_DEFAULT)
        c->device = c->capacity > 0 ? MO_PLAN_DEVICE_CUDA : MO_PLAN_DEVICE_CPU;
    if (c->bf16 == MO_PLAN_DEFAULT)
        c->bf16 = MO_PLAN_YES;
    if (mo_plan_card_is_gpu(c)) {
        uint64_t context = c->device == MO_PLAN_DEVICE_HIP ? 300 * MIB : 450 * MIB;
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

uint64_t mo_plan_card_limit(const mo_plan_card *c)
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
static uint64_t rounding(const mo_plan_card *c, const mo_plan_bytes *b)
{
    if (!mo_plan_card_is_gpu(c))
        return 0;
    uint64_t moving = b->activations / 16 + b->logits / 16 + b->gradients / 32;
    uint64_t resting = b->parameters / 128 + b->optimizer / 128;
    if (c->allocator == MO_PLAN_ALLOCATOR_EXPANDABLE)
        return (moving + resting) / 4 + 20 * MIB;
    return moving + resting + 20 * MIB;
}

/* A captured step's private pool shares nothing with the cache that the steps before it left: what
 * a step makes is there twice. */
static uint64_t graphs(const mo_plan_card *c, const mo_plan_bytes *b)
{
    return c->cuda_graphs == MO_PLAN_YES && mo_plan_card_is_gpu(c) ? sum(b->activations, b->logits)
                                                                   : 0;
}

void mo_plan_card_add_overhead(const mo_plan_card *c, mo_plan_bytes *b)
{
    uint64_t fixed = sum(sum(c->context_bytes, c->workspace_bytes), c->other_bytes);
    b->overhead = sum(fixed, sum(rounding(c, b), graphs(c, b)));
    b->total = sum(b->total, b->overhead);
}

void mo_plan_card_explain(const mo_plan_card *c, const mo_plan_bytes *b, uint64_t kernels,
                          char *text, size_t size)
{
    uint64_t workspaces = sum(c->workspace_bytes, kernels), pool = graphs(c, b);
    uint64_t known = sum(sum(c->context_bytes, workspaces), sum(c->other_bytes, pool));
    if (b->overhead == 0)
        (void)snprintf(text, size, "none: tensors alone are counted");
    else
        (void)snprintf(
            text, size,
            "context %s, workspaces %s, other use %s, %s%srounding of the %s allocator %s",
            MO_SIZE(c->context_bytes), MO_SIZE(workspaces), MO_SIZE(c->other_bytes),
            pool > 0 ? MO_SIZE(pool) : "", pool > 0 ? " of CUDA graphs, " : "",
            c->allocator == MO_PLAN_ALLOCATOR_EXPANDABLE ? "expandable" : "classic",
            MO_SIZE(b->overhead - known));
}
