/* The bytes of a strided access, in one form for all ways to write it down, and whether two such
 * sets share a byte. */
#ifndef MO_RACE_SHAPE_H
#define MO_RACE_SHAPE_H

#include "memopt/race.h"

/* `count` runs of `run` bytes, `stride` apart. dims 0: one run; more than 1: there are more
 * dimensions, whose numbers are mixed in `more`, and only the first and the last byte are known. */
typedef struct mo_race_shape {
    uint64_t origin, run, count, stride, more;
    uint32_t dims;
} mo_race_shape;

/* 1: *out_shape, which begins at *out_lo and ends at *out_hi; 0: no bytes; -1: a negative count, or
 * bytes beyond the address space. Pre: access->dims is in range and its arrays are there. */
int mo_race_shape_of(const memopt_race_access *access, mo_race_shape *out_shape, uint64_t *out_lo,
                     uint64_t *out_hi);
/* 0 for one run; shapes that differ in nothing but their origin have equal numbers. */
uint64_t mo_race_shape_hash(const mo_race_shape *shape);
/* Whether both have a byte of [lo, hi) in common: 1 or 0; -1: not known, or too long to find out.
 * NULL: a shape of one run that covers [lo, hi). */
int mo_race_shapes_meet(const mo_race_shape *a, const mo_race_shape *b, uint64_t lo, uint64_t hi);

#endif
