/*
 * Device memory, virtual memory and page-locked host memory on a GPU.
 *
 * The sets of the handle tell what is this device's, so that another device's pointer is refused
 * before the driver sees it. An entry leaves its set before the driver call that frees it, and
 * returns if the call fails: meanwhile the driver may give the address to another thread.
 */
#include "device/gpu/gpu.h"

#include "base/checked.h"
#include "base/lock.h"

#include <inttypes.h>
#include <sys/resource.h>

enum { ALIGNMENT = 512 };

/* --- sets ---------------------------------------------------------------------------------- */

static int enter_range(mo_gpu_device *gpu, mo_ranges *set, void *start, uint64_t size, void *value)
{
    mo_lock(&gpu->lock);
    int kept = mo_ranges_overlapping(set, (uintptr_t)start, size) == NULL
                   ? mo_ranges_insert(set, (uintptr_t)start, size, value)
                   : -1;
    mo_unlock(&gpu->lock);
    return kept;
}

/* Takes out exactly [start, +size). 1 and its value, or 0 where there is no such range. */
static int take_range(mo_gpu_device *gpu, mo_ranges *set, void *start, uint64_t size,
                      void **out_value)
{
    mo_lock(&gpu->lock);
    mo_range *range = mo_ranges_find(set, (uintptr_t)start);
    int found = range != NULL && range->size == size;
    if (found) {
        *out_value = range->value;
        mo_ranges_remove(set, range);
    }
    mo_unlock(&gpu->lock);
    return found;
}

/* Leaves the driver; a range that it could not end comes back. */
static memopt_status leave_range(mo_gpu_scope *in, mo_ranges *set, void *start, uint64_t size,
                                 void *value)
{
    memopt_status status = mo_gpu_leave(in, MEMOPT_OUT_OF_DEVICE_MEMORY);
    if (status != MEMOPT_OK)
        (void)enter_range(in->gpu, set, start, size, value);
    return status;
}

static memopt_status not_ours(const mo_gpu_device *gpu, const char *operation, const void *start,
                              uint64_t size, const char *what)
{
    return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: [%p, +%" PRIu64 ") is not a %s of %s:%d",
                   operation, start, size, what, gpu->driver->vendor->name, gpu->index);
}

/* Pre: entered. The driver has no memory left, or says something else. */
static memopt_status allocation_failed(const mo_gpu_scope *in, uint64_t size)
{
    const mo_gpu_driver *driver = in->gpu->driver;
    const mo_gpu_vendor *vendor = driver->vendor;
    size_t free_bytes = 0, total = 0;
    MO_PRE(in->entered);
    if (in->code != MO_GPU_OUT_OF_MEMORY)
        return mo_gpu_fail(in->gpu, in->code, MEMOPT_OUT_OF_DEVICE_MEMORY, in->operation);
    vendor->clear_error(driver);
    if (in->call->memory_info(&free_bytes, &total) != MO_GPU_SUCCESS)
        return mo_gpu_fail(in->gpu, in->code, MEMOPT_OUT_OF_DEVICE_MEMORY, in->operation);
    return mo_fail_driver(MEMOPT_OUT_OF_DEVICE_MEMORY, in->code,
                          vendor->error_name(driver, in->code),
                          "%s:%d: %s: %s asked, %s free of %s", vendor->name, in->gpu->index,
                          in->operation, MO_SIZE(size), MO_SIZE(free_bytes), MO_SIZE(total));
}

/* --- plain allocations --------------------------------------------------------------------- */

/* Drivers promise 256 bytes of alignment and give 512. If one does not, allocate more. */
static int alloc_aligned(const mo_gpu_calls *call, uint64_t size, void **out_raw,
                         void **out_aligned)
{
    void *raw = NULL;
    int code = call->mem_alloc(&raw, size);
    if (code == MO_GPU_SUCCESS && (uintptr_t)raw % ALIGNMENT != 0) {
        (void)call->mem_free(raw);
        code = call->mem_alloc(&raw, size + ALIGNMENT);
    }
    if (code == MO_GPU_SUCCESS) {
        *out_raw = raw;
        *out_aligned = (char *)raw + (ALIGNMENT - (uintptr_t)raw % ALIGNMENT) % ALIGNMENT;
    }
    return code;
}

