/* Small programs and what is reported of them, in texts; then bounds and bad input. */
#include "support.h"

#include "race/span.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { AT = 0x10000, BYTES = 256 };

/*
 * A program's words: what is done, by which actor, and the bytes from-to behind AT; for each dimension
 * how many there are of them, and how far apart. Its position is its tag.
 *   r w b  reads, writes, both      a p f  device and page-locked blocks begin, a block ends
 *   u      a use is recorded        <      waits for the actor behind the colon
 *   e x    records and awaits the event     n  a new stream
 * A report: kind, the tag, mode and actor of both sides, the bytes of d(evice), p(age-locked) or
 * o(ther) memory and of its block, who must wait for whom, and the tag of the free.
 */
static void run_word(memopt_race *race, const char *word, uint64_t tag, uint64_t *event)
{
    char what;
    unsigned actor = 0;
    long lo = 0, hi = 0;
    int64_t shape[3], strides[3];
    uint32_t made, dims = 0;
    int used = 0;
    sscanf(word, "%c%u:%ld-%ld%n", &what, &actor, &lo, &hi, &used);
    for (word += used;
         sscanf(word, "*%" SCNd64 "/%" SCNd64 "%n", &shape[dims], &strides[dims], &used) == 2;
         word += used)
        dims++;
    memopt_race_access access = {.address = AT + (uint64_t)lo,
                                 .bytes = (uint64_t)(hi - lo),
                                 .shape = shape,
                                 .strides = strides,
                                 .dims = dims,
                                 .mode = what == 'r'   ? READ
                                         : what == 'w' ? WRITE
                                                       : READ | WRITE};
    if (what == 'a' || what == 'p')
        OK(memopt_race_allocate(race, access.address, access.bytes, what == 'a' ? 1 : 2, actor,
                                tag));
    else if (what == 'f')
        OK(memopt_race_free(race, access.address, tag));
    else if (what == 'u')
        OK(memopt_race_record_stream(race, access.address, actor));
    else if (what == '<')
        OK(memopt_race_wait(race, actor, (uint32_t)lo));
    else if (what == 'e')
        OK(memopt_race_record(race, actor, event));
    else if (what == 'x')
        OK(memopt_race_wait_event(race, actor, *event));
    else if (what == 'n')
        OK(memopt_race_add_stream(race, &made));
    else
        OK(memopt_race_run(race, actor, tag, &access, 1));
}

static char *side_text(char *out, const memopt_race_side *side)
{
    return out + sprintf(out, " %d%c%u", (int)side->tag, "rw"[side->write], side -> actor);
}

static void report_text(char *out, const memopt_race_report *r)
{
    static const char *const kinds[] = {"", "RAW", "WAR", "WAW", "FREED"};
    long block = r->block_bytes != 0 ? (long)(r->block_address - AT) : 0;
    long from = (long)(r->address - AT);
    out += sprintf(out, "%s", kinds[r->kind]);
    out = side_text(side_text(out, &r->first), &r->second);
    out += sprintf(out, " %ld-%ld of %c%ld-%ld %u<%u", from, from + (long)r->bytes,
                   "odp"[r->memory], block, block + (long)r->block_bytes, r->waiter, r->waited);
    if (r->freed_tag != 0)
        sprintf(out, " f%d", (int)r->freed_tag);
}

static void check_program(uint32_t inherit, const char *program, const char *expected)
{
    memopt_race *race = new_race_of((memopt_race_options){.inherit = inherit}, 3);
    char words[200], found[400] = "", *rest = words;
    uint64_t event = 0, tag = 0;
    snprintf(words, sizeof words, "%s", program);
    for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL;)
        run_word(race, word, ++tag, &event);
    for (uint64_t i = 0; i < stats_of(race).reports; i++) {
        memopt_race_report r = report_of(race, i);
        strcat(found, i == 0 ? "" : ", ");
        report_text(found + strlen(found), &r);
    }
    if (strcmp(found, expected) != 0)
        fail_msg("%s: %s, not %s", program, found, expected);
    OK(memopt_race_destroy(race));
}

