/* Streams, events, callbacks and kernels in eager order. */
#include "support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static memopt_device *small(void)
{
    return open_cpu(64 * MIB, MEMOPT_STREAM_ORDER_EAGER, 0);
}

/* A callback that holds its stream until it is told to go on. */
typedef struct gate {
    atomic_int open;
    atomic_int passed;
} gate;

static void wait_at_gate(void *user)
{
    gate *g = user;
    while (!atomic_load(&g->open))
        sched_yield();
    atomic_store(&g->passed, 1);
}

/* Time for a worker to do what it must not. A right device never fails for want of it. */
static void let_workers_run(void)
{
    usleep(20000);
}

DEVICE_TEST(the_null_stream_runs_inline, device, small())
{
    char bytes[256];
    OK(memopt_fill(device, bytes, 7, sizeof bytes, NULL));
    assert_true(all_bytes(bytes, 7, sizeof bytes));
    gate g = {1, 0};
    OK(memopt_stream_host_callback(device, NULL, wait_at_gate, &g));
    assert_true(g.passed);
    OK(memopt_stream_query(device, NULL));
}

DEVICE_TEST(streams_run_beside_the_caller_in_order, device, small())
{
    gate g = {0, 0};
    char bytes[256];
    memset(bytes, 1, sizeof bytes);
    memopt_stream stream = stream_on(device);
    OK(memopt_stream_host_callback(device, stream, wait_at_gate, &g));
    OK(memopt_fill(device, bytes, 2, sizeof bytes, stream));
    OK(memopt_fill(device, bytes, 3, sizeof bytes, stream));
    let_workers_run();
    assert_int_equal(memopt_stream_query(device, stream), MEMOPT_NOT_READY);
    assert_true(all_bytes(bytes, 1, sizeof bytes));
    atomic_store(&g.open, 1);
    OK(memopt_stream_sync(device, stream));
    OK(memopt_stream_query(device, stream));
    assert_true(all_bytes(bytes, 3, sizeof bytes));
}

/* A wait keeps the record that was the last when it was called. */
DEVICE_TEST(a_wait_keeps_its_record, device, small())
{
    gate first = {0, 0}, second = {0, 0};
    char seen = 0;
    memopt_stream a = stream_on(device), b = stream_on(device);
    memopt_event *event = event_on(device);
    OK(memopt_stream_host_callback(device, a, wait_at_gate, &first));
    OK(memopt_event_record(event, a));
    OK(memopt_stream_wait_event(device, b, event));
    OK(memopt_stream_host_callback(device, a, wait_at_gate, &second));
    OK(memopt_event_record(event, a));
    OK(memopt_fill(device, &seen, 1, 1, b));
    let_workers_run();
    assert_int_equal(memopt_stream_query(device, b), MEMOPT_NOT_READY);
    atomic_store(&first.open, 1);
    OK(memopt_stream_sync(device, b)); /* does not need the second gate */
    assert_int_equal(seen, 1);
    assert_int_equal(memopt_event_query(event), MEMOPT_NOT_READY);
    OK(memopt_event_destroy(event)); /* while its record waits */
    atomic_store(&second.open, 1);
    OK(memopt_device_sync(device)); /* before the gates go */
}

DEVICE_TEST(destroying_an_event_keeps_its_waits, device, small())
{
    gate g = {0, 0};
    int from = 0, to = 0, value = 42;
    memopt_stream a = stream_on(device), b = stream_on(device);
    memopt_event *event = event_on(device);
    OK(memopt_stream_host_callback(device, a, wait_at_gate, &g));
    OK(memopt_copy(device, &from, &value, sizeof from, a));
    OK(memopt_event_record(event, a));
    OK(memopt_stream_wait_event(device, b, event));
    OK(memopt_copy(device, &to, &from, sizeof to, b));
    OK(memopt_event_destroy(event));
    let_workers_run();
    atomic_store(&g.open, 1);
    OK(memopt_device_sync(device));
    assert_int_equal(to, 42);
}

static void *open_later(void *user)
{
    gate *g = user;
    for (int i = 0; i < 1000; i++)
        sched_yield();
    atomic_store(&g->open, 1);
    return NULL;
}

DEVICE_TEST(the_null_stream_waits_inline, device, small())
{
    gate g = {0, 0};
    pthread_t opener;
    memopt_stream a = stream_on(device);
    memopt_event *event = event_on(device);
    OK(memopt_stream_host_callback(device, a, wait_at_gate, &g));
    OK(memopt_event_record(event, a));
    assert_int_equal(pthread_create(&opener, NULL, open_later, &g), 0);
    OK(memopt_stream_wait_event(device, NULL, event));
    assert_true(atomic_load(&g.passed));
    pthread_join(opener, NULL);
    OK(memopt_event_destroy(event));
}

