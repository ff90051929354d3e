/*
 * Dynamic storage allocation, offline: where blocks of known sizes and lifetimes go, so that no two
 * that live at the same time overlap and little memory is needed. Pure arithmetic, no allocator.
 *
 * Sizes and offsets are in units, times in events of a step that repeats: a lifetime may go on over
 * the end of a step into the next one.
 */
#ifndef MO_ALLOCATOR_PLACEMENT_H
#define MO_ALLOCATOR_PLACEMENT_H

#include "memopt/base.h"

/* A block that lives in [begin, end), or in [begin, span) and [0, end) where end <= begin. */
typedef struct mo_rect {
    uint32_t size;
    uint32_t begin;
    uint32_t end;
    uint32_t offset; /* out */
} mo_rect;

typedef struct mo_placement {
    mo_rect *rects; /* in the order of their begins */
    uint32_t count;
    uint32_t span; /* events of a step; every time is below it, but end may be equal */
    /* Holes that cost nothing, one after another from offset 0, with a unit between them that
     * belongs to none; the open range begins at `base`, behind the last one and its unit. */
    const uint32_t *holes;
    uint32_t hole_count;
    uint32_t grain; /* units that the open range comes in */
    uint32_t base;  /* out */
    uint64_t bound; /* out: the most units alive at once; no placement needs less */
    uint32_t top;   /* out: the end of the open range that is used, from base on */
} mo_placement;

/* Places all. OUT_OF_HOST_MEMORY, or LIMIT_REACHED if it takes 2^32 units. The same input gives the
 * same places; time is bounded by the count. */
memopt_status mo_placement_find(mo_placement *placement);

#endif
