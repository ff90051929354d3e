/* The entry points that frameworks call by address. They are process-wide, so each test ends them.
 */
#include "pluggable.h"

#include "allocator/allocator.h"

#include "base/memory.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <unistd.h>

/* --- helpers ---------------------------------------------------------------------------------- */

static uint64_t allocated(memopt_allocator *allocator)
{
    return stat_of(allocator, "requested_bytes.all.current");
}

static int logged;

static void count_log(void *user, memopt_log_level level, const char *message)
{
    logged += level == MEMOPT_LOG_ERROR;
}

/* --- blocks ----------------------------------------------------------------------------------- */

PLUGGABLE_TEST(test_alloc_and_free, allocator, "expandable_segments:True")
{
    void *block = memopt_pluggable_alloc(3000, 0, NULL);
    assert_non_null(block);
    memset(block, 7, 3000);
    assert_int_equal(allocated(allocator), 3000);
    assert_null(memopt_pluggable_alloc(0, 0, NULL));
    memopt_pluggable_free(block, 3000, 0, NULL);
    memopt_pluggable_free(NULL, 0, 0, NULL);
    assert_int_equal(allocated(allocator), 0);
    assert_ptr_equal(memopt_pluggable_alloc_or_raise(3000, 0, NULL), block);
    memopt_pluggable_free(block, 3000, 0, NULL);
    assert_true(held_by(allocator) > 0);
    memopt_pluggable_empty_cache();
    assert_int_equal(held_by(allocator), 0);
}

/* A block that another stream uses is not given out again before that stream is done. */
PLUGGABLE_TEST(test_record_stream, allocator, "")
{
    void *block = memopt_pluggable_alloc(4096, 0, NULL);
    memopt_pluggable_record_stream(block, recorder);
    captured = recorder; /* the event cannot be recorded now: the free is put off */
    memopt_pluggable_free(block, 4096, 0, NULL);
    assert_int_equal(stat_of(allocator, "active.all.current"), 1);
    void *other = memopt_pluggable_alloc(4096, 0, NULL);
    assert_ptr_not_equal(other, block);
    captured = NULL;
    memopt_pluggable_free(other, 4096, 0, NULL);
    memopt_pluggable_empty_cache();
    assert_int_equal(stat_of(allocator, "active.all.current"), 0);
}

PLUGGABLE_TEST(test_mistakes_are_logged, allocator, "")
{
    int other = 0;
    void *block = memopt_pluggable_alloc(100, 0, NULL);
    OK(memopt_set_log(count_log, NULL, MEMOPT_LOG_ERROR));
    logged = 0;
    memopt_pluggable_free(block, 100, 0, NULL);
    assert_int_equal(logged, 0);
    memopt_pluggable_free(block, 100, 0, NULL);
    assert_int_equal(logged, 1);
    memopt_pluggable_free(&other, 100, 64, NULL);
    assert_int_equal(logged, 2);
    memopt_pluggable_record_stream(&other, NULL);
    assert_int_equal(logged, 3);
    memopt_pluggable_memory_fraction(1.5, 0);
    assert_int_equal(logged, 4);
    OK(memopt_set_log(NULL, NULL, MEMOPT_LOG_OFF));
    assert_null(memopt_pluggable_alloc(UINT64_MAX, 0, NULL));
    assert_null(memopt_pluggable_alloc(10, -1, NULL));
    assert_null(memopt_pluggable_alloc(10, 64, NULL));
    assert_null(memopt_pluggable_alloc(10, 1, NULL)); /* there is one cpu */
}

/* --- out of memory ---------------------------------------------------------------------------- */

static jmp_buf back;
static char raised[2048];

static void raise_by_jump(const char *function, const char *file, uint32_t line,
                          const char *message)
{
    assert_non_null(strstr(function, "memopt_pluggable"));
    assert_string_equal(file, "libmemopt");
    assert_int_equal(line, 0);
    snprintf(raised, sizeof raised, "%s", message);
    longjmp(back, 1);
}

