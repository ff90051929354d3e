/*
 * Device memory, virtual memory and page-locked host memory on a GPU.
 *
 * The sets of the handle tell what is this device's, so that a pointer of another one is refused
 * before the driver sees it. An entry leaves its set before the driver call that ends it and comes
 * back if that fails: in between the driver may give the same address to another thread.
 */
#include "device/gpu/gpu.h"

#include "base/lock.h"

#include <inttypes.h>

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

static memopt_status not_ours(const mo_gpu_device *gpu, const char *operation, const void *start,
                              uint64_t size, const char *what)
{
    return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: [%p, +%" PRIu64 ") is no %s of %s:%d", operation,
                   start, size, what, gpu->driver->vendor->name, gpu->index);
}

/* Pre: entered. The driver has no memory left, or says something else. */
static memopt_status allocation_failed(mo_gpu_device *gpu, int code, const char *operation,
                                       uint64_t size)
{
    size_t free_bytes = 0, total = 0;
    if (code != MO_GPU_OUT_OF_MEMORY)
        return mo_gpu_fail(gpu, code, MEMOPT_OUT_OF_DEVICE_MEMORY, operation);
    const mo_gpu_vendor *vendor = gpu->driver->vendor;
    vendor->clear_error(gpu->driver);
    if (mo_gpu_call(gpu)->memory_info(&free_bytes, &total) != MO_GPU_SUCCESS)
        return mo_gpu_fail(gpu, code, MEMOPT_OUT_OF_DEVICE_MEMORY, operation);
    return mo_fail_driver(MEMOPT_OUT_OF_DEVICE_MEMORY, code, vendor->error_name(gpu->driver, code),
                          "%s:%d: %s: %s asked, %s free of %s", vendor->name, gpu->index, operation,
                          MO_SIZE(size), MO_SIZE(free_bytes), MO_SIZE(total));
}

/* --- plain allocations --------------------------------------------------------------------- */

/* Drivers promise 256 bytes of alignment and give 512; one that does not gets asked for more. */
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
    mo_gpu_device *gpu = mo_gpu(device);
    const mo_gpu_calls *call = mo_gpu_call(gpu);
    void *saved, *raw, *pointer;
    memopt_status status = mo_gpu_enter(gpu, "mem_alloc", &saved);
    if (status != MEMOPT_OK)
        return status;
    int mode = mo_gpu_relax(gpu), code = alloc_aligned(call, size, &raw, &pointer);
    if (code != MO_GPU_SUCCESS)
        status = allocation_failed(gpu, code, "mem_alloc", size);
    else if (enter_range(gpu, &gpu->plain, pointer, size, raw) != 1) {
        (void)call->mem_free(raw);
        status = MEMOPT_OUT_OF_HOST_MEMORY;
    } else
        *out_pointer = pointer;
    mo_gpu_restrict(gpu, mode);
    mo_gpu_leave(gpu, saved);
    return status;
}

memopt_status mo_gpu_mem_free(memopt_device *device, void *pointer, uint64_t size)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *saved, *raw = NULL;
    int dead = 0;
    if (!take_range(gpu, &gpu->plain, pointer, size, &raw))
        return not_ours(gpu, "mem_free", pointer, size, "live allocation");
    memopt_status status = mo_gpu_enter_end(gpu, "mem_free", &saved, &dead);
    if (status == MEMOPT_OK && !dead) {
        int mode = mo_gpu_relax(gpu);
        int code = mo_gpu_call(gpu)->synchronize();
        if (code == MO_GPU_SUCCESS)
            code = mo_gpu_call(gpu)->mem_free(raw);
        mo_gpu_restrict(gpu, mode);
        status = mo_gpu_end_result(gpu, code, "mem_free");
        mo_gpu_leave(gpu, saved);
    }
    if (status != MEMOPT_OK)
        (void)enter_range(gpu, &gpu->plain, pointer, size, raw);
    return status;
}

/* --- virtual memory ------------------------------------------------------------------------ */

mo_gpu_allocation mo_gpu_allocation_of(const mo_gpu_device *gpu)
{
    mo_gpu_allocation allocation = {0};
    allocation.type = MO_GPU_ALLOCATION_PINNED;
    allocation.location.type = MO_GPU_LOCATION_DEVICE;
    allocation.location.id = gpu->handle;
    allocation.rdma_capable = atomic_load_explicit(&gpu->rdma, memory_order_relaxed) != 0;
    return allocation;
}

memopt_status mo_gpu_vm_reserve(memopt_device *device, uint64_t size, void **out_address)
{
    mo_gpu_device *gpu = mo_gpu(device);
    const mo_gpu_calls *call = mo_gpu_call(gpu);
    void *saved, *address = NULL;
    memopt_status status = mo_gpu_enter(gpu, "vm_reserve", &saved);
    if (status != MEMOPT_OK)
        return status;
    int code = call->vm_reserve(&address, size, 0, NULL, 0);
    status = mo_gpu_result(gpu, code, MEMOPT_OUT_OF_HOST_MEMORY, "vm_reserve");
    if (status == MEMOPT_OK && enter_range(gpu, &gpu->reservations, address, size, gpu) != 1) {
        (void)call->vm_unreserve(address, size);
        status = MEMOPT_OUT_OF_HOST_MEMORY;
    }
    mo_gpu_leave(gpu, saved);
    if (status == MEMOPT_OK)
        *out_address = address;
    return status;
}

