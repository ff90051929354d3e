/* What a step takes with some choices. */
#ifndef MO_FIT_REPLAY_H
#define MO_FIT_REPLAY_H

#include "fit/run.h"

/* Replays the choices whose flags are set, which must not exclude each other: run->result, without
 * what is there at the peak. `curve` (may be NULL): the most live bytes of every 2^shift events. */
void mo_fit_run_replay(mo_fit_run *run, const uint8_t *chosen, uint64_t *curve, uint32_t shift);
/* The same with what is there at the peak. */
void mo_fit_run_explain(mo_fit_run *run, const uint8_t *chosen);

#endif
