/* The driver's status codes as statuses of the library. */
#include "device/gpu/gpu.h"

/* What the drivers document as the end of the context or of the process's work. */
int mo_gpu_code_is_fatal(int code)
{
    switch (code) {
    case MO_GPU_DEINITIALIZED:
    case MO_GPU_ECC_UNCORRECTABLE:
    case MO_GPU_NVLINK_UNCORRECTABLE:
    case MO_GPU_CONTAINED:
    case MO_GPU_ILLEGAL_ADDRESS:
    case MO_GPU_LAUNCH_TIMEOUT:
    case MO_GPU_CONTEXT_DESTROYED:
    case MO_GPU_ASSERT:
    case MO_GPU_HARDWARE_STACK:
    case MO_GPU_ILLEGAL_INSTRUCTION:
    case MO_GPU_MISALIGNED_ADDRESS:
    case MO_GPU_INVALID_ADDRESS_SPACE:
    case MO_GPU_INVALID_PC:
    case MO_GPU_LAUNCH_FAILED:
    case MO_GPU_TENSOR_MEMORY_LEAK:
    case MO_GPU_MPS_CLIENT_TERMINATED:
    case MO_GPU_EXTERNAL_DEVICE:
        return 1;
    default:
        return 0;
    }
}

/* After 999 (unknown) CUDA says so of every call. HIP says it of a refused call too. */
int mo_gpu_ends(const mo_gpu_device *gpu, int code)
{
    return mo_gpu_code_is_fatal(code) ||
           (code == MO_GPU_UNKNOWN && gpu->driver->vendor->unknown_ends);
}

memopt_status mo_gpu_status_of(int code, memopt_status memory)
{
    if (mo_gpu_code_is_fatal(code))
        return MEMOPT_DEVICE_LOST;
    switch (code) {
    case MO_GPU_SUCCESS:
        return MEMOPT_OK;
    case MO_GPU_INVALID_VALUE:
    case MO_GPU_INVALID_POINTER:
    case MO_GPU_INVALID_CONTEXT:
    case MO_GPU_INVALID_HANDLE:
    case MO_GPU_ALREADY_REGISTERED:
    case MO_GPU_NOT_REGISTERED:
        return MEMOPT_INVALID_ARGUMENT;
    case MO_GPU_OUT_OF_MEMORY:
        return memory;
    case MO_GPU_NOT_READY:
        return MEMOPT_NOT_READY;
    case MO_GPU_INVALID_DEVICE:
        return MEMOPT_NOT_FOUND;
    case MO_GPU_NOT_SUPPORTED:
        return MEMOPT_UNSUPPORTED;
    case MO_GPU_STUB_LIBRARY:
    case MO_GPU_OLD_DRIVER:
    case MO_GPU_DRIVER_MISMATCH:
    case MO_GPU_COMPAT_NOT_SUPPORTED:
        return MEMOPT_DRIVER_MISSING;
    default:
        return MEMOPT_DRIVER_ERROR;
    }
}

void mo_gpu_lose(mo_gpu_device *gpu, int code)
{
    int alive = 0;
    atomic_compare_exchange_strong(&gpu->lost, &alive, code);
}

memopt_status mo_gpu_fail(mo_gpu_device *gpu, int code, memopt_status memory, const char *operation)
{
    const mo_gpu_vendor *vendor = gpu->driver->vendor;
    const char *name = vendor->error_name(gpu->driver, code);
    memopt_status status =
        mo_gpu_ends(gpu, code) ? MEMOPT_DEVICE_LOST : mo_gpu_status_of(code, memory);
    vendor->clear_error(gpu->driver);
    if (status != MEMOPT_DEVICE_LOST)
        return mo_fail_driver(status, code, name, "%s:%d: %s: the driver says %s (%d)",
                              vendor->name, gpu->index, operation, name, code);
    mo_gpu_lose(gpu, code);
    return mo_fail_driver(status, code, name,
                          "%s:%d: %s: the driver says %s (%d); the device is lost to this process, "
                          "its handles can only be destroyed",
                          vendor->name, gpu->index, operation, name, code);
}

memopt_status mo_gpu_result(mo_gpu_device *gpu, int code, memopt_status memory,
                            const char *operation)
{
    if (code == MO_GPU_SUCCESS)
        return MEMOPT_OK;
    if (code != MO_GPU_NOT_READY)
        return mo_gpu_fail(gpu, code, memory, operation);
    gpu->driver->vendor->clear_error(gpu->driver);
    return MEMOPT_NOT_READY;
}
