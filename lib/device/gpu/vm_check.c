/*
 * Whether a device's virtual memory is used: the driver has the calls, the device says that it can,
 * the vendor does not distrust the driver's version, and a trial at open went well. Otherwise the
 * device has plain allocations, and no_map says why.
 *
 * The trial does what an expandable segment does: it maps a page, grows the mapping by another, and
 * moves the first one elsewhere. It takes two pages of 2 MiB and some dozen driver calls.
 */
#include "device/gpu/gpu.h"

#include "base/checked.h"
#include "base/log.h"
#include "base/precondition.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* HIP says 4096 (gfx1030 to gfx1201, MI355X): a quarter of a million handles for 1 GiB, and kernels
 * fault on gfx1201 (rocm-systems#9360). Pages of one size: ROCm 7.0 to 7.2 refuse access to a grown
 * range unless the sizes of the first mappings add up to it (rocm-systems#2516). */
enum { LEAST_GRANULARITY = 2 << 20 };
/* The largest page for drivers that keep a file descriptor for each. PyTorch's is 20 MiB. */
enum { MOST_GRANULARITY = 16 << 20 };

enum { PAGES = 2, PLACES = 3, SAMPLE = 64 };

typedef struct trial {
    const mo_gpu_scope *in;
    mo_gpu_stream stream;
    char *address; /* PLACES pages */
    size_t page;
    uint64_t handles[PAGES];
    int at[PAGES];    /* the place of each page, or -1 */
    const char *what; /* the step, for the message */
    int code, descriptors;
} trial;

/* Keeps the first failure. Returns 1 while all is well. */
static int step(trial *t, const char *what, int code)
{
    if (code == MO_GPU_SUCCESS)
        return 1;
    t->what = what;
    t->code = code;
    return 0;
}

/* The lowest free descriptor; -1: there is none. */
static int free_descriptor(void)
{
    int file = open("/", O_RDONLY | O_CLOEXEC);
    if (file >= 0)
        (void)close(file);
    return file;
}

static int create_page(trial *t, int page)
{
    const mo_gpu_calls *call = t->in->call;
    mo_gpu_allocation allocation = mo_gpu_allocation_of(t->in->gpu);
    int before = free_descriptor();
    int code = call->vm_create(&t->handles[page], t->page, &allocation, 0);
    t->descriptors += free_descriptor() != before;
    if (code != MO_GPU_SUCCESS)
        t->handles[page] = 0;
    return step(t, "creating memory", code);
}

static int map_page(trial *t, int page, int place, const char *what)
{
    const mo_gpu_calls *call = t->in->call;
    const mo_gpu_access access = {{MO_GPU_LOCATION_DEVICE, t->in->gpu->handle},
                                  MO_GPU_ACCESS_READ_WRITE};
    char *address = t->address + (size_t)place * t->page;
    if (!step(t, "mapping", call->vm_map(address, t->page, 0, t->handles[page], 0)))
        return 0;
    t->at[page] = place;
    return step(t, what, call->vm_set_access(address, t->page, &access, 1));
}

static int unmap_page(trial *t, int page)
{
    char *address = t->address + (size_t)t->at[page] * t->page;
    if (!step(t, "unmapping", t->in->call->vm_unmap(address, t->page)))
        return 0;
    t->at[page] = -1;
    return 1;
}

/* Both ends of the page. */
static int write_page(trial *t, int page)
{
    const mo_gpu_calls *call = t->in->call;
    char *address = t->address + (size_t)t->at[page] * t->page;
    unsigned char value = (unsigned char)(page + 1);
    return step(t, "writing", call->fill(address, value, SAMPLE, t->stream)) &&
           step(t, "writing", call->fill(address + t->page - SAMPLE, value, SAMPLE, t->stream)) &&
           step(t, "writing", call->stream_sync(t->stream));
}

/* They have what write_page has written. */
static int read_page(trial *t, int page)
{
    mo_gpu_device *gpu = t->in->gpu;
    unsigned char found[2 * SAMPLE] = {0};
    char *address = t->address + (size_t)t->at[page] * t->page;
    const mo_gpu_vendor *vendor = gpu->driver->vendor;
    if (!step(t, "reading", vendor->copy(gpu, found, address, SAMPLE, t->stream)) ||
        !step(t, "reading",
              vendor->copy(gpu, found + SAMPLE, address + t->page - SAMPLE, SAMPLE, t->stream)) ||
        !step(t, "reading", t->in->call->stream_sync(t->stream)))
        return 0;
    for (size_t i = 0; i < sizeof found; i++)
        if (found[i] != page + 1) {
            t->what = "what was written to a new mapping is lost";
            return 0;
        }
    return 1;
}

static int run_trial(trial *t)
{
    const mo_gpu_calls *call = t->in->call;
    void *address = NULL;
    if (!step(t, "creating a stream", call->stream_create(&t->stream, MO_GPU_STREAM_NON_BLOCKING)))
        return 0;
    if (!step(t, "reserving", call->vm_reserve(&address, PLACES * t->page, 0, NULL, 0)))
        return 0;
    t->address = address;
    return create_page(t, 0) && map_page(t, 0, 0, "setting access") && write_page(t, 0) &&
           read_page(t, 0) && create_page(t, 1) &&
           map_page(t, 1, 1, "setting access on a grown range") && write_page(t, 1) &&
           read_page(t, 1) && read_page(t, 0) && unmap_page(t, 0) &&
           map_page(t, 0, 2, "setting access on moved memory") && read_page(t, 0) &&
           read_page(t, 1);
}

/* Gives back what is there, once the work on it is over; 0 where something is left. */
static int end_trial(trial *t)
{
    const mo_gpu_calls *call = t->in->call;
    int well = 1;
    if (t->stream != NULL && !step(t, "waiting", call->stream_sync(t->stream)))
        return 0;
    for (int page = 0; page < PAGES; page++) {
        if (t->at[page] >= 0 && !unmap_page(t, page))
            well = 0;
        else if (t->handles[page] == 0)
            continue;
        else if (step(t, "releasing memory", call->vm_release(t->handles[page])))
            t->handles[page] = 0;
        else
            well = 0;
    }
    if (well && t->address != NULL)
        well = step(t, "giving addresses back", call->vm_unreserve(t->address, PLACES * t->page));
    if (!well)
        return 0;
    t->address = NULL;
    if (t->stream != NULL)
        well = step(t, "destroying a stream", call->stream_destroy(t->stream));
    return well;
}

static void say_failure(mo_gpu_device *gpu, const char *what, int code)
{
    const mo_gpu_vendor *vendor = gpu->driver->vendor;
    vendor->clear_error(gpu->driver);
    if (code == MO_GPU_SUCCESS)
        snprintf(gpu->no_map, sizeof gpu->no_map, "%s", what);
    else
        snprintf(gpu->no_map, sizeof gpu->no_map, "%s: %s (%d)", what,
                 vendor->error_name(gpu->driver, code), code);
    mo_log(MEMOPT_LOG_WARNING, "%s:%d: no virtual memory: %s", vendor->name, gpu->index,
           gpu->no_map);
}

/* Virtual memory works, and whether a handle costs a descriptor. A failure that ends the device
 * is the opening's. */
static int try_vm(mo_gpu_scope *in)
{
    mo_gpu_device *gpu = in->gpu;
    trial t = {.in = in, .page = gpu->granularity, .at = {-1, -1}};
    char what[96];
    int earlier = mo_gpu_relax(gpu), well = run_trial(&t);
    const char *failed = t.what;
    int code = t.code;
    if (!end_trial(&t)) {
        failed = well ? t.what : failed;
        code = well ? t.code : code;
        well = 0;
        (void)end_trial(&t); /* a refusal may have been for once */
    }
    mo_gpu_restrict(gpu, earlier);
    gpu->handle_files = t.descriptors == PAGES;
    if (mo_gpu_code_is_fatal(code))
        in->code = code;
    if (well)
        return 1;
    snprintf(what, sizeof what, "the test at open failed: %s", failed);
    say_failure(gpu, what, code);
    return 0;
}

/* Pre: the driver can map memory. At least LEAST_GRANULARITY, in whole granules of the driver. */
static int ask_granularity(const mo_gpu_scope *in)
{
    mo_gpu_device *gpu = in->gpu;
    mo_gpu_allocation allocation = mo_gpu_allocation_of(gpu);
    size_t granularity = 0;
    int code = in->call->vm_granularity(&granularity, &allocation, MO_GPU_GRANULARITY_MINIMUM);
    if (code == MO_GPU_SUCCESS && granularity != 0 &&
        mo_round_up_u64(LEAST_GRANULARITY, granularity, &gpu->granularity))
        return 1;
    say_failure(gpu, "the driver tells no granularity", code);
    return 0;
}

/* Larger pages while the whole memory needs more descriptors than the process may have. */
static void spare_descriptors(mo_gpu_device *gpu)
{
    uint64_t limit, most = mo_gpu_most_handles(&limit);
    while (gpu->granularity < MOST_GRANULARITY && gpu->total_memory / gpu->granularity > most)
        gpu->granularity *= 2;
}

void mo_gpu_check_vm(mo_gpu_scope *in)
{
    mo_gpu_device *gpu = in->gpu;
    const mo_gpu_vendor *vendor = gpu->driver->vendor;
    MO_PRE(in->entered);
    gpu->granularity = LEAST_GRANULARITY;
    gpu->can_map = gpu->can_map && mo_gpu_has(gpu->driver, MO_GPU_GROUP_VM);
    if (gpu->can_map && vendor->distrust_vm != NULL)
        vendor->distrust_vm(gpu);
    gpu->can_map = gpu->can_map && gpu->no_map[0] == '\0' && ask_granularity(in) &&
                   (vendor->distrust_vm == NULL || try_vm(in));
    if (!gpu->can_map)
        gpu->granularity = LEAST_GRANULARITY;
    else if (gpu->handle_files)
        spare_descriptors(gpu);
}
