/*
 * The table of entry points, and the functions that do their work.
 *
 * CUDA's and HIP's calls take the same arguments in the same order nearly everywhere, so one table
 * serves both: entry.c makes the vendor's exported functions from it, which count the call, strike
 * an armed fault, ask for a usable context and for a capture that forbids the call, and then call
 * sim_call_<field>. What a vendor has alone is in the table of its own file (cuda.c, hip.c).
 *
 * Bodies run under the lock. They take the arguments as the driver gets them and check them.
 */
#ifndef MEMOPT_SIM_CALLS_H
#define MEMOPT_SIM_CALLS_H

#include "core/context.h"
#include "core/sim.h"
#include "module.h"

/* What must be there before a call is looked at. */
typedef enum sim_need {
    SIM_NEEDS_NOTHING,
    SIM_NEEDS_DRIVER, /* initialised */
    SIM_NEEDS_CONTEXT /* current and usable */
} sim_need;

/* Whether a capture with a mode that is not relaxed forbids the call: what allocates, frees or
 * waits, since a replay would not do it again. */
typedef enum sim_safety { SIM_SAFE, SIM_UNSAFE } sim_safety;

typedef struct sim_place {
    int type, id;
} sim_place;

/* CUmemAllocationProp, hipMemAllocationProp. */
typedef struct sim_allocation {
    int type, handle_types;
    sim_place where;
    void *metadata;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
} sim_allocation;

/* CUmemAccessDesc, hipMemAccessDesc. */
typedef struct sim_access {
    sim_place where;
    int flags;
} sim_access;

/* X(needs, safety, field, parameters, arguments, version of this form, CUDA name, its symbol,
 *   HIP symbol) */
#define SIM_DEVICE_CALLS(X)                                                                        \
    X(NOTHING, SAFE, driver_version, (int *out), (out), 2020, cuDriverGetVersion,                  \
      cuDriverGetVersion, hipDriverGetVersion)                                                     \
    X(DRIVER, SAFE, device_count, (int *out), (out), 2000, cuDeviceGetCount, cuDeviceGetCount,     \
      hipGetDeviceCount)                                                                           \
    X(DRIVER, SAFE, device_name, (char *out, int length, int device), (out, length, device), 2000, \
      cuDeviceGetName, cuDeviceGetName, hipDeviceGetName)                                          \
    X(DRIVER, SAFE, device_memory, (size_t * out, int device), (out, device), 3020,                \
      cuDeviceTotalMem, cuDeviceTotalMem_v2, hipDeviceTotalMem)                                    \
    X(DRIVER, SAFE, device_attribute, (int *out, int attribute, int device),                       \
      (out, attribute, device), 2000, cuDeviceGetAttribute, cuDeviceGetAttribute,                  \
      hipDeviceGetAttribute)                                                                       \
    X(DRIVER, SAFE, can_access_peer, (int *out, int device, int peer), (out, device, peer), 4000,  \
      cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, hipDeviceCanAccessPeer)                        \
    X(CONTEXT, SAFE, synchronize, (void), (), 2000, cuCtxSynchronize, cuCtxSynchronize,            \
      hipDeviceSynchronize)