PLUGGABLE_TEST(test_failure_is_raised, allocator, "")
{
    memopt_memory_info info = {.struct_size = sizeof info};
    OK(memopt_device_get_memory_info(mo_allocator_device(allocator), &info));
    memopt_pluggable_memory_fraction(64.0 * (double)MIB / (double)info.total, 0);
    assert_null(memopt_pluggable_alloc_or_raise(65 * MIB, 0, NULL)); /* none configured */
    OK(memopt_pluggable_configure("cpu", "", raise_by_jump));
    void *volatile block = memopt_pluggable_alloc_or_raise(40 * MIB, 0, NULL);
    assert_non_null(block);
    if (setjmp(back) == 0) {
        memopt_pluggable_alloc_or_raise(30 * MIB, 0, NULL);
        fail_msg("it returned");
    }
    assert_non_null(strstr(raised, "CUDA out of memory. "));
    assert_non_null(strstr(raised, "30.00 MiB"));
    if (setjmp(back) == 0) {
        memopt_pluggable_alloc_or_raise(30, 99, NULL);
        fail_msg("it returned");
    }
    assert_non_null(strstr(raised, "memopt: "));
    assert_null(memopt_pluggable_alloc(30 * MIB, 0, NULL)); /* this one never raises */
    memopt_pluggable_free(block, 0, 0, NULL);
    block = memopt_pluggable_alloc_or_raise(30 * MIB, 0, NULL); /* no lock was left */
    assert_non_null(block);
}

static int32_t seen_device;
static uint64_t seen[3];

static void observe(int32_t device, uint64_t asked, uint64_t allocated_bytes, uint64_t free_bytes)
{
    uint64_t other[] = {asked, allocated_bytes, free_bytes};
    seen_device = device;
    memcpy(seen, other, sizeof seen);
    assert_null(memopt_pluggable_alloc(1, 99, NULL)); /* changes the last error */
}

PLUGGABLE_TEST(test_observer, allocator, "")
{
    memopt_memory_info memory = MEMOPT_MEMORY_INFO_INIT;
    (void)memopt_pluggable_alloc(5 * MIB, 0, NULL);
    OK(memopt_allocator_set_limit(allocator, 40 * MIB));
    memopt_pluggable_observe(observe);
    seen_device = 7;
    assert_null(memopt_pluggable_alloc(60 * MIB, 0, NULL));
    assert_null(memopt_pluggable_alloc_or_raise(1, 99, NULL));
    assert_int_equal(seen_device,
                     7); /* the first does not raise, the second is no matter of memory */
    OK(memopt_pluggable_configure("cpu", "", raise_by_jump));
    if (setjmp(back) == 0) {
        memopt_pluggable_alloc_or_raise(60 * MIB, 0, NULL);
        fail();
    }
    assert_non_null(strstr(raised, "60.00 MiB"));
    OK(memopt_device_get_memory_info(mo_allocator_device(allocator), &memory));
    assert_int_equal(seen_device, 0);
    assert_int_equal(seen[0], 60 * MIB);
    assert_int_equal(seen[1], 5 * MIB);
    assert_int_equal(seen[2], memory.free);
}