/* Ranges that touch share no byte, whatever the tree looks like. */
TEST(ranges_that_touch)
{
    enum { SPANS = 64 };
    static mo_span spans[SPANS];
    mo_span *root = NULL;
    for (uint64_t i = 0; i < SPANS; i++) {
        spans[i] = (mo_span){.lo = 16 * i, .hi = 16 * i + 16};
        mo_span_add(&root, &spans[i]);
    }
    for (uint64_t i = 0; i < SPANS; i++) {
        assert_ptr_equal(mo_span_first(root, 16 * i, 16 * i + 1), &spans[i]);
        assert_ptr_equal(mo_span_first(root, 16 * i + 15, 16 * i + 16), &spans[i]);
    }
    assert_null(mo_span_first(root, 16 * SPANS, 16 * SPANS + 1));
}

/* test_random.c has what orders what, in all combinations. */
static const struct {
    const char *program, *reports;
} programs[] = {
    {"a1:0-256 w1:16-80 r2:0-32", "RAW 2w1 3r2 16-32 of d0-256 2<1"},
    {"a1:0-256 r1:16-80 w2:0-32", "WAR 2r1 3w2 16-32 of d0-256 2<1"},
    {"a1:0-256 w1:16-80 w2:0-32", "WAW 2w1 3w2 16-32 of d0-256 2<1"},
    {"a1:0-256 w1:16-80 b2:0-32", "WAW 2w1 3w2 16-32 of d0-256 2<1"},
    {"a1:0-256 w1:16-80 r0:0-32", "RAW 2w1 3r0 16-32 of d0-256 0<1"},
    {"a1:0-256 r1:16-80 r2:0-32 r0:0-32 w1:0-256 r1:0-9", "WAR 3r2 5w1 0-32 of d0-256 1<2"},
    {"a1:0-256 w1:0-8 <2:1 r2:0-8", ""},
    {"a1:0-256 w1:0-8 e1 x2 r2:0-8", ""},
    {"a1:0-256 e1 w1:0-8 x2 r2:0-8", "RAW 3w1 5r2 0-8 of d0-256 2<1"},
    {"a1:0-256 w1:0-8 <3:1 <2:3 r2:0-8", ""},
    {"a1:0-256 w1:0-8 <0:1 r2:0-8 n r4:0-8", ""},
    {"a1:0-256 n <0:1 w1:0-8 r4:0-8", "RAW 4w1 5r4 0-8 of d0-256 4<1"},
    /* columns, and a row over all of them */
    {"a1:0-4096 w1:0-16*32/64 w2:16-32*32/64 w3:32-64*32/64 r1:64-80", ""},
    {"a1:0-4096 w3:32-64*32/64 w2:47-48*32/64", "WAW 2w3 3w2 47-2032 of d0-4096 2<3"},
    {"a1:0-4096 w2:16-32*32/64 r1:64-81", "RAW 2w2 3r1 64-81 of d0-4096 1<2"},
    /* elements that touch are one run, whose last byte is its last */
    {"w1:0-4*3/100*10/4 w2:40-100 w3:139-140", "WAW 1w1 3w3 139-140 of o0-0 3<1"},
    /* the same bytes written down in other ways: transposed, reversed, expanded; and none */
    {"w1:96-100*5/0*8/4*4/-32 w1:0-128 r2:127-135", "RAW 2w1 3r2 127-128 of o0-0 2<1"},
    {"w1:0-8 w2:0-4*5/0*8/4*0/4", ""},
    /* an access to several blocks and what is between them */
    {"p0:0-64 a1:96-160 w1:32-288 r2:60-64 r3:80-100 r2:159-161",
     "RAW 3w1 4r2 60-64 of p0-64 2<1, RAW 3w1 5r3 80-96 of o0-0 3<1, "
     "RAW 3w1 6r2 159-160 of d96-160 2<1"},
    /* frees: the last use is told; page-locked memory waits by itself */
    {"a1:0-256 w1:0-256 <2:1 r2:0-16 r2:32-48 f0:0 a1:256-512",
     "FREED 5r2 7w1 32-48 of d0-256 1<2 f6"},
    {"a1:0-256 w1:0-256 <2:1 r2:0-16 u2:0 f0:0 a1:256-512", ""},
    {"p0:0-256 w1:0-256 <2:1 r2:0-16 f0:0 p0:256-512", ""},
    /* a new block has no history, and one in the place of a live block displaces it */
    {"w1:0-8 a2:0-256 w2:0-8 a3:8-264 r3:0-16 f0:0 f0:9", ""},
};

