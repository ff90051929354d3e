/* Growing, giving back and ending segments, of the kind that the allocator uses. */
#include "allocator/segment.h"

#include "allocator/segment_kinds.h"

static const mo_segment_kind *kind_of(const memopt_allocator *allocator)
{
    return allocator->expandable ? &mo_segment_expandable : &mo_segment_classic;
}

memopt_status mo_segment_grow(memopt_allocator *allocator, const mo_request *request)
{
    return kind_of(allocator)->grow(allocator, request);
}

memopt_status mo_segment_release(memopt_allocator *allocator, const mo_release *what,
                                 uint64_t *released)
{
    allocator->release_pass++;
    return kind_of(allocator)->release(allocator, what, released);
}

/* Ends the segments that hold at most `mapped` bytes of memory. */
static memopt_status end_segments(memopt_allocator *allocator, uint64_t mapped)
{
    memopt_status result = MEMOPT_OK;
    for (mo_segment *segment = allocator->segments, *next; segment != NULL; segment = next) {
        next = segment->next;
        if (segment->mapped > mapped)
            continue;
        mo_keep_first(&result, kind_of(allocator)->end(allocator, segment));
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
