/* The bracket around the driver calls of an operation: the current context, the capture mode, the
 * translation of the driver's code. */
#include "device/gpu/gpu.h"

/* A call may return the failure of earlier work and do nothing, so it is repeated. */
static int exchange(const mo_gpu_device *gpu, int mode, int *out_earlier)
{
    int code = MO_GPU_SUCCESS;
    for (int tries = 0; tries < 2; tries++) {
        *out_earlier = mode;
        code = mo_gpu_call(gpu)->exchange_capture_mode(out_earlier);
        if (code == MO_GPU_SUCCESS)
            return code;
        gpu->driver->vendor->clear_error(gpu->driver);
    }
    *out_earlier = -1;
    return code;
}

/* Where the driver has no such mode, captures have none either. */
int mo_gpu_relax(const mo_gpu_device *gpu, int *out_earlier)
{
    *out_earlier = -1;
    if (!mo_gpu_has(gpu->driver, MO_GPU_GROUP_EXCHANGE))
        return MO_GPU_SUCCESS;
    return exchange(gpu, MO_GPU_CAPTURE_MODE_RELAXED, out_earlier);
}

void mo_gpu_restrict(const mo_gpu_device *gpu, int earlier)
{
    if (earlier >= 0)
        (void)exchange(gpu, earlier, &earlier);
}

static memopt_status lost_before(const mo_gpu_device *gpu, int code, const char *operation)
{
    const mo_gpu_vendor *vendor = gpu->driver->vendor;
    const char *name = vendor->error_name(gpu->driver, code);
    return mo_fail_driver(MEMOPT_DEVICE_LOST, code, name,
                          "%s:%d: %s: the device was lost before (%s, %d)", vendor->name,
                          gpu->index, operation, name, code);
}

/* The status of the scope's code. Ending something succeeds on a lost device. */
static memopt_status result_of(const mo_gpu_scope *scope, memopt_status memory)
{
    mo_gpu_device *gpu = scope->gpu;
    int code = scope->code;
    if (code == MO_GPU_SUCCESS || (scope->flags & MO_GPU_ENDS) == 0)
        return mo_gpu_result(gpu, code, memory, scope->operation);
    if (!mo_gpu_ends(gpu, code) && atomic_load(&gpu->lost) == 0)
        return mo_gpu_fail(gpu, code, memory, scope->operation);
    mo_gpu_lose(gpu, code);
    gpu->driver->vendor->clear_error(gpu->driver);
    return MEMOPT_OK;
}

/* Drivers say "context destroyed" also of a stream that was destroyed, while its context lives. */
static void check_context(mo_gpu_scope *scope)
{
    const mo_gpu_vendor *vendor = scope->gpu->driver->vendor;
    const char *name = vendor->error_name(scope->gpu->driver, scope->code);
    size_t free_bytes, total;
    vendor->clear_error(scope->gpu->driver);
    if (scope->call->memory_info(&free_bytes, &total) != MO_GPU_SUCCESS)
        return;
    scope->status =
        mo_fail_driver(MEMOPT_INVALID_ARGUMENT, scope->code, name,
                       "%s:%d: %s: the driver says %s (%d), but the device is not "
                       "lost: a stream or event of the call was destroyed",
                       vendor->name, scope->gpu->index, scope->operation, name, scope->code);
}

int mo_gpu_enter(mo_gpu_scope *scope, memopt_device *device, const char *operation, int flags)
{
    mo_gpu_device *gpu = mo_gpu(device);
    int lost = atomic_load_explicit(&gpu->lost, memory_order_relaxed);
    *scope = (mo_gpu_scope){
        .gpu = gpu, .call = mo_gpu_call(gpu), .operation = operation, .flags = flags, .mode = -1};
    if (lost != 0 && (flags & MO_GPU_ENDS) == 0) {
        scope->status = lost_before(gpu, lost, operation);
        return 0;
    }
    scope->code = gpu->driver->vendor->enter_context(gpu, &scope->saved);
    if (scope->code != MO_GPU_SUCCESS) {
        scope->status = result_of(scope, MEMOPT_OUT_OF_DEVICE_MEMORY);
        return 0;
    }
    scope->entered = 1;
    if ((flags & MO_GPU_RELAXED) != 0)
        scope->code = mo_gpu_relax(gpu, &scope->mode);
    if (scope->code == MO_GPU_SUCCESS)
        return 1;
    (void)mo_gpu_leave(scope, MEMOPT_OUT_OF_DEVICE_MEMORY);
    return scope->entered = 0;
}

memopt_status mo_gpu_leave(mo_gpu_scope *scope, memopt_status memory)
{
    if (!scope->entered)
        return scope->status;
    mo_gpu_restrict(scope->gpu, scope->mode);
    if (scope->status == MEMOPT_OK && scope->code == MO_GPU_CONTEXT_DESTROYED)
        check_context(scope);
    if (scope->status == MEMOPT_OK)
        scope->status = result_of(scope, memory);
    scope->gpu->driver->vendor->leave_context(scope->gpu, scope->saved);
    return scope->status;
}
