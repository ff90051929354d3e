/*
 * Kernel launch: functions by kernel, looked up when the module is loaded, and grids that are
 * larger than the driver takes.
 */
#include "device/gpu/gpu.h"

#include "base/checked.h"
#include "base/lock.h"
#include "kernels/core/all_kernels.h"

#include <inttypes.h>
#include <string.h>

/* The maximum of blocks of one launch, and of threads of a block, in every driver. */
#define MOST_BLOCKS ((uint64_t)INT32_MAX)
enum { MOST_THREADS = 1024 };

/* Remembering is an optimisation: a kernel that does not fit is looked up at each launch. Two
 * threads may enter the same function; that is harmless. */
static void remember(mo_gpu_device *gpu, const mo_kernel *kernel, mo_gpu_function function)
{
    mo_lock(&gpu->lock);
    if (gpu->kernel_count < MO_GPU_KERNELS)
        gpu->kernels[gpu->kernel_count++] = (mo_gpu_kernel){kernel, function};
    mo_unlock(&gpu->lock);
}

/* All kernels, so that no launch under a graph capture looks one up: a driver that loads lazily
 * loads code then. A kernel that the image lacks fails when it is launched. */
static memopt_status find_all(mo_gpu_device *gpu, mo_gpu_module module)
{
    for (uint32_t i = 0; i < mo_all_kernels_count; i++) {
        mo_gpu_function function = NULL;
        const char *name = mo_all_kernels[i]->name;
        int code = mo_gpu_call(gpu)->module_function(&function, module, name);
        if (code == MO_GPU_SUCCESS)
            remember(gpu, mo_all_kernels[i], function);
        else if (code != MO_GPU_NOT_FOUND)
            return mo_gpu_fail(gpu, code, MEMOPT_OUT_OF_DEVICE_MEMORY, name);
        else
            gpu->driver->vendor->clear_error(gpu->driver);
    }
    return MEMOPT_OK;
}

static memopt_status load_module(mo_gpu_device *gpu, mo_gpu_module *out_module)
{
    memopt_status status = mo_gpu_module_load(gpu, out_module);
    if (status != MEMOPT_OK)
        return status;
    status = find_all(gpu, *out_module);
    if (status == MEMOPT_OK)
        return status;
    mo_lock(&gpu->lock);
    gpu->kernel_count = 0;
    mo_unlock(&gpu->lock);
    if (mo_gpu_call(gpu)->module_unload(*out_module) != MO_GPU_SUCCESS)
        gpu->driver->vendor->clear_error(gpu->driver);
    return status;
}

/* The first thread that needs the module loads it, with the lock released; others wait. Loading
 * must not end a graph capture of this thread. */
static memopt_status need_module(mo_gpu_device *gpu, mo_gpu_module *out_module)
{
    mo_gpu_module module = NULL;
    mo_lock(&gpu->lock);
    while (gpu->module_state == MO_GPU_MODULE_LOADING)
        pthread_cond_wait(&gpu->module_loaded, &gpu->lock);
    int ready = gpu->module_state == MO_GPU_MODULE_READY;
    if (ready)
        *out_module = gpu->module;
    else
        gpu->module_state = MO_GPU_MODULE_LOADING;
    mo_unlock(&gpu->lock);
    if (ready)
        return MEMOPT_OK;
    int mode, code = mo_gpu_relax(gpu, &mode);
    memopt_status status = code == MO_GPU_SUCCESS
                               ? load_module(gpu, &module)
                               : mo_gpu_fail(gpu, code, MEMOPT_OUT_OF_DEVICE_MEMORY, "module_load");
    mo_gpu_restrict(gpu, mode);
    mo_lock(&gpu->lock);
    gpu->module_state = status == MEMOPT_OK ? MO_GPU_MODULE_READY : MO_GPU_MODULE_NONE;
    if (status == MEMOPT_OK)
        *out_module = gpu->module = module;
    pthread_cond_broadcast(&gpu->module_loaded);
    mo_unlock(&gpu->lock);
    return status;
}

