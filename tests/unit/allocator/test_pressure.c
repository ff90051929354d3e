/* Memory pressure: the order of attempts, limits, collection, reports and callbacks. */
#include "support.h"

#include "support/watched.h"

typedef struct seen {
    memopt_allocator *allocator;
    void *to_free;
    int pressed, failed;
    uint64_t needed, asked, free_bytes;
    char report[1200];
} seen;

static uint64_t on_pressure(void *user, uint64_t bytes)
{
    seen *s = user;
    s->pressed++;
    s->needed = bytes;
    if (s->to_free == NULL)
        return 0;
    OK(memopt_allocator_free(s->allocator, s->to_free)); /* no lock is held */
    s->to_free = NULL;
    return bytes;
}

static void on_oom(void *user, uint64_t asked, uint64_t free_bytes, const char *report)
{
    seen *s = user;
    s->failed++;
    s->asked = asked;
    s->free_bytes = free_bytes;
    (void)stat_of(s->allocator, "num_ooms"); /* no lock is held */
    snprintf(s->report, sizeof s->report, "%s", report);
}

static seen told;

static memopt_allocator *observed(memopt_device *device, const char *config)
{
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    memset(&told, 0, sizeof told);
    options.pressure = on_pressure;
    options.oom = on_oom;
    options.pressure_user = options.oom_user = &told;
    OK(memopt_allocator_create(device, config, &options, &told.allocator));
    return told.allocator;
}

static void *tagged(memopt_allocator *allocator, uint64_t bytes, memopt_tag tag)
{
    void *pointer = NULL;
    OK(memopt_allocator_alloc(allocator, bytes, tag, NULL, &pointer));
    return pointer;
}

ALLOCATOR_TEST_OF(test_report, allocator, eager(CAPACITY), observed(device, config), BOTH)
{
    (void)tagged(allocator, 16 * MIB, MEMOPT_TAG_WEIGHTS);
    (void)tagged(allocator, 24 * MIB, MEMOPT_TAG_ACTIVATIONS);
    (void)tagged(allocator, 4 * MIB, MEMOPT_TAG_OPTIMIZER);
    (void)tagged(allocator, MIB, MEMOPT_TAG_GRADIENTS);
    void *none = &told;
    FAILS_SAYING(MEMOPT_OUT_OF_DEVICE_MEMORY, "allocator: 40.00 MiB asked for other, ",
                 memopt_allocator_alloc(allocator, 40 * MIB, MEMOPT_TAG_OTHER, NULL, &none));
    assert_ptr_equal(none, &told);
    static const char *const parts[] = {
        "free of 64.00 MiB on the device",
        "held here: 45.00 MiB allocated",
        " cached",
        "largest free block",
        "largest tags: activations 24.00 MiB in 1, weights 16.00 MiB in 1, optimizer 4.00 MiB",
        "checkpoint regions or offload for the activations",
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strstr(memopt_last_error(), parts[i]) == NULL)
            fail_msg("\"%s\" is not in \"%s\"", parts[i], memopt_last_error());
    assert_null(strstr(memopt_last_error(), "gradients"));
    assert_int_equal(told.failed, 1);
    assert_int_equal(told.asked, 40 * MIB);
    assert_string_equal(told.report, memopt_last_error());
    assert_int_equal(stat_of(allocator, "num_ooms"), 1);
    free_live(allocator);
    (void)tagged(allocator, 40 * MIB, 0);
}

/* Fragmented: much is cached, nothing fits; classic segments are told to become expandable. */
ALLOCATOR_TEST(fragmentation_advice, allocator, eager(80 * MIB), BOTH)
{
    void *big[4], *block = NULL;
    for (int i = 0; i < 4; i++) {
        big[i] = alloc(allocator, 9 * MIB);
        (void)alloc(allocator, 9 * MIB);
    }
    for (int i = 0; i < 4; i++)
        OK(memopt_allocator_free(allocator, big[i]));
    memopt_status status = memopt_allocator_alloc(allocator, 30 * MIB, 0, NULL, &block);
    if (c == 0) {
        assert_int_equal(status, MEMOPT_OUT_OF_DEVICE_MEMORY);
        assert_non_null(strstr(memopt_last_error(), "try: expandable_segments:True"));
    } else {
        OK(status); /* the holes' pages were moved behind the rest */
    }
}

