/* The making of plans. Called with slow and lock held; releases and retakes lock. */
#ifndef MO_ALLOCATOR_STEP_PLAN_H
#define MO_ALLOCATOR_STEP_PLAN_H

#include "allocator/steps/lane.h"

/* Makes a plan of the recorded step and takes memory for it. OK also where it would not fit: then
 * there is none. After a failure there is none, either. */
memopt_status mo_step_plan_learn(memopt_allocator *allocator);
/* That of mo_step_calls. */
memopt_status mo_step_grow(memopt_allocator *allocator, mo_request *request, mo_block **out_block);

/* No more steps: the plan and what was recorded are forgotten. With lock only. */
void mo_steps_end(memopt_allocator *allocator);

#endif
