/*
 * DeepSpeed's ZeRO: what it keeps and makes beside the operations of a step (deepspeed.c), and what
 * of the weights is gathered when, at stage 3 (gather.c).
 */
#ifndef MO_PLAN_ENGINE_H
#define MO_PLAN_ENGINE_H

#include "plan/play.h"

/* Bytes of gathered weights at the fullest moment of a layer's forward and of its backward, and
 * when its forward has ended. */
typedef struct mo_gathered {
    uint64_t forward, backward, after;
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
    uint64_t alone;         /* elements of the largest weight in which a device's part lies whole */
    uint32_t bucket, kept, earlier, gathered; /* storages */
    uint32_t width;                           /* of a gradient's element */
    int stage, contiguous, overlap;
};

/* --- what the stages share (deepspeed.c) -------------------------------------------------------
 */
uint32_t mo_engine_buffer(mo_play *p, const char *label, uint64_t bytes, mo_category category);
void mo_engine_let_go(mo_play *p, uint32_t *storage);
/* a + b, or 0 and an error on the tape. */
uint64_t mo_engine_add(mo_play *p, uint64_t a, uint64_t b);
/* Whether its buffers have a place for a weight: also for one that asks for a gradient and gets
 * none.
 */
int mo_engine_has_place(const mo_weight *w);
const mo_weight *mo_engine_weight(const mo_play *p, uint32_t leaf);
void mo_engine_drop_gradient(mo_play *p, uint32_t leaf);
/* States and the copy of so many elements. */
void mo_engine_states(mo_play *p, uint64_t elements);
/* The bucket, unless it is there. */
void mo_engine_bucket(mo_play *p);

/* --- stage 3 (deepspeed_shares.c) ------------------------------------------------------------- */
/* Elements of a weight that one device has. */
uint64_t mo_engine_share(const mo_play *p, const mo_weight *w);
void mo_shares_start(mo_play *p);
/* A gradient goes into the bucket. */
void mo_shares_put(mo_play *p, uint32_t leaf);
/* Sums the bucket over the devices. */
void mo_shares_finish_bucket(mo_play *p);

/* Stage 3: follows what is fetched, asked for ahead and let go over a step. `out` has an entry for
 * each layer of the play. */
memopt_status mo_gather_follow(const mo_play *p, mo_gathered *out);
/* Whether a weight stays gathered. */
int mo_gather_persists(const mo_play *p, const mo_weight *w);

#endif
