/* A cache of page-locked host memory: exact sizes, a limit, and no reuse before the work that uses
 * it is over. */
#include "support.h"

static memopt_allocator *new_pinned(memopt_device *device, uint64_t limit)
{
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    memopt_allocator *allocator = NULL;
    options.memory = MEMOPT_MEMORY_PINNED;
    options.limit = limit;
    OK(memopt_allocator_create(device, "", &options, &allocator));
    return allocator;
}

TEST(sizes_are_exact)
{
    static const uint64_t asked[] = {100, MIB, MIB + 1, 3 * MIB + 5, 10 * MIB, 33 * MIB + 513};
    static const uint64_t held[] = {2 * MIB,        2 * MIB,  MIB + 4096,
                                    3 * MIB + 4096, 10 * MIB, 33 * MIB + 4096};
    memopt_device *device = eager(CAPACITY);
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        memopt_allocator *allocator = new_pinned(device, 0);
        void *block = alloc(allocator, asked[i]);
        memset(block, 1, asked[i]);
        assert_int_equal(held_by(allocator), held[i]);
        assert_int_equal(info_of(device).pinned, held[i]);
        assert_int_equal(info_of(device).used, 0);
        OK(memopt_allocator_free(allocator, block));
        OK(mo_allocator_check(allocator));
        OK(memopt_allocator_trim_sync(allocator, 0, NULL));
        assert_int_equal(info_of(device).pinned, 0);
        OK(memopt_allocator_destroy(allocator));
    }
    OK(memopt_device_close(device));
}

/* Whichever stream runs first, what a copy reads or writes is no other block's yet. */
TEST(blocks_wait_for_their_streams)
{
    enum { COPIES = 40, BYTES = 3000 };
    for (uint64_t seed = 1; seed <= 12; seed++) {
        memopt_device *device = open_cpu(CAPACITY, MEMOPT_STREAM_ORDER_ADVERSARIAL, seed);
        memopt_allocator *pinned = new_pinned(device, 0), *allocator = new_allocator(device, "");
        unsigned char *target = alloc(allocator, COPIES * BYTES), *first = NULL;
        memopt_stream streams[3] = {NULL};
        int reused = 0;
        OK(memopt_stream_create(device, &streams[1]));
        OK(memopt_stream_create(device, &streams[2]));
        for (int i = 0; i < COPIES; i++) {
            memopt_stream used = streams[i % 3];
            unsigned char *block = alloc_on(pinned, BYTES, i % 2 == 0 ? used : streams[1]);
            memset(block, i + 1, BYTES);
            if (i % 2 != 0)
                OK(memopt_allocator_record_stream(pinned, block, used));
            OK(memopt_copy(device, target + i * BYTES, block, BYTES, used));
            OK(memopt_allocator_free(pinned, block));
            first = i == 0 ? block : first;
            if (i % 8 == 7)
                OK(memopt_device_sync(device));
            reused += i > 0 && block == first;
        }
        OK(memopt_device_sync(device));
        for (int i = 0; i < COPIES; i++)
            assert_true(all_bytes(target + i * BYTES, (unsigned char)(i + 1), BYTES));
        assert_true(reused > 0);
        OK(memopt_allocator_free(allocator, target));
        OK(memopt_allocator_destroy(allocator));
        finish(pinned, device);
    }
}

/* What is free serves any stream, and goes back before the limit is exceeded. */
ALLOCATOR_TEST_OF(the_limit, allocator, eager(CAPACITY), new_pinned(device, 8 * MIB), CLASSIC)
{
    void *pointer = NULL;
    memopt_stream other = stream_on(device);
    void *block = alloc(allocator, 5 * MIB);
    OK(memopt_allocator_free(allocator, block));
    assert_ptr_equal(alloc_on(allocator, 5 * MIB, other), block);
    FAILS_SAYING(MEMOPT_OUT_OF_HOST_MEMORY, "page-locked",
                 memopt_allocator_alloc(allocator, 4 * MIB, MEMOPT_TAG_OTHER, NULL, &pointer));
    assert_null(pointer);
    OK(memopt_allocator_free(allocator, block));
    block = alloc(allocator, 7 * MIB);
    assert_int_equal(info_of(device).pinned, 7 * MIB);
    memopt_pool *pool = pool_of(allocator, NULL);
    FAILS_SAYING(MEMOPT_OUT_OF_HOST_MEMORY, "page-locked",
                 memopt_allocator_alloc(pool, 2 * MIB, MEMOPT_TAG_OTHER, NULL, &pointer));
    OK(memopt_allocator_free(allocator, block));
    (void)alloc(pool, 2 * MIB);
    assert_int_equal(info_of(device).pinned, 2 * MIB);
    OK(memopt_allocator_destroy_force(pool));
}

TEST(what_is_for_device_memory_only)
{
    memopt_device *device = eager(CAPACITY);
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    memopt_pool_options expandable = MEMOPT_POOL_OPTIONS_INIT;
    memopt_allocator *allocator = NULL;
    memopt_pool *pool = NULL;
    options.memory = 2;
    REFUSED_SAYING("memory is 2", memopt_allocator_create(device, "", &options, &allocator));
    options.memory = MEMOPT_MEMORY_PINNED;
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "expandable_segments",
                 memopt_allocator_create(device, EXPANDABLE, &options, &allocator));
    FAILS_SAYING(
        MEMOPT_UNSUPPORTED, "limit in bytes",
        memopt_allocator_create(device, "per_process_memory_fraction:0.5", &options, &allocator));
    assert_null(allocator);
    allocator = new_pinned(device, 0);
    expandable.config = EXPANDABLE;
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "expandable_segments",
                 memopt_pool_create(allocator, &expandable, &pool));
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "expandable_segments",
                 pause_pool(allocator, MEMOPT_PAUSE_KEEP, NULL));
    finish(allocator, device);
}
