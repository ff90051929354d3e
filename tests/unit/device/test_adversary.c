/*
 * The adversarial order: right programs pass for every seed, and programs that lack a dependency
 * are caught for every seed, whatever they wait for.
 */
#include "support.h"

#include "device/cpu/adversary.h"

/* Two items are too few for the pool: thousands of devices would start threads for nothing. */
enum { SEEDS = 200, BYTES = 4096, ITEM_BYTES = 2048, ITEMS = BYTES / ITEM_BYTES };

typedef struct rig {
    memopt_device *device;
    memopt_stream a, b, c;
    memopt_event *event;
    char *x, *y; /* device memory */
    mapped memory;
    char host[BYTES], result[BYTES];
} rig;

static void build(rig *r, uint64_t seed)
{
    memset(r, 0, sizeof *r);
    r->device = open_cpu(32 * MIB, MEMOPT_STREAM_ORDER_ADVERSARIAL, seed);
    OK(memopt_stream_create(r->device, &r->a));
    OK(memopt_stream_create(r->device, &r->b));
    OK(memopt_stream_create(r->device, &r->c));
    OK(memopt_event_create(r->device, 1, &r->event));
    r->memory = map_new(r->device, GRANULE);
    r->x = r->memory.address;
    r->y = r->x + BYTES;
    memset(r->host, 1, BYTES);
}

/* Violations that the test has not looked for make the close fail. */
static void demolish(rig *r)
{
    OK(memopt_device_sync(r->device));
    OK(memopt_event_destroy(r->event));
    OK(memopt_stream_destroy(r->device, r->a));
    OK(memopt_stream_destroy(r->device, r->b));
    OK(memopt_stream_destroy(r->device, r->c));
    unmap(r->device, &r->memory);
    OK(memopt_device_close(r->device));
}

typedef void (*waiter)(rig *r);

static void wait_for_device(rig *r)
{
    (void)memopt_device_sync(r->device);
}

static void wait_for_a(rig *r)
{
    (void)memopt_stream_sync(r->device, r->a);
    (void)memopt_device_sync(r->device);
}

static void wait_for_b(rig *r)
{
    (void)memopt_stream_sync(r->device, r->b);
    (void)memopt_device_sync(r->device);
}

static void poll_a(rig *r)
{
    while (memopt_stream_query(r->device, r->a) == MEMOPT_NOT_READY)
        ;
    (void)memopt_device_sync(r->device);
}

static void destroy_and_remake_b(rig *r)
{
    (void)memopt_stream_destroy(r->device, r->b);
    OK(memopt_stream_create(r->device, &r->b));
    (void)memopt_device_sync(r->device);
}

static const waiter waiters[] = {wait_for_device, wait_for_a, wait_for_b, poll_a,
                                 destroy_and_remake_b};
enum { WAITERS = sizeof waiters / sizeof waiters[0] };

/* --- nothing runs before it has to --------------------------------------------------------- */

TEST(nothing_runs_early)
{
    rig r;
    build(&r, 1);
    char out[8] = {0};
    memopt_stream all[] = {NULL, r.a, r.b};
    for (size_t i = 0; i < 3; i++) {
        OK(memopt_fill(r.device, out, 1 + (int)i, sizeof out, all[i]));
        assert_true(all_bytes(out, (int)i, sizeof out));
        OK(memopt_event_record(r.event, all[i]));
        assert_true(all_bytes(out, (int)i, sizeof out));
        OK(memopt_event_sync(r.event));
        assert_true(all_bytes(out, 1 + (int)i, sizeof out));
    }
    demolish(&r);
}

TEST(polling_ends)
{
    int not_ready = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        rig r;
        int polls = 0;
        build(&r, seed);
        OK(memopt_fill(r.device, r.x, 1, BYTES, r.a));
        OK(memopt_event_record(r.event, r.a));
        while (memopt_event_query(r.event) == MEMOPT_NOT_READY)
            assert_true(++polls < 100);
        not_ready += polls > 0;
        assert_int_equal(r.x[0], 1);
        OK(memopt_stream_query(r.device, r.a));
        demolish(&r);
    }
    assert_true(not_ready > SEEDS / 2);
}