ALLOCATOR_TEST_OF(pressure_callback_frees, allocator, eager(CAPACITY), observed(device, config),
                  BOTH)
{
    void *block = alloc(allocator, 60 * MIB);
    told.to_free = block;
    int before = told.pressed;
    assert_ptr_equal(alloc(allocator, 50 * MIB), block);
    assert_int_equal(told.pressed, before + 1);
    assert_int_equal(told.needed, 50 * MIB);
    assert_int_equal(stat_of(allocator, "num_alloc_retries"), 0);
}

/* Cached memory of other sizes and streams goes back before the allocation fails. */
ALLOCATOR_TEST(cache_is_given_back, allocator, eager(CAPACITY), BOTH)
{
    memopt_stream stream = stream_on(device);
    OK(memopt_allocator_free(allocator, alloc_on(allocator, 30 * MIB, stream)));
    OK(memopt_allocator_free(allocator, alloc_on(allocator, 28 * MIB, NULL)));
    OK(memopt_allocator_free(allocator, alloc_on(allocator, 1000, NULL)));
    (void)alloc_on(allocator, 64 * MIB, NULL);
    assert_int_equal(stat_of(allocator, "num_alloc_retries"), c == 0); /* pages move at once */
    assert_int_equal(held_by(allocator), 64 * MIB);
}

/* At the limit only the pages that are missing move, those that were freed first. */
ALLOCATOR_TEST(the_oldest_pages_move, allocator, eager(48 * MIB), EXPANDABLE)
{
    memopt_stream stream = stream_on(device);
    void *young = alloc(allocator, 16 * MIB);
    (void)alloc(allocator, 16 * MIB);
    void *old = alloc(allocator, 16 * MIB);
    OK(memopt_allocator_free(allocator, old));
    assert_ptr_equal(alloc(allocator, 4 * MIB), old);
    OK(memopt_allocator_free(allocator, young));
    (void)alloc_on(allocator, 8 * MIB, stream);
    assert_int_equal(stat_of(allocator, "num_device_free"), 4);
    uint64_t calls = stat_of(allocator, "num_device_alloc");
    assert_ptr_equal(alloc(allocator, 16 * MIB), young);
    assert_int_equal(stat_of(allocator, "num_device_alloc"), calls);
}

/* Where pages keep moving between two streams, more may be held, up to a twentieth. */
ALLOCATOR_TEST(pages_that_keep_moving, allocator, eager(1024 * MIB), EXPANDABLE)
{
    memopt_stream streams[2] = {NULL, NULL};
    uint64_t held[60];
    OK(memopt_stream_create(device, &streams[1]));
    for (int i = 0; i < 60; i++) {
        OK(memopt_allocator_free(allocator, alloc_on(allocator, 200 * MIB, streams[i % 2])));
        held[i] = held_by(allocator);
    }
    assert_int_equal(held[0], 200 * MIB);
    assert_int_equal(held[1], 202 * MIB); /* a sixty-fourth more, in whole pages */
    assert_int_equal(held[59], 210 * MIB);
}

/* Four pages that move beyond the store buy one page of slack: 19 move, and 5 more may be held. */
ALLOCATOR_TEST(moves_buy_slack, allocator, eager(1024 * MIB), EXPANDABLE)
{
    memopt_stream stream = stream_on(device);
    OK(memopt_allocator_free(allocator, alloc(allocator, 400 * MIB)));
    OK(memopt_allocator_free(allocator, alloc_on(allocator, 40 * MIB, stream)));
    assert_int_equal(held_by(allocator), 402 * MIB);
    OK(memopt_allocator_free(allocator, alloc(allocator, 400 * MIB)));
    assert_int_equal(held_by(allocator), 412 * MIB);
}

