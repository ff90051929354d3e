/* The configuration string: every key, its range, its effect on the parsed values, and messages. */
#include "support.h"

static mo_config parse(const char *text)
{
    mo_config config;
    memset(&config, 0xA5, sizeof config);
    OK(mo_config_parse(text, &config));
    return config;
}

TEST(defaults)
{
    static const char *const empty[] = {NULL, "", "  \n\t "};
    for (int i = 0; i < 3; i++) {
        mo_config c = parse(empty[i]);
        assert_int_equal(c.large_segment_size_mb, 20);
        assert_int_equal(c.max_split_size_mb, 0);
        assert_int_equal(c.max_non_split_rounding_mb, 0);
        assert_true(c.garbage_collection_threshold == 0);
        assert_true(c.per_process_memory_fraction == 1);
        assert_false(c.expandable_segments);
        assert_false(c.throw_on_cudamalloc_oom);
        assert_int_equal(c.roundup_power2_divisions.slot[7], 0);
        assert_int_equal(c.pinned_num_register_threads, 1);
    }
}

TEST(every_key)
{
    mo_config c = parse(" large_segment_size_mb : 12 , max_split_size_mb:128,"
                        "max_non_split_rounding_mb:64, garbage_collection_threshold:0.75,"
                        "expandable_segments:True,per_process_memory_fraction:.5,"
                        "idle_release_seconds:2.5,"
                        "throw_on_cudamalloc_oom:True,release_lock_on_cudamalloc:True,"
                        "release_lock_on_hipmalloc:True,pinned_use_hip_host_register:True,"
                        "graph_capture_record_stream_reuse:True,pinned_use_cuda_host_register:True,"
                        "pinned_use_background_threads:True,pinned_num_register_threads:128,"
                        "pinned_free_catch_all:True,pinned_reserve_segment_size_mb:5,"
                        "pinned_max_round_threshold_mb:0,pinned_max_cached_size_mb:64,"
                        "expandable_segments_reserve:40G,"
                        "expandable_segments_reserve_by_class : [a:0.5, b:40G] ,"
                        "backend:hipMallocAsync,roundup_power2_divisions:8,");
    assert_int_equal(c.large_segment_size_mb, 12);
    assert_int_equal(c.max_split_size_mb, 128);
    assert_int_equal(c.max_non_split_rounding_mb, 64);
    assert_true(c.garbage_collection_threshold == 0.75);
    assert_true(c.expandable_segments && c.throw_on_cudamalloc_oom);
    assert_true(c.per_process_memory_fraction == 0.5);
    assert_true(c.idle_release_seconds == 2.5);
    assert_int_equal(c.pinned_num_register_threads, 128);
    assert_true(c.release_lock_on_hipmalloc && c.pinned_free_catch_all);
    assert_int_equal(c.pinned_reserve_segment_size_mb, 5);
    assert_int_equal(c.pinned_max_round_threshold_mb, 0);
    assert_int_equal(c.pinned_max_cached_size_mb, 64);
    assert_int_equal(c.backend, 2);
    for (int i = 0; i < MO_CONFIG_SLOTS; i++)
        assert_int_equal(c.roundup_power2_divisions.slot[i], 8);
    assert_false(parse("expandable_segments:True,expandable_segments:False").expandable_segments);
}