#define SIM_MEMORY_CALLS(X)                                                                        \
    X(CONTEXT, SAFE, memory_info, (size_t * out_free, size_t * out_total), (out_free, out_total),  \
      3020, cuMemGetInfo, cuMemGetInfo_v2, hipMemGetInfo)                                          \
    X(CONTEXT, UNSAFE, mem_alloc, (void **out, size_t bytes), (out, bytes), 3020, cuMemAlloc,      \
      cuMemAlloc_v2, hipMalloc)                                                                    \
    X(CONTEXT, UNSAFE, mem_free, (void *pointer), (pointer), 3020, cuMemFree, cuMemFree_v2,        \
      hipFree)                                                                                     \
    X(CONTEXT, UNSAFE, host_alloc, (void **out, size_t bytes, unsigned flags),                     \
      (out, bytes, flags), 2020, cuMemHostAlloc, cuMemHostAlloc, hipHostMalloc)                    \
    X(CONTEXT, UNSAFE, host_free, (void *pointer), (pointer), 2000, cuMemFreeHost, cuMemFreeHost,  \
      hipHostFree)                                                                                 \
    X(CONTEXT, UNSAFE, host_register, (void *pointer, size_t bytes, unsigned flags),               \
      (pointer, bytes, flags), 6050, cuMemHostRegister, cuMemHostRegister_v2, hipHostRegister)     \
    X(CONTEXT, UNSAFE, host_unregister, (void *pointer), (pointer), 4000, cuMemHostUnregister,     \
      cuMemHostUnregister, hipHostUnregister)                                                      \
    X(CONTEXT, SAFE, fill8, (void *to, unsigned char value, size_t count, sim_stream *stream),     \
      (to, value, count, stream), 3020, cuMemsetD8Async, cuMemsetD8Async, hipMemsetD8Async)

#define SIM_VM_CALLS(X)                                                                            \
    X(DRIVER, SAFE, vm_granularity, (size_t * out, const sim_allocation *wanted, int which),       \
      (out, wanted, which), 10020, cuMemGetAllocationGranularity, cuMemGetAllocationGranularity,   \
      hipMemGetAllocationGranularity)                                                              \
    X(CONTEXT, SAFE, vm_reserve,                                                                   \
      (void **out, size_t bytes, size_t align, void *wanted, uint64_t flags),                      \
      (out, bytes, align, wanted, flags), 10020, cuMemAddressReserve, cuMemAddressReserve,         \
      hipMemAddressReserve)                                                                        \
    X(CONTEXT, SAFE, vm_unreserve, (void *address, size_t bytes), (address, bytes), 10020,         \
      cuMemAddressFree, cuMemAddressFree, hipMemAddressFree)                                       \
    X(CONTEXT, SAFE, vm_create,                                                                    \
      (sim_physical * *out, size_t bytes, const sim_allocation *wanted, uint64_t flags),           \
      (out, bytes, wanted, flags), 10020, cuMemCreate, cuMemCreate, hipMemCreate)                  \
    X(CONTEXT, SAFE, vm_map,                                                                       \
      (void *address, size_t bytes, size_t offset, sim_physical *handle, uint64_t flags),          \
      (address, bytes, offset, handle, flags), 10020, cuMemMap, cuMemMap, hipMemMap)               \
    X(CONTEXT, SAFE, vm_set_access,                                                                \
      (void *address, size_t bytes, const sim_access *access, size_t count),                       \
      (address, bytes, access, count), 10020, cuMemSetAccess, cuMemSetAccess, hipMemSetAccess)     \
    X(CONTEXT, SAFE, vm_unmap, (void *address, size_t bytes), (address, bytes), 10020, cuMemUnmap, \
      cuMemUnmap, hipMemUnmap)                                                                     \
    X(CONTEXT, SAFE, vm_release, (sim_physical * handle), (handle), 10020, cuMemRelease,           \
      cuMemRelease, hipMemRelease)                                                                 \
    X(CONTEXT, SAFE, vm_export, (void *out, sim_physical *handle, int type, uint64_t flags),       \
      (out, handle, type, flags), 10020, cuMemExportToShareableHandle,                             \
      cuMemExportToShareableHandle, hipMemExportToShareableHandle)                                 \
    X(CONTEXT, SAFE, vm_import, (sim_physical * *out, void *shared, int type),                     \
      (out, shared, type), 10020, cuMemImportFromShareableHandle, cuMemImportFromShareableHandle,  \
      hipMemImportFromShareableHandle)                                                             \
    X(DRIVER, SAFE, device_uuid, (void *out, int device), (out, device), 11040, cuDeviceGetUuid,   \
      cuDeviceGetUuid_v2, hipDeviceGetUuid)

