/*
 * The caching allocator: give memory out again instead of asking the driver, and grow page by page.
 *
 * Eight things a trainer wants to know of its allocator, each in a few lines:
 *   1. a freed block comes back without a driver call, and who holds what is counted by tag;
 *   2. expandable segments serve new sizes from old memory where classic ones cannot;
 *   3. a block that another stream uses is given out again only when that work is done;
 *   4. when memory ends, the report says who holds it and what to try;
 *   5. pools share a limit, what one has free serves the others, and one can be paused for another;
 *   6. what an allocation costs;
 *   7. blocks of one tag can be paused, to a file, while the others are used;
 *   8. a step that repeats is laid out once, and then holds hardly more than is alive.
 *
 * Build it with:  cc allocator.c $(pkg-config --cflags --libs memopt)
 */
#define _POSIX_C_SOURCE 199309L /* clock_gettime */

#include "example.h"

#include <time.h>

static uint64_t stat_of(memopt_allocator *allocator, const char *name)
{
    uint64_t value = 0;
    (void)memopt_allocator_get_stat(allocator, name, &value);
    return value;
}

/* 1. Allocate, free, allocate again: the driver is asked once. */
static int caching(memopt_device *device, const char *config)
{
    memopt_allocator *allocator;
    memopt_tag cache_tag;
    void *weights, *scratch, *again;
    CHECK(memopt_allocator_create(device, config, NULL, &allocator));
    CHECK(memopt_allocator_register_tag(allocator, "kv cache", &cache_tag));
    CHECK(memopt_allocator_alloc(allocator, 40 * MIB, MEMOPT_TAG_WEIGHTS, NULL, &weights));
    CHECK(memopt_allocator_alloc(allocator, 24 * MIB, cache_tag, NULL, &scratch));
    CHECK(memopt_allocator_free(allocator, scratch));
    uint64_t calls = stat_of(allocator, "num_device_alloc");
    CHECK(memopt_allocator_alloc(allocator, 20 * MIB, cache_tag, NULL, &again));
    int cached = again == scratch && stat_of(allocator, "num_device_alloc") == calls;
    printf("1. freed and allocated again: %s, %llu driver calls more\n",
           cached ? "the same address" : "ANOTHER ADDRESS",
           (unsigned long long)(stat_of(allocator, "num_device_alloc") - calls));

    memopt_tag_stats stats = MEMOPT_TAG_STATS_INIT;
    for (memopt_tag tag = 0; tag <= cache_tag; tag++) {
        CHECK(memopt_allocator_get_tag_stats(allocator, tag, &stats));
        if (stats.peak_bytes > 0)
            printf("   %-8s now %3llu MiB, at most %3llu MiB\n", stats.name,
                   (unsigned long long)(stats.current_bytes / MIB),
                   (unsigned long long)(stats.peak_bytes / MIB));
    }
    CHECK(memopt_allocator_free(allocator, again));
    CHECK(memopt_allocator_free(allocator, weights));
    CHECK(memopt_allocator_destroy(allocator));
    return cached ? 0 : 1;
}

/* 8 blocks of 16 MiB, freed, then 4 of 32 MiB: the most memory that was held. */
static int reserved_peak(memopt_device *device, const char *config, uint64_t *out_bytes)
{
    memopt_allocator *allocator;
    void *block[8];
    CHECK(memopt_allocator_create(device, config, NULL, &allocator));
    for (int i = 0; i < 8; i++)
        CHECK(memopt_allocator_alloc(allocator, 16 * MIB, 0, NULL, &block[i]));
    for (int i = 0; i < 8; i++)
        CHECK(memopt_allocator_free(allocator, block[i]));
    for (int i = 0; i < 4; i++)
        CHECK(memopt_allocator_alloc(allocator, 32 * MIB, 0, NULL, &block[i]));
    *out_bytes = stat_of(allocator, "reserved_bytes.all.peak");
    for (int i = 0; i < 4; i++)
        CHECK(memopt_allocator_free(allocator, block[i]));
    CHECK(memopt_allocator_destroy(allocator));
    return 0;
}

