/*
 * Steps of several devices, with so few tokens that weights and gradients are what is told apart.
 */
#ifndef MO_TEST_PLAN_SEVERAL_SUPPORT_H
#define MO_TEST_PLAN_SEVERAL_SUPPORT_H

#include "support.h"

/* Sizes of small_model(). */
enum { HIDDEN = 256, FFN = 1024, LAYERS = 4, WORDS = 1000 };

/* Elements of a layer of it, and of what is not in layers: embeddings, head, norm. */
static const uint64_t layer = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN + 2 * HIDDEN;
static const uint64_t root = 2 * WORDS * HIDDEN + HIDDEN;

static inline memopt_plan_run few_tokens(uint32_t sharding)
{
    memopt_plan_run r = MEMOPT_PLAN_RUN_INIT;
    r.batch = 1;
    r.sequence = 4;
    r.world_size = 2;
    r.sharding = sharding;
    r.optimizer = MEMOPT_PLAN_SGD;
    return r;
}

#endif
