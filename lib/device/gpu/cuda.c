/*
 * What is CUDA's own: how entry points are found, the primary context, attributes, images.
 *
 * The primary context is the one of the runtime interface, so memory, streams and events are shared
 * with programs that use that one.
 */
#include "device/gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* CUdevice_attribute. */
enum {
    ATTRIBUTE_WARP_SIZE = 10,
    ATTRIBUTE_MULTIPROCESSORS = 16,
    ATTRIBUTE_MAJOR = 75,
    ATTRIBUTE_MINOR = 76,
    ATTRIBUTE_PAGEABLE_ACCESS = 88,
    ATTRIBUTE_VIRTUAL_MEMORY = 102,
    ATTRIBUTE_HANDLE_FILES = 103,
    ATTRIBUTE_RDMA_VIRTUAL_MEMORY = 110
};

/* CUpointer_attribute, CUmemorytype. */
enum { POINTER_MEMORY_TYPE = 2, POINTER_IS_MANAGED = 8, POINTER_DEVICE = 9 };
enum { MEMORY_DEVICE = 2 };

/* X(field, parameters, need, name, symbol, version) */
#define CUDA_CALLS(X)                                                                              \
    X(device_get, (int *out, int ordinal), REQUIRED, cuDeviceGet, cuDeviceGet, 2000)               \
    X(retain, (mo_gpu_context * out, int device), REQUIRED, cuDevicePrimaryCtxRetain,              \
      cuDevicePrimaryCtxRetain, 7000)                                                              \
    X(release, (int device), REQUIRED, cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2,    \
      11000)                                                                                       \
    X(push, (mo_gpu_context context), REQUIRED, cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000)       \
    X(pop, (mo_gpu_context * out), REQUIRED, cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000)            \
    X(copy, (void *to, const void *from, size_t bytes, mo_gpu_stream stream), REQUIRED,            \
      cuMemcpyAsync, cuMemcpyAsync, 4000)                                                          \
    X(pointer_attributes,                                                                          \
      (unsigned count, const int *attributes, void **out, const void *pointer), GROUP_OTHER,       \
      cuPointerGetAttributes, cuPointerGetAttributes, 7000)                                        \
    X(error_name, (int code, const char **out), GROUP_OTHER, cuGetErrorName, cuGetErrorName, 6000)

typedef struct cuda_calls {
#define FIELD(field, parameters, need, name, symbol, version) int(*field) parameters;
    CUDA_CALLS(FIELD)
#undef FIELD
} cuda_calls;

/* Written under the load lock, constant once the driver is loaded. */
static cuda_calls own;

static const mo_gpu_entry shared_entries[] = {
#define ENTRY(field, parameters, need, name, symbol, version, hip)                                 \
    {#name, #symbol, version, MO_GPU_##need, offsetof(mo_gpu_calls, field)},
    MO_GPU_CALLS(ENTRY)
#undef ENTRY
};

static const mo_gpu_entry own_entries[] = {
#define ENTRY(field, parameters, need, name, symbol, version)                                      \
    {#name, #symbol, version, MO_GPU_##need, offsetof(cuda_calls, field)},
    CUDA_CALLS(ENTRY)
#undef ENTRY
};

/* cuGetProcAddress, if the driver has it: it knows which form of a function a version means. For
 * optional functions its refusal is final. */
static void *find_entry(const mo_gpu_driver *driver, const mo_gpu_entry *entry)
{
    union {
        void *address;
        int (*since_12)(const char *name, void **out, int version, uint64_t flags, int *out_status);
        int (*since_11_3)(const char *name, void **out, int version, uint64_t flags);
    } ask = {mo_gpu_symbol(driver, "cuGetProcAddress_v2")};
    void *address = NULL;
    int found = 0, code = MO_GPU_NOT_FOUND;
    if (ask.address != NULL)
        code = ask.since_12(entry->name, &address, entry->version, 0, &found);
    else if ((ask.address = mo_gpu_symbol(driver, "cuGetProcAddress")) != NULL)
        code = ask.since_11_3(entry->name, &address, entry->version, 0);
    if (code == MO_GPU_SUCCESS && found == 0 && address != NULL)
        return address;
    if (ask.address != NULL && entry->need != MO_GPU_REQUIRED)
        return NULL;
    address = mo_gpu_symbol(driver, entry->symbol);
    /* The only symbol whose older form takes the same arguments and is still in use. */
    if (address == NULL && strcmp(entry->name, "cuDevicePrimaryCtxRelease") == 0)
        address = mo_gpu_symbol(driver, entry->name);
    return address;
}

static void resolve(mo_gpu_driver *driver)
{
    mo_gpu_resolve(driver, shared_entries, sizeof shared_entries / sizeof shared_entries[0],
                   &driver->calls, find_entry);
    mo_gpu_resolve(driver, own_entries, sizeof own_entries / sizeof own_entries[0], &own,
                   find_entry);
}

static const char *error_name(const mo_gpu_driver *driver, int code)
{
    const char *name = NULL;
    (void)driver;
    if (own.error_name == NULL || own.error_name(code, &name) != MO_GPU_SUCCESS || name == NULL)
        return "an error without a name";
    return name;
}

static int describe(mo_gpu_device *gpu)
{
    const mo_gpu_calls *call = mo_gpu_call(gpu);
    size_t total = 0;
    int processors = 0, warp = 0, major = 0, minor = 0, virtual_memory = 0, rdma = 0, pageable = 0,
        files = 0;
    const struct {
        int attribute, *out;
    } wanted[] = {{ATTRIBUTE_MULTIPROCESSORS, &processors},
                  {ATTRIBUTE_WARP_SIZE, &warp},
                  {ATTRIBUTE_MAJOR, &major},
                  {ATTRIBUTE_MINOR, &minor}};
    int code = call->device_name(gpu->name, (int)sizeof gpu->name, gpu->handle);
    if (code == MO_GPU_SUCCESS)
        code = call->device_memory(&total, gpu->handle);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0] && code == MO_GPU_SUCCESS; i++)
        code = call->device_attribute(wanted[i].out, wanted[i].attribute, gpu->handle);
    if (code != MO_GPU_SUCCESS)
        return code;
    /* A driver that does not know an attribute returns an error, which means no. */
    if (call->device_attribute(&virtual_memory, ATTRIBUTE_VIRTUAL_MEMORY, gpu->handle) != 0)
        virtual_memory = 0;
    if (call->device_attribute(&rdma, ATTRIBUTE_RDMA_VIRTUAL_MEMORY, gpu->handle) != 0)
        rdma = 0;
    if (call->device_attribute(&files, ATTRIBUTE_HANDLE_FILES, gpu->handle) != 0)
        files = 0;
    if (call->device_attribute(&pageable, ATTRIBUTE_PAGEABLE_ACCESS, gpu->handle) != 0)
        pageable = 0;
    gpu->multiprocessors = (uint32_t)processors;
    gpu->warp_size = (uint32_t)warp;
    gpu->capability = (uint32_t)(major * 10 + minor);
    gpu->total_memory = total;
    gpu->can_map = virtual_memory;
    gpu->pageable = pageable;
    atomic_store(&gpu->rdma, rdma);
    atomic_store(&gpu->files, files && mo_gpu_has(gpu->driver, MO_GPU_GROUP_SHARE));
    snprintf(gpu->target, sizeof gpu->target, "sm_%u", gpu->capability);
    memcpy(gpu->isa, gpu->target, sizeof gpu->isa);
    return MO_GPU_SUCCESS;
}

