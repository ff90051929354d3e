/* Overflow-checked arithmetic on sizes and counts. Each returns 1 on success, 0 on overflow. */
#ifndef MO_BASE_CHECKED_H
#define MO_BASE_CHECKED_H

#include <stdint.h>

static inline int mo_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline int mo_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* Rounds up to a multiple of unit (any positive number). */
static inline int mo_round_up_u64(uint64_t value, uint64_t unit, uint64_t *out)
{
    uint64_t rest = value % unit;
    if (rest == 0) {
        *out = value;
        return 1;
    }
    return mo_add_u64(value, unit - rest, out);
}

static inline uint64_t mo_ceil_div_u64(uint64_t value, uint64_t unit)
{
    return value / unit + (value % unit != 0);
}

static inline uint64_t mo_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t mo_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

#endif
