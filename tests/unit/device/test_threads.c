/* Threads that share a launch's items: they run side by side, all items once, and a run waits. */
#include "support.h"

#include "device/cpu/threads.h"

#include <sched.h>
#include <time.h>

enum { THREADS = 4, RUNS = 50 };

typedef struct shared {
    mo_threads threads;
    pthread_t caller;
    atomic_int inside, late;
    uint8_t *seen;
} shared;

static int start(void **state)
{
    shared *s = calloc(1, sizeof *s);
    mo_threads_init(&s->threads);
    mo_threads_start(&s->threads, THREADS);
    s->caller = pthread_self();
    *state = s;
    return 0;
}

static int end(void **state)
{
    shared *s = *state;
    mo_threads_fini(&s->threads);
    free(s);
    return 0;
}

static void arrive(void *context, size_t begin, size_t count)
{
    shared *s = context;
    atomic_fetch_add(&s->inside, (int)count);
    while (atomic_load(&s->inside) < THREADS) /* each item holds its thread until all are taken */
        sched_yield();
}

TEST_WITH(they_run_side_by_side, start, end)
{
    shared *s = *state;
    for (int i = 0; i < RUNS; i++) {
        atomic_store(&s->inside, 0);
        mo_threads_run(&s->threads, arrive, s, THREADS, 1);
        assert_int_equal(atomic_load(&s->inside), THREADS);
    }
}

static void come_late(void *context, size_t begin, size_t count)
{
    shared *s = context;
    arrive(context, begin, count);
    if (!pthread_equal(pthread_self(), s->caller))
        nanosleep(&(struct timespec){0, 2000000}, NULL);
    atomic_fetch_add(&s->late, 1);
}

TEST_WITH(a_run_waits_for_every_item, start, end)
{
    shared *s = *state;
    for (int i = 0; i < RUNS; i++) {
        atomic_store(&s->inside, 0);
        atomic_store(&s->late, 0);
        mo_threads_run(&s->threads, come_late, s, THREADS, 1);
        assert_int_equal(atomic_load(&s->late), THREADS);
    }
}

static void mark(void *context, size_t begin, size_t count)
{
    shared *s = context;
    for (size_t i = begin; i < begin + count; i++)
        s->seen[i]++;
}

TEST_WITH(every_item_runs_once, start, end)
{
    shared *s = *state;
    static const size_t counts[] = {0, 1, 2, 7, 8, 1000, 4099};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
        for (size_t tile = 1; tile < 600; tile = 3 * tile + 1) {
            s->seen = calloc(counts[c] + 1, 1);
            mo_threads_run(&s->threads, mark, s, counts[c], tile);
            for (size_t i = 0; i < counts[c]; i++)
                assert_int_equal(s->seen[i], 1);
            assert_int_equal(s->seen[counts[c]], 0);
            free(s->seen);
        }
}

TEST(never_started_is_this_thread_alone)
{
    shared s = {.seen = calloc(100, 1)};
    mo_threads_init(&s.threads);
    mo_threads_run(&s.threads, mark, &s, 100, 7);
    for (int i = 0; i < 100; i++)
        assert_int_equal(s.seen[i], 1);
    mo_threads_fini(&s.threads);
    free(s.seen);
}

enum { ITEMS = 64 };

typedef struct crowd {
    atomic_int inside, most;
    int wanted; /* threads that are waited for; 0: nobody waits */
} crowd;

static void stay(const void *args, uint64_t begin, uint64_t end)
{
    crowd *c = *(crowd *const *)args;
    int inside = atomic_fetch_add(&c->inside, 1) + 1, most = atomic_load(&c->most);
    while (inside > most && !atomic_compare_exchange_weak(&c->most, &most, inside))
        continue;
    while (atomic_load(&c->most) < c->wanted)
        sched_yield();
    atomic_fetch_sub(&c->inside, 1);
}

/* The most threads that are inside a kernel at once, where `wanted` are waited for. */
static int crowd_of(memopt_device *device, memopt_stream stream, int wanted)
{
    static const mo_kernel kernel = {
        "test_stay", sizeof(crowd *), 1, {stay, NULL, NULL}, NULL, NULL, NULL};
    crowd c = {.wanted = wanted}, *args = &c;
    OK(mo_launch(device, stream, &kernel, &args, ITEMS));
    OK(memopt_stream_sync(device, stream));
    return atomic_load(&c.most);
}

/* Up, down, to one and back, also where threads run already and on a stream's worker. */
DEVICE_TEST(an_open_device_changes_its_threads, device,
            open_cpu(GRANULE, MEMOPT_STREAM_ORDER_EAGER, 0))
{
    memopt_device_properties p = {.struct_size = sizeof p};
    memopt_stream streams[2] = {NULL, NULL};
    static const uint32_t numbers[] = {4, 3, 1, 5, 5};
    OK(memopt_stream_create(device, &streams[1]));
    for (size_t i = 0; i < 2 * (sizeof numbers / sizeof numbers[0]); i++) {
        uint32_t n = numbers[i / 2];
        OK(memopt_device_set_threads(device, n));
        OK(memopt_device_get_properties(device, &p));
        assert_int_equal(p.threads, n);
        assert_int_equal(crowd_of(device, streams[i % 2], (int)n), n);
    }
    REFUSED_SAYING("1025 threads, at most 1024", memopt_device_set_threads(device, 1025));
    REFUSED(memopt_device_set_threads(NULL, 1));
    assert_int_equal(crowd_of(device, NULL, 5), 5);
}

typedef struct changes {
    memopt_device *device;
    atomic_int items, over;
} changes;

static void *change_threads(void *argument)
{
    changes *c = argument;
    for (uint32_t n = 2; !atomic_load(&c->over); n = n % 4 + 1)
        OK(memopt_device_set_threads(c->device, n));
    return NULL;
}

static void count_items(const void *args, uint64_t begin, uint64_t end)
{
    changes *c = *(changes *const *)args;
    sched_yield();
    atomic_fetch_add(&c->items, (int)(end - begin));
}

/* Launches beside changes: no item is lost, none runs twice. */
TEST(changes_race_with_launches)
{
    static const mo_kernel kernel = {
        "test_count", sizeof(changes *), 1, {count_items, NULL, NULL}, NULL, NULL, NULL};
    changes c = {.device = open_cpu(GRANULE, MEMOPT_STREAM_ORDER_EAGER, 0)}, *args = &c;
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, change_threads, &c), 0);
    for (int i = 1; i <= RUNS; i++) {
        OK(mo_launch(c.device, NULL, &kernel, &args, ITEMS));
        assert_int_equal(c.items, i * ITEMS);
    }
    atomic_store(&c.over, 1);
    pthread_join(other, NULL);
    OK(memopt_device_close(c.device));
}
