/* Pools: what they share with their parent and with each other, and what they do not. */
#include "support.h"

#include "support/watched.h"

static memopt_pool *new_pool(memopt_allocator *parent, const char *name)
{
    return pool_of(
        parent, &(memopt_pool_options){.struct_size = sizeof(memopt_pool_options), .name = name});
}

static memopt_pool *limited_pool(memopt_allocator *parent, uint64_t limit)
{
    return pool_of(
        parent, &(memopt_pool_options){.struct_size = sizeof(memopt_pool_options), .limit = limit});
}

static memopt_pool *retaining_pool(memopt_allocator *parent)
{
    return pool_of(parent,
                   &(memopt_pool_options){.struct_size = sizeof(memopt_pool_options), .retain = 1});
}

static void end_pool(memopt_pool *pool)
{
    free_live(pool);
    OK(mo_allocator_check(pool));
    OK(memopt_allocator_destroy(pool));
}

/* --- handles -------------------------------------------------------------------------------- */

ALLOCATOR_TEST(arguments, parent, eager(CAPACITY), CLASSIC)
{
    memopt_pool_options options = MEMOPT_POOL_OPTIONS_INIT;
    memopt_pool *pool = NULL;
    REFUSED(memopt_pool_create(NULL, NULL, &pool));
    REFUSED(memopt_pool_create(parent, NULL, NULL));
    options.name = "12345678901234567890123456789012";
    REFUSED_SAYING("32 characters", memopt_pool_create(parent, &options, &pool));
    options.name++;
    options.config = "expandable_segment:True";
    REFUSED_SAYING("expandable_segments", memopt_pool_create(parent, &options, &pool));
    options.config = NULL;
    options.struct_size = 1;
    REFUSED(memopt_pool_create(parent, &options, &pool));
    options.struct_size = sizeof options;
    assert_null(pool);
    OK(memopt_pool_create(parent, &options, &pool));
    memopt_allocator_info info = MEMOPT_ALLOCATOR_INFO_INIT;
    OK(memopt_allocator_get_info(pool, &info));
    assert_string_equal(info.name, "2345678901234567890123456789012");
    assert_ptr_equal(info.device, device);
    OK(memopt_allocator_get_info(parent, &info));
    assert_string_equal(info.name, "");
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_allocator_get_info(NULL, &info));
    FAILS(MEMOPT_INVALID_ARGUMENT, memopt_allocator_get_info(pool, NULL));
    memopt_pool *inner = NULL;
    REFUSED_SAYING("2345678901234567890123456789012", memopt_pool_create(pool, NULL, &inner));
    assert_null(inner);
    end_pool(pool);
}

ALLOCATOR_TEST(the_parent_is_busy, parent, eager(CAPACITY), CLASSIC)
{
    memopt_pool *first = new_pool(parent, "first"), *second = new_pool(parent, "second");
    void *block = alloc(first, 3 * MIB);
    memset(block, 7, 3 * MIB);
    FAILS_SAYING(MEMOPT_BUSY, "2 pools", memopt_allocator_destroy(parent));
    FAILS_SAYING(MEMOPT_BUSY, "2 pools", memopt_allocator_destroy_force(parent));
    FAILS_SAYING(MEMOPT_BUSY, "1 blocks", memopt_allocator_destroy(first));
    assert_true(all_bytes(block, 7, 3 * MIB));
    end_pool(second);
    FAILS_SAYING(MEMOPT_BUSY, "1 pools", memopt_allocator_destroy(parent));
    OK(memopt_allocator_destroy_force(first));
}

