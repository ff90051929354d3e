/* The bytes of a strided access, in one form for all ways to write it down, and whether two such
 * sets share a byte. */
#ifndef MO_RACE_SHAPE_H
#define MO_RACE_SHAPE_H

#include "memopt/race.h"

enum { MO_RACE_SHAPE_DIMS = 6 };

/* Runs of `run` bytes at origin + Σ i[d] * stride[d], 0 ≤ i[d] < count[d]; strides ascend and are
 * positive, counts are above 1. No dimensions: one run. More than MO_RACE_SHAPE_DIMS: only the first
 * and the last byte are known. */
typedef struct mo_race_shape {
    uint64_t origin, run;
    uint64_t count[MO_RACE_SHAPE_DIMS], stride[MO_RACE_SHAPE_DIMS];
    uint32_t dims;
} mo_race_shape;

/* 1: *out_shape, which begins at *out_lo and ends at *out_hi; 0: no bytes; -1: a negative count, or
 * bytes beyond the address space. Pre: access->dims is in range and its arrays are there. */
int mo_race_shape_of(const memopt_race_access *access, mo_race_shape *out_shape, uint64_t *out_lo,
                     uint64_t *out_hi);
/* 0 for one run; equal shapes that begin at the same distance from `lo` have equal numbers. */
uint64_t mo_race_shape_hash(const mo_race_shape *shape, uint64_t lo);
/* Whether both have a byte of [lo, hi) in common: 1 or 0; -1: that would take too long to find out.
 * NULL: a shape of one run that covers [lo, hi). */
int mo_race_shapes_meet(const mo_race_shape *a, const mo_race_shape *b, uint64_t lo, uint64_t hi);

#endif
