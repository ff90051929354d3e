/* What the optimizer's tests share: random numbers, comparison of bits. */
#ifndef TEST_OPTIM_SUPPORT_H
#define TEST_OPTIM_SUPPORT_H

#include "support/checks.h"

#include "kernels/optim/optim_cpu.h"

/* xorshift64*: seeded, the same on every machine. */
static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dull;
}

/* Uniform in (-1, 1). */
static inline float uniform(uint64_t *state)
{
    return (float)((double)(int64_t)next_random(state) / 9223372036854775808.0);
}

/* Nearly normal, variance 1: a sum of uniforms. */
static inline float normal(uint64_t *state)
{
    float sum = 0.0f;
    for (int i = 0; i < 6; i++)
        sum += uniform(state);
    return sum * 0.70710678f;
}

/* Equal bits, or both NaN: which NaN arithmetic makes is the processor's choice. */
static inline int same_float(float a, float b)
{
    return mo_f32_bits(a) == mo_f32_bits(b) || (mo_f32_is_nan(a) && mo_f32_is_nan(b));
}

static inline int same_element(const void *a, const void *b, uint64_t i, int32_t dtype)
{
    return same_float(mo_load_element(a, i, dtype), mo_load_element(b, i, dtype));
}

#endif
