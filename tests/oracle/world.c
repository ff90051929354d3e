/* A device, allocators, streams: how a world begins and ends, and how its calls fail. */
#include "world.h"

#include "base/memory.h"
#include "device/front/handle.h"
#include "support/allocator_check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- failures -------------------------------------------------------------------------------- */

static void to_stderr(void *user, const char *text)
{
    (void)user;
    fprintf(stderr, "%s\n", text);
}

_Noreturn void oracle_fail(const world *w, const char *format, ...)
{
    char op[96] = "the end";
    oracle_seen *seen = w->seen;
    va_list arguments;
    if (seen->step < w->c->count)
        oracle_print_op(&w->c->ops[seen->step], op, sizeof op);
    size_t used = (size_t)snprintf(seen->message, sizeof seen->message,
                                   "operation %llu (%s): ", (unsigned long long)seen->step, op);
    va_start(arguments, format);
    vsnprintf(seen->message + used, sizeof seen->message - used, format, arguments);
    va_end(arguments);
    used = strlen(seen->message);
    snprintf(seen->message + used, sizeof seen->message - used, "; last error: %s",
             memopt_last_error());
    seen->failed = 1;
    fprintf(stderr, "%s\n", seen->message);
    if (seen->print_case)
        oracle_print(w->c, to_stderr, NULL);
    abort();
}

void oracle_ok(const world *w, memopt_status status, const char *call, int line)
{
    if (status != MEMOPT_OK)
        oracle_fail(w, "line %d: %s: %s", line, call, memopt_status_name(status));
}

/* --- the device's operations ----------------------------------------------------------------- */

static mo_device_ops ops;
static const mo_device_ops *real;
static world *current;

static memopt_status vm_unmap(memopt_device *device, void *address, uint64_t size)
{
    memopt_status status = real->vm_unmap(device, address, size);
    if (status == MEMOPT_OK && !current->threads)
        current->unmaps++;
    return status;
}

static memopt_status vm_unmap_run(memopt_device *device, void *address, uint64_t size,
                                  uint64_t mapping)
{
    memopt_status status = real->vm_unmap_run(device, address, size, mapping);
    if (status == MEMOPT_OK && !current->threads)
        current->unmaps += size / mapping;
    return status;
}

static memopt_status stream_capturing(memopt_device *device, memopt_stream stream, int32_t *out)
{
    (void)device;
    *out = graph_is_capturing(current, stream);
    return MEMOPT_OK;
}

/* What would spoil a capture. */
static memopt_status event_record(memopt_device *device, memopt_event *event, memopt_stream stream)
{
    REQUIRE(current, !graph_is_capturing(current, stream));
    return real->event_record(device, event, stream);
}

static memopt_status stream_sync(memopt_device *device, memopt_stream stream)
{
    REQUIRE(current, !graph_is_capturing(current, stream));
    return real->stream_sync(device, stream);
}

static memopt_status device_sync(memopt_device *device)
{
    REQUIRE(current, !current->graph.capturing);
    return real->sync(device);
}

static void watch(world *w)
{
    current = w;
    real = w->device->ops;
    ops = *real;
    ops.vm_unmap = vm_unmap;
    ops.vm_unmap_run = vm_unmap_run;
    if (driver_of(w->c->device) == NULL) {
        ops.stream_capturing = stream_capturing;
        ops.event_record = event_record;
        ops.stream_sync = stream_sync;
        ops.sync = device_sync;
    }
    w->device->ops = &ops;
}

/* --- faults ---------------------------------------------------------------------------------- */

void fault_arm(world *w)
{
    const driver_hooks *driver = driver_of(w->c->device);
    if (w->fault_n == 0)
        return;
    if (w->fault_kind == ORACLE_FAULT_DEVICE)
        fault_begin(w->device, NULL, w->fault_n);
    else if (w->fault_kind == ORACLE_FAULT_HOST)
        mo_memory_fail_at(w->fault_n);
    else if (w->fault_kind == ORACLE_FAULT_PROVIDER)
        w->provider_fault = w->fault_n;
    else if (driver != NULL)
        fault_begin(w->device, driver, w->fault_n);
}