/* A small request fills a hole between larger blocks rather than a page of its own, unless the hole
 * is much larger. */
ALLOCATOR_TEST(small_blocks_fill_holes, allocator, eager(CAPACITY), EXPANDABLE)
{
    void *blocks[3];
    for (int i = 0; i < 3; i++)
        blocks[i] = alloc(allocator, 100 * KIB);
    OK(memopt_allocator_free(allocator, blocks[1]));
    blocks[1] = alloc(allocator, 60 * KIB);
    assert_ptr_equal(blocks[1], (char *)blocks[0] + 100 * KIB);
    assert_int_equal(stat_of(allocator, "reserved_bytes.small_pool.current"), 0);
    assert_int_equal(stat_of(allocator, "allocation.large_pool.current"), 3);
    void *tiny = alloc(allocator, 10 * KIB);
    assert_int_equal(stat_of(allocator, "reserved_bytes.small_pool.current"), 2 * MIB);
    for (int i = 0; i < 3; i++)
        OK(memopt_allocator_free(allocator, blocks[i]));
    OK(memopt_allocator_free(allocator, tiny));
    assert_int_equal(stat_of(allocator, "allocated_bytes.large_pool.current"), 0);
}

/* Blocks of 1 MiB that stay keep no pages between larger ones that have gone. */
ALLOCATOR_TEST(small_blocks_that_stay, allocator, eager(1024 * MIB), EXPANDABLE)
{
    enum { PINS = 60, LATER = PINS * 6 / 8 };
    void *first[PINS];
    for (int i = 0; i < PINS; i++) {
        first[i] = alloc(allocator, 6 * MIB);
        (void)alloc(allocator, MIB);
    }
    for (int i = 0; i < PINS; i++)
        OK(memopt_allocator_free(allocator, first[i]));
    for (int i = 0; i < LATER; i++)
        (void)alloc(allocator, 8 * MIB);
    assert_true(stat_of(allocator, "reserved_bytes.all.peak") <=
                stat_of(allocator, "requested_bytes.all.peak") + 4 * MIB);
}

/* Before pages move, a free block of the stream's other sizes serves. */
ALLOCATOR_TEST(other_sizes_serve, allocator, eager(128 * MIB), EXPANDABLE)
{
    void *medium[3], *large = alloc(allocator, 60 * MIB);
    medium[0] = alloc(allocator, 2 * MIB);
    OK(memopt_allocator_free(allocator, large));
    medium[1] = alloc(allocator, 2 * MIB); /* up to a page above the peak new memory is made */
    assert_int_equal(held_by(allocator), 64 * MIB);
    uint64_t calls = stat_of(allocator, "num_device_alloc");
    medium[2] = alloc(allocator, 2 * MIB);
    assert_ptr_equal(medium[2], large);
    assert_int_equal(stat_of(allocator, "num_device_alloc"), calls);
}

/* A request that cannot be served takes no pages from the cache. */
ALLOCATOR_TEST(a_failed_growth_keeps_the_cache, allocator, eager(48 * MIB), EXPANDABLE)
{
    void *first = alloc(allocator, 16 * MIB);
    (void)alloc(allocator, 16 * MIB);
    void *none = NULL;
    void *last = alloc(allocator, 16 * MIB);
    OK(memopt_allocator_free(allocator, first));
    OK(memopt_allocator_free(allocator, last));
    uint64_t calls = stat_of(allocator, "num_device_alloc");
    FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY, memopt_allocator_alloc(allocator, 34 * MIB, 0, NULL, &none));
    assert_int_equal(held_by(allocator), 48 * MIB);
    assert_int_equal(stat_of(allocator, "num_device_free"), 0);
    assert_ptr_equal(alloc(allocator, 16 * MIB), first);
    assert_ptr_equal(alloc(allocator, 16 * MIB), last);
    assert_int_equal(stat_of(allocator, "num_device_alloc"), calls);
}

