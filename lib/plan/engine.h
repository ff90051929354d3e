/*
 * DeepSpeed's ZeRO: what it keeps and makes beside the operations of a step (deepspeed.c), and what
 * of the weights is gathered when, at stage 3 (gather.c).
 */
#ifndef MO_PLAN_ENGINE_H
#define MO_PLAN_ENGINE_H

#include "plan/play.h"

/* Bytes of gathered weights at the fullest moment of a layer's forward and of its backward. */
typedef struct mo_gathered {
    uint64_t forward, backward;
} mo_gathered;

struct mo_engine {
    mo_gathered *layers; /* stage 3 over several devices, else NULL */
    uint64_t *starts;    /* where each weight that learns starts in the flat buffer of all */
    uint32_t *learning;  /* their numbers: leaf i is that of learning[i] */
    uint32_t *filled;    /* leaves whose gradients are in the bucket, in the order they came in */
    uint32_t *late;      /* leaves whose gradients go with the next reduction */
    uint64_t count;      /* of learning */
    uint64_t filled_count, late_count;
    uint64_t elements;      /* in the bucket */
    uint64_t capacity;      /* of the bucket, in elements */
    uint64_t part;          /* elements of the flat buffer that one device steps */
    uint64_t rank;          /* the device that is played: the one that keeps gradients first */
    uint64_t kept_elements; /* of gradients that a device keeps; of the fullest */
    uint32_t bucket, kept, earlier, gathered; /* storages */
    uint32_t width;                           /* of a gradient's element */
    int stage, contiguous, overlap;
};

/* Stage 3: follows what is fetched, asked for ahead and let go over a step. `out` has an entry for
 * each layer of the play. */
memopt_status mo_gather_follow(const mo_play *p, mo_gathered *out);
/* Whether a weight stays gathered. */
int mo_gather_persists(const mo_play *p, const mo_weight *w);

#endif