static mo_gpu_function known_function(mo_gpu_device *gpu, const mo_kernel *kernel)
{
    mo_gpu_function function = NULL;
    mo_lock(&gpu->lock);
    for (uint32_t i = 0; i < gpu->kernel_count && function == NULL; i++)
        if (gpu->kernels[i].kernel == kernel)
            function = gpu->kernels[i].function;
    mo_unlock(&gpu->lock);
    return function;
}

/* Those of the library are known once the module is loaded. */
static memopt_status find_function(mo_gpu_device *gpu, const mo_kernel *kernel,
                                   mo_gpu_function *out_function)
{
    mo_gpu_module module = NULL;
    mo_gpu_function function = known_function(gpu, kernel);
    if (function == NULL) {
        memopt_status status = need_module(gpu, &module);
        if (status != MEMOPT_OK)
            return status;
        function = known_function(gpu, kernel);
    }
    if (function == NULL) {
        int code = mo_gpu_call(gpu)->module_function(&function, module, kernel->name);
        if (code == MO_GPU_NOT_FOUND) {
            gpu->driver->vendor->clear_error(gpu->driver);
            return mo_fail_driver(MEMOPT_UNSUPPORTED, code,
                                  gpu->driver->vendor->error_name(gpu->driver, code),
                                  "%s:%d: the kernels for %s have no %s", gpu->driver->vendor->name,
                                  gpu->index, gpu->target, kernel->name);
        }
        if (code != MO_GPU_SUCCESS)
            return mo_gpu_fail(gpu, code, MEMOPT_OUT_OF_DEVICE_MEMORY, kernel->name);
        remember(gpu, kernel, function);
    }
    *out_function = function;
    return MEMOPT_OK;
}

/* One launch has at most so many items. */
static uint64_t most_items(const mo_gpu_device *gpu, const mo_kernel *kernel)
{
    uint32_t threads = gpu->driver->vendor->most_launch_threads;
    return threads == 0 ? MOST_BLOCKS : mo_min_u64(MOST_BLOCKS, threads / kernel->threads);
}

static int launch_all(const mo_gpu_scope *in, mo_gpu_function function, memopt_stream stream,
                      const mo_kernel *kernel, const void *args, uint64_t items)
{
    /* The driver only reads parameters; it copies them before it returns. */
    union {
        const void *constant;
        void *plain;
    } first_argument = {args};
    uint64_t most = most_items(in->gpu, kernel), first = 0;
    int code = MO_GPU_SUCCESS;
    void *parameters[] = {first_argument.plain, &first, NULL};
    for (; first < items && code == MO_GPU_SUCCESS; first += most) {
        unsigned blocks = (unsigned)mo_min_u64(items - first, most);
        code = in->call->launch(function, blocks, 1, 1, kernel->threads, 1, 1, 0,
                                (mo_gpu_stream)(void *)stream, parameters, NULL);
    }
    return code;
}

memopt_status mo_gpu_launch(memopt_device *device, memopt_stream stream, const mo_kernel *kernel,
                            const void *args, uint64_t items)
{
    mo_gpu_function function = NULL;
    int32_t capturing;
    mo_gpu_scope in;
    if (items == 0)
        return mo_gpu_stream_capturing(device, stream, &capturing); /* checks the stream */
    if (kernel->threads == 0 || kernel->threads > MOST_THREADS || kernel->threads % 64 != 0)
        return mo_fail(MEMOPT_INTERNAL,
                       "launch: kernel %s has blocks of %" PRIu32
                       " threads, not a multiple of 64 up to %d",
                       kernel->name, kernel->threads, MOST_THREADS);
    if (mo_gpu_enter(&in, device, kernel->name, 0))
        in.status = find_function(in.gpu, kernel, &function);
    if (in.status == MEMOPT_OK)
        in.code = launch_all(&in, function, stream, kernel, args, items);
    return mo_gpu_leave(&in, MEMOPT_OUT_OF_DEVICE_MEMORY);
}
