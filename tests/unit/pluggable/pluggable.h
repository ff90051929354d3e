/* Allocators that frameworks reach by address, on the cpu device, with a stream that can record. */
#ifndef MEMOPT_TEST_PLUGGABLE_H
#define MEMOPT_TEST_PLUGGABLE_H

#include "unit/allocator/support.h"

#include "device/front/handle.h"
#include "pluggable/pluggable.h"

static mo_device_ops ops;
static memopt_stream captured;
static int capturing, synced;
static const mo_device_ops *real;

static inline memopt_status stream_capturing(memopt_device *device, memopt_stream stream,
                                             int32_t *out)
{
    *out = capturing && stream == captured;
    return MEMOPT_OK;
}

static inline memopt_status device_sync(memopt_device *device)
{
    synced++;
    return real->sync(device);
}

/* The first allocator of device 0, with a stream that a test can let record. */
static inline memopt_allocator *start(const char *config)
{
    memopt_allocator *allocator = NULL;
    OK(memopt_pluggable_configure("cpu", config, NULL));
    OK(memopt_pluggable_get_allocator(0, 0, &allocator));
    memopt_device *device = memopt_allocator_get_device(allocator);
    real = device->ops;
    ops = *real;
    ops.stream_capturing = stream_capturing;
    ops.sync = device_sync;
    device->ops = &ops;
    OK(memopt_stream_create(device, &captured));
    capturing = synced = 0;
    return allocator;
}

static inline void stop(memopt_allocator *allocator)
{
    OK(memopt_stream_destroy(memopt_allocator_get_device(allocator), captured));
    OK(memopt_pluggable_end());
}

#endif
