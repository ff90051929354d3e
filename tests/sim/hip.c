/*
 * libamdhip64: what HIP has alone (a current device for each thread in place of a context, primary
 * contexts that it makes by itself, the last error, properties), and its exported functions.
 */
#include "calls.h"
#include "core/control.h"

#include "hip_properties.h"

#include <stdio.h>
#include <string.h>

const int sim_is_hip = 1;

static __thread int current_device;
static __thread int32_t last_error;

sim_status sim_vendor_ready(void)
{
    return sim_options.devices == 0 ? SIM_NO_DEVICE : SIM_OK;
}

/* The current device's primary context, made when it is first needed. */
sim_status sim_vendor_context(sim_context **out_context)
{
    const sim_device *d = &sim_devices[current_device];
    if (d->context == NULL) {
        sim_status status = sim_context_retain(current_device, out_context);
        if (status != SIM_OK)
            return status;
    }
    *out_context = d->context;
    return d->context->sticky;
}

/* Not ready is no error to the runtime. */
int32_t sim_vendor_outcome(int32_t code)
{
    if (code != 0 && code != 600)
        last_error = code;
    return code;
}

/* --- what HIP has alone -------------------------------------------------------------------- */

/* X: as SIM_CALLS in calls.h, without CUDA's columns. */
#define HIP_CALLS(X)                                                                               \
    X(DRIVER, SAFE, init, (unsigned flags), (flags), 0, NONE, NONE, hipInit)                       \
    X(DRIVER, SAFE, driver_version, (int *out), (out), 0, NONE, NONE, hipRuntimeGetVersion)        \
    X(DRIVER, SAFE, device_get, (int *out), (out), 0, NONE, NONE, hipGetDevice)                    \
    X(DRIVER, SAFE, device_set, (int device), (device), 0, NONE, NONE, hipSetDevice)               \
    X(DRIVER, SAFE, properties, (hip_properties * out, int device), (out, device), 0, NONE, NONE,  \
      hipGetDevicePropertiesR0600)                                                                 \
    X(DRIVER, SAFE, old_properties, (hip_old_properties * out, int device), (out, device), 0,      \
      NONE, NONE, hipGetDeviceProperties)                                                          \
    X(CONTEXT, SAFE, stream_create_plain, (sim_stream * *out), (out), 0, NONE, NONE,               \
      hipStreamCreate)                                                                             \
    X(CONTEXT, SAFE, stream_device, (sim_stream * stream, int *out), (stream, out), 0, NONE, NONE, \
      hipStreamGetDevice)                                                                          \
    X(CONTEXT, SAFE, copy,                                                                         \
      (void *to, const void *from, size_t bytes, int kind, sim_stream *stream),                    \
      (to, from, bytes, kind, stream), 0, NONE, NONE, hipMemcpyAsync)                              \
    X(CONTEXT, SAFE, fill, (void *to, int value, size_t count, sim_stream *stream),                \
      (to, value, count, stream), 0, NONE, NONE, hipMemsetAsync)

HIP_CALLS(SIM_DECLARE_CALL)

sim_status sim_call_init(unsigned flags)
{
    return flags == 0 ? SIM_OK : SIM_INVALID_VALUE;
}

sim_status sim_call_device_get(int *out)
{
    if (out == NULL)
        return SIM_INVALID_VALUE;
    *out = current_device;
    return SIM_OK;
}

sim_status sim_call_device_set(int device)
{
    if (!sim_known_device(device))
        return SIM_INVALID_DEVICE;
    current_device = device;
    return SIM_OK;
}

/* The numbering since ROCm 5.0, which 6 and 7 kept. */
sim_status sim_call_device_attribute(int *out, int attribute, int device)
{
    if (!sim_known_device(device))
        return SIM_INVALID_DEVICE;
    if (out == NULL || attribute < 0)
        return SIM_INVALID_VALUE;
    *out = attribute == HIP_ATTRIBUTE_BLOCK_THREADS     ? 1024
           : attribute == HIP_ATTRIBUTE_MULTIPROCESSORS ? (int)sim_options.multiprocessors
           : attribute == HIP_ATTRIBUTE_BUS             ? device + 1
           : attribute == HIP_ATTRIBUTE_BLOCK_SHARED    ? 64 << 10
           : attribute == HIP_ATTRIBUTE_WARP            ? (int)sim_options.warp_size
           : attribute == HIP_ATTRIBUTE_VIRTUAL_MEMORY  ? sim_options.virtual_memory
                                                        : 0;
    return SIM_OK;
}

