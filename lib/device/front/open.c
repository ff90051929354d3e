/* Finds the back end of a name. */
#include "device/gpu/gpu.h"

#include "base/options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum backend { BACKEND_NONE, BACKEND_CPU, BACKEND_CUDA, BACKEND_HIP } backend;

static const char *const backend_names[] = {"", "cpu", "cuda", "hip"};

static backend find_backend(const char *name, size_t length)
{
    for (int b = BACKEND_CPU; b <= BACKEND_HIP; b++)
        if (strlen(backend_names[b]) == length && memcmp(name, backend_names[b], length) == 0)
            return (backend)b;
    return BACKEND_NONE;
}

static memopt_status no_backend(const char *name)
{
    return mo_fail(MEMOPT_NOT_FOUND,
                   "device: no back end is called \"%s\"; use \"cpu\", \"cuda:N\" or \"hip:N\"",
                   name);
}

static memopt_status not_built(backend which)
{
    return mo_fail(MEMOPT_UNSUPPORTED,
                   "device: this build of libmemopt has no %s back end; build it with "
                   "-DMEMOPT_%s=AUTO, or use \"cpu\"",
                   backend_names[which], which == BACKEND_CUDA ? "CUDA" : "HIP");
}

#if defined(MO_WITHOUT_CUDA) && defined(MO_WITHOUT_HIP) /* lib/device/gpu may be left out */

static int report_gpu(backend which, memopt_backend_info *info)
{
    (void)which;
    (void)info;
    return 0;
}

static memopt_status open_gpu(backend which, int32_t index, const memopt_device_options *options,
                              memopt_device **out_device)
{
    (void)index;
    (void)options;
    (void)out_device;
    return not_built(which);
}

#else

/* The driver of a GPU back end; NULL if the build omits it. */
static mo_gpu_driver *find_driver(backend which)
{
#ifndef MO_WITHOUT_CUDA
    if (which == BACKEND_CUDA)
        return &mo_cuda_driver;
#endif
#ifndef MO_WITHOUT_HIP
    if (which == BACKEND_HIP)
        return &mo_hip_driver;
#endif
    (void)which;
    return NULL;
}

/* Whether there is one to report on. */
static int report_gpu(backend which, memopt_backend_info *info)
{
    mo_gpu_driver *driver = find_driver(which);
    if (driver != NULL)
        mo_gpu_report(driver, info);
    return driver != NULL;
}

static memopt_status open_gpu(backend which, int32_t index, const memopt_device_options *options,
                              memopt_device **out_device)
{
    mo_gpu_driver *driver = find_driver(which);
    return driver != NULL ? mo_gpu_open(driver, index, options, out_device) : not_built(which);
}

#endif

/* "cuda:1" → back end and index; the number may be left out. */
static memopt_status parse_name(const char *name, backend *out_backend, int32_t *out_index)
{
    const char *colon = strchr(name, ':');
    size_t length = colon != NULL ? (size_t)(colon - name) : strlen(name);
    backend which = find_backend(name, length);
    int32_t index = 0;
    if (which == BACKEND_NONE)
        return no_backend(name);
    if (colon != NULL) {
        const char *digits = colon + 1;
        size_t count = strspn(digits, "0123456789");
        if (count == 0 || count > 5 || digits[count] != '\0')
            return mo_fail(MEMOPT_NOT_FOUND,
                           "device: \"%s\" has no valid index behind the colon; use \"%s:0\"", name,
                           backend_names[which]);
        index = (int32_t)strtol(digits, NULL, 10);
    }
    *out_backend = which;
    *out_index = index;
    return MEMOPT_OK;
}

memopt_status memopt_backend_get_info(const char *backend_name, memopt_backend_info *out_info)
{
    memopt_backend_info info = MEMOPT_BACKEND_INFO_INIT;
    MO_NOT_NULL("backend_get_info", backend_name, out_info);
    backend which = find_backend(backend_name, strlen(backend_name));
    if (which == BACKEND_NONE)
        return no_backend(backend_name);
    if (out_info->struct_size < sizeof(size_t)) /* before a driver is loaded */
        return mo_result_write(out_info, &info, sizeof info, "memopt_backend_info");
    if (which == BACKEND_CPU) {
        info.device_count = 1;
        info.features = MEMOPT_BACKEND_VIRTUAL_MEMORY | MEMOPT_BACKEND_HOST_FUNCTIONS;
    } else if (!report_gpu(which, &info)) {
        info.status = MEMOPT_UNSUPPORTED;
        snprintf(info.problem, sizeof info.problem, "this build was made without it");
    }
    return mo_result_write(out_info, &info, sizeof info, "memopt_backend_info");
}

memopt_status memopt_device_open(const char *name, const memopt_device_options *options,
                                 memopt_device **out_device)
{
    memopt_device_options copy;
    backend which = BACKEND_NONE;
    int32_t index = 0;
    MO_NOT_NULL("device_open", name, out_device);
    MO_TRY(parse_name(name, &which, &index));
    MO_TRY(mo_options_read(&copy, sizeof copy, options, "memopt_device_options"));
    if (copy.unified > 1)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "device_open: unified is %" PRIu32 ", not 0 or 1",
                       copy.unified);
    if (which != BACKEND_CPU)
        return open_gpu(which, index, &copy, out_device);
    if (index != 0)
        return mo_fail(MEMOPT_NOT_FOUND, "device: \"%s\": there is one cpu device, \"cpu:0\"",
                       name);
    return mo_cpu_open(&copy, out_device);
}
