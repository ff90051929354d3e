/* The simulator's settings, fault injection, call sites and the list of violations. */
#include "core/sim.h"

#include "core/control.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SITES_PER_BLOCK = 4096, SITE_BLOCKS = 16384, MOST_VIOLATIONS = 64, MOST_FAULTS = 16 };

typedef struct fault {
    char call[64]; /* "*": any */
    int64_t countdown;
    int32_t code;
} fault;

pthread_mutex_t sim_lock = PTHREAD_MUTEX_INITIALIZER;
sim_config sim_options;
sim_device sim_devices[SIM_DEVICES];
sim_arena sim_host;
sim_stream *sim_streams;
sim_clock sim_host_clock;

static int initialised;
static uint64_t random_state;
static fault faults[MOST_FAULTS];
static int64_t calls;
static int32_t lost_code; /* not 0: the device is lost */
static sim_site *site_blocks[SITE_BLOCKS];
static uint32_t site_count = 1; /* 0: no site */
static char *violations[MOST_VIOLATIONS];
static uint32_t violation_count;
static __thread const char *current_call;
static __thread int in_host_function;

/* --- settings ------------------------------------------------------------------------------ */

static uint64_t read_number(const char *name, uint64_t missing)
{
    const char *text = getenv(name);
    char *end = NULL;
    if (text == NULL || *text == '\0')
        return missing;
    uint64_t value = strtoull(text, &end, 0);
    if (*end == 'K' || *end == 'k')
        return value << 10;
    if (*end == 'M' || *end == 'm')
        return value << 20;
    if (*end == 'G' || *end == 'g')
        return value << 30;
    return value;
}

static const char *read_text(const char *name, const char *missing)
{
    const char *text = getenv(name);
    return text != NULL && *text != '\0' ? text : missing;
}

static void read_capability(void)
{
    const char *text = read_text("MEMOPT_SIM_CAPABILITY", "8.0");
    unsigned major = 8, minor = 0;
    (void)sscanf(text, "%u.%u", &major, &minor);
    sim_options.major = major;
    sim_options.minor = minor;
}

/* "cuMemCreate:3=2,*:40": the third call of cuMemCreate fails with 2, the fortieth of any. */
static void read_faults(void)
{
    char *text = strdup(read_text("MEMOPT_SIM_FAIL", ""));
    char *rest = NULL;
    for (char *item = strtok_r(text, ",", &rest); item != NULL; item = strtok_r(NULL, ",", &rest)) {
        char *colon = strchr(item, ':');
        if (colon == NULL)
            continue;
        char *equals = strchr(colon, '=');
        *colon = '\0';
        memopt_sim_fail_at(item, strtoll(colon + 1, NULL, 0),
                           equals != NULL ? (int32_t)strtol(equals + 1, NULL, 0) : 0);
    }
    free(text);
}

static void read_options(void)
{
    sim_options.devices = (int)read_number("MEMOPT_SIM_DEVICES", 2);
    if (sim_options.devices > SIM_DEVICES)
        sim_options.devices = SIM_DEVICES;
    sim_options.total = read_number("MEMOPT_SIM_MEMORY", (uint64_t)1 << 30);
    sim_options.warp_size = (uint32_t)read_number("MEMOPT_SIM_WARP", sim_is_hip ? 64 : 32);
    sim_options.driver_version =
        (uint32_t)read_number("MEMOPT_SIM_DRIVER", sim_is_hip ? 71460850 : 13000);
    sim_options.fill = read_number("MEMOPT_SIM_FILL", 1) != 0;
    sim_options.virtual_memory = read_number("MEMOPT_SIM_VMM", 1) != 0;
    sim_options.rdma = (int)read_number("MEMOPT_SIM_RDMA", 0);
    sim_options.share = (int)read_number("MEMOPT_SIM_SHARE", 1);
    sim_options.peers = (int)read_number("MEMOPT_SIM_PEERS", 1);
    sim_options.pageable = (int)read_number("MEMOPT_SIM_PAGEABLE", 0);
    sim_options.dead_stream = (int)read_number("MEMOPT_SIM_DEAD_STREAM", 709);
    sim_options.seed = read_number("MEMOPT_SIM_SEED", 1);
    sim_options.lag = read_number("MEMOPT_SIM_LAG", 0);
    sim_options.gfx =
        read_text("MEMOPT_SIM_GFX", sim_options.warp_size == 64 ? "gfx90a" : "gfx1030");
    sim_options.name = read_text("MEMOPT_SIM_NAME", "libmemopt simulated device");
    sim_options.noise = (int)read_number("MEMOPT_SIM_NOISE", 1);
    sim_options.handle_files = (int)read_number("MEMOPT_SIM_HANDLE_FILES", sim_is_hip);
    sim_options.tail_access = (int)read_number("MEMOPT_SIM_TAIL_ACCESS", sim_is_hip);
    sim_options.keeps = (int)read_number("MEMOPT_SIM_KEEPS", 0);
    sim_options.seams = (int)read_number("MEMOPT_SIM_SEAMS", 0);
    sim_options.unmap_many = (int)read_number("MEMOPT_SIM_UNMAP", 0);
    sim_options.late_maps = sim_is_hip && strncmp(sim_options.gfx, "gfx12", 5) == 0;
    sim_options.missing = read_text("MEMOPT_SIM_MISSING", "");
    lost_code = (int32_t)read_number("MEMOPT_SIM_LOST", 0);
    read_capability();
}

