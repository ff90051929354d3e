/* Why an allocation has failed. */
#ifndef MO_ALLOCATOR_CAUSE_H
#define MO_ALLOCATOR_CAUSE_H

#include "allocator/blocks/state.h"

/* What the caller has found out before: bytes free on the device, and bytes that other members of
 * the family have free and keep. */
typedef struct mo_oom_outside {
    uint64_t device_free;
    uint64_t pools_free;
} mo_oom_outside;

/* Fills in *out by the counters and one walk over the blocks. Slow and lock held. */
void mo_cause_find(memopt_allocator *allocator, const mo_request *request,
                   const mo_oom_outside *outside, memopt_oom_report *out);

#endif