memopt_status mo_gpu_vm_unreserve(memopt_device *device, void *address, uint64_t size)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *saved, *value = NULL;
    int dead = 0, mapped;
    mo_lock(&gpu->lock);
    mapped = mo_ranges_overlapping(&gpu->mappings, (uintptr_t)address, size) != NULL;
    mo_unlock(&gpu->lock);
    if (mapped)
        return mo_fail(MEMOPT_BUSY, "vm_unreserve: [%p, +%" PRIu64 ") has mapped memory; unmap it",
                       address, size);
    if (!take_range(gpu, &gpu->reservations, address, size, &value))
        return not_ours(gpu, "vm_unreserve", address, size, "whole reservation");
    memopt_status status = mo_gpu_enter_end(gpu, "vm_unreserve", &saved, &dead);
    if (status == MEMOPT_OK && !dead) {
        status =
            mo_gpu_end_result(gpu, mo_gpu_call(gpu)->vm_unreserve(address, size), "vm_unreserve");
        mo_gpu_leave(gpu, saved);
    }
    if (status != MEMOPT_OK)
        (void)enter_range(gpu, &gpu->reservations, address, size, value);
    return status;
}

/* Memory for remote access is asked only where the device says it has it, and no more once a driver
 * has refused it (virtual machines, containers). */
static int create(mo_gpu_device *gpu, uint64_t size, uint64_t *out_handle)
{
    const mo_gpu_calls *call = mo_gpu_call(gpu);
    mo_gpu_allocation allocation = mo_gpu_allocation_of(gpu);
    int code = call->vm_create(out_handle, size, &allocation, 0);
    if (allocation.rdma_capable == 0 ||
        (code != MO_GPU_NOT_SUPPORTED && code != MO_GPU_NOT_PERMITTED &&
         code != MO_GPU_INVALID_VALUE && code != MO_GPU_INVALID_DEVICE))
        return code;
    allocation.rdma_capable = 0;
    code = call->vm_create(out_handle, size, &allocation, 0);
    if (code == MO_GPU_SUCCESS)
        atomic_store(&gpu->rdma, 0);
    return code;
}

memopt_status mo_gpu_vm_create(memopt_device *device, uint64_t size, mo_vm_handle *out_handle)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *saved;
    uint64_t handle = 0;
    memopt_status status = mo_gpu_enter(gpu, "vm_create", &saved);
    if (status != MEMOPT_OK)
        return status;
    int code = create(gpu, size, &handle);
    if (code != MO_GPU_SUCCESS)
        status = allocation_failed(gpu, code, "vm_create", size);
    else
        *out_handle = (mo_vm_handle)(uintptr_t)handle;
    mo_gpu_leave(gpu, saved);
    return status;
}

memopt_status mo_gpu_vm_map(memopt_device *device, void *address, uint64_t size,
                            mo_vm_handle handle)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *saved, *value = NULL;
    mo_lock(&gpu->lock);
    int reserved = mo_ranges_cover(&gpu->reservations, (uintptr_t)address, size);
    mo_unlock(&gpu->lock);
    if (!reserved)
        return not_ours(gpu, "vm_map", address, size, "reserved range");
    int kept = enter_range(gpu, &gpu->mappings, address, size, handle);
    if (kept < 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "vm_map: [%p, +%" PRIu64 ") is mapped already",
                       address, size);
    if (kept == 0)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memopt_status status = mo_gpu_enter(gpu, "vm_map", &saved);
    if (status == MEMOPT_OK) {
        int code = mo_gpu_call(gpu)->vm_map(address, size, 0, (uint64_t)(uintptr_t)handle, 0);
        status = mo_gpu_result(gpu, code, MEMOPT_OUT_OF_DEVICE_MEMORY, "vm_map");
        mo_gpu_leave(gpu, saved);
    }
    if (status != MEMOPT_OK)
        (void)take_range(gpu, &gpu->mappings, address, size, &value);
    return status;
}

memopt_status mo_gpu_vm_set_access(memopt_device *device, void *address, uint64_t size)
{
    mo_gpu_device *gpu = mo_gpu(device);
    const mo_gpu_access access = {{MO_GPU_LOCATION_DEVICE, gpu->handle}, MO_GPU_ACCESS_READ_WRITE};
    void *saved;
    memopt_status status = mo_gpu_enter(gpu, "vm_set_access", &saved);
    if (status != MEMOPT_OK)
        return status;
    status = mo_gpu_result(gpu, mo_gpu_call(gpu)->vm_set_access(address, size, &access, 1),
                           MEMOPT_OUT_OF_DEVICE_MEMORY, "vm_set_access");
    mo_gpu_leave(gpu, saved);
    return status;
}

