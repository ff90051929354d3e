/* Each kind of race, and each way to order its two operations: then there is none. */
#include "support.h"

#include <pthread.h>

enum { AT = 0x10000, BYTES = 256 };

/* How the second actor comes after stream 1. */
enum { NOT, BY_WAIT, BY_EVENT, BY_STREAM_3, BY_HOST, BY_NEW_STREAM, ORDERS };

static uint32_t order(memopt_race *race, int how, uint32_t second)
{
    uint64_t event = 0;
    if (how == BY_WAIT)
        OK(memopt_race_wait(race, second, 1));
    if (how == BY_EVENT) {
        OK(memopt_race_record(race, 1, &event));
        OK(memopt_race_wait_event(race, second, event));
        OK(memopt_race_drop_event(race, event));
    }
    if (how == BY_STREAM_3) {
        OK(memopt_race_wait(race, 3, 1));
        touch(race, 3, 99, WRITE, 0x90000, 8);
        OK(memopt_race_wait(race, second, 3));
    }
    if (how == BY_HOST || how == BY_NEW_STREAM)
        OK(memopt_race_wait(race, HOST, 1));
    if (how == BY_NEW_STREAM && second != HOST)
        OK(memopt_race_add_stream(race, &second));
    return second;
}

static void check_pair(memopt_race_mode first, memopt_race_mode second, uint32_t actor, int how,
                       memopt_race_kind expected)
{
    memopt_race *race = new_race(0, 3);
    OK(memopt_race_allocate(race, AT, BYTES, MEMOPT_RACE_DEVICE, 1, 1));
    touch(race, 1, 10, first, AT + 16, 64);
    actor = order(race, how, actor);
    touch(race, actor, 20, second, AT, 32);
    if (how != NOT || expected == 0) {
        assert_int_equal(stats_of(race).reports, 0);
    } else {
        memopt_race_report r = report_of(race, 0);
        assert_int_equal(stats_of(race).reports, 1);
        assert_true(r.kind == expected && r.memory == MEMOPT_RACE_DEVICE);
        assert_true(r.address == AT + 16 && r.bytes == 16);
        assert_true(r.block_address == AT && r.block_bytes == BYTES);
        assert_true(r.first.tag == 10 && r.first.actor == 1 && r.first.write == (first == WRITE));
        assert_true(r.second.tag == 20 && r.second.actor == actor);
        assert_true(r.second.write == ((second & WRITE) != 0));
        assert_true(r.waiter == actor && r.waited == 1);
    }
    OK(memopt_race_destroy(race));
}

TEST(kinds_and_orders)
{
    for (uint32_t actor = 0; actor <= 2; actor += 2)
        for (int how = NOT; how < ORDERS; how++) {
            check_pair(WRITE, READ, actor, how, MEMOPT_RACE_READ_AFTER_WRITE);
            check_pair(READ, WRITE, actor, how, MEMOPT_RACE_WRITE_AFTER_READ);
            check_pair(WRITE, WRITE, actor, how, MEMOPT_RACE_WRITE_AFTER_WRITE);
            check_pair(WRITE, READ | WRITE, actor, how, MEMOPT_RACE_WRITE_AFTER_WRITE);
            check_pair(READ, READ, actor, how, 0);
        }
    check_pair(WRITE, READ, 1, NOT, 0); /* one stream */
}

static void touch_columns(memopt_race *race, uint32_t stream, uint64_t tag, uint64_t at,
                          int64_t rows, int64_t row, uint64_t bytes)
{
    int64_t shape[] = {2, 1, rows}, strides[] = {rows * row, 0, row};
    memopt_race_access access = {.address = at,
                                 .bytes = bytes,
                                 .mode = WRITE,
                                 .shape = shape,
                                 .strides = strides,
                                 .dims = 3};
    OK(memopt_race_run(race, stream, tag, &access, 1));
}

