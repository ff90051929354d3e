/*
 * Finding, loading and describing a driver library.
 *
 * load_lock guards all fields of a mo_gpu_driver until `loaded` is set; after that they are
 * constant. It is held while the library is opened and initialised, since other threads need the
 * result; no other lock is taken under it.
 */
#include "device/gpu/gpu.h"

#include "base/lock.h"
#include "base/log.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;

void *mo_gpu_symbol(const mo_gpu_driver *driver, const char *symbol)
{
    return dlsym(driver->library, symbol);
}

void mo_gpu_resolve(mo_gpu_driver *driver, const mo_gpu_entry *entries, size_t count, void *calls,
                    mo_gpu_find find)
{
    for (size_t i = 0; i < count; i++) {
        void *address = find(driver, &entries[i]);
        memcpy((char *)calls + entries[i].offset, &address, sizeof address);
        if (address != NULL)
            continue;
        driver->missing_groups |= 1u << entries[i].need;
        mo_append(driver->missing, sizeof driver->missing, "%s%s%s",
                  driver->missing[0] == '\0' ? "" : ", ", entries[i].name,
                  entries[i].need == MO_GPU_REQUIRED ? " (required)" : "");
    }
}

/* errno says why. */
static int lacks_device_file(const mo_gpu_vendor *vendor)
{
    return vendor->device_file != NULL && access("/dev/dxg", F_OK) != 0 && /* WSL's way */
           access(vendor->device_file, R_OK | W_OK) != 0;
}

void mo_gpu_why_no_device(const mo_gpu_vendor *vendor, char *text)
{
    snprintf(text, MO_LIBRARY_TEXT, "no %s device", vendor->maker);
    if (lacks_device_file(vendor))
        mo_append(text, MO_LIBRARY_TEXT,
                  ": %s: %s (no card, its kernel driver is not loaded, or this user may not use "
                  "it)",
                  vendor->device_file, strerror(errno));
}

/* The driver exists but does not start. */
static memopt_status refuse_start(mo_gpu_driver *driver, int code)
{
    const char *name = driver->vendor->error_name(driver, code);
    memopt_status status = mo_gpu_status_of(code, MEMOPT_OUT_OF_HOST_MEMORY);
    snprintf(driver->problem, sizeof driver->problem, "%s does not start: it says %s (%d)%s",
             driver->file, name, code,
             code == MO_GPU_STUB_LIBRARY ? "; it is the toolkit's stub for linking, not the driver"
                                         : "");
    driver->code = code;
    return status == MEMOPT_DRIVER_MISSING ? status : MEMOPT_DRIVER_ERROR;
}

/* Pre: load_lock held, not loaded. Fills in the report, also on failure. */
static memopt_status load(mo_gpu_driver *driver)
{
    memopt_status status = MEMOPT_OK;
    const mo_gpu_vendor *vendor = driver->vendor;
    MO_PRE(mo_is_locked(&load_lock) && !driver->loaded);
    *driver = (mo_gpu_driver){.vendor = vendor};
    driver->library =
        mo_library_share(vendor->libraries, driver->file, driver->tried, driver->problem);
    if (driver->library == NULL)
        return MEMOPT_DRIVER_MISSING;
    vendor->resolve(driver);
    if (!mo_gpu_has(driver, MO_GPU_REQUIRED)) {
        snprintf(driver->problem, sizeof driver->problem,
                 "%s lacks entry points that every supported driver has", driver->file);
        status = MEMOPT_DRIVER_MISSING;
        goto close_library;
    }
    int code = driver->calls.init(0);
    /* Without a card, HIP's runtimes say one thing or another. */
    driver->no_device =
        code == MO_GPU_NO_DEVICE || (code != MO_GPU_SUCCESS && lacks_device_file(vendor));
    if (code != MO_GPU_SUCCESS && !driver->no_device) {
        status = refuse_start(driver, code);
        goto close_library;
    }
    if (driver->no_device)
        vendor->clear_error(driver);
    if (driver->calls.driver_version(&driver->version) != MO_GPU_SUCCESS)
        driver->version = 0;
    if (driver->version != 0 && driver->version < vendor->oldest_version) {
        snprintf(driver->problem, sizeof driver->problem,
                 "%s is older than %s, the first that is supported: it says version %d",
                 driver->file, vendor->oldest_name, driver->version);
        status = MEMOPT_DRIVER_MISSING;
        goto close_library;
    }
    driver->loaded = 1;
    driver->process = mo_process_forks();
    mo_log(MEMOPT_LOG_INFO, "%s: loaded %s, version %d%s%s", vendor->name, driver->file,
           driver->version, driver->missing[0] == '\0' ? "" : ", without ", driver->missing);
    return MEMOPT_OK;

close_library:
    dlclose(driver->library);
    driver->library = NULL;
    return status;
}

static const char inherited[] =
    "a parent of this process started the driver before a fork, and the "
    "driver does not work in the child";

/* Starting a driver in vain takes long, so it is tried again only where that may help. */
static int is_lasting(int code)
{
    return code != MO_GPU_OUT_OF_MEMORY && code != MO_GPU_NOT_INITIALIZED &&
           code != MO_GPU_SYSTEM_NOT_READY;
}

