/*
 * What memory costs at the host, by its clock: a block from the cache, the driver's calls for pages
 * of each size, and how long an allocation stalls that grows, with room and at the limit.
 */
#include "bench.h"

#include "device/device.h"

#include <stdlib.h>

static void bench_pairs(bench *b)
{
    static const uint64_t sizes[] = {512, MIB, 20 * MIB};
    uint32_t pairs = b->small ? 10 : 10000;
    for (int s = 0; s < 3; s++) {
        double best = 1e9;
        char name[64];
        for (uint32_t round = 0; round <= b->rounds; round++) {
            double begin = now();
            for (uint32_t i = 0; i < pairs; i++) {
                void *block;
                OK(memopt_allocator_alloc(b->allocator, sizes[s], MEMOPT_TAG_OTHER, b->stream,
                                          &block));
                OK(memopt_allocator_free(b->allocator, block));
            }
            double seconds = (now() - begin) / pairs;
            if (round > 0 && seconds < best) /* the first one fills the cache */
                best = seconds;
        }
        snprintf(name, sizeof name, "alloc + free, %llu B", (unsigned long long)sizes[s]);
        figure_row(b, "cached blocks", name, 1e9 * best, "ns");
    }
}

/* --- the driver's calls ----------------------------------------------------------------------- */

enum { CALLS = 5, MOST_PAGES = 64 };
static const char *const call_names[CALLS] = {"create", "map", "set_access", "unmap", "release"};

static memopt_status call_driver(memopt_device *device, int call, void *address, uint64_t page,
                                 mo_vm_handle *handle)
{
    switch (call) {
    case 0:
        return mo_vm_create(device, page, handle);
    case 1:
        return mo_vm_map(device, address, page, *handle);
    case 2:
        return mo_vm_set_access(device, address, page);
    case 3:
        return mo_vm_unmap(device, address, page);
    default:
        return mo_vm_release(device, *handle, page);
    }
}

/* Copies on the stream that take the device longer than the calls beside them. */
static void keep_busy(bench *b, const memopt_tensor *from, const memopt_tensor *to)
{
    uint32_t copies = b->small ? 4 : 400;
    for (uint32_t i = 0; i < copies; i++)
        OK(memopt_copy(b->device, to->data, from->data, to->count, b->stream));
}

/* With `busy`, the stream is at work while the driver is called. */
static void bench_page(bench *b, uint64_t page, uint32_t pages, int busy)
{
    uint64_t bytes = b->small ? MIB : 256 * MIB;
    memopt_tensor from, to;
    static double seconds[MOST_PAGES];
    static mo_vm_handle handles[MOST_PAGES];
    char *range, name[64];
    void *start;
    OK(mo_vm_reserve(b->device, pages * page, &start));
    range = start;
    if (busy) {
        from = new_tensor(b, bytes, MEMOPT_DTYPE_U8, 1.0f);
        to = new_tensor(b, bytes, MEMOPT_DTYPE_U8, 1.0f);
    }
    for (int call = 0; call < CALLS; call++) {
        if (busy)
            keep_busy(b, &from, &to);
        for (uint32_t i = 0; i < pages; i++) {
            double begin = now();
            OK(call_driver(b->device, call, range + i * page, page, &handles[i]));
            seconds[i] = now() - begin;
        }
        snprintf(name, sizeof name, "%s, %llu MiB%s", call_names[call],
                 (unsigned long long)(page / MIB), busy ? ", beside work" : "");
        OK(memopt_stream_sync(b->device, b->stream));
        figure_row(b, "the driver's calls", name, 1e6 * median(seconds, pages), "us");
    }
    OK(mo_vm_unreserve(b->device, start, pages * page));
    if (busy) {
        free_tensor(b, &from);
        free_tensor(b, &to);
    }
}

