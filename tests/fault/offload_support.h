/*
 * What both tortures of the offloader share: a fixture, and the scenarios' common parts. Each call
 * under test is about the fixture's block, or its ticket.
 */
#ifndef TEST_FAULT_OFFLOAD_SUPPORT_H
#define TEST_FAULT_OFFLOAD_SUPPORT_H

#include "support/torture.h"

#include "offload/offload.h"
#include "unit/offload/support.h"

enum { BYTES = 300000, VALUE = 0x37 };

typedef struct fixture {
    int adversarial;
    uint64_t bytes; /* of the value */
    memopt_offloader_options options;
    int trim_first; /* unpack needs memory from the device */
    int full;       /* no host memory to read into */
    world w;
    void *block, *into;
    memopt_ticket ticket, other;
    void *data;
} fixture;

static inline memopt_device *open_device(void *context)
{
    const fixture *f = context;
    return bench_open_cpu(&(bench_device){f->adversarial ? MEMOPT_STREAM_ORDER_ADVERSARIAL
                                                         : MEMOPT_STREAM_ORDER_EAGER,
                                          0, 64 * MIB, 1});
}

static inline void setup_device(memopt_device *device, void *context)
{
    fixture *f = context;
    f->w.device = device;
    OK(memopt_allocator_create(device, NULL, NULL, &f->w.allocator));
    OK(memopt_stream_create(device, &f->w.s));
    OK(memopt_stream_create(device, &f->w.t));
    f->ticket = 0;
    f->data = NULL;
}

static inline void teardown_device(memopt_device *device, void *context)
{
    fixture *f = context;
    OK(memopt_device_sync(device));
    OK(memopt_stream_destroy(device, f->w.s));
    OK(memopt_stream_destroy(device, f->w.t));
    OK(memopt_allocator_destroy(f->w.allocator));
}

static inline memopt_status run_create(memopt_device *device, void *context)
{
    fixture *f = context;
    f->options.struct_size = sizeof f->options;
    return memopt_offloader_create(device, f->w.allocator, &f->options, &f->w.offloader);
}

static inline void undo_create(memopt_device *device, void *context)
{
    OK(memopt_offloader_destroy(((fixture *)context)->w.offloader));
}

static inline void teardown_offloader(memopt_device *device, void *context)
{
    fixture *f = context;
    OK(memopt_offloader_destroy(f->w.offloader));
    OK(memopt_allocator_free(f->w.allocator, f->into));
    teardown_device(device, context);
}

TORTURE_CALL(run_pack,
             memopt_offloader_pack(f->w.offloader, f->block, f->bytes, f->w.s, &f->ticket))
TORTURE_CALL(run_prefetch, memopt_offloader_prefetch(f->w.offloader, f->ticket))
TORTURE_CALL(run_unpack, memopt_offloader_unpack(f->w.offloader, f->ticket, f->w.t, &f->data))
TORTURE_CALL(run_unpack_into,
             mo_offloader_unpack_into(f->w.offloader, f->ticket, f->into, f->bytes, f->w.t))
TORTURE_CALL(run_release, memopt_offloader_release(f->w.offloader, f->ticket, f->w.t))

/* The handle is gone whatever happens, and takes everything with it. */
static inline memopt_status run_force(memopt_device *device, void *context)
{
    fixture *f = context;
    memopt_offloader *offloader = f->w.offloader;
    f->w.offloader = NULL;
    return memopt_offloader_destroy_force(offloader);
}

#endif