TEST(small_programs)
{
    for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++)
        check_program(0, programs[i].program, programs[i].reports);
}

/* Where addresses are the memory's own, a new block has the uses of the one before it. */
TEST(inherited)
{
    const char *program = "a1:0-256 w1:8-16 f0:0 a1:0-256 w1:8-16 f0:0 a1:0-64 w2:0-64";
    check_program(0, program, "");
    check_program(1, program, "WAW 5w1 8w2 8-16 of d0-64 2<1");
}

static void touch_columns(memopt_race *race, uint32_t stream, uint64_t tag, uint64_t at,
                          int64_t rows, int64_t row, uint64_t bytes)
{
    int64_t shape[] = {2, 1, rows}, strides[] = {rows * row, 0, row};
    memopt_race_access access = {at, bytes, shape, strides, 3, WRITE};
    OK(memopt_race_run(race, stream, tag, &access, 1));
}

/* A write replaces what it covers. */
RACE_TEST(covered)
{
    for (uint64_t i = 0; i < 8; i++)
        touch(race, 1, i, WRITE, AT + 16 * i, 16);
    assert_int_equal(stats_of(race).ranges, 8);
    touch(race, 1, 9, WRITE, AT, 128);
    assert_int_equal(stats_of(race).ranges, 1);
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

/* --- bounds */

/* Beyond the bound what is oldest is forgotten. That is counted; what is kept is found, and nothing
 * false is. */
TEST(forgotten)
{
    enum { BOUND = 64 << 10, RANGES = 5000 };
    memopt_race *race = new_race(BOUND, 2);
    OK(memopt_race_allocate(race, AT, 16 * RANGES, MEMOPT_RACE_DEVICE, 1, 1));
    for (uint64_t i = 0; i < RANGES; i++)
        touch(race, 1, 1000 + i, WRITE, AT + 16 * i, 8);
    assert_true(stats_of(race).bytes_peak <= BOUND);
    assert_true(stats_of(race).forgotten >= RANGES - BOUND / 64);
    touch(race, 2, 20, READ, AT, 8); /* long forgotten */
    assert_int_equal(stats_of(race).reports, 0);
    touch(race, 2, 21, READ, AT + 16 * (RANGES - 1), 8);
    assert_int_equal(report_of(race, 0).first.tag, 1000 + RANGES - 1);
    assert_true(stats_of(race).bytes_peak <= BOUND + KIB); /* the reports */
    OK(memopt_race_destroy(race));
}

TEST(most_reports)
{
    memopt_race *race = new_race_of((memopt_race_options){.max_reports = 2}, 2);
    touch(race, 1, 10, WRITE, AT, 8);
    for (uint64_t i = 0; i < 6; i++)
        touch(race, 2, 20 + i / 2, READ, AT, 8); /* each told once */
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
    memopt_race_access good = {AT, 8, NULL, NULL, 0, WRITE};
    memopt_race_access bad[] = {
        {AT, 8, NULL, NULL, 0, 0},
        {AT, 8, NULL, NULL, 0, 4},
        {UINT64_MAX - 7, 8 + 1, NULL, NULL, 0, READ},
        {AT, 8, shape, strides, 2, READ},
        {AT, 8, shape, strides + 1, 1, READ},
        {AT, 8, shape, NULL, 1, READ},
        {AT, 8, shape, strides, 65, READ},
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
    OK(memopt_race_wait(race, 1, stream)); /* clocks have room for all */
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
