/* The phases of a step, and bytes by category at one moment. */
#ifndef MO_PLAN_BYTES_H
#define MO_PLAN_BYTES_H

#include <stdint.h>

enum {
    MO_PLAN_PHASE_LOAD,     /* weights, and states of earlier steps */
    MO_PLAN_PHASE_FORWARD,  /* through the layers, up to the head */
    MO_PLAN_PHASE_LOSS,     /* head, logits and loss, forward */
    MO_PLAN_PHASE_BACKWARD, /* backward, that of the loss included */
    MO_PLAN_PHASE_STEP,     /* the optimizer's step */
    MO_PLAN_PHASES
};

typedef struct mo_plan_bytes {
    uint64_t parameters;  /* weights and buffers, weights gathered for use */
    uint64_t gradients;   /* of weights */
    uint64_t optimizer;   /* states, the master copy, and what the step makes */
    uint64_t activations; /* what autograd keeps, values and their gradients in flight */
    uint64_t logits;      /* everything as large as tokens × vocabulary (or labels) */
    uint64_t batch;       /* inputs and labels */
    uint64_t overhead;    /* context, workspaces, rounding of the allocator, other use */
    uint64_t total;       /* their sum */
} mo_plan_bytes;

#endif
