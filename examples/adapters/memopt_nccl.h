/*
 * Memory that NCCL reads and writes without copies of its own (user buffer registration, NVLS): an allocator over
 * ncclMemAlloc(), and the registration of its memory with communicators (NCCL 2.19 and later; RCCL has the same calls).
 *
 *     memopt_memory_provider provider = memopt_nccl_provider();
 *     options.provider = &provider;
 *     memopt_allocator_create(device, NULL, &options, &allocator);
 *     memopt_nccl_register(allocator, comm, &registration);
 *     ...
 *     memopt_nccl_deregister(registration); // before ncclCommDestroy() and the allocator's end
 *
 * Every segment is registered as a whole, when it is made, and deregistered before it goes. Collectives on blocks of the
 * allocator find it. A thread that allocates has the allocator's device as its current CUDA device, as for ncclMemAlloc().
 * Buffers that NCCL allocates for itself stay its own: it has no hook for them yet (nccl#2416). Tell the allocator of them
 * by memopt_allocator_set_outside().
 */
#ifndef MEMOPT_NCCL_H
#define MEMOPT_NCCL_H

#include <memopt/allocator.h>
#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ncclMemAlloc() and ncclMemFree(). */
memopt_memory_provider memopt_nccl_provider(void);

typedef struct memopt_nccl_registration memopt_nccl_registration;

/* Registers what the allocator and its pools hold, now and later. If NCCL refuses a segment, the call, or later the
 * allocation that grew, returns MEMOPT_STATUS_USER plus the ncclResult_t. Several communicators may register one
 * allocator. A segment goes back as a whole: an allocator with expandable segments gets MEMOPT_UNSUPPORTED where a part
 * of a range would go, and keeps it. */
memopt_status memopt_nccl_register(memopt_allocator *allocator, ncclComm_t comm,
                                   memopt_nccl_registration **out_registration);

/* Deregisters all of it; no collective of the communicator may be running. NULL does nothing. */
memopt_status memopt_nccl_deregister(memopt_nccl_registration *registration);

#ifdef __cplusplus
}
#endif
#endif
