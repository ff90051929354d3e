/*
 * libcuda: what CUDA has alone (initialisation, contexts, copies by direction, entry points by name
 * and version), and its exported functions.
 */
#include "calls.h"
#include "core/control.h"

#include <stdio.h>
#include <string.h>

const int sim_is_hip = 0;

static int ready; /* cuInit has been called; guarded by the lock */

sim_status sim_vendor_ready(void)
{
    return ready ? SIM_OK : SIM_NOT_INITIALIZED;
}

sim_status sim_vendor_context(sim_context **out_context)
{
    return sim_context_require(out_context);
}

int32_t sim_vendor_outcome(int32_t code)
{
    return code;
}

/* --- what CUDA has alone ------------------------------------------------------------------- */

/* X: as SIM_CALLS in calls.h, without a HIP symbol. */
#define CUDA_CALLS(X)                                                                              \
    X(NOTHING, SAFE, init, (unsigned flags), (flags), 2000, cuInit, cuInit, NONE)                  \
    X(DRIVER, SAFE, device_get, (int *out, int ordinal), (out, ordinal), 2000, cuDeviceGet,        \
      cuDeviceGet, NONE)                                                                           \
    X(DRIVER, SAFE, context_retain, (sim_context * *out, int device), (out, device), 7000,         \
      cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, NONE)                                    \
    X(DRIVER, SAFE, context_release, (int device), (device), 11000, cuDevicePrimaryCtxRelease,     \
      cuDevicePrimaryCtxRelease_v2, NONE)                                                          \
    X(DRIVER, SAFE, context_state, (int device, unsigned *out_flags, int *out_active),             \
      (device, out_flags, out_active), 7000, cuDevicePrimaryCtxGetState,                           \
      cuDevicePrimaryCtxGetState, NONE)                                                            \
    X(DRIVER, SAFE, context_get, (sim_context * *out), (out), 4000, cuCtxGetCurrent,               \
      cuCtxGetCurrent, NONE)                                                                       \
    X(DRIVER, SAFE, context_set, (sim_context * context), (context), 4000, cuCtxSetCurrent,        \
      cuCtxSetCurrent, NONE)                                                                       \
    X(DRIVER, SAFE, context_push, (sim_context * context), (context), 4000, cuCtxPushCurrent,      \
      cuCtxPushCurrent_v2, NONE)                                                                   \
    X(CONTEXT, UNSAFE, pointer_attributes,                                                         \
      (unsigned count, const int *attributes, void **out, void *pointer),                          \
      (count, attributes, out, pointer), 7000, cuPointerGetAttributes, cuPointerGetAttributes,     \
      NONE)                                                                                        \
    X(CONTEXT, SAFE, event_elapsed, (float *out, sim_event *start, sim_event *end),                \
      (out, start, end), 12080, cuEventElapsedTime, cuEventElapsedTime_v2, NONE)                   \
    X(CONTEXT, SAFE, copy, (void *to, const void *from, size_t bytes, sim_stream *stream),         \
      (to, from, bytes, stream), 4000, cuMemcpyAsync, cuMemcpyAsync, NONE)

CUDA_CALLS(SIM_DECLARE_CALL)

sim_status sim_call_init(unsigned flags)
{
    if (flags != 0)
        return SIM_INVALID_VALUE;
    if (sim_options.devices == 0)
        return SIM_NO_DEVICE;
    ready = 1;
    return SIM_OK;
}

sim_status sim_call_device_get(int *out, int ordinal)
{
    if (!sim_known_device(ordinal))
        return SIM_INVALID_DEVICE;
    *out = ordinal;
    return SIM_OK;
}

