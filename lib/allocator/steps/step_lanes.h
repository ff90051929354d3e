/* The lanes of a plan: serving from its places, and taking them back. Called with the lock held;
 * what takes a slab may also be called in the stripe of the lane's stream, with the stripe's. */
#ifndef MO_ALLOCATOR_STEP_LANES_H
#define MO_ALLOCATOR_STEP_LANES_H

#include "allocator/steps/lane.h"

/* Those of mo_step_calls. */
mo_block *mo_lane_serve(memopt_allocator *allocator, mo_request *request);
mo_block *mo_lane_take(memopt_allocator *allocator, mo_stripe *stripe, const mo_pool *pool,
                       const mo_request *request, mo_take_cached *cached);
int mo_lane_hold(mo_slab *slab, mo_block *block);
int mo_lanes_leave(memopt_allocator *allocator, uint64_t since);

/* The slot that request->slot names, if it still waits for memory; NULL if not. */
mo_slot *mo_lane_waiting(const mo_request *request);
/* Cuts a block that is in no structure to the slot's place, which it holds. Two block structs are
 * reserved. */
mo_block *mo_lane_occupy(mo_slab *slab, mo_lane *lane, mo_slot *slot, mo_block *block,
                         uint64_t size);
/* Cuts a gap to [start, end); the rest stays gaps. Two block structs are reserved. */
mo_block *mo_lane_cut_gap(memopt_allocator *allocator, mo_block *gap, const char *start,
                          const char *end);
/* Holds what is free in the lane's regions for its places. 0: no host memory; it may be armed in
 * part. */
int mo_lane_arm(memopt_allocator *allocator, mo_lane *lane);
/* Frees what is held, until the lane is armed again. */
void mo_lane_disarm(memopt_allocator *allocator, mo_lane *lane);
/* All lanes, and the plan is forgotten: blocks in its places are ordinary ones from then on. */
void mo_lanes_drop(memopt_allocator *allocator);
/* The stream of a pool ends, or a segment does. */
void mo_lanes_end_stream(memopt_allocator *allocator, mo_pool *pool);
void mo_lanes_end_segment(const mo_segment *segment);

/* Room for the ranks of slot_count places. 0: no host memory. */
int mo_lane_make_ranks(mo_lane *lane);

#endif
