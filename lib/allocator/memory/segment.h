/* Segments of the kind that the allocator uses. Called with slow and lock held; calls of the driver
 * release and retake lock. */
#ifndef MO_ALLOCATOR_SEGMENT_H
#define MO_ALLOCATOR_SEGMENT_H

#include "allocator/memory/segment_common.h"

/* See mo_segment_kind. */
memopt_status mo_segment_grow(memopt_allocator *allocator, const mo_request *request,
                              mo_block **out_block);
/* Bytes that could go back of what was freed up to this clock. */
uint64_t mo_segment_spare(const memopt_allocator *allocator, uint64_t clock);
memopt_status mo_segment_release(memopt_allocator *allocator, const mo_release *what,
                                 uint64_t *released);
/* Ends all segments. */
memopt_status mo_segments_end(memopt_allocator *allocator);
/* Gives the addresses of segments without memory back. */
memopt_status mo_segments_trim(memopt_allocator *allocator);

#endif
