/*
 * How much memory the allocator holds for lists of operations, and what it asks of the driver.
 *
 *     held_memory [--device NAME] [--config TEXT] [--lag D|inf] [--scale F,F...] [--above PAGES]
 *                 [--together N] [--streams own|shared] TRACE.csv[.gz]...
 *
 * All sizes of a trace are multiplied by each factor. A row has, over the peak of live bytes: what
 * is held at most in the first pass and in the second, the pages that blocks touched at most, and
 * the smallest memory that the first pass completes in; driver calls per 1,000 events of the
 * second pass with room; at the smallest memory the pages that moved per 1,000 events, and how many
 * calls each took: to unmap it, to map it and for its access; how often the host waited in a pass
 * with room and at the smallest memory, how many of those left the device without work, and how long
 * the latter waits were, in operations; and how many of the next PAGES larger memories it does not
 * complete in. The last rows are the geometric mean (of counts, the plain one) and the worst.
 *
 * --together plays all traces at once with one allocator, as libraries in one process do, N operations of the
 * longest in turn; each has streams of its own or, shared, those with the same numbers.
 *
 * With a lag (memopt_device_options::lag), the device's work is D allocations and frees behind the
 * host; without one all streams are idle. Nothing passes or fails.
 */
#include "memopt/memopt.h"

#include "base/checked.h"
#include "bench/recorded.h"
#include "device/cpu/cpu.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE (UINT64_C(2) << 20)

enum { MOST_SCALES = 16, TOUCH_SLOTS = 1 << 18 };

static const char *device_name = "cpu", *config = "expandable_segments:True";
static uint64_t above = 16, lag;

static void need(memopt_status status, const char *what)
{
    if (status == MEMOPT_OK)
        return;
    fprintf(stderr, "held_memory: %s: %s\n", what, memopt_last_error());
    exit(1);
}

#define NEED(call) need((call), #call)

/* --- counting the driver's calls -------------------------------------------------------------- */

static struct {
    const mo_device_ops *real;
    mo_device_ops counted;
    uint64_t all, created, mapped, unmapped;
    uint64_t moved, moves; /* pages that were mapped without being made, and calls for them */
} driver;

static memopt_status count_create(memopt_device *device, uint64_t size, mo_vm_handle *out_handle)
{
    driver.all++;
    driver.created++;
    return driver.real->vm_create(device, size, out_handle);
}

static memopt_status count_map(memopt_device *device, void *address, uint64_t size,
                               mo_vm_handle handle)
{
    driver.all++;
    driver.mapped++;
    return driver.real->vm_map(device, address, size, handle);
}

static memopt_status count_access(memopt_device *device, void *address, uint64_t size)
{
    driver.all++;
    if (driver.mapped > driver.created + driver.moved) {
        driver.moves += driver.mapped - driver.created - driver.moved + 1;
        driver.moved = driver.mapped - driver.created;
    }
    return driver.real->vm_set_access(device, address, size);
}

static memopt_status count_unmap(memopt_device *device, void *address, uint64_t size)
{
    driver.all++;
    driver.unmapped++;
    driver.moves++;
    return driver.real->vm_unmap(device, address, size);
}

static memopt_status count_unmap_run(memopt_device *device, void *address, uint64_t size,
                                     uint64_t mapping)
{
    memopt_status status = driver.real->vm_unmap_run(device, address, size, mapping);
    driver.all += status != MEMOPT_UNSUPPORTED;
    driver.moves += status != MEMOPT_UNSUPPORTED;
    driver.unmapped += status != MEMOPT_UNSUPPORTED ? size / mapping : 0;
    return status;
}

static memopt_status count_release(memopt_device *device, mo_vm_handle handle, uint64_t size)
{
    driver.all++;
    return driver.real->vm_release(device, handle, size);
}

static void count_calls_of(memopt_device *device)
{
    driver.real = device->ops;
    driver.counted = *device->ops;
    driver.counted.vm_create = count_create;
    driver.counted.vm_map = count_map;
    driver.counted.vm_set_access = count_access;
    driver.counted.vm_unmap = count_unmap;
    if (driver.real->vm_unmap_run != NULL)
        driver.counted.vm_unmap_run = count_unmap_run;
    driver.counted.vm_release = count_release;
    device->ops = &driver.counted;
    driver.all = driver.created = driver.mapped = driver.unmapped = driver.moved = driver.moves = 0;
}

