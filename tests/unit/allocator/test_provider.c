/* An allocator over memory that its user provides. */
#include "support.h"

#include <stdlib.h>

/* A provider that counts, has an end, and does as a test says. */
typedef struct store {
    uint64_t most, held, calls;
    uint64_t fail_at; /* the call that fails, counted from 1 */
    memopt_status failure;
    uint64_t shift;         /* of the addresses it gives */
    memopt_allocator *used; /* called from inside */
    memopt_status found;
} store;

static memopt_status give(void *user, uint64_t bytes, void **out_pointer)
{
    store *s = user;
    void *block = NULL;
    if (s->used != NULL) {
        void *pointer = NULL;
        s->found = memopt_allocator_trim_sync(s->used, 0, NULL);
        assert_int_equal(memopt_allocator_alloc(s->used, 9 * MIB, 0, NULL, &pointer), s->found);
        assert_null(pointer);
    }
    if (++s->calls == s->fail_at)
        return s->failure;
    if (bytes > s->most - s->held)
        return MEMOPT_OUT_OF_DEVICE_MEMORY;
    assert_int_equal(posix_memalign(&block, 4096, bytes + 4096), 0);
    s->held += bytes;
    *out_pointer = (char *)block + s->shift;
    return MEMOPT_OK;
}

static memopt_status take(void *user, void *pointer, uint64_t bytes)
{
    store *s = user;
    if (++s->calls == s->fail_at)
        return s->failure;
    assert_true(bytes <= s->held);
    s->held -= bytes;
    free((char *)pointer - s->shift);
    return MEMOPT_OK;
}

static memopt_allocator *over(memopt_device *device, store *s, uint32_t memory)
{
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    memopt_memory_provider provider = MEMOPT_MEMORY_PROVIDER_INIT;
    memopt_allocator *allocator = NULL;
    provider.alloc = give;
    provider.free = take;
    provider.user = s;
    options.provider = &provider;
    options.memory = memory;
    OK(memopt_allocator_create(device, "", &options, &allocator));
    return allocator;
}

TEST(memory_comes_from_the_provider)
{
    for (uint32_t memory = MEMOPT_MEMORY_DEVICE; memory <= MEMOPT_MEMORY_PINNED; memory++) {
        store s = {.most = 32 * MIB};
        memopt_device *device = open_cpu(CAPACITY, MEMOPT_STREAM_ORDER_ADVERSARIAL, 3);
        memopt_allocator *allocator = over(device, &s, memory);
        memopt_memory_info info = MEMOPT_MEMORY_INFO_INIT;
        memopt_pool *pool = NULL;
        OK(memopt_pool_create(allocator, NULL, &pool));
        unsigned char *a = alloc(allocator, 3 * MIB), *b = alloc(pool, 5 * MIB);
        OK(memopt_fill(device, a, 7, 3 * MIB, NULL));
        OK(memopt_copy(device, b, a, 3 * MIB, NULL));
        OK(memopt_device_sync(device));
        assert_true(all_bytes(b, 7, 3 * MIB));
        assert_int_equal(s.held, held_by(allocator) + held_by(pool));
        OK(memopt_device_get_memory_info(device, &info));
        assert_int_equal(info.used + info.pinned, 0);
        OK(memopt_allocator_free(allocator, a));
        OK(memopt_allocator_free(pool, b));
        b = alloc(pool, 30 * MIB); /* what the others have free goes back first */
        assert_true(s.held <= s.most);
        OK(memopt_allocator_free(pool, b));
        OK(memopt_allocator_destroy(pool));
        finish(allocator, device);
        assert_int_equal(s.held, 0);
    }
}

TEST(what_the_provider_says)
{
    store s = {.most = 8 * MIB, .failure = MEMOPT_DEVICE_LOST};
    memopt_device *device = eager(CAPACITY);
    memopt_allocator *allocator = over(device, &s, MEMOPT_MEMORY_DEVICE);
    void *pointer = NULL;
    FAILS_SAYING(MEMOPT_OUT_OF_DEVICE_MEMORY, "provider",
                 memopt_allocator_alloc(allocator, 11 * MIB, 0, NULL, &pointer));
    s.fail_at = s.calls + 1;
    FAILS_SAYING(MEMOPT_DEVICE_LOST, "could not give 2097152 bytes",
                 memopt_allocator_alloc(allocator, MIB, 0, NULL, &pointer));
    s.shift = 256;
    REFUSED_SAYING("a multiple of 512", memopt_allocator_alloc(allocator, MIB, 0, NULL, &pointer));
    assert_int_equal(s.held, 0);
    s.shift = 0;
    s.used = allocator;
    assert_null(pointer);
    pointer = alloc(allocator, MIB);
    assert_int_equal(s.found, MEMOPT_BUSY);
    s.used = NULL;
    OK(memopt_allocator_free(allocator, pointer));
    s.fail_at = s.calls + 1;
    FAILS_SAYING(MEMOPT_DEVICE_LOST, "could not take back 2097152 bytes",
                 memopt_allocator_trim_sync(allocator, 0, NULL));
    assert_int_equal(held_by(allocator), 2 * MIB);
    finish(allocator, device);
    assert_int_equal(s.held, 0);
}

TEST(refusals)
{
    memopt_device *device = eager(CAPACITY);
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    memopt_memory_provider provider = MEMOPT_MEMORY_PROVIDER_INIT;
    memopt_allocator *allocator = NULL;
    options.provider = &provider;
    provider.alloc = give;
    REFUSED_SAYING("free is NULL", memopt_allocator_create(device, "", &options, &allocator));
    provider.free = take;
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "expandable_segments",
                 memopt_allocator_create(device, EXPANDABLE, &options, &allocator));
    provider.struct_size = 4;
    REFUSED_SAYING("struct_size", memopt_allocator_create(device, "", &options, &allocator));
    assert_null(allocator);
    OK(memopt_device_close(device));
}
