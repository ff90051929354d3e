/*
 * Which code runs on a device: the best image that the driver takes, else code compiled
 * from the embedded source, kept on disk for the next time.
 */
#include "device/gpu/gpu.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/precondition.h"

#include <inttypes.h>
#include <stdio.h>

enum { MOST_IMAGES = 64 };

/* Codes that say "not for this device or driver": the next image may fit. Older HIP runtimes say
 * NOT_LOADABLE of a version of code objects that they do not know. */
static int says_unfit(int code)
{
    return code == MO_GPU_NO_BINARY || code == MO_GPU_INVALID_IMAGE || code == MO_GPU_INVALID_PTX ||
           code == MO_GPU_NO_PTX_COMPILER || code == MO_GPU_UNSUPPORTED_PTX ||
           code == MO_GPU_PTX_COMPILER_OFF || code == MO_GPU_INVALID_SOURCE ||
           code == MO_GPU_NOT_LOADABLE || code == MO_GPU_NOT_SUPPORTED;
}

/* The result of an image; if it was not loaded, another one, or the source, may work. */
typedef enum outcome { LOADED, UNFIT, MISSING } outcome;

/* MISSING: its file does not exist. UNFIT: the driver says that it does not fit. */
static memopt_status load_image(mo_gpu_device *gpu, const mo_image *image,
                                mo_gpu_module *out_module, outcome *out_outcome)
{
    void *read = NULL;
    memopt_status status = image->data != NULL ? MEMOPT_OK : mo_gpu_image_read(image, &read);
    *out_outcome = status == MEMOPT_NOT_FOUND ? MISSING : LOADED;
    if (status != MEMOPT_OK)
        return *out_outcome == MISSING ? MEMOPT_OK : status;
    int code = mo_gpu_call(gpu)->module_load(out_module, read != NULL ? read : image->data);
    mo_free(read);
    if (code == MO_GPU_SUCCESS)
        return MEMOPT_OK;
    if (!says_unfit(code))
        return mo_gpu_fail(gpu, code, MEMOPT_OUT_OF_DEVICE_MEMORY, "loading the kernels");
    *out_outcome = UNFIT;
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

/* The driver refuses what was compiled for it. */
static memopt_status refuse_compiled(mo_gpu_device *gpu, const mo_gpu_recipe *recipe, int code)
{
    char compiler[2 * MO_LIBRARY_FILE];
    const mo_gpu_vendor *vendor = gpu->driver->vendor;
    const char *name = vendor->error_name(gpu->driver, code);
    vendor->clear_error(gpu->driver);
    mo_gpu_recipe_name(recipe, compiler, sizeof compiler);
    return mo_fail_driver(MEMOPT_UNSUPPORTED, code, name,
                          "%s:%d: the driver (version %d) refuses the kernels that %s "
                          "compiled for %s: %s (%d); install a run-time compiler that is not newer "
                          "than the driver, or a newer driver",
                          vendor->name, gpu->index, gpu->driver->version, compiler, gpu->target,
                          name, code);
}

/* OK with *out_loaded = 0 if the disk has nothing that fits. Code that the driver refuses is
 * removed. */
static memopt_status load_kept(mo_gpu_device *gpu, const char *key, mo_gpu_module *out_module,
                               int *out_loaded)
{
    void *binary = NULL;
    uint64_t bytes = 0;
    *out_loaded = 0;
    if (!mo_gpu_cache_read(key, &binary, &bytes))
        return MEMOPT_OK;
    int code = mo_gpu_call(gpu)->module_load(out_module, binary);
    mo_free(binary);
    *out_loaded = code == MO_GPU_SUCCESS;
    if (code == MO_GPU_SUCCESS)
        return MEMOPT_OK;
    if (!says_unfit(code))
        return mo_gpu_fail(gpu, code, MEMOPT_OUT_OF_DEVICE_MEMORY, "loading the kernels");
    gpu->driver->vendor->clear_error(gpu->driver);
    mo_gpu_cache_drop(key);
    return MEMOPT_OK;
}

static memopt_status load_compiled(mo_gpu_device *gpu, mo_gpu_module *out_module)
{
    char key[MO_GPU_KEY_BYTES];
    mo_gpu_recipe recipe;
    void *binary = NULL;
    uint64_t bytes = 0;
    int loaded = 0;
    memopt_status status = mo_gpu_find_recipe(gpu, &recipe);
    if (status != MEMOPT_OK)
        return status;
    mo_gpu_cache_key(gpu, &recipe, key);
    status = load_kept(gpu, key, out_module, &loaded);
    if (status != MEMOPT_OK || loaded)
        return status;
    status = mo_gpu_compile(gpu, &recipe, &binary, &bytes);
    if (status != MEMOPT_OK)
        return status;
    int code = mo_gpu_call(gpu)->module_load(out_module, binary);
    if (code == MO_GPU_SUCCESS)
        mo_gpu_cache_write(key, binary, bytes);
    mo_free(binary);
    if (says_unfit(code))
        return refuse_compiled(gpu, &recipe, code);
    return mo_gpu_result(gpu, code, MEMOPT_OUT_OF_DEVICE_MEMORY, "loading the compiled kernels");
}

static memopt_status load_source(mo_gpu_device *gpu, mo_gpu_module *out_module)
{
    const mo_images *images = gpu->driver->vendor->images;
    if (images->source != NULL && images->source_bytes != 0)
        return load_compiled(gpu, out_module);
    return mo_fail(MEMOPT_UNSUPPORTED,
                   "%s:%d: this build of libmemopt has no kernels for %s (%s), and no source to "
                   "compile them from; it holds %" PRIu32 " images",
                   gpu->driver->vendor->name, gpu->index, gpu->target, gpu->name, images->count);
}

/* Adds the missing file to the last error. */
static memopt_status tell_missing(const mo_image *image, memopt_status status)
{
    char path[MO_GPU_PATH_BYTES];
    memopt_error_info info = MEMOPT_ERROR_INFO_INIT;
    mo_gpu_image_path(image, path);
    (void)memopt_last_error_info(&info);
    return mo_fail_driver(status, info.driver_code, info.driver_message,
                          "%s. There is no %s either (%s, SHA-256 %s): install it, or name its "
                          "folder in MEMOPT_KERNELS_DIR",
                          info.message, path, MO_SIZE(image->bytes), image->digest);
}

static memopt_status load_any(mo_gpu_device *gpu, mo_gpu_module *out_module)
{
    const char *vendor = gpu->driver->vendor->name;
    const mo_image *image, *missing = NULL;
    uint64_t tried = 0;
    while ((image = next_image(gpu, &tried)) != NULL) {
        outcome became = LOADED;
        memopt_status status = load_image(gpu, image, out_module, &became);
        if (status != MEMOPT_OK)
            return status;
        if (became == LOADED) {
            mo_log(MEMOPT_LOG_INFO, "%s:%d: runs the kernels for %s", vendor, gpu->index,
                   image->target);
            return MEMOPT_OK;
        }
        if (became == MISSING && missing == NULL)
            missing = image;
    }
    memopt_status status = load_source(gpu, out_module);
    return status == MEMOPT_OK || missing == NULL ? status : tell_missing(missing, status);
}

/* Only lasting failures: memory may be available next time. */
static void remember_verdict(mo_gpu_device *gpu, memopt_status status)
{
    memopt_error_info info = MEMOPT_ERROR_INFO_INIT;
    mo_gpu_verdict *verdict = &gpu->module_verdict;
    if (status != MEMOPT_UNSUPPORTED || memopt_last_error_info(&info) != MEMOPT_OK)
        return;
    verdict->status = status;
    verdict->code = info.driver_code;
    snprintf(verdict->message, sizeof verdict->message, "%s", info.message);
    snprintf(verdict->code_name, sizeof verdict->code_name, "%s", info.driver_message);
}

memopt_status mo_gpu_module_load(mo_gpu_device *gpu, mo_gpu_module *out_module)
{
    const mo_gpu_verdict *verdict = &gpu->module_verdict;
    MO_PRE(gpu->module_state == MO_GPU_MODULE_LOADING);
    if (verdict->status != MEMOPT_OK)
        return mo_fail_driver(verdict->status, verdict->code, verdict->code_name, "%s",
                              verdict->message);
    memopt_status status = load_any(gpu, out_module);
    remember_verdict(gpu, status);
    return status;
}