ALLOCATOR_TEST(each_has_its_own_blocks, parent, eager(CAPACITY), BOTH)
{
    memopt_pool *pool = new_pool(parent, "weights");
    void *mine = alloc(parent, 2 * MIB), *its = alloc(pool, 12 * MIB);
    assert_int_equal(stat_of(parent, "allocated_bytes.all.current"), 2 * MIB);
    assert_int_equal(stat_of(pool, "allocated_bytes.all.current"), 12 * MIB);
    REFUSED(memopt_allocator_free(parent, its));
    REFUSED(memopt_allocator_free(pool, mine));
    OK(memopt_allocator_free(pool, its));
    void *other = alloc(parent, 12 * MIB); /* the pool keeps its cache while there is room */
    assert_ptr_not_equal(other, its);
    assert_int_equal(held_by(pool), 12 * MIB);
    assert_ptr_equal(alloc(pool, 12 * MIB), its);
    OK(memopt_allocator_free(pool, its));
    uint64_t released = 0;
    OK(memopt_allocator_trim_sync(parent, 0, &released)); /* its own only */
    assert_int_equal(held_by(pool), 12 * MIB);
    OK(memopt_allocator_trim_sync(pool, 0, &released));
    assert_int_equal(released, 12 * MIB);
    OK(memopt_allocator_free(parent, mine));
    OK(memopt_allocator_free(parent, other));
    end_pool(pool);
}

/* A pool may have another configuration. */
ALLOCATOR_TEST(configurations_differ, parent, eager(CAPACITY), EXPANDABLE)
{
    memopt_pool_options options = MEMOPT_POOL_OPTIONS_INIT;
    memopt_pool *same = new_pool(parent, "same"), *other = NULL;
    options.config = "";
    OK(memopt_pool_create(parent, &options, &other));
    void *a = alloc(same, 3 * MIB), *b = alloc(other, 3 * MIB);
    assert_int_equal(held_by(same), 4 * MIB);
    assert_int_equal(held_by(other), 20 * MIB);
    OK(memopt_allocator_free(same, a));
    OK(memopt_allocator_free(other, b));
    OK(memopt_allocator_free(parent, alloc(parent, 60 * MIB))); /* pages and segments go back */
    assert_int_equal(held_by(other), 0);
    end_pool(same);
    end_pool(other);
}

ALLOCATOR_TEST(tags_are_shared, parent, eager(CAPACITY), CLASSIC)
{
    memopt_tag before, between, after, again;
    OK(memopt_allocator_register_tag(parent, "before", &before));
    memopt_pool *first = new_pool(parent, "first"), *second = new_pool(parent, "second");
    OK(memopt_allocator_register_tag(first, "between", &between));
    OK(memopt_allocator_register_tag(parent, "after", &after));
    assert_int_equal(between, before + 1);
    assert_int_equal(after, before + 2);
    memopt_allocator *all[] = {parent, first, second};
    const char *const names[] = {"before", "between", "after"};
    for (int i = 0; i < 3; i++) {
        void *block;
        memopt_tag_stats stats = MEMOPT_TAG_STATS_INIT;
        for (int t = 0; t < 3; t++) {
            OK(memopt_allocator_register_tag(all[i], names[t], &again));
            assert_int_equal(again, before + (memopt_tag)t);
        }
        OK(memopt_allocator_alloc(all[i], 1000, between, NULL, &block));
        OK(memopt_allocator_get_tag_stats(all[i], between, &stats));
        assert_string_equal(stats.name, "between");
        assert_int_equal(stats.current_bytes, 1000); /* each counts its own */
        OK(memopt_allocator_free(all[i], block));
    }
    end_pool(first);
    end_pool(second);
}

/* --- when memory is short -------------------------------------------------------------------- */

/* One runs out at the device's end, or at the limit; the others' free memory serves it. */
TEST(free_memory_of_others_serves)
{
    for (int c = 0; c < 2; c++) {
        for (int limited = 0; limited < 2; limited++) {
            memopt_device *device = eager(limited ? 4 * CAPACITY : CAPACITY);
            memopt_allocator *parent = new_allocator(device, configs[c]);
            memopt_pool *first = new_pool(parent, "first"), *second = new_pool(parent, "second");
            if (limited)
                OK(memopt_allocator_set_limit(parent, CAPACITY));
            void *live = alloc(first, 20 * MIB), *a = alloc(first, 12 * MIB);
            void *b = alloc(second, 12 * MIB), *c1 = alloc(parent, 12 * MIB), *none = NULL;
            memset(live, 5, MIB);
            FAILS_SAYING(MEMOPT_OUT_OF_DEVICE_MEMORY, "pool \"second\": 20.00 MiB asked",
                         memopt_allocator_alloc(second, 20 * MIB, 0, NULL, &none));
            SAYS("held by its parent and other pools: 44.00 MiB");
            if (limited)
                SAYS("limited to 64.00 MiB with its parent and its pools");
            FAILS_SAYING(MEMOPT_OUT_OF_DEVICE_MEMORY, "held by its pools: 44.00 MiB",
                         memopt_allocator_alloc(parent, 20 * MIB, 0, NULL, &none));
            OK(memopt_allocator_free(first, a));
            OK(memopt_allocator_free(parent, c1));
            void *big = alloc(second, 20 * MIB);
            assert_int_equal(held_by(second), 32 * MIB);
            assert_int_equal(held_by(first) + held_by(parent),
                             32 * MIB); /* no more than it lacked */
            assert_true(all_bytes(live, 5, MIB));
            OK(memopt_allocator_free(second, b));
            OK(memopt_allocator_free(second, big));
            (void)alloc(first, 44 * MIB); /* all that is left, from both */
            assert_int_equal(held_by(second) + held_by(parent), 0);
            assert_true(all_bytes(live, 5, MIB));
            end_pool(first);
            end_pool(second);
            finish(parent, device);
        }
    }
}