ALLOCATOR_TEST(limits, allocator, eager(CAPACITY), BOTH)
{
    void *none = NULL;
    OK(memopt_allocator_set_limit(allocator, 20 * MIB));
    (void)alloc(allocator, 12 * MIB);
    FAILS_SAYING(MEMOPT_OUT_OF_DEVICE_MEMORY, "limited to 20.00 MiB here",
                 memopt_allocator_alloc(allocator, 12 * MIB, 0, NULL, &none));
    assert_int_equal(stat_of(allocator, "num_oom_rejections"), 0);
    OK(memopt_allocator_set_limit(allocator, 0));
    (void)alloc(allocator, 40 * MIB);
}

/* Where a segment for many blocks does not fit any more, one of the block's own size does. */
ALLOCATOR_TEST(last_megabytes, allocator, eager(64 * MIB), CLASSIC)
{
    void *none = NULL;
    (void)alloc(allocator, 54 * MIB);
    for (int i = 0; i < 4; i++)
        (void)alloc(allocator, 1200 * 1024);
    assert_int_equal(held_by(allocator), 62 * MIB);
    FAILS_SAYING(MEMOPT_OUT_OF_DEVICE_MEMORY, "2.34 MiB asked",
                 memopt_allocator_alloc(allocator, 2400 * 1024, 0, NULL, &none));
}

ALLOCATOR_TEST(fraction_and_rejection, allocator, eager(CAPACITY),
               "per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True")
{
    void *none = NULL;
    (void)alloc(allocator, 30 * MIB);
    GIVES(MEMOPT_OUT_OF_DEVICE_MEMORY, memopt_allocator_alloc(allocator, 4 * MIB, 0, NULL, &none));
    assert_true(stat_of(allocator, "num_oom_rejections") >= 1);
    assert_int_equal(stat_of(allocator, "num_device_alloc"), 1); /* the driver was not asked */
}

/* Above the threshold, what was free the longest goes back; it needs no memory fraction. */
ALLOCATOR_TEST(garbage_collection, allocator, eager(CAPACITY), "garbage_collection_threshold:0.7",
               "garbage_collection_threshold:0.7,expandable_segments:True")
{
    void *old = alloc(allocator, 14 * MIB);
    (void)alloc(allocator, 14 * MIB);
    void *young = alloc(allocator, 16 * MIB);
    OK(memopt_allocator_free(allocator, old));
    for (int i = 0; i < 50; i++)
        OK(memopt_allocator_free(allocator, alloc(allocator, 600)));
    OK(memopt_allocator_free(allocator, young));
    assert_int_equal(stat_of(allocator, "num_device_free"), 0);
    (void)alloc(allocator, 20 * MIB);
    uint64_t held = held_by(allocator);
    assert_true(stat_of(allocator, "num_device_free") > 0);
    assert_int_equal(stat_of(allocator, "num_alloc_retries"), 0);
    assert_true(held <= (14 + 16 + 20 + 2) * MIB);
}

static uint64_t allocate_on_pressure(void *user, uint64_t bytes)
{
    seen *s = user;
    void *none = NULL;
    s->pressed++;
    GIVES(MEMOPT_OUT_OF_DEVICE_MEMORY, memopt_allocator_alloc(s->allocator, bytes, 0, NULL, &none));
    return 0;
}

static void allocate_on_oom(void *user, uint64_t asked, uint64_t free_bytes, const char *report)
{
    seen *s = user;
    void *none = NULL;
    s->failed++;
    GIVES(MEMOPT_OUT_OF_DEVICE_MEMORY, memopt_allocator_alloc(s->allocator, asked, 0, NULL, &none));
}

TEST(callbacks_that_allocate)
{
    memopt_device *device = eager(CAPACITY);
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    seen s = {0};
    void *none = NULL;
    options.pressure = allocate_on_pressure;
    options.oom = allocate_on_oom;
    options.pressure_user = options.oom_user = &s;
    OK(memopt_allocator_create(device, "", &options, &s.allocator));
    GIVES(MEMOPT_OUT_OF_DEVICE_MEMORY,
          memopt_allocator_alloc(s.allocator, 2 * CAPACITY, 0, NULL, &none));
    assert_int_equal(s.pressed, 1);
    assert_int_equal(s.failed, 1);
    finish(s.allocator, device);
}