/* --- pages that blocks touch ------------------------------------------------------------------ */

static struct {
    uintptr_t page[TOUCH_SLOTS];
    uint32_t blocks[TOUCH_SLOTS];
    uint64_t now, most;
} touched;

static void touch(const char *address, uint64_t bytes, int begins)
{
    uintptr_t page = (uintptr_t)address / PAGE, last = ((uintptr_t)address + bytes - 1) / PAGE;
    for (; page <= last; page++) {
        uint64_t slot = (uint64_t)page * UINT64_C(0x9E3779B97F4A7C15) >> 46;
        while (touched.page[slot] != 0 && touched.page[slot] != page)
            slot = (slot + 1) % TOUCH_SLOTS;
        touched.page[slot] = page;
        if (begins)
            touched.now += touched.blocks[slot]++ == 0;
        else
            touched.now -= --touched.blocks[slot] == 0;
    }
    touched.most = mo_max_u64(touched.most, touched.now);
}

/* --- a pass ----------------------------------------------------------------------------------- */

typedef struct machine {
    const recorded *trace;
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_stream *streams;
    struct {
        void *address;
        uint64_t bytes;
        int used;
    } * blocks;
} machine;

static void open_machine(machine *m, const recorded *trace, uint64_t capacity)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    options.capacity = capacity;
    options.threads = 1;
    options.lag = lag;
    m->trace = trace;
    NEED(memopt_device_open(device_name, strcmp(device_name, "cpu") == 0 ? &options : NULL,
                            &m->device));
    count_calls_of(m->device);
    NEED(memopt_allocator_create(m->device, config, NULL, &m->allocator));
    NEED(memopt_allocator_set_limit(m->allocator, capacity));
    m->streams = calloc(trace->stream_count, sizeof *m->streams);
    m->blocks = calloc(trace->slots, sizeof *m->blocks);
    if (m->streams == NULL || m->blocks == NULL)
        abort();
    for (uint64_t i = 1; i < trace->stream_count; i++)
        NEED(memopt_stream_create(m->device, &m->streams[i]));
    memset(&touched, 0, sizeof touched);
}

static void close_machine(machine *m)
{
    NEED(memopt_allocator_destroy_force(m->allocator));
    for (uint64_t i = 1; i < m->trace->stream_count; i++)
        NEED(memopt_stream_destroy(m->device, m->streams[i]));
    NEED(memopt_device_close(m->device));
    free(m->streams);
    free(m->blocks);
}

static void free_block(machine *m, uint64_t block)
{
    if (m->blocks[block].address == NULL)
        return;
    touch(m->blocks[block].address, m->blocks[block].bytes, 0);
    NEED(memopt_allocator_free(m->allocator, m->blocks[block].address));
    if (m->blocks[block].used && lag == 0)
        NEED(memopt_device_sync(m->device));
    m->blocks[block].address = NULL;
    m->blocks[block].used = 0;
}

/* 0 if memory ran out. */
static int do_step(machine *m, const recorded_step *step)
{
    void **address = &m->blocks[step->block].address;
    if (step->action == RECORDED_USE) {
        m->blocks[step->block].used = 1;
        NEED(memopt_allocator_record_stream(m->allocator, *address, m->streams[step->stream]));
        return 1;
    }
    if (step->action == RECORDED_FREE) {
        free_block(m, step->block);
        return 1;
    }
    memopt_status status = memopt_allocator_alloc(m->allocator, step->bytes, MEMOPT_TAG_OTHER,
                                                  m->streams[step->stream], address);
    if (status == MEMOPT_OUT_OF_DEVICE_MEMORY)
        return 0;
    need(status, "alloc");
    m->blocks[step->block].bytes = step->bytes;
    touch(*address, step->bytes, 1);
    return 1;
}

static mo_cpu_lag_stats waits_of(const machine *m)
{
    static const mo_cpu_lag_stats none = {0, 0, 0, 0, 0};
    return strcmp(device_name, "cpu") == 0 ? mo_cpu(m->device)->waits : none;
}

/* All events, then frees of what lives; 0 if memory ran out. */
static int pass(machine *m)
{
    uint64_t at = 0;
    while (at < m->trace->count && do_step(m, &m->trace->steps[at]))
        at++;
    for (uint64_t i = 0; i < m->trace->slots; i++)
        free_block(m, i);
    return at == m->trace->count;
}