/* Its own limit stops a pool, and then nobody gives anything for it. */
ALLOCATOR_TEST(own_limit, parent, eager(CAPACITY), BOTH)
{
    memopt_pool *pool = limited_pool(parent, 24 * MIB);
    void *none = NULL;
    (void)alloc(pool, 24 * MIB);
    OK(memopt_allocator_free(parent, alloc(parent, 20 * MIB)));
    FAILS_SAYING(MEMOPT_OUT_OF_DEVICE_MEMORY, "limited to 24.00 MiB here",
                 memopt_allocator_alloc(pool, 512, 0, NULL, &none));
    FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY, memopt_allocator_alloc(pool, 40 * MIB, 0, NULL, &none));
    assert_int_equal(held_by(parent), 20 * MIB);
    OK(memopt_allocator_set_limit(pool, 0));
    (void)alloc(pool, 34 * MIB);
    end_pool(pool);
}

/* What others hold counts below the limits of a pool and of its parent, until it is told anew or the
 * pool ends. */
ALLOCATOR_TEST(memory_from_outside, parent, eager(CAPACITY), BOTH)
{
    memopt_tag_stats stats = MEMOPT_TAG_STATS_INIT;
    memopt_pool *pool = limited_pool(parent, 40 * MIB);
    memopt_tag blas, nccl;
    void *none = NULL;
    OK(memopt_allocator_set_limit(parent, 48 * MIB));
    OK(memopt_allocator_register_tag(parent, "blas", &blas));
    OK(memopt_allocator_register_tag(parent, "nccl", &nccl));
    OK(memopt_allocator_set_outside(pool, blas, 8 * MIB));
    OK(memopt_allocator_set_outside(pool, nccl, 16 * MIB));
    FAILS_SAYING(MEMOPT_OUT_OF_DEVICE_MEMORY,
                 "; counted from outside: nccl 16.00 MiB, blas 8.00 MiB; held here",
                 memopt_allocator_alloc(pool, 18 * MIB, 0, NULL, &none));
    (void)alloc(pool, 16 * MIB);
    FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY, memopt_allocator_alloc(parent, 10 * MIB, 0, NULL, &none));
    OK(memopt_allocator_set_outside(pool, nccl, 0));
    (void)alloc(parent, 10 * MIB);
    (void)alloc(pool, 14 * MIB);
    OK(memopt_allocator_get_tag_stats(pool, blas, &stats));
    assert_int_equal(stats.outside_bytes, 8 * MIB);
    REFUSED_SAYING("tag 7 is not among the 7", memopt_allocator_set_outside(pool, 7, 1));
    REFUSED_SAYING("2^48", memopt_allocator_set_outside(pool, blas, UINT64_MAX));
    end_pool(pool);
    (void)alloc(parent, 38 * MIB); /* the parent's room is whole again */
}

