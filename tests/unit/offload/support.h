/* What the offload tests share: a world of device, allocator, two streams and an offloader. */
#ifndef TEST_OFFLOAD_SUPPORT_H
#define TEST_OFFLOAD_SUPPORT_H

#include "memopt/offload.h"
#include "offload/offload.h"
#include "support/bench.h"

typedef struct world {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_offloader *offloader;
    memopt_stream s, t;
} world;

static inline world world_on(memopt_device *device, const memopt_offloader_options *options)
{
    world w = {.device = device};
    OK(memopt_allocator_create(w.device, NULL, NULL, &w.allocator));
    w.s = stream_on(w.device);
    w.t = stream_on(w.device);
    OK(memopt_offloader_create(w.device, w.allocator, options, &w.offloader));
    return w;
}

static inline world open_world(uint32_t order, uint64_t seed, uint64_t capacity,
                               const memopt_offloader_options *options)
{
    return world_on(bench_open_cpu(&(bench_device){order, seed, capacity, 1}), options);
}

/* Tickets must have ended; blocks go. */
static inline void world_close(world *w)
{
    OK(memopt_device_sync(w->device));
    OK(memopt_offloader_destroy(w->offloader));
    bench_close_device(w->device, w->allocator);
}

static inline void *device_block(world *w, uint64_t bytes, memopt_stream stream)
{
    void *block = NULL;
    OK(memopt_allocator_alloc(w->allocator, bytes, MEMOPT_TAG_OTHER, stream, &block));
    return block;
}

/* A block with `value` in each byte, in the order of the stream. */
static inline void *filled_block(world *w, uint64_t bytes, int value, memopt_stream stream)
{
    void *block = device_block(w, bytes, stream);
    OK(memopt_fill(w->device, block, value, bytes, stream));
    return block;
}

static inline memopt_ticket packed(world *w, uint64_t bytes, int value, memopt_stream stream)
{
    memopt_ticket ticket = 0;
    OK(memopt_offloader_pack(w->offloader, filled_block(w, bytes, value, stream), bytes, stream,
                             &ticket));
    assert_int_not_equal(ticket, 0);
    return ticket;
}

/* A value of the host's: `value` in each byte. */
static inline memopt_ticket reserved(world *w, uint64_t bytes, int value)
{
    memopt_ticket ticket = 0;
    void *host = NULL;
    OK(memopt_offloader_reserve(w->offloader, bytes, &ticket, &host));
    memset(host, value, bytes);
    OK(memopt_offloader_host_end(w->offloader, ticket));
    return ticket;
}

/* Reads device memory behind a stream's work; 1 if each byte is `value`. */
static inline int holds(world *w, const void *device, int value, uint64_t bytes,
                        memopt_stream stream)
{
    unsigned char *copy = malloc(bytes);
    assert_non_null(copy);
    OK(memopt_copy(w->device, copy, device, bytes, stream));
    OK(memopt_stream_sync(w->device, stream));
    int same = all_bytes(copy, value, bytes);
    free(copy);
    return same;
}

static inline memopt_offloader_stats stats_of(world *w)
{
    memopt_offloader_stats stats = {.struct_size = sizeof stats};
    OK(memopt_offloader_get_stats(w->offloader, &stats));
    return stats;
}

static inline uint64_t active_bytes(world *w)
{
    return bench_active_bytes(w->allocator, 0, MEMOPT_TAG_USER);
}

/* The invariants of host_pool.h. Returns a description of the first broken one, or NULL. */
static inline const char *broken_pool(const mo_host_pool *pool)
{
    uint64_t held = 0, small = 0, pageable = 0, used = 0, ranges = 0, free_small = 0,
             free_large = 0;
    for (uint64_t i = 0; i < pool->slab_count; i++) {
        const mo_host_slab *slab = pool->slabs[i];
        uint64_t offset = 0;
        held += slab->bytes;
        small += slab->small ? slab->bytes : 0;
        pageable += slab->block != NULL ? slab->bytes : 0;
        for (const mo_host_range *r = slab->first; r != NULL; r = r->next) {
            if (r->base != slab->base + offset || r->slab != slab || r->bytes == 0)
                return "ranges do not tile their slab";
            if (r->next != NULL && (r->next->prev != r || (r->free && r->next->free)))
                return "neighbours are wrong, or both free";
            if (r->free != (r->payload == 0) || r->payload > r->bytes)
                return "payload does not match the range";
            offset += r->bytes;
            used += r->payload;
            ranges++;
            *(slab->small ? &free_small : &free_large) += (uint64_t)r->free;
        }
        if (offset != slab->bytes)
            return "ranges do not fill their slab";
    }
    if (held != pool->held || small != pool->held_small || pageable != pool->pageable ||
        used != pool->used || ranges != pool->range_count)
        return "sums are wrong";
    if (held > pool->limit || pool->held_peak > pool->limit)
        return "the limit is exceeded";
    if (free_small != pool->small.count || free_large != pool->large.count)
        return "an index does not list the free ranges";
    if (pool->small.capacity < ranges || pool->large.capacity < ranges)
        return "an index has no room for a free";
    for (uint64_t i = 1; i < pool->small.count; i++)
        if (pool->small.items[i - 1]->bytes > pool->small.items[i]->bytes)
            return "an index is out of order";
    for (uint64_t i = 1; i < pool->large.count; i++)
        if (pool->large.items[i - 1]->bytes > pool->large.items[i]->bytes)
            return "an index is out of order";
    return NULL;
}

#endif