/* Traces of allocators that are made while a folder is given. */
TEST(test_trace)
{
    char folder[] = "/tmp/memopt-trace-XXXXXX", path[200], missing[] = "/nowhere/at/all";
    char *too_long = calloc(1, MO_PLUG_CONFIG + 1);
    assert_non_null(mkdtemp(folder));
    memset(too_long, 'x', MO_PLUG_CONFIG);
    REFUSED_SAYING("folder has 1000 characters", memopt_pluggable_trace(too_long));
    free(too_long);
    OK(memopt_pluggable_trace(missing));
    stop(start("")); /* works without its trace */
    OK(memopt_pluggable_trace(folder));
    memopt_allocator *allocator = start("");
    memopt_pluggable_free(memopt_pluggable_alloc(5000, 0, NULL), 0, 0, NULL);
    uint64_t events = 0;
    OK(memopt_allocator_trace(allocator, NULL, &events));
    assert_int_equal(events, 2);
    stop(allocator);
    stop(start("")); /* the end has forgotten the folder */
    int files = 0;
    DIR *list = opendir(folder);
    for (struct dirent *entry; (entry = readdir(list)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        files++;
        assert_int_equal(strncmp(entry->d_name, "0-", 2), 0);
        snprintf(path, sizeof path, "%s/%.100s", folder, entry->d_name);
        assert_int_equal(unlink(path), 0);
    }
    closedir(list);
    assert_int_equal(files, 1);
    assert_int_equal(rmdir(folder), 0);
}

/* Histories of allocators that are made while there are options for them. */
TEST(test_history)
{
    memopt_history_options options = MEMOPT_HISTORY_OPTIONS_INIT;
    memopt_history_event events[4];
    uint64_t first, count;
    options.struct_size = 1;
    REFUSED(memopt_pluggable_history(&options));
    options.struct_size = sizeof options;
    options.events = 3;
    OK(memopt_pluggable_history(&options));
    memopt_allocator *allocator = start("");
    memopt_pluggable_free(memopt_pluggable_alloc(5000, 0, NULL), 0, 0, NULL);
    memopt_pluggable_free(memopt_pluggable_alloc(6000, 0, NULL), 0, 0, NULL);
    OK(memopt_allocator_read_history(allocator, 0, 4, events, &first, &count));
    assert_int_equal(count, 3);
    assert_int_equal(events[2].bytes, 6000);
    assert_int_equal(events[2].action, MEMOPT_HISTORY_FREE);
    stop(allocator);
    allocator = start(""); /* the end has forgotten the options */
    FAILS(MEMOPT_NOT_FOUND, memopt_allocator_set_history(allocator, NULL));
    stop(allocator);
}

/* The range is what one registration may cover: it ends where memory is unmapped. */
TEST(test_base_alloc)
{
    for (int expandable = 0; expandable < 2; expandable++) {
        memopt_allocator *allocator = start(expandable ? "expandable_segments:True" : "");
        char *blocks[4];
        uint64_t bytes = 77;
        for (int i = 0; i < 4; i++)
            blocks[i] = memopt_pluggable_alloc(4 * MIB, 0, NULL);
        assert_ptr_equal(memopt_pluggable_base_alloc(blocks[2], &bytes), blocks[0]);
        assert_int_equal(bytes, expandable ? 16 * MIB : 20 * MIB);
        memopt_pluggable_free(blocks[1], 0, 0, NULL);
        memopt_pluggable_empty_cache();
        assert_ptr_equal(memopt_pluggable_base_alloc(blocks[3], &bytes),
                         blocks[expandable ? 2 : 0]);
        assert_int_equal(bytes, expandable ? 8 * MIB : 20 * MIB);
        assert_ptr_equal(memopt_pluggable_base_alloc(blocks[0], NULL), blocks[0]);
        assert_null(memopt_pluggable_base_alloc(blocks[1], &bytes));
        assert_int_equal(bytes, expandable ? 8 * MIB : 20 * MIB);
        stop(allocator);
    }
}

/* The library that throws is torch's: tests of Python throw through it. */
TEST(test_torch_is_not_there)
{
    memopt_pluggable_raise raise = raise_by_jump;
    FAILS_SAYING(MEMOPT_NOT_FOUND, "has not loaded \"/nowhere/libc10.so\"; import torch",
                 memopt_pluggable_find_torch("/nowhere/libc10.so", &raise));
    FAILS_SAYING(MEMOPT_NOT_FOUND, "\"libc.so.6\" has no _ZN3c106detail14torchCheckFail",
                 memopt_pluggable_find_torch("libc.so.6", &raise));
    REFUSED_SAYING("libc10 is NULL", memopt_pluggable_find_torch(NULL, &raise));
    REFUSED_SAYING("out_raise is NULL", memopt_pluggable_find_torch("libc.so.6", NULL));
    assert_true(raise == raise_by_jump);
}

/* --- configuration ---------------------------------------------------------------------------- */

TEST(test_configure)
{
    char longer[MO_PLUG_CONFIG + 1];
    memopt_allocator *allocator;
    memset(longer, ' ', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    REFUSED_SAYING("backend", memopt_pluggable_configure("cuda:0", "", NULL));
    REFUSED_SAYING("backend", memopt_pluggable_configure(NULL, "", NULL));
    REFUSED_SAYING("max_split_size_mb", memopt_pluggable_configure("cpu", "max_split:1", NULL));
    REFUSED_SAYING("1000", memopt_pluggable_configure("cpu", longer, NULL));
    allocator = start("max_split_size_mb:64");
    assert_int_equal(stat_of(allocator, "max_split_size"), 64 * MIB);
    OK(memopt_pluggable_configure("cpu", "max_split_size_mb:64", NULL));
    FAILS_SAYING(MEMOPT_BUSY, "max_split_size_mb:64",
                 memopt_pluggable_configure("cpu", NULL, NULL));
    REFUSED_SAYING("out_allocator", memopt_pluggable_get_allocator(0, 0, NULL));
    FAILS_SAYING(MEMOPT_NOT_FOUND, "no allocator with this index",
                 memopt_pluggable_get_allocator(0, 1, &allocator));
    void *block = memopt_pluggable_alloc(10, 0, NULL);
    FAILS_SAYING(MEMOPT_BUSY, "1 blocks", memopt_pluggable_end());
    memopt_pluggable_free(block, 10, 0, NULL);
    stop(allocator);
    OK(memopt_pluggable_end());
    assert_int_equal(mo_memory_live_blocks(), 0);
}

/* --- graphs ----------------------------------------------------------------------------------- */

/* What a graph's recording allocates and frees is given to nobody else while the graph lives. */
PLUGGABLE_TEST(test_graph_keeps_its_memory, first, "")
{
    memopt_allocator *pool = NULL;
    void *before = memopt_pluggable_alloc(5000, 0, recorder);
    memopt_pluggable_free(before, 5000, 0, recorder); /* cached: the recording must not get it */
    memopt_pluggable_begin_pool(0, 3, 9, NULL);
    (void)memopt_pluggable_alloc(5000, 0, NULL); /* does not record yet */
    captured = recorder;
    void *temporary = memopt_pluggable_alloc(5000, 0, recorder);
    (void)memopt_pluggable_alloc(5000, 0, NULL);
    assert_ptr_not_equal(temporary, before);
    memopt_pluggable_free(temporary, 5000, 0, recorder);
    void *result = memopt_pluggable_alloc(5000, 0, recorder);
    assert_ptr_equal(result, temporary); /* within the graph it is reused */
    void *kept = memopt_pluggable_alloc(5000, 0, recorder);
    memopt_pluggable_free(kept, 5000, 0, recorder);
    captured = NULL;
    memopt_pluggable_end_pool(0, 3, 9);
    OK(memopt_pluggable_get_allocator(0, 1, &pool));
    assert_int_equal(allocated(pool), 5000);
    uint64_t id[2];
    OK(memopt_pluggable_get_pool(0, 1, &id[0], &id[1]));
    assert_true(id[0] == 3 && id[1] == 9);
    OK(memopt_pluggable_get_pool(0, 0, &id[0], &id[1]));
    assert_true(id[0] == 0 && id[1] == 0);
    FAILS(MEMOPT_NOT_FOUND, memopt_pluggable_get_pool(0, 2, &id[0], &id[1]));
    REFUSED(memopt_pluggable_get_pool(64, 0, &id[0], &id[1]));
    assert_ptr_equal(memopt_pluggable_base_alloc(result, &id[0]), temporary);
    assert_int_equal(allocated(first), 10000);
    memopt_pluggable_empty_cache();
    assert_true(held_by(pool) > 0);
    void *later = memopt_pluggable_alloc(5000, 0, recorder);
    assert_ptr_not_equal(later, kept);
    memopt_pluggable_release_pool(0, 3, 9);
    assert_true(held_by(pool) > 0); /* its result lives on */
    memopt_pluggable_free(result, 5000, 0, recorder);
    synced = 0;
    memopt_pluggable_empty_cache();
    assert_int_equal(held_by(pool), 0);
    assert_true(synced > 0); /* replays may have been running */
}

/* The fraction of the device counts what graphs hold, which stays theirs when the rest runs out. */
PLUGGABLE_TEST(test_graphs_count_in_the_fraction, first, "")
{
    memopt_allocator *pool = NULL;
    OK(memopt_allocator_set_limit(first, 64 * MIB)); /* as memopt_pluggable_memory_fraction() */
    memopt_pluggable_begin_pool(0, 5, 5, NULL);
    captured = recorder;
    void *kept = memopt_pluggable_alloc(20 * MIB, 0, recorder);
    memopt_pluggable_free(memopt_pluggable_alloc(20 * MIB, 0, recorder), 0, 0, recorder);
    captured = NULL;
    memopt_pluggable_end_pool(0, 5, 5);
    OK(memopt_pluggable_get_allocator(0, 1, &pool));
    memopt_allocator_info info = MEMOPT_ALLOCATOR_INFO_INIT;
    OK(memopt_allocator_get_info(pool, &info));
    assert_string_equal(info.name, "graph");
    assert_null(memopt_pluggable_alloc(30 * MIB, 0, NULL));
    assert_int_equal(held_by(pool), 40 * MIB);
    void *block = memopt_pluggable_alloc(24 * MIB, 0, NULL);
    assert_non_null(block);
    memopt_pluggable_free(block, 0, 0, NULL);
    memopt_pluggable_free(kept, 0, 0, recorder);
    memopt_pluggable_release_pool(0, 5, 5);
    assert_int_equal(held_by(pool), 0);
}

/* A trim counts what graphs hold, gives released ones' memory back first, and no live graph's. */
PLUGGABLE_TEST(test_trim_to_a_target, first, "expandable_segments:True")
{
    uint64_t released = 77;
    memopt_allocator *pool = NULL;
    OK(memopt_pluggable_trim_to_sync(1, 0, &released)); /* a device without an allocator */
    assert_int_equal(released, 0);
    released = 77;
    REFUSED_SAYING("device 64 is not 0 to 63", memopt_pluggable_trim_to_sync(64, 0, &released));
    REFUSED(memopt_pluggable_trim_to_sync(-1, 0, &released));
    assert_int_equal(released, 77);
    (void)memopt_pluggable_alloc(2 * MIB, 0, NULL);
    memopt_pluggable_free(memopt_pluggable_alloc(20 * MIB, 0, NULL), 0, 0, NULL);
    memopt_pluggable_begin_pool(0, 5, 5, NULL);
    captured = recorder;
    void *result = memopt_pluggable_alloc(8 * MIB, 0, recorder);
    OK(memopt_pluggable_trim_to_sync(0, 0, &released)); /* while a stream records */
    assert_int_equal(released, 0);
    captured = NULL;
    memopt_pluggable_end_pool(0, 5, 5);
    OK(memopt_pluggable_get_allocator(0, 1, &pool));
    assert_int_equal(held_by(first), 22 * MIB);
    assert_int_equal(held_by(pool), 8 * MIB);
    OK(memopt_pluggable_trim_to_sync(0, 30 * MIB, &released));
    assert_int_equal(released, 0);
    OK(memopt_pluggable_trim_to_sync(0, 24 * MIB, &released));
    assert_int_equal(released, 6 * MIB);
    assert_int_equal(held_by(first), 16 * MIB);
    captured = recorder; /* an open pool keeps the memory of a released one */
    memopt_pluggable_begin_pool(0, 6, 6, NULL);
    memopt_pluggable_release_pool(0, 5, 5);
    memopt_pluggable_free(result, 0, 0, recorder);
    captured = NULL;
    memopt_pluggable_end_pool(0, 6, 6);
    synced = 0;
    OK(memopt_pluggable_trim_to_sync(0, 24 * MIB, NULL));
    assert_int_equal(synced, 0); /* so much is held: nothing is waited for */
    OK(memopt_pluggable_trim_to_sync(0, 14 * MIB, &released));
    assert_int_equal(released, 10 * MIB);
    assert_int_equal(held_by(pool), 0);
    assert_int_equal(held_by(first), 14 * MIB);
    assert_true(synced > 0);
    OK(memopt_pluggable_trim_to_sync(0, 0, &released));
    assert_int_equal(released, 12 * MIB);
    assert_int_equal(held_by(first), 2 * MIB);
    memopt_pluggable_release_pool(0, 6, 6);
}

/* Two graphs that share a pool: it lives until both are gone. The next graph takes it over empty.
 */
PLUGGABLE_TEST(test_shared_pools, first, "")
{
    memopt_allocator *pool = NULL, *none = NULL;
    void *temporary[2];
    for (int i = 0; i < 2; i++) {
        memopt_pluggable_begin_pool(0, 1, 0, NULL);
        captured = recorder;
        temporary[i] = memopt_pluggable_alloc(100, 0, recorder);
        memopt_pluggable_free(temporary[i], 100, 0, recorder);
        captured = NULL;
        memopt_pluggable_end_pool(0, 1, 0);
    }
    assert_ptr_equal(temporary[0], temporary[1]);
    OK(memopt_pluggable_get_allocator(0, 1, &pool));
    FAILS_SAYING(MEMOPT_NOT_FOUND, "no allocator with this index",
                 memopt_pluggable_get_allocator(0, 2, &none));
    memopt_pluggable_release_pool(0, 1, 0);
    assert_true(held_by(pool) > 0);
    memopt_pluggable_release_pool(0, 1, 0);
    assert_int_equal(held_by(pool), 0);
    memopt_pluggable_begin_pool(0, 2, 0, NULL);
    FAILS_SAYING(MEMOPT_NOT_FOUND, "no allocator with this index",
                 memopt_pluggable_get_allocator(0, 2, &none));
    memopt_pluggable_begin_pool(0, 4, 0, NULL); /* begun last: takes the allocations */
    OK(memopt_pluggable_get_allocator(0, 1, &none));
    captured = recorder;
    void *block = memopt_pluggable_alloc(100, 0, recorder);
    assert_int_equal(allocated(none), 100);
    assert_int_equal(allocated(pool), 0);
    captured = NULL;
    memopt_pluggable_release_pool(0, 4, 0); /* without an end */
    memopt_pluggable_free(block, 100, 0, recorder);
    memopt_pluggable_release_pool(0, 2, 0);
    captured = recorder;
    block = memopt_pluggable_alloc(100, 0, recorder);
    captured = NULL;
    assert_int_equal(allocated(first), 100);
    memopt_pluggable_free(block, 100, 0, recorder);
}

/* --- threads and faults ----------------------------------------------------------------------- */

static void *work(void *argument)
{
    uint64_t seed = (uint64_t)(uintptr_t)argument;
    void *blocks[16] = {NULL};
    for (int i = 0; i < 2000; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        unsigned at = (unsigned)(seed >> 60);
        memopt_pluggable_free(blocks[at], 0, 0, NULL);
        blocks[at] = memopt_pluggable_alloc((seed >> 44 & 0xffff) + 1, 0, NULL);
        if (blocks[at] == NULL)
            return argument;
        *(uint64_t *)blocks[at] = seed;
        if ((seed >> 32 & 63) == 0)
            memopt_pluggable_empty_cache();
    }
    for (int i = 0; i < 16; i++)
        memopt_pluggable_free(blocks[i], 0, 0, NULL);
    return NULL;
}

/* The first allocations come from several threads at once: one allocator is made. */
TEST(test_threads)
{
    enum { THREADS = 4 };
    memopt_allocator *allocator = NULL;
    for (int round = 0; round < 5; round++) {
        pthread_t threads[THREADS];
        void *failed = NULL;
        OK(memopt_pluggable_configure("cpu", "expandable_segments:True", NULL));
        for (uintptr_t i = 0; i < THREADS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, work, (void *)(i + 1)), 0);
        for (int i = 0; i < THREADS; i++) {
            pthread_join(threads[i], &failed);
            assert_null(failed);
        }
        OK(memopt_pluggable_get_allocator(0, 0, &allocator));
        assert_int_equal(allocated(allocator), 0);
        OK(mo_allocator_check(allocator));
        OK(memopt_pluggable_end());
        assert_int_equal(mo_memory_live_blocks(), 0);
    }
}

/* Each host allocation fails once; nothing leaks and the next call works. */
TEST(test_host_memory_runs_out)
{
    for (int64_t n = 1;; n++) {
        OK(memopt_pluggable_configure("cpu", "", NULL));
        mo_memory_fail_at(n);
        void *block = memopt_pluggable_alloc(5000, 0, NULL);
        mo_memory_fail_at(0);
        void *next = memopt_pluggable_alloc(5000, 0, NULL);
        assert_non_null(next);
        memopt_pluggable_free(next, 5000, 0, NULL);
        memopt_pluggable_free(block, 5000, 0, NULL);
        OK(memopt_pluggable_end());
        assert_int_equal(mo_memory_live_blocks(), 0);
        if (block != NULL)
            break;
        assert_in_range(n, 1, 100);
    }
}
