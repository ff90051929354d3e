/*
 * Replays a recorded trace of allocations and prints what it took, as one JSON object.
 *
 *   replay [--config STRING] [--capacity SIZE] [--find-capacity] [--passes N] [FILE]
 *
 * FILE (standard input if left out) is CSV with the header Thread,Time,Action,Pointer,Size,Stream;
 * sizes are bytes, actions allocate and free. Keys: peak_live_bytes (requested),
 * peak_reserved_bytes and ratio of both on a device of `capacity` (64 GiB if not given);
 * ns_per_event of the first pass and of the best warm one; smallest_capacity_bytes with
 * --find-capacity.
 *
 * The search is a bisection over pages from the peak of live bytes up. It assumes that a capacity
 * above one that completes completes too, which traces of varying shapes can break by a page or so.
 */
#include <memopt/memopt.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAGE ((uint64_t)2 << 20)
#define UNLIMITED ((uint64_t)64 << 30)

typedef struct event {
    uint64_t bytes; /* 0: a free */
    uint32_t block; /* which allocation of the trace */
    uint32_t stream;
} event;

typedef struct trace {
    event *events;
    size_t count, room;
    uint32_t blocks, streams;
    uint64_t peak_live;
} trace;

/* Pointers alive while the trace is read: open addressing, tombstones kept. */
typedef struct alive {
    uint64_t pointer;
    uint64_t bytes;
    uint32_t block;
} alive;

enum { ALIVE_SLOTS = 1 << 20 };
static alive table[ALIVE_SLOTS];

static void stop(const char *what)
{
    fprintf(stderr, "replay: %s\n", what);
    exit(2);
}

static void need(memopt_status status)
{
    if (status != MEMOPT_OK)
        stop(memopt_last_error());
}

static alive *find(uint64_t pointer)
{
    uint64_t i = (pointer * UINT64_C(0x9E3779B97F4A7C15)) >> 44;
    for (uint64_t probes = 0; probes < ALIVE_SLOTS; probes++, i = (i + 1) % ALIVE_SLOTS)
        if (table[i].pointer == pointer || table[i].pointer == 0)
            return &table[i];
    stop("too many pointers in the trace");
    return NULL;
}

static void add_event(trace *t, event e)
{
    if (t->count == t->room) {
        t->room = t->room ? t->room * 2 : 4096;
        t->events = realloc(t->events, t->room * sizeof *t->events);
        if (t->events == NULL)
            stop("out of host memory");
    }
    t->events[t->count++] = e;
}

static void add_line(trace *t, const char *line, uint64_t *live)
{
    char action[16];
    uint64_t pointer, bytes;
    uint32_t stream;
    if (sscanf(line, "%*u,%*u,%15[a-z],%" SCNx64 ",%" SCNu64 ",%" SCNu32, action, &pointer, &bytes,
               &stream) != 4)
        stop("a line is not Thread,Time,Action,Pointer,Size,Stream");
    alive *entry = find(pointer);
    if (stream >= t->streams)
        t->streams = stream + 1;
    if (strcmp(action, "allocate") == 0) {
        if (bytes == 0)
            return;
        *entry = (alive){pointer, bytes, t->blocks++};
        add_event(t, (event){bytes, entry->block, stream});
        *live += bytes;
        if (*live > t->peak_live)
            t->peak_live = *live;
    } else if (entry->bytes != 0) {
        add_event(t, (event){0, entry->block, stream});
        *live -= entry->bytes;
        entry->bytes = 0;
    }
}

static void load(trace *t, FILE *file)
{
    char line[256];
    uint64_t live = 0;
    if (fgets(line, sizeof line, file) == NULL || strncmp(line, "Thread,", 7) != 0)
        stop("the file does not begin with the header Thread,Time,Action,Pointer,Size,Stream");
    while (fgets(line, sizeof line, file) != NULL)
        add_line(t, line, &live);
    if (t->streams > 64)
        stop("more than 64 streams");
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time); /* what others run does not count */
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

typedef struct setup {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_stream streams[64];
    void **blocks;
} setup;

static setup begin(const trace *t, const char *config, uint64_t capacity)
{
    setup s = {0};
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    options.capacity = capacity;
    options.threads = 1;
    need(memopt_device_open("cpu", &options, &s.device));
    need(memopt_allocator_create(s.device, config, NULL, &s.allocator));
    for (uint32_t i = 1; i < t->streams; i++) /* 0 is the default stream */
        need(memopt_stream_create(s.device, &s.streams[i]));
    s.blocks = calloc(t->blocks + 1, sizeof *s.blocks);
    if (s.blocks == NULL)
        stop("out of host memory");
    return s;
}

