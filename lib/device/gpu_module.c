/*
 * Which code runs on a device: the best embedded image that the driver takes, else code compiled
 * from the embedded source, kept on disk for the next time.
 */
#include "device/gpu.h"

#include "base/log.h"
#include "base/memory.h"

#include <inttypes.h>

enum { MOST_IMAGES = 64 };

/* Codes that say "not for this device or driver": the next image may do. */
static int says_unfit(int code)
{
    return code == MO_GPU_NO_BINARY || code == MO_GPU_INVALID_IMAGE || code == MO_GPU_INVALID_PTX ||
           code == MO_GPU_NO_PTX_COMPILER || code == MO_GPU_UNSUPPORTED_PTX ||
           code == MO_GPU_PTX_COMPILER_OFF || code == MO_GPU_NOT_SUPPORTED;
}

/* OK with *out_unfit = 1 where the driver says that the image is not for it. */
static memopt_status load_image(mo_gpu_device *gpu, const mo_image *image,
                                mo_gpu_module *out_module, int *out_unfit)
{
    int code = mo_gpu_call(gpu)->module_load(out_module, image->data);
    *out_unfit = says_unfit(code);
    if (code == MO_GPU_SUCCESS)
        return MEMOPT_OK;
    if (!*out_unfit)
        return mo_gpu_fail(gpu, code, MEMOPT_OUT_OF_DEVICE_MEMORY, "loading the kernels");
    gpu->driver->vendor->clear_error(gpu->driver);
    mo_log(MEMOPT_LOG_INFO, "%s:%d: the image for %s does not fit %s (%s)",
           gpu->driver->vendor->name, gpu->index, image->target, gpu->isa,
           gpu->driver->vendor->error_name(gpu->driver, code));
    return MEMOPT_OK;
}

/* The best image that was not tried yet; NULL where none fits. */
static const mo_image *next_image(const mo_gpu_device *gpu, uint64_t *tried)
{
    const mo_gpu_vendor *vendor = gpu->driver->vendor;
    uint32_t best = 0, at = 0;
    for (uint32_t i = 0; i < vendor->images->count && i < MOST_IMAGES; i++) {
        uint32_t rating = vendor->rate_image(gpu, vendor->images->images[i].target);
        if ((*tried >> i & 1) == 0 && rating > best) {
            best = rating;
            at = i;
        }
    }
    if (best == 0)
        return NULL;
    *tried |= (uint64_t)1 << at;
    return &vendor->images->images[at];
}

/* Code on disk that the driver does not take is thrown away and made anew. */
static memopt_status load_compiled(mo_gpu_device *gpu, mo_gpu_module *out_module)
{
    char key[MO_GPU_KEY_BYTES];
    void *binary = NULL;
    uint64_t bytes = 0;
    mo_gpu_cache_key(gpu, key);
    if (mo_gpu_cache_read(key, &binary, &bytes)) {
        int code = mo_gpu_call(gpu)->module_load(out_module, binary);
        mo_free(binary);
        if (code == MO_GPU_SUCCESS)
            return MEMOPT_OK;
        if (!says_unfit(code))
            return mo_gpu_fail(gpu, code, MEMOPT_OUT_OF_DEVICE_MEMORY, "loading the kernels");
        gpu->driver->vendor->clear_error(gpu->driver);
        mo_gpu_cache_drop(key);
    }
    memopt_status status = mo_gpu_compile(gpu, &binary, &bytes);
    if (status != MEMOPT_OK)
        return status;
    int code = mo_gpu_call(gpu)->module_load(out_module, binary);
    if (code == MO_GPU_SUCCESS)
        mo_gpu_cache_write(key, binary, bytes);
    mo_free(binary);
    return mo_gpu_result(gpu, code, MEMOPT_OUT_OF_DEVICE_MEMORY, "loading the compiled kernels");
}

memopt_status mo_gpu_module_load(mo_gpu_device *gpu, mo_gpu_module *out_module)
{
    const mo_images *images = gpu->driver->vendor->images;
    const mo_image *image;
    uint64_t tried = 0;
    while ((image = next_image(gpu, &tried)) != NULL) {
        int unfit = 0;
        memopt_status status = load_image(gpu, image, out_module, &unfit);
        if (status != MEMOPT_OK || !unfit) {
            if (status == MEMOPT_OK)
                mo_log(MEMOPT_LOG_INFO, "%s:%d: runs the kernels for %s", gpu->driver->vendor->name,
                       gpu->index, image->target);
            return status;
        }
    }
    if (images->source != NULL && images->source_bytes != 0)
        return load_compiled(gpu, out_module);
    return mo_fail(MEMOPT_UNSUPPORTED,
                   "%s:%d: this build of libmemopt has no kernels for %s (%s), and no source to "
                   "compile them from; it holds %" PRIu32 " images",
                   gpu->driver->vendor->name, gpu->index, gpu->target, gpu->name, images->count);
}
