/* DeepSpeed's ZeRO: what its stages share (deepspeed_buffers.c), and stage 3 (deepspeed_stage3.c).
 */
#ifndef MO_PLAN_DEEPSPEED_H
#define MO_PLAN_DEEPSPEED_H

#include "plan/parallel/parallel.h"

/* Bytes of gathered weights in a layer's forward and in its backward. */
typedef struct mo_plan_gathered {
    uint64_t forward, backward;
} mo_plan_gathered;

typedef struct mo_plan_deepspeed {
    mo_plan_gathered *layers; /* stage 3 over several devices, else NULL */
    uint64_t *starts;         /* where each weight that learns starts in the flat buffer of all */
    uint32_t *learning;       /* their numbers: leaf i is that of learning[i] */
    uint32_t *filled;         /* leaves whose gradients are in the bucket, in their order */
    uint64_t count;           /* of learning */
    uint64_t filled_count;
    uint64_t elements;      /* in the bucket */
    uint64_t capacity;      /* of the bucket, in elements */
    uint64_t part;          /* elements of the flat buffer that one device steps */
    uint64_t rank;          /* the device that is played: the one that keeps gradients first */
    uint64_t kept_elements; /* of gradients that a device keeps; of the fullest */
    uint64_t alone;         /* elements of the largest weight in which a device's part lies whole */
    uint32_t bucket, kept, earlier, gathered; /* storages */
    uint32_t width;                           /* of a gradient's element */
    uint32_t stage;
    int overlap;
} mo_plan_deepspeed;

static inline mo_plan_deepspeed *mo_plan_deepspeed_of(const mo_plan_play *p)
{
    return p->engine_state;
}

/* a + b, or 0 and an error on the tape. */
uint64_t mo_plan_deepspeed_add(mo_plan_play *p, uint64_t a, uint64_t b);
/* Whether its buffers have a place for a weight: also for one that asks for a gradient and gets
 * none. */
int mo_plan_deepspeed_has_place(const mo_plan_weight *w);
const mo_plan_weight *mo_plan_deepspeed_weight(const mo_plan_play *p, uint32_t leaf);
/* So many elements as the optimizer sees them: one flat tensor. */
mo_plan_weight mo_plan_deepspeed_flat(uint64_t elements);
/* States and the copy of so many elements. */
void mo_plan_deepspeed_states(mo_plan_play *p, uint64_t elements);
/* The bucket, unless it is there. */
void mo_plan_deepspeed_bucket(mo_plan_play *p);

/* --- stage 3 --- */
/* Elements of a weight that one device has. */
uint64_t mo_plan_stage3_share(const mo_plan_play *p, const mo_plan_weight *w);
void mo_plan_stage3_start(mo_plan_play *p);
/* A gradient goes into the bucket. */
void mo_plan_stage3_put(mo_plan_play *p, uint32_t leaf);
/* Sums the bucket over the devices. */
void mo_plan_stage3_reduce(mo_plan_play *p);

#endif
