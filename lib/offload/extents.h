/*
 * The free space of a file that grows: extents of whole blocks, the best fit first, joined with
 * free neighbours when given back; free space at the end makes the file's end smaller.
 *
 * Invariants: free extents are in address order, none adjoin, none reaches the end; used + the free
 * ones = end <= limit; the array has room for one more free extent than there are in use, so that
 * giving back needs no memory.
 */
#ifndef MO_OFFLOAD_EXTENTS_H
#define MO_OFFLOAD_EXTENTS_H

#include "memopt/base.h"

typedef struct mo_extent {
    uint64_t offset;
    uint64_t bytes;
} mo_extent;

typedef struct mo_extents {
    mo_extent *items; /* the free ones */
    uint64_t count;
    uint64_t capacity;
    uint64_t in_use; /* how many are taken */
    uint64_t end;    /* of the file */
    uint64_t limit;
    uint64_t used, used_peak; /* bytes taken */
} mo_extents;

/* bytes: whole blocks. LIMIT_REACHED without a message where there is no room. */
memopt_status mo_extents_take(mo_extents *extents, uint64_t bytes, uint64_t *out_offset);
void mo_extents_give(mo_extents *extents, uint64_t offset, uint64_t bytes);
void mo_extents_close(mo_extents *extents);

#endif
