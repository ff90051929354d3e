/* Where a pool's expandable segments hold a new block. Called with the lock held. */
#ifndef MO_ALLOCATOR_PLACE_H
#define MO_ALLOCATOR_PLACE_H

#include "allocator/blocks/state.h"

/* The bytes [start, start + size) of a run of free and unmapped blocks. */
typedef struct mo_place {
    mo_block *first; /* the blocks that the bytes touch: it */
    uint64_t count;  /* and the count - 1 behind it */
    char *start;
    uint64_t missing; /* bytes to map: whole pages */
    uint64_t pinned;  /* pages that no block uses so far */
    uint64_t price;   /* pages that no block uses, and once more those that lack memory */
} mo_place;

/* The lowest place that holds `size`. 1 if there is one. */
int mo_place_lowest(const memopt_allocator *allocator, const mo_pool *pool, uint64_t size,
                    mo_place *out_place);
/* The place with the lowest price, then the lowest address. */
int mo_place_tightest(const memopt_allocator *allocator, const mo_pool *pool, uint64_t size,
                      mo_place *out_place);

/* The bytes [start, start + size), which begin in `first`. 1 if no block uses them. */
int mo_place_at(const memopt_allocator *allocator, mo_block *first, char *start, uint64_t size,
                mo_place *out_place);

#endif
