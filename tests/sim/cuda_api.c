/*
 * The entry points of libcuda over the core: the driver API's argument checks and error codes.
 * Types are those of cuda.h in size and order, declared here so that no toolkit is needed.
 */
#include "core/context.h"
#include "core/control.h"
#include "core/sim.h"
#include "emulator.h"
#include "module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int32_t CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;

typedef struct location {
    int type, id;
} location;

typedef struct allocation_properties {
    int type, handle_types;
    location where;
    void *metadata;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
} allocation_properties;

typedef struct access_description {
    location where;
    int flags;
} access_description;

const int sim_is_hip = 0;

static const CUresult codes[SIM_STATUS_COUNT] = {
    [SIM_OK] = 0,
    [SIM_INVALID_VALUE] = 1,
    [SIM_OUT_OF_MEMORY] = 2,
    [SIM_NOT_INITIALIZED] = 3,
    [SIM_NO_DEVICE] = 100,
    [SIM_INVALID_DEVICE] = 101,
    [SIM_INVALID_IMAGE] = 200,
    [SIM_INVALID_CONTEXT] = 201,
    [SIM_NO_BINARY] = 209,
    [SIM_UNSUPPORTED_PTX] = 222,
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

static int ready; /* cuInit has been called */

/* Every entry point: ENTER takes the lock or returns the armed error, LEAVE maps the outcome. */
#define ENTER_ANY(call)                                                                            \
    CUresult armed_ = 0;                                                                           \
    if (!sim_enter(call, &armed_))                                                                 \
    return armed_
#define ENTER(call)                                                                                \
    ENTER_ANY(call);                                                                               \
    if (!ready)                                                                                    \
    return leave(SIM_NOT_INITIALIZED)
#define ENTER_CONTEXT(call)                                                                        \
    sim_context *context = NULL;                                                                   \
    ENTER(call);                                                                                   \
    do {                                                                                           \
        sim_status usable_ = sim_context_require(&context);                                        \
        if (usable_ != SIM_OK)                                                                     \
            return leave(usable_);                                                                 \
    } while (0)

static CUresult leave(sim_status status)
{
    sim_leave();
    return codes[status];
}

static int known_device(CUdevice device)
{
    return device >= 0 && device < sim_options.devices;
}

/* --- errors, version, devices -------------------------------------------------------------- */

typedef struct error_text {
    CUresult code;
    const char *name, *text;
} error_text;

static const error_text error_texts[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "device is busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for the device"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "PTX was made by a newer toolchain"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "host memory is already registered"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "host memory is not registered"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted while capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "the capture was invalidated"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "the capture began on another stream"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing streams have not been joined"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "the legacy stream cannot be captured"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult find_error(CUresult code, const char **out, int name)
{
    for (size_t i = 0; i < sizeof error_texts / sizeof error_texts[0]; i++)
        if (error_texts[i].code == code) {
            *out = name ? error_texts[i].name : error_texts[i].text;
            return 0;
        }
    *out = NULL;
    return 1;
}

SIM_EXPORT CUresult cuGetErrorName(CUresult code, const char **out)
{
    return find_error(code, out, 1);
}

SIM_EXPORT CUresult cuGetErrorString(CUresult code, const char **out)
{
    return find_error(code, out, 0);
}

SIM_EXPORT CUresult cuInit(unsigned flags)
{
    ENTER_ANY("cuInit");
    if (flags != 0)
        return leave(SIM_INVALID_VALUE);
    if (sim_options.devices == 0)
        return leave(SIM_NO_DEVICE);
    ready = 1;
    return leave(SIM_OK);
}

SIM_EXPORT CUresult cuDriverGetVersion(int *out)
{
    ENTER_ANY("cuDriverGetVersion");
    if (out == NULL)
        return leave(SIM_INVALID_VALUE);
    *out = (int)sim_options.driver_version;
    return leave(SIM_OK);
}

SIM_EXPORT CUresult cuDeviceGetCount(int *out)
{
    ENTER("cuDeviceGetCount");
    *out = sim_options.devices;
    return leave(SIM_OK);
}

SIM_EXPORT CUresult cuDeviceGet(CUdevice *out, int ordinal)
{
    ENTER("cuDeviceGet");
    if (!known_device(ordinal))
        return leave(SIM_INVALID_DEVICE);
    *out = ordinal;
    return leave(SIM_OK);
}

SIM_EXPORT CUresult cuDeviceGetName(char *out, int length, CUdevice device)
{
    ENTER("cuDeviceGetName");
    if (!known_device(device))
        return leave(SIM_INVALID_DEVICE);
    if (out == NULL || length <= 0)
        return leave(SIM_INVALID_VALUE);
    snprintf(out, (size_t)length, "%s", sim_options.name);
    return leave(SIM_OK);
}

SIM_EXPORT CUresult cuDeviceGetUuid_v2(unsigned char *out, CUdevice device)
{
    ENTER("cuDeviceGetUuid");
    if (!known_device(device))
        return leave(SIM_INVALID_DEVICE);
    memset(out, 0x5A, 16);
    out[15] = (unsigned char)device;
    return leave(SIM_OK);
}

SIM_EXPORT CUresult cuDeviceGetPCIBusId(char *out, int length, CUdevice device)
{
    ENTER("cuDeviceGetPCIBusId");
    if (!known_device(device))
        return leave(SIM_INVALID_DEVICE);
    snprintf(out, (size_t)length, "0000:%02X:00.0", (unsigned)device + 1);
    return leave(SIM_OK);
}

SIM_EXPORT CUresult cuDeviceTotalMem_v2(size_t *out, CUdevice device)
{
    ENTER("cuDeviceTotalMem");
    if (!known_device(device))
        return leave(SIM_INVALID_DEVICE);
    *out = sim_devices[device].total;
    return leave(SIM_OK);
}

SIM_EXPORT CUresult cuDeviceGetAttribute(int *out, int attribute, CUdevice device)
{
    ENTER("cuDeviceGetAttribute");
    if (!known_device(device))
        return leave(SIM_INVALID_DEVICE);
    if (out == NULL || attribute <= 0 || attribute > 150)
        return leave(SIM_INVALID_VALUE);
    static const struct {
        int attribute, value;
    } fixed[] = {{1, 1024},  {2, 1024},      {3, 1024},     {4, 64},     {5, INT32_MAX}, {6, 65535},
                 {7, 65535}, {8, 48 << 10},  {9, 64 << 10}, {12, 65536}, {13, 1500000},  {39, 2048},
                 {41, 1},    {97, 99 << 10}, {99, 1},       {106, 32}};
    int value = 0;
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        if (fixed[i].attribute == attribute)
            value = fixed[i].value;
    switch (attribute) {
    case 10:
        value = (int)sim_options.warp_size;
        break;
    case 16:
        value = (int)sim_options.multiprocessors;
        break;
    case 33:
        value = device + 1;
        break;
    case 75:
        value = (int)sim_options.major;
        break;
    case 76:
        value = (int)sim_options.minor;
        break;
    case 102: /* virtual memory */
    case 103: /* its handles as file descriptors */
        value = sim_options.virtual_memory;
        break;
    default:
        break;
    }
    *out = value;
    return leave(SIM_OK);
}

/* --- contexts ------------------------------------------------------------------------------ */

SIM_EXPORT CUresult cuDevicePrimaryCtxRetain(sim_context **out, CUdevice device)
{
    ENTER("cuDevicePrimaryCtxRetain");
    if (!known_device(device))
        return leave(SIM_INVALID_DEVICE);
    return leave(sim_context_retain(device, out));
}

SIM_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    ENTER("cuDevicePrimaryCtxRelease");
    if (!known_device(device))
        return leave(SIM_INVALID_DEVICE);
    return leave(sim_context_release(device));
}

SIM_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *out_flags,
                                               int *out_active)
{
    ENTER("cuDevicePrimaryCtxGetState");
    if (!known_device(device))
        return leave(SIM_INVALID_DEVICE);
    *out_flags = 0;
    *out_active = sim_devices[device].context != NULL;
    return leave(SIM_OK);
}

