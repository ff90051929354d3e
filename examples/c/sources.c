/*
 * Where an allocator's memory comes from, other than from the device's driver:
 *   1. page-locked host memory, cached, because locking pages is slow;
 *   2. memory of your own: here an arena of device memory that the program holds already.
 *
 * Build it with:  cc sources.c $(pkg-config --cflags --libs memopt)
 */
#include "example.h"

/* 1. Batches go to the device through blocks that are freed as soon as their copy is enqueued. */
static int page_locked(memopt_device *device, memopt_stream copies)
{
    enum { BATCHES = 20 };
    const uint64_t bytes = 3 * MIB;
    memopt_allocator *pinned;
    unsigned char *target;
    void *all, *block;
    memopt_memory_info info = MEMOPT_MEMORY_INFO_INIT;
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    options.memory = MEMOPT_MEMORY_PINNED;
    options.limit = (uint64_t)4 << 30; /* of host memory */
    CHECK(memopt_allocator_create(device, "", &options, &pinned));
    memopt_allocator *allocator;
    CHECK(memopt_allocator_create(device, "", NULL, &allocator));
    CHECK(memopt_allocator_alloc(allocator, BATCHES * bytes, MEMOPT_TAG_OTHER, copies, &all));
    target = all;
    for (int batch = 0; batch < BATCHES; batch++) {
        CHECK(memopt_allocator_alloc(pinned, bytes, MEMOPT_TAG_OTHER, copies, &block));
        memset(block, batch, bytes);
        CHECK(memopt_copy(device, target + (uint64_t)batch * bytes, block, bytes, copies));
        CHECK(memopt_allocator_free(pinned, block)); /* at once: it is reused after the copy */
        if (batch % 2 == 1)
            CHECK(memopt_stream_sync(device, copies));
    }
    CHECK(memopt_stream_sync(device, copies));
    int right = 1;
    for (int batch = 0; batch < BATCHES; batch++) {
        unsigned char first, last;
        const unsigned char *there = target + (uint64_t)batch * bytes;
        CHECK(memopt_copy_sync(device, &first, there, 1, copies));
        CHECK(memopt_copy_sync(device, &last, there + bytes - 1, 1, copies));
        right = right && first == batch && last == batch;
    }
    CHECK(memopt_device_get_memory_info(device, &info));
    printf("1. %d batches of 3 MiB were sent through %llu MiB of page-locked memory\n", BATCHES,
           (unsigned long long)(info.pinned / MIB));
    CHECK(memopt_allocator_free(allocator, all));
    CHECK(memopt_allocator_destroy(allocator));
    CHECK(memopt_allocator_destroy(pinned));
    return right && info.pinned <= 6 * MIB ? 0 : 1;
}

/* 2. An arena gives its memory from the front and takes it back when all of it is free. */
typedef struct arena {
    unsigned char *start;
    uint64_t bytes, used, taken_back;
} arena;

static memopt_status take_from_arena(void *user, uint64_t bytes, void **out_pointer)
{
    arena *from = user;
    if (bytes > from->bytes - from->used)
        return MEMOPT_OUT_OF_DEVICE_MEMORY; /* the allocator gives free memory back and asks again
                                             */
    *out_pointer = from->start + from->used;
    from->used += bytes;
    return MEMOPT_OK;
}

static memopt_status give_to_arena(void *user, void *pointer, uint64_t bytes)
{
    arena *to = user;
    (void)pointer;
    to->taken_back += bytes;
    if (to->taken_back == to->used)
        to->used = to->taken_back = 0;
    return MEMOPT_OK;
}

static int own_memory(memopt_device *device)
{
    memopt_allocator *whole, *allocator;
    void *memory, *small, *large;
    CHECK(memopt_allocator_create(device, "", NULL, &whole));
    CHECK(memopt_allocator_alloc(whole, 8 * MIB, MEMOPT_TAG_OTHER, NULL, &memory));
    arena own = {memory, 8 * MIB, 0, 0};
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    memopt_memory_provider provider = MEMOPT_MEMORY_PROVIDER_INIT;
    provider.alloc = take_from_arena;
    provider.free = give_to_arena;
    provider.user = &own;
    options.provider = &provider; /* copied */
    CHECK(memopt_allocator_create(device, "large_segment_size_mb:11", &options, &allocator));
    CHECK(memopt_allocator_alloc(allocator, 1000, MEMOPT_TAG_OTHER, NULL, &small));
    int inside =
        (unsigned char *)small >= own.start && (unsigned char *)small < own.start + own.bytes;
    CHECK(memopt_allocator_free(allocator, small));
    CHECK(memopt_allocator_alloc(allocator, 7 * MIB, MEMOPT_TAG_OTHER, NULL, &large));
    printf("2. blocks of an arena of 8 MiB: %llu MiB of it are in use\n",
           (unsigned long long)(own.used / MIB));
    CHECK(memopt_allocator_free(allocator, large));
    CHECK(memopt_allocator_destroy(allocator));
    CHECK(memopt_allocator_free(whole, memory));
    CHECK(memopt_allocator_destroy(whole));
    return inside && own.used == 0 ? 0 : 1;
}

int main(int count, char **words)
{
    memopt_device *device = open_device(device_argument(count, words, "cpu"), 128 * MIB);
    memopt_stream copies;
    CHECK(memopt_stream_create(device, &copies));
    int failed = page_locked(device, copies) || own_memory(device);
    CHECK(memopt_stream_destroy(device, copies));
    CHECK(memopt_device_close(device));
    puts(failed ? "NOT as expected" : "as expected");
    return failed;
}
