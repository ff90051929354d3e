/* The lanes of a plan: serving from its places, and taking them back. Called with the lock held;
 * what takes a slab may also be called in the stripe of the lane's stream, with the stripe's. */
#ifndef MO_ALLOCATOR_STEP_LANES_H
#define MO_ALLOCATOR_STEP_LANES_H

#include "allocator/steps/steps.h"

/* 0: the lane's next allocation has a place that is not free. */
int mo_lane_is_ready(const mo_lane *lane, uint64_t size);
/* The place of the lane's next allocation, cut out of its gap; request->pool is then its segment's.
 * NULL: it is served online. request->slot is set where it has a place that lacks memory. Two block
 * structs are reserved. */
mo_block *mo_lane_serve(memopt_allocator *allocator, mo_lane *lane, mo_request *request);
/* The slot of the lane's next allocation, which may have no place; NULL if the step differs from
 * the plan. In the stripe, too. */
static inline mo_slot *mo_lane_next(const mo_lane *lane, uint64_t size)
{
    if (lane->at == lane->slot_count || size > mo_slot_bytes(&lane->slots[lane->at]))
        return NULL;
    return &lane->slots[lane->at];
}
/* The gap that holds the slot's place; NULL if it is not free. In the stripe, too. */
mo_block *mo_lane_gap(const mo_lane *lane, mo_slot *slot, uint64_t size);
/* The slot that request->slot names, if it still waits for memory; NULL if not. */
mo_slot *mo_lane_waiting(const mo_request *request);
/* Cuts a block that is in no structure to the slot's place, which it holds. Two block structs are
 * reserved. */
mo_block *mo_lane_occupy(mo_slab *slab, mo_lane *lane, mo_slot *slot, mo_block *block,
                         uint64_t size);
/* Cuts a gap to [start, end); the rest stays gaps. Two block structs are reserved. */
mo_block *mo_lane_cut_gap(memopt_allocator *allocator, mo_block *gap, const char *start,
                          const char *end);
/* A block with `planned` is no longer in use; 1: what it leaves is to be held for places. In the
 * stripe, too. */
int mo_lane_vacate(mo_block *block);
/* Holds a block that is in no structure. */
void mo_lane_hold(mo_slab *slab, mo_block *block);

/* Holds what is free in the lane's regions for its places. 0: no host memory; it may be armed in
 * part. */
int mo_lane_arm(memopt_allocator *allocator, mo_lane *lane);
/* Frees what is held, until the lane is armed again. */
void mo_lane_disarm(memopt_allocator *allocator, mo_lane *lane);
/* All lanes; they are armed again at the next mark. */
void mo_lanes_leave(memopt_allocator *allocator);
/* The same, and the plan is forgotten: blocks in its places are ordinary ones from then on. */
void mo_lanes_drop(memopt_allocator *allocator);
/* 1: the segment has places. */
int mo_lanes_use_segment(const mo_segment *segment);
/* The stream of a pool ends, or a segment does. */
void mo_lanes_end_stream(memopt_allocator *allocator, mo_pool *pool);
void mo_lanes_end_segment(const mo_segment *segment);

/* Room for the ranks of slot_count places. 0: no host memory. */
int mo_lane_make_ranks(mo_lane *lane);

#endif
