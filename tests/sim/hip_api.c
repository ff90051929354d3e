/*
 * The entry points of libamdhip64 over the core. The runtime keeps a current device for each thread
 * instead of a context, makes primary contexts by itself, and remembers the last error.
 */
#include "core/context.h"
#include "core/control.h"
#include "core/sim.h"
#include "module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int32_t hipError_t;

typedef struct location {
    int type, id;
} location;

typedef struct allocation_properties {
    int type, handle_types;
    location where;
    void *metadata;
    unsigned char compression, rdma;
    unsigned short usage;
} allocation_properties;

typedef struct access_description {
    location where;
    int flags;
} access_description;

const int sim_is_hip = 1;

/* HIP has no number for a driver that is too old for an image or for host functions' calls. */
static const hipError_t codes[SIM_STATUS_COUNT] = {
    [SIM_OK] = 0,
    [SIM_INVALID_VALUE] = 1,
    [SIM_OUT_OF_MEMORY] = 2,
    [SIM_NOT_INITIALIZED] = 3,
    [SIM_NO_DEVICE] = 100,
    [SIM_INVALID_DEVICE] = 101,
    [SIM_INVALID_IMAGE] = 200,
    [SIM_INVALID_CONTEXT] = 201,
    [SIM_NO_BINARY] = 209,
    [SIM_UNSUPPORTED_PTX] = 200,
    [SIM_INVALID_HANDLE] = 400,
    [SIM_CONTEXT_DESTROYED] = 709,
    [SIM_NOT_FOUND] = 500,
    [SIM_NOT_READY] = 600,
    [SIM_ILLEGAL_ADDRESS] = 700,
    [SIM_OUT_OF_RESOURCES] = 701,
    [SIM_LAUNCH_FAILED] = 719,
    [SIM_HOST_REGISTERED] = 712,
    [SIM_HOST_NOT_REGISTERED] = 713,
    [SIM_NOT_PERMITTED] = 800,
    [SIM_NOT_SUPPORTED] = 801,
    [SIM_CAPTURE_UNSUPPORTED] = 900,
    [SIM_CAPTURE_INVALIDATED] = 901,
    [SIM_CAPTURE_UNMATCHED] = 903,
    [SIM_CAPTURE_UNJOINED] = 904,
    [SIM_CAPTURE_IMPLICIT] = 906,
    [SIM_UNKNOWN] = 999,
};

static __thread int current_device;
static __thread hipError_t last_error;

static hipError_t remember(hipError_t code)
{
    if (code != 0 && code != 600)
        last_error = code;
    return code;
}

static hipError_t leave(sim_status status)
{
    sim_leave();
    return remember(codes[status]);
}

#define ENTER(call)                                                                                \
    hipError_t armed_ = 0;                                                                         \
    if (!sim_enter(call, &armed_))                                                                 \
        return remember(armed_);                                                                   \
    if (sim_options.devices == 0)                                                                  \
    return leave(SIM_NO_DEVICE)
#define ENTER_CONTEXT(call)                                                                        \
    sim_context *context = NULL;                                                                   \
    ENTER(call);                                                                                   \
    do {                                                                                           \
        sim_status usable_ = use_device(&context);                                                 \
        if (usable_ != SIM_OK)                                                                     \
            return leave(usable_);                                                                 \
    } while (0)

/* The current device's primary context, made when it is first needed. */
static sim_status use_device(sim_context **out_context)
{
    sim_device *d = &sim_devices[current_device];
    if (d->context == NULL) {
        sim_status status = sim_context_retain(current_device, out_context);
        if (status != SIM_OK)
            return status;
    }
    *out_context = d->context;
    return d->context->sticky;
}

static int known_device(int device)
{
    return device >= 0 && device < sim_options.devices;
}

/* --- errors, version, devices -------------------------------------------------------------- */

SIM_EXPORT hipError_t hipGetLastError(void)
{
    hipError_t code = last_error;
    last_error = 0;
    return code;
}

SIM_EXPORT hipError_t hipPeekAtLastError(void)
{
    return last_error;
}

typedef struct error_text {
    hipError_t code;
    const char *name, *text;
} error_text;

