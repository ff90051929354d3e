/*
 * Where an allocator's memory comes from, other than from the device's driver:
 *   1. page-locked host memory, cached, because locking pages is slow;
 *   2. memory of your own: here an arena that the program holds already.
 *
 * Build it with:  cc sources.c $(pkg-config --cflags --libs memopt)
 */
#include <memopt/memopt.h>

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define TRY(call)                                                                                  \
    do {                                                                                           \
        memopt_status status_ = (call);                                                            \
        if (status_ != MEMOPT_OK) {                                                                \
            fprintf(stderr, "%s\n  %s: %s\n", #call, memopt_status_name(status_),                  \
                    memopt_last_error());                                                          \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

#define MIB ((uint64_t)1 << 20)

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
    TRY(memopt_allocator_create(device, "", &options, &pinned));
    memopt_allocator *allocator;
    TRY(memopt_allocator_create(device, "", NULL, &allocator));
    TRY(memopt_allocator_alloc(allocator, BATCHES * bytes, MEMOPT_TAG_OTHER, copies, &all));
    target = all;
    for (int batch = 0; batch < BATCHES; batch++) {
        TRY(memopt_allocator_alloc(pinned, bytes, MEMOPT_TAG_OTHER, copies, &block));
        memset(block, batch, bytes);
        TRY(memopt_copy(device, target + (uint64_t)batch * bytes, block, bytes, copies));
        TRY(memopt_allocator_free(pinned, block)); /* at once: it is reused after the copy */
        if (batch % 2 == 1)
            TRY(memopt_stream_sync(device, copies));
    }
    TRY(memopt_stream_sync(device, copies));
    int right = 1;
    for (int batch = 0; batch < BATCHES; batch++) /* a cpu device: the host may read it */
        right = right && target[(uint64_t)batch * bytes] == batch &&
                target[(uint64_t)(batch + 1) * bytes - 1] == batch;
    TRY(memopt_device_get_memory_info(device, &info));
    printf("1. %d batches of 3 MiB were sent through %llu MiB of page-locked memory\n", BATCHES,
           (unsigned long long)(info.pinned / MIB));
    TRY(memopt_allocator_free(allocator, all));
    TRY(memopt_allocator_destroy(allocator));
    TRY(memopt_allocator_destroy(pinned));
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
    static _Alignas(4096) unsigned char memory[8 * MIB];
    arena own = {memory, sizeof memory, 0, 0};
    memopt_allocator *allocator;
    void *small, *large;
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    memopt_memory_provider provider = MEMOPT_MEMORY_PROVIDER_INIT;
    provider.alloc = take_from_arena;
    provider.free = give_to_arena;
    provider.user = &own;
    options.provider = &provider; /* copied */
    TRY(memopt_allocator_create(device, "large_segment_size_mb:11", &options, &allocator));
    TRY(memopt_allocator_alloc(allocator, 1000, MEMOPT_TAG_OTHER, NULL, &small));
    int inside =
        (unsigned char *)small >= memory && (unsigned char *)small < memory + sizeof memory;
    TRY(memopt_allocator_free(allocator, small));
    TRY(memopt_allocator_alloc(allocator, 7 * MIB, MEMOPT_TAG_OTHER, NULL, &large));
    printf("2. blocks of an arena of 8 MiB: %llu MiB of it are in use\n",
           (unsigned long long)(own.used / MIB));
    TRY(memopt_allocator_free(allocator, large));
    TRY(memopt_allocator_destroy(allocator));
    return inside && own.used == 0 ? 0 : 1;
}

int main(void)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    memopt_device *device;
    memopt_stream copies;
    options.capacity = 128 * MIB;
    TRY(memopt_device_open("cpu", &options, &device));
    TRY(memopt_stream_create(device, &copies));
    int failed = page_locked(device, copies) || own_memory(device);
    TRY(memopt_stream_destroy(device, copies));
    TRY(memopt_device_close(device));
    puts(failed ? "NOT as expected" : "as expected");
    return failed;
}
