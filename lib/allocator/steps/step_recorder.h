/* The recording of steps. Called with the lock held and allocator->steps set. */
#ifndef MO_ALLOCATOR_STEP_RECORDER_H
#define MO_ALLOCATOR_STEP_RECORDER_H

#include "allocator/steps/lane.h"

/* The lane of a pool's stream, made where there is none; NULL: no host memory. */
mo_lane *mo_lane_of(memopt_allocator *allocator, mo_pool *pool);

/* The sink of steps that are recorded. */
extern const mo_sink mo_step_sink;

/* The step ends and another begins: what was recorded becomes `before`. */
void mo_step_turn(mo_steps *steps);
/* Ends the recording and forgets what was recorded. */
void mo_step_stop(mo_steps *steps);
/* A step ends: its allocations count as part of the period. */
void mo_step_note_mark(mo_steps *steps);
/* After how many recorded steps they repeat, as far as that can be told; 0: they do not. */
uint32_t mo_step_find_period(const mo_steps *steps);
/* 1: every lane of the recorded step has the allocations that it had in the one before. */
int mo_step_is_alike(const mo_steps *steps);

#endif