/* 2. The batch changes its shape. */
static int fragmentation(memopt_device *device)
{
    uint64_t classic, expandable;
    if (reserved_peak(device, "", &classic) != 0 ||
        reserved_peak(device, "expandable_segments:True", &expandable) != 0)
        return 1;
    printf("2. 8 x 16 MiB, then 4 x 32 MiB: classic segments hold %llu MiB, expandable %llu MiB\n",
           (unsigned long long)(classic / MIB), (unsigned long long)(expandable / MIB));
    return expandable == 128 * MIB && classic > expandable ? 0 : 1;
}

/* 3. A copy to the host runs on a stream of its own. Without record_stream, the next owner of the
 * block could overwrite it under the copy. */
static int other_streams(memopt_device *device, const char *config)
{
    static unsigned char host[1 << 20];
    memopt_allocator *allocator;
    memopt_stream copies;
    memopt_event *computed;
    void *result, *next;
    CHECK(memopt_allocator_create(device, config, NULL, &allocator));
    CHECK(memopt_stream_create(device, &copies));
    CHECK(memopt_event_create(device, 0, &computed));

    CHECK(memopt_allocator_alloc(allocator, sizeof host, 0, NULL, &result));
    CHECK(memopt_fill(device, result, 42, sizeof host, NULL)); /* the work that makes it */
    CHECK(memopt_event_record(computed, NULL));
    CHECK(memopt_stream_wait_event(device, copies, computed));
    CHECK(memopt_copy(device, host, result, sizeof host, copies));
    CHECK(memopt_allocator_record_stream(allocator, result, copies));
    CHECK(memopt_allocator_free(allocator, result)); /* at once: no need to wait for the copy */

    CHECK(memopt_allocator_alloc(allocator, sizeof host, 0, NULL, &next));
    CHECK(memopt_fill(device, next, 7, sizeof host, NULL));
    CHECK(memopt_stream_sync(device, copies));
    int right = host[0] == 42 && host[sizeof host - 1] == 42;
    printf("3. freed while a copy reads it: the copy is %s\n", right ? "right" : "WRONG");

    CHECK(memopt_allocator_free(allocator, next));
    CHECK(memopt_event_destroy(computed));
    CHECK(memopt_stream_destroy(device, copies));
    CHECK(memopt_allocator_destroy(allocator));
    return right ? 0 : 1;
}

static void on_out_of_memory(void *user, uint64_t asked, uint64_t free_bytes, const char *report)
{
    (void)report; /* the same text as memopt_last_error() below */
    printf("4. observer: %llu MiB asked, %llu MiB free\n", (unsigned long long)(asked / MIB),
           (unsigned long long)(free_bytes / MIB));
    ++*(int *)user;
}

/* 4. This allocator may hold a quarter of the device. */
static int out_of_memory(memopt_device *device, const char *config)
{
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    memopt_allocator *allocator;
    void *weights, *activations, *more;
    int observed = 0;
    options.limit = 128 * MIB;
    options.oom = on_out_of_memory;
    options.oom_user = &observed;
    CHECK(memopt_allocator_create(device, config, &options, &allocator));
    CHECK(memopt_allocator_alloc(allocator, 30 * MIB, MEMOPT_TAG_WEIGHTS, NULL, &weights));
    CHECK(memopt_allocator_alloc(allocator, 70 * MIB, MEMOPT_TAG_ACTIVATIONS, NULL, &activations));
    memopt_status status =
        memopt_allocator_alloc(allocator, 40 * MIB, MEMOPT_TAG_GRADIENTS, NULL, &more);
    printf("   %s\n", memopt_last_error());
    int told = status == MEMOPT_OUT_OF_DEVICE_MEMORY && observed == 1 &&
               strstr(memopt_last_error(), "activations 70.00 MiB") != NULL;
    CHECK(memopt_allocator_free(allocator, weights));
    CHECK(memopt_allocator_free(allocator, activations));
    CHECK(memopt_allocator_destroy(allocator));
    return told ? 0 : 1;
}