static const error_text error_texts[] = {
    {0, "hipSuccess", "no error"},
    {1, "hipErrorInvalidValue", "invalid argument"},
    {2, "hipErrorOutOfMemory", "out of memory"},
    {3, "hipErrorNotInitialized", "initialization error"},
    {100, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {101, "hipErrorInvalidDevice", "invalid device ordinal"},
    {200, "hipErrorInvalidImage", "device kernel image is invalid"},
    {201, "hipErrorInvalidContext", "invalid device context"},
    {209, "hipErrorNoBinaryForGpu", "no kernel image is available for execution on the device"},
    {400, "hipErrorInvalidHandle", "invalid resource handle"},
    {500, "hipErrorNotFound", "named symbol not found"},
    {600, "hipErrorNotReady", "device not ready"},
    {700, "hipErrorIllegalAddress", "an illegal memory access was encountered"},
    {701, "hipErrorLaunchOutOfResources", "too many resources requested for launch"},
    {709, "hipErrorContextIsDestroyed", "context is destroyed"},
    {712, "hipErrorHostMemoryAlreadyRegistered", "part or all of the range is registered"},
    {713, "hipErrorHostMemoryNotRegistered", "pointer does not correspond to registered memory"},
    {719, "hipErrorLaunchFailure", "unspecified launch failure"},
    {801, "hipErrorNotSupported", "operation not supported"},
    {900, "hipErrorStreamCaptureUnsupported", "operation not permitted while capturing"},
    {901, "hipErrorStreamCaptureInvalidated", "the capture was invalidated"},
    {903, "hipErrorStreamCaptureUnmatched", "the capture began on another stream"},
    {906, "hipErrorStreamCaptureImplicit", "the legacy stream cannot be captured"},
    {999, "hipErrorUnknown", "unknown error"},
};

static const error_text *find_error(hipError_t code)
{
    size_t count = sizeof error_texts / sizeof error_texts[0];
    for (size_t i = 0; i < count; i++)
        if (error_texts[i].code == code)
            return &error_texts[i];
    return &error_texts[count - 1];
}

SIM_EXPORT const char *hipGetErrorName(hipError_t code)
{
    return find_error(code)->name;
}

SIM_EXPORT const char *hipGetErrorString(hipError_t code)
{
    return find_error(code)->text;
}

SIM_EXPORT hipError_t hipInit(unsigned flags)
{
    ENTER("hipInit");
    return leave(flags == 0 ? SIM_OK : SIM_INVALID_VALUE);
}

SIM_EXPORT hipError_t hipDriverGetVersion(int *out)
{
    ENTER("hipDriverGetVersion");
    *out = (int)sim_options.driver_version;
    return leave(SIM_OK);
}

SIM_EXPORT hipError_t hipRuntimeGetVersion(int *out)
{
    ENTER("hipRuntimeGetVersion");
    *out = (int)sim_options.driver_version;
    return leave(SIM_OK);
}

SIM_EXPORT hipError_t hipGetDeviceCount(int *out)
{
    ENTER("hipGetDeviceCount");
    *out = sim_options.devices;
    return leave(SIM_OK);
}

SIM_EXPORT hipError_t hipGetDevice(int *out)
{
    ENTER("hipGetDevice");
    *out = current_device;
    return leave(SIM_OK);
}

SIM_EXPORT hipError_t hipSetDevice(int device)
{
    ENTER("hipSetDevice");
    if (!known_device(device))
        return leave(SIM_INVALID_DEVICE);
    current_device = device;
    return leave(SIM_OK);
}

SIM_EXPORT hipError_t hipDeviceGetName(char *out, int length, int device)
{
    ENTER("hipDeviceGetName");
    if (!known_device(device))
        return leave(SIM_INVALID_DEVICE);
    snprintf(out, (size_t)length, "%s", sim_options.name);
    return leave(SIM_OK);
}

SIM_EXPORT hipError_t hipDeviceTotalMem(size_t *out, int device)
{
    ENTER("hipDeviceTotalMem");
    if (!known_device(device))
        return leave(SIM_INVALID_DEVICE);
    *out = sim_devices[device].total;
    return leave(SIM_OK);
}

/* The numbering since ROCm 5. */
SIM_EXPORT hipError_t hipDeviceGetAttribute(int *out, int attribute, int device)
{
    ENTER("hipDeviceGetAttribute");
    if (!known_device(device))
        return leave(SIM_INVALID_DEVICE);
    if (out == NULL || attribute < 0)
        return leave(SIM_INVALID_VALUE);
    switch (attribute) {
    case 56: /* threads of a block */
        *out = 1024;
        break;
    case 63:
        *out = (int)sim_options.multiprocessors;
        break;
    case 67: /* bus */
        *out = device + 1;
        break;
    case 74: /* shared memory of a block */
        *out = 64 << 10;
        break;
    case 87:
        *out = (int)sim_options.warp_size;
        break;
    case 89:
        *out = sim_options.virtual_memory;
        break;
    default:
        *out = 0;
        break;
    }
    return leave(SIM_OK);
}

/* Two layouts of the same struct; what is written is where each has it. */
static hipError_t properties(const char *call, char *out, int device, int old)
{
    ENTER(call);
    if (!known_device(device))
        return leave(SIM_INVALID_DEVICE);
    size_t total = sim_devices[device].total;
    int warp = (int)sim_options.warp_size, count = (int)sim_options.multiprocessors;
    memset(out, 0, old ? 652 : 1472);
    snprintf(out, 256, "%s", sim_options.name);
    memcpy(out + (old ? 256 : 288), &total, sizeof total);
    memcpy(out + (old ? 276 : 308), &warp, sizeof warp);
    memcpy(out + (old ? 336 : 388), &count, sizeof count);
    snprintf(out + (old ? 396 : 1160), 256, "%s:sramecc+:xnack-", sim_options.gfx);
    return leave(SIM_OK);
}

SIM_EXPORT hipError_t hipGetDevicePropertiesR0600(char *out, int device)
{
    return properties("hipGetDeviceProperties", out, device, 0);
}

SIM_EXPORT hipError_t hipGetDeviceProperties(char *out, int device)
{
    return properties("hipGetDeviceProperties", out, device, 1);
}

SIM_EXPORT hipError_t hipDeviceSynchronize(void)
{
    ENTER_CONTEXT("hipDeviceSynchronize");
    return leave(sim_context_sync(context));
}

SIM_EXPORT hipError_t hipMemGetInfo(size_t *out_free, size_t *out_total)
{
    ENTER_CONTEXT("hipMemGetInfo");
    const sim_device *d = &sim_devices[context->device];
    *out_free = d->used < d->total ? d->total - d->used : 0;
    *out_total = d->total;
    return leave(SIM_OK);
}

/* --- memory -------------------------------------------------------------------------------- */

SIM_EXPORT hipError_t hipMalloc(void **out, size_t bytes)
{
    uintptr_t address = 0;
    ENTER_CONTEXT("hipMalloc");
    sim_status status = bytes != 0 ? sim_mem_alloc(context, bytes, &address) : SIM_OK;
    if (status == SIM_OK)
        *out = (void *)address;
    return leave(status);
}

SIM_EXPORT hipError_t hipFree(void *pointer)
{
    ENTER_CONTEXT("hipFree");
    return leave(pointer != NULL ? sim_mem_free(context, (uintptr_t)pointer) : SIM_OK);
}

SIM_EXPORT hipError_t hipHostMalloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    ENTER_CONTEXT("hipHostMalloc");
    return leave(sim_host_alloc(bytes, out));
}