/* --- a consumer on another stream ---------------------------------------------------------- */

/* Other work before and after on the same streams does not hide the bug. */
static int saw_it_in_a_crowd(uint64_t seed, waiter wait, int with_event)
{
    rig r;
    build(&r, seed);
    for (int i = 0; i < 3; i++) {
        OK(memopt_fill(r.device, r.y, i, BYTES, r.a));
        OK(memopt_fill(r.device, r.y + BYTES, i, BYTES, r.b));
        OK(memopt_fill(r.device, r.y + 2 * BYTES, i, BYTES, r.c));
    }
    OK(memopt_copy(r.device, r.x, r.host, BYTES, r.a));
    if (with_event) {
        OK(memopt_event_record(r.event, r.a));
        OK(memopt_fill(r.device, r.y, 7, BYTES, r.a));
        OK(memopt_stream_wait_event(r.device, r.b, r.event));
    }
    OK(memopt_copy(r.device, r.result, r.x, BYTES, r.b));
    for (int i = 0; i < 3; i++) {
        OK(memopt_fill(r.device, r.y, i, BYTES, r.a));
        OK(memopt_fill(r.device, r.y + BYTES, i, BYTES, r.b));
        OK(memopt_fill(r.device, r.y + 2 * BYTES, i, BYTES, r.c));
    }
    wait(&r);
    int right = all_bytes(r.result, 1, BYTES);
    demolish(&r);
    return right;
}

TEST(a_crowd_does_not_hide_it)
{
    int hidden = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        for (int w = 0; w < WAITERS; w++) {
            assert_true(saw_it_in_a_crowd(seed, waiters[w], 1));
            hidden += saw_it_in_a_crowd(seed, waiters[w], 0);
        }
    if (hidden != 0)
        fail_msg("not caught in %d of %d runs", hidden, SEEDS * WAITERS);
}

/* The same with kernels, whose ranges nobody knows, and the NULL stream as the producer. */
typedef struct copy_args {
    char *out;
    const char *in;
} copy_args;

static void copy_items(const void *args, uint64_t begin, uint64_t end)
{
    const copy_args *a = args;
    memcpy(a->out + begin * ITEM_BYTES, a->in + begin * ITEM_BYTES, (end - begin) * ITEM_BYTES);
}

static const mo_kernel copy_kernel = {
    "test_copy", sizeof(copy_args), 1, {copy_items, NULL, NULL}, NULL, NULL, NULL};

static int kernel_saw_it(uint64_t seed, waiter wait, int with_event)
{
    rig r;
    build(&r, seed);
    copy_args produce = {r.x, r.host}, consume = {r.result, r.x};
    OK(mo_launch(r.device, NULL, &copy_kernel, &produce, ITEMS));
    if (with_event) {
        OK(memopt_event_record(r.event, NULL));
        OK(memopt_stream_wait_event(r.device, r.b, r.event));
    }
    OK(mo_launch(r.device, r.b, &copy_kernel, &consume, ITEMS));
    wait(&r);
    int right = all_bytes(r.result, 1, BYTES);
    demolish(&r);
    return right;
}

TEST(kernels_without_a_wait_are_caught)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        for (int w = 0; w < WAITERS; w++) {
            assert_false(kernel_saw_it(seed, waiters[w], 0));
            assert_true(kernel_saw_it(seed, waiters[w], 1));
        }
}

/* A copy out of x on b, and then new bytes in x on a: the copy must not see them. And two writes of
 * x: the later one must stand. */
static int survives_overwriting(uint64_t seed, waiter wait, int with_event, int second_reads)
{
    rig r;
    build(&r, seed);
    OK(memopt_fill(r.device, r.x, 1, BYTES, r.a));
    OK(memopt_device_sync(r.device));
    if (second_reads)
        OK(memopt_copy(r.device, r.result, r.x, BYTES, r.b));
    else
        OK(memopt_fill(r.device, r.x, 3, BYTES, r.b));
    if (with_event) {
        OK(memopt_event_record(r.event, r.b));
        OK(memopt_stream_wait_event(r.device, r.a, r.event));
    }
    OK(memopt_fill(r.device, r.x, 2, BYTES, r.a));
    OK(memopt_fill(r.device, r.y, 9, BYTES, r.b));
    wait(&r);
    int right = second_reads ? all_bytes(r.result, 1, BYTES) : all_bytes(r.x, 2, BYTES);
    demolish(&r);
    return right;
}

