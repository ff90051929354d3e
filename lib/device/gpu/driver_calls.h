/*
 * The driver's interface as declared by us: no vendor header is needed to build the library.
 *
 * CUDA's driver interface and HIP's take the same arguments in the same order nearly everywhere, so
 * one table serves both; what differs is in cuda.c and hip.c. Status codes have the same numbers as
 * far as the library looks at them. Layouts and values are those of the drivers' binary interface.
 */
#ifndef MO_DEVICE_GPU_DRIVER_CALLS_H
#define MO_DEVICE_GPU_DRIVER_CALLS_H

#include <stddef.h>
#include <stdint.h>

/* Status codes (CUresult, hipError_t). */
enum {
    MO_GPU_SUCCESS = 0,
    MO_GPU_INVALID_VALUE = 1,
    MO_GPU_OUT_OF_MEMORY = 2,
    MO_GPU_NOT_INITIALIZED = 3,
    MO_GPU_DEINITIALIZED = 4,
    MO_GPU_INVALID_POINTER = 17, /* HIP only */
    MO_GPU_STUB_LIBRARY = 34,
    MO_GPU_OLD_DRIVER = 35,
    MO_GPU_NO_DEVICE = 100,
    MO_GPU_INVALID_DEVICE = 101,
    MO_GPU_INVALID_IMAGE = 200,
    MO_GPU_INVALID_CONTEXT = 201,
    MO_GPU_NO_BINARY = 209,
    MO_GPU_ECC_UNCORRECTABLE = 214,
    MO_GPU_INVALID_PTX = 218,
    MO_GPU_NVLINK_UNCORRECTABLE = 220,
    MO_GPU_NO_PTX_COMPILER = 221,
    MO_GPU_UNSUPPORTED_PTX = 222,
    MO_GPU_PTX_COMPILER_OFF = 223,
    MO_GPU_CONTAINED = 226,
    MO_GPU_INVALID_SOURCE = 300,
    MO_GPU_NOT_LOADABLE = 303, /* CUDA_ERROR_SHARED_OBJECT_INIT_FAILED */
    MO_GPU_INVALID_HANDLE = 400,
    MO_GPU_NOT_FOUND = 500,
    MO_GPU_NOT_READY = 600,
    MO_GPU_ILLEGAL_ADDRESS = 700,
    MO_GPU_LAUNCH_TIMEOUT = 702,
    MO_GPU_CONTEXT_DESTROYED = 709,
    MO_GPU_ASSERT = 710,
    MO_GPU_ALREADY_REGISTERED = 712,
    MO_GPU_NOT_REGISTERED = 713,
    MO_GPU_HARDWARE_STACK = 714,
    MO_GPU_ILLEGAL_INSTRUCTION = 715,
    MO_GPU_MISALIGNED_ADDRESS = 716,
    MO_GPU_INVALID_ADDRESS_SPACE = 717,
    MO_GPU_INVALID_PC = 718,
    MO_GPU_LAUNCH_FAILED = 719,
    MO_GPU_UNKNOWN = 999,
    MO_GPU_TENSOR_MEMORY_LEAK = 721, /* CUDA only, as 810 and 911 */
    MO_GPU_NOT_PERMITTED = 800,
    MO_GPU_NOT_SUPPORTED = 801,
    MO_GPU_SYSTEM_NOT_READY = 802,
    MO_GPU_DRIVER_MISMATCH = 803,
    MO_GPU_COMPAT_NOT_SUPPORTED = 804,
    MO_GPU_MPS_CLIENT_TERMINATED = 810,
    MO_GPU_CAPTURE_IMPLICIT = 906,
    MO_GPU_EXTERNAL_DEVICE = 911
};

/* Flags and small enumerations; equal in both interfaces. */
enum {
    MO_GPU_STREAM_NON_BLOCKING = 1,
    MO_GPU_EVENT_DISABLE_TIMING = 2,
    MO_GPU_HOST_PORTABLE = 1,
    MO_GPU_CAPTURE_NONE = 0,
    MO_GPU_CAPTURE_MODE_RELAXED = 2,
    MO_GPU_ALLOCATION_PINNED = 1,
    MO_GPU_LOCATION_DEVICE = 1,
    MO_GPU_ACCESS_READ_WRITE = 3,
    MO_GPU_GRANULARITY_MINIMUM = 0,
    MO_GPU_HANDLE_FILE = 1 /* a POSIX file descriptor */
};

