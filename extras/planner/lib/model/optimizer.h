/*
 * What an optimizer keeps of a weight and what its step makes.
 */
#ifndef MO_PLAN_OPTIMIZER_H
#define MO_PLAN_OPTIMIZER_H

#include "settings/settings.h"
#include "tape/tape.h"

/* A weight, for the optimizer, the counts and sharding. */
typedef struct mo_plan_weight {
    uint64_t count, rows, columns; /* columns 0: not a matrix */
    uint64_t chunks;               /* into how many equal parts FSDP may cut it: its first size */
    uint64_t codes;                /* bytes of what is stored in few bits, without scales; else 0 */
    uint64_t whole;                /* of a shard: elements of what it is part of; else 0 */
    uint32_t layer;
    uint32_t learns;
    uint32_t adapter; /* 1: LoRA's, which has types of its own */
    uint32_t bias;    /* 1: of the module of the weight before */
    uint32_t unused;  /* 1: asks for a gradient and gets none: what it makes is not in the loss */
} mo_plan_weight;

/* Bytes of an element of a weight, and of its gradient at rest. */
uint32_t mo_plan_weight_width(const mo_plan_run *run, const mo_plan_weight *w);
uint32_t mo_plan_gradient_width(const mo_plan_run *run, const mo_plan_weight *w);

/* Bytes of the states of a weight of which a device keeps `count` elements, the master copy
 * included. */
uint64_t mo_plan_optimizer_state_bytes(mo_plan_tape *t, const mo_plan_run *run,
                                       const mo_plan_weight *w);
/* Makes them, tensor by tensor. */
void mo_plan_optimizer_make_states(mo_plan_tape *t, const mo_plan_run *run,
                                   const mo_plan_weight *w);

/* Whether the step makes a root of every weight at once, and the bytes of one. */
int mo_plan_optimizer_at_once(const mo_plan_tape *t, const mo_plan_run *run);
uint64_t mo_plan_optimizer_root_bytes(const mo_plan_run *run, const mo_plan_weight *w);

/* Bytes that the step makes on top of what is there, at its fullest moment. */
uint64_t mo_plan_optimizer_step_bytes(mo_plan_tape *t, const mo_plan_run *run,
                                      const mo_plan_weight *weights, uint64_t count);

#endif