/* Columns of one matrix on several streams; a row crosses all of them. */
RACE_TEST(columns)
{
    OK(memopt_race_allocate(race, AT, 64 * 64, MEMOPT_RACE_DEVICE, 1, 1));
    touch_columns(race, 1, 10, AT, 32, 64, 16);
    touch_columns(race, 2, 20, AT + 16, 32, 64, 16);
    touch_columns(race, 3, 30, AT + 32, 32, 64, 32);
    assert_int_equal(stats_of(race).reports, 0);
    touch_columns(race, 2, 21, AT + 47, 32, 64, 1); /* in stream 3's */
    assert_int_equal(stats_of(race).reports, 1);
    assert_int_equal(report_of(race, 0).first.tag, 30);
    touch(race, 1, 11, READ, AT + 64, 16); /* its own column in the second row */
    assert_int_equal(stats_of(race).reports, 1);
    touch(race, 1, 12, READ, AT + 64, 17);
    assert_int_equal(stats_of(race).reports, 2);
    assert_int_equal(report_of(race, 1).first.tag, 20);
    assert_int_equal(stats_of(race).forgotten, 0);
}

/* The same bytes written down in other ways are one range: transposed, reversed, expanded. */
RACE_TEST(equal_shapes)
{
    int64_t shape[] = {5, 8, 4}, strides[] = {0, 4, -32};
    memopt_race_access access = {.address = AT + 96,
                                 .bytes = 4,
                                 .mode = WRITE,
                                 .shape = shape,
                                 .strides = strides,
                                 .dims = 3};
    OK(memopt_race_run(race, 1, 10, &access, 1));
    touch(race, 1, 11, WRITE, AT, 128);
    assert_int_equal(stats_of(race).ranges, 1);
    touch(race, 2, 20, READ, AT + 127, 8);
    assert_int_equal(report_of(race, 0).first.tag, 11);
    shape[2] = 0; /* nothing */
    OK(memopt_race_run(race, 3, 30, &access, 1));
    assert_int_equal(stats_of(race).reports, 1);
}

/* Pairs that are too large to compare, or have gaps in two dimensions, are no race, and are counted. */
RACE_TEST(not_compared)
{
    int64_t shape[] = {4, 4}, strides[] = {100, 8};
    memopt_race_access crop = {AT, 4, shape, strides, 2, WRITE};
    touch_columns(race, 1, 10, AT, 1 << 20, 64, 16);
    touch_columns(race, 2, 20, AT + 16, 1 << 20, 64, 16);
    assert_int_equal(stats_of(race).reports, 0);
    assert_int_equal(stats_of(race).forgotten, 1);
    OK(memopt_race_run(race, 3, 30, &crop, 1));
    assert_int_equal(stats_of(race).forgotten, 3); /* beside two others */
    assert_int_equal(stats_of(race).reports, 0);
    OK(memopt_race_run(race, 2, 40, &crop, 1)); /* the same bytes */
    assert_int_equal(report_of(race, 0).first.tag, 30);
}

/* An access over several blocks and what is between them is checked in each. */
RACE_TEST(over_blocks)
{
    OK(memopt_race_allocate(race, AT, 64, MEMOPT_RACE_PINNED, 0, 1));
    OK(memopt_race_allocate(race, AT + 96, 64, MEMOPT_RACE_DEVICE, 1, 2));
    touch(race, 1, 10, WRITE, AT + 32, 256);
    touch(race, 2, 20, READ, AT + 60, 4);
    touch(race, 2, 21, READ, AT + 80, 4);
    touch(race, 2, 22, READ, AT + 159, 2);
    assert_int_equal(stats_of(race).reports, 3);
    assert_int_equal(report_of(race, 0).memory, MEMOPT_RACE_PINNED);
    assert_int_equal(report_of(race, 1).memory, MEMOPT_RACE_OUTSIDE);
    assert_int_equal(report_of(race, 1).block_bytes, 0);
    assert_int_equal(report_of(race, 2).block_address, AT + 96);
}