#define SIM_STREAM_CALLS(X)                                                                        \
    X(CONTEXT, SAFE, stream_create, (sim_stream * *out, unsigned flags), (out, flags), 2000,       \
      cuStreamCreate, cuStreamCreate, hipStreamCreateWithFlags)                                    \
    X(CONTEXT, SAFE, stream_destroy, (sim_stream * stream), (stream), 4000, cuStreamDestroy,       \
      cuStreamDestroy_v2, hipStreamDestroy)                                                        \
    X(CONTEXT, SAFE, stream_sync, (sim_stream * stream), (stream), 2000, cuStreamSynchronize,      \
      cuStreamSynchronize, hipStreamSynchronize)                                                   \
    X(CONTEXT, SAFE, stream_query, (sim_stream * stream), (stream), 2000, cuStreamQuery,           \
      cuStreamQuery, hipStreamQuery)                                                               \
    X(CONTEXT, SAFE, stream_wait, (sim_stream * stream, sim_event * event, unsigned flags),        \
      (stream, event, flags), 3020, cuStreamWaitEvent, cuStreamWaitEvent, hipStreamWaitEvent)      \
    X(CONTEXT, SAFE, host_function,                                                                \
      (sim_stream * stream, void (*function)(void *user), void *user), (stream, function, user),   \
      10000, cuLaunchHostFunc, cuLaunchHostFunc, hipLaunchHostFunc)                                \
    X(CONTEXT, SAFE, stream_callback,                                                              \
      (sim_stream * stream, void (*function)(sim_stream * stream, int32_t code, void *user),       \
       void *user, unsigned flags),                                                                \
      (stream, function, user, flags), 5000, cuStreamAddCallback, cuStreamAddCallback,             \
      hipStreamAddCallback)                                                                        \
    X(CONTEXT, SAFE, event_create, (sim_event * *out, unsigned flags), (out, flags), 2000,         \
      cuEventCreate, cuEventCreate, hipEventCreateWithFlags)                                       \
    X(CONTEXT, SAFE, event_destroy, (sim_event * event), (event), 4000, cuEventDestroy,            \
      cuEventDestroy_v2, hipEventDestroy)                                                          \
    X(CONTEXT, SAFE, event_record, (sim_event * event, sim_stream * stream), (event, stream),      \
      2000, cuEventRecord, cuEventRecord, hipEventRecord)                                          \
    X(CONTEXT, UNSAFE, event_query, (sim_event * event), (event), 2000, cuEventQuery,              \
      cuEventQuery, hipEventQuery)                                                                 \
    X(CONTEXT, UNSAFE, event_sync, (sim_event * event), (event), 2000, cuEventSynchronize,         \
      cuEventSynchronize, hipEventSynchronize)                                                     \
    X(CONTEXT, SAFE, event_elapsed, (float *out, sim_event *start, sim_event *end),                \
      (out, start, end), 2000, cuEventElapsedTime, cuEventElapsedTime, hipEventElapsedTime)

#define SIM_GRAPH_CALLS(X)                                                                         \
    X(CONTEXT, SAFE, capture_begin, (sim_stream * stream, int mode), (stream, mode), 10010,        \
      cuStreamBeginCapture, cuStreamBeginCapture_v2, hipStreamBeginCapture)                        \
    X(CONTEXT, SAFE, capture_end, (sim_stream * stream, sim_graph * *out), (stream, out), 10000,   \
      cuStreamEndCapture, cuStreamEndCapture, hipStreamEndCapture)                                 \
    X(CONTEXT, SAFE, stream_capturing, (sim_stream * stream, int *out), (stream, out), 10000,      \
      cuStreamIsCapturing, cuStreamIsCapturing, hipStreamIsCapturing)                              \
    X(DRIVER, SAFE, exchange_capture_mode, (int *mode), (mode), 10010,                             \
      cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode,                        \
      hipThreadExchangeStreamCaptureMode)                                                          \
    X(CONTEXT, SAFE, graph_instantiate, (sim_graph * *out, sim_graph * graph, uint64_t flags),     \
      (out, graph, flags), 11040, cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags,        \
      hipGraphInstantiateWithFlags)                                                                \
    X(CONTEXT, SAFE, graph_launch, (sim_graph * executable, sim_stream * stream),                  \
      (executable, stream), 10000, cuGraphLaunch, cuGraphLaunch, hipGraphLaunch)                   \
    X(CONTEXT, SAFE, graph_destroy, (sim_graph * graph), (graph), 10000, cuGraphDestroy,           \
      cuGraphDestroy, hipGraphDestroy)                                                             \
    X(CONTEXT, SAFE, graph_destroy, (sim_graph * graph), (graph), 10000, cuGraphExecDestroy,       \
      cuGraphExecDestroy, hipGraphExecDestroy)

