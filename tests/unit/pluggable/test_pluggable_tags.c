/* Tags of what frameworks allocate by address: of this thread, in every allocator of a device. */
#include "pluggable.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static uint64_t tagged(memopt_allocator *allocator, const char *name)
{
    memopt_tag tag;
    memopt_tag_stats stats = MEMOPT_TAG_STATS_INIT;
    OK(memopt_allocator_register_tag(allocator, name, &tag));
    OK(memopt_allocator_get_tag_stats(allocator, tag, &stats));
    return stats.current_bytes;
}

static void *allocate_elsewhere(void *out_previous)
{
    OK(memopt_pluggable_set_tag(NULL, out_previous));
    return memopt_pluggable_alloc(700, 0, NULL);
}

TEST(test_tags)
{
    const char *before = NULL, *elsewhere = NULL;
    void *blocks[5];
    pthread_t thread;
    memopt_allocator *allocator = start("expandable_segments:True"), *of_graph = NULL;
    OK(memopt_pluggable_set_tag("weights", &before));
    assert_string_equal(before, "other");
    blocks[0] = memopt_pluggable_alloc(3000, 0, NULL);
    OK(memopt_pluggable_set_tag("kv", &before));
    assert_string_equal(before, "weights");
    blocks[1] = memopt_pluggable_alloc_or_raise(5000, 0, NULL);
    assert_int_equal(pthread_create(&thread, NULL, allocate_elsewhere, (void *)&elsewhere), 0);
    assert_int_equal(pthread_join(thread, &blocks[2]), 0);
    assert_string_equal(elsewhere, "other");
    memopt_pluggable_begin_pool(0, 1, 2, NULL);
    captured = recorder;
    blocks[3] = memopt_pluggable_alloc(9000, 0, recorder);
    captured = NULL;
    memopt_pluggable_end_pool(0, 1, 2);
    OK(memopt_pluggable_get_allocator(0, 1, &of_graph));
    assert_int_equal(tagged(allocator, "weights"), 3000);
    assert_int_equal(tagged(allocator, "kv"), 5000);
    assert_int_equal(tagged(allocator, "other"), 700);
    assert_int_equal(tagged(of_graph, "kv"), 9000);

    memopt_pause_options kv_only = MEMOPT_PAUSE_OPTIONS_INIT;
    memopt_tag kv;
    OK(memopt_allocator_register_tag(allocator, "kv", &kv));
    kv_only.tags = MEMOPT_TAG_BIT(kv);
    OK(memopt_pool_pause_sync(allocator, &kv_only, NULL));
    assert_null(memopt_pluggable_alloc(100, 0, NULL));
    OK(memopt_pluggable_set_tag(NULL, NULL));
    blocks[4] = memopt_pluggable_alloc(100, 0, NULL);
    assert_non_null(blocks[4]);
    OK(memopt_pool_resume_sync(allocator, 0));
    for (int i = 0; i < 5; i++)
        memopt_pluggable_free(blocks[i], 0, 0, NULL);
    memopt_pluggable_release_pool(0, 1, 2);
    stop(allocator);

    /* Another allocator has other numbers for the same names. */
    memopt_tag first;
    allocator = start("");
    OK(memopt_allocator_register_tag(allocator, "first", &first));
    OK(memopt_pluggable_set_tag("kv", NULL));
    blocks[0] = memopt_pluggable_alloc(5000, 0, NULL);
    assert_int_equal(tagged(allocator, "kv"), 5000);
    OK(memopt_pluggable_set_tag(NULL, NULL));
    memopt_pluggable_free(blocks[0], 0, 0, NULL);
    stop(allocator);
}

/* The last test: the names stay. */
TEST(test_bad_tags)
{
    char name[33] = "";
    const char *now = NULL;
    REFUSED_SAYING("0 characters", memopt_pluggable_set_tag(name, NULL));
    memset(name, 'x', 32);
    REFUSED_SAYING("32 characters", memopt_pluggable_set_tag(name, NULL));
    name[31] = '\0';
    OK(memopt_pluggable_set_tag(name, NULL));
    for (int i = 0; i < 64; i++) {
        snprintf(name, sizeof name, "tag %d", i);
        memopt_status status = memopt_pluggable_set_tag(name, NULL);
        if (status != MEMOPT_OK) {
            assert_int_equal(status, MEMOPT_LIMIT_REACHED);
            assert_in_range(i, 32, 63);
            snprintf(name, sizeof name, "tag %d", i - 1);
            break;
        }
        assert_int_not_equal(i, 63);
    }
    OK(memopt_pluggable_set_tag("weights", &now));
    assert_string_equal(now, name);
    OK(memopt_pluggable_set_tag(NULL, NULL));
}