TEST(overwriting_too_early_is_caught)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        for (int w = 0; w < WAITERS; w++)
            for (int reads = 0; reads < 2; reads++) {
                assert_true(survives_overwriting(seed, waiters[w], 1, reads));
                assert_false(survives_overwriting(seed, waiters[w], 0, reads));
            }
}

/* The host reads after too little waiting. */
TEST(a_missing_sync_is_caught)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        rig r;
        build(&r, seed);
        OK(memopt_copy(r.device, r.result, r.host, BYTES, r.a));
        OK(memopt_stream_sync(r.device, r.b));
        OK(memopt_stream_sync(r.device, NULL));
        assert_true(all_bytes(r.result, 0, BYTES));
        demolish(&r);
    }
}

/* A source that the host changes before the copy is done. */
TEST(a_host_buffer_changed_too_early_is_caught)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        rig r;
        build(&r, seed);
        OK(memopt_copy(r.device, r.x, r.host, BYTES, r.a));
        memset(r.host, 2, BYTES);
        OK(memopt_device_sync(r.device));
        assert_true(all_bytes(r.x, 2, BYTES));
        demolish(&r);
    }
}

/* --- use after free ------------------------------------------------------------------------ */

/* The same when b's work is a kernel: what it reads is poison or the next owner's. */
TEST(a_late_kernel_reads_poison)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        rig r;
        build(&r, seed);
        OK(memopt_copy(r.device, r.x, r.host, BYTES, r.a));
        OK(memopt_stream_sync(r.device, r.a));
        copy_args args = {r.result, r.x};
        OK(mo_launch(r.device, r.b, &copy_kernel, &args, ITEMS));
        mo_note_free(r.device, r.x, BYTES, r.a);
        OK(memopt_stream_sync(r.device, r.b));
        uint16_t word;
        memcpy(&word, r.result, sizeof word);
        assert_int_equal(word, MO_POISON_HIGH << 8 | MO_POISON_LOW);
        uint32_t bits;
        float value;
        memcpy(&bits, r.result + 4, sizeof bits);
        memcpy(&value, &bits, sizeof value);
        assert_true(value != value);
        demolish(&r);
    }
}

TEST(use_of_free_memory_is_caught)
{
    rig r;
    build(&r, 3);
    mo_note_alloc(r.device, r.x, BYTES, r.a);
    mo_note_free(r.device, r.x, BYTES, r.a);
    OK(memopt_fill(r.device, r.x + BYTES - 1, 1, 1, r.a));
    FAILS_SAYING(MEMOPT_DEVICE_FAULT, "fill of 1 bytes", memopt_stream_sync(r.device, r.a));
    SAYS("memory that is free");
    OK(memopt_stream_sync(r.device, r.a)); /* told once */
    OK(memopt_fill(r.device, r.x + BYTES, 1, 1, r.a));
    mo_note_alloc(r.device, r.x, 100, r.a);
    OK(memopt_fill(r.device, r.x, 1, 100, r.a)); /* the part in use again */
    OK(memopt_stream_sync(r.device, r.a));
    OK(memopt_fill(r.device, r.x, 1, 101, r.a));
    FAILS(MEMOPT_DEVICE_FAULT, memopt_event_record(r.event, r.a) + memopt_event_sync(r.event));
    demolish(&r);
}

/* Each synchronising call reports; ending a stream does too, and the stream is gone. */
TEST(the_end_of_a_stream_reports)
{
    rig r;
    build(&r, 4);
    mo_note_free(r.device, r.x, BYTES, r.b);
    OK(memopt_fill(r.device, r.x, 1, BYTES, r.b));
    FAILS(MEMOPT_DEVICE_FAULT, memopt_stream_destroy(r.device, r.b));
    REFUSED(memopt_stream_sync(r.device, r.b));
    OK(memopt_stream_create(r.device, &r.b));
    demolish(&r);
}