/* Opaque handles (CUstream/hipStream_t and so on). */
typedef struct mo_gpu_context_opaque *mo_gpu_context;
typedef struct mo_gpu_stream_opaque *mo_gpu_stream;
typedef struct mo_gpu_event_opaque *mo_gpu_event;
typedef struct mo_gpu_module_opaque *mo_gpu_module;
typedef struct mo_gpu_function_opaque *mo_gpu_function;

typedef struct mo_gpu_location {
    int32_t type;
    int32_t id;
} mo_gpu_location;

/* CUmemAllocationProp, hipMemAllocationProp (whose last four bytes are padding). */
typedef struct mo_gpu_allocation {
    int32_t type;
    int32_t handle_types; /* MO_GPU_HANDLE_FILE: it can be exported */
    mo_gpu_location location;
    void *windows_metadata;
    uint8_t compression;
    uint8_t rdma_capable;
    uint16_t usage;
    uint8_t reserved[4];
} mo_gpu_allocation;

/* CUmemAccessDesc, hipMemAccessDesc. */
typedef struct mo_gpu_access {
    mo_gpu_location location;
    int32_t flags;
} mo_gpu_access;

_Static_assert(sizeof(mo_gpu_allocation) == 32 && sizeof(mo_gpu_access) == 12,
               "layouts of the drivers' binary interface");
_Static_assert(sizeof(void *) == sizeof(uint64_t), "CUdeviceptr is passed as a pointer");

/* How much an entry point is needed. What is in a group is used only if all of the group is there.
 */
typedef enum mo_gpu_need {
    MO_GPU_REQUIRED,
    MO_GPU_GROUP_VM,       /* virtual memory; without it: plain allocations */
    MO_GPU_GROUP_HOST,     /* host functions; without them: stream callbacks */
    MO_GPU_GROUP_CALLBACK, /* stream callbacks */
    MO_GPU_GROUP_CAPTURE,  /* capture status; without it nothing captures */
    MO_GPU_GROUP_EXCHANGE, /* the thread's capture mode */
    MO_GPU_GROUP_SHARE,    /* memory as file descriptors */
    MO_GPU_GROUP_OTHER     /* each for itself */
} mo_gpu_need;

/* X(field, parameters, need, CUDA name, its symbol, its version, HIP symbol). The version is the
 * one that the parameters above belong to, for cuGetProcAddress. */
