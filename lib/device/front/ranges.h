/*
 * A sorted set of disjoint address ranges, each with a value: reservations, mappings, live handles,
 * page-locked ranges. An array with binary search: sets hold up to some ten thousand ranges and are
 * mostly appended to. Not thread-safe; the owner locks.
 */
#ifndef MO_DEVICE_FRONT_RANGES_H
#define MO_DEVICE_FRONT_RANGES_H

#include <stdint.h>

typedef struct mo_range {
    uintptr_t start;
    uint64_t size;
    void *value;
} mo_range;

typedef struct mo_ranges {
    mo_range *items;
    uint64_t count;
    uint64_t capacity;
} mo_ranges;

/* Allocates the first room, so that the number of host blocks stays the same while the set lives.
 * 1 on success, 0 when host memory is out. */
int mo_ranges_init(mo_ranges *set);
void mo_ranges_fini(mo_ranges *set);
/* Room for `count` ranges in all: inserts up to that number cannot fail. 1 or 0 as above. */
int mo_ranges_reserve(mo_ranges *set, uint64_t count);

/* Pre: overlaps nothing in the set, size > 0. 1 on success, 0 when host memory is out. */
int mo_ranges_insert(mo_ranges *set, uintptr_t start, uint64_t size, void *value);
void mo_ranges_remove(mo_ranges *set, mo_range *range);

/* The range that starts at `start`, or NULL. Valid until the set changes, as all results. */
mo_range *mo_ranges_find(const mo_ranges *set, uintptr_t start);
/* The lowest range that shares a byte with [start, +size), or NULL. */
mo_range *mo_ranges_overlapping(const mo_ranges *set, uintptr_t start, uint64_t size);
/* True if every byte of [start, +size) is in some range of the set. */
int mo_ranges_cover(const mo_ranges *set, uintptr_t start, uint64_t size);
/* Takes [start, +size) out, trimming and splitting. If a split needs memory and there is none, the
 * upper part is removed too. */
void mo_ranges_subtract(mo_ranges *set, uintptr_t start, uint64_t size);

#endif
