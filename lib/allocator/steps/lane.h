/*
 * Lanes: the types of steps, their recording and their plan. All of it is guarded by the allocator's
 * lock.
 *
 * A step is what happens between two marks. Steps of two or three kinds that take turns make a
 * period, which is treated as one step: below, "step" means either. A lane is a stream's part of
 * it: its n-th allocation of a step is compared with the n-th of the step before. A plan gives the
 * n-th allocation of a lane a place: an address in an ordinary segment of the stream. While the lane
 * is armed, what is free in its regions is held for it: CLAIMED blocks, in no bin, whose `planned`
 * says what they are. While it is not, they are free blocks like others. So places never overlap
 * what is in use, whatever the program does.
 */
#ifndef MO_ALLOCATOR_LANE_H
#define MO_ALLOCATOR_LANE_H

#include "allocator/blocks/state.h"
#include "memopt/allocator_steps.h"

/* mo_block::planned: in a place; held for places; in use, and held for places when it ends. */
enum { MO_PLANNED_NOT, MO_PLANNED_BLOCK, MO_PLANNED_GAP, MO_PLANNED_GUEST };

/* The planned place of one allocation of a step. */
typedef struct mo_slot {
    char *address;   /* NULL: it is served online */
    mo_block *block; /* the one that is there: live or pending */
    uint32_t units;  /* a block of at most so many goes there */
    uint32_t rank;   /* among the places, by region and address */
    uint32_t region;
    uint32_t below; /* the slot whose block was below it last time; MO_FRONT: the region's front */
} mo_slot;

#define MO_FRONT UINT32_MAX

static inline uint64_t mo_slot_bytes(const mo_slot *slot)
{
    return slot->units * MO_BLOCK_UNIT;
}

/* Bytes of one segment that a lane's places are in. */
typedef struct mo_region {
    mo_segment *segment; /* NULL: it has ended */
    char *start;
    char *end;
    mo_block *front;     /* where walks begin: the first block that begins in it, which stays while
                          * the lane is armed; NULL: not known */
    uint32_t first_rank; /* of its places */
} mo_region;

enum { MO_RANK_LEVELS = 4 };

typedef struct mo_lane {
    struct mo_lane *next;
    memopt_stream stream;
    int ended; /* the stream has */
    /* The allocations of this period, and of the one before if that was recorded; those of the step
     * that is under way are in `hash` until its mark. */
    uint64_t count, whole, hash;
    uint64_t count_before, whole_before;
    /* The plan; NULL: none. */
    mo_slot *slots;
    uint32_t slot_count;
    uint32_t at; /* the next allocation's slot */
    int armed;
    int left; /* since the last mark: it has differed, and is not armed until the next mark */
    uint32_t missed; /* since the last mark: allocations whose places were not free */
    uint64_t served; /* in stripes, from places; not in the plan's info yet */
    uint64_t used;   /* in a stripe: the allocator's clock at the last place */
    mo_region *regions;
    uint32_t region_count;
    /* Ranks whose places hold a block: a bit for each, and one for each word that is not 0. */
    uint64_t *ranks[MO_RANK_LEVELS];
    uint32_t *by_rank; /* slots */
} mo_lane;

/* What a recorded block's end was. */
typedef enum mo_fate {
    MO_FATE_ALIVE,
    MO_FATE_GONE, /* in its step */
    MO_FATE_NEXT  /* in the step after it, at `died` of that one */
} mo_fate;

typedef struct mo_step_entry {
    mo_lane *lane;
    mo_block *block; /* while it is alive */
    uint64_t size;
    uint32_t born;
    uint32_t freed; /* where streams delayed its end: when it was freed */
    uint32_t died;
    uint8_t fate;
    uint8_t delayed;
    uint8_t placed; /* it has a place in the plan that is being made */
} mo_step_entry;

typedef struct mo_step_record {
    mo_step_entry *entries;
    uint64_t room;
    uint32_t count;
    uint32_t clock; /* events: allocations, delayed frees, ends of blocks */
} mo_step_record;

/* mo_block::entry is 1 + the number in `now`, with this in `before`. */
#define MO_ENTRY_BEFORE UINT32_C(0x80000000)

enum { MO_MOST_PERIOD = 3 };

struct mo_steps {
    mo_sink sink;
    mo_lane *lanes;
    int recording;
    int broken; /* host memory did not suffice, or the step is too long: nothing is learned of it */
    mo_step_record now, before;
    int has_before;
    uint32_t period; /* marks of one, and those since it began */
    uint32_t phase;
    uint64_t recent[2 * MO_MOST_PERIOD]; /* hashes of recorded steps, the last one first */
    uint32_t recent_count;
    uint32_t alike;    /* recorded steps in a row that were as the one before */
    uint32_t wanted;   /* so many make a plan */
    uint32_t unlike;   /* steps in a row that differed from the plan */
    uint32_t settling; /* marks that give back what the plan has made needless */
    uint32_t streak;   /* steps in a row that the plan has served */
    int planned;       /* there is a plan */
    uint64_t used;     /* the allocator's clock at the last mark or place */
    memopt_step_plan info;
};

#endif