/* Blocks of max_split_size and more stay whole, serve only their like, and go back first. */
ALLOCATOR_TEST(max_split, allocator, eager(160 * MIB), "max_split_size_mb:30")
{
    assert_int_equal(stat_of(allocator, "max_split_size"), 30 * MIB);
    void *big = alloc(allocator, 60 * MIB);
    assert_int_equal(stat_of(allocator, "oversize_allocations.current"), 1);
    assert_int_equal(stat_of(allocator, "oversize_segments.current"), 1);
    OK(memopt_allocator_free(allocator, big));
    assert_int_equal(stat_of(allocator, "oversize_allocations.current"), 0);
    (void)alloc(allocator, 12 * MIB); /* not out of the big one */
    assert_int_equal(stat_of(allocator, "segment.all.current"), 2);
    void *similar = alloc(allocator, 50 * MIB); /* within the rounding of 20 MiB */
    assert_ptr_equal(similar, big);
    OK(memopt_allocator_free(allocator, similar));
    void *other = alloc(allocator, 36 * MIB); /* 60 MiB would waste more than 20 */
    assert_ptr_not_equal(other, big);
    (void)alloc(allocator, 100 * MIB); /* the idle 60 MiB go back */
    assert_int_equal(stat_of(allocator, "num_device_free"), 1);
}

/* A segment that is made for a request serves it, even where it is of max_split_size or more. */
ALLOCATOR_TEST(requests_just_below_max_split, allocator, eager(512 * MIB), "max_split_size_mb:128",
               "max_split_size_mb:20")
{
    for (int i = 0; i < (c == 0 ? 1 : 200); i++)
        (void)alloc(allocator, (c == 0 ? 127 : 2) * MIB);
    assert_int_equal(held_by(allocator), (c == 0 ? 128 : 400) * MIB);
}

/* The peers' unbounded case: max_split with expandable segments, cycles of two sizes that go and a
 * third that stays. What is held follows what is live. */
ALLOCATOR_TEST(expandable_with_max_split_stays_bounded, allocator, eager(2048 * MIB),
               "expandable_segments:True,max_split_size_mb:128")
{
    enum { CYCLES = 40 };
    for (int i = 0; i < CYCLES; i++) {
        void *a = alloc(allocator, 91 * MIB), *b = alloc(allocator, 91 * MIB / 2);
        (void)alloc(allocator, 2 * MIB);
        OK(memopt_allocator_free(allocator, a));
        OK(memopt_allocator_free(allocator, b));
    }
    assert_true(stat_of(allocator, "reserved_bytes.all.peak") <
                stat_of(allocator, "requested_bytes.all.peak") * 3 / 2);
}

/* Blocks of 256 KiB until memory runs out, freed again. */
static int fill_up(memopt_allocator *allocator, memopt_stream stream)
{
    static void *blocks[512];
    int count = 0;
    while (count < 512 && memopt_allocator_alloc(allocator, 256 * KIB, MEMOPT_TAG_OTHER, stream,
                                                 &blocks[count]) == MEMOPT_OK)
        count++;
    OK(mo_allocator_check(allocator));
    for (int i = 0; i < count; i++)
        OK(memopt_allocator_free(allocator, blocks[i]));
    return count;
}

/* A page that holds a small block holds seven of 256 KiB more. */
ALLOCATOR_TEST(holes_of_other_sizes_serve, allocator, eager(10 * MIB), EXPANDABLE)
{
    void *small = alloc(allocator, KIB);
    assert_int_equal(fill_up(allocator, NULL), 39);
    assert_int_equal(held_by(allocator), 10 * MIB);
    OK(memopt_allocator_free(allocator, small));
    (void)alloc(allocator, 10 * MIB); /* and all pages are free again */
}