memopt_status mo_gpu_mem_alloc(memopt_device *device, uint64_t size, void **out_pointer)
{
    void *raw, *pointer;
    mo_gpu_scope in;
    if (!mo_gpu_enter(&in, device, "mem_alloc", MO_GPU_RELAXED))
        return in.status;
    in.code = alloc_aligned(in.call, size, &raw, &pointer);
    if (in.code != MO_GPU_SUCCESS)
        in.status = allocation_failed(&in, size);
    else if (enter_range(in.gpu, &in.gpu->plain, pointer, size, raw) != 1) {
        (void)in.call->mem_free(raw);
        in.status = MEMOPT_OUT_OF_HOST_MEMORY;
    } else
        *out_pointer = pointer;
    return mo_gpu_leave(&in, MEMOPT_OUT_OF_DEVICE_MEMORY);
}

memopt_status mo_gpu_mem_free(memopt_device *device, void *pointer, uint64_t size)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *raw = NULL;
    mo_gpu_scope in;
    if (!take_range(gpu, &gpu->plain, pointer, size, &raw))
        return not_ours(gpu, "mem_free", pointer, size, "live allocation");
    if (mo_gpu_enter(&in, device, "mem_free", MO_GPU_ENDS | MO_GPU_RELAXED)) {
        in.code = in.call->synchronize();
        if (in.code == MO_GPU_SUCCESS)
            in.code = in.call->mem_free(raw);
    }
    return leave_range(&in, &gpu->plain, pointer, size, raw);
}

/* --- virtual memory ------------------------------------------------------------------------ */

mo_gpu_allocation mo_gpu_allocation_of(const mo_gpu_device *gpu)
{
    mo_gpu_allocation allocation = {0};
    allocation.type = MO_GPU_ALLOCATION_PINNED;
    allocation.location.type = MO_GPU_LOCATION_DEVICE;
    allocation.location.id = gpu->handle;
    allocation.rdma_capable = atomic_load_explicit(&gpu->rdma, memory_order_relaxed) != 0;
    if (atomic_load_explicit(&gpu->files, memory_order_relaxed) != 0)
        allocation.handle_types = MO_GPU_HANDLE_FILE;
    return allocation;
}

/* Drivers align addresses to their own granularity, which may be smaller than ours. Then a page
 * more is reserved, and the result never starts at *out_raw. */
static int reserve_aligned(const mo_gpu_scope *in, uint64_t size, void **out_raw,
                           void **out_aligned)
{
    uint64_t page = in->gpu->granularity;
    void *raw = NULL;
    int code = in->call->vm_reserve(&raw, size, 0, NULL, 0);
    *out_raw = *out_aligned = raw;
    if (code != MO_GPU_SUCCESS || (uintptr_t)raw % page == 0)
        return code;
    (void)in->call->vm_unreserve(raw, size);
    code = in->call->vm_reserve(out_raw, size + page, 0, NULL, 0);
    *out_aligned = (char *)*out_raw + page - (uintptr_t)*out_raw % page;
    return code;
}

static int unreserve(const mo_gpu_scope *in, void *raw, const void *address, uint64_t size)
{
    return in->call->vm_unreserve(raw, raw == address ? size : size + in->gpu->granularity);
}

memopt_status mo_gpu_vm_reserve(memopt_device *device, uint64_t size, void **out_address)
{
    void *raw = NULL, *address = NULL;
    mo_gpu_scope in;
    if (!mo_gpu_enter(&in, device, "vm_reserve", 0))
        return in.status;
    in.code = reserve_aligned(&in, size, &raw, &address);
    if (in.code == MO_GPU_SUCCESS &&
        enter_range(in.gpu, &in.gpu->reservations, address, size, raw) != 1) {
        (void)unreserve(&in, raw, address, size);
        in.status = MEMOPT_OUT_OF_HOST_MEMORY;
    }
    MO_TRY(mo_gpu_leave(&in, MEMOPT_OUT_OF_HOST_MEMORY));
    *out_address = address;
    return MEMOPT_OK;
}

