/* Room for the places of a lane. */
#ifndef MO_ALLOCATOR_STEP_ROOM_H
#define MO_ALLOCATOR_STEP_ROOM_H

#include "allocator/steps/lane.h"
#include "allocator/steps/placement.h"

/* Bytes between blocks that stay. Those up to `head` and from `tail` on are on pages, or in classic
 * segments, that are held anyway; between them are whole pages. */
typedef struct mo_gap {
    mo_segment *segment;
    char *start, *head, *tail, *end;
} mo_gap;

typedef struct mo_room_for {
    mo_gap *gaps;
    uint32_t gap_count;
    mo_region open; /* from the last block of a segment on; segment is NULL: a new one */
} mo_room_for;

/* What there is for a lane, whose pools know it from then on. Blocks whose entries are `placed`
 * count as free. Their segments stay until mo_room_end(): meanwhile the places are found without
 * lock. Lock held. OUT_OF_HOST_MEMORY. */
memopt_status mo_room_find(memopt_allocator *allocator, mo_lane *lane, mo_room_for *out);
/* Lock held. */
void mo_room_end(mo_room_for *room);
/* Regions of the gaps with at most `most` bytes of whole pages, of the ends of the others, and the
 * open range, which comes last: one more than twice the gaps at most. *out_count is without that.
 * holes: their units. */
void mo_room_divide(const mo_room_for *room, uint64_t most, mo_region *regions, uint32_t *holes,
                    uint32_t *out_count);
/* The bytes of whole pages that [start, end) of a gap or the open range takes. */
uint64_t mo_room_cost(const mo_region *region, const char *end, uint64_t page);
/* The end of the page that holds the byte before `end`, or of the region. */
char *mo_room_page_end(const mo_region *region, const char *end, uint64_t page);
/* Bytes of whole pages in a gap. */
static inline uint64_t mo_gap_width(const mo_gap *gap)
{
    return (uint64_t)(gap->tail - gap->head);
}

#endif
