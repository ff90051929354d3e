/*
 * A sorted set of disjoint address ranges, each with a value: reservations, mappings, live handles,
 * page-locked ranges. A treap, a search tree that random priorities keep balanced: every operation
 * costs O(log n), in whatever order ranges come and go. The nodes lie in one array, node 0 is
 * "none". Not thread-safe; the owner locks.
 */
#ifndef MO_DEVICE_FRONT_RANGES_H
#define MO_DEVICE_FRONT_RANGES_H

#include <stdint.h>

typedef struct mo_range {
    uintptr_t start;
    uint64_t size;
    void *value;
} mo_range;

typedef struct mo_range_node {
    mo_range range;
    uint32_t lower, upper; /* children; `upper` also chains unused nodes */
    uint32_t priority;     /* no child's is higher */
} mo_range_node;

typedef struct mo_ranges {
    mo_range_node *nodes;
    uint64_t count;
    uint64_t capacity; /* of nodes, node 0 included */
    uint32_t root, unused;
    uint32_t fresh;  /* nodes from here on were never used */
    uint32_t random; /* the last priority */
} mo_ranges;

/* Allocates the first room, so that the number of host blocks stays the same while the set lives.
 * 1 on success, 0 when host memory is out. */
int mo_ranges_init(mo_ranges *set);
void mo_ranges_fini(mo_ranges *set);
/* Room for `count` ranges in all: inserts up to that number cannot fail. 1 or 0 as above. */
int mo_ranges_reserve(mo_ranges *set, uint64_t count);

/* Pre: overlaps nothing in the set, size > 0. 1 on success, 0 when host memory is out. */
int mo_ranges_insert(mo_ranges *set, uintptr_t start, uint64_t size, void *value);
void mo_ranges_remove(mo_ranges *set, const mo_range *range);

/* The range that starts at `start`, or NULL. Valid until the set changes, as all results. */
mo_range *mo_ranges_find(const mo_ranges *set, uintptr_t start);
/* The lowest range that ends behind `address`, or NULL. The first one: of 0; the next one: of the
 * end of the one before. */
mo_range *mo_ranges_after(const mo_ranges *set, uintptr_t address);
/* The lowest range that shares a byte with [start, +size), or NULL. */
mo_range *mo_ranges_overlapping(const mo_ranges *set, uintptr_t start, uint64_t size);
/* True if every byte of [start, +size) is in some range of the set. */
int mo_ranges_cover(const mo_ranges *set, uintptr_t start, uint64_t size);
/* Takes [start, +size) out, trimming and splitting. If a split needs memory and there is none, the
 * upper part is removed too. */
void mo_ranges_subtract(mo_ranges *set, uintptr_t start, uint64_t size);

#endif
