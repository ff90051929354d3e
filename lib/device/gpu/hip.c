/*
 * What differs in HIP: a current device in place of a context, the kind of a copy, the name of the
 * instruction set, the runtime's last error.
 */
#define _GNU_SOURCE /* secure_getenv */

#include "device/gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* HIP's count of ROCm 5.0. Before it the attributes had other numbers. ROCm 6.0 gave the types of
 * memory CUDA's. */
enum {
    VERSION_ROCM_5 = 50000000,
    VERSION_ROCM_6 = 60000000,
    VERSION_ROCM_7_1 = 70100000,
    VERSION_ROCM_7_14 = 71400000
};

/* hipDeviceAttribute_t, the same in ROCm 5, 6 and 7. */
enum {
    ATTRIBUTE_MULTIPROCESSORS = 63,
    ATTRIBUTE_PAGEABLE_ACCESS = 65,
    ATTRIBUTE_WARP_SIZE = 87,
    ATTRIBUTE_VIRTUAL_MEMORY = 89
};

/* hipPointerAttribute_t, and hipMemoryTypeDevice since ROCm 6 and before. */
typedef struct pointer_attributes {
    int32_t type, device;
    void *device_pointer, *host_pointer;
    int32_t managed;
    uint32_t flags;
} pointer_attributes;
enum { MEMORY_DEVICE = 2, MEMORY_DEVICE_BEFORE = 1 };

/* hipMemcpyDefault: the addresses decide the direction. */
enum { COPY_DEFAULT = 4 };

/* Where the name of the instruction set lies in the two layouts of the device properties
 * (hipDeviceProp_tR0600 and, as the plain symbol keeps it, the one before), and more room than
 * either has. */
enum { ISA_SINCE_ROCM_6 = 1160, ISA_BEFORE = 396, PROPERTIES_BYTES = 4096 };

/* X(field, result, parameters, need, symbol) */
#define HIP_CALLS(X)                                                                               \
    X(get_device, int, (int *out), REQUIRED, hipGetDevice)                                         \
    X(set_device, int, (int device), REQUIRED, hipSetDevice)                                       \
    X(copy, int, (void *to, const void *from, size_t bytes, int kind, mo_gpu_stream stream),       \
      REQUIRED, hipMemcpyAsync)                                                                    \
    X(properties, int, (void *out, int device), GROUP_OTHER, hipGetDevicePropertiesR0600)          \
    X(old_properties, int, (void *out, int device), GROUP_OTHER, hipGetDeviceProperties)           \
    X(pointer_attributes, int, (pointer_attributes * out, const void *pointer), GROUP_OTHER,       \
      hipPointerGetAttributes)                                                                     \
    X(error_name, const char *, (int code), GROUP_OTHER, hipGetErrorName)                          \
    X(last_error, int, (void), GROUP_OTHER, hipGetLastError)

typedef struct hip_calls {
#define FIELD(field, result, parameters, need, symbol) result(*field) parameters;
    HIP_CALLS(FIELD)
#undef FIELD
} hip_calls;

/* Written under the load lock, constant once the driver is loaded. */
static hip_calls own;