memopt_status mo_gpu_vm_unreserve(memopt_device *device, void *address, uint64_t size)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *value = NULL;
    mo_gpu_scope in;
    mo_lock(&gpu->lock);
    int mapped = mo_ranges_overlapping(&gpu->mappings, (uintptr_t)address, size) != NULL;
    mo_unlock(&gpu->lock);
    if (mapped)
        return mo_fail(MEMOPT_BUSY, "vm_unreserve: [%p, +%" PRIu64 ") has mapped memory; unmap it",
                       address, size);
    if (!take_range(gpu, &gpu->reservations, address, size, &value))
        return not_ours(gpu, "vm_unreserve", address, size, "whole reservation");
    if (mo_gpu_enter(&in, device, "vm_unreserve", MO_GPU_ENDS))
        in.code = unreserve(&in, value, address, size);
    return leave_range(&in, &gpu->reservations, address, size, value);
}

static int refused(int code)
{
    return code == MO_GPU_NOT_SUPPORTED || code == MO_GPU_NOT_PERMITTED ||
           code == MO_GPU_INVALID_VALUE || code == MO_GPU_INVALID_DEVICE;
}

/* Memory for remote access, and to be exported, is requested only if the device supports it and the
 * driver has not refused it (virtual machines, containers). */
int mo_gpu_create(mo_gpu_device *gpu, uint64_t size, uint64_t *out_handle)
{
    const mo_gpu_calls *call = mo_gpu_call(gpu);
    mo_gpu_allocation wanted = mo_gpu_allocation_of(gpu), got = wanted;
    int code = call->vm_create(out_handle, size, &got, 0);
    if (refused(code) && got.rdma_capable != 0) {
        got.rdma_capable = 0;
        code = call->vm_create(out_handle, size, &got, 0);
    }
    if (refused(code) && got.handle_types != 0) {
        got.handle_types = 0;
        code = call->vm_create(out_handle, size, &got, 0);
    }
    if (code == MO_GPU_SUCCESS && got.rdma_capable != wanted.rdma_capable)
        atomic_store(&gpu->rdma, 0);
    if (code == MO_GPU_SUCCESS && got.handle_types != wanted.handle_types)
        atomic_store(&gpu->files, 0);
    return code;
}

/* A quarter of the limit, at least 64, stays with the program. */
uint64_t mo_gpu_most_handles(uint64_t *out_limit)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY)
        return *out_limit = UINT64_MAX;
    uint64_t kept = mo_max_u64(files.rlim_cur / 4, 64);
    *out_limit = files.rlim_cur;
    return files.rlim_cur > kept ? files.rlim_cur - kept : 0;
}

/* ROCm 7.14 says "out of memory" where file descriptors are used up, and the program can open no
 * file any more: the library stops before that. */
memopt_status mo_gpu_count_handle(mo_gpu_device *gpu)
{
    uint64_t limit, before = atomic_fetch_add(&gpu->driver->handles, 1);
    if (!gpu->handle_files || before < mo_gpu_most_handles(&limit))
        return MEMOPT_OK;
    atomic_fetch_sub(&gpu->driver->handles, 1);
    return mo_fail(MEMOPT_UNSUPPORTED,
                   "%s:%d: vm_create: the driver keeps a file descriptor for each of %" PRIu64
                   " pages, and the process may have %" PRIu64 "; raise ulimit -n",
                   gpu->driver->vendor->name, gpu->index, before, limit);
}