int sim_initialise(void)
{
    if (initialised)
        return 1;
    read_options();
    read_faults();
    random_state = sim_options.seed;
    if (!sim_arena_init(&sim_host, -1))
        return 0;
    for (int i = 0; i < sim_options.devices; i++) {
        if (!sim_arena_init(&sim_devices[i].arena, i))
            return 0;
        sim_devices[i].total = sim_options.total;
    }
    initialised = 1;
    return 1;
}

/* "cuMemCreate,cuMemMap": as if the driver were too old to have them. */
int sim_symbol_missing(const char *symbol)
{
    size_t length = strlen(symbol);
    const char *list = read_text("MEMOPT_SIM_MISSING", "");
    for (const char *at = list; (at = strstr(at, symbol)) != NULL; at += length)
        if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == '\0'))
            return 1;
    return 0;
}

/* splitmix64: Steele, Lea, Flood 2014. */
uint64_t sim_random(void)
{
    uint64_t z = random_state += 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
}

uint64_t sim_nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Told to a leak check, where the program has one. */
extern void __lsan_ignore_object(const void *p) __attribute__((weak));

void *sim_handle_new(size_t bytes)
{
    void *p = calloc(1, bytes);
    if (p != NULL && __lsan_ignore_object != NULL)
        __lsan_ignore_object(p);
    return p;
}

void *sim_grow(void *items, uint64_t count, uint64_t *capacity, size_t size)
{
    if (count < *capacity)
        return items;
    uint64_t wanted = *capacity == 0 ? 16 : *capacity * 2;
    void *larger = realloc(items, wanted * size);
    if (larger == NULL) {
        fputs("memopt-sim: the host is out of memory\n", stderr);
        abort();
    }
    *capacity = wanted;
    return larger;
}

/* --- calls and faults ---------------------------------------------------------------------- */

static int allocates(const char *call)
{
    static const char *const names[] = {"MemAlloc", "MemCreate", "HostAlloc", "HostMalloc",
                                        "Malloc"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strstr(call, names[i]) != NULL)
            return 1;
    return 0;
}

static int32_t armed_fault(const char *call)
{
    for (int i = 0; i < MOST_FAULTS; i++) {
        fault *f = &faults[i];
        if (f->countdown == 0 || (strcmp(f->call, "*") != 0 && strcmp(f->call, call) != 0))
            continue;
        if (--f->countdown == 0)
            return f->code != 0 ? f->code : allocates(call) ? 2 : 46;
    }
    return 0;
}

int sim_enter(const char *call, int32_t *out_code)
{
    if (in_host_function) {
        *out_code = 800;
        sim_violation(0, 0, "%s is called from a host function in a stream", call);
        return 0;
    }
    pthread_mutex_lock(&sim_lock);
    current_call = call;
    calls++;
    *out_code = sim_initialise() ? armed_fault(call) : 2;
    if (*out_code == 0 && lost_code != 0)
        *out_code = lost_code;
    if (*out_code == 0)
        return 1;
    pthread_mutex_unlock(&sim_lock);
    return 0;
}

void sim_leave(void)
{
    pthread_mutex_unlock(&sim_lock);
}

const char *sim_call(void)
{
    return current_call != NULL ? current_call : "?";
}

void sim_enter_host_function(int inside)
{
    in_host_function = inside;
}

/* --- sites --------------------------------------------------------------------------------- */

uint32_t sim_site_here(uint16_t slot, uint32_t clock, const char *kernel)
{
    uint32_t block = site_count / SITES_PER_BLOCK;
    if (block >= SITE_BLOCKS)
        return 0;
    if (site_blocks[block] == NULL)
        site_blocks[block] = calloc(SITES_PER_BLOCK, sizeof(sim_site));
    if (site_blocks[block] == NULL)
        return 0;
    sim_site *site = &site_blocks[block][site_count % SITES_PER_BLOCK];
    site->call = sim_call();
    site->kernel = kernel;
    site->slot = slot;
    site->clock = clock;
    site->depth = (uint16_t)backtrace(site->frames, SIM_FRAMES);
    return site_count++;
}

const sim_site *sim_site_at(uint32_t index)
{
    return &site_blocks[index / SITES_PER_BLOCK][index % SITES_PER_BLOCK];
}

