#include "memopt_nccl.h"

#include <stdlib.h>

/* One that NCCL was told of. The observer's calls come one after the other, so the list needs no lock. */
typedef struct segment {
    struct segment *next;
    void *address, *handle;
    uint64_t bytes;
} segment;

struct memopt_nccl_registration {
    memopt_allocator *allocator;
    ncclComm_t comm;
    uint64_t observer;
    segment *segments;
};

/* NCCL does not tell a lack of memory from other failures of CUDA. The allocator gives free memory back then and asks
 * once more, which does no harm. */
static memopt_status take(void *user, uint64_t bytes, void **out_pointer)
{
    (void)user;
    switch (ncclMemAlloc(out_pointer, (size_t)bytes)) {
    case ncclSuccess:
        return MEMOPT_OK;
    case ncclUnhandledCudaError:
        return MEMOPT_OUT_OF_DEVICE_MEMORY;
    default:
        return MEMOPT_DRIVER_ERROR;
    }
}

static memopt_status give_back(void *user, void *pointer, uint64_t bytes)
{
    (void)user, (void)bytes;
    return ncclMemFree(pointer) == ncclSuccess ? MEMOPT_OK : MEMOPT_DRIVER_ERROR;
}

memopt_memory_provider memopt_nccl_provider(void)
{
    memopt_memory_provider provider = MEMOPT_MEMORY_PROVIDER_INIT;
    provider.alloc = take;
    provider.free = give_back;
    return provider;
}

static memopt_status status_of(ncclResult_t result)
{
    return result == ncclSuccess ? MEMOPT_OK : (memopt_status)(MEMOPT_STATUS_USER + (int)result);
}

static memopt_status add(memopt_nccl_registration *r, void *address, uint64_t bytes)
{
    segment *s = malloc(sizeof *s);
    if (s == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    *s = (segment){r->segments, address, NULL, bytes};
    memopt_status status = status_of(ncclCommRegister(r->comm, address, (size_t)bytes, &s->handle));
    if (status == MEMOPT_OK)
        r->segments = s;
    else
        free(s);
    return status;
}

static memopt_status drop(memopt_nccl_registration *r, segment **at)
{
    segment *s = *at;
    memopt_status status = status_of(ncclCommDeregister(r->comm, s->handle));
    if (status == MEMOPT_OK) {
        *at = s->next;
        free(s);
    }
    return status;
}

static memopt_status follow(void *user, const memopt_range_event *event)
{
    memopt_nccl_registration *r = user;
    const char *first = event->address, *end = first + event->bytes;
    if (event->kind == MEMOPT_RANGE_MAPPED)
        return add(r, event->address, event->bytes);
    for (segment **at = &r->segments; *at != NULL;) {
        const char *begins = (*at)->address, *ends = begins + (*at)->bytes;
        if (ends <= first || begins >= end) {
            at = &(*at)->next;
            continue;
        }
        if (begins < first || ends > end)
            return MEMOPT_UNSUPPORTED;
        memopt_status status = drop(r, at);
        if (status != MEMOPT_OK)
            return status;
    }
    return MEMOPT_OK;
}

memopt_status memopt_nccl_register(memopt_allocator *allocator, ncclComm_t comm,
                                   memopt_nccl_registration **out_registration)
{
    if (allocator == NULL || comm == NULL || out_registration == NULL)
        return MEMOPT_INVALID_ARGUMENT;
    memopt_nccl_registration *r = malloc(sizeof *r);
    if (r == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    *r = (memopt_nccl_registration){allocator, comm, 0, NULL};
    memopt_status status = memopt_allocator_add_range_observer(allocator, follow, r, &r->observer);
    if (status == MEMOPT_OK) {
        *out_registration = r;
        return MEMOPT_OK;
    }
    while (r->segments != NULL && drop(r, &r->segments) == MEMOPT_OK)
        ;
    free(r);
    return status;
}

memopt_status memopt_nccl_deregister(memopt_nccl_registration *registration)
{
    if (registration == NULL)
        return MEMOPT_OK;
    memopt_status status =
        memopt_allocator_remove_range_observer(registration->allocator, registration->observer);
    if (status == MEMOPT_BUSY) /* called by an observer: nothing changed */
        return status;
    while (registration->segments != NULL && status == MEMOPT_OK)
        status = drop(registration, &registration->segments);
    for (segment *s; (s = registration->segments) != NULL; free(s))
        registration->segments = s->next;
    free(registration);
    return status;
}
