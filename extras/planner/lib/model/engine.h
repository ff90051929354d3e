/*
 * What an engine that runs a model on its devices adds to a step: one table of operations, each
 * called at one point of the step. The engines are in parallel/; the model knows this table only.
 *
 * An operation that an engine does not need is one of the mo_plan_nothing_*.
 */
#ifndef MO_PLAN_ENGINE_H
#define MO_PLAN_ENGINE_H

#include "model/optimizer.h"
#include "tape/tape.h"

typedef struct mo_plan_play mo_plan_play;

/* A weight as a device keeps it. */
typedef struct mo_plan_place {
    uint64_t bytes;          /* at rest */
    uint32_t width;          /* of an element that is computed with */
    uint64_t gradient_bytes; /* from when its gradient is there to when it is reduced or stepped */
} mo_plan_place;

typedef struct mo_plan_engine {
    /* Around everything. p->engine_state is the engine's own. */
    memopt_status (*create)(mo_plan_play *p, uint64_t layers);
    void (*destroy)(mo_plan_play *p);
    /* While weights are laid out: where a weight is kept; then that it is on the tape. */
    mo_plan_place (*place)(mo_plan_play *p, const mo_plan_weight *w);
    void (*add)(mo_plan_play *p, const mo_plan_weight *w);
    /* All weights are there. INVALID_ARGUMENT for weights that the engine refuses together. */
    memopt_status (*check)(mo_plan_play *p);
    /* The step begins: states, buckets, gradients of earlier micro-batches. */
    void (*start)(mo_plan_play *p);
    /* The model has cast its inputs. */
    void (*inputs)(mo_plan_play *p, mo_plan_value x);
    /* Around a layer's forward, from the embeddings (0) to the head; x is its input, its output. */
    void (*before_forward)(mo_plan_play *p, uint32_t layer);
    void (*input)(mo_plan_play *p, uint32_t layer, mo_plan_value x);
    void (*output)(mo_plan_play *p, uint32_t layer, mo_plan_value x);
    void (*after_forward)(mo_plan_play *p, uint32_t layer);
    /* Forward has ended with the loss. */
    void (*loss)(mo_plan_play *p, mo_plan_value loss);
    /* Backward has ended. */
    void (*finish)(mo_plan_play *p);
    /* The optimizer steps. */
    void (*step)(mo_plan_play *p);
} mo_plan_engine;

void mo_plan_nothing(mo_plan_play *p);
void mo_plan_nothing_at_weight(mo_plan_play *p, const mo_plan_weight *w);
void mo_plan_nothing_at_layer(mo_plan_play *p, uint32_t layer);
void mo_plan_nothing_at_value(mo_plan_play *p, uint32_t layer, mo_plan_value x);
void mo_plan_nothing_with(mo_plan_play *p, mo_plan_value x);

#endif
