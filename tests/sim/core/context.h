/* Primary contexts and the calling thread's stack of current ones. */
#ifndef MEMOPT_SIM_CONTEXT_H
#define MEMOPT_SIM_CONTEXT_H

#include "core/sim.h"

/* The primary context of a device, one reference more; and one less. */
sim_status sim_context_retain(int device, sim_context **out_context);
sim_status sim_context_release(int device);
sim_status sim_context_check(const sim_context *context);
/* The calling thread's current context, NULL if there is none. */
sim_context *sim_context_current(void);
sim_status sim_context_push(sim_context *context);
sim_status sim_context_pop(sim_context **out_context);
/* Replaces the top; NULL pops it. */
void sim_context_set(sim_context *context);
/* OK with a usable current context. */
sim_status sim_context_require(sim_context **out_context);

#endif