ALLOCATOR_TEST(retained_memory_stays, parent, eager(CAPACITY), BOTH)
{
    memopt_pool *graph = retaining_pool(parent);
    void *none = NULL;
    OK(memopt_allocator_free(graph, alloc(graph, 40 * MIB)));
    FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY, memopt_allocator_alloc(parent, 40 * MIB, 0, NULL, &none));
    assert_int_equal(held_by(graph), 40 * MIB);
    OK(memopt_allocator_trim_sync(graph, 0, NULL));
    OK(memopt_allocator_free(parent, alloc(parent, 40 * MIB)));
    (void)alloc(graph, 40 * MIB); /* it may take what the others have free */
    end_pool(graph);
}

/* Frees that wait for another stream are waited for in all members. */
ALLOCATOR_SWEEP(pending_frees_of_others, parent, for (uint64_t seed = 0; seed < 3; seed++),
                open_cpu(CAPACITY, MEMOPT_STREAM_ORDER_ADVERSARIAL, seed), BOTH)
{
    memopt_pool *pool = new_pool(parent, "pool");
    unsigned char host[64];
    memopt_stream stream = stream_on(device), other = stream_on(device);
    void *block = alloc_on(pool, 40 * MIB, stream);
    OK(memopt_fill(device, block, 9, 64, stream));
    OK(memopt_stream_sync(device, stream));
    OK(memopt_copy(device, host, block, 64, other));
    OK(memopt_allocator_record_stream(pool, block, other));
    OK(memopt_allocator_free(pool, block));
    void *mine = alloc_on(parent, 40 * MIB, stream);
    OK(memopt_fill(device, mine, 1, 64, stream));
    OK(memopt_allocator_free(parent, mine));
    OK(memopt_device_sync(device));
    assert_true(all_bytes(host, 9, 64));
    end_pool(pool);
}

/* While any member's stream records a graph nothing is given back, by pressure or by a trim. */
ALLOCATOR_TEST(captures, parent, watch(eager(CAPACITY)), BOTH)
{
    uint64_t released = 1;
    memopt_stream stream = stream_on(device);
    memopt_pool *first = new_pool(parent, "first"), *graph = retaining_pool(parent);
    void *none = NULL, *block = alloc_on(graph, 4 * MIB, stream);
    OK(memopt_allocator_free(first, alloc(first, 24 * MIB)));
    captured = stream;
    FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY, memopt_allocator_alloc(parent, 40 * MIB, 0, NULL, &none));
    FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY, memopt_allocator_alloc(graph, 40 * MIB, 0, stream, &none));
    OK(memopt_allocator_trim_sync(first, 0, &released));
    assert_int_equal(released, 0);
    assert_int_equal(held_by(first), 24 * MIB);
    captured = NULL;
    OK(memopt_allocator_free(parent, alloc(parent, 36 * MIB)));
    OK(memopt_allocator_free(graph, block));
    end_pool(first);
    end_pool(graph);
}

typedef struct observed {
    memopt_pool *owner;
    void *to_free;
    int pressed, failed;
} observed;

static uint64_t on_pressure(void *user, uint64_t bytes)
{
    observed *seen = user;
    seen->pressed++;
    void *inside = alloc(seen->owner, 1000); /* without a callback, whoever asked */
    OK(memopt_allocator_free(seen->owner, inside));
    OK(memopt_allocator_free(seen->owner, seen->to_free));
    seen->to_free = NULL;
    return bytes;
}

static void on_oom(void *user, uint64_t asked, uint64_t free_bytes, const char *report)
{
    ((observed *)user)->failed++;
}

/* The parent's callbacks are told of its pools' needs. */
TEST(callbacks)
{
    for (int c = 0; c < 2; c++) {
        observed seen = {NULL, NULL, 0, 0};
        memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
        memopt_device *device = eager(CAPACITY);
        memopt_allocator *parent = NULL;
        options.pressure = on_pressure;
        options.oom = on_oom;
        options.pressure_user = options.oom_user = &seen;
        OK(memopt_allocator_create(device, configs[c], &options, &parent));
        memopt_pool *first = new_pool(parent, "first"), *second = new_pool(parent, "second");
        seen.owner = second;
        void *none = NULL;
        FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY, memopt_allocator_alloc(first, 65 * MIB, 0, NULL, &none));
        assert_int_equal(seen.pressed, 1);
        assert_int_equal(seen.failed, 1);
        seen.to_free = alloc(second, 40 * MIB);
        OK(memopt_allocator_free(first, alloc(first, 40 * MIB)));
        assert_true(seen.pressed >= 2);
        assert_null(seen.to_free);
        end_pool(first);
        end_pool(second);
        finish(parent, device);
    }
}

