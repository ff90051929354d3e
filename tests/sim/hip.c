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
    X(DRIVER, SAFE, device_get, (int *out), (out), 0, NONE, NONE, hipGetDevice)                    \
    X(DRIVER, SAFE, device_set, (int device), (device), 0, NONE, NONE, hipSetDevice)               \
    X(DRIVER, SAFE, properties, (hip_properties * out, int device), (out, device), 0, NONE, NONE,  \
      hipGetDevicePropertiesR0600)                                                                 \
    X(DRIVER, SAFE, old_properties, (hip_old_properties * out, int device), (out, device), 0,      \
      NONE, NONE, hipGetDeviceProperties)                                                          \
    X(CONTEXT, UNSAFE, pointer_attributes, (hip_pointer_attributes * out, const void *pointer),    \
      (out, pointer), 0, NONE, NONE, hipPointerGetAttributes)                                      \
    X(CONTEXT, SAFE, copy,                                                                         \
      (void *to, const void *from, size_t bytes, int kind, sim_stream *stream),                    \
      (to, from, bytes, kind, stream), 0, NONE, NONE, hipMemcpyAsync)

/* hipPointerAttribute_t. */
typedef struct hip_pointer_attributes {
    int type, device;
    void *device_pointer, *host_pointer;
    int managed;
    unsigned flags;
} hip_pointer_attributes;

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
           : attribute == HIP_ATTRIBUTE_MULTIPROCESSORS ? SIM_MULTIPROCESSORS
           : attribute == HIP_ATTRIBUTE_BUS             ? device + 1
           : attribute == HIP_ATTRIBUTE_BLOCK_SHARED    ? 64 << 10
           : attribute == HIP_ATTRIBUTE_PAGEABLE        ? sim_options.pageable
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
        out->multiprocessors = SIM_MULTIPROCESSORS;                                                \
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

/* ROCm 6.0 moved the types by one and made memory that is none of the runtime's no error. */
sim_status sim_call_pointer_attributes(hip_pointer_attributes *out, const void *pointer)
{
    int device = 0, before_6 = sim_options.driver_version < 60000000;
    if (out == NULL || pointer == NULL)
        return SIM_INVALID_VALUE;
    sim_memory memory = sim_locate(pointer, &device);
    memset(out, 0, sizeof *out);
    if (memory == SIM_MEMORY_NONE) {
        out->device = -2;
        return before_6 ? SIM_INVALID_VALUE : SIM_OK;
    }
    out->type = (memory == SIM_MEMORY_DEVICE) + !before_6;
    out->device = device;
    out->device_pointer = (void *)(uintptr_t)pointer;
    out->host_pointer = memory == SIM_MEMORY_HOST || before_6 ? out->device_pointer : NULL;
    return SIM_OK;
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

SIM_EXPORT const char *hipGetErrorName(int32_t code);
SIM_EXPORT const char *hipGetErrorName(int32_t code)
{
    const char *name = "hipErrorUnknown", *text;
    (void)sim_status_texts(code, &name, &text);
    return name;
}