/* One line for each frame outside the simulator: a symbol, or what addr2line takes. */
static void print_site(FILE *out, const char *title, uint32_t index)
{
    Dl_info own, info;
    if (index == 0)
        return;
    const sim_site *site = sim_site_at(index);
    fprintf(out, "  %s: %s%s%s on stream %u (its operation %u)\n", title, site->call,
            site->kernel != NULL ? " of " : "", site->kernel != NULL ? site->kernel : "",
            site->slot, site->clock);
    if (dladdr((void *)(uintptr_t)&sim_enter, &own) == 0)
        return;
    for (uint16_t i = 0; i < site->depth; i++) {
        if (dladdr(site->frames[i], &info) == 0 || info.dli_fbase == own.dli_fbase)
            continue;
        size_t offset = (size_t)((char *)site->frames[i] - (char *)info.dli_fbase);
        if (info.dli_sname != NULL)
            fprintf(out, "    at %s (%s+%#zx)\n", info.dli_sname, info.dli_fname, offset);
        else
            fprintf(out, "    at %s+%#zx\n", info.dli_fname, offset);
    }
}

/* --- violations ---------------------------------------------------------------------------- */

void sim_violation(uint32_t first, uint32_t second, const char *format, ...)
{
    char *text = NULL;
    size_t size = 0;
    va_list arguments;
    if (violation_count >= MOST_VIOLATIONS) {
        violation_count++;
        return;
    }
    FILE *out = open_memstream(&text, &size);
    if (out == NULL)
        abort();
    va_start(arguments, format);
    vfprintf(out, format, arguments);
    va_end(arguments);
    fputc('\n', out);
    print_site(out, "first", first);
    print_site(out, "then", second);
    fclose(out);
    violations[violation_count++] = text;
    if (getenv("MEMOPT_SIM_QUIET") == NULL)
        fprintf(stderr, "memopt-sim: %s", text);
}

/* What nobody took is a failure of the program. */
__attribute__((destructor)) static void tell_violations(void)
{
    if (violation_count == 0)
        return;
    fprintf(stderr, "memopt-sim: %u violation(s) of the driver's rules; the first:\n%s",
            violation_count, violations[0]);
    fflush(NULL);
    _exit(98);
}

/* --- control ------------------------------------------------------------------------------- */

SIM_EXPORT void memopt_sim_fail_at(const char *call, int64_t n, int32_t code)
{
    fault *chosen = NULL;
    for (int i = 0; i < MOST_FAULTS && chosen == NULL; i++)
        if (faults[i].countdown != 0 && strcmp(faults[i].call, call) == 0)
            chosen = &faults[i];
    for (int i = 0; i < MOST_FAULTS && chosen == NULL; i++)
        if (faults[i].countdown == 0)
            chosen = &faults[i];
    if (chosen == NULL)
        return;
    snprintf(chosen->call, sizeof chosen->call, "%s", call);
    chosen->countdown = n;
    chosen->code = code;
}

SIM_EXPORT int64_t memopt_sim_fault_pending(void)
{
    for (int i = 0; i < MOST_FAULTS; i++)
        if (faults[i].countdown != 0)
            return faults[i].countdown;
    return 0;
}

SIM_EXPORT int64_t memopt_sim_calls(void)
{
    return calls;
}

SIM_EXPORT void memopt_sim_lose_device(int32_t code)
{
    lost_code = code;
}

SIM_EXPORT void memopt_sim_seed(uint64_t seed)
{
    random_state = seed;
}

SIM_EXPORT void memopt_sim_lag(uint64_t lag)
{
    sim_options.lag = lag;
}

SIM_EXPORT uint32_t memopt_sim_violations(void)
{
    return violation_count;
}

SIM_EXPORT int memopt_sim_take_violation(char *out, uint64_t bytes)
{
    if (violation_count == 0)
        return 0;
    uint32_t kept = violation_count < MOST_VIOLATIONS ? violation_count : MOST_VIOLATIONS;
    if (out != NULL && bytes != 0)
        snprintf(out, bytes, "%s", violations[0]);
    free(violations[0]);
    memmove(&violations[0], &violations[1], (kept - 1) * sizeof violations[0]);
    violation_count = kept - 1;
    return 1;
}

SIM_EXPORT int memopt_sim_mapping(int32_t device, uint64_t index, uint64_t *out_address,
                                  uint64_t *out_bytes)
{
    const sim_arena *arena = &sim_devices[device].arena;
    pthread_mutex_lock(&sim_lock);
    for (uint64_t i = 0; i < arena->mapping_count; i++) {
        const sim_mapping *m = arena->mappings[i];
        if (m->access == 0 || index-- != 0)
            continue;
        *out_address = m->address;
        *out_bytes = m->bytes;
        pthread_mutex_unlock(&sim_lock);
        return 1;
    }
    pthread_mutex_unlock(&sim_lock);
    return 0;
}

SIM_EXPORT uint64_t memopt_sim_used(int32_t device)
{
    return device >= 0 && device < SIM_DEVICES ? sim_devices[device].used : 0;
}