/* 5. A trainer and a generator share 128 MiB; each has its own statistics and its own limit. */
static int pools(memopt_device *device)
{
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    memopt_pool_options wanted = MEMOPT_POOL_OPTIONS_INIT;
    memopt_allocator *allocator;
    memopt_pool *trainer, *generator;
    void *states, *activations, *cache;
    unsigned char byte = 0;
    memopt_pause_options keep = MEMOPT_PAUSE_OPTIONS_INIT;
    memopt_pause_report report = MEMOPT_PAUSE_REPORT_INIT;
    options.limit = 128 * MIB;
    CHECK(memopt_allocator_create(device, "expandable_segments:True", &options, &allocator));
    wanted.name = "trainer";
    CHECK(memopt_pool_create(allocator, &wanted, &trainer));
    wanted.name = "generator";
    wanted.limit = 100 * MIB;
    CHECK(memopt_pool_create(allocator, &wanted, &generator));
    CHECK(memopt_allocator_alloc(trainer, 40 * MIB, MEMOPT_TAG_OPTIMIZER, NULL, &states));
    CHECK(memopt_allocator_alloc(trainer, 60 * MIB, MEMOPT_TAG_ACTIVATIONS, NULL, &activations));
    CHECK(memopt_allocator_free(trainer, activations));                  /* cached */
    CHECK(memopt_allocator_alloc(generator, 80 * MIB, 0, NULL, &cache)); /* the trainer's cache */
    uint64_t training = stat_of(trainer, "reserved_bytes.all.current");
    uint64_t generating = stat_of(generator, "reserved_bytes.all.current");
    printf("5. of 128 MiB, the trainer holds %llu MiB and the generator %llu MiB\n",
           (unsigned long long)(training / MIB), (unsigned long long)(generating / MIB));

    CHECK(memopt_fill(device, cache, 9, 80 * MIB, NULL));
    keep.how = MEMOPT_PAUSE_KEEP;
    CHECK(memopt_pool_pause_sync(generator, &keep, &report));
    CHECK(memopt_allocator_alloc(trainer, 70 * MIB, MEMOPT_TAG_ACTIVATIONS, NULL, &activations));
    CHECK(memopt_allocator_free(trainer, activations));
    CHECK(memopt_pool_resume_sync(generator, 0)); /* the trainer's cache goes back for it */
    CHECK(memopt_copy_sync(device, &byte, (char *)cache + 80 * MIB - 1, 1, NULL));
    printf("   paused, the generator gave back %llu MiB; its last byte is %s\n",
           (unsigned long long)(report.released_bytes / MIB), byte == 9 ? "right" : "WRONG");

    CHECK(memopt_allocator_free(generator, cache));
    CHECK(memopt_allocator_free(trainer, states));
    CHECK(memopt_allocator_destroy(generator)); /* the pools before their parent */
    CHECK(memopt_allocator_destroy(trainer));
    CHECK(memopt_allocator_destroy(allocator));
    return training == 48 * MIB && generating == 80 * MIB && byte == 9 ? 0 : 1;
}

/* 6. From the cache, an allocation is a lock, a look at a bitmap and a hash table. */
static int cost(memopt_device *device, const char *config)
{
    enum { PAIRS = 1000000 };
    memopt_allocator *allocator;
    struct timespec start, end;
    void *block;
    CHECK(memopt_allocator_create(device, config, NULL, &allocator));
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < PAIRS; i++) {
        CHECK(memopt_allocator_alloc(allocator, 4096, 0, NULL, &block));
        CHECK(memopt_allocator_free(allocator, block));
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    double ns = (double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec);
    printf("6. %.0f ns for an allocation and its free\n", ns / PAIRS);
    CHECK(memopt_allocator_destroy(allocator));
    return 0;
}