SIM_EXPORT CUresult cuCtxGetCurrent(sim_context **out)
{
    ENTER("cuCtxGetCurrent");
    *out = sim_context_current();
    return leave(SIM_OK);
}

SIM_EXPORT CUresult cuCtxSetCurrent(sim_context *context)
{
    ENTER("cuCtxSetCurrent");
    sim_status status = context != NULL ? sim_context_check(context) : SIM_OK;
    if (status == SIM_OK)
        sim_context_set(context);
    return leave(status);
}

SIM_EXPORT CUresult cuCtxPushCurrent_v2(sim_context *context)
{
    ENTER("cuCtxPushCurrent");
    sim_status status = sim_context_check(context);
    return leave(status == SIM_OK ? sim_context_push(context) : status);
}

SIM_EXPORT CUresult cuCtxPopCurrent_v2(sim_context **out)
{
    sim_context *context = NULL;
    CUresult armed = 0;
    if (!sim_enter("cuCtxPopCurrent", &armed)) {
        (void)sim_context_pop(&context); /* an earlier failure is told, the stack is right */
        return armed;
    }
    sim_status status = sim_context_pop(&context);
    if (status == SIM_OK && out != NULL)
        *out = context;
    return leave(status);
}

SIM_EXPORT CUresult cuCtxGetDevice(CUdevice *out)
{
    ENTER_CONTEXT("cuCtxGetDevice");
    *out = context->device;
    return leave(SIM_OK);
}