sim_status sim_call_device_attribute(int *out, int attribute, int device)
{
    static const struct {
        int attribute, value;
    } fixed[] = {{1, 1024},  {2, 1024},      {3, 1024},     {4, 64},     {5, INT32_MAX}, {6, 65535},
                 {7, 65535}, {8, 48 << 10},  {9, 64 << 10}, {12, 65536}, {13, 1500000},  {39, 2048},
                 {41, 1},    {97, 99 << 10}, {99, 1},       {106, 32}};
    const struct {
        int attribute, value;
    } chosen[] = {{10, (int)sim_options.warp_size},
                  {16, SIM_MULTIPROCESSORS},
                  {33, device + 1},
                  {75, (int)sim_options.major},
                  {76, (int)sim_options.minor},
                  {88, sim_options.pageable},
                  {102, sim_options.virtual_memory},                      /* virtual memory */
                  {103, sim_options.virtual_memory && sim_options.share}, /* as file descriptors */
                  {110, sim_options.rdma != 0}}; /* and for remote access */
    int value = 0;
    if (!sim_known_device(device))
        return SIM_INVALID_DEVICE;
    if (out == NULL || attribute <= 0 || attribute > 150)
        return SIM_INVALID_VALUE;
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        if (fixed[i].attribute == attribute)
            value = fixed[i].value;
    for (size_t i = 0; i < sizeof chosen / sizeof chosen[0]; i++)
        if (chosen[i].attribute == attribute)
            value = chosen[i].value;
    *out = value;
    return SIM_OK;
}

sim_status sim_call_context_retain(sim_context **out, int device)
{
    return sim_known_device(device) ? sim_context_retain(device, out) : SIM_INVALID_DEVICE;
}

sim_status sim_call_context_release(int device)
{
    return sim_known_device(device) ? sim_context_release(device) : SIM_INVALID_DEVICE;
}

/* PyTorch asks for it. */
sim_status sim_call_context_state(int device, unsigned *out_flags, int *out_active)
{
    if (!sim_known_device(device))
        return SIM_INVALID_DEVICE;
    *out_flags = 0;
    *out_active = sim_devices[device].context != NULL;
    return SIM_OK;
}

sim_status sim_call_context_get(sim_context **out)
{
    *out = sim_context_current();
    return SIM_OK;
}

sim_status sim_call_context_set(sim_context *context)
{
    sim_status status = context != NULL ? sim_context_check(context) : SIM_OK;
    if (status == SIM_OK)
        sim_context_set(context);
    return status;
}

sim_status sim_call_context_push(sim_context *context)
{
    sim_status status = sim_context_check(context);
    return status == SIM_OK ? sim_context_push(context) : status;
}

/* 1: context; 2: memory type (1 host, 2 device); 8: managed; 9: device ordinal. 0: no such one. */
static int write_attribute(void *out, int attribute, sim_memory memory, int device)
{
    if (attribute == 1)
        *(sim_context **)out =
            memory == SIM_MEMORY_DEVICE ? sim_devices[device].context : sim_here();
    else if (attribute == 2)
        *(unsigned *)out = memory == SIM_MEMORY_DEVICE ? 2 : 1;
    else if (attribute == 8)
        *(unsigned char *)out = 0;
    else if (attribute == 9)
        *(int *)out = device;
    else
        return 0;
    return 1;
}

/* No failure where there is no memory: the type and the context are none, the device is invalid. */
sim_status sim_call_pointer_attributes(unsigned count, const int *attributes, void **out,
                                       void *pointer)
{
    int device = 0;
    sim_memory memory = sim_locate(pointer, &device);
    if (count == 0 || attributes == NULL || out == NULL)
        return SIM_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        if (!write_attribute(out[i], attributes[i], memory, device))
            return SIM_INVALID_VALUE;
        if (memory != SIM_MEMORY_NONE)
            continue;
        if (attributes[i] == 1)
            *(sim_context **)out[i] = NULL;
        else if (attributes[i] == 2)
            *(unsigned *)out[i] = 0;
        else if (attributes[i] == 9)
            *(int *)out[i] = -2;
    }
    return SIM_OK;
}

/* --- copies -------------------------------------------------------------------------------- */

sim_status sim_call_copy(void *to, const void *from, size_t bytes, sim_stream *stream)
{
    sim_status status = sim_use_stream(&stream);
    return status == SIM_OK ? sim_copy(stream, (uintptr_t)to, (uintptr_t)from, bytes) : status;
}