memopt_status mo_gpu_vm_unmap(memopt_device *device, void *address, uint64_t size)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *saved, *value = NULL;
    int dead = 0;
    if (!take_range(gpu, &gpu->mappings, address, size, &value))
        return not_ours(gpu, "vm_unmap", address, size, "whole mapping");
    memopt_status status = mo_gpu_enter_end(gpu, "vm_unmap", &saved, &dead);
    if (status == MEMOPT_OK && !dead) {
        status = mo_gpu_end_result(gpu, mo_gpu_call(gpu)->vm_unmap(address, size), "vm_unmap");
        mo_gpu_leave(gpu, saved);
    }
    if (status != MEMOPT_OK)
        (void)enter_range(gpu, &gpu->mappings, address, size, value);
    return status;
}

memopt_status mo_gpu_vm_release(memopt_device *device, mo_vm_handle handle, uint64_t size)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *saved;
    int dead = 0;
    (void)size;
    memopt_status status = mo_gpu_enter_end(gpu, "vm_release", &saved, &dead);
    if (status != MEMOPT_OK || dead)
        return status;
    status = mo_gpu_end_result(gpu, mo_gpu_call(gpu)->vm_release((uint64_t)(uintptr_t)handle),
                               "vm_release");
    mo_gpu_leave(gpu, saved);
    return status;
}

/* --- page-locked host memory --------------------------------------------------------------- */

memopt_status mo_gpu_host_alloc(memopt_device *device, uint64_t bytes, void **out_pointer)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *saved, *pointer = NULL;
    memopt_status status = mo_gpu_enter(gpu, "host_alloc", &saved);
    if (status != MEMOPT_OK)
        return status;
    int mode = mo_gpu_relax(gpu);
    int code = mo_gpu_call(gpu)->host_alloc(&pointer, bytes, MO_GPU_HOST_PORTABLE);
    mo_gpu_restrict(gpu, mode);
    if (code == MO_GPU_OUT_OF_MEMORY) {
        const mo_gpu_vendor *vendor = gpu->driver->vendor;
        vendor->clear_error(gpu->driver);
        status =
            mo_fail_driver(MEMOPT_OUT_OF_HOST_MEMORY, code, vendor->error_name(gpu->driver, code),
                           "%s:%d: host_alloc: the driver page-locks no %s of host memory",
                           vendor->name, gpu->index, MO_SIZE(bytes));
    } else
        status = mo_gpu_result(gpu, code, MEMOPT_OUT_OF_HOST_MEMORY, "host_alloc");
    mo_gpu_leave(gpu, saved);
    if (status == MEMOPT_OK)
        *out_pointer = pointer;
    return status;
}

memopt_status mo_gpu_host_free(memopt_device *device, void *pointer, uint64_t bytes)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *saved;
    int dead = 0;
    (void)bytes;
    mo_gpu_forget_seen(gpu);
    memopt_status status = mo_gpu_enter_end(gpu, "host_free", &saved, &dead);
    if (status != MEMOPT_OK || dead)
        return status;
    int mode = mo_gpu_relax(gpu), code = mo_gpu_call(gpu)->host_free(pointer);
    mo_gpu_restrict(gpu, mode);
    status = mo_gpu_end_result(gpu, code, "host_free");
    mo_gpu_leave(gpu, saved);
    return status;
}

memopt_status mo_gpu_host_register(memopt_device *device, void *pointer, uint64_t bytes)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *saved;
    memopt_status status = mo_gpu_enter(gpu, "host_register", &saved);
    if (status != MEMOPT_OK)
        return status;
    int mode = mo_gpu_relax(gpu);
    int code = mo_gpu_call(gpu)->host_register(pointer, bytes, MO_GPU_HOST_PORTABLE);
    mo_gpu_restrict(gpu, mode);
    status = mo_gpu_result(gpu, code, MEMOPT_OUT_OF_HOST_MEMORY, "host_register");
    mo_gpu_leave(gpu, saved);
    return status;
}

memopt_status mo_gpu_host_unregister(memopt_device *device, void *pointer, uint64_t bytes)
{
    mo_gpu_device *gpu = mo_gpu(device);
    void *saved;
    int dead = 0;
    (void)bytes;
    mo_gpu_forget_seen(gpu);
    memopt_status status = mo_gpu_enter_end(gpu, "host_unregister", &saved, &dead);
    if (status != MEMOPT_OK || dead)
        return status;
    int mode = mo_gpu_relax(gpu), code = mo_gpu_call(gpu)->host_unregister(pointer);
    mo_gpu_restrict(gpu, mode);
    status = mo_gpu_end_result(gpu, code, "host_unregister");
    mo_gpu_leave(gpu, saved);
    return status;
}
