/* What a device tells its race finder: each way in which work is ordered, and each mistake. */
#include "support.h"

#include "memopt/cast.h"
#include "memopt/optim.h"
#include "support/bench.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { BYTES = 4096 };

typedef struct world {
    memopt_device *device;
    memopt_race *race;
    memopt_stream s, t;
    memopt_event *event;
    unsigned char *memory, *other; /* page-locked */
} world;

static world open_with(memopt_race_search search, uint32_t order)
{
    world w = {NULL, NULL, NULL, NULL, NULL, NULL, NULL};
    void *pointer;
    bench_races = search;
    w.device = bench_open_cpu(&(bench_device){order, 7, 64 * MIB, 1});
    OK(memopt_device_get_race(w.device, &w.race));
    w.s = stream_on(w.device);
    w.t = stream_on(w.device);
    w.event = event_on(w.device);
    OK(memopt_host_alloc(w.device, BYTES, &pointer));
    w.memory = pointer;
    OK(memopt_host_alloc(w.device, BYTES, &pointer));
    w.other = pointer;
    return w;
}

/* Ends all; returns how many races there were. */
static uint64_t close_world(world *w)
{
    memopt_race_stats stats = MEMOPT_RACE_STATS_INIT;
    OK(memopt_host_free(w->device, w->memory));
    OK(memopt_host_free(w->device, w->other));
    OK(memopt_event_destroy(w->event));
    OK(memopt_stream_destroy(w->device, w->s));
    OK(memopt_stream_destroy(w->device, w->t));
    OK(memopt_race_get_stats(w->race, &stats));
    OK(memopt_device_close(w->device));
    return stats.reports;
}

/* --- ways to order stream t behind stream s */

static void tell(void *user)
{
    atomic_store((atomic_int *)user, 1);
}

enum {
    NO_WAIT,
    EVENT,
    EVENT_SYNC,
    EVENT_QUERY,
    STREAM_SYNC,
    STREAM_QUERY,
    DEVICE_SYNC,
    COPY_SYNC,
    CALLBACK,
    OLD_EVENT,
    WAYS
};

static void order(world *w, int way)
{
    atomic_int called = 0;
    switch (way) {
    case EVENT:
        OK(memopt_event_record(w->event, w->s));
        OK(memopt_stream_wait_event(w->device, w->t, w->event));
        break;
    case EVENT_SYNC:
        OK(memopt_event_record(w->event, w->s));
        OK(memopt_event_sync(w->event));
        break;
    case EVENT_QUERY:
        OK(memopt_event_record(w->event, w->s));
        while (memopt_event_query(w->event) != MEMOPT_OK)
            ;
        break;
    case STREAM_SYNC:
        OK(memopt_stream_sync(w->device, w->s));
        break;
    case STREAM_QUERY:
        while (memopt_stream_query(w->device, w->s) != MEMOPT_OK)
            ;
        break;
    case DEVICE_SYNC:
        OK(memopt_device_sync(w->device));
        break;
    case COPY_SYNC:
        OK(memopt_copy_sync(w->device, w->other, &way, sizeof way, w->s));
        break;
    case CALLBACK:
        OK(memopt_stream_host_callback(w->device, w->s, tell, &called));
        while (!atomic_load(&called)) /* that the host sees it is all there is */
            ;
        break;
    case OLD_EVENT: /* recorded before the work */
        OK(memopt_stream_wait_event(w->device, w->t, w->event));
        break;
    default:
        break;
    }
}

static void check_way(int way, uint32_t how)
{
    world w = open_with(MEMOPT_RACE_SEARCH_QUIET, how);
    OK(memopt_event_record(w.event, w.s));
    OK(memopt_fill(w.device, w.memory, 1, BYTES, w.s));
    order(&w, way);
    OK(memopt_copy(w.device, w.other, w.memory, BYTES, w.t));
    OK(memopt_device_sync(w.device));
    assert_int_equal(close_world(&w), way == NO_WAIT || way == OLD_EVENT);
}

/* A missing wait runs on adversarial streams alone: those have no thread, so that the bytes are
 * always the same and ThreadSanitizer sees no race of its own. */
TEST(ways_to_order)
{
    for (int way = NO_WAIT; way < WAYS; way++) {
        if (way != NO_WAIT && way != OLD_EVENT)
            check_way(way, MEMOPT_STREAM_ORDER_EAGER);
        if (way != CALLBACK) /* nothing would ask for it */
            check_way(way, MEMOPT_STREAM_ORDER_ADVERSARIAL);
    }
}

/* --- what is said, and when */