/* --- exported functions -------------------------------------------------------------------- */

#define DEFINE(needs, safety, field, parameters, arguments, since, name, symbol, hip)              \
    SIM_EXPORT int32_t symbol parameters;                                                          \
    SIM_EXPORT int32_t symbol parameters                                                           \
    {                                                                                              \
        SIM_ENTRY(#name, needs, safety, sim_call_##field arguments);                               \
    }
SIM_CALLS(DEFINE)
CUDA_CALLS(DEFINE)

SIM_EXPORT int32_t cuGetErrorName(int32_t code, const char **out);
SIM_EXPORT int32_t cuGetErrorName(int32_t code, const char **out)
{
    const char *text;
    *out = NULL;
    return sim_status_texts(code, out, &text) ? 0 : 1;
}

/* An earlier failure is told, but the stack is right. */
SIM_EXPORT int32_t cuCtxPopCurrent_v2(sim_context **out);
SIM_EXPORT int32_t cuCtxPopCurrent_v2(sim_context **out)
{
    sim_context *context = NULL;
    int32_t code = 0;
    if (!sim_enter("cuCtxPopCurrent", &code)) {
        (void)sim_context_pop(&context);
        return code;
    }
    sim_status status = sim_context_pop(&context);
    if (status == SIM_OK && out != NULL)
        *out = context;
    return sim_end(status);
}

/* --- entry points by name ------------------------------------------------------------------ */

typedef struct entry {
    const char *name;
    uint32_t since; /* of this form */
    void *function;
} entry;

SIM_EXPORT int32_t cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags,
                                       int *out_status);
SIM_EXPORT int32_t cuGetProcAddress(const char *symbol, void **out, int version, uint64_t flags);

#define ENTRY(needs, safety, field, parameters, arguments, since, name, symbol, hip)               \
    {#name, since, (void *)(uintptr_t)symbol},

static const entry entries[] = {
    CUDA_CALLS(ENTRY) /* before the table: newer forms of the same names come first */
    SIM_CALLS(ENTRY){"cuGraphInstantiate", 12000, (void *)(uintptr_t)cuGraphInstantiateWithFlags},
    {"cuGetErrorName", 6000, (void *)(uintptr_t)cuGetErrorName},
    {"cuCtxPopCurrent", 4000, (void *)(uintptr_t)cuCtxPopCurrent_v2},
    {"cuGetProcAddress", 12000, (void *)(uintptr_t)cuGetProcAddress_v2},
    {"cuGetProcAddress", 11030, (void *)(uintptr_t)cuGetProcAddress},
};

/* The newest form that both the program (`version`) and the driver know: 0. 1: no such symbol, 2:
 * not in that version. */
static int find_entry(const char *symbol, int version, void **out)
{
    int status = 1;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0] && status != 0; i++) {
        const entry *e = &entries[i];
        if (strcmp(e->name, symbol) != 0 || sim_symbol_missing(symbol))
            continue;
        status = e->since <= (uint32_t)version && e->since <= sim_options.driver_version ? 0 : 2;
        if (status == 0)
            *out = e->function;
    }
    return status;
}

/* Drivers since 12.0 tell that there is none by the status and the NULL alone. */
SIM_EXPORT int32_t cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags,
                                       int *out_status)
{
    int32_t code = 0;
    if (!sim_begin("cuGetProcAddress", SIM_NEEDS_NOTHING, SIM_SAFE, &code))
        return code;
    if (symbol == NULL || out == NULL || flags > 2)
        return sim_end(SIM_INVALID_VALUE);
    *out = NULL;
    int status = find_entry(symbol, version, out);
    if (out_status != NULL)
        *out_status = status;
    return sim_end(status == 0 || sim_options.driver_version >= 12000 ? SIM_OK : SIM_NOT_FOUND);
}

SIM_EXPORT int32_t cuGetProcAddress(const char *symbol, void **out, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(symbol, out, version, flags, NULL);
}