DEVICE_TEST(elapsed_time_is_of_completion, device, small())
{
    memopt_event *start, *end, *silent;
    double seconds = -1;
    OK(memopt_event_create(device, 1, &start));
    OK(memopt_event_create(device, 1, &end));
    OK(memopt_event_create(device, 0, &silent));
    REFUSED_SAYING("never recorded", memopt_event_elapsed(start, end, &seconds));
    gate g = {0, 0};
    memopt_stream stream = stream_on(device);
    OK(memopt_event_record(start, stream));
    OK(memopt_stream_host_callback(device, stream, wait_at_gate, &g));
    OK(memopt_event_record(end, stream));
    assert_int_equal(memopt_event_elapsed(start, end, &seconds), MEMOPT_NOT_READY);
    assert_true(seconds == -1);
    atomic_store(&g.open, 1);
    OK(memopt_event_sync(end));
    OK(memopt_event_elapsed(start, end, &seconds));
    assert_true(seconds > 0 && seconds < 3600);
    REFUSED_SAYING("end event was made without timing",
                   memopt_event_elapsed(start, silent, &seconds));
    OK(memopt_stream_destroy(device, stream));
    OK(memopt_event_destroy(start));
    OK(memopt_event_destroy(end));
    OK(memopt_event_destroy(silent));
}

/* --- kernels -------------------------------------------------------------------------------- */

typedef struct square_args {
    uint64_t *out;
    uint64_t factor;
} square_args;

static void square(const void *args, uint64_t begin, uint64_t end)
{
    const square_args *a = args;
    for (uint64_t i = begin; i < end; i++)
        a->out[i] += i * i * a->factor;
}

static const mo_kernel square_kernel = {
    "test_square", sizeof(square_args), 1, {square, NULL, NULL}, NULL, NULL, NULL};

#if defined(__x86_64__)
/* Halves its numbers: a subnormal result is lost where the processor flushes them. */
static void halve(const void *args, uint64_t begin, uint64_t end)
{
    volatile float *numbers = *(float *const *)args;
    for (uint64_t i = begin; i < end; i++)
        numbers[i] *= 0.5F;
}

DEVICE_TEST(kernels_keep_subnormals_whatever_the_caller_flushes, device, small())
{
    static const mo_kernel kernel = {
        "test_halve", sizeof(float *), 1, {halve, NULL, NULL}, NULL, NULL, NULL};
    enum { MANY = 4096, FLUSH = 0x8040 };
    static float numbers[MANY];
    float *there = numbers;
    for (uint64_t items = 1; items <= MANY; items *= 64) {
        for (int i = 0; i < MANY; i++)
            numbers[i] = 0x1p-126F;
        unsigned before = _mm_getcsr();
        _mm_setcsr(before | FLUSH);
        memopt_status status = mo_launch(device, NULL, &kernel, &there, items);
        unsigned after = _mm_getcsr();
        _mm_setcsr(before);
        OK(status);
        assert_int_equal(after & FLUSH, FLUSH);
        for (uint64_t i = 0; i < items; i++)
            assert_true(numbers[i] == 0x1p-127F);
    }
}
#endif

typedef struct tally_args {
    _Atomic uint64_t *calls;
    uint64_t elements;
} tally_args;

static void tally(const void *args, uint64_t begin, uint64_t end)
{
    const tally_args *a = args;
    if (begin < end)
        atomic_fetch_add(a->calls, 1);
}

static uint64_t tally_elements(const void *args)
{
    const tally_args *a = args;
    return a->elements;
}

/* Many items are divided among threads, but not where they hold few elements in all. */
DEVICE_TEST(little_work_stays_in_one_thread, device, small())
{
    static const mo_kernel whole = {
        "test_tally", sizeof(tally_args), 1, {tally, NULL, NULL}, NULL, NULL, NULL};
    static const mo_kernel small = {
        "test_tally", sizeof(tally_args), 1, {tally, NULL, NULL}, tally_elements, NULL, NULL};
    _Atomic uint64_t calls;
    tally_args args = {&calls, 0};
    const struct {
        const mo_kernel *kernel;
        uint64_t elements;
        int divided;
    } cases[] = {{&whole, 0, 1}, {&small, 1000, 0}, {&small, 10000000, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        atomic_store(&calls, 0);
        args.elements = cases[i].elements;
        OK(mo_launch(device, NULL, cases[i].kernel, &args, 300));
        assert_int_equal(atomic_load(&calls) > 1, cases[i].divided);
    }
}

DEVICE_TEST(kernels_cover_every_item_once, device, small())
{
    static const uint64_t counts[] = {0, 1, 2, 3, 4, 5, 15, 16, 17, 1000, 4099};
    memopt_stream streams[2] = {NULL, NULL};
    OK(memopt_stream_create(device, &streams[1]));
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        for (size_t s = 0; s < 2; s++) {
            uint64_t *out = calloc(counts[c] + 1, sizeof *out);
            square_args args = {out, 3};
            OK(mo_launch(device, streams[s], &square_kernel, &args, counts[c]));
            args.out = NULL; /* it was copied */
            OK(memopt_stream_sync(device, streams[s]));
            for (uint64_t i = 0; i < counts[c]; i++)
                assert_int_equal(out[i], i * i * 3);
            assert_int_equal(out[counts[c]], 0);
            free(out);
        }
    }
}

/* The copy of a scalar is there when the call returns, whatever runs late. */
DEVICE_TEST(test_copy_sync, device, open_cpu(64 * MIB, MEMOPT_STREAM_ORDER_ADVERSARIAL, 1))
{
    void *memory = NULL;
    uint32_t read = 0;
    memopt_stream stream = stream_on(device);
    OK(mo_mem_alloc(device, 512, &memory));
    OK(memopt_fill(device, memory, 5, 512, stream));
    OK(memopt_copy_sync(device, &read, memory, sizeof read, stream));
    assert_int_equal(read, 0x05050505);
    REFUSED(memopt_copy_sync(device, NULL, memory, 4, stream));
    OK(mo_mem_free(device, memory, 512));
}