SIM_EXPORT hipError_t hipHostFree(void *pointer)
{
    ENTER_CONTEXT("hipHostFree");
    return leave(pointer != NULL ? sim_host_free((uintptr_t)pointer) : SIM_OK);
}

SIM_EXPORT hipError_t hipHostRegister(void *pointer, size_t bytes, unsigned flags)
{
    (void)flags;
    ENTER_CONTEXT("hipHostRegister");
    return leave(sim_host_register((uintptr_t)pointer, bytes));
}

SIM_EXPORT hipError_t hipHostUnregister(void *pointer)
{
    ENTER_CONTEXT("hipHostUnregister");
    return leave(sim_host_unregister((uintptr_t)pointer));
}

static sim_status check_properties(const allocation_properties *p)
{
    if (!sim_options.virtual_memory)
        return SIM_NOT_SUPPORTED;
    if (p == NULL || p->type != 1 || p->where.type != 1 || p->metadata != NULL ||
        (p->handle_types & ~1) != 0 || p->rdma != 0 || p->compression != 0 || p->usage != 0)
        return SIM_INVALID_VALUE;
    return known_device(p->where.id) ? SIM_OK : SIM_INVALID_DEVICE;
}

SIM_EXPORT hipError_t hipMemGetAllocationGranularity(size_t *out, const allocation_properties *p,
                                                     int option)
{
    ENTER("hipMemGetAllocationGranularity");
    sim_status status = check_properties(p);
    if (status == SIM_OK && (out == NULL || option < 0 || option > 1))
        status = SIM_INVALID_VALUE;
    if (status == SIM_OK)
        *out = sim_options.granularity;
    return leave(status);
}