SIM_EXPORT CUresult cuCtxSynchronize(void)
{
    ENTER_CONTEXT("cuCtxSynchronize");
    return leave(sim_context_sync(context));
}

/* --- memory -------------------------------------------------------------------------------- */

SIM_EXPORT CUresult cuMemGetInfo_v2(size_t *out_free, size_t *out_total)
{
    ENTER_CONTEXT("cuMemGetInfo");
    const sim_device *d = &sim_devices[context->device];
    *out_free = d->used < d->total ? d->total - d->used : 0;
    *out_total = d->total;
    return leave(SIM_OK);
}

SIM_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
    uintptr_t address = 0;
    ENTER_CONTEXT("cuMemAlloc");
    sim_status status = sim_mem_alloc(context, bytes, &address);
    if (status == SIM_OK)
        *out = address;
    return leave(status);
}

SIM_EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    ENTER_CONTEXT("cuMemFree");
    return leave(address != 0 ? sim_mem_free(context, (uintptr_t)address) : SIM_OK);
}

/* What cuMemCreate and the granularity query take: pinned device memory of a device that exists,
 * with flags that the device has said it knows. */
static sim_status check_properties(const allocation_properties *p)
{
    if (!sim_options.virtual_memory)
        return SIM_NOT_SUPPORTED;
    if (p == NULL || p->type != 1 || p->where.type != 1 || p->metadata != NULL ||
        (p->handle_types & ~1) != 0 || p->rdma != 0 || p->compression != 0 || p->usage != 0)
        return SIM_INVALID_VALUE;
    return known_device(p->where.id) ? SIM_OK : SIM_INVALID_DEVICE;
}

SIM_EXPORT CUresult cuMemGetAllocationGranularity(size_t *out, const allocation_properties *p,
                                                  int option)
{
    ENTER("cuMemGetAllocationGranularity");
    sim_status status = check_properties(p);
    if (status == SIM_OK && (out == NULL || option < 0 || option > 1))
        status = SIM_INVALID_VALUE;
    if (status == SIM_OK)
        *out = sim_options.granularity;
    return leave(status);
}

/* Addresses belong to all devices of a process; the simulator puts them to the current one's. */
SIM_EXPORT CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t align,
                                        CUdeviceptr wanted, unsigned long long flags)
{
    uintptr_t address = 0;
    (void)wanted; /* a hint */
    ENTER_CONTEXT("cuMemAddressReserve");
    if (!sim_options.virtual_memory)
        return leave(SIM_NOT_SUPPORTED);
    sim_status status =
        flags != 0 ? SIM_INVALID_VALUE : sim_vm_reserve(context->device, bytes, align, &address);
    if (status == SIM_OK)
        *out = address;
    return leave(status);
}

SIM_EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    ENTER_CONTEXT("cuMemAddressFree");
    return leave(sim_vm_unreserve((uintptr_t)address, bytes));
}

SIM_EXPORT CUresult cuMemCreate(unsigned long long *out, size_t bytes,
                                const allocation_properties *p, unsigned long long flags)
{
    sim_physical *physical = NULL;
    ENTER_CONTEXT("cuMemCreate");
    sim_status status = flags != 0 ? SIM_INVALID_VALUE : check_properties(p);
    if (status == SIM_OK)
        status = sim_vm_create(p->where.id, bytes, &physical);
    if (status == SIM_OK)
        *out = (unsigned long long)(uintptr_t)physical;
    return leave(status);
}

