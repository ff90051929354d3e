/* splitmix64: the tests' own generator. */
#ifndef TEST_SUPPORT_RANDOM_H
#define TEST_SUPPORT_RANDOM_H

#include <stdint.h>

static inline uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Below the limit. */
static inline uint64_t random_below(uint64_t *state, uint64_t limit)
{
    return next_random(state) % limit;
}

/* Uniform in [-1, 1). */
static inline float next_float(uint64_t *state)
{
    return (float)((double)(next_random(state) >> 11) * 0x1p-52 - 1.0);
}

#endif