SIM_EXPORT hipError_t hipMemAddressReserve(void **out, size_t bytes, size_t align, void *wanted,
                                           unsigned long long flags)
{
    uintptr_t address = 0;
    (void)wanted;
    ENTER_CONTEXT("hipMemAddressReserve");
    if (!sim_options.virtual_memory)
        return leave(SIM_NOT_SUPPORTED);
    sim_status status =
        flags != 0 ? SIM_INVALID_VALUE : sim_vm_reserve(context->device, bytes, align, &address);
    if (status == SIM_OK)
        *out = (void *)address;
    return leave(status);
}

SIM_EXPORT hipError_t hipMemAddressFree(void *address, size_t bytes)
{
    ENTER_CONTEXT("hipMemAddressFree");
    return leave(sim_vm_unreserve((uintptr_t)address, bytes));
}

SIM_EXPORT hipError_t hipMemCreate(sim_physical **out, size_t bytes, const allocation_properties *p,
                                   unsigned long long flags)
{
    ENTER_CONTEXT("hipMemCreate");
    sim_status status = flags != 0 ? SIM_INVALID_VALUE : check_properties(p);
    return leave(status == SIM_OK ? sim_vm_create(p->where.id, bytes, out) : status);
}

SIM_EXPORT hipError_t hipMemMap(void *address, size_t bytes, size_t offset, sim_physical *handle,
                                unsigned long long flags)
{
    ENTER_CONTEXT("hipMemMap");
    if (flags != 0)
        return leave(SIM_INVALID_VALUE);
    return leave(sim_vm_map((uintptr_t)address, bytes, offset, handle));
}

SIM_EXPORT hipError_t hipMemSetAccess(void *address, size_t bytes, const access_description *d,
                                      size_t count)
{
    ENTER_CONTEXT("hipMemSetAccess");
    const sim_arena *arena = sim_arena_of((uintptr_t)address);
    if (d == NULL || count == 0 || arena == NULL)
        return leave(SIM_INVALID_VALUE);
    for (size_t i = 0; i < count; i++)
        if (d[i].where.type == 1 && d[i].where.id == arena->index)
            return leave(sim_vm_set_access((uintptr_t)address, bytes, d[i].flags == 3));
    return leave(SIM_INVALID_VALUE);
}

SIM_EXPORT hipError_t hipMemUnmap(void *address, size_t bytes)
{
    ENTER_CONTEXT("hipMemUnmap");
    return leave(sim_vm_unmap((uintptr_t)address, bytes));
}

SIM_EXPORT hipError_t hipMemRelease(sim_physical *handle)
{
    ENTER_CONTEXT("hipMemRelease");
    return leave(sim_vm_release(handle));
}

/* --- streams and events -------------------------------------------------------------------- */

static sim_status find_stream(sim_context *context, sim_stream **stream)
{
    if ((uintptr_t)*stream <= 1) {
        *stream = context->legacy;
        return SIM_OK;
    }
    return sim_stream_check(*stream, context);
}

#define FIND_STREAM()                                                                              \
    do {                                                                                           \
        sim_status found_ = find_stream(context, &stream);                                         \
        if (found_ != SIM_OK)                                                                      \
            return leave(found_);                                                                  \
    } while (0)
#define CHECK_EVENT(event)                                                                         \
    do {                                                                                           \
        sim_status found_ = sim_event_check(event);                                                \
        if (found_ != SIM_OK)                                                                      \
            return leave(found_);                                                                  \
    } while (0)

SIM_EXPORT hipError_t hipStreamCreateWithFlags(sim_stream **out, unsigned flags)
{
    ENTER_CONTEXT("hipStreamCreateWithFlags");
    return leave(flags <= 1 ? sim_stream_create(context, flags == 0, out) : SIM_INVALID_VALUE);
}

SIM_EXPORT hipError_t hipStreamCreate(sim_stream **out)
{
    ENTER_CONTEXT("hipStreamCreate");
    return leave(sim_stream_create(context, 1, out));
}

SIM_EXPORT hipError_t hipStreamDestroy(sim_stream *stream)
{
    ENTER_CONTEXT("hipStreamDestroy");
    if ((uintptr_t)stream <= 2)
        return leave(SIM_INVALID_HANDLE);
    FIND_STREAM();
    return leave(sim_stream_destroy(stream));
}

SIM_EXPORT hipError_t hipStreamSynchronize(sim_stream *stream)
{
    ENTER_CONTEXT("hipStreamSynchronize");
    FIND_STREAM();
    return leave(sim_stream_sync(stream));
}

