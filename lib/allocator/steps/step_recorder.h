/* The recording of steps. Called with the lock held and allocator->steps set. */
#ifndef MO_ALLOCATOR_STEP_RECORDER_H
#define MO_ALLOCATOR_STEP_RECORDER_H

#include "allocator/steps/steps.h"

/* The lane of a pool's stream, made where there is none; NULL: no host memory. */
mo_lane *mo_lane_of(memopt_allocator *allocator, mo_pool *pool);

void mo_step_note_alloc(memopt_allocator *allocator, mo_block *block, const mo_request *request);
/* A free that waits for streams. */
void mo_step_note_free(memopt_allocator *allocator, const mo_block *block);
/* A block with an entry goes back to its pool. */
void mo_step_note_end(memopt_allocator *allocator, mo_block *block);

/* The step ends and another begins: what was recorded becomes `before`. */
void mo_step_turn(mo_steps *steps);
/* Ends the recording and forgets what was recorded. */
void mo_step_stop(mo_steps *steps);
/* 1: every lane of the recorded step has the allocations that it had in the one before. */
int mo_step_is_alike(const mo_steps *steps);

#endif