static uint64_t held_at_most(const machine *m)
{
    uint64_t bytes = 0;
    NEED(memopt_allocator_get_stat(m->allocator, "reserved_bytes.all.peak", &bytes));
    return bytes;
}

static int completes_in(const recorded *trace, uint64_t pages)
{
    machine m;
    open_machine(&m, trace, pages * PAGE);
    int completed = pass(&m);
    close_machine(&m);
    return completed;
}

/* --- a row ------------------------------------------------------------------------------------ */

enum {
    HELD,
    HELD_LATER,
    TOUCHED,
    CAPACITY,
    RATIOS,
    CALLS = RATIOS,
    GROWTH,
    MOVED,
    SPARING,
    WAITS,
    LIMIT_WAITS,
    DRAINS,
    WAITED,
    FAILED,
    COLUMNS
};

static void with_room(const recorded *trace, uint64_t peak, double *row)
{
    machine m;
    open_machine(&m, trace, mo_max_u64(4 * peak, UINT64_C(4) << 30));
    if (!pass(&m))
        abort();
    row[HELD] = (double)held_at_most(&m);
    row[TOUCHED] = (double)(touched.most * PAGE);
    row[WAITS] = (double)waits_of(&m).waits;
    uint64_t handles = mo_ceil_div_u64((uint64_t)row[HELD], 20 << 20);
    row[GROWTH] = (double)driver.all / (3 * (double)handles);
    NEED(memopt_allocator_reset_peaks(m.allocator));
    uint64_t before = driver.all;
    if (!pass(&m))
        abort();
    row[CALLS] = (double)(driver.all - before) * 1000 / (double)trace->count;
    row[HELD_LATER] = (double)held_at_most(&m);
    close_machine(&m);
}

static uint64_t smallest(const recorded *trace, uint64_t peak, uint64_t held)
{
    uint64_t low = (peak - 1) / PAGE, high = held / PAGE;
    while (!completes_in(trace, high))
        high++;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (completes_in(trace, middle))
            high = middle;
        else
            low = middle;
    }
    return high;
}

static void at_the_limit(const recorded *trace, uint64_t pages, double *row)
{
    machine m;
    open_machine(&m, trace, pages * PAGE);
    (void)pass(&m);
    row[MOVED] = (double)driver.unmapped * 1000 / (double)trace->count;
    row[SPARING] = driver.moved > 0 ? (double)driver.moves / (double)driver.moved : 0;
    mo_cpu_lag_stats waits = waits_of(&m);
    row[LIMIT_WAITS] = (double)waits.waits;
    row[DRAINS] = (double)waits.drains;
    row[WAITED] = waits.waits > 0 ? (double)waits.waited / (double)waits.waits : 0;
    close_machine(&m);
    row[FAILED] = 0;
    for (uint64_t more = 1; more <= above; more++)
        row[FAILED] += !completes_in(trace, pages + more);
}

static uint64_t peak_of(const recorded *trace)
{
    uint64_t live = 0, peak = 0, *bytes = calloc(trace->slots, sizeof *bytes);
    if (bytes == NULL)
        abort();
    for (uint64_t i = 0; i < trace->count; i++) {
        const recorded_step *step = &trace->steps[i];
        if (step->action == RECORDED_USE)
            continue;
        if (step->action == RECORDED_FREE)
            live -= bytes[step->block];
        else
            live += bytes[step->block] = step->bytes;
        peak = mo_max_u64(peak, live);
    }
    free(bytes);
    return peak;
}

static void measure(const recorded *trace, double *row)
{
    uint64_t peak = peak_of(trace);
    with_room(trace, peak, row);
    uint64_t pages = smallest(trace, peak, (uint64_t)row[HELD]);
    row[CAPACITY] = (double)(pages * PAGE);
    at_the_limit(trace, pages, row);
    for (int i = 0; i < RATIOS; i++)
        row[i] /= (double)peak;
}

/* --- the table -------------------------------------------------------------------------------- */

static void print_row(const char *name, double scale, const double *row)
{
    printf("| %s", name);
    if (scale != 1)
        printf(" × %g", scale);
    for (int i = 0; i < COLUMNS; i++)
        printf(i < RATIOS ? " | %.4f" : " | %.3g", row[i]);
    printf(" |\n");
    fflush(stdout);
}