/* Fields that are not asked for hold what no program takes for theirs. */
#define FILL_PROPERTIES(out, device)                                                               \
    do {                                                                                           \
        if (!sim_known_device(device))                                                             \
            return SIM_INVALID_DEVICE;                                                             \
        if (out == NULL)                                                                           \
            return SIM_INVALID_VALUE;                                                              \
        memset(out, 0x55, sizeof *out);                                                            \
        snprintf(out->name, sizeof out->name, "%s", sim_options.name);                             \
        snprintf(out->gcn_arch_name, sizeof out->gcn_arch_name, "%s:sramecc+:xnack-",              \
                 sim_options.gfx);                                                                 \
        out->total_memory = sim_devices[device].total;                                             \
        out->warp_size = (int)sim_options.warp_size;                                               \
        out->multiprocessors = (int)sim_options.multiprocessors;                                   \
    } while (0)

sim_status sim_call_properties(hip_properties *out, int device)
{
    FILL_PROPERTIES(out, device);
    return SIM_OK;
}

sim_status sim_call_old_properties(hip_old_properties *out, int device)
{
    FILL_PROPERTIES(out, device);
    return SIM_OK;
}

sim_status sim_call_stream_create_plain(sim_stream **out)
{
    return sim_call_stream_create(out, 0);
}

sim_status sim_call_stream_device(sim_stream *stream, int *out)
{
    sim_status status = (uintptr_t)stream <= 1 ? SIM_OK : sim_stream_check(stream, NULL);
    if (status == SIM_OK)
        *out = (uintptr_t)stream <= 1 ? sim_here()->device : stream->context->device;
    return status;
}

/* The kind must be right: 0 host to host, 1 to the device, 2 from it, 3 within it, 4 by address. */
sim_status sim_call_copy(void *to, const void *from, size_t bytes, int kind, sim_stream *stream)
{
    sim_status status = sim_use_stream(&stream);
    if (status != SIM_OK)
        return status;
    if (kind < 0 || kind > 4 || (kind < 4 && kind != sim_on_device(to) + 2 * sim_on_device(from)))
        return SIM_INVALID_VALUE;
    return sim_copy(stream, (uintptr_t)to, (uintptr_t)from, bytes);
}

sim_status sim_call_fill(void *to, int value, size_t count, sim_stream *stream)
{
    return sim_call_fill8(to, (unsigned char)value, count, stream);
}

/* --- exported functions -------------------------------------------------------------------- */

#define DEFINE(needs, safety, field, parameters, arguments, since, name, symbol, hip)              \
    SIM_EXPORT int32_t hip parameters;                                                             \
    SIM_EXPORT int32_t hip parameters                                                              \
    {                                                                                              \
        SIM_ENTRY(#hip, needs, safety, sim_call_##field arguments);                                \
    }
SIM_CALLS(DEFINE)
HIP_CALLS(DEFINE)

SIM_EXPORT int32_t hipGetLastError(void);
SIM_EXPORT int32_t hipGetLastError(void)
{
    int32_t code = last_error;
    last_error = 0;
    return code;
}

SIM_EXPORT int32_t hipPeekAtLastError(void);
SIM_EXPORT int32_t hipPeekAtLastError(void)
{
    return last_error;
}

SIM_EXPORT const char *hipGetErrorName(int32_t code);
SIM_EXPORT const char *hipGetErrorName(int32_t code)
{
    const char *name = "hipErrorUnknown", *text;
    (void)sim_status_texts(code, &name, &text);
    return name;
}

SIM_EXPORT const char *hipGetErrorString(int32_t code);
SIM_EXPORT const char *hipGetErrorString(int32_t code)
{
    const char *name, *text = "unknown error";
    (void)sim_status_texts(code, &name, &text);
    return text;
}
