#include "race/shape.h"

#include "base/checked.h"

#include <stddef.h>
#include <string.h>

enum { MOST_STEPS = 1 << 16 };

typedef struct dimension {
    uint64_t count, stride;
} dimension;

/* Dimensions of more than one place, strides ascending; moves *lo to the first byte and *hi behind
 * the last. How many, or -1. */
static int gather(const memopt_race_access *access, dimension *out, uint64_t *lo, uint64_t *hi)
{
    int used = 0;
    for (uint32_t d = 0; d < access->dims; d++) {
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
    return used;
}

/* 1: all counts are positive; 0: one is 0; -1: one is negative. */
static int check_counts(const memopt_race_access *access)
{
    int found = 1;
    for (uint32_t d = 0; d < access->dims; d++) {
        if (access->shape[d] < 0)
            return -1;
        if (access->shape[d] == 0)
            found = 0;
    }
    return found;
}

int mo_race_shape_of(const memopt_race_access *access, mo_race_shape *out_shape, uint64_t *out_lo,
                     uint64_t *out_hi)
{
    dimension dims[MEMOPT_RACE_MOST_DIMS];
    uint64_t lo = access->address, hi;
    int counts = check_counts(access), used;
    if (counts < 0 || !mo_add_u64(lo, access->bytes, &hi))
        return -1;
    if (counts == 0 || access->bytes == 0)
        return 0;
    if ((used = gather(access, dims, &lo, &hi)) < 0)
        return -1;
    *out_lo = lo;
    *out_hi = hi;
    mo_race_shape shape = {.origin = lo, .run = access->bytes};
    for (int d = 0; d < used; d++) {
        uint64_t count = dims[d].count, stride = dims[d].stride;
        uint32_t last = shape.dims - 1;
        if (shape.dims == 0 && stride <= shape.run)
            shape.run += (count - 1) * stride; /* the runs touch or overlap */
        else if (shape.dims != 0 && shape.dims <= MO_RACE_SHAPE_DIMS &&
                 stride == shape.count[last] * shape.stride[last])
            shape.count[last] *= count;
        else if (shape.dims++ < MO_RACE_SHAPE_DIMS) {
            shape.count[shape.dims - 1] = count;
            shape.stride[shape.dims - 1] = stride;
        }
    }
    *out_shape = shape;
    return 1;
}

uint64_t mo_race_shape_hash(const mo_race_shape *shape, uint64_t lo)
{
    uint64_t words[3 + 2 * MO_RACE_SHAPE_DIMS], hash = 0xCBF29CE484222325U;
    if (shape->dims == 0)
        return 0;
    words[0] = shape->run;
    words[1] = shape->dims;
    words[2] = lo - shape->origin;
    memcpy(words + 3, shape->count, sizeof shape->count);
    memcpy(words + 3 + MO_RACE_SHAPE_DIMS, shape->stride, sizeof shape->stride);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        hash = (hash ^ words[i]) * 0x9E3779B97F4A7C15U;
        hash ^= hash >> 29;
    }
    return hash | 1;
}

/* --- common bytes ---------------------------------------------------------------------------- */

/* The bytes from the first to the last of the innermost `dims` dimensions. */
static uint64_t extent(const mo_race_shape *shape, uint32_t dims)
{
    uint64_t bytes = shape->run;
    for (uint32_t d = 0; d < dims; d++)
        bytes += (shape->count[d] - 1) * shape->stride[d];
    return bytes;
}

/* The places of the outermost of `dims` dimensions, from `base`, that reach into [lo, hi). */
static int places(const mo_race_shape *shape, uint32_t dims, uint64_t base, uint64_t lo,
                  uint64_t hi, uint64_t *out_first, uint64_t *out_last)
{
    uint64_t stride = shape->stride[dims - 1], bytes = extent(shape, dims - 1);
    if (hi <= base)
        return 0;
    *out_first = lo >= base + bytes ? (lo - base - bytes) / stride + 1 : 0;
    *out_last = mo_min_u64(shape->count[dims - 1] - 1, (hi - 1 - base) / stride);
    return *out_first <= *out_last;
}

/* Whether the innermost `dims` dimensions, from `base`, have a byte in [lo, hi). */
static int hits(const mo_race_shape *shape, uint32_t dims, uint64_t base, uint64_t lo, uint64_t hi,
                int64_t *steps)
{
    uint64_t first, last;
    int found = 0;
    if (dims == 0)
        return base < hi && base + shape->run > lo;
    if (!places(shape, dims, base, lo, hi, &first, &last))
        return 0;
    for (uint64_t i = first; i <= last && found == 0; i++) {
        uint64_t at = base + i * shape->stride[dims - 1];
        if (--*steps < 0)
            return -1;
        found = at >= lo ? 1 : hits(shape, dims - 1, at, lo, hi, steps);
    }
    return found;
}

/* The same for each run of `shape` in [lo, hi) and the other shape. */
static int meets(const mo_race_shape *shape, uint32_t dims, uint64_t base,
                 const mo_race_shape *other, uint64_t lo, uint64_t hi, int64_t *steps)
{
    uint64_t first, last;
    int found = 0;
    if (dims == 0) {
        uint64_t from = mo_max_u64(base, lo), to = mo_min_u64(base + shape->run, hi);
        return from < to ? hits(other, other->dims, other->origin, from, to, steps) : 0;
    }
    if (!places(shape, dims, base, lo, hi, &first, &last))
        return 0;
    for (uint64_t i = first; i <= last && found == 0; i++) {
        if (--*steps < 0)
            return -1;
        found = meets(shape, dims - 1, base + i * shape->stride[dims - 1], other, lo, hi, steps);
    }
    return found;
}

static double runs(const mo_race_shape *shape)
{
    double product = 1;
    for (uint32_t d = 0; d < shape->dims; d++)
        product *= (double)shape->count[d];
    return product;
}

int mo_race_shapes_meet(const mo_race_shape *a, const mo_race_shape *b, uint64_t lo, uint64_t hi)
{
    int64_t steps = MOST_STEPS;
    if (a == NULL && b == NULL)
        return 1;
    if ((a != NULL && a->dims > MO_RACE_SHAPE_DIMS) || (b != NULL && b->dims > MO_RACE_SHAPE_DIMS))
        return -1;
    if (a == NULL || b == NULL) {
        const mo_race_shape *shape = a != NULL ? a : b;
        return hits(shape, shape->dims, shape->origin, lo, hi, &steps);
    }
    const mo_race_shape *few = runs(a) <= runs(b) ? a : b;
    return meets(few, few->dims, few->origin, few == a ? b : a, lo, hi, &steps);
}