/* Less than a page in all, but more than the request. */
ALLOCATOR_TEST(small_holes_are_the_cause, allocator, eager(10 * MIB), EXPANDABLE)
{
    enum { PAIRS = 28, HOLES = 6 };
    void *kept[PAIRS], *freed[PAIRS], *none = NULL;
    memopt_oom_report report = MEMOPT_OOM_REPORT_INIT;
    for (int i = 0; i < PAIRS; i++) {
        kept[i] = alloc(allocator, 160 * KIB);
        freed[i] = alloc(allocator, 200 * KIB);
    }
    for (int i = 0; i < HOLES; i++)
        OK(memopt_allocator_free(allocator, freed[i]));
    FAILS_SAYING(MEMOPT_OUT_OF_DEVICE_MEMORY, "holes that are too small",
                 memopt_allocator_alloc(allocator, 256 * KIB, MEMOPT_TAG_OTHER, NULL, &none));
    OK(memopt_allocator_get_oom_report(allocator, &report));
    assert_int_equal(report.cause, MEMOPT_OOM_FRAGMENTATION);
    assert_int_equal(report.largest_free_bytes, 200 * KIB);
    for (int i = 0; i < PAIRS; i++) {
        OK(memopt_allocator_free(allocator, kept[i]));
        if (i >= HOLES)
            OK(memopt_allocator_free(allocator, freed[i]));
    }
}

/* The same of other streams, when their work is over; and these get it back. */
ALLOCATOR_TEST(holes_of_idle_streams_serve, allocator, eager(CAPACITY), EXPANDABLE)
{
    enum { STREAMS = 8 };
    memopt_stream streams[STREAMS];
    void *small[STREAMS];
    for (int i = 0; i < STREAMS; i++) {
        OK(memopt_stream_create(device, &streams[i]));
        small[i] = alloc_on(allocator, KIB, streams[i]);
    }
    assert_int_equal(fill_up(allocator, NULL), 24 * 8 + STREAMS * 7);
    assert_int_equal(fill_up(allocator, streams[3]), 24 * 8 + STREAMS * 7);
    for (int i = 0; i < STREAMS; i++)
        OK(memopt_allocator_free(allocator, small[i]));
    (void)alloc(allocator, CAPACITY);
}

/* Asking must not be what makes the work go on. */
static memopt_status never_idle(memopt_device *device, memopt_stream stream)
{
    return MEMOPT_NOT_READY;
}

/* Neither stream works on the memory before the other one is done with it; waited for, or not. */
ALLOCATOR_SWEEP(lent_holes_are_ordered, allocator, for (uint64_t seed = 0; seed < 4; seed++),
                watch(open_cpu(4 * MIB, MEMOPT_STREAM_ORDER_ADVERSARIAL, seed)), EXPANDABLE,
                EXPANDABLE)
{
    ops.stream_query = never_idle;
    memopt_stream lender = stream_on(device), borrower = stream_on(device);
    (void)alloc_on(allocator, 256 * KIB, lender);
    void *used = alloc_on(allocator, MIB, lender);
    (void)alloc_on(allocator, 2 * MIB, borrower);
    OK(memopt_fill(device, used, 1, MIB, lender));
    OK(memopt_allocator_free(allocator, used));
    void *lent = alloc_on(allocator, 1700 * KIB, borrower);
    OK(memopt_fill(device, lent, 2, 1700 * KIB, borrower));
    if (c == 0) {
        uint8_t value = 0;
        OK(memopt_device_sync(device));
        OK(memopt_copy_sync(device, &value, lent, 1, borrower));
        assert_int_equal(value, 2); /* not the lender's, which ran before */
    }
    OK(memopt_allocator_free(allocator, lent));
    used = alloc_on(allocator, MIB, lender);
    OK(memopt_fill(device, used, 3, MIB, lender));
    OK(memopt_device_sync(device)); /* DEVICE_FAULT if not */
}
