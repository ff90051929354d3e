/*
 * The few functions of the CUDA runtime that PyTorch's allocation of tensors goes through, over the
 * simulated driver: preloaded into a real PyTorch, tensors on "cuda" can be made, freed and
 * recorded on streams, and none of their kernels runs. Written without the toolkit's headers.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* What the simulated driver has of cuda.h. */
typedef void *handle;
int cuInit(unsigned flags);
int cuDeviceGetCount(int *count);
int cuDevicePrimaryCtxRetain(handle *context, int device);
int cuCtxSetCurrent(handle context);
int cuMemGetInfo_v2(size_t *free, size_t *total);
int cuMemAlloc_v2(uint64_t *pointer, size_t bytes);
int cuMemFree_v2(uint64_t pointer);
int cuStreamCreate(handle *stream, unsigned flags);
int cuStreamSynchronize(handle stream);
int cuStreamQuery(handle stream);
int cuStreamIsCapturing(handle stream, int *status);
int cuEventCreate(handle *event, unsigned flags);
int cuEventRecord(handle event, handle stream);
int cuEventQuery(handle event);
int cuEventSynchronize(handle event);
int cuEventDestroy_v2(handle event);
int cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags, int *found);

enum { DEVICES = 8, NOT_SUPPORTED = 801, UNKNOWN = 999 };
static _Thread_local int current;

/* Makes the current device's primary context current and leaves it so, as the runtime does: torch
 * makes calls of the driver too. */
static int enter(void)
{
    static handle contexts[DEVICES];
    int code = 0;
    if (contexts[current] == NULL) {
        code = cuInit(0);
        if (code == 0)
            code = cuDevicePrimaryCtxRetain(&contexts[current], current);
    }
    return code == 0 ? cuCtxSetCurrent(contexts[current]) : code;
}

#define FORWARD(call)                                                                              \
    do {                                                                                           \
        int code_ = enter();                                                                       \
        return code_ == 0 ? (call) : code_;                                                        \
    } while (0)

/* Nobody includes a declaration of these. */
#define SHIM(name, parameters)                                                                     \
    __attribute__((visibility("default"))) int name parameters;                                    \
    int name parameters

SHIM(cudaGetDeviceCount, (int *count))
{
    int code = cuInit(0);
    return code == 0 ? cuDeviceGetCount(count) : code;
}

SHIM(cudaGetDevice, (int *device))
{
    *device = current;
    return 0;
}

SHIM(cudaSetDevice, (int device))
{
    int count = 0;
    int code = cudaGetDeviceCount(&count);
    if (code != 0 || device < 0 || device >= count || device >= DEVICES)
        return code != 0 ? code : UNKNOWN;
    current = device;
    return 0;
}

SHIM(cudaDriverGetVersion, (int *version))
{
    *version = 13020;
    return 0;
}

SHIM(cudaRuntimeGetVersion, (int *version))
{
    return cudaDriverGetVersion(version);
}

SHIM(cudaGetLastError, (void))
{
    return 0;
}

SHIM(cudaPeekAtLastError, (void))
{
    return 0;
}

SHIM(cudaMemGetInfo, (size_t * free, size_t *total))
{
    FORWARD(cuMemGetInfo_v2(free, total));
}

/* Places within cudaDeviceProp, the same in CUDA 12 and 13. */
SHIM(cudaGetDeviceProperties, (char *properties, int device))
{
    enum { NAME = 0, TOTAL_MEMORY = 288, WARP = 308, MAJOR = 360, KNOWN = 400 };
    int warp = 32, major = 8;
    size_t total, free;
    int code = cudaMemGetInfo(&free, &total);
    memset(properties, 0, KNOWN);
    strcpy(properties + NAME, "libmemopt simulated device");
    memcpy(properties + TOTAL_MEMORY, &total, sizeof total);
    memcpy(properties + WARP, &warp, sizeof warp);
    memcpy(properties + MAJOR, &major, sizeof major);
    return code;
}

SHIM(cudaDeviceGetAttribute, (int *value, int attribute, int device))
{
    *value = 1;
    return 0;
}

SHIM(cudaDeviceCanAccessPeer, (int *value, int device, int peer))
{
    *value = 0;
    return 0;
}

SHIM(cudaDeviceGetStreamPriorityRange, (int *least, int *greatest))
{
    *least = 0;
    *greatest = -1;
    return 0;
}

SHIM(cudaDeviceSynchronize, (void))
{
    return 0;
}

SHIM(cudaMalloc, (void **pointer, size_t bytes))
{
    uint64_t address = 0;
    int code = enter();
    if (code == 0)
        code = cuMemAlloc_v2(&address, bytes);
    *pointer = (void *)(uintptr_t)address;
    return code;
}

SHIM(cudaFree, (void *pointer))
{
    if (pointer == NULL)
        return 0;
    FORWARD(cuMemFree_v2((uint64_t)(uintptr_t)pointer));
}

SHIM(cudaStreamCreateWithPriority, (handle * stream, unsigned flags, int priority))
{
    FORWARD(cuStreamCreate(stream, flags));
}

SHIM(cudaStreamSynchronize, (handle stream))
{
    FORWARD(cuStreamSynchronize(stream));
}

SHIM(cudaStreamQuery, (handle stream))
{
    FORWARD(cuStreamQuery(stream));
}

SHIM(cudaStreamIsCapturing, (handle stream, int *status))
{
    FORWARD(cuStreamIsCapturing(stream, status));
}

/* Further results are asked for only while a graph is recorded, and by torch's own allocator. */
SHIM(cudaStreamGetCaptureInfo, (handle stream, int *status, uint64_t *id))
{
    if (id != NULL)
        *id = 1;
    return cudaStreamIsCapturing(stream, status);
}

SHIM(cudaThreadExchangeStreamCaptureMode, (int *mode))
{
    return 0;
}

SHIM(cudaEventCreateWithFlags, (handle * event, unsigned flags))
{
    FORWARD(cuEventCreate(event, flags));
}

SHIM(cudaEventRecord, (handle event, handle stream))
{
    FORWARD(cuEventRecord(event, stream));
}

SHIM(cudaEventRecordWithFlags, (handle event, handle stream, unsigned flags))
{
    return cudaEventRecord(event, stream);
}

SHIM(cudaEventQuery, (handle event))
{
    FORWARD(cuEventQuery(event));
}

SHIM(cudaEventSynchronize, (handle event))
{
    FORWARD(cuEventSynchronize(event));
}

SHIM(cudaEventDestroy, (handle event))
{
    FORWARD(cuEventDestroy_v2(event));
}

/* What the driver lacks. PyTorch looks up all it knows, also what it never calls. */
static int lacking(void)
{
    return NOT_SUPPORTED;
}

SHIM(cudaGetDriverEntryPointByVersion,
     (const char *symbol, void **out, unsigned version, uint64_t flags, int *found))
{
    int code = cuGetProcAddress_v2(symbol, out, (int)version, flags, NULL);
    if (code != 0 || *out == NULL)
        *out = (void *)(uintptr_t)lacking;
    if (found != NULL)
        *found = 0;
    return 0;
}