/* --- blocks freed in use */

/* What waits for what is in test_random.c. */
static void check_free(memopt_race_memory memory)
{
    memopt_race *race = new_race(0, 2);
    OK(memopt_race_allocate(race, AT, BYTES, memory, 1, 5));
    touch(race, 1, 10, WRITE, AT, BYTES);
    OK(memopt_race_wait(race, 2, 1));
    touch(race, 2, 20, READ, AT, 16);
    touch(race, 2, 21, READ, AT + 32, 16);
    OK(memopt_race_free(race, AT, 6));
    OK(memopt_race_allocate(race, AT + BYTES, BYTES, memory, 1, 7));
    assert_int_equal(stats_of(race).reports, memory == MEMOPT_RACE_DEVICE);
    if (memory == MEMOPT_RACE_DEVICE) {
        memopt_race_report r = report_of(race, 0);
        assert_true(r.kind == MEMOPT_RACE_FREED_IN_USE && r.freed_tag == 6);
        assert_true(r.block_address == AT && r.block_bytes == BYTES);
        assert_true(r.address == AT + 32 && r.bytes == 16);
        assert_true(r.first.tag == 21 && r.first.actor == 2 && !r.first.write);
        assert_true(r.second.tag == 7 && r.second.actor == 1);
        assert_true(r.waiter == 1 && r.waited == 2);
    }
    OK(memopt_race_destroy(race));
}

TEST(freed_in_use)
{
    check_free(MEMOPT_RACE_DEVICE);
    check_free(MEMOPT_RACE_PINNED);
}

/* A new block has no history, and one in the place of a live block displaces it. */
RACE_TEST(new_blocks)
{
    touch(race, 1, 10, WRITE, AT, 8);
    OK(memopt_race_allocate(race, AT, BYTES, MEMOPT_RACE_DEVICE, 2, 1));
    touch(race, 2, 20, WRITE, AT, 8);
    OK(memopt_race_allocate(race, AT + 8, BYTES, MEMOPT_RACE_DEVICE, 3, 2));
    touch(race, 3, 30, READ, AT, 16);
    OK(memopt_race_free(race, AT, 3));
    OK(memopt_race_free(race, AT + 9, 4)); /* no block begins there */
    assert_int_equal(stats_of(race).reports, 0);
    assert_int_equal(stats_of(race).blocks, 1);
    assert_int_equal(stats_of(race).forgotten, 1);
}

/* Where addresses are the memory's own, a new block has the uses of the one before it. */
TEST(inherited)
{
    for (uint32_t inherit = 0; inherit < 2; inherit++) {
        memopt_race_options options = MEMOPT_RACE_OPTIONS_INIT;
        memopt_race *race;
        uint32_t stream;
        options.inherit = inherit;
        OK(memopt_race_create(&options, &race));
        OK(memopt_race_add_stream(race, &stream));
        OK(memopt_race_add_stream(race, &stream));
        for (uint64_t life = 0; life < 2; life++) {
            OK(memopt_race_allocate(race, AT, BYTES, MEMOPT_RACE_DEVICE, 1, 1));
            touch(race, 1, 10 + life, WRITE, AT + 8, 8);
            OK(memopt_race_free(race, AT, 2));
        }
        OK(memopt_race_allocate(race, AT, 64, MEMOPT_RACE_DEVICE, 1, 3));
        touch(race, 2, 20, WRITE, AT, 64); /* without a wait for the block's stream */
        assert_int_equal(stats_of(race).reports, inherit);
        if (inherit)
            assert_int_equal(report_of(race, 0).first.tag, 11);
        OK(memopt_race_destroy(race));
    }
}

/* --- bounds */

/* Beyond the bound what is oldest is forgotten, outside of blocks first. That is counted; what is
 * kept is found, and nothing false is. */