SIM_EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                             unsigned long long handle, unsigned long long flags)
{
    ENTER_CONTEXT("cuMemMap");
    if (flags != 0)
        return leave(SIM_INVALID_VALUE);
    return leave(sim_vm_map((uintptr_t)address, bytes, offset, (sim_physical *)(uintptr_t)handle));
}

/* Access: 1 read, 3 read and write; the library has no use for read only. */
SIM_EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const access_description *d,
                                   size_t count)
{
    ENTER_CONTEXT("cuMemSetAccess");
    if (d == NULL || count == 0)
        return leave(SIM_INVALID_VALUE);
    for (size_t i = 0; i < count; i++)
        if (d[i].where.type != 1 || (d[i].flags != 0 && d[i].flags != 1 && d[i].flags != 3))
            return leave(SIM_INVALID_VALUE);
        else if (!known_device(d[i].where.id))
            return leave(SIM_INVALID_DEVICE);
    const sim_arena *arena = sim_arena_of((uintptr_t)address);
    for (size_t i = 0; i < count; i++)
        if (arena != NULL && d[i].where.id == arena->index)
            return leave(sim_vm_set_access((uintptr_t)address, bytes, d[i].flags == 3));
    return leave(SIM_INVALID_VALUE);
}

SIM_EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    ENTER_CONTEXT("cuMemUnmap");
    return leave(sim_vm_unmap((uintptr_t)address, bytes));
}

SIM_EXPORT CUresult cuMemRelease(unsigned long long handle)
{
    ENTER_CONTEXT("cuMemRelease");
    return leave(sim_vm_release((sim_physical *)(uintptr_t)handle));
}

SIM_EXPORT CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
    ENTER_CONTEXT("cuMemHostAlloc");
    return leave((flags & ~7u) == 0 ? sim_host_alloc(bytes, out) : SIM_INVALID_VALUE);
}

SIM_EXPORT CUresult cuMemAllocHost_v2(void **out, size_t bytes)
{
    ENTER_CONTEXT("cuMemAllocHost");
    return leave(sim_host_alloc(bytes, out));
}

SIM_EXPORT CUresult cuMemFreeHost(void *pointer)
{
    ENTER_CONTEXT("cuMemFreeHost");
    return leave(sim_host_free((uintptr_t)pointer));
}

SIM_EXPORT CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags)
{
    ENTER_CONTEXT("cuMemHostRegister");
    return leave((flags & ~15u) == 0 ? sim_host_register((uintptr_t)pointer, bytes)
                                     : SIM_INVALID_VALUE);
}

SIM_EXPORT CUresult cuMemHostUnregister(void *pointer)
{
    ENTER_CONTEXT("cuMemHostUnregister");
    return leave(sim_host_unregister((uintptr_t)pointer));
}

/* 2: memory type (1 host, 2 device); 9: device ordinal; 1: context. */
SIM_EXPORT CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr address)
{
    ENTER_CONTEXT("cuPointerGetAttribute");
    const sim_arena *arena = sim_arena_of((uintptr_t)address);
    int host = arena == &sim_host || sim_registered((uintptr_t)address, 1);
    if (!host && (arena == NULL || sim_find_mapping(arena, (uintptr_t)address) == NULL))
        return leave(SIM_INVALID_VALUE);
    if (attribute == 1)
        *(sim_context **)out = host ? context : sim_devices[arena->index].context;
    else if (attribute == 2)
        *(unsigned *)out = host ? 1 : 2;
    else if (attribute == 9)
        *(int *)out = host ? context->device : arena->index;
    else
        return leave(SIM_INVALID_VALUE);
    return leave(SIM_OK);
}

/* --- streams and events -------------------------------------------------------------------- */

/* The stream behind a handle: 0 and 1 are the legacy default stream. */
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

SIM_EXPORT CUresult cuStreamCreate(sim_stream **out, unsigned flags)
{
    ENTER_CONTEXT("cuStreamCreate");
    if (out == NULL || flags > 1)
        return leave(SIM_INVALID_VALUE);
    return leave(sim_stream_create(context, flags == 0, out));
}