memopt_status fault_strike(world *w, memopt_status status)
{
    const driver_hooks *driver = driver_of(w->c->device);
    if (w->fault_n == 0)
        return status;
    if (w->fault_kind == ORACLE_FAULT_DEVICE)
        w->struck |= fault_end(w->device, NULL);
    else if (w->fault_kind == ORACLE_FAULT_HOST)
        w->struck |= mo_memory_fault_struck();
    else if (w->fault_kind == ORACLE_FAULT_PROVIDER)
        w->struck |= w->provider_fault == 0;
    else if (driver != NULL)
        w->struck |= fault_end(w->device, driver);
    mo_memory_fail_at(0);
    w->provider_fault = w->fault_n = 0;
    w->seen->struck = w->struck;
    w->seen->struck_ever |= w->struck;
    if (w->struck)
        saw(w, ORACLE_HAS_FAULTS);
    w->faulted |= w->struck;
    w->disturbed |= w->struck;
    return status;
}

int expected(const world *w, memopt_status status, memopt_status a, memopt_status b)
{
    if (status == MEMOPT_OK)
        return 1;
    if (w->refused && status == ORACLE_REFUSED)
        return 0;
    memopt_error_info info = {.struct_size = sizeof info};
    OK(w, memopt_last_error_info(&info));
    REQUIRE(w, w->refused || (info.status == status && info.message[0] != '\0'));
    if (w->struck && (status == MEMOPT_OUT_OF_HOST_MEMORY || status == MEMOPT_DRIVER_ERROR ||
                      status == MEMOPT_OUT_OF_DEVICE_MEMORY))
        return 0;
    if (status == a || status == b)
        return 0;
    oracle_fail(w, "status %s", memopt_status_name(status));
}

/* --- members --------------------------------------------------------------------------------- */

static memopt_status provide(void *user, uint64_t bytes, void **out_pointer)
{
    world *w = user;
    if (w->provider_fault > 0 && --w->provider_fault == 0)
        return MEMOPT_OUT_OF_DEVICE_MEMORY;
    memopt_status status = mo_mem_alloc(w->device, bytes, out_pointer);
    w->provided += status == MEMOPT_OK ? bytes : 0;
    return status;
}

static memopt_status take_back(void *user, void *pointer, uint64_t bytes)
{
    world *w = user;
    if (w->provider_fault > 0 && --w->provider_fault == 0)
        return MEMOPT_DRIVER_ERROR;
    memopt_status status = mo_mem_free(w->device, pointer, bytes);
    w->provided -= status == MEMOPT_OK ? bytes : 0;
    return status;
}

static const char *const expandable_configs[] = {
    "expandable_segments:True", "expandable_segments:True,roundup_power2_divisions:4",
    "expandable_segments:True,garbage_collection_threshold:0.6",
    "expandable_segments:True,max_split_size_mb:20"};
static const char *const classic_configs[] = {"", "roundup_power2_divisions:[1:4,>:2]",
                                              "garbage_collection_threshold:0.4",
                                              "max_split_size_mb:20,large_segment_size_mb:12"};

static memopt_status create_root(world *w, uint32_t index)
{
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    memopt_memory_provider provider = MEMOPT_MEMORY_PROVIDER_INIT;
    member *m = &w->members[index];
    const char *config =
        m->expandable ? expandable_configs[w->c->config % 4] : classic_configs[w->c->config % 4];
    if (is_pinned(index)) {
        options.memory = MEMOPT_MEMORY_PINNED;
        options.limit = m->limit = PINNED_LIMIT;
    }
    if (index == ORACLE_PROVIDER_ROOT) {
        provider.alloc = provide;
        provider.free = take_back;
        provider.user = w;
        options.provider = &provider;
    }
    return CALL(w, memopt_allocator_create(w->device, config, &options, &m->handle));
}