memopt_status mo_gpu_vm_create(memopt_device *device, uint64_t size, mo_vm_handle *out_handle)
{
    uint64_t handle = 0;
    mo_gpu_scope in;
    MO_TRY(mo_gpu_count_handle(mo_gpu(device)));
    if (mo_gpu_enter(&in, device, "vm_create", 0)) {
        in.code = mo_gpu_create(in.gpu, size, &handle);
        if (in.code != MO_GPU_SUCCESS)
            in.status = allocation_failed(&in, size);
        else
            *out_handle = (mo_vm_handle)(uintptr_t)handle;
    }
    memopt_status status = mo_gpu_leave(&in, MEMOPT_OUT_OF_DEVICE_MEMORY);
    if (status != MEMOPT_OK)
        atomic_fetch_sub(&mo_gpu(device)->driver->handles, 1);
    return status;
}

/* Pre: driver->mapping is held. */
static memopt_status map(mo_gpu_device *gpu, void *address, uint64_t size, mo_vm_handle handle)
{
    void *value = NULL;
    mo_gpu_scope in;
    int kept = enter_range(gpu, &gpu->mappings, address, size, handle);
    if (kept < 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "vm_map: [%p, +%" PRIu64 ") is mapped already",
                       address, size);
    if (kept == 0)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    if (mo_gpu_enter(&in, &gpu->base, "vm_map", 0))
        in.code = in.call->vm_map(address, size, 0, (uint64_t)(uintptr_t)handle, 0);
    memopt_status status = mo_gpu_leave(&in, MEMOPT_OUT_OF_DEVICE_MEMORY);
    if (status != MEMOPT_OK)
        (void)take_range(gpu, &gpu->mappings, address, size, &value);
    return status;
}

memopt_status mo_gpu_vm_map(memopt_device *device, void *address, uint64_t size,
                            mo_vm_handle handle)
{
    mo_gpu_device *gpu = mo_gpu(device);
    mo_lock(&gpu->lock);
    int reserved = mo_ranges_cover(&gpu->reservations, (uintptr_t)address, size);
    mo_unlock(&gpu->lock);
    if (!reserved)
        return not_ours(gpu, "vm_map", address, size, "reserved range");
    mo_lock_to_read(&gpu->driver->mapping);
    memopt_status status = map(gpu, address, size, handle);
    mo_unlock_shared(&gpu->driver->mapping);
    return status;
}

memopt_status mo_gpu_vm_set_access(memopt_device *device, void *address, uint64_t size)
{
    mo_gpu_device *gpu = mo_gpu(device);
    mo_gpu_scope in;
    mo_lock_to_read(&gpu->driver->mapping);
    if (mo_gpu_enter(&in, device, "vm_set_access", 0))
        in.code = in.call->vm_set_access(address, size, gpu->access, gpu->access_count);
    memopt_status status = mo_gpu_leave(&in, MEMOPT_OUT_OF_DEVICE_MEMORY);
    mo_unlock_shared(&gpu->driver->mapping);
    return status;
}

memopt_status mo_gpu_vm_unmap(memopt_device *device, void *address, uint64_t size)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *value = NULL;
    mo_gpu_scope in;
    mo_lock_to_read(&gpu->driver->mapping);
    int ours = take_range(gpu, &gpu->mappings, address, size, &value);
    if (ours && mo_gpu_enter(&in, device, "vm_unmap", MO_GPU_ENDS))
        in.code = in.call->vm_unmap(address, size);
    memopt_status status = ours ? leave_range(&in, &gpu->mappings, address, size, value)
                                : not_ours(gpu, "vm_unmap", address, size, "whole mapping");
    mo_unlock_shared(&gpu->driver->mapping);
    return status;
}

/* Whether adjacent mappings of `each` bytes tile [address, +size). */
static int tiled(mo_gpu_device *gpu, const char *address, uint64_t size, uint64_t each)
{
    int whole = 1;
    mo_lock(&gpu->lock);
    for (uint64_t at = 0; at < size && whole; at += each) {
        const mo_range *range = mo_ranges_find(&gpu->mappings, (uintptr_t)address + at);
        whole = range != NULL && range->size == each;
    }
    mo_unlock(&gpu->lock);
    return whole;
}

