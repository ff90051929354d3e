/*
 * How kernels run over many tensors in one launch.
 *
 * Each tensor (a segment) is cut into chunks of MO_CHUNK_ELEMENTS, the last one ragged; a work item
 * is a chunk. Items are numbered through all segments: `first_chunk` of a segment is the sum of the
 * chunks of those before it, so a large tensor costs one entry like a small one. The item finds its
 * segment by bisection. Segments lie in the argument struct, or in a table in device memory that is
 * made once and used by many launches. Segments of no elements are left out by the caller.
 */
#ifndef MO_KERNELS_CHUNKS_H
#define MO_KERNELS_CHUNKS_H

#include "kernels/core/portable.h"

enum { MO_CHUNK_ELEMENTS = 16384 };

MO_HD static inline uint64_t mo_chunks_of(uint64_t elements)
{
    return elements / MO_CHUNK_ELEMENTS + (elements % MO_CHUNK_ELEMENTS != 0);
}

/* The index of the segment that chunk `item` belongs to. `first_chunks` points at the member of
 * segment 0; the others follow at `stride` bytes. count > 0. */
MO_HD static inline uint32_t mo_chunk_segment(const uint64_t *first_chunks, uint32_t stride,
                                              uint32_t count, uint64_t item)
{
    const unsigned char *base = (const unsigned char *)(const void *)first_chunks;
    uint32_t low = 0, high = count; /* the segment is in [low, high) */
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        const void *at = base + (uint64_t)middle * stride;
        if (*(const uint64_t *)at <= item)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Elements of chunk number `chunk` of a segment of `count` elements. */
MO_HD static inline uint64_t mo_chunk_length(uint64_t count, uint64_t chunk)
{
    uint64_t rest = count - chunk * MO_CHUNK_ELEMENTS;
    return rest < MO_CHUNK_ELEMENTS ? rest : (uint64_t)MO_CHUNK_ELEMENTS;
}

/* Bytes of an element type as kernels know it (kernels/core/numerics.h). */
MO_HD static inline uint32_t mo_element_size(uint32_t dtype)
{
    return dtype == 1 ? 4 : dtype <= 3 ? 2 : 1;
}

#endif
