#include "race/shape.h"

#include "base/checked.h"

#include <stddef.h>

enum { MOST_RUNS = 1 << 16 };

typedef struct dimension {
    uint64_t count, stride;
} dimension;

/* Dimensions of more than one place, strides ascending; moves *lo to the first byte and *hi behind
 * the last. How many; -1: a count is negative, or bytes are beyond the address space; -2: one is 0. */
static int gather(const memopt_race_access *access, dimension *out, uint64_t *lo, uint64_t *hi)
{
    int used = 0, empty = access->bytes == 0;
    for (uint32_t d = 0; d < access->dims; d++) {
        if (access->shape[d] < 0)
            return -1;
        empty |= access->shape[d] == 0;
    }
    for (uint32_t d = 0; d < access->dims && !empty; d++) {
        uint64_t count = (uint64_t)access->shape[d], reach;
        int64_t step = access->strides[d];
        uint64_t stride = step < 0 ? 0 - (uint64_t)step : (uint64_t)step;
        if (count == 1 || stride == 0)
            continue;
        if (!mo_mul_u64(count - 1, stride, &reach) ||
            (step < 0 ? reach > *lo : !mo_add_u64(*hi, reach, hi)))
            return -1;
        if (step < 0)
            *lo -= reach;
        int at = used++;
        for (; at > 0 && out[at - 1].stride > stride; at--)
            out[at] = out[at - 1];
        out[at] = (dimension){count, stride};
    }
    return empty ? -2 : used;
}

/* Of the finaliser of splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = ((hash ^ word) + 1) * 0xBF58476D1CE4E5B9U;
    return hash ^ (hash >> 31);
}

int mo_race_shape_of(const memopt_race_access *access, mo_race_shape *out_shape, uint64_t *out_lo,
                     uint64_t *out_hi)
{
    dimension dims[MEMOPT_RACE_MOST_DIMS];
    uint64_t lo = access->address, hi;
    int used = mo_add_u64(lo, access->bytes, &hi) ? gather(access, dims, &lo, &hi) : -1;
    if (used < 0)
        return used == -2 ? 0 : -1;
    *out_lo = lo;
    *out_hi = hi;
    mo_race_shape shape = {.origin = lo, .run = access->bytes, .count = 1, .stride = 1};
    for (int d = 0; d < used; d++) {
        uint64_t count = dims[d].count, stride = dims[d].stride;
        if (shape.dims == 0 && stride <= shape.run)
            shape.run += (count - 1) * stride; /* the runs touch or overlap */
        else if (shape.dims == 1 && stride == shape.count * shape.stride)
            shape.count *= count;
        else if (shape.dims++ == 0)
            shape.count = count, shape.stride = stride;
        else
            shape.more = mix(mix(shape.more, count), stride);
    }
    *out_shape = shape;
    return 1;
}

uint64_t mo_race_shape_hash(const mo_race_shape *shape)
{
    return shape->dims == 0
               ? 0
               : mix(mix(mix(shape->more, shape->run), shape->count), shape->stride) | 1;
}

/* Whether a run has a byte in [lo, hi). */
static int hits(const mo_race_shape *shape, uint64_t lo, uint64_t hi)
{
    uint64_t behind = shape->origin + shape->run;
    uint64_t first = lo >= behind ? (lo - behind) / shape->stride + 1 : 0;
    return first < shape->count && shape->origin + first * shape->stride < hi;
}

int mo_race_shapes_meet(const mo_race_shape *a, const mo_race_shape *b, uint64_t lo, uint64_t hi)
{
    if (a == NULL && b == NULL)
        return 1;
    if ((a != NULL && a->dims > 1) || (b != NULL && b->dims > 1))
        return -1;
    if (a == NULL || b == NULL)
        return hits(a != NULL ? a : b, lo, hi);
    const mo_race_shape *few = a->count <= b->count ? a : b, *other = few == a ? b : a;
    if (few->count > MOST_RUNS)
        return -1;
    for (uint64_t i = 0; i < few->count; i++) {
        uint64_t at = few->origin + i * few->stride;
        uint64_t from = mo_max_u64(at, lo), to = mo_min_u64(at + few->run, hi);
        if (from < to && hits(other, from, to))
            return 1;
    }
    return 0;
}