typedef struct table {
    double sum[COLUMNS], worst[COLUMNS];
    uint64_t rows;
} table;

static void add_row(table *t, const double *row)
{
    t->rows++;
    for (int i = 0; i < COLUMNS; i++) {
        t->sum[i] += i < RATIOS ? log(row[i]) : row[i];
        t->worst[i] = row[i] > t->worst[i] ? row[i] : t->worst[i];
    }
}

static void do_trace(recorded *trace, const char *shown, const double *scales, table *t)
{
    double row[COLUMNS];
    uint64_t *bytes = calloc(trace->count, sizeof *bytes);
    for (uint64_t i = 0; i < trace->count; i++)
        bytes[i] = trace->steps[i].bytes;
    for (; *scales > 0; scales++) {
        for (uint64_t i = 0; i < trace->count; i++)
            if (trace->steps[i].action == RECORDED_ALLOC)
                trace->steps[i].bytes = (uint64_t)fmax(1, round((double)bytes[i] * *scales));
        measure(trace, row);
        print_row(shown, *scales, row);
        add_row(t, row);
    }
    free(bytes);
    recorded_end(trace);
}

/* A file's name without what is behind the first dot. */
static void add_name(char *names, size_t size, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    size_t used = strlen(names), length = strcspn(name, ".");
    snprintf(names + used, size - used, "%s%.*s", used > 0 ? " + " : "",
             (int)(length < 60 ? length : 60), name);
}

static void do_together(char **paths, int count, uint64_t burst, int own, const double *scales,
                        table *t)
{
    char names[1024] = "";
    recorded *programs = calloc((size_t)count, sizeof *programs);
    for (int i = 0; i < count; i++) {
        programs[i] = recorded_read(paths[i]);
        add_name(names, sizeof names, paths[i]);
    }
    recorded all = recorded_together(programs, count, burst, own);
    for (int i = 0; i < count; i++)
        recorded_end(&programs[i]);
    free(programs);
    do_trace(&all, names, scales, t);
}

static void parse_scales(const char *text, double *scales)
{
    for (int i = 0; i < MOST_SCALES && *text != 0; i++) {
        char *end;
        scales[i] = strtod(text, &end);
        text = *end == ',' ? end + 1 : end;
        if (end == text && *end != 0)
            exit(2);
    }
}

int main(int count, char **arguments)
{
    double scales[MOST_SCALES + 1] = {1};
    table t = {0};
    uint64_t together = 0;
    int at = 1, own = 1;
    for (; at + 1 < count && arguments[at][0] == '-'; at += 2) {
        const char *name = arguments[at], *value = arguments[at + 1];
        if (strcmp(name, "--device") == 0)
            device_name = value;
        else if (strcmp(name, "--config") == 0)
            config = value;
        else if (strcmp(name, "--lag") == 0)
            lag = strcmp(value, "inf") == 0 ? UINT64_MAX : strtoull(value, NULL, 10);
        else if (strcmp(name, "--above") == 0)
            above = strtoull(value, NULL, 10);
        else if (strcmp(name, "--together") == 0)
            together = strtoull(value, NULL, 10);
        else if (strcmp(name, "--streams") == 0)
            own = strcmp(value, "shared") != 0;
        else if (strcmp(name, "--scale") == 0)
            parse_scales(value, scales);
        else
            return 2;
    }
    printf("| trace | held | second pass | touched | smallest memory | calls | growth ÷ 20 MiB | "
           "moved | calls a page | waits | at the limit | drains | waited | fails above |\n"
           "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    if (together > 0 && at < count)
        do_together(arguments + at, count - at, together, own, scales, &t), at = count;
    for (; at < count; at++) {
        char name[64] = "";
        recorded trace = recorded_read(arguments[at]);
        add_name(name, sizeof name, arguments[at]);
        do_trace(&trace, name, scales, &t);
    }
    for (int i = 0; i < COLUMNS; i++)
        t.sum[i] = i < RATIOS ? exp(t.sum[i] / (double)t.rows) : t.sum[i] / (double)t.rows;
    print_row("mean", 1, t.sum);
    print_row("worst", 1, t.worst);
    return 0;
}
