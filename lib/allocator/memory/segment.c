/*
 * Growing, giving back and ending segments. An allocator with expandable segments has classic ones
 * too once the driver has refused to map memory.
 */
#include "allocator/memory/segment.h"

#include "allocator/memory/segment_kinds.h"

#include "base/log.h"

static const mo_segment_kind *kind_of(const mo_segment *segment)
{
    return mo_segment_is_expandable(segment) ? &mo_segment_expandable : &mo_segment_classic;
}

/* What the driver says about virtual memory itself. All else would hit plain allocations too. */
static int refused(memopt_status status)
{
    return status == MEMOPT_INVALID_ARGUMENT || status == MEMOPT_UNSUPPORTED ||
           status == MEMOPT_DRIVER_ERROR;
}

/* What is mapped stays. A driver that refused once is not asked again. */
memopt_status mo_segment_grow(memopt_allocator *allocator, const mo_request *request,
                              mo_block **out_block)
{
    if (allocator->expandable) {
        allocator->family->refused = 0;
        memopt_status status = mo_segment_expandable.grow(allocator, request, out_block);
        if (!refused(status) || allocator->family->refused)
            return status;
        allocator->expandable = 0;
        mo_log(MEMOPT_LOG_WARNING,
               "allocator: new memory comes from plain allocations from here on, because the "
               "driver refused to map more: %s",
               memopt_last_error());
    }
    return mo_segment_classic.grow(allocator, request, out_block);
}

uint64_t mo_segment_spare(const memopt_allocator *allocator, uint64_t clock)
{
    uint64_t bytes = 0;
    for (mo_segment *segment = allocator->segments; segment != NULL; segment = segment->next)
        for (mo_block *block = segment->first; block != NULL; block = block->next)
            if (block->state == MO_BLOCK_FREE && block->freed_at <= clock)
                bytes += kind_of(segment)->spare(allocator, block);
    return bytes;
}

memopt_status mo_segment_release(memopt_allocator *allocator, const mo_release *what,
                                 uint64_t *released)
{
    uint64_t before = *released;
    mo_release rest = *what;
    memopt_status status = MEMOPT_OK;
    allocator->release_pass++;
    if (!allocator->expandable)
        status = mo_segment_classic.release(allocator, what, released);
    rest.wanted -= mo_min_u64(*released - before, rest.wanted);
    if (status != MEMOPT_OK || !allocator->config.expandable_segments)
        return status;
    return mo_segment_expandable.release(allocator, &rest, released);
}

/* Blocks of a pause may be left where there is no memory. */
static int has_blocks(const mo_segment *segment)
{
    return segment->first->state != MO_BLOCK_UNMAPPED || segment->first->next != NULL;
}

/* Ends the segments that hold at most `mapped` bytes of memory; of those without, not a plan's. */
static memopt_status end_segments(memopt_allocator *allocator, uint64_t mapped)
{
    memopt_status result = MEMOPT_OK;
    for (mo_segment *segment = allocator->segments, *next; segment != NULL; segment = next) {
        next = segment->next;
        if (segment->mapped > mapped ||
            (mapped == 0 && (has_blocks(segment) || segment->places + segment->drafts > 0)))
            continue;
        mo_keep_first(&result, kind_of(segment)->end(allocator, segment));
    }
    return result;
}

memopt_status mo_segments_end(memopt_allocator *allocator)
{
    return end_segments(allocator, UINT64_MAX);
}

memopt_status mo_segments_trim(memopt_allocator *allocator)
{
    return end_segments(allocator, 0);
}