/* 7. The weights of a generator sleep in a file; its cache of keys and values is dropped. */
static int sleeping(memopt_device *device)
{
    memopt_pause_options weights_only = MEMOPT_PAUSE_OPTIONS_INIT;
    memopt_pause_options cache_only = MEMOPT_PAUSE_OPTIONS_INIT;
    memopt_pause_report report = MEMOPT_PAUSE_REPORT_INIT;
    memopt_allocator *allocator;
    memopt_tag cache_tag;
    void *weights, *cache;
    unsigned char byte = 0;
    CHECK(memopt_allocator_create(device, "expandable_segments:True", NULL, &allocator));
    CHECK(memopt_allocator_register_tag(allocator, "kv cache", &cache_tag));
    CHECK(memopt_allocator_alloc(allocator, 48 * MIB, MEMOPT_TAG_WEIGHTS, NULL, &weights));
    CHECK(memopt_allocator_alloc(allocator, 64 * MIB, cache_tag, NULL, &cache));
    CHECK(memopt_fill(device, weights, 11, 48 * MIB, NULL));
    cache_only.tags = MEMOPT_TAG_BIT(cache_tag);
    cache_only.how = MEMOPT_PAUSE_DISCARD;
    CHECK(memopt_pool_pause_sync(allocator, &cache_only, &report));
    weights_only.tags = MEMOPT_TAG_BIT(MEMOPT_TAG_WEIGHTS);
    weights_only.how = MEMOPT_PAUSE_FILE;
    weights_only.path = "/tmp"; /* a folder, or a new file: it has no name once it is open */
    CHECK(memopt_pool_pause_sync(allocator, &weights_only, &report));
    uint64_t held = stat_of(allocator, "reserved_bytes.all.current");
    CHECK(memopt_pool_resume_sync(allocator, weights_only.tags)); /* the weights first */
    CHECK(memopt_pool_resume_sync(allocator, cache_only.tags));
    CHECK(memopt_copy_sync(device, &byte, (char *)weights + 48 * MIB - 1, 1, NULL));
    printf("7. asleep it holds %llu MiB, %llu MiB are in a file; awake, its weights are %s\n",
           (unsigned long long)(held / MIB), (unsigned long long)(report.kept_bytes / MIB),
           byte == 11 ? "right" : "WRONG");
    CHECK(memopt_allocator_free(allocator, cache));
    CHECK(memopt_allocator_free(allocator, weights));
    CHECK(memopt_allocator_destroy(allocator));
    return held == 0 && byte == 11 ? 0 : 1;
}

/* Ten layers: activations that live until backward, and a temporary of each. */
static memopt_status train_step(memopt_allocator *allocator)
{
    void *kept[10], *wide;
    memopt_status status = MEMOPT_OK;
    for (uint64_t i = 0; i < 10 && status == MEMOPT_OK; i++) {
        status = memopt_allocator_alloc(allocator, (11 - i) * MIB, MEMOPT_TAG_OTHER, NULL, &wide);
        if (status == MEMOPT_OK)
            status = memopt_allocator_alloc(allocator, (5 + i % 3) * MIB, MEMOPT_TAG_ACTIVATIONS,
                                            NULL, &kept[i]);
        if (status == MEMOPT_OK)
            status = memopt_allocator_free(allocator, wide);
    }
    for (int i = 9; i >= 0 && status == MEMOPT_OK; i--)
        status = memopt_allocator_free(allocator, kept[i]);
    return status;
}

/* 8. Two equal steps, and the allocator knows where each block goes. */
static int repeating(memopt_device *device)
{
    memopt_allocator *allocator;
    memopt_step_plan plan = MEMOPT_STEP_PLAN_INIT;
    CHECK(memopt_allocator_create(device, "expandable_segments:True", NULL, &allocator));
    for (int i = 0; i < 6; i++) {
        CHECK(train_step(allocator));
        CHECK(memopt_allocator_mark_step(allocator, MEMOPT_STEP_NEXT));
    }
    CHECK(memopt_allocator_get_step_plan(allocator, &plan));
    uint64_t held = stat_of(allocator, "reserved_bytes.all.current");
    uint64_t peak = stat_of(allocator, "reserved_bytes.all.peak");
    printf("8. a step that repeats: %llu of %llu steps as planned, %llu MiB held, %llu without\n",
           (unsigned long long)plan.planned_steps, (unsigned long long)plan.steps,
           (unsigned long long)(held / MIB), (unsigned long long)(peak / MIB));
    CHECK(memopt_allocator_destroy(allocator));
    return plan.active == 1 && held <= peak ? 0 : 1;
}

int main(int count, char **words)
{
    memopt_device *device = open_device(device_argument(count, words, "cpu"), 512 * MIB);
    memopt_device_properties properties = MEMOPT_DEVICE_PROPERTIES_INIT;
    CHECK(memopt_device_get_properties(device, &properties));
    int paged = (int)properties.virtual_memory;
    const char *config = paged ? "expandable_segments:True" : "";
    if (!paged)
        printf("Without 2, 5, 7 and 8: the device has no virtual memory. %s\n", properties.limit);
    int failed = caching(device, config) || (paged && fragmentation(device)) ||
                 other_streams(device, config) || out_of_memory(device, config) ||
                 (paged && pools(device)) || cost(device, config) ||
                 (paged && (sleeping(device) || repeating(device)));
    CHECK(memopt_device_close(device));
    return failed;
}