memopt_status mo_gpu_vm_unmap_run(memopt_device *device, void *address, uint64_t size,
                                  uint64_t mapping)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *value;
    mo_gpu_scope in;
    if (!gpu->driver->vendor->unmaps_runs || !tiled(gpu, address, size, mapping))
        return MEMOPT_UNSUPPORTED;
    mo_lock_to_read(&gpu->driver->mapping);
    if (mo_gpu_enter(&in, device, "vm_unmap", MO_GPU_ENDS))
        in.code = in.call->vm_unmap(address, size);
    memopt_status status = mo_gpu_leave(&in, MEMOPT_OUT_OF_DEVICE_MEMORY);
    for (uint64_t at = 0; status == MEMOPT_OK && at < size; at += mapping)
        (void)take_range(gpu, &gpu->mappings, (char *)address + at, mapping, &value);
    mo_unlock_shared(&gpu->driver->mapping);
    return status;
}

memopt_status mo_gpu_vm_release(memopt_device *device, mo_vm_handle handle, uint64_t size)
{
    mo_gpu_scope in;
    (void)size;
    if (mo_gpu_enter(&in, device, "vm_release", MO_GPU_ENDS))
        in.code = in.call->vm_release((uint64_t)(uintptr_t)handle);
    MO_TRY(mo_gpu_leave(&in, MEMOPT_OUT_OF_DEVICE_MEMORY));
    atomic_fetch_sub(&mo_gpu(device)->driver->handles, 1);
    return MEMOPT_OK;
}

/* --- page-locked host memory --------------------------------------------------------------- */

memopt_status mo_gpu_host_alloc(memopt_device *device, uint64_t bytes, void **out_pointer)
{
    void *pointer = NULL;
    mo_gpu_scope in;
    if (mo_gpu_enter(&in, device, "host_alloc", MO_GPU_RELAXED))
        in.code = in.call->host_alloc(&pointer, bytes, MO_GPU_HOST_PORTABLE);
    if (in.code == MO_GPU_OUT_OF_MEMORY && in.entered) {
        const mo_gpu_driver *driver = in.gpu->driver;
        driver->vendor->clear_error(driver);
        in.status = mo_fail_driver(
            MEMOPT_OUT_OF_HOST_MEMORY, in.code, driver->vendor->error_name(driver, in.code),
            "%s:%d: host_alloc: the driver cannot page-lock %s of host memory",
            driver->vendor->name, in.gpu->index, MO_SIZE(bytes));
    }
    MO_TRY(mo_gpu_leave(&in, MEMOPT_OUT_OF_HOST_MEMORY));
    *out_pointer = pointer;
    return MEMOPT_OK;
}

memopt_status mo_gpu_host_free(memopt_device *device, void *pointer, uint64_t bytes)
{
    mo_gpu_scope in;
    (void)bytes;
    mo_gpu_forget_seen(mo_gpu(device));
    if (mo_gpu_enter(&in, device, "host_free", MO_GPU_ENDS | MO_GPU_RELAXED))
        in.code = in.call->host_free(pointer);
    return mo_gpu_leave(&in, MEMOPT_OUT_OF_DEVICE_MEMORY);
}

memopt_status mo_gpu_host_register(memopt_device *device, void *pointer, uint64_t bytes)
{
    mo_gpu_scope in;
    if (mo_gpu_enter(&in, device, "host_register", MO_GPU_RELAXED))
        in.code = in.call->host_register(pointer, bytes, MO_GPU_HOST_PORTABLE);
    return mo_gpu_leave(&in, MEMOPT_OUT_OF_HOST_MEMORY);
}

memopt_status mo_gpu_host_unregister(memopt_device *device, void *pointer, uint64_t bytes)
{
    mo_gpu_scope in;
    (void)bytes;
    mo_gpu_forget_seen(mo_gpu(device));
    if (mo_gpu_enter(&in, device, "host_unregister", MO_GPU_ENDS | MO_GPU_RELAXED))
        in.code = in.call->host_unregister(pointer);
    return mo_gpu_leave(&in, MEMOPT_OUT_OF_DEVICE_MEMORY);
}
