/* A lane's part of a plan that is being made. */
#ifndef MO_ALLOCATOR_STEP_DRAFT_H
#define MO_ALLOCATOR_STEP_DRAFT_H

#include "allocator/steps/step_room.h"

typedef struct mo_draft {
    mo_lane *lane;
    mo_slot *slots;
    uint32_t count;
    mo_step_entry **entries;       /* of the recorded step, as slots; and of the one before: */
    const mo_step_entry **earlier; /* NULL where that differed */
    uint32_t filled, filled_earlier;
    uint32_t *which; /* the rects' slots */
    mo_placement placement;
    uint64_t page;
    mo_room_for room;
    mo_region *regions; /* gaps, then the open range */
    uint32_t *holes;    /* the gaps' units, and how many of them are used */
    uint64_t *used;
    uint64_t living; /* bytes of blocks that have places and are alive elsewhere */
    uint64_t cost;   /* bytes of whole pages that the places take */
    uint32_t hole_count;
} mo_draft;

typedef struct mo_drafts {
    mo_draft *list;
    uint32_t count;
} mo_drafts;

/* The lanes' blocks of the recorded step with their lifetimes, and what room there is for them.
 * Lock held. OUT_OF_HOST_MEMORY. */
memopt_status mo_drafts_make(memopt_allocator *allocator, mo_drafts *out);
/* Finds their places; without lock. */
memopt_status mo_drafts_place(mo_drafts *drafts);
/* Bytes of the open range. */
uint64_t mo_draft_bytes(const mo_draft *draft);
/* The lane has the plan: slots, regions, ranks. OUT_OF_HOST_MEMORY. Lock held. */
memopt_status mo_draft_install(memopt_allocator *allocator, mo_draft *draft);
void mo_drafts_end(mo_drafts *drafts);

#endif
