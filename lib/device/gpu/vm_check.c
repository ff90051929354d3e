/*
 * Whether a device's virtual memory is used: the driver has the calls, the device says that it can,
 * the vendor does not distrust the driver's version, and a trial at open went well. Otherwise the
 * device has plain allocations, and no_map says why.
 *
 * The trial does what expandable segments do, in two reservations at once: a page that was mapped
 * goes back, a mapping grows by a second page, one call fills and one call copies what both hold,
 * and the first page moves to the other reservation. It takes three pages of 2 MiB (two more, until
 * it is over, with a driver that keeps them) and some dozen driver calls.
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

/* Places of pages: the first reservation's, then the second's. */
enum { PAGES = 3, HOME = 2, AWAY = 5, PLACES = HOME + AWAY, SAMPLE = 64 };

typedef struct trial {
    const mo_gpu_scope *in;
    mo_gpu_stream stream;
    char *home, *away; /* HOME and AWAY pages */
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

static char *at(const trial *t, int place)
{
    return place < HOME ? t->home + (size_t)place * t->page
                        : t->away + (size_t)(place - HOME) * t->page;
}

static int create_page(trial *t, int page)
{
    int before = free_descriptor();
    int code = mo_gpu_create(t->in->gpu, t->page, &t->handles[page]);
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
    char *address = at(t, place);
    if (!step(t, "mapping", call->vm_map(address, t->page, 0, t->handles[page], 0)))
        return 0;
    t->at[page] = place;
    return step(t, what, call->vm_set_access(address, t->page, &access, 1));
}

static int unmap_page(trial *t, int page)
{
    char *address = at(t, t->at[page]);
    if (!step(t, "unmapping", t->in->call->vm_unmap(address, t->page)))
        return 0;
    t->at[page] = -1;
    return 1;
}

/* Both ends of the page. */
static int write_page(trial *t, int page)
{
    const mo_gpu_calls *call = t->in->call;
    char *address = at(t, t->at[page]);
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
    char *address = at(t, t->at[page]);
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

static int reserve(trial *t, char **out, int pages)
{
    void *address = NULL;
    int code = t->in->call->vm_reserve(&address, (size_t)pages * t->page, 0, NULL, 0);
    *out = code == MO_GPU_SUCCESS ? address : NULL;
    return step(t, "reserving", code);
}

static int release_page(trial *t, int page)
{
    if (!step(t, "releasing memory", t->in->call->vm_release(t->handles[page])))
        return 0;
    t->handles[page] = 0;
    return 1;
}

/* ROCm 6.4 to 7.2 keep released memory while the addresses that it was mapped to are reserved
 * (legacy-rocm-build#6021, hip#3781): a trim or a pause would give nothing back. Another program
 * may take memory meanwhile, so the driver is trusted if one of the tries loses nothing. */
static int gives_back(trial *t)
{
    for (int place = HOME + 2; place < PLACES; place++) {
        size_t before = 0, after = 0, total = 0;
        if (!step(t, "asking for free memory", t->in->call->memory_info(&before, &total)) ||
            !create_page(t, 0) || !map_page(t, 0, place, "setting access") || !unmap_page(t, 0) ||
            !release_page(t, 0) ||
            !step(t, "asking for free memory", t->in->call->memory_info(&after, &total)))
            return 0;
        if (after + t->page > before)
            return 1;
    }
    t->what = "released memory stays in use while its addresses are reserved";
    return 0;
}

/* Fills around the seam of the pages at places 0 and 1 with one call. */
static int fill_seam(trial *t)
{
    const mo_gpu_calls *call = t->in->call;
    return step(t, "filling across two mappings",
                call->fill(at(t, 1) - 2 * SAMPLE, PAGES + 1, 4 * SAMPLE, t->stream)) &&
           step(t, "filling across two mappings", call->stream_sync(t->stream));
}

/* One copy finds what fill_seam and then write_page of both pages have written. HIP refuses copies
 * across reservations (intel/llvm#22671), which no block needs. */
static int read_seam(trial *t)
{
    mo_gpu_device *gpu = t->in->gpu;
    unsigned char found[4 * SAMPLE] = {0};
    const unsigned char expected[4] = {PAGES + 1, 1, 2, PAGES + 1};
    const char *from = at(t, 1) - 2 * SAMPLE;
    int code = gpu->driver->vendor->copy(gpu, found, from, sizeof found, t->stream);
    if (!step(t, "copying across two mappings", code) ||
        !step(t, "copying across two mappings", t->in->call->stream_sync(t->stream)))
        return 0;
    for (size_t i = 0; i < sizeof found; i++)
        if (found[i] != expected[i / SAMPLE]) {
            t->what = "what was written across two mappings is lost";
            return 0;
        }
    return 1;
}

/* Pre: there are a stream and addresses. */
static int try_moves(trial *t)
{
    return create_page(t, 0) && map_page(t, 0, 0, "setting access") && write_page(t, 0) &&
           read_page(t, 0) && create_page(t, 1) &&
           map_page(t, 1, 1, "setting access on a grown range") && fill_seam(t) &&
           write_page(t, 0) && write_page(t, 1) && read_page(t, 1) && read_page(t, 0) &&
           read_seam(t) && unmap_page(t, 0) &&
           map_page(t, 0, HOME, "setting access on moved memory") && read_page(t, 0) &&
           read_page(t, 1) && create_page(t, 2) &&
           map_page(t, 2, HOME + 1, "setting access on a grown range beside another one") &&
           write_page(t, 2) && read_page(t, 2);
}

static int run_trial(trial *t)
{
    int code = t->in->call->stream_create(&t->stream, MO_GPU_STREAM_NON_BLOCKING);
    return step(t, "creating a stream", code) && reserve(t, &t->home, HOME) &&
           reserve(t, &t->away, AWAY) && try_moves(t) && unmap_page(t, 0) && release_page(t, 0) &&
           gives_back(t);
}

static int unreserve(trial *t, char **address, int pages)
{
    if (*address == NULL)
        return 1;
    if (!step(t, "giving addresses back",
              t->in->call->vm_unreserve(*address, (size_t)pages * t->page)))
        return 0;
    *address = NULL;
    return 1;
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
        else
            well = release_page(t, page) && well;
    }
    if (!well || !unreserve(t, &t->home, HOME) || !unreserve(t, &t->away, AWAY))
        return 0;
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
    trial t = {.in = in, .page = gpu->granularity, .at = {-1, -1, -1}};
    char what[96];
    int earlier, well = step(&t, "relaxing the capture mode", mo_gpu_relax(gpu, &earlier));
    well = well && run_trial(&t);
    const char *failed = t.what;
    int code = t.code;
    if (!end_trial(&t)) {
        failed = well ? t.what : failed;
        code = well ? t.code : code;
        well = 0;
        (void)end_trial(&t); /* a refusal may have been for once */
    }
    mo_gpu_restrict(gpu, earlier);
    gpu->handle_files = t.descriptors >= PAGES;
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
    if (code != MO_GPU_SUCCESS && allocation.handle_types != 0) {
        allocation.handle_types = 0;
        atomic_store(&gpu->files, 0);
        code = in->call->vm_granularity(&granularity, &allocation, MO_GPU_GRANULARITY_MINIMUM);
    }
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
