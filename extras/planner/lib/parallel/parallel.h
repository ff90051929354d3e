/* The engines, and what they share. */
#ifndef MO_PLAN_PARALLEL_H
#define MO_PLAN_PARALLEL_H

#include "model/play.h"

/* One device; replicas (DDP, and torch's ZeroRedundancyOptimizer for zero1); FSDP for zero2 and
 * zero3. */
extern const mo_plan_engine mo_plan_engine_none, mo_plan_engine_ddp, mo_plan_engine_fsdp;

const mo_plan_engine *mo_plan_engine_of(const mo_plan_run *r);

/* --- shared.c --------------------------------------------------------------------------------
 */
/* The states of `weights` on one device, on the device or on the host, and what their step makes.
 * `chunks` of a weight is the number of the device that steps it. */
void mo_plan_make_states(mo_plan_play *p, const mo_plan_weight *weights, uint64_t count);
/* Every weight's gradient, from the second micro-batch on. */
void mo_plan_make_gradients(mo_plan_play *p);
/* The step of those states. */
void mo_plan_step_states(mo_plan_play *p);
/* INVALID_ARGUMENT where weights that learn have two types; group 1: only those outside layers. */
memopt_status mo_plan_check_types(mo_plan_play *p, int outside_layers, const char *who);

/* A new storage for an engine's own use; `label` says for what. */
uint32_t mo_plan_buffer(mo_plan_play *p, const char *label, uint64_t bytes,
                        mo_plan_category category);
void mo_plan_buffer_drop(mo_plan_play *p, uint32_t *storage);

/* --- fsdp.c ------------------------------------------------------------------------------------
 */
/* Whether gradients of micro-batches before the last stay whole until the last one's come. */
int mo_plan_fsdp_waits(const mo_plan_run *r);

/* --- partition.c -------------------------------------------------------------------------------
 */
/* Learning weights by the device that steps them, a device's in the order of its steps; their
 * `chunks` then hold its number. `out` has room for `count`. */
memopt_status mo_plan_partition(const mo_plan_weight *weights, uint64_t count, uint64_t world,
                                mo_plan_weight *out, uint64_t *out_count);
/* The most that one device of a partition has of states, and makes in its step. Gives where the
 * weights of the device with most states begin, and in `own` how many they are. */
const mo_plan_weight *mo_plan_partition_largest(mo_plan_tape *t, const mo_plan_run *run,
                                                const mo_plan_weight *parts, uint64_t count,
                                                uint64_t *own, uint64_t *states, uint64_t *step);

#endif
