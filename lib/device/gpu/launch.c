/*
 * Kernel launch: functions by kernel, looked up when they are loaded, and grids that are larger
 * than the driver takes.
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

static memopt_status remember(mo_gpu_device *gpu, mo_gpu_kernel kernel)
{
    mo_lock(&gpu->lock);
    int fits = gpu->kernel_count < MO_GPU_KERNELS;
    if (fits)
        gpu->kernels[gpu->kernel_count++] = kernel;
    mo_unlock(&gpu->lock);
    return fits ? MEMOPT_OK
                : mo_fail(MEMOPT_INTERNAL, "launch: %s is beyond the %d kernels of a device",
                          kernel.kernel->name, MO_GPU_KERNELS);
}

/* Pre: `loading`. `own`: the module is for this kernel only. NOT_FOUND, without a message, where it
 * is not in the module. */
static memopt_status look_up(mo_gpu_device *gpu, mo_gpu_module module, int own,
                             const mo_kernel *kernel)
{
    mo_gpu_function function = NULL;
    int code = mo_gpu_call(gpu)->module_function(&function, module, kernel->name);
    if (code == MO_GPU_SUCCESS)
        return remember(gpu, (mo_gpu_kernel){kernel, function, own ? module : NULL});
    if (code != MO_GPU_NOT_FOUND)
        return mo_gpu_fail(gpu, code, MEMOPT_OUT_OF_DEVICE_MEMORY, kernel->name);
    gpu->driver->vendor->clear_error(gpu->driver);
    return MEMOPT_NOT_FOUND;
}

static memopt_status tell_not_found(const mo_gpu_device *gpu, const mo_kernel *kernel)
{
    const mo_gpu_driver *driver = gpu->driver;
    return mo_fail_driver(MEMOPT_UNSUPPORTED, MO_GPU_NOT_FOUND,
                          driver->vendor->error_name(driver, MO_GPU_NOT_FOUND),
                          "%s:%d: the kernels for %s have no %s", driver->vendor->name, gpu->index,
                          gpu->target, kernel->name);
}

/* All of an image, so that no launch under a graph capture looks one up: a driver that loads lazily
 * loads code then. A kernel that the image lacks fails when it is launched. */
static memopt_status look_up_all(mo_gpu_device *gpu, mo_gpu_module module)
{
    memopt_status status = MEMOPT_OK;
    for (uint32_t i = 0; i < mo_all_kernels_count; i++) {
        const mo_kernel *kernel = mo_all_kernels[i];
        status = look_up(gpu, module, 0, kernel);
        for (int k = 0; kernel->typed != NULL && k < MO_TYPED && status == MEMOPT_OK; k++)
            status = look_up(gpu, module, 0, &kernel->typed[k]);
        if (status != MEMOPT_OK && status != MEMOPT_NOT_FOUND)
            return status;
    }
    return MEMOPT_OK;
}

static void unload(mo_gpu_device *gpu, mo_gpu_module module)
{
    if (mo_gpu_call(gpu)->module_unload(module) != MO_GPU_SUCCESS)
        gpu->driver->vendor->clear_error(gpu->driver);
}

void mo_gpu_unload(mo_gpu_device *gpu)
{
    for (uint32_t i = 0; i < gpu->kernel_count; i++)
        if (gpu->kernels[i].module != NULL)
            unload(gpu, gpu->kernels[i].module);
    if (gpu->image != NULL)
        unload(gpu, gpu->image);
}

static memopt_status take_image(mo_gpu_device *gpu, mo_gpu_module module)
{
    uint32_t before = gpu->kernel_count;
    memopt_status status = look_up_all(gpu, module);
    if (status == MEMOPT_OK) {
        gpu->image = module;
        return MEMOPT_OK;
    }
    mo_lock(&gpu->lock);
    gpu->kernel_count = before;
    mo_unlock(&gpu->lock);
    unload(gpu, module);
    return status;
}

static mo_gpu_function known_function(const mo_gpu_device *gpu, const mo_kernel *kernel)
{
    for (uint32_t i = 0; i < gpu->kernel_count; i++)
        if (gpu->kernels[i].kernel == kernel)
            return gpu->kernels[i].function;
    return NULL;
}

/* Pre: `loading`, and the kernel is not known. */
static memopt_status load(mo_gpu_device *gpu, const mo_kernel *kernel)
{
    mo_gpu_module module = NULL;
    int all = 1;
    memopt_status status = MEMOPT_OK;
    if (gpu->image == NULL)
        status = mo_gpu_module_load(gpu, kernel, &module, &all);
    if (status == MEMOPT_OK && module != NULL && all)
        status = take_image(gpu, module);
    if (status != MEMOPT_OK || known_function(gpu, kernel) != NULL)
        return status;
    status = look_up(gpu, all ? gpu->image : module, !all, kernel);
    if (status != MEMOPT_OK && !all)
        unload(gpu, module);
    return status == MEMOPT_NOT_FOUND ? tell_not_found(gpu, kernel) : status;
}

/* One thread at a time loads, with the lock released; others that need a kernel wait. Loading must
 * not end a graph capture of this thread. */
static memopt_status find_function(mo_gpu_device *gpu, const mo_kernel *kernel,
                                   mo_gpu_function *out_function)
{
    int mode;
    mo_lock(&gpu->lock);
    while ((*out_function = known_function(gpu, kernel)) == NULL && gpu->loading)
        pthread_cond_wait(&gpu->loaded, &gpu->lock);
    if (*out_function == NULL)
        gpu->loading = 1;
    mo_unlock(&gpu->lock);
    if (*out_function != NULL)
        return MEMOPT_OK;
    int code = mo_gpu_relax(gpu, &mode);
    memopt_status status = code == MO_GPU_SUCCESS
                               ? load(gpu, kernel)
                               : mo_gpu_fail(gpu, code, MEMOPT_OUT_OF_DEVICE_MEMORY, "module_load");
    mo_gpu_restrict(gpu, mode);
    mo_lock(&gpu->lock);
    *out_function = known_function(gpu, kernel);
    gpu->loading = 0;
    pthread_cond_broadcast(&gpu->loaded);
    mo_unlock(&gpu->lock);
    return status;
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