memopt_status member_create(world *w, uint32_t index, uint64_t kind)
{
    static const uint32_t parents[ORACLE_ROOTS] = {ORACLE_ROOT, ORACLE_PINNED_ROOT,
                                                   ORACLE_PROVIDER_ROOT};
    memopt_pool_options options = MEMOPT_POOL_OPTIONS_INIT;
    member *m = &w->members[index], *parent = &w->members[parents[root_of(index)]];
    m->count = m->requested = m->peak = m->allocations = m->held = m->limit = 0;
    m->paused = 0;
    m->history = m->streams = 0;
    memset(m->groups, 0, sizeof m->groups);
    m->expandable = index < ORACLE_PINNED_ROOT && has(w, ORACLE_HAS_EXPANDABLE) && (kind & 1) == 0;
    if (is_root(index))
        return create_root(w, index);
    options.limit = m->limit = (kind & 2) != 0 ? 8 * MIB : 0;
    options.retain = m->retain = index == ORACLE_GRAPH_POOL || (kind & 4) != 0;
    if (parent->expandable != m->expandable)
        options.config = classic_configs[w->c->config % 4];
    m->history = parent->history;
    return CALL(w, memopt_pool_create(parent->handle, &options, &m->handle));
}

uint64_t world_stat(const world *w, uint32_t index, const char *name)
{
    uint64_t value = 0;
    OK(w, memopt_allocator_get_stat(w->members[index].handle, name, &value));
    return value;
}

/* --- the whole ------------------------------------------------------------------------------- */

static void open_device(world *w)
{
    static const uint64_t lags[] = {0, 7, 100, UINT64_MAX};
    const uint64_t lag = w->threads ? 0 : lags[w->c->seed / 4 % 4];
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    if (strcmp(w->c->device, "cpu") == 0) {
        options.capacity = CAPACITY;
        options.threads = 1;
        options.seed = w->c->seed;
        w->adversarial = !w->threads && w->c->seed % 4 != 0;
        options.stream_order =
            w->adversarial ? MEMOPT_STREAM_ORDER_ADVERSARIAL : MEMOPT_STREAM_ORDER_EAGER;
        options.lag = lag;
    }
    OK(w, memopt_device_open(w->c->device, &options, &w->device));
    if (driver_of(w->c->device) != NULL) {
        driver_of(w->c->device)->seed(w->c->seed);
        driver_of(w->c->device)->lag(lag);
    }
}

static void open_roots(world *w)
{
    static const uint32_t roots[ORACLE_ROOTS] = {ORACLE_ROOT, ORACLE_PINNED_ROOT,
                                                 ORACLE_PROVIDER_ROOT};
    const int wanted[ORACLE_ROOTS] = {1, has(w, ORACLE_HAS_PINNED), has(w, ORACLE_HAS_PROVIDER)};
    for (uint32_t r = 0; r < ORACLE_ROOTS; r++) {
        member *m = &w->members[roots[r]];
        if (!wanted[r])
            continue;
        OK(w, member_create(w, roots[r], 0));
        memopt_history_options options = MEMOPT_HISTORY_OPTIONS_INIT;
        options.events = 4096;
        if (has(w, ORACLE_HAS_HISTORY)) {
            OK(w, memopt_allocator_set_history(m->handle, &options));
            m->history = 1;
        }
        for (uint32_t t = MEMOPT_TAG_USER; t < ORACLE_TAGS; t++) {
            char name[8] = {(char)('a' + t), '\0'};
            memopt_tag tag = 0;
            OK(w, memopt_allocator_register_tag(m->handle, name, &tag));
            REQUIRE(w, tag == t);
        }
        if (has(w, ORACLE_HAS_OBSERVERS))
            observe_root(w, r);
    }
}

void world_open(world *w, const oracle_case *c, oracle_seen *seen, int threads)
{
    memset(w, 0, sizeof *w);
    w->c = c;
    w->seen = seen;
    w->threads = threads;
    w->host_blocks = mo_memory_live_blocks();
    open_device(w);
    watch(w);
    for (int i = 0; i < ORACLE_SLOTS; i++)
        pthread_mutex_init(&w->slots[i].lock, NULL);
    for (int i = 0; i < ORACLE_MEMBERS; i++)
        pthread_rwlock_init(&w->members[i].use, NULL);
    for (int i = 0; i < ORACLE_STREAMS; i++) {
        pthread_rwlock_init(&w->stream_use[i], NULL);
        if (i > 0)
            OK(w, memopt_stream_create(w->device, &w->streams[i]));
    }
    pthread_mutex_init(&w->observing, NULL);
    for (int i = 0; i < ORACLE_SHARES; i++)
        pthread_mutex_init(&w->shares[i].lock, NULL);
    void *mailbox = NULL;
    OK(w, memopt_host_alloc(w->device, ORACLE_STREAMS * EDGE, &mailbox));
    w->mailbox = mailbox;
    w->pinned_base = ORACLE_STREAMS * EDGE;
    open_roots(w);
}