SIM_EXPORT hipError_t hipStreamQuery(sim_stream *stream)
{
    ENTER_CONTEXT("hipStreamQuery");
    FIND_STREAM();
    return leave(sim_stream_query(stream));
}

SIM_EXPORT hipError_t hipStreamWaitEvent(sim_stream *stream, sim_event *event, unsigned flags)
{
    ENTER_CONTEXT("hipStreamWaitEvent");
    FIND_STREAM();
    CHECK_EVENT(event);
    return leave(flags <= 1 ? sim_stream_wait(stream, event) : SIM_INVALID_VALUE);
}

SIM_EXPORT hipError_t hipStreamGetDevice(sim_stream *stream, int *out)
{
    ENTER_CONTEXT("hipStreamGetDevice");
    sim_status status = (uintptr_t)stream <= 1 ? SIM_OK : sim_stream_check(stream, NULL);
    if (status == SIM_OK)
        *out = (uintptr_t)stream <= 1 ? context->device : stream->context->device;
    return leave(status);
}

SIM_EXPORT hipError_t hipStreamIsCapturing(sim_stream *stream, int *out)
{
    ENTER_CONTEXT("hipStreamIsCapturing");
    FIND_STREAM();
    *out = sim_capture_state(stream);
    return leave(SIM_OK);
}

SIM_EXPORT hipError_t hipThreadExchangeStreamCaptureMode(int *mode)
{
    static __thread int current;
    ENTER("hipThreadExchangeStreamCaptureMode");
    if (mode == NULL || *mode < 0 || *mode > 2)
        return leave(SIM_INVALID_VALUE);
    int earlier = current;
    current = *mode;
    *mode = earlier;
    return leave(SIM_OK);
}

SIM_EXPORT hipError_t hipLaunchHostFunc(sim_stream *stream, void (*function)(void *), void *user)
{
    ENTER_CONTEXT("hipLaunchHostFunc");
    FIND_STREAM();
    return leave(sim_host_function(stream, function, user));
}

SIM_EXPORT hipError_t hipStreamAddCallback(sim_stream *stream,
                                           void (*function)(sim_stream *, hipError_t, void *),
                                           void *user, unsigned flags)
{
    sim_stream *named = stream;
    ENTER_CONTEXT("hipStreamAddCallback");
    FIND_STREAM();
    return leave(flags == 0 ? sim_stream_callback(stream, named, function, user)
                            : SIM_INVALID_VALUE);
}

SIM_EXPORT hipError_t hipEventCreateWithFlags(sim_event **out, unsigned flags)
{
    ENTER_CONTEXT("hipEventCreateWithFlags");
    return leave(sim_event_create(context, (flags & 2) == 0, out));
}

SIM_EXPORT hipError_t hipEventDestroy(sim_event *event)
{
    ENTER_CONTEXT("hipEventDestroy");
    CHECK_EVENT(event);
    return leave(sim_event_destroy(event));
}

SIM_EXPORT hipError_t hipEventRecord(sim_event *event, sim_stream *stream)
{
    ENTER_CONTEXT("hipEventRecord");
    FIND_STREAM();
    CHECK_EVENT(event);
    return leave(sim_event_record(event, stream));
}

SIM_EXPORT hipError_t hipEventQuery(sim_event *event)
{
    ENTER_CONTEXT("hipEventQuery");
    CHECK_EVENT(event);
    return leave(sim_event_query(event));
}

SIM_EXPORT hipError_t hipEventSynchronize(sim_event *event)
{
    ENTER_CONTEXT("hipEventSynchronize");
    CHECK_EVENT(event);
    return leave(sim_event_sync(event));
}

SIM_EXPORT hipError_t hipEventElapsedTime(float *out, sim_event *start, sim_event *end)
{
    ENTER_CONTEXT("hipEventElapsedTime");
    CHECK_EVENT(start);
    CHECK_EVENT(end);
    return leave(sim_event_elapsed(start, end, out));
}

/* --- graphs -------------------------------------------------------------------------------- */

SIM_EXPORT hipError_t hipStreamBeginCapture(sim_stream *stream, int mode)
{
    ENTER_CONTEXT("hipStreamBeginCapture");
    FIND_STREAM();
    return leave(mode >= 0 && mode <= 2 ? sim_capture_begin(stream) : SIM_INVALID_VALUE);
}

SIM_EXPORT hipError_t hipStreamEndCapture(sim_stream *stream, sim_graph **out)
{
    ENTER_CONTEXT("hipStreamEndCapture");
    FIND_STREAM();
    return leave(sim_capture_end(stream, out));
}