TEST(told_once_by_the_next_wait)
{
    world w = open_with(MEMOPT_RACE_SEARCH_ON, MEMOPT_STREAM_ORDER_ADVERSARIAL);
    char expected[4][64];
    OK(memopt_fill(w.device, w.memory, 1, BYTES, w.s));
    OK(memopt_copy(w.device, w.other, w.memory + 100, 50, w.t));
    GIVES(MEMOPT_DEVICE_FAULT, memopt_stream_sync(w.device, w.t));
    snprintf(expected[0], 64, "the copy (operation 2) on stream %p reads 50", (void *)w.t);
    snprintf(expected[1], 64, "bytes at %p that", (void *)(w.memory + 100));
    snprintf(expected[2], 64, "the fill (operation 1) on stream %p writes", (void *)w.s);
    snprintf(expected[3], 64, "make stream %p wait for an event", (void *)w.t);
    for (int i = 0; i < 4; i++)
        if (strstr(memopt_last_error(), expected[i]) == NULL)
            fail_msg("no \"%s\" in: %s", expected[i], memopt_last_error());
    assert_int_equal(w.other[0], 0); /* the finder is right: old bytes */
    OK(memopt_device_sync(w.device));
    assert_int_equal(close_world(&w), 1);
}

/* Launches of the library, and of the caller who names what they use. */
TEST(launches)
{
    world w = open_with(MEMOPT_RACE_SEARCH_QUIET, MEMOPT_STREAM_ORDER_EAGER);
    memopt_tensor from = {w.memory, 8, MEMOPT_DTYPE_F32}, to = {w.other, 8, MEMOPT_DTYPE_BF16};
    memopt_race_report report = MEMOPT_RACE_REPORT_INIT;
    OK(memopt_fill(w.device, w.memory, 0, BYTES, w.s));
    OK(memopt_stream_sync(w.device, w.s));
    OK(memopt_cast(w.device, &to, &from, 1, NULL, w.s));
    OK(memopt_stream_uses(w.device, w.t, "mine", w.memory + 32, 32, MEMOPT_RACE_WRITE));
    GIVES(MEMOPT_NOT_FOUND, memopt_race_get_report(w.race, 0, &report));
    OK(memopt_stream_uses(w.device, w.t, "mine", w.memory + 31, 32, MEMOPT_RACE_WRITE));
    OK(memopt_race_get_report(w.race, 0, &report));
    assert_int_equal(report.kind, MEMOPT_RACE_WRITE_AFTER_READ);
    OK(memopt_stream_uses(w.device, w.t, "mine", w.other + 15, 1, MEMOPT_RACE_READ));
    OK(memopt_race_get_report(w.race, 1, &report));
    assert_int_equal(report.kind, MEMOPT_RACE_READ_AFTER_WRITE);
    OK(memopt_stream_uses(w.device, w.t, "mine", w.other + 16, 1, MEMOPT_RACE_READ));
    OK(memopt_device_sync(w.device));
    assert_int_equal(close_world(&w), 2);
}

/* A step reads gradients and writes parameters and states. */
TEST(optimizer_step)
{
    world w = open_with(MEMOPT_RACE_SEARCH_QUIET, MEMOPT_STREAM_ORDER_EAGER);
    memopt_tensor values = {w.memory, 8, MEMOPT_DTYPE_F32},
                  gradient = {w.other, 8, MEMOPT_DTYPE_F32};
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    memopt_state_view state = MEMOPT_STATE_VIEW_INIT;
    memopt_allocator *allocator;
    memopt_optimizer *optimizer;
    memopt_race_stats stats = MEMOPT_RACE_STATS_INIT;
    uint32_t number;
    uint64_t index;
    OK(memopt_allocator_create(w.device, NULL, NULL, &allocator));
    OK(memopt_optimizer_create(allocator, NULL, &optimizer));
    OK(memopt_optimizer_add_group(optimizer, &group, &number));
    OK(memopt_optimizer_add_parameter(optimizer, 0, &values, NULL, w.s, &index));
    OK(memopt_optimizer_step(optimizer, &gradient, 1, NULL, w.s));
    OK(memopt_optimizer_get_state(optimizer, 0, 1, &state));
    OK(memopt_stream_uses(w.device, w.t, "mine", w.other, 32, MEMOPT_RACE_READ));
    OK(memopt_race_get_stats(w.race, &stats));
    assert_int_equal(stats.reports, 0);
    OK(memopt_stream_uses(w.device, w.t, "writes a gradient", w.other, 4, MEMOPT_RACE_WRITE));
    OK(memopt_stream_uses(w.device, w.t, "reads a value", w.memory, 4, MEMOPT_RACE_READ));
    OK(memopt_stream_uses(w.device, w.t, "reads a state", state.tensor.data, 4, MEMOPT_RACE_READ));
    OK(memopt_device_sync(w.device));
    OK(memopt_optimizer_destroy(optimizer));
    OK(memopt_allocator_destroy(allocator));
    assert_int_equal(close_world(&w), 3 + 1); /* the state was zeroed, too */
}