static int open_context(mo_gpu_device *gpu)
{
    int device = 0, code = own.device_get(&device, gpu->index);
    gpu->handle = device;
    return code == MO_GPU_SUCCESS ? own.retain(&gpu->context, device) : code;
}

static void close_context(mo_gpu_device *gpu)
{
    (void)own.release(gpu->handle);
}

static int enter_context(mo_gpu_device *gpu, void **out_saved)
{
    *out_saved = NULL;
    return own.push(gpu->context);
}

static void leave_context(mo_gpu_device *gpu, void *saved)
{
    mo_gpu_context popped;
    (void)gpu, (void)saved;
    (void)own.pop(&popped);
}

static int copy(mo_gpu_device *gpu, void *to, const void *from, size_t bytes, mo_gpu_stream stream)
{
    (void)gpu;
    return own.copy(to, from, bytes, stream);
}

/* For memory that the driver does not know, this form of the call succeeds and gives no type. A
 * device that can use pageable memory can use that memory too. */
static int locate(const mo_gpu_device *gpu, const void *pointer, int32_t *out_owner)
{
    static const int attributes[] = {POINTER_MEMORY_TYPE, POINTER_IS_MANAGED, POINTER_DEVICE};
    uint32_t type = 0, managed = 0;
    int32_t device = MO_GPU_NOWHERE;
    void *out[] = {&type, &managed, &device};
    *out_owner = MO_GPU_EVERYWHERE;
    if (own.pointer_attributes == NULL)
        return MO_GPU_SUCCESS;
    int code = own.pointer_attributes(3, attributes, out, pointer);
    if (code != MO_GPU_SUCCESS || managed != 0)
        return code;
    if (type == 0 && !gpu->pageable)
        *out_owner = MO_GPU_NOWHERE;
    else if (type == MEMORY_DEVICE && device >= 0)
        *out_owner = device;
    return MO_GPU_SUCCESS;
}

/* The driver interface keeps no last error. */
static void clear_error(const mo_gpu_driver *driver)
{
    (void)driver;
}

/* The fatbin chooses among its images; a PTX text fits from its version on, the newest best. */
static uint32_t rate_image(const mo_gpu_device *gpu, const char *target)
{
    if (strcmp(target, "fatbin") == 0)
        return UINT32_MAX;
    if (strcmp(target, gpu->target) == 0)
        return UINT32_MAX - 1;
    if (strncmp(target, "ptx", 3) != 0)
        return 0;
    unsigned long version = strtoul(target + 3, NULL, 10);
    return version <= gpu->capability ? (uint32_t)version : 0;
}

static void target_option(const mo_gpu_device *gpu, char *text, size_t size)
{
    snprintf(text, size, "--gpu-architecture=%s", gpu->target);
}

static const char *const libraries[] = {"libcuda.so.1", NULL};
static const char *const compilers[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2",
                                        "libnvrtc.so", NULL};

static const char *const wheels[] = {"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", NULL};

static const mo_gpu_vendor vendor = {
    .name = "cuda",
    .maker = "NVIDIA",
    .libraries = libraries,
    .compilers = compilers,
    .compiler_prefix = "nvrtc",
    .unknown_ends = 1,
    .compiler_variable = "MEMOPT_NVRTC",
    .compiler_wheels = wheels,
    .images = &mo_cuda_images,
    .most_launch_threads = 0,
    .unmaps_runs = 1, /* as NVIDIA's sample multidevicealloc_memmap does */
    .resolve = resolve,
    .error_name = error_name,
    .describe = describe,
    .open_context = open_context,
    .close_context = close_context,
    .enter_context = enter_context,
    .leave_context = leave_context,
    .copy = copy,
    .locate = locate,
    .clear_error = clear_error,
    .rate_image = rate_image,
    .target_option = target_option,
};

mo_gpu_driver mo_cuda_driver = {.vendor = &vendor, .mapping = PTHREAD_RWLOCK_INITIALIZER};