/* What AcceleratorAllocatorConfig::roundup_power2_divisions() of torch 2.15 returns for them. */
TEST(divisions_by_size)
{
    static const struct {
        const char *list;
        uint64_t slots[MO_CONFIG_SLOTS];
    } rows[] = {
        {"[256:1,512:2,1024:4,>:8]", {1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8}},
        {"[256:1,512:2]", {1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 0, 0, 0, 0, 0, 0}},
        {"[512:2,256:1]", {2, 2, 2, 2, 2, 2, 2, 2, 1, 2, 0, 0, 0, 0, 0, 0}},
        {"[4:2,64:8,16:4,>:16]", {2, 2, 2, 0, 4, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16}},
        {"[ > : 16 , 4:2 , ]", {2, 2, 2, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16}},
        {"[4:0,>:8]", {0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8}},
        {"[65536:4,32768:2,>:8]", {4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 2}},
        {"8,roundup_power2_divisions:[64:2]", {2, 2, 2, 2, 2, 2, 2, 8, 8, 8, 8, 8, 8, 8, 8, 8}},
        {"[]", {0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[100];
        snprintf(text, sizeof text, "roundup_power2_divisions : %s", rows[i].list);
        mo_config c = parse(text);
        assert_memory_equal(c.roundup_power2_divisions.slot, rows[i].slots, sizeof rows[i].slots);
    }
}

TEST(fractions)
{
    assert_true(parse("garbage_collection_threshold:1e-1").garbage_collection_threshold == 0.1);
    assert_true(parse("per_process_memory_fraction:2.5E-1").per_process_memory_fraction == 0.25);
}

TEST(refused)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"expandable_segment:True", "column 1: unknown key \"expandable_segment\"; the nearest "
                                    "valid one is \"expandable_segments\""},
        {"Max_Split_Size_MB:64", "nearest valid one is \"max_split_size_mb\""},
        {"gc_threshold:0.5", "nearest valid one is \"garbage_collection_threshold\""},
        {"per_process_fraction:0.5", "nearest valid one is \"per_process_memory_fraction\""},
        {"expandable_segments: true",
         "column 22: \"true\" is not a value of expandable_segments; write True"},
        {"expandable_segments", "column 20: expandable_segments has no value"},
        {"expandable_segments:True max_split_size_mb:64", "not a value"},
        {"expandable_segments:True;", "not a value"},
        {"roundup_power2_divisions:[4:2] x", "column 32: \"x\" follows the value"},
        {"backend:native,\n ,", "column 18: unknown key"},
        {"max_split_size_mb:19",
         "column 19: max_split_size_mb is 19, below the large segment's 20"},
        {"max_split_size_mb:-1", "not a value"},
        {"max_split_size_mb:99999999999999999999", "not a value"},
        {"large_segment_size_mb:10", "from 11"},
        {"max_non_split_rounding_mb:10", "from 11"},
        {"max_non_split_rounding_mb:39,large_segment_size_mb:40",
         "column 27: max_non_split_rounding_mb is 39, below the large segment's 40"},
        {"garbage_collection_threshold:0", "both excluded"},
        {"garbage_collection_threshold:1.0", "both excluded"},
        {"garbage_collection_threshold:", "not a value"},
        {"per_process_memory_fraction:1.01", "from 0 to 1"},
        {"idle_release_seconds:-1", "a number from 0 to 1073741824"},
        {"pinned_num_register_threads:3", "a power of two from 1 to 128"},
        {"pinned_num_register_threads:256", "a power of two from 1 to 128"},
        {"backend:jemalloc", "native, cudaMallocAsync or hipMallocAsync"},
        {"roundup_power2_divisions:3", "a power of two"},
        {"roundup_power2_divisions:0", "column 26: \"0\" is not a value"},
        {"roundup_power2_divisions:[256:1,128:3]", "column 37: \"3\" is not a value"},
        {"roundup_power2_divisions:[256:1,96:2]", "column 33: \"96\" is not a value"},
        {"roundup_power2_divisions:[256:1", "column 32: the list of roundup_power2_divisions is"},
        {"roundup_power2_divisions:[256,1]", "column 30: \",1]\" does not belong in the list"},
        {"roundup_power2_divisions:[256:1[", "column 32: \"[\" does not belong in the list"},
        {"pinned_reserve_segment_size_mb:0", "from 1"},
        {"release_lock_on_hipmalloc:1", "column 27: \"1\" is not a value"},
        {"expandable_segments_reserve:", "column 29: \"\" is not a value"},
        {"expandable_segments_reserve_by_class:[a:1", "column 42: the list of"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        mo_config config, before;
        memset(&config, 0x5A, sizeof config);
        memcpy(&before, &config, sizeof config);
        REFUSED_SAYING(rows[i].says, mo_config_parse(rows[i].text, &config));
        assert_memory_equal(&config, &before, sizeof config);
    }
}

static void count_lines(void *user, memopt_log_level level, const char *message)
{
    if (strstr(message, "no effect") != NULL)
        ++*(int *)user;
}

/* Keys that concern only PyTorch's insides are told in the log. */
TEST(ineffective_keys_are_told)
{
    int lines = 0;
    OK(memopt_set_log(count_lines, &lines, MEMOPT_LOG_INFO));
    (void)parse("backend:native,expandable_segments:True,release_lock_on_cudamalloc:True");
    OK(memopt_set_log(NULL, NULL, MEMOPT_LOG_INFO));
    assert_int_equal(lines, 2);
}

TEST(check_config)
{
    OK(memopt_allocator_check_config(NULL));
    OK(memopt_allocator_check_config("expandable_segments:True,max_split_size_mb:64"));
    REFUSED_SAYING("expandable_segments", memopt_allocator_check_config("expandable_segment:True"));
}