void hand_open(hand *h, world *w)
{
    void *staging = NULL;
    h->w = w;
    OK(w, memopt_event_create(w->device, 0, &h->event));
    OK(w, memopt_host_alloc(w->device, STAGING_BYTES, &staging));
    h->staging = staging;
    w->pinned_base += STAGING_BYTES;
}

void hand_close(hand *h)
{
    OK(h->w, memopt_event_destroy(h->event));
    OK(h->w, memopt_host_free(h->w->device, h->staging));
    h->w->pinned_base -= STAGING_BYTES;
}

void check_violations(const world *w)
{
    const driver_hooks *driver = driver_of(w->c->device);
    char violation[400] = "";
    if (driver != NULL && driver->violations() != 0) {
        (void)driver->take_violation(violation, sizeof violation);
        oracle_fail(w, "violation: %s", violation);
    }
}

/* With nothing alive and nothing paused, all memory is there for one block. (In adversarial order
 * all of it would be poisoned, which takes longer than the rest of a case.) */
static void whole_device_serves(world *w)
{
    void *block = NULL;
    if (w->disturbed || w->adversarial)
        return;
    OK(w, memopt_allocator_alloc(w->members[ORACLE_ROOT].handle, CAPACITY / 2, 0, NULL, &block));
    OK(w, memopt_allocator_free(w->members[ORACLE_ROOT].handle, block));
}

void world_close(world *w)
{
    memopt_memory_info info = {.struct_size = sizeof info};
    graph_drop(w);
    for (int i = 0; i < ORACLE_SLOTS; i++)
        if (w->slots[i].at != NULL)
            free_slot(w, &w->slots[i]);
    for (int i = 0; i < ORACLE_MEMBERS; i++)
        if (w->members[i].handle != NULL) {
            w->members[i].limit = 0;
            OK(w, memopt_allocator_set_limit(w->members[i].handle, 0));
            OK(w, memopt_allocator_trim_sync(w->members[i].handle, 0, NULL));
        }
    for (int i = 0; i < ORACLE_MEMBERS; i++)
        if (w->members[i].paused) { /* now there is room */
            OK(w, memopt_pool_resume_sync(w->members[i].handle, 0));
            w->members[i].paused = 0;
        }
    model_check(w);
    for (int i = ORACLE_MEMBERS - 1; i >= 0; i--) {
        if (w->members[i].handle == NULL)
            continue;
        if (i == ORACLE_ROOT)
            whole_device_serves(w);
        OK(w, memopt_allocator_destroy(w->members[i].handle));
        w->members[i].handle = NULL;
    }
    for (int i = 0; i < ORACLE_ROOTS; i++) {
        REQUIRE(w, w->roots[i].seen.count == 0); /* the destruction told what went */
        picture_end(&w->roots[i].seen);
    }
    for (int i = 0; i < ORACLE_OBSERVERS; i++)
        picture_end(&w->extra[i].seen);
    for (int i = 1; i < ORACLE_STREAMS; i++)
        OK(w, memopt_stream_destroy(w->device, w->streams[i]));
    OK(w, memopt_host_free(w->device, w->mailbox));
    OK(w, memopt_device_get_memory_info(w->device, &info));
    if (info.used != 0 || info.reserved_va != 0 || info.pinned != 0 || w->provided != 0)
        oracle_fail(w, "left: %llu bytes, %llu of addresses, %llu page-locked, %llu provided",
                    (unsigned long long)info.used, (unsigned long long)info.reserved_va,
                    (unsigned long long)info.pinned, (unsigned long long)w->provided);
    OK(w, memopt_device_close(w->device));
    REQUIRE(w, mo_memory_live_blocks() == w->host_blocks);
    check_violations(w);
}