static const mo_gpu_entry shared_entries[] = {
#define ENTRY(field, parameters, need, name, symbol, version, hip)                                 \
    {#hip, #hip, 0, MO_GPU_##need, offsetof(mo_gpu_calls, field)},
    MO_GPU_CALLS(ENTRY)
#undef ENTRY
};

static const mo_gpu_entry own_entries[] = {
#define ENTRY(field, result, parameters, need, symbol)                                             \
    {#symbol, #symbol, 0, MO_GPU_##need, offsetof(hip_calls, field)},
    HIP_CALLS(ENTRY)
#undef ENTRY
};

static void *find_entry(const mo_gpu_driver *driver, const mo_gpu_entry *entry)
{
    return mo_gpu_symbol(driver, entry->symbol);
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
    const char *name = own.error_name != NULL ? own.error_name(code) : NULL;
    (void)driver;
    return name != NULL ? name : "an error without a name";
}

static void clear_error(const mo_gpu_driver *driver)
{
    (void)driver;
    if (own.last_error != NULL)
        (void)own.last_error();
}

/* "gfx90a:sramecc+:xnack-" is the target gfx90a with features that the code does not depend on. */
static int describe_isa(mo_gpu_device *gpu)
{
    union {
        uint64_t align;
        char bytes[PROPERTIES_BYTES];
    } properties = {0};
    const char *name = properties.bytes + ISA_SINCE_ROCM_6;
    int code = MO_GPU_NOT_SUPPORTED;
    if (own.properties != NULL)
        code = own.properties(&properties, gpu->handle);
    else if (own.old_properties != NULL) {
        code = own.old_properties(&properties, gpu->handle);
        name = properties.bytes + ISA_BEFORE;
    }
    if (code != MO_GPU_SUCCESS)
        return code;
    snprintf(gpu->isa, sizeof gpu->isa, "%.*s", (int)sizeof gpu->isa - 1, name);
    snprintf(gpu->target, sizeof gpu->target, "%.*s", (int)strcspn(gpu->isa, ":"), gpu->isa);
    return MO_GPU_SUCCESS;
}

static int describe(mo_gpu_device *gpu)
{
    const mo_gpu_calls *call = mo_gpu_call(gpu);
    size_t total = 0;
    int processors = 0, warp = 0, virtual_memory = 0, pageable = 0;
    int code = call->device_name(gpu->name, (int)sizeof gpu->name, gpu->handle);
    if (code == MO_GPU_SUCCESS)
        code = call->device_memory(&total, gpu->handle);
    if (code == MO_GPU_SUCCESS)
        code = call->device_attribute(&processors, ATTRIBUTE_MULTIPROCESSORS, gpu->handle);
    if (code == MO_GPU_SUCCESS)
        code = call->device_attribute(&warp, ATTRIBUTE_WARP_SIZE, gpu->handle);
    if (code == MO_GPU_SUCCESS)
        code = describe_isa(gpu);
    if (code != MO_GPU_SUCCESS)
        return code;
    if (call->device_attribute(&virtual_memory, ATTRIBUTE_VIRTUAL_MEMORY, gpu->handle) != 0) {
        clear_error(gpu->driver);
        virtual_memory = 0;
    }
    if (call->device_attribute(&pageable, ATTRIBUTE_PAGEABLE_ACCESS, gpu->handle) != 0) {
        clear_error(gpu->driver);
        pageable = 0;
    }
    gpu->multiprocessors = (uint32_t)processors;
    gpu->warp_size = (uint32_t)warp;
    gpu->total_memory = total;
    gpu->can_map = virtual_memory;
    gpu->pageable = pageable;
    atomic_store(&gpu->files, mo_gpu_has(gpu->driver, MO_GPU_GROUP_SHARE));
    return MO_GPU_SUCCESS;
}

/* ROCm 7.0 to 7.2 refuse access to grown mappings (rocm-systems#2516, #2667, #6977). #2451 mends
 * it; it went into 7.14, the next release, and not into 7.2 (ROCm/mori#640). RDNA 4 loses stores to
 * fresh mappings for up to 2 ms (rocm-systems#11693: gfx1201, ROCm 7.2.1), and no version is known
 * where it does not. */
static void distrust_vm(mo_gpu_device *gpu)
{
    static const char help[] = "MEMOPT_HIP_VIRTUAL_MEMORY=1 tries it";
    const char *wanted = secure_getenv("MEMOPT_HIP_VIRTUAL_MEMORY");
    int version = gpu->driver->version;
    if (wanted != NULL && strcmp(wanted, "0") == 0)
        snprintf(gpu->no_map, sizeof gpu->no_map, "MEMOPT_HIP_VIRTUAL_MEMORY=0");
    else if (wanted != NULL && strcmp(wanted, "1") == 0)
        return;
    else if (version < VERSION_ROCM_7_14)
        snprintf(gpu->no_map, sizeof gpu->no_map,
                 "HIP %d.%d is older than 7.14, which is the first that is known to work; %s",
                 version / 10000000, version / 100000 % 100, help);
    else if (strncmp(gpu->target, "gfx12", 5) == 0)
        snprintf(gpu->no_map, sizeof gpu->no_map, "%.8s loses what is written to new mappings; %s",
                 gpu->target, help);
}

/* The runtime makes a device's context when it is first used and ends it with the process. */
static int open_context(mo_gpu_device *gpu)
{
    gpu->handle = gpu->index;
    return MO_GPU_SUCCESS;
}

static void close_context(mo_gpu_device *gpu)
{
    (void)gpu;
}

static int enter_context(mo_gpu_device *gpu, void **out_saved)
{
    int before = 0, code = own.get_device(&before);
    *out_saved = (void *)(intptr_t)before;
    return code == MO_GPU_SUCCESS && before != gpu->handle ? own.set_device(gpu->handle) : code;
}

/* A call may return the failure of earlier work and do nothing, so it is repeated. */
static void leave_context(mo_gpu_device *gpu, void *saved)
{
    int before = (int)(intptr_t)saved;
    for (int tries = 0; tries < 2 && before != gpu->handle; tries++) {
        if (own.set_device(before) == MO_GPU_SUCCESS)
            return;
        clear_error(gpu->driver);
    }
}

static int copy(mo_gpu_device *gpu, void *to, const void *from, size_t bytes, mo_gpu_stream stream)
{
    (void)gpu;
    return own.copy(to, from, bytes, COPY_DEFAULT, stream);
}

/* For memory that it does not know, the runtime says INVALID_VALUE before ROCm 6, and later tells
 * no address on a device. If the device can use pageable memory, the runtime describes it as memory
 * of some device, so the owner is unknown. */
static int locate(const mo_gpu_device *gpu, const void *pointer, int32_t *out_owner)
{
    int since_6 = gpu->driver->version == 0 || gpu->driver->version >= VERSION_ROCM_6;
    pointer_attributes found = {0};
    *out_owner = MO_GPU_EVERYWHERE;
    if (own.pointer_attributes == NULL || gpu->pageable)
        return MO_GPU_SUCCESS;
    int code = own.pointer_attributes(&found, pointer);
    if (code != MO_GPU_SUCCESS && code != MO_GPU_INVALID_VALUE)
        return code;
    if (code != MO_GPU_SUCCESS)
        clear_error(gpu->driver);
    if (code != MO_GPU_SUCCESS || found.device_pointer == NULL)
        *out_owner = MO_GPU_NOWHERE;
    else if (!found.managed && found.device >= 0 &&
             found.type == (since_6 ? MEMORY_DEVICE : MEMORY_DEVICE_BEFORE))
        *out_owner = found.device;
    return MO_GPU_SUCCESS;
}

/* The devices of the generic targets (LLVM's AMDGPU usage guide). */
static const struct {
    const char *target, *devices;
} generic_targets[] = {
    {"gfx9-generic", " gfx900 gfx902 gfx904 gfx906 gfx909 gfx90c "},
    {"gfx9-4-generic", " gfx940 gfx941 gfx942 gfx950 "},
    {"gfx10-1-generic", " gfx1010 gfx1011 gfx1012 gfx1013 "},
    {"gfx10-3-generic", " gfx1030 gfx1031 gfx1032 gfx1033 gfx1034 gfx1035 gfx1036 "},
    {"gfx11-generic", " gfx1100 gfx1101 gfx1102 gfx1103 gfx1150 gfx1151 gfx1152 gfx1153 "},
    {"gfx12-generic", " gfx1200 gfx1201 "},
};

/* The device's own image is best; ROCm loads generic ones from 6.4 on, and before refuses them. */
static uint32_t rate_image(const mo_gpu_device *gpu, const char *target)
{
    char word[MO_GPU_TARGET_BYTES + 3];
    if (strcmp(target, gpu->target) == 0)
        return 2;
    snprintf(word, sizeof word, " %s ", gpu->target);
    for (size_t i = 0; i < sizeof generic_targets / sizeof generic_targets[0]; i++)
        if (strcmp(target, generic_targets[i].target) == 0)
            return strstr(generic_targets[i].devices, word) != NULL;
    return 0;
}

static void target_option(const mo_gpu_device *gpu, char *text, size_t size)
{
    snprintf(text, size, "--offload-arch=%s", gpu->target);
}

static const char *const libraries[] = {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6",
                                        "libamdhip64.so.5", NULL};
/* Up to ROCm 6, the runtime's own library has the compiler too. */
static const char *const compilers[] = {
    "libhiprtc.so", "libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "", NULL};

static const mo_gpu_vendor vendor = {
    .name = "hip",
    .maker = "AMD",
    .libraries = libraries,
    .compilers = compilers,
    .compiler_prefix = "hiprtc",
    .images = &mo_hip_images,
    .oldest_version = VERSION_ROCM_5,
    .oldest_name = "ROCm 5.0",
    .most_launch_threads = UINT32_MAX,
    .device_file = "/dev/kfd",
    .resolve = resolve,
    .error_name = error_name,
    .describe = describe,
    .open_context = open_context,
    .close_context = close_context,
    .enter_context = enter_context,
    .leave_context = leave_context,
    .copy = copy,
    .import_by_address = VERSION_ROCM_7_1,
    .locate = locate,
    .clear_error = clear_error,
    .distrust_vm = distrust_vm,
    .rate_image = rate_image,
    .target_option = target_option,
};

mo_gpu_driver mo_hip_driver = {.vendor = &vendor, .mapping = PTHREAD_RWLOCK_INITIALIZER};
