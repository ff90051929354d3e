/*
 * What is in the arena, and what is fetched next: decisions only, no work on a device.
 *
 * The arena is cut exactly: a layer takes its bytes, at steps of 256, first fit. The order of use is
 * learned as (before, now) -> next: forward and backward pass through the same layers, so the last
 * one alone does not say what follows. A wrong guess costs a late copy.
 *
 * What goes: the layer that is needed last; of those that nothing is known of, the one used longest
 * ago. A layer is fetched ahead only in the place of layers that are needed later than it, so
 * fetching ahead makes no copy that fetching on demand would not make.
 *
 * Invariants: `placed` has the layers in the arena by offset; they do not overlap and end within the
 * budget; a layer in use is placed.
 */
#ifndef MO_STREAM_SCHEDULE_H
#define MO_STREAM_SCHEDULE_H

#include "memopt/base.h"

enum { MO_STREAM_STEP = 256, MO_FOLLOWERS = 4 };
#define MO_NO_LAYER UINT32_MAX

/* After `before` and this layer came `next`. */
typedef struct mo_follower {
    uint32_t before, next;
} mo_follower;

typedef struct mo_placed {
    uint64_t bytes; /* a multiple of the step */
    uint64_t offset;
    uint64_t used_at;  /* number of its last begin */
    uint64_t next_use; /* begins until it is needed; UINT64_MAX: not known */
    uint32_t uses;     /* begins without their end */
    int placed;
    int goes; /* it is in the way of the one that got a place last */
    mo_follower followers[MO_FOLLOWERS];
    uint32_t replaced;   /* the follower that is forgotten next */
    double ready, ended; /* of a rehearsal, in seconds: its last copy's end, and its last use's */
} mo_placed;

typedef struct mo_schedule {
    uint64_t budget;
    mo_placed *layers;
    uint64_t layer_capacity;
    uint32_t *placed;
    uint64_t placed_capacity;
    uint32_t count, placed_count;
    uint32_t before, now; /* the last two begins */
    uint64_t clock;
    uint64_t bytes, bytes_peak; /* in the arena */
} mo_schedule;

void mo_schedule_open(mo_schedule *schedule, uint64_t budget);
void mo_schedule_close(mo_schedule *schedule);

/* bytes: a multiple of the step, at most the budget. */
memopt_status mo_schedule_add(mo_schedule *schedule, uint64_t bytes, uint32_t *out_layer);

/* The layer is used now. */
void mo_schedule_use(mo_schedule *schedule, uint32_t layer);
/* The layers of one round, which begins again behind the last. */
void mo_schedule_expect(mo_schedule *schedule, const uint32_t *layers, uint32_t count);

/* A place for a layer that is needed and has none; sets `goes` of those in it. 0: there is none. */
int mo_schedule_place(mo_schedule *schedule, uint32_t layer, uint64_t *out_offset);
/* The next layer to fetch ahead, its place, and `goes` likewise, only of layers that are needed later
 * than it. MO_NO_LAYER: none. */
uint32_t mo_schedule_ahead(mo_schedule *schedule, uint64_t *out_offset);

void mo_schedule_put(mo_schedule *schedule, uint32_t layer, uint64_t offset);
void mo_schedule_remove(mo_schedule *schedule, uint32_t layer);

/* The work of each begin in seconds, and the link's bytes a second. */
typedef struct mo_pace {
    const double *work;
    double link;
} mo_pace;

/* Copies of one round of `count` layers that is used again and again, with the bytes of these; no
 * layers: forward and backward over all. With a pace its seconds: copies run one after the other,
 * each behind the uses of those whose place it takes. */
typedef struct mo_round {
    uint64_t copies, bytes, resident;
    double seconds;
} mo_round;
memopt_status mo_schedule_rehearse(const mo_schedule *schedule, const uint32_t *layers,
                                   uint32_t count, const mo_pace *pace, mo_round *out_round);

#endif