static void bench_pages(bench *b)
{
    uint64_t largest = b->small ? 8 * MIB : 64 * MIB;
    for (uint64_t page = 2 * MIB; page <= largest; page *= 2)
        if (page % b->properties.granularity == 0)
            bench_page(b, page, b->small ? 4 : MOST_PAGES, 0);
    bench_page(b, b->properties.granularity, b->small ? 4 : MOST_PAGES, 1);
}

/* --- growth ----------------------------------------------------------------------------------- */

static double alloc_seconds(bench *b, memopt_allocator *allocator, uint64_t bytes, void **block)
{
    double begin = now();
    OK(memopt_allocator_alloc(allocator, bytes, MEMOPT_TAG_OTHER, b->stream, block));
    return now() - begin;
}

/* A new allocator takes the block from the driver. One whose limit is reached, and whose free pages
 * lie one by one between blocks, moves them; with `busy`, while the stream writes those blocks. */
static void stall(bench *b, uint64_t limit, int busy, double *fresh, double *moved)
{
    enum { BLOCKS = 64 };
    void *blocks[BLOCKS], *large;
    memopt_allocator *allocator;
    OK(memopt_allocator_create(b->device, "expandable_segments:True", NULL, &allocator));
    OK(memopt_allocator_set_limit(allocator, limit));
    *fresh = alloc_seconds(b, allocator, limit / 4, &large);
    OK(memopt_allocator_free(allocator, large));
    OK(memopt_allocator_trim_sync(allocator, 0, &(uint64_t){0}));
    for (int i = 0; i < BLOCKS; i++)
        (void)alloc_seconds(b, allocator, limit / BLOCKS, &blocks[i]);
    for (int i = 0; i < BLOCKS; i++)
        OK(memopt_fill(b->device, blocks[i], 1, limit / BLOCKS, b->stream));
    for (int i = 0; i < BLOCKS; i += 2)
        OK(memopt_allocator_free(allocator, blocks[i]));
    if (!busy)
        OK(memopt_stream_sync(b->device, b->stream));
    *moved = alloc_seconds(b, allocator, limit / 4, &large);
    for (int i = 1; i < BLOCKS; i += 2)
        OK(memopt_allocator_free(allocator, blocks[i]));
    OK(memopt_allocator_free(allocator, large));
    OK(memopt_allocator_destroy(allocator));
}

static void bench_stall(bench *b)
{
    enum { ROUNDS = 5 };
    double fresh[ROUNDS], moved[ROUNDS], beside[ROUNDS];
    uint64_t limit = b->small ? 256 * MIB : 16 * GIB;
    char name[64];
    while (limit > room(b))
        limit /= 2;
    for (int i = 0; i < ROUNDS; i++)
        stall(b, limit, 1, &fresh[i], &beside[i]);
    for (int i = 0; i < ROUNDS; i++)
        stall(b, limit, 0, &fresh[i], &moved[i]);
    snprintf(name, sizeof name, "%llu MiB, with room", (unsigned long long)(limit / 4 / MIB));
    figure_row(b, "growth", name, 1e3 * median(fresh, ROUNDS), "ms");
    snprintf(name, sizeof name, "%llu MiB, at the limit", (unsigned long long)(limit / 4 / MIB));
    figure_row(b, "growth", name, 1e3 * median(moved, ROUNDS), "ms");
    snprintf(name, sizeof name, "%llu MiB, at the limit, beside work",
             (unsigned long long)(limit / 4 / MIB));
    figure_row(b, "growth", name, 1e3 * median(beside, ROUNDS), "ms");
    figure_row(b, "growth", "at the limit / with room",
               median(moved, ROUNDS) / median(fresh, ROUNDS), "x");
}

void bench_memory(bench *b)
{
    bench_pairs(b);
    if (!b->properties.virtual_memory) {
        skip_row(b, "the driver's calls", "all", "no virtual memory");
        skip_row(b, "growth", "all", "no virtual memory");
        return;
    }
    OK(memopt_stream_sync(b->device, b->stream));
    bench_pages(b);
    bench_stall(b);
}
