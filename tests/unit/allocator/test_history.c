/* The history: what its events say, what a full ring keeps, who is asked, and refusals. */
#include "support.h"

#include <pthread.h>

enum { ROOM = 64 };

static uint32_t ask(void *user)
{
    uint32_t *next = user;
    return ++*next;
}

static void begin(memopt_allocator *allocator, uint64_t events, uint32_t *numbers)
{
    memopt_history_options options = MEMOPT_HISTORY_OPTIONS_INIT;
    options.events = events;
    options.context = numbers == NULL ? NULL : ask;
    options.context_user = numbers;
    OK(memopt_allocator_set_history(allocator, &options));
}

/* Reads all; returns how many. */
static uint64_t read_all(memopt_allocator *allocator, memopt_history_event *events,
                         uint64_t *out_first)
{
    uint64_t count = 0;
    OK(memopt_allocator_read_history(allocator, 0, ROOM, events, out_first, &count));
    for (uint64_t i = 1; i < count; i++)
        assert_true(events[i - 1].time_ns <= events[i].time_ns);
    return count;
}

typedef struct expected {
    uint32_t action;
    const void *address;
    uint64_t bytes;
    uint32_t tag, context;
} expected;

static void check_events(const memopt_history_event *events, const expected *wanted, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(events[i].action, wanted[i].action);
        assert_ptr_equal(events[i].address, wanted[i].address);
        assert_int_equal(events[i].bytes, wanted[i].bytes);
        assert_int_equal(events[i].tag, wanted[i].tag);
        assert_int_equal(events[i].context, wanted[i].context);
        assert_true(events[i].thread != 0);
    }
}

ALLOCATOR_TEST(test_events, allocator, eager(CAPACITY), CLASSIC)
{
    memopt_history_event events[ROOM];
    uint64_t first;
    uint32_t numbers = 10;
    void *none = NULL, *block = NULL, *other = NULL;
    struct timespec now;
    void *before = alloc(allocator, 20 * MIB);
    begin(allocator, 0, &numbers);
    OK(memopt_allocator_alloc(allocator, 1000, MEMOPT_TAG_WEIGHTS, NULL, &block));
    OK(memopt_allocator_free(allocator, block));
    FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY,
          memopt_allocator_alloc(allocator, CAPACITY, MEMOPT_TAG_GRADIENTS, NULL, &none));
    OK(memopt_allocator_alloc(allocator, 2000, MEMOPT_TAG_OPTIMIZER, NULL, &other));
    assert_int_equal(read_all(allocator, events, &first), 9);
    assert_int_equal(first, 0);
    void *large = events[0].address, *small = events[2].address;
    const expected wanted[] = {
        {MEMOPT_HISTORY_MAP, large, 20 * MIB, 0, 0}, /* what there is at the beginning */
        {MEMOPT_HISTORY_ALLOC, before, 20 * MIB, MEMOPT_TAG_OTHER, 0},
        {MEMOPT_HISTORY_MAP, small, 2 * MIB, 0, 0},
        {MEMOPT_HISTORY_ALLOC, block, 1000, MEMOPT_TAG_WEIGHTS, 11},
        {MEMOPT_HISTORY_FREE, block, 1000, MEMOPT_TAG_WEIGHTS, 11},
        {MEMOPT_HISTORY_UNMAP, small, 2 * MIB, 0, 0},
        {MEMOPT_HISTORY_FAILED, NULL, CAPACITY, MEMOPT_TAG_GRADIENTS, 12},
        {MEMOPT_HISTORY_MAP, events[7].address, 2 * MIB, 0, 0},
        {MEMOPT_HISTORY_ALLOC, other, 2000, MEMOPT_TAG_OPTIMIZER, 13},
    };
    check_events(events, wanted, sizeof wanted / sizeof wanted[0]);
    clock_gettime(CLOCK_REALTIME, &now);
    assert_true(events[8].time_ns / 1000000000 - (uint64_t)now.tv_sec + 2 <= 4);
}

/* The last events are kept; the number of the first tells how many were lost. */
ALLOCATOR_TEST(a_full_ring, allocator, eager(CAPACITY), EXPANDABLE)
{
    memopt_history_event events[ROOM];
    uint64_t first, count;
    (void)alloc(allocator, 1000);
    begin(allocator, 5, NULL);
    for (uint64_t i = 0; i < 10; i++)
        OK(memopt_allocator_free(allocator, alloc(allocator, 100 + i)));
    assert_int_equal(read_all(allocator, events, &first), 5);
    assert_int_equal(first, 2 + 20 - 5); /* the memory and the block that there was */
    assert_int_equal(events[0].action, MEMOPT_HISTORY_FREE);
    assert_int_equal(events[0].bytes, 107);
    assert_int_equal(events[4].bytes, 109);
    /* A reader goes on where it was. */
    OK(memopt_allocator_read_history(allocator, 20, 1, events, &first, &count));
    assert_true(first == 20 && count == 1 && events[0].bytes == 109);
    OK(memopt_allocator_read_history(allocator, 22, ROOM, events, &first, &count));
    assert_true(first == 22 && count == 0);
    OK(memopt_allocator_read_history(allocator, 1000, 0, NULL, &first, &count));
    assert_true(first == 22 && count == 0);
}

