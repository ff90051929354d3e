/* Threads that share a launch's items: they run side by side, all items once, and a run waits. */
#include "support.h"

#include "device/cpu_threads.h"

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
    (void)begin;
    atomic_fetch_add(&s->inside, (int)count);
    while (atomic_load(&s->inside) < THREADS) /* each item holds its thread until all are taken */
        sched_yield();
}

static void they_run_side_by_side(void **state)
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

static void a_run_waits_for_every_item(void **state)
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

static void every_item_runs_once(void **state)
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

static void never_started_is_this_thread_alone(void **state)
{
    (void)state;
    shared s = {.seen = calloc(100, 1)};
    mo_threads_init(&s.threads);
    mo_threads_run(&s.threads, mark, &s, 100, 7);
    for (int i = 0; i < 100; i++)
        assert_int_equal(s.seen[i], 1);
    mo_threads_fini(&s.threads);
    free(s.seen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(they_run_side_by_side, start, end),
        cmocka_unit_test_setup_teardown(a_run_waits_for_every_item, start, end),
        cmocka_unit_test_setup_teardown(every_item_runs_once, start, end),
        cmocka_unit_test(never_started_is_this_thread_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