SIM_EXPORT CUresult cuStreamCreateWithPriority(sim_stream **out, unsigned flags, int priority)
{
    (void)priority;
    ENTER_CONTEXT("cuStreamCreateWithPriority");
    if (out == NULL || flags > 1)
        return leave(SIM_INVALID_VALUE);
    return leave(sim_stream_create(context, flags == 0, out));
}

SIM_EXPORT CUresult cuStreamDestroy_v2(sim_stream *stream)
{
    ENTER_CONTEXT("cuStreamDestroy");
    if ((uintptr_t)stream <= 2)
        return leave(SIM_INVALID_HANDLE);
    FIND_STREAM();
    return leave(sim_stream_destroy(stream));
}

SIM_EXPORT CUresult cuStreamSynchronize(sim_stream *stream)
{
    ENTER_CONTEXT("cuStreamSynchronize");
    FIND_STREAM();
    return leave(sim_stream_sync(stream));
}

SIM_EXPORT CUresult cuStreamQuery(sim_stream *stream)
{
    ENTER_CONTEXT("cuStreamQuery");
    FIND_STREAM();
    return leave(sim_stream_query(stream));
}

SIM_EXPORT CUresult cuStreamWaitEvent(sim_stream *stream, sim_event *event, unsigned flags)
{
    ENTER_CONTEXT("cuStreamWaitEvent");
    FIND_STREAM();
    CHECK_EVENT(event);
    return leave(flags <= 1 ? sim_stream_wait(stream, event) : SIM_INVALID_VALUE);
}

SIM_EXPORT CUresult cuStreamGetCtx(sim_stream *stream, sim_context **out)
{
    ENTER_CONTEXT("cuStreamGetCtx");
    if ((uintptr_t)stream <= 1) {
        *out = context;
        return leave(SIM_OK);
    }
    sim_status status = sim_stream_check(stream, NULL);
    if (status == SIM_OK)
        *out = stream->context;
    return leave(status);
}

SIM_EXPORT CUresult cuStreamIsCapturing(sim_stream *stream, int *out)
{
    ENTER_CONTEXT("cuStreamIsCapturing");
    FIND_STREAM();
    *out = sim_capture_state(stream);
    return leave(SIM_OK);
}

SIM_EXPORT CUresult cuLaunchHostFunc(sim_stream *stream, void (*function)(void *), void *user)
{
    ENTER_CONTEXT("cuLaunchHostFunc");
    FIND_STREAM();
    return leave(sim_host_function(stream, function, user));
}

SIM_EXPORT CUresult cuStreamAddCallback(sim_stream *stream,
                                        void (*function)(sim_stream *, CUresult, void *),
                                        void *user, unsigned flags)
{
    sim_stream *named = stream;
    ENTER_CONTEXT("cuStreamAddCallback");
    FIND_STREAM();
    return leave(flags == 0 ? sim_stream_callback(stream, named, function, user)
                            : SIM_INVALID_VALUE);
}

/* The mode decides which other calls a capture forbids; here none is forbidden by it. */
SIM_EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    static __thread int current;
    ENTER("cuThreadExchangeStreamCaptureMode");
    if (mode == NULL || *mode < 0 || *mode > 2)
        return leave(SIM_INVALID_VALUE);
    int earlier = current;
    current = *mode;
    *mode = earlier;
    return leave(SIM_OK);
}

SIM_EXPORT CUresult cuEventCreate(sim_event **out, unsigned flags)
{
    ENTER_CONTEXT("cuEventCreate");
    if (out == NULL || flags > 7)
        return leave(SIM_INVALID_VALUE);
    return leave(sim_event_create(context, (flags & 2) == 0, out));
}

SIM_EXPORT CUresult cuEventDestroy_v2(sim_event *event)
{
    ENTER_CONTEXT("cuEventDestroy");
    CHECK_EVENT(event);
    return leave(sim_event_destroy(event));
}

SIM_EXPORT CUresult cuEventRecord(sim_event *event, sim_stream *stream)
{
    ENTER_CONTEXT("cuEventRecord");
    FIND_STREAM();
    CHECK_EVENT(event);
    return leave(sim_event_record(event, stream));
}

SIM_EXPORT CUresult cuEventQuery(sim_event *event)
{
    ENTER_CONTEXT("cuEventQuery");
    CHECK_EVENT(event);
    return leave(sim_event_query(event));
}

