/* What a kind of segments does. Called with slow and lock held; calls of the driver release and
 * retake lock. */
#ifndef MO_ALLOCATOR_SEGMENT_KINDS_H
#define MO_ALLOCATOR_SEGMENT_KINDS_H

#include "allocator/memory/segment_common.h"

typedef struct mo_segment_kind {
    /* Makes memory for one block of the request's size or more in its pool; *out_block is in no
     * structure. OUT_OF_DEVICE_MEMORY without a last error if a limit is reached. */
    memopt_status (*grow)(memopt_allocator *allocator, const mo_request *request,
                          mo_block **out_block);
    /* Bytes of a free block that `release` could give back. */
    uint64_t (*spare)(const memopt_allocator *allocator, const mo_block *block);
    /* Gives free memory back after waiting for the streams it belongs to; *released counts bytes.
     * On failure the rest is in the bins again. */
    memopt_status (*release)(memopt_allocator *allocator, const mo_release *what,
                             uint64_t *released);
    /* Ends a segment, whatever its blocks' state; no other thread uses it. */
    memopt_status (*end)(memopt_allocator *allocator, mo_segment *segment);
} mo_segment_kind;

extern const mo_segment_kind mo_segment_classic;
extern const mo_segment_kind mo_segment_expandable;

#endif