/* Above the threshold of the whole family, a member that grows gives its oldest memory back. */
ALLOCATOR_TEST(garbage_collection_counts_the_family, parent, eager(CAPACITY),
               "garbage_collection_threshold:0.5")
{
    memopt_pool *pool = new_pool(parent, "pool");
    void *block = alloc(parent, 24 * MIB);
    OK(memopt_allocator_free(pool, alloc(pool, 12 * MIB)));
    void *more = alloc(pool, 14 * MIB);
    assert_int_equal(held_by(pool), 14 * MIB);
    OK(memopt_allocator_free(pool, more));
    OK(memopt_allocator_free(parent, block));
    end_pool(pool);
}

/* A pool whose end fails at some call is gone, and counts in no limit any more. */
ALLOCATOR_TEST(failing_ends, parent, eager(CAPACITY), BOTH)
{
    OK(memopt_allocator_set_limit(parent, 40 * MIB));
    memopt_stream stream = stream_on(device);
    memopt_pool *pool = new_pool(parent, "pool");
    OK(memopt_allocator_free(pool, alloc_on(pool, 40 * MIB, stream)));
    mo_device_fail_at(device, 1);
    FAILS(MEMOPT_DRIVER_ERROR, memopt_allocator_destroy(pool));
    assert_int_equal(mo_device_fault_struck(device), 1);
    mo_device_fail_at(device, 0);
    (void)alloc(parent, 40 * MIB);
}

/* --- the pattern of a model that is loaded and converted layer by layer ----------------------- */

enum { LAYERS = 48, ROUNDS = 3 };

/* Layers of 9.08 GiB become ones of 9.61 GiB, at a 64th of the size: a converted layer is allocated
 * before the old one is freed. */
enum { LAYER = 3173678, PADDED_LAYER = 3358928 };

static void convert(memopt_pool *pool, void *layers[LAYERS])
{
    for (int i = 0; i < LAYERS; i++) {
        void *padded = alloc(pool, PADDED_LAYER);
        memset(padded, i, 4 * KIB);
        OK(memopt_allocator_free(pool, layers[i]));
        layers[i] = padded;
    }
}

/* How much more a statistic is now. */
static double growth(memopt_pool *pool, const char *name, uint64_t before)
{
    return (double)stat_of(pool, name) - (double)before;
}

/* Loads and converts a model in the pool, and gives back what is free while it lives. */
static void load(memopt_pool *pool, void *layers[LAYERS])
{
    for (int i = 0; i < LAYERS; i++)
        layers[i] = alloc(pool, LAYER);
    uint64_t live = stat_of(pool, "allocated_bytes.all.current"), had = held_by(pool);
    double more = 0.02 * (double)live;
    convert(pool, layers);
    assert_true(growth(pool, "reserved_bytes.all.peak", had) <=
                growth(pool, "allocated_bytes.all.peak", live) + more);
    OK(memopt_allocator_trim_sync(pool, 1, NULL));
    assert_true(growth(pool, "reserved_bytes.all.current", had) <=
                growth(pool, "allocated_bytes.all.current", live) + more);
}

/* A pool is made beside a live one again and again; what they hold grows as their blocks do. */
ALLOCATOR_TEST(loading_grows_no_more_than_its_blocks, parent, eager(1024 * MIB), EXPANDABLE)
{
    void *layers[ROUNDS][LAYERS];
    memopt_pool *pools[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        pools[round] = new_pool(parent, "weights");
        load(pools[round], layers[round]);
        for (int i = 0; i < LAYERS; i++)
            assert_true(all_bytes(layers[round][i], i, 4 * KIB));
    }
    for (int round = 0; round < ROUNDS; round++) {
        end_pool(pools[round]);
        /* What was destroyed serves the next: nothing is left of it. */
        assert_int_equal(info_of(device).used, held_by(parent) +
                                                   (round < 1 ? held_by(pools[1]) : 0) +
                                                   (round < 2 ? held_by(pools[2]) : 0));
    }
}