SIM_EXPORT hipError_t hipGraphInstantiateWithFlags(sim_graph **out, sim_graph *graph,
                                                   unsigned long long flags)
{
    (void)flags;
    ENTER_CONTEXT("hipGraphInstantiateWithFlags");
    if (sim_graph_check(graph) != SIM_OK)
        return leave(SIM_INVALID_VALUE);
    return leave(sim_graph_instantiate(graph, out));
}

SIM_EXPORT hipError_t hipGraphLaunch(sim_graph *executable, sim_stream *stream)
{
    ENTER_CONTEXT("hipGraphLaunch");
    FIND_STREAM();
    if (sim_graph_check(executable) != SIM_OK)
        return leave(SIM_INVALID_VALUE);
    return leave(sim_graph_launch(executable, stream));
}

SIM_EXPORT hipError_t hipGraphDestroy(sim_graph *graph)
{
    ENTER_CONTEXT("hipGraphDestroy");
    if (sim_graph_check(graph) != SIM_OK)
        return leave(SIM_INVALID_VALUE);
    return leave(sim_graph_destroy(graph));
}

SIM_EXPORT hipError_t hipGraphExecDestroy(sim_graph *executable)
{
    return hipGraphDestroy(executable);
}

/* --- copies, fills, kernels ---------------------------------------------------------------- */

/* The kind must be right: 0 host to host, 1 to the device, 2 from it, 3 within it, 4 by address. */
SIM_EXPORT hipError_t hipMemcpyAsync(void *to, const void *from, size_t bytes, int kind,
                                     sim_stream *stream)
{
    ENTER_CONTEXT("hipMemcpyAsync");
    FIND_STREAM();
    const sim_arena *target = sim_arena_of((uintptr_t)to), *source = sim_arena_of((uintptr_t)from);
    int to_device = target != NULL && target != &sim_host;
    int from_device = source != NULL && source != &sim_host;
    if (kind < 0 || kind > 4 || (kind < 4 && kind != to_device + 2 * from_device))
        return leave(SIM_INVALID_VALUE);
    return leave(sim_copy(stream, (uintptr_t)to, (uintptr_t)from, bytes));
}

SIM_EXPORT hipError_t hipMemsetD8Async(void *to, unsigned char value, size_t count,
                                       sim_stream *stream)
{
    ENTER_CONTEXT("hipMemsetD8Async");
    FIND_STREAM();
    return leave(sim_fill(stream, (uintptr_t)to, value, 1, count));
}

SIM_EXPORT hipError_t hipMemsetAsync(void *to, int value, size_t count, sim_stream *stream)
{
    ENTER_CONTEXT("hipMemsetAsync");
    FIND_STREAM();
    return leave(sim_fill(stream, (uintptr_t)to, (unsigned char)value, 1, count));
}

SIM_EXPORT hipError_t hipModuleLoadData(sim_module **out, const void *image)
{
    ENTER_CONTEXT("hipModuleLoadData");
    if (out == NULL || image == NULL)
        return leave(SIM_INVALID_VALUE);
    return leave(sim_module_load(context, image, out));
}

SIM_EXPORT hipError_t hipModuleUnload(sim_module *module)
{
    ENTER_CONTEXT("hipModuleUnload");
    return leave(sim_module_unload(module, context));
}

SIM_EXPORT hipError_t hipModuleGetFunction(sim_function **out, sim_module *module, const char *name)
{
    ENTER_CONTEXT("hipModuleGetFunction");
    if (out == NULL || name == NULL)
        return leave(SIM_INVALID_VALUE);
    return leave(sim_module_function(module, context, name, out));
}

SIM_EXPORT hipError_t hipModuleLaunchKernel(sim_function *function, unsigned grid_x,
                                            unsigned grid_y, unsigned grid_z, unsigned block_x,
                                            unsigned block_y, unsigned block_z, unsigned shared,
                                            sim_stream *stream, void **parameters, void **extra)
{
    ENTER_CONTEXT("hipModuleLaunchKernel");
    FIND_STREAM();
    sim_launch launch = {.grid = {grid_x, grid_y, grid_z},
                         .block = {block_x, block_y, block_z},
                         .shared = shared,
                         .parameters = parameters,
                         .extra = extra,
                         .buffer_key = 1,
                         .size_key = 2,
                         .end_key = 3};
    return leave(sim_module_launch(function, context, stream, &launch));
}