SIM_EXPORT CUresult cuEventSynchronize(sim_event *event)
{
    ENTER_CONTEXT("cuEventSynchronize");
    CHECK_EVENT(event);
    return leave(sim_event_sync(event));
}

SIM_EXPORT CUresult cuEventElapsedTime(float *out, sim_event *start, sim_event *end)
{
    ENTER_CONTEXT("cuEventElapsedTime");
    CHECK_EVENT(start);
    CHECK_EVENT(end);
    return leave(sim_event_elapsed(start, end, out));
}

SIM_EXPORT CUresult cuEventElapsedTime_v2(float *out, sim_event *start, sim_event *end)
{
    return cuEventElapsedTime(out, start, end);
}

/* --- graphs -------------------------------------------------------------------------------- */

SIM_EXPORT CUresult cuStreamBeginCapture_v2(sim_stream *stream, int mode)
{
    ENTER_CONTEXT("cuStreamBeginCapture");
    FIND_STREAM();
    return leave(mode >= 0 && mode <= 2 ? sim_capture_begin(stream) : SIM_INVALID_VALUE);
}

SIM_EXPORT CUresult cuStreamEndCapture(sim_stream *stream, sim_graph **out)
{
    ENTER_CONTEXT("cuStreamEndCapture");
    FIND_STREAM();
    return leave(sim_capture_end(stream, out));
}

SIM_EXPORT CUresult cuGraphInstantiateWithFlags(sim_graph **out, sim_graph *graph,
                                                unsigned long long flags)
{
    ENTER_CONTEXT("cuGraphInstantiateWithFlags");
    if (flags > 15 || sim_graph_check(graph) != SIM_OK)
        return leave(SIM_INVALID_VALUE);
    return leave(sim_graph_instantiate(graph, out));
}

SIM_EXPORT CUresult cuGraphLaunch(sim_graph *executable, sim_stream *stream)
{
    ENTER_CONTEXT("cuGraphLaunch");
    FIND_STREAM();
    if (sim_graph_check(executable) != SIM_OK)
        return leave(SIM_INVALID_VALUE);
    return leave(sim_graph_launch(executable, stream));
}

SIM_EXPORT CUresult cuGraphDestroy(sim_graph *graph)
{
    ENTER_CONTEXT("cuGraphDestroy");
    if (sim_graph_check(graph) != SIM_OK)
        return leave(SIM_INVALID_VALUE);
    return leave(sim_graph_destroy(graph));
}

SIM_EXPORT CUresult cuGraphExecDestroy(sim_graph *executable)
{
    return cuGraphDestroy(executable);
}

/* --- copies and fills ---------------------------------------------------------------------- */

static CUresult copy(const char *call, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                     sim_stream *stream, int wait)
{
    ENTER_CONTEXT(call);
    FIND_STREAM();
    sim_status status = sim_copy(stream, (uintptr_t)to, (uintptr_t)from, bytes);
    if (status == SIM_OK && wait)
        status = sim_stream_sync(stream);
    return leave(status);
}

static int on_device(CUdeviceptr address)
{
    const sim_arena *arena = sim_arena_of((uintptr_t)address);
    return arena != NULL && arena != &sim_host;
}

SIM_EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                  sim_stream *stream)
{
    return copy("cuMemcpyAsync", to, from, bytes, stream, 0);
}

SIM_EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy("cuMemcpy", to, from, bytes, NULL, 1);
}

SIM_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes,
                                         sim_stream *stream)
{
    if (!on_device(to) || on_device((uintptr_t)from))
        return 1;
    return copy("cuMemcpyHtoDAsync", to, (uintptr_t)from, bytes, stream, 0);
}

SIM_EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes,
                                         sim_stream *stream)
{
    if (!on_device(from) || on_device((uintptr_t)to))
        return 1;
    return copy("cuMemcpyDtoHAsync", (uintptr_t)to, from, bytes, stream, 0);
}

SIM_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                         sim_stream *stream)
{
    if (!on_device(from) || !on_device(to))
        return 1;
    return copy("cuMemcpyDtoDAsync", to, from, bytes, stream, 0);
}

SIM_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    if (!on_device(to) || on_device((uintptr_t)from))
        return 1;
    return copy("cuMemcpyHtoD", to, (uintptr_t)from, bytes, NULL, 1);
}

