/* Modules that run again, of a replay. */
#ifndef MO_FIT_AGAIN_H
#define MO_FIT_AGAIN_H

#include "fit/run.h"

/* A module's forward begins, and ends. */
void mo_fit_enter(mo_fit_run *r, uint32_t module);
void mo_fit_leave(mo_fit_run *r, uint32_t module);
/* Whether a module that will run again is in its forward. */
int mo_fit_in_forward(const mo_fit_run *r, uint32_t module);
/* Runs a module's events again, up to the last that saves what is needed; then what only the run held
 * dies. */
void mo_fit_run_again(mo_fit_run *r, uint32_t module);
/* One of the packs within a module that runs again is released. */
void mo_fit_release_one(mo_fit_run *r, uint32_t module);

#endif
