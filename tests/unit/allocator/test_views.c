/* What can be seen from outside: statistics, tags, snapshots. */
#include "support.h"

#include "allocator/watch/stats.h"

ALLOCATOR_TEST(stat_names, allocator, eager(64 * MIB), CLASSIC)
{
    static const char *const some[] = {"allocation.all.current",
                                       "segment.small_pool.peak",
                                       "active.large_pool.allocated",
                                       "inactive_split.all.freed",
                                       "allocated_bytes.all.peak",
                                       "reserved_bytes.all.peak",
                                       "active_bytes.all.current",
                                       "inactive_split_bytes.all.current",
                                       "requested_bytes.all.freed",
                                       "oversize_allocations.current",
                                       "oversize_segments.freed",
                                       "max_split_size",
                                       "num_alloc_retries",
                                       "num_ooms",
                                       "num_sync_all_streams",
                                       "num_device_alloc",
                                       "num_device_free",
                                       "num_oom_rejections"};
    uint64_t total = 0, values[256];
    OK(memopt_allocator_get_stats(allocator, 0, NULL, NULL, &total));
    assert_int_equal(total, 9 * 3 * 4 + 2 * 4 + 7);
    assert_null(mo_stat_name(total));
    void *blocks[] = {alloc(allocator, 1000), alloc(allocator, 3 * MIB)};
    assert_non_null(blocks[1]);
    OK(memopt_allocator_get_stats(allocator, 256, NULL, values, NULL));
    for (uint64_t i = 0; i < total; i++) {
        const char *name = mo_stat_name(i);
        assert_int_equal(stat_of(allocator, name), values[i]);
        for (uint64_t j = 0; j < i; j++)
            assert_string_not_equal(name, mo_stat_name(j));
    }
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++)
        (void)stat_of(allocator, some[i]);
    FAILS_SAYING(MEMOPT_NOT_FOUND, "no statistic",
                 memopt_allocator_get_stat(allocator, "x", values));
}

ALLOCATOR_TEST(stats_follow, allocator, eager(64 * MIB), CLASSIC)
{
    void *first = alloc(allocator, 1000), *second = alloc(allocator, 3 * MIB),
         *third = alloc(allocator, 600);
    assert_int_equal(stat_of(allocator, "allocation.all.current"), 3);
    assert_int_equal(stat_of(allocator, "allocation.small_pool.current"), 2);
    assert_int_equal(stat_of(allocator, "segment.all.current"), 2);
    assert_int_equal(stat_of(allocator, "reserved_bytes.large_pool.current"), 20 * MIB);
    assert_int_equal(stat_of(allocator, "inactive_split.all.current"), 2);
    assert_int_equal(stat_of(allocator, "inactive_split_bytes.small_pool.current"), 2 * MIB - 2048);
    OK(memopt_allocator_free(allocator, first));
    assert_int_equal(stat_of(allocator, "inactive_split.small_pool.current"), 2);
    OK(memopt_allocator_free(allocator, third));
    assert_int_equal(stat_of(allocator, "inactive_split.small_pool.current"), 0);
    assert_int_equal(stat_of(allocator, "allocated_bytes.all.current"), 3 * MIB);
    assert_int_equal(stat_of(allocator, "allocated_bytes.all.freed"), 2048);
    assert_int_equal(stat_of(allocator, "allocated_bytes.all.peak"), 3 * MIB + 2048);
    OK(memopt_allocator_reset_peaks(allocator));
    assert_int_equal(stat_of(allocator, "allocated_bytes.all.peak"), 3 * MIB);
    assert_int_equal(stat_of(allocator, "allocation.all.allocated"), 3);
    OK(memopt_allocator_free(allocator, second));
    assert_int_equal(stat_of(allocator, "num_device_alloc"), 2);
    OK(memopt_allocator_trim_sync(allocator, 0, NULL));
    assert_int_equal(stat_of(allocator, "num_device_free"), 2);
    assert_int_equal(stat_of(allocator, "segment.all.current"), 0);
}

static memopt_tag_stats tag_of(memopt_allocator *allocator, memopt_tag tag)
{
    memopt_tag_stats stats = {.struct_size = sizeof stats};
    OK(memopt_allocator_get_tag_stats(allocator, tag, &stats));
    return stats;
}