#define MO_GPU_CALLS(X)                                                                            \
    X(init, (unsigned flags), REQUIRED, cuInit, cuInit, 2000, hipInit)                             \
    X(driver_version, (int *out), REQUIRED, cuDriverGetVersion, cuDriverGetVersion, 2020,          \
      hipDriverGetVersion)                                                                         \
    X(device_count, (int *out), REQUIRED, cuDeviceGetCount, cuDeviceGetCount, 2000,                \
      hipGetDeviceCount)                                                                           \
    X(device_name, (char *out, int size, int device), REQUIRED, cuDeviceGetName, cuDeviceGetName,  \
      2000, hipDeviceGetName)                                                                      \
    X(device_memory, (size_t * out, int device), REQUIRED, cuDeviceTotalMem, cuDeviceTotalMem_v2,  \
      3020, hipDeviceTotalMem)                                                                     \
    X(device_attribute, (int *out, int attribute, int device), REQUIRED, cuDeviceGetAttribute,     \
      cuDeviceGetAttribute, 2000, hipDeviceGetAttribute)                                           \
    X(can_access_peer, (int *out, int device, int peer), GROUP_OTHER, cuDeviceCanAccessPeer,       \
      cuDeviceCanAccessPeer, 4000, hipDeviceCanAccessPeer)                                         \
    X(synchronize, (void), REQUIRED, cuCtxSynchronize, cuCtxSynchronize, 2000,                     \
      hipDeviceSynchronize)                                                                        \
    X(memory_info, (size_t * out_free, size_t * out_total), REQUIRED, cuMemGetInfo,                \
      cuMemGetInfo_v2, 3020, hipMemGetInfo)                                                        \
    X(mem_alloc, (void **out, size_t bytes), REQUIRED, cuMemAlloc, cuMemAlloc_v2, 3020, hipMalloc) \
    X(mem_free, (void *pointer), REQUIRED, cuMemFree, cuMemFree_v2, 3020, hipFree)                 \
    X(host_alloc, (void **out, size_t bytes, unsigned flags), REQUIRED, cuMemHostAlloc,            \
      cuMemHostAlloc, 2020, hipHostMalloc)                                                         \
    X(host_free, (void *pointer), REQUIRED, cuMemFreeHost, cuMemFreeHost, 2000, hipHostFree)       \
    X(host_register, (void *pointer, size_t bytes, unsigned flags), REQUIRED, cuMemHostRegister,   \
      cuMemHostRegister_v2, 6050, hipHostRegister)                                                 \
    X(host_unregister, (void *pointer), REQUIRED, cuMemHostUnregister, cuMemHostUnregister, 4000,  \
      hipHostUnregister)                                                                           \
    X(stream_create, (mo_gpu_stream * out, unsigned flags), REQUIRED, cuStreamCreate,              \
      cuStreamCreate, 2000, hipStreamCreateWithFlags)                                              \
    X(stream_destroy, (mo_gpu_stream stream), REQUIRED, cuStreamDestroy, cuStreamDestroy_v2, 4000, \
      hipStreamDestroy)                                                                            \
    X(stream_sync, (mo_gpu_stream stream), REQUIRED, cuStreamSynchronize, cuStreamSynchronize,     \
      2000, hipStreamSynchronize)                                                                  \
    X(stream_query, (mo_gpu_stream stream), REQUIRED, cuStreamQuery, cuStreamQuery, 2000,          \
      hipStreamQuery)                                                                              \
    X(stream_wait, (mo_gpu_stream stream, mo_gpu_event event, unsigned flags), REQUIRED,           \
      cuStreamWaitEvent, cuStreamWaitEvent, 3020, hipStreamWaitEvent)                              \
    X(event_create, (mo_gpu_event * out, unsigned flags), REQUIRED, cuEventCreate, cuEventCreate,  \
      2000, hipEventCreateWithFlags)                                                               \
    X(event_destroy, (mo_gpu_event event), REQUIRED, cuEventDestroy, cuEventDestroy_v2, 4000,      \
      hipEventDestroy)                                                                             \
    X(event_record, (mo_gpu_event event, mo_gpu_stream stream), REQUIRED, cuEventRecord,           \
      cuEventRecord, 2000, hipEventRecord)                                                         \
    X(event_query, (mo_gpu_event event), REQUIRED, cuEventQuery, cuEventQuery, 2000,               \
      hipEventQuery)                                                                               \
    X(event_sync, (mo_gpu_event event), REQUIRED, cuEventSynchronize, cuEventSynchronize, 2000,    \
      hipEventSynchronize)                                                                         \
    X(event_elapsed, (float *out_milliseconds, mo_gpu_event start, mo_gpu_event end), REQUIRED,    \
      cuEventElapsedTime, cuEventElapsedTime, 2000, hipEventElapsedTime)                           \
    X(fill, (void *pointer, unsigned char value, size_t count, mo_gpu_stream stream), REQUIRED,    \
      cuMemsetD8Async, cuMemsetD8Async, 3020, hipMemsetD8Async)                                    \
    X(module_load, (mo_gpu_module * out, const void *image), REQUIRED, cuModuleLoadData,           \
      cuModuleLoadData, 2000, hipModuleLoadData)                                                   \
    X(module_unload, (mo_gpu_module module), REQUIRED, cuModuleUnload, cuModuleUnload, 2000,       \
      hipModuleUnload)                                                                             \
    X(module_function, (mo_gpu_function * out, mo_gpu_module module, const char *name), REQUIRED,  \
      cuModuleGetFunction, cuModuleGetFunction, 2000, hipModuleGetFunction)                        \
    X(launch,                                                                                      \
      (mo_gpu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,                \
       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,                      \
       mo_gpu_stream stream, void **parameters, void **extra),                                     \
      REQUIRED, cuLaunchKernel, cuLaunchKernel, 4000, hipModuleLaunchKernel)                       \
    X(host_function, (mo_gpu_stream stream, void (*function)(void *user), void *user), GROUP_HOST, \
      cuLaunchHostFunc, cuLaunchHostFunc, 10000, hipLaunchHostFunc)                                \
    X(stream_callback,                                                                             \
      (mo_gpu_stream stream, void (*function)(mo_gpu_stream stream, int status, void *user),       \
       void *user, unsigned flags),                                                                \
      GROUP_CALLBACK, cuStreamAddCallback, cuStreamAddCallback, 5000, hipStreamAddCallback)        \
    X(stream_capturing, (mo_gpu_stream stream, int *out), GROUP_CAPTURE, cuStreamIsCapturing,      \
      cuStreamIsCapturing, 10000, hipStreamIsCapturing)                                            \
    X(exchange_capture_mode, (int *mode), GROUP_EXCHANGE, cuThreadExchangeStreamCaptureMode,       \
      cuThreadExchangeStreamCaptureMode, 10010, hipThreadExchangeStreamCaptureMode)                \
    X(vm_granularity, (size_t * out, const mo_gpu_allocation *allocation, int which), GROUP_VM,    \
      cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020,                         \
      hipMemGetAllocationGranularity)                                                              \
    X(vm_reserve, (void **out, size_t bytes, size_t alignment, void *wanted, uint64_t flags),      \
      GROUP_VM, cuMemAddressReserve, cuMemAddressReserve, 10020, hipMemAddressReserve)             \
    X(vm_unreserve, (void *address, size_t bytes), GROUP_VM, cuMemAddressFree, cuMemAddressFree,   \
      10020, hipMemAddressFree)                                                                    \
    X(vm_create,                                                                                   \
      (uint64_t * out, size_t bytes, const mo_gpu_allocation *allocation, uint64_t flags),         \
      GROUP_VM, cuMemCreate, cuMemCreate, 10020, hipMemCreate)                                     \
    X(vm_map, (void *address, size_t bytes, size_t offset, uint64_t handle, uint64_t flags),       \
      GROUP_VM, cuMemMap, cuMemMap, 10020, hipMemMap)                                              \
    X(vm_set_access, (void *address, size_t bytes, const mo_gpu_access *access, size_t count),     \
      GROUP_VM, cuMemSetAccess, cuMemSetAccess, 10020, hipMemSetAccess)                            \
    X(vm_unmap, (void *address, size_t bytes), GROUP_VM, cuMemUnmap, cuMemUnmap, 10020,            \
      hipMemUnmap)                                                                                 \
    X(vm_release, (uint64_t handle), GROUP_VM, cuMemRelease, cuMemRelease, 10020, hipMemRelease)   \
    X(vm_export, (void *out, uint64_t handle, int type, uint64_t flags), GROUP_SHARE,              \
      cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020,                           \
      hipMemExportToShareableHandle)                                                               \
    X(vm_import, (uint64_t * out, void *shared, int type), GROUP_SHARE,                            \
      cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020,                       \
      hipMemImportFromShareableHandle)                                                             \
    X(device_uuid, (void *out, int device), GROUP_SHARE, cuDeviceGetUuid, cuDeviceGetUuid_v2,      \
      11040, hipDeviceGetUuid)

typedef struct mo_gpu_calls {
#define MO_GPU_CALL_FIELD(field, parameters, need, cuda, symbol, version, hip)                     \
    int(*field) parameters;
    MO_GPU_CALLS(MO_GPU_CALL_FIELD)
#undef MO_GPU_CALL_FIELD
} mo_gpu_calls;

/* One entry point to look up, and where its address goes. */
typedef struct mo_gpu_entry {
    const char *name;   /* as cuGetProcAddress takes it, and as messages call it */
    const char *symbol; /* as dlsym takes it */
    int version;
    mo_gpu_need need;
    size_t offset;
} mo_gpu_entry;

#endif