/* UNSUPPORTED: the child of a fork, as `inherited` says. */
static memopt_status load_quietly(mo_gpu_driver *driver)
{
    mo_lock(&load_lock);
    if (!driver->loaded && !driver->refused) {
        driver->status = load(driver);
        driver->refused = driver->status != MEMOPT_OK && is_lasting(driver->code);
    }
    const int ours = !driver->loaded || driver->process == mo_process_forks();
    memopt_status status = ours ? driver->status : MEMOPT_UNSUPPORTED;
    mo_unlock(&load_lock);
    return status;
}

memopt_status mo_gpu_load(mo_gpu_driver *driver)
{
    char problem[MO_LIBRARY_TEXT], missing[MO_LIBRARY_TEXT] = "";
    memopt_status status = load_quietly(driver);
    if (status == MEMOPT_OK)
        return status;
    if (status == MEMOPT_UNSUPPORTED)
        return mo_fail(status, "%s: %s; start the child by exec (spawn) instead",
                       driver->vendor->name, inherited);
    mo_lock(&load_lock);
    memcpy(problem, driver->problem, sizeof problem);
    if (!mo_gpu_has(driver, MO_GPU_REQUIRED)) /* what may be missing explains nothing else */
        memcpy(missing, driver->missing, sizeof missing);
    int32_t code = driver->code;
    const char *advice = driver->file[0] == '\0' ? "install" : "update";
    mo_unlock(&load_lock);
    return mo_fail_driver(status, code, code != 0 ? problem : "",
                          "%s: no usable driver: %s%s%s; %s it, or use \"cpu\"",
                          driver->vendor->name, problem, missing[0] == '\0' ? "" : ": ", missing,
                          advice);
}

/* The driver's count; it may say "no device" instead of 0. */
static int count_devices(const mo_gpu_driver *driver, int *out_count)
{
    int count = 0;
    int code = driver->no_device ? MO_GPU_SUCCESS : driver->calls.device_count(&count);
    if (code == MO_GPU_NO_DEVICE || code == MO_GPU_NOT_INITIALIZED) {
        driver->vendor->clear_error(driver);
        count = 0;
        code = MO_GPU_SUCCESS;
    }
    if (code == MO_GPU_SUCCESS)
        *out_count = count;
    return code;
}

memopt_status mo_gpu_count(mo_gpu_driver *driver, int32_t *out_count)
{
    int count = 0;
    MO_TRY(mo_gpu_load(driver));
    int code = count_devices(driver, &count);
    if (code != MO_GPU_SUCCESS) {
        const char *name = driver->vendor->error_name(driver, code);
        driver->vendor->clear_error(driver);
        return mo_fail_driver(mo_gpu_status_of(code, MEMOPT_OUT_OF_HOST_MEMORY), code, name,
                              "%s: counting devices: the driver says %s (%d)", driver->vendor->name,
                              name, code);
    }
    *out_count = count;
    return MEMOPT_OK;
}

static void report_features(const mo_gpu_driver *driver, memopt_backend_info *info)
{
    if (mo_gpu_has(driver, MO_GPU_GROUP_VM))
        info->features |= MEMOPT_BACKEND_VIRTUAL_MEMORY;
    if (mo_gpu_has(driver, MO_GPU_GROUP_HOST) || mo_gpu_has(driver, MO_GPU_GROUP_CALLBACK))
        info->features |= MEMOPT_BACKEND_HOST_FUNCTIONS;
    if (mo_gpu_has(driver, MO_GPU_GROUP_CAPTURE))
        info->features |= MEMOPT_BACKEND_GRAPH_CAPTURE;
}

void mo_gpu_report(mo_gpu_driver *driver, memopt_backend_info *out_info)
{
    const mo_images *images = driver->vendor->images;
    int count = 0;
    out_info->status = load_quietly(driver);
    mo_lock(&load_lock);
    out_info->driver_code = driver->code;
    out_info->driver_version = driver->version;
    snprintf(out_info->library, sizeof out_info->library, "%s", driver->file);
    snprintf(out_info->tried, sizeof out_info->tried, "%s", driver->tried);
    snprintf(out_info->problem, sizeof out_info->problem, "%s",
             out_info->status == MEMOPT_UNSUPPORTED ? inherited : driver->problem);
    snprintf(out_info->missing, sizeof out_info->missing, "%s", driver->missing);
    mo_unlock(&load_lock);
    for (uint32_t i = 0; i < images->count; i++)
        mo_append(out_info->targets, sizeof out_info->targets, "%s%s", i == 0 ? "" : ", ",
                  images->images[i].target);
    char file[MO_LIBRARY_FILE], problem[MO_LIBRARY_TEXT];
    mo_gpu_compiler_report(driver, file, problem);
    snprintf(out_info->compiler, sizeof out_info->compiler, "%s", file);
    if (file[0] != '\0' && images->source != NULL)
        out_info->features |= MEMOPT_BACKEND_RUNTIME_COMPILER;
    if (out_info->status != MEMOPT_OK)
        return;
    report_features(driver, out_info);
    int code = count_devices(driver, &count);
    if (code != MO_GPU_SUCCESS) {
        driver->vendor->clear_error(driver);
        out_info->status = mo_gpu_status_of(code, MEMOPT_OUT_OF_HOST_MEMORY);
        out_info->driver_code = code;
        snprintf(out_info->problem, sizeof out_info->problem,
                 "counting devices: the driver says %s (%d)",
                 driver->vendor->error_name(driver, code), code);
    }
    out_info->device_count = count;
    if (code == MO_GPU_SUCCESS && count == 0)
        mo_gpu_why_no_device(driver->vendor, out_info->problem);
}
