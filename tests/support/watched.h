/* A cpu device whose operations a test replaces: a stream records a graph when the test says so. */
#ifndef TEST_SUPPORT_WATCHED_H
#define TEST_SUPPORT_WATCHED_H

#include "device/front/handle.h"

static mo_device_ops ops;
static const mo_device_ops *real;
static memopt_stream captured; /* NULL: none records */

static inline memopt_status says_captured(memopt_device *device, memopt_stream stream, int32_t *out)
{
    *out = captured != NULL && stream == captured;
    return MEMOPT_OK;
}

static inline memopt_device *watch(memopt_device *device)
{
    real = device->ops;
    ops = *real;
    ops.stream_capturing = says_captured;
    device->ops = &ops;
    captured = NULL;
    return device;
}

#endif