#define SIM_MODULE_CALLS(X)                                                                        \
    X(CONTEXT, UNSAFE, module_load, (sim_module * *out, const void *image), (out, image), 2000,    \
      cuModuleLoadData, cuModuleLoadData, hipModuleLoadData)                                       \
    X(CONTEXT, UNSAFE, module_unload, (sim_module * module), (module), 2000, cuModuleUnload,       \
      cuModuleUnload, hipModuleUnload)                                                             \
    X(CONTEXT, SAFE, module_function,                                                              \
      (sim_function * *out, sim_module * module, const char *name), (out, module, name), 2000,     \
      cuModuleGetFunction, cuModuleGetFunction, hipModuleGetFunction)                              \
    X(CONTEXT, SAFE, launch,                                                                       \
      (sim_function * function, unsigned grid_x, unsigned grid_y, unsigned grid_z,                 \
       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, sim_stream *stream,  \
       void **parameters, void **extra),                                                           \
      (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters,    \
       extra),                                                                                     \
      4000, cuLaunchKernel, cuLaunchKernel, hipModuleLaunchKernel)

#define SIM_CALLS(X)                                                                               \
    SIM_DEVICE_CALLS(X)                                                                            \
    SIM_MEMORY_CALLS(X)                                                                            \
    SIM_VM_CALLS(X)                                                                                \
    SIM_STREAM_CALLS(X)                                                                            \
    SIM_GRAPH_CALLS(X)                                                                             \
    SIM_MODULE_CALLS(X)

#define SIM_DECLARE_CALL(needs, safety, field, parameters, arguments, since, name, symbol, hip)    \
    sim_status sim_call_##field parameters;
SIM_CALLS(SIM_DECLARE_CALL)

/* --- entry.c ------------------------------------------------------------------------------- */

/* Around every entry point. sim_begin returns 0 where the call ends at once with *out_code; the
 * lock is not held then. */
int sim_begin(const char *call, sim_need needs, sim_safety safety, int32_t *out_code);
/* Gives up the lock; the vendor's number. */
int32_t sim_end(sim_status status);
/* The context that the running call found current. */
sim_context *sim_here(void);
int sim_known_device(int device);
/* The stream behind a handle: 0 and 1 are the context's legacy default stream. It may not be used
 * while a stream that waits for it captures, which ends that capture. */
sim_status sim_use_stream(sim_stream **stream);
/* What is at an address, for the calls that tell: no memory of the driver's, page-locked host
 * memory, or a device's, with its number. */
typedef enum sim_memory { SIM_MEMORY_NONE, SIM_MEMORY_HOST, SIM_MEMORY_DEVICE } sim_memory;
sim_memory sim_locate(const void *pointer, int *out_device);
/* Device memory: not the host's, pinned or not. */
int sim_on_device(const void *pointer);

/* --- cuda.c, hip.c ------------------------------------------------------------------------- */

sim_status sim_vendor_ready(void); /* initialised */
sim_status sim_vendor_context(sim_context **out_context);
int32_t sim_vendor_outcome(int32_t code);

/* The body of an exported function. */
#define SIM_ENTRY(call, needs, safety, work)                                                       \
    int32_t code_ = 0;                                                                             \
    return sim_begin(call, SIM_NEEDS_##needs, SIM_##safety, &code_) ? sim_end(work) : code_

#endif
