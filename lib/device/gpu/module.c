/*
 * Which code runs on a device: the best image that the driver takes, else the embedded source.
 * Binary images have all kernels; of PTX and of the source, a kernel is compiled when it is first
 * needed, and kept on disk for the next time.
 */
#include "device/gpu/gpu.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/precondition.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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

/* The driver refuses what was compiled for it. */
static memopt_status refuse_compiled(mo_gpu_device *gpu, const mo_gpu_recipe *recipe, int code)
{
    char compiler[2 * MO_LIBRARY_FILE];
    const mo_gpu_vendor *vendor = gpu->driver->vendor;
    const char *name = vendor->error_name(gpu->driver, code);
    vendor->clear_error(gpu->driver);
    mo_gpu_recipe_name(gpu, recipe, compiler, sizeof compiler);
    return mo_fail_driver(MEMOPT_UNSUPPORTED, code, name,
                          "%s:%d: the driver (version %d) refuses the kernel that %s "
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

/* Before what takes long. The times are those of docs/benchmarks/compile.md. */
static void announce(const mo_gpu_device *gpu, const mo_gpu_recipe *recipe, const char *kernel)
{
    char compiler[2 * MO_LIBRARY_FILE], folder[MO_GPU_PATH_BYTES], seconds[16] = "1 to 6";
    if (recipe->compiler == NULL)
        snprintf(seconds, sizeof seconds, "%.1f", recipe->seconds);
    mo_gpu_recipe_name(gpu, recipe, compiler, sizeof compiler);
    mo_gpu_cache_place(folder);
    mo_log(MEMOPT_LOG_WARNING,
           "%s:%d: %s compiles the kernel %s for %s, about %s seconds; it is kept %s%s",
           gpu->driver->vendor->name, gpu->index, compiler, kernel, gpu->target, seconds,
           folder[0] != '\0' ? "in " : "nowhere: there is no cache folder", folder);
}

/* Compiles, loads and keeps (`key` not NULL) a kernel. OK with *out_unfit where the driver refuses
 * it. */
static memopt_status load_new(mo_gpu_device *gpu, const mo_gpu_recipe *recipe, const char *kernel,
                              const char *key, mo_gpu_module *out_module, int *out_unfit)
{
    void *binary = NULL;
    uint64_t bytes = 0;
    if (!recipe->quick)
        announce(gpu, recipe, kernel);
    MO_TRY(mo_gpu_compile(gpu, recipe, kernel, &binary, &bytes));
    int code = mo_gpu_call(gpu)->module_load(out_module, binary);
    if (code == MO_GPU_SUCCESS && key != NULL)
        mo_gpu_cache_write(key, binary, bytes);
    mo_free(binary);
    *out_unfit = says_unfit(code) ? code : 0;
    if (*out_unfit != 0)
        return MEMOPT_OK;
    return mo_gpu_result(gpu, code, MEMOPT_OUT_OF_DEVICE_MEMORY, "loading the compiled kernels");
}

/* One kernel, kept on disk or new. Of several processes that need it, one compiles. */
static memopt_status load_one(mo_gpu_device *gpu, const mo_gpu_recipe *recipe, const char *kernel,
                              mo_gpu_module *out_module, int *out_unfit)
{
    char key[MO_GPU_KEY_BYTES];
    int loaded = 0;
    *out_unfit = 0;
    if (recipe->quick)
        return load_new(gpu, recipe, kernel, NULL, out_module, out_unfit);
    mo_gpu_cache_key(gpu, recipe, kernel, key);
    memopt_status status = load_kept(gpu, key, out_module, &loaded);
    if (status != MEMOPT_OK || loaded)
        return status;
    int lock = mo_gpu_cache_lock(key);
    if (lock >= 0)
        status = load_kept(gpu, key, out_module, &loaded);
    if (status == MEMOPT_OK && !loaded)
        status = load_new(gpu, recipe, kernel, key, out_module, out_unfit);
    mo_gpu_cache_unlock(lock);
    return status;
}

static memopt_status load_source(mo_gpu_device *gpu, const mo_kernel *kernel,
                                 mo_gpu_module *out_module)
{
    const mo_images *images = gpu->driver->vendor->images;
    mo_gpu_recipe recipe;
    int unfit = 0;
    if (images->source == NULL || images->source_bytes == 0)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "%s:%d: this build of libmemopt has no kernels for %s (%s), and no source "
                       "to compile them from; it holds %" PRIu32 " images",
                       gpu->driver->vendor->name, gpu->index, gpu->target, gpu->name,
                       images->count);
    memopt_status status = mo_gpu_find_recipe(gpu, &recipe);
    recipe.types = kernel->types;
    if (status == MEMOPT_OK)
        status = load_one(gpu, &recipe, kernel->name, out_module, &unfit);
    return unfit != 0 ? refuse_compiled(gpu, &recipe, unfit) : status;
}

/* --- images -------------------------------------------------------------------------------- */

/* Text, which the driver compiles kernel by kernel: all of them take it half a minute. */
static int is_text(const mo_image *image)
{
    return strncmp(image->target, "ptx", 3) == 0;
}

/* The result of an image; if it was not loaded, another one, or the source, may work. */
typedef enum outcome { LOADED, UNFIT, MISSING } outcome;

/* MISSING: its file does not exist. UNFIT: the driver says that it does not fit. */
static memopt_status load_image(mo_gpu_device *gpu, const mo_image *image, const char *kernel,
                                mo_gpu_module *out_module, outcome *out_outcome)
{
    void *read = NULL;
    int code = MO_GPU_SUCCESS;
    memopt_status status = image->data != NULL ? MEMOPT_OK : mo_gpu_image_read(image, &read);
    *out_outcome = status == MEMOPT_NOT_FOUND ? MISSING : LOADED;
    if (status != MEMOPT_OK)
        return *out_outcome == MISSING ? MEMOPT_OK : status;
    const void *data = read != NULL ? read : image->data;
    if (is_text(image)) {
        mo_gpu_recipe recipe;
        status = mo_gpu_part_recipe(data, image->bytes, kernel, &recipe);
        if (status == MEMOPT_OK) {
            status = load_one(gpu, &recipe, kernel, out_module, &code);
            mo_free(recipe.part);
        }
    } else {
        code = mo_gpu_call(gpu)->module_load(out_module, data);
    }
    mo_free(read);
    if (status != MEMOPT_OK || code == MO_GPU_SUCCESS)
        return status;
    if (!says_unfit(code))
        return mo_gpu_fail(gpu, code, MEMOPT_OUT_OF_DEVICE_MEMORY, "loading the kernels");
    *out_outcome = UNFIT;
    gpu->driver->vendor->clear_error(gpu->driver);
    mo_log(MEMOPT_LOG_INFO, "%s:%d: the image for %s does not fit %s (%s)",
           gpu->driver->vendor->name, gpu->index, image->target, gpu->isa,
           gpu->driver->vendor->error_name(gpu->driver, code));
    return MEMOPT_OK;
}

/* The best image that was not tried yet; -1 where none fits. */
static int best_image(const mo_gpu_device *gpu, uint64_t tried)
{
    const mo_gpu_vendor *vendor = gpu->driver->vendor;
    uint32_t best = 0;
    int at = -1;
    for (uint32_t i = 0; i < vendor->images->count && i < MOST_IMAGES; i++) {
        uint32_t rating = vendor->rate_image(gpu, vendor->images->images[i].target);
        if ((tried >> i & 1) == 0 && rating > best) {
            best = rating;
            at = (int)i;
        }
    }
    return at;
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

static memopt_status load_any(mo_gpu_device *gpu, const mo_kernel *kernel,
                              mo_gpu_module *out_module, int *out_all)
{
    const mo_image *images = gpu->driver->vendor->images->images, *missing = NULL;
    uint64_t tried = gpu->images_unfit;
    for (int i; (i = best_image(gpu, tried)) >= 0;) {
        outcome became = LOADED;
        MO_TRY(load_image(gpu, &images[i], kernel->name, out_module, &became));
        if (became == LOADED) {
            *out_all = !is_text(&images[i]);
            if (gpu->kernel_count == 0)
                mo_log(MEMOPT_LOG_INFO, "%s:%d: runs the kernels for %s", gpu->driver->vendor->name,
                       gpu->index, images[i].target);
            return MEMOPT_OK;
        }
        tried |= (uint64_t)1 << i;
        if (became == UNFIT)
            gpu->images_unfit |= (uint64_t)1 << i;
        else if (missing == NULL)
            missing = &images[i];
    }
    memopt_status status = load_source(gpu, kernel, out_module);
    *out_all = 0;
    return status == MEMOPT_OK || missing == NULL ? status : tell_missing(missing, status);
}

/* Only lasting failures: memory may be available next time. */
static void remember_verdict(mo_gpu_device *gpu, const char *kernel, memopt_status status)
{
    memopt_error_info info = MEMOPT_ERROR_INFO_INIT;
    mo_gpu_verdict *verdict = &gpu->verdict;
    if (status != MEMOPT_UNSUPPORTED || memopt_last_error_info(&info) != MEMOPT_OK)
        return;
    verdict->kernel = kernel;
    verdict->status = status;
    verdict->code = info.driver_code;
    snprintf(verdict->message, sizeof verdict->message, "%s", info.message);
    snprintf(verdict->code_name, sizeof verdict->code_name, "%s", info.driver_message);
}

memopt_status mo_gpu_module_load(mo_gpu_device *gpu, const mo_kernel *kernel,
                                 mo_gpu_module *out_module, int *out_all)
{
    const mo_gpu_verdict *verdict = &gpu->verdict;
    MO_PRE(gpu->loading);
    if (verdict->status != MEMOPT_OK && strcmp(verdict->kernel, kernel->name) == 0)
        return mo_fail_driver(verdict->status, verdict->code, verdict->code_name, "%s",
                              verdict->message);
    memopt_status status = load_any(gpu, kernel, out_module, out_all);
    remember_verdict(gpu, kernel->name, status);
    return status;
}