SIM_EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    if (!on_device(from) || on_device((uintptr_t)to))
        return 1;
    return copy("cuMemcpyDtoH", (uintptr_t)to, from, bytes, NULL, 1);
}

SIM_EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count,
                                    sim_stream *stream)
{
    ENTER_CONTEXT("cuMemsetD8Async");
    FIND_STREAM();
    return leave(sim_fill(stream, (uintptr_t)to, value, 1, count));
}

SIM_EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count,
                                     sim_stream *stream)
{
    ENTER_CONTEXT("cuMemsetD32Async");
    FIND_STREAM();
    return leave(sim_fill(stream, (uintptr_t)to, value, 4, count));
}

/* --- modules and launches ------------------------------------------------------------------ */

static CUresult load(const char *call, sim_module **out, const void *image)
{
    ENTER_CONTEXT(call);
    if (out == NULL || image == NULL)
        return leave(SIM_INVALID_VALUE);
    return leave(sim_module_load(context, image, out));
}

SIM_EXPORT CUresult cuModuleLoadData(sim_module **out, const void *image)
{
    return load("cuModuleLoadData", out, image);
}

SIM_EXPORT CUresult cuModuleLoadDataEx(sim_module **out, const void *image, unsigned count,
                                       int *options, void **values)
{
    (void)count;
    (void)options;
    (void)values;
    return load("cuModuleLoadDataEx", out, image);
}

SIM_EXPORT CUresult cuModuleUnload(sim_module *module)
{
    ENTER_CONTEXT("cuModuleUnload");
    return leave(sim_module_unload(module, context));
}

SIM_EXPORT CUresult cuModuleGetFunction(sim_function **out, sim_module *module, const char *name)
{
    ENTER_CONTEXT("cuModuleGetFunction");
    if (out == NULL || name == NULL)
        return leave(SIM_INVALID_VALUE);
    return leave(sim_module_function(module, context, name, out));
}

SIM_EXPORT CUresult cuFuncGetAttribute(int *out, int attribute, sim_function *function)
{
    ENTER_CONTEXT("cuFuncGetAttribute");
    if (sim_function_check(function, context) != SIM_OK)
        return leave(SIM_INVALID_HANDLE);
    *out = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0;
    return leave(SIM_OK);
}

SIM_EXPORT CUresult cuLaunchKernel(sim_function *function, unsigned grid_x, unsigned grid_y,
                                   unsigned grid_z, unsigned block_x, unsigned block_y,
                                   unsigned block_z, unsigned shared, sim_stream *stream,
                                   void **parameters, void **extra)
{
    ENTER_CONTEXT("cuLaunchKernel");
    FIND_STREAM();
    sim_launch launch = {.grid = {grid_x, grid_y, grid_z},
                         .block = {block_x, block_y, block_z},
                         .shared = shared,
                         .parameters = parameters,
                         .extra = extra,
                         .buffer_key = 1,
                         .size_key = 2,
                         .end_key = 0};
    return leave(sim_module_launch(function, context, stream, &launch));
}

/* --- entry points by name ------------------------------------------------------------------ */

typedef struct entry {
    const char *name;
    uint32_t since; /* of this form */
    void *function;
} entry;

SIM_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags,
                                        int *out_status);
SIM_EXPORT CUresult cuGetProcAddress(const char *symbol, void **out, int version, uint64_t flags);

#define E(name, since)                                                                             \
    {                                                                                              \
#name, since, (void *)(uintptr_t)name                                                      \
    }
#define V2(name, since)                                                                            \
    {                                                                                              \
#name, since, (void *)(uintptr_t)name##_v2                                                 \
    }