/* A free that waits for a stream has a second event when the stream is done. */
ALLOCATOR_TEST(pending_frees, allocator, open_cpu(CAPACITY, MEMOPT_STREAM_ORDER_ADVERSARIAL, 0),
               EXPANDABLE)
{
    memopt_history_event events[ROOM];
    uint64_t first;
    memopt_stream stream = stream_on(device);
    begin(allocator, 0, NULL);
    void *block = alloc(allocator, 1000);
    OK(memopt_fill(device, block, 0, 1000, stream));
    OK(memopt_allocator_record_stream(allocator, block, stream));
    OK(memopt_allocator_free(allocator, block));
    uint64_t count = read_all(allocator, events, &first);
    assert_int_equal(events[count - 2].action, MEMOPT_HISTORY_RECORD_STREAM);
    assert_ptr_equal(events[count - 2].stream, stream);
    assert_int_equal(events[count - 1].action, MEMOPT_HISTORY_FREE);
    OK(memopt_stream_sync(device, stream));
    OK(memopt_allocator_free(allocator, alloc(allocator, 512))); /* asks for the event */
    count = read_all(allocator, events, &first);
    assert_int_equal(events[4].action, MEMOPT_HISTORY_COMPLETED);
    assert_ptr_equal(events[4].address, block);
    assert_int_equal(events[4].bytes, 1000);
}

/* A snapshot has each block's number and age. */
static memopt_status look(void *user, const memopt_block_info *block)
{
    memopt_block_info *found = user;
    if (block->address == found->address)
        *found = *block;
    return MEMOPT_OK;
}

ALLOCATOR_TEST(snapshots, allocator, eager(CAPACITY), CLASSIC)
{
    uint32_t numbers = 0;
    memopt_block_info found = MEMOPT_BLOCK_INFO_INIT;
    begin(allocator, 2, &numbers);
    void *blocks[4];
    for (int i = 0; i < 4; i++)
        blocks[i] = alloc(allocator, 1000);
    found.address = blocks[1];
    OK(memopt_allocator_snapshot(allocator, look, &found));
    assert_int_equal(found.context, 2); /* the ring has lost its event */
    assert_int_equal(found.age, 3);
}

ALLOCATOR_TEST(pools, allocator, eager(CAPACITY), CLASSIC)
{
    memopt_history_event events[ROOM];
    uint64_t first;
    memopt_pool *before, *after;
    OK(memopt_pool_create(allocator, NULL, &before));
    begin(allocator, 3, NULL);
    OK(memopt_pool_create(allocator, NULL, &after));
    OK(memopt_allocator_free(after, alloc(after, 1000)));
    OK(memopt_allocator_free(after, alloc(after, 1000)));
    assert_int_equal(read_all(after, events, &first), 3);
    assert_int_equal(first, 2);
    assert_int_equal(read_all(allocator, events, &first), 0);
    FAILS(MEMOPT_NOT_FOUND, memopt_allocator_read_history(before, 0, 0, NULL, &first, &first));
    OK(memopt_allocator_destroy(before));
    OK(memopt_allocator_destroy(after));
}

ALLOCATOR_TEST(refusals, allocator, eager(CAPACITY), CLASSIC)
{
    uint64_t first = 7, count = 7;
    memopt_history_options options = MEMOPT_HISTORY_OPTIONS_INIT;
    REFUSED(memopt_allocator_set_history(NULL, &options));
    FAILS_SAYING(MEMOPT_NOT_FOUND, "no history", memopt_allocator_set_history(allocator, NULL));
    options.events = UINT64_MAX / 2;
    FAILS(MEMOPT_OUT_OF_HOST_MEMORY, memopt_allocator_set_history(allocator, &options));
    options.events = 0;
    OK(memopt_allocator_set_history(allocator, &options));
    FAILS_SAYING(MEMOPT_BUSY, "end it first", memopt_allocator_set_history(allocator, &options));
    REFUSED(memopt_allocator_read_history(allocator, 0, 1, NULL, &first, &count));
    REFUSED(memopt_allocator_read_history(allocator, 0, 0, NULL, NULL, &count));
    REFUSED(memopt_allocator_read_history(NULL, 0, 0, NULL, &first, &count));
    assert_true(first == 7 && count == 7);
    OK(memopt_allocator_set_history(allocator, NULL));
}

/* Threads allocate while others read, begin and end histories. */
typedef struct worker {
    memopt_allocator *allocator;
    int which;
} worker;

static uint32_t constant(void *user)
{
    return *(uint32_t *)user;
}

static void *work(void *user)
{
    const worker *w = user;
    static uint32_t number = 5;
    memopt_history_event events[ROOM];
    memopt_history_options options = MEMOPT_HISTORY_OPTIONS_INIT;
    uint64_t first, count;
    options.events = 100;
    options.context = constant;
    options.context_user = &number;
    for (int i = 0; i < 2000; i++) {
        if (w->which < 2) {
            OK(memopt_allocator_free(w->allocator, alloc(w->allocator, 600)));
        } else if (i % 10 != 0) {
            (void)memopt_allocator_read_history(w->allocator, 0, ROOM, events, &first, &count);
        } else if (memopt_allocator_set_history(w->allocator, &options) != MEMOPT_OK) {
            OK(memopt_allocator_set_history(w->allocator, NULL));
        }
    }
    return NULL;
}

ALLOCATOR_TEST(test_threads, allocator, eager(CAPACITY), CLASSIC)
{
    pthread_t threads[3];
    worker workers[3];
    for (int i = 0; i < 3; i++) {
        workers[i] = (worker){allocator, i};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
}