TEST(forgotten)
{
    enum { BOUND = 64 << 10, RANGES = 5000 };
    memopt_race *race = new_race(BOUND, 2);
    OK(memopt_race_allocate(race, AT, 16 * RANGES, MEMOPT_RACE_DEVICE, 1, 1));
    for (uint64_t i = 0; i < 100; i++)
        touch(race, 1, 100 + i, WRITE, AT + 16 * i, 8);
    for (uint64_t i = 0; i < RANGES; i++)
        touch(race, 1, 1000 + i, WRITE, 0x1000000 + 16 * i, 8);
    assert_true(stats_of(race).bytes_peak <= BOUND);
    assert_true(stats_of(race).forgotten >= RANGES - BOUND / 64);
    touch(race, 2, 20, READ, AT, 8);
    assert_int_equal(report_of(race, 0).first.tag, 100);
    touch(race, 2, 21, READ, 0x1000000, 8); /* long forgotten */
    assert_int_equal(stats_of(race).reports, 1);
    for (uint64_t i = 0; i < RANGES; i++)
        touch(race, 1, 10000 + i, WRITE, AT + 16 * i, 8);
    touch(race, 2, 22, READ, AT + 16 * (RANGES - 1), 8);
    assert_int_equal(report_of(race, 1).first.tag, 20); /* overwritten */
    assert_int_equal(report_of(race, 2).first.tag, 10000 + RANGES - 1);
    touch(race, 2, 23, READ, AT + 16, 8);
    assert_int_equal(stats_of(race).reports, 3);
    assert_true(stats_of(race).bytes_peak <= BOUND + KIB); /* the reports */
    OK(memopt_race_destroy(race));
}

TEST(most_reports)
{
    memopt_race_options options = MEMOPT_RACE_OPTIONS_INIT;
    memopt_race *race;
    uint32_t stream;
    options.max_reports = 2;
    OK(memopt_race_create(&options, &race));
    for (int i = 0; i < 2; i++)
        OK(memopt_race_add_stream(race, &stream));
    touch(race, 1, 10, WRITE, AT, 8);
    for (int i = 0; i < 3; i++)
        touch(race, 2, 20, READ, AT, 8); /* told once */
    for (uint64_t i = 1; i < 4; i++)
        touch(race, 2, 20 + i, READ, AT, 8);
    assert_int_equal(stats_of(race).reports, 2);
    assert_int_equal(stats_of(race).forgotten, 2);
    OK(memopt_race_destroy(race));
}

/* --- bad input changes nothing */

RACE_TEST(bad_input)
{
    int64_t shape[] = {2, -1}, strides[] = {8, INT64_MIN};
    uint32_t stream = 77;
    uint64_t event = 9;
    memopt_race_access good = {.address = AT, .bytes = 8, .mode = WRITE};
    memopt_race_access bad[] = {
        {.address = AT, .bytes = 8, .mode = 0},
        {.address = AT, .bytes = 8, .mode = 4},
        {.address = UINT64_MAX - 7, .bytes = 8 + 1, .mode = READ},
        {.address = AT, .bytes = 8, .mode = READ, .dims = 2, .shape = shape, .strides = strides},
        {.address = AT,
         .bytes = 8,
         .mode = READ,
         .dims = 1,
         .shape = shape,
         .strides = strides + 1},
        {.address = AT, .bytes = 8, .mode = READ, .dims = 1, .shape = shape},
        {.address = AT, .bytes = 8, .mode = READ, .dims = 65, .shape = shape, .strides = strides},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        memopt_race_access two[] = {good, bad[i]};
        GIVES(MEMOPT_INVALID_ARGUMENT, memopt_race_run(race, 1, 1, two, 2));
        assert_non_null(strstr(memopt_last_error(), "access 1"));
    }
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_race_run(race, 4, 1, &good, 1));
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_race_run(race, 1, 1, NULL, 1));
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_race_run(NULL, 1, 1, &good, 1));
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_race_wait(race, 1, 4));
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_race_record(race, 1, &event));
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_race_wait_event(race, 1, 1));
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_race_drop_event(race, 1));
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_race_record_stream(race, AT, 0));
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_race_allocate(race, AT, 8, MEMOPT_RACE_DEVICE, 4, 1));
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_race_allocate(race, AT, 8, MEMOPT_RACE_OUTSIDE, 1, 1));
    GIVES(MEMOPT_INVALID_ARGUMENT,
          memopt_race_allocate(race, AT, UINT64_MAX, MEMOPT_RACE_PINNED, 1, 1));
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_race_add_stream(race, NULL));
    memopt_race_report report = MEMOPT_RACE_REPORT_INIT;
    GIVES(MEMOPT_NOT_FOUND, memopt_race_get_report(race, 0, &report));
    memopt_race_stats stats = stats_of(race);
    assert_true(stats.operations == 0 && stats.ranges == 0 && stats.blocks == 0);
    for (int i = 4; i <= MEMOPT_RACE_MOST_STREAMS; i++)
        OK(memopt_race_add_stream(race, &stream));
    GIVES(MEMOPT_LIMIT_REACHED, memopt_race_add_stream(race, &stream));
    assert_int_equal(stream, MEMOPT_RACE_MOST_STREAMS);
    memopt_race_options options = MEMOPT_RACE_OPTIONS_INIT;
    options.inherit = 2;
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_race_create(&options, &race));
}