static void end(const trace *t, setup *s)
{
    need(memopt_allocator_destroy(s->allocator));
    for (uint32_t i = 1; i < t->streams; i++)
        need(memopt_stream_destroy(s->device, s->streams[i]));
    need(memopt_device_close(s->device));
    free(s->blocks);
}

/* One pass; 0 if it ran out of memory. Frees what the trace leaves. */
static int pass(const trace *t, setup *s, double *out_ns)
{
    int complete = 1;
    double start = now();
    for (size_t i = 0; i < t->count; i++) {
        const event *e = &t->events[i];
        if (e->bytes == 0) {
            need(memopt_allocator_free(s->allocator, s->blocks[e->block]));
            s->blocks[e->block] = NULL;
            continue;
        }
        memopt_status status = memopt_allocator_alloc(s->allocator, e->bytes, MEMOPT_TAG_OTHER,
                                                      s->streams[e->stream], &s->blocks[e->block]);
        if (status == MEMOPT_OUT_OF_DEVICE_MEMORY) {
            complete = 0;
            break;
        }
        need(status);
    }
    *out_ns = now() - start;
    for (uint32_t i = 0; i < t->blocks; i++) {
        need(memopt_allocator_free(s->allocator, s->blocks[i]));
        s->blocks[i] = NULL;
    }
    return complete;
}

static int completes(const trace *t, const char *config, uint64_t capacity)
{
    double ns;
    setup s = begin(t, config, capacity);
    int complete = pass(t, &s, &ns);
    end(t, &s);
    return complete;
}

static uint64_t smallest_capacity(const trace *t, const char *config, uint64_t enough)
{
    uint64_t low = t->peak_live / PAGE,
             high = (enough + PAGE - 1) / PAGE; /* low may be too small */
    if (low > 0)
        low--;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (completes(t, config, middle * PAGE))
            high = middle;
        else
            low = middle;
    }
    return high * PAGE;
}

static uint64_t stat_of(const setup *s, const char *name)
{
    uint64_t value;
    need(memopt_allocator_stat(s->allocator, name, &value));
    return value;
}

int main(int argc, char **argv)
{
    static trace t;
    const char *config = "", *path = NULL;
    uint64_t capacity = UNLIMITED;
    int find_capacity = 0, passes = 5;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
            config = argv[++i];
        else if (strcmp(argv[i], "--capacity") == 0 && i + 1 < argc)
            need(memopt_parse_size(argv[++i], &capacity));
        else if (strcmp(argv[i], "--passes") == 0 && i + 1 < argc)
            passes = atoi(argv[++i]);
        else if (strcmp(argv[i], "--find-capacity") == 0)
            find_capacity = 1;
        else if (argv[i][0] != '-' && path == NULL)
            path = argv[i];
        else
            stop("usage: replay [--config S] [--capacity SIZE] [--find-capacity] [--passes N] "
                 "[FILE]");
    }
    FILE *file = path != NULL ? fopen(path, "r") : stdin;
    if (file == NULL)
        stop("the trace cannot be opened");
    load(&t, file);
    setup s = begin(&t, config, capacity);
    double cold, warm = 0, ns;
    int complete = pass(&t, &s, &cold);
    uint64_t reserved = stat_of(&s, "reserved_bytes.all.peak");
    uint64_t calls = stat_of(&s, "num_device_alloc") + stat_of(&s, "num_device_free");
    uint64_t retries = stat_of(&s, "num_alloc_retries");
    for (int i = 0; i < passes && complete; i++) {
        (void)pass(&t, &s, &ns);
        warm = i == 0 || ns < warm ? ns : warm;
    }
    end(&t, &s);
    printf("{\"config\": \"%s\", \"capacity_bytes\": %" PRIu64 ", \"events\": %zu, "
           "\"peak_live_bytes\": %" PRIu64 ", \"peak_reserved_bytes\": %" PRIu64
           ", \"ratio\": %.4f, \"out_of_memory\": %s, \"device_calls\": %" PRIu64
           ", \"retries\": %" PRIu64 ", \"ns_per_event_cold\": %.1f, \"ns_per_event\": %.1f",
           config, capacity, t.count, t.peak_live, reserved, (double)reserved / (double)t.peak_live,
           complete ? "false" : "true", calls, retries, cold / (double)t.count,
           warm / (double)t.count);
    if (find_capacity) {
        uint64_t smallest = smallest_capacity(&t, config, reserved);
        printf(", \"smallest_capacity_bytes\": %" PRIu64 ", \"smallest_capacity_ratio\": %.4f",
               smallest, (double)smallest / (double)t.peak_live);
    }
    printf("}\n");
    free(t.events);
    if (file != stdin)
        fclose(file);
    return complete ? 0 : 1;
}