TEST(closing_reports)
{
    memopt_device *device = open_cpu(8 * MIB, MEMOPT_STREAM_ORDER_ADVERSARIAL, 0);
    char bytes[16];
    mo_note_free(device, bytes, sizeof bytes, NULL);
    OK(memopt_fill(device, bytes, 1, sizeof bytes, NULL));
    FAILS(MEMOPT_DEVICE_FAULT, memopt_device_close(device));
}

TEST(work_on_unmapped_memory_is_left_out)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        rig r;
        build(&r, seed);
        mapped other = map_new(r.device, GRANULE);
        OK(memopt_copy(r.device, r.result, other.address, BYTES, r.a));
        OK(memopt_fill(r.device, r.x, 5, BYTES, r.a));
        OK(mo_vm_unmap(r.device, other.address, GRANULE));
        FAILS_SAYING(MEMOPT_DEVICE_FAULT, "nothing was mapped there",
                     memopt_stream_sync(r.device, r.a));
        assert_true(all_bytes(r.x, 5, BYTES)); /* later work runs */
        OK(mo_vm_map(r.device, other.address, GRANULE, other.handle));
        OK(mo_vm_set_access(r.device, other.address, GRANULE));
        unmap(r.device, &other);
        demolish(&r);
    }
}

/* mem_free waits for work that may use the memory, as drivers do. */
TEST(freeing_plain_memory_waits)
{
    rig r;
    void *plain;
    build(&r, 5);
    OK(mo_mem_alloc(r.device, BYTES, &plain));
    OK(memopt_fill(r.device, plain, 3, BYTES, r.a));
    OK(memopt_copy(r.device, r.result, plain, BYTES, r.a));
    OK(mo_mem_free(r.device, plain, BYTES));
    assert_true(all_bytes(r.result, 3, BYTES));
    demolish(&r);
}

static void count_call(void *user)
{
    ++*(int *)user;
}

TEST(callbacks_run_once_in_order)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        rig r;
        int calls = 0;
        build(&r, seed);
        OK(memopt_copy(r.device, r.result, r.host, BYTES, r.a));
        OK(memopt_stream_host_callback(r.device, r.a, count_call, &calls));
        OK(memopt_event_record(r.event, r.a));
        OK(memopt_stream_wait_event(r.device, r.b, r.event));
        assert_int_equal(calls, 0);
        OK(memopt_stream_sync(r.device, r.b));
        assert_int_equal(calls, 1);
        assert_true(all_bytes(r.result, 1, BYTES));
        demolish(&r);
        assert_int_equal(calls, 1);
    }
}

/* Equal seeds give equal runs: the order is the only source of chance. */
typedef struct order_log {
    int count, order[64];
} order_log;

typedef struct log_entry {
    order_log *log;
    int number;
} log_entry;

static void log_call(void *user)
{
    const log_entry *entry = user;
    entry->log->order[entry->log->count++] = entry->number;
}

static order_log order_of(uint64_t seed)
{
    enum { CALLS = 60 };
    rig r;
    order_log log = {0};
    log_entry entries[CALLS];
    int last[3] = {-1, -1, -1};
    build(&r, seed);
    memopt_stream streams[] = {r.a, r.b, r.c};
    for (int i = 0; i < CALLS; i++) {
        entries[i] = (log_entry){&log, i};
        OK(memopt_stream_host_callback(r.device, streams[(i * i + i / 5) % 3], log_call,
                                       &entries[i]));
    }
    for (int s = 0; s < 3; s++)
        OK(memopt_stream_sync(r.device, streams[2 - s]));
    assert_int_equal(log.count, CALLS);
    for (int i = 0; i < CALLS; i++) { /* each stream in its own order */
        int number = log.order[i], *previous = &last[(number * number + number / 5) % 3];
        assert_true(number > *previous);
        *previous = number;
    }
    demolish(&r);
    return log;
}

TEST(the_seed_decides)
{
    order_log first = order_of(0);
    int different = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        order_log log = order_of(seed), again = order_of(seed);
        assert_memory_equal(&log, &again, sizeof log);
        different += memcmp(&log, &first, sizeof log) != 0;
    }
    if (different <= SEEDS / 4)
        fail_msg("only %d of %d seeds gave another order", different, SEEDS);
}
