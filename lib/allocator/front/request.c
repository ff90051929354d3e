/* Requests: the pool they are for, what they need, and cached blocks for them. */
#include "allocator/front/request.h"

#include "allocator/blocks/pool.h"
#include "allocator/streams/stream_state.h"

static memopt_status fail_paused(const memopt_allocator *allocator, memopt_tag tag)
{
    if (allocator->paused_tags == UINT64_MAX)
        return mo_fail(MEMOPT_BUSY, "allocator_alloc: \"%s\" is paused; resume it first",
                       allocator->name);
    return mo_fail(MEMOPT_BUSY, "allocator_alloc: tag %s of \"%s\" is paused; resume it first",
                   allocator->tags[tag].name, allocator->name);
}

/* Room in the table that stripes had is gone when it is made again. */
static int reserve_entry(memopt_allocator *allocator)
{
    if (allocator->live.room != 0)
        return 1;
    if (!mo_block_table_make_room(&allocator->live))
        return 0;
    for (uint32_t i = 0; i < allocator->lock.stripes; i++)
        allocator->stripes[i].entries = 0;
    return 1;
}

/* The first request of a stream shows whether there is one. */
memopt_status mo_request_enter(memopt_allocator *allocator, mo_request *request)
{
    if (mo_tag_is_paused(allocator, request->tag))
        return fail_paused(allocator, request->tag);
    mo_sizes sizes = mo_pool_sizes(allocator, request->size);
    mo_pool *pool = request->pool = allocator->pinned
                                        ? mo_pool_ended(allocator, sizes) /* no stream's */
                                        : mo_pool_get(allocator, request->stream, sizes);
    if (pool == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    if (pool->segments == 0 && pool->life == MO_STREAM_LIVE) {
        memopt_status status = mo_stream_check(allocator, request->stream);
        if (status != MEMOPT_OK) {
            pool->life = MO_STREAM_ENDED;
            return status;
        }
    }
    return mo_slab_reserve(&allocator->slab, 2) && reserve_entry(allocator)
               ? MEMOPT_OK
               : MEMOPT_OUT_OF_HOST_MEMORY;
}

static mo_block *serve_from_hole(memopt_allocator *allocator, mo_request *request)
{
    const mo_block *hole = mo_pool_hole(allocator, request->stream, request->size);
    if (hole == NULL)
        return NULL;
    request->pool = hole->segment->pool;
    return mo_pool_take(allocator, request->pool, request->size);
}

mo_block *mo_request_serve(memopt_allocator *allocator, mo_request *request)
{
    mo_block *block = mo_pool_serve(allocator, request->pool, request->size);
    if (block != NULL || request->pool->sizes != MO_SIZES_SMALL || !allocator->expandable)
        return block;
    return serve_from_hole(allocator, request);
}