/* Without host memory a race may be lost; nothing leaks, and calls say so or forget. */
TEST(without_host_memory)
{
    for (int64_t n = 1, struck = 1; struck; n++) {
        int64_t blocks = mo_memory_live_blocks();
        memopt_race *race = NULL;
        uint64_t event = 0;
        uint32_t one = 0, two = 0;
        mo_memory_fail_at(n);
        if (memopt_race_create(NULL, &race) == MEMOPT_OK &&
            memopt_race_add_stream(race, &one) == MEMOPT_OK &&
            memopt_race_add_stream(race, &two) == MEMOPT_OK) {
            OK(memopt_race_allocate(race, AT, BYTES, MEMOPT_RACE_DEVICE, 1, 1));
            touch(race, 1, 10, WRITE, AT, 8);
            touch_columns(race, 1, 11, AT + 64, 2, 16, 4);
            if (memopt_race_record(race, 1, &event) == MEMOPT_OK)
                OK(memopt_race_wait_event(race, 2, event));
            else
                OK(memopt_race_wait(race, 2, 1));
            touch(race, 1, 12, READ, AT + 64, 64);
            touch(race, 2, 20, READ, AT + 64, 64);
            OK(memopt_race_record_stream(race, AT, 2));
            OK(memopt_race_free(race, AT, 2));
            OK(memopt_race_allocate(race, AT, BYTES, MEMOPT_RACE_DEVICE, 1, 3));
            assert_int_equal(stats_of(race).reports, 0);
        }
        struck = mo_memory_fault_struck();
        mo_memory_fail_at(0);
        OK(memopt_race_destroy(race));
        assert_int_equal(mo_memory_live_blocks(), blocks);
    }
}

/* --- threads */

static void *work(void *argument)
{
    memopt_race *race = argument;
    uint32_t stream = 0;
    uint64_t event = 0;
    OK(memopt_race_add_stream(race, &stream));
    for (uint64_t i = 0; i < 500; i++) {
        uint64_t at = AT + 4096 * stream + 16 * (i % 50);
        OK(memopt_race_allocate(race, at, 16, MEMOPT_RACE_DEVICE, stream, i));
        touch(race, stream, i, WRITE, at, 8);
        OK(memopt_race_record(race, stream, &event));
        OK(memopt_race_wait_event(race, stream, event));
        OK(memopt_race_free(race, at, i));
    }
    return NULL;
}

RACE_TEST(threads)
{
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, race), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(stats_of(race).operations, 1500);
    assert_int_equal(stats_of(race).reports, 0);
    assert_int_equal(stats_of(race).blocks, 0);
}