ALLOCATOR_TEST(tags, allocator, eager(64 * MIB), CLASSIC)
{
    char name[40];
    memopt_tag tag = 0, again = 0;
    void *a, *b;
    assert_string_equal(tag_of(allocator, MEMOPT_TAG_ACTIVATIONS).name, "activations");
    OK(memopt_allocator_register_tag(allocator, "kv", &tag));
    OK(memopt_allocator_register_tag(allocator, "kv", &again));
    assert_int_equal(tag, MEMOPT_TAG_USER);
    assert_int_equal(again, tag);
    OK(memopt_allocator_register_tag(allocator, "weights", &again));
    assert_int_equal(again, MEMOPT_TAG_WEIGHTS);
    OK(memopt_allocator_alloc(allocator, 1000, tag, NULL, &a));
    OK(memopt_allocator_alloc(allocator, 500, tag, NULL, &b));
    OK(memopt_allocator_free(allocator, a));
    memopt_tag_stats stats = tag_of(allocator, tag);
    assert_int_equal(stats.current_bytes, 500);
    assert_int_equal(stats.peak_bytes, 1500);
    assert_int_equal(stats.blocks, 1);
    OK(memopt_allocator_reset_peaks(allocator));
    assert_int_equal(tag_of(allocator, tag).peak_bytes, 500);
    FAILS_SAYING(MEMOPT_NOT_FOUND, "tag 6", memopt_allocator_get_tag_stats(allocator, 6, &stats));
    stats.struct_size = 1;
    REFUSED_SAYING("struct_size", memopt_allocator_get_tag_stats(allocator, tag, &stats));
    REFUSED_SAYING("characters", memopt_allocator_register_tag(allocator, "", &again));
    REFUSED_SAYING("32 characters", memopt_allocator_register_tag(
                                        allocator, "01234567890123456789012345678901", &again));
    for (int i = MEMOPT_TAG_USER + 1; i < 64; i++) {
        snprintf(name, sizeof name, "tag-%d", i);
        OK(memopt_allocator_register_tag(allocator, name, &again));
        assert_int_equal(again, i);
    }
    FAILS_SAYING(MEMOPT_LIMIT_REACHED, "64",
                 memopt_allocator_register_tag(allocator, "one more", &again));
}

typedef struct walk {
    memopt_allocator *allocator;
    uint64_t blocks, live, pending, inactive, unmapped, requested;
    const char *last;
    memopt_status answer;
} walk;

static memopt_status visit(void *user, const memopt_block_info *block)
{
    walk *w = user;
    assert_int_equal(block->struct_size, sizeof *block);
    assert_true(block->address >= block->segment_address);
    assert_true((char *)block->address >= w->last);
    w->last = (char *)block->address + block->bytes;
    (void)stat_of(w->allocator, "num_ooms"); /* no lock is held */
    w->blocks++;
    w->live += block->state == MEMOPT_BLOCK_ACTIVE_ALLOCATED ? block->bytes : 0;
    w->pending += block->state == MEMOPT_BLOCK_ACTIVE_PENDING_FREE ? block->bytes : 0;
    w->inactive += block->state == MEMOPT_BLOCK_INACTIVE ? block->bytes : 0;
    w->unmapped += block->state == MEMOPT_BLOCK_UNMAPPED ? block->bytes : 0;
    w->requested += block->requested_bytes;
    return w->answer;
}

ALLOCATOR_TEST(snapshot, allocator, open_cpu(512 * MIB, MEMOPT_STREAM_ORDER_ADVERSARIAL, 0), BOTH)
{
    enum { BLOCKS = 200 };
    walk w = {.allocator = allocator};
    void *block[BLOCKS];
    memopt_stream other = stream_on(device);
    for (int i = 0; i < BLOCKS; i++)
        block[i] = alloc(allocator, 1000 + (uint64_t)i * 10000);
    OK(memopt_fill(device, block[1], 0, 16, other));
    OK(memopt_allocator_record_stream(allocator, block[1], other));
    for (int i = 0; i < BLOCKS; i += 3)
        OK(memopt_allocator_free(allocator, block[i]));
    OK(memopt_allocator_free(allocator, block[1]));
    OK(memopt_allocator_snapshot(allocator, visit, &w));
    assert_int_equal(w.live, stat_of(allocator, "allocated_bytes.all.current"));
    assert_int_equal(w.live + w.pending, stat_of(allocator, "active_bytes.all.current"));
    assert_true(w.pending > 0);
    assert_int_equal(w.live + w.pending + w.inactive, held_by(allocator));
    assert_int_equal(w.unmapped > 0, c);
    walk stopped = {.allocator = allocator, .answer = MEMOPT_STATUS_USER + 5};
    FAILS_SAYING(MEMOPT_STATUS_USER + 5, "the visitor returned status 65541",
                 memopt_allocator_snapshot(allocator, visit, &stopped));
    assert_int_equal(stopped.blocks, 1);
}
