/* Memory that other processes map: as file descriptors, which keep it alive. */
#include "device/gpu/gpu.h"

#include <fcntl.h>

static memopt_status fail_sharing(const mo_gpu_device *gpu)
{
    const char *why = !mo_gpu_has(gpu->driver, MO_GPU_GROUP_SHARE)
                          ? "the driver is too old"
                          : "the driver does not make memory that can be exported as a file "
                            "descriptor";
    return mo_fail(MEMOPT_UNSUPPORTED, "%s:%d cannot share memory between processes: %s",
                   gpu->driver->vendor->name, gpu->index, why);
}

static int can_share(const mo_gpu_device *gpu)
{
    return atomic_load(&gpu->files) != 0;
}

memopt_status mo_gpu_vm_export(memopt_device *device, mo_vm_handle handle, uint64_t size,
                               int *out_file)
{
    int file = -1;
    mo_gpu_scope in;
    (void)size;
    if (!can_share(mo_gpu(device)))
        return fail_sharing(mo_gpu(device));
    if (mo_gpu_enter(&in, device, "vm_export", 0))
        in.code = in.call->vm_export(&file, (uint64_t)(uintptr_t)handle, MO_GPU_HANDLE_FILE, 0);
    MO_TRY(mo_gpu_leave(&in, MEMOPT_OUT_OF_HOST_MEMORY));
    (void)fcntl(file, F_SETFD, FD_CLOEXEC);
    *out_file = file;
    return MEMOPT_OK;
}

memopt_status mo_gpu_vm_import(memopt_device *device, int file, uint64_t size,
                               mo_vm_handle *out_handle)
{
    mo_gpu_device *gpu = mo_gpu(device);
    uint64_t handle = 0;
    mo_gpu_scope in;
    (void)size;
    if (!can_share(gpu))
        return fail_sharing(gpu);
    MO_TRY(mo_gpu_count_handle(gpu));
    int by_address = gpu->driver->version < gpu->driver->vendor->import_by_address;
    void *shared = by_address ? (void *)&file : (void *)(uintptr_t)(unsigned)file;
    if (mo_gpu_enter(&in, device, "vm_import", 0))
        in.code = in.call->vm_import(&handle, shared, MO_GPU_HANDLE_FILE);
    memopt_status status = mo_gpu_leave(&in, MEMOPT_OUT_OF_HOST_MEMORY);
    if (status == MEMOPT_OK)
        *out_handle = (mo_vm_handle)(uintptr_t)handle;
    else
        atomic_fetch_sub(&gpu->driver->handles, 1);
    return status;
}

memopt_status mo_gpu_identity(memopt_device *device, uint8_t *out_bytes)
{
    mo_gpu_device *gpu = mo_gpu(device);
    mo_gpu_scope in;
    if (!can_share(gpu))
        return fail_sharing(gpu);
    if (mo_gpu_enter(&in, device, "identity", 0))
        in.code = in.call->device_uuid(out_bytes, gpu->handle);
    return mo_gpu_leave(&in, MEMOPT_OUT_OF_HOST_MEMORY);
}