static const entry entries[] = {
    E(cuGetErrorName, 6000),
    E(cuGetErrorString, 6000),
    E(cuInit, 2000),
    E(cuDriverGetVersion, 2020),
    E(cuDeviceGetCount, 2000),
    E(cuDeviceGet, 2000),
    E(cuDeviceGetName, 2000),
    V2(cuDeviceGetUuid, 11040),
    E(cuDeviceGetPCIBusId, 4010),
    V2(cuDeviceTotalMem, 3020),
    E(cuDeviceGetAttribute, 2000),
    E(cuDevicePrimaryCtxRetain, 7000),
    V2(cuDevicePrimaryCtxRelease, 11000),
    E(cuDevicePrimaryCtxGetState, 7000),
    E(cuCtxGetCurrent, 4000),
    E(cuCtxSetCurrent, 4000),
    V2(cuCtxPushCurrent, 4000),
    V2(cuCtxPopCurrent, 4000),
    E(cuCtxGetDevice, 2000),
    E(cuCtxSynchronize, 2000),
    V2(cuMemGetInfo, 3020),
    V2(cuMemAlloc, 3020),
    V2(cuMemFree, 3020),
    E(cuMemGetAllocationGranularity, 10020),
    E(cuMemAddressReserve, 10020),
    E(cuMemAddressFree, 10020),
    E(cuMemCreate, 10020),
    E(cuMemMap, 10020),
    E(cuMemSetAccess, 10020),
    E(cuMemUnmap, 10020),
    E(cuMemRelease, 10020),
    E(cuMemHostAlloc, 2020),
    V2(cuMemAllocHost, 3020),
    E(cuMemFreeHost, 2000),
    V2(cuMemHostRegister, 6050),
    E(cuMemHostUnregister, 4000),
    E(cuPointerGetAttribute, 4000),
    E(cuStreamCreate, 2000),
    E(cuStreamCreateWithPriority, 5050),
    V2(cuStreamDestroy, 4000),
    E(cuStreamSynchronize, 2000),
    E(cuStreamQuery, 2000),
    E(cuStreamWaitEvent, 3020),
    E(cuStreamGetCtx, 9020),
    E(cuStreamIsCapturing, 10000),
    V2(cuStreamBeginCapture, 10010),
    E(cuStreamEndCapture, 10000),
    E(cuGraphInstantiateWithFlags, 11040),
    {"cuGraphInstantiate", 12000, (void *)(uintptr_t)cuGraphInstantiateWithFlags},
    E(cuGraphLaunch, 10000),
    E(cuGraphDestroy, 10000),
    E(cuGraphExecDestroy, 10000),
    E(cuLaunchHostFunc, 10000),
    E(cuStreamAddCallback, 5000),
    E(cuThreadExchangeStreamCaptureMode, 10010),
    E(cuEventCreate, 2000),
    V2(cuEventDestroy, 4000),
    E(cuEventRecord, 2000),
    E(cuEventQuery, 2000),
    E(cuEventSynchronize, 2000),
    V2(cuEventElapsedTime, 12080),
    E(cuEventElapsedTime, 2000),
    E(cuMemcpyAsync, 4000),
    E(cuMemcpy, 4000),
    V2(cuMemcpyHtoDAsync, 3020),
    V2(cuMemcpyDtoHAsync, 3020),
    V2(cuMemcpyDtoDAsync, 3020),
    V2(cuMemcpyHtoD, 3020),
    V2(cuMemcpyDtoH, 3020),
    E(cuMemsetD8Async, 3020),
    E(cuMemsetD32Async, 3020),
    E(cuModuleLoadData, 2000),
    E(cuModuleLoadDataEx, 2010),
    E(cuModuleUnload, 2000),
    E(cuModuleGetFunction, 2000),
    E(cuFuncGetAttribute, 2020),
    E(cuLaunchKernel, 4000),
    V2(cuGetProcAddress, 12000),
    E(cuGetProcAddress, 11030),
};

/* The newest form that both the program (`version`) and the driver know. *out_status: 0 found, 1
 * no such symbol, 2 not in that version. */
SIM_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags,
                                        int *out_status)
{
    int status = 1;
    ENTER_ANY("cuGetProcAddress");
    if (symbol == NULL || out == NULL || flags > 2)
        return leave(SIM_INVALID_VALUE);
    *out = NULL;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0] && status != 0; i++) {
        const entry *e = &entries[i];
        if (strcmp(e->name, symbol) != 0 || sim_symbol_missing(symbol))
            continue;
        status = e->since <= (uint32_t)version && e->since <= sim_options.driver_version ? 0 : 2;
        if (status == 0)
            *out = e->function;
    }
    if (out_status != NULL)
        *out_status = status;
    /* Drivers since 12.0 tell it by the status and the NULL alone. */
    return leave(status == 0 || sim_options.driver_version >= 12000 ? SIM_OK : SIM_NOT_FOUND);
}

SIM_EXPORT CUresult cuGetProcAddress(const char *symbol, void **out, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(symbol, out, version, flags, NULL);
}