/* Blocks of an allocator. */
TEST(frees)
{
    world w = open_with(MEMOPT_RACE_SEARCH_QUIET, MEMOPT_STREAM_ORDER_EAGER);
    memopt_allocator *allocator;
    void *block;
    OK(memopt_allocator_create(w.device, NULL, NULL, &allocator));
    for (int recorded = 1; recorded >= 0; recorded--) {
        memopt_race_stats stats = MEMOPT_RACE_STATS_INIT;
        OK(memopt_allocator_alloc(allocator, BYTES, MEMOPT_TAG_OTHER, w.s, &block));
        OK(memopt_fill(w.device, block, 1, BYTES, w.t));
        if (recorded)
            OK(memopt_allocator_record_stream(allocator, block, w.t));
        OK(memopt_allocator_free(allocator, block));
        OK(memopt_allocator_alloc(allocator, BYTES, MEMOPT_TAG_OTHER, w.s, &block));
        OK(memopt_race_get_stats(w.race, &stats));
        assert_int_equal(stats.reports, !recorded);
        OK(memopt_device_sync(w.device));
        OK(memopt_allocator_free(allocator, block));
    }
    OK(memopt_allocator_destroy(allocator));
    assert_int_equal(close_world(&w), 1);
}

TEST(freed_while_copied)
{
    world w = open_with(MEMOPT_RACE_SEARCH_ON, MEMOPT_STREAM_ORDER_ADVERSARIAL);
    void *pinned;
    OK(memopt_host_alloc(w.device, BYTES, &pinned));
    OK(memopt_fill(w.device, pinned, 1, 1, w.s));
    OK(memopt_stream_sync(w.device, w.s));
    OK(memopt_stream_uses(w.device, w.s, "mine", pinned, BYTES, MEMOPT_RACE_READ));
    OK(memopt_host_free(w.device, pinned));
    GIVES(MEMOPT_DEVICE_FAULT, memopt_device_sync(w.device));
    assert_non_null(strstr(memopt_last_error(), "the free of page-locked memory by the host"));
    assert_non_null(strstr(memopt_last_error(), "that the mine (operation 2)"));
    assert_int_equal(close_world(&w), 1);
}

/* --- settings */

TEST(settings)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    memopt_device *device;
    memopt_race *race = NULL;
    const struct {
        const char *variable;
        memopt_race_search option;
        int on;
    } cases[] = {{NULL, 0, 0},
                 {"0", 0, 0},
                 {"1", 0, 1},
                 {"yes", 0, 0},
                 {"", 0, 0},
                 {"1", MEMOPT_RACE_SEARCH_OFF, 0},
                 {NULL, MEMOPT_RACE_SEARCH_ON, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsetenv("MEMOPT_RACE");
        if (cases[i].variable != NULL)
            setenv("MEMOPT_RACE", cases[i].variable, 1);
        options.race = cases[i].option;
        OK(memopt_device_open("cpu", &options, &device));
        GIVES(cases[i].on ? MEMOPT_OK : MEMOPT_UNSUPPORTED, memopt_device_get_race(device, &race));
        OK(memopt_stream_uses(device, NULL, "mine", &race, 8, MEMOPT_RACE_READ));
        GIVES(MEMOPT_INVALID_ARGUMENT, memopt_stream_uses(device, NULL, "mine", NULL, 8, 1));
        GIVES(MEMOPT_INVALID_ARGUMENT, memopt_stream_uses(device, NULL, "mine", &race, 8, 4));
        GIVES(cases[i].on ? MEMOPT_INVALID_ARGUMENT : MEMOPT_OK,
              memopt_stream_uses(device, (memopt_stream)&device, "mine", &race, 8, 3));
        OK(memopt_device_close(device));
    }
    unsetenv("MEMOPT_RACE");
}

/* More streams than the finder has room for, one after the other. */
TEST(streams_come_and_go)
{
    world w = open_with(MEMOPT_RACE_SEARCH_QUIET, MEMOPT_STREAM_ORDER_ADVERSARIAL);
    for (int i = 0; i < 2 * MEMOPT_RACE_MOST_STREAMS; i++) {
        memopt_stream stream = stream_on(w.device);
        OK(memopt_fill(w.device, w.memory, 1, 1, stream));
        OK(memopt_stream_destroy(w.device, stream));
    }
    OK(memopt_fill(w.device, w.memory, 1, 1, w.s));
    OK(memopt_fill(w.device, w.memory, 1, 1, w.t));
    OK(memopt_device_sync(w.device));
    assert_int_equal(close_world(&w), 1);
}
