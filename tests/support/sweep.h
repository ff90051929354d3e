/*
 * How much a test sweeps: an eighth by default, everything with MEMOPT_TEST_LONG (./check --long).
 * With MEMOPT_TEST_QUICK (./check alone) the slowest take a part of the default. ./check sets
 * MEMOPT_TEST_SEED from the commit, so that every commit sweeps another part.
 */
#ifndef MEMOPT_TEST_SWEEP_H
#define MEMOPT_TEST_SWEEP_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static inline uint64_t first_seed(void)
{
    const char *text = getenv("MEMOPT_TEST_SEED");
    if (text != NULL)
        printf("MEMOPT_TEST_SEED=%s\n", text); /* so that a failure can be repeated */
    return text != NULL ? strtoull(text, NULL, 10) : 0;
}

static inline int is_long(void)
{
    return getenv("MEMOPT_TEST_LONG") != NULL;
}

static inline int is_quick(void)
{
    return getenv("MEMOPT_TEST_QUICK") != NULL;
}

/* The seeds of a loop that takes `all` in full. */
#define FOR_SEEDS(seed, all)                                                                       \
    for (uint64_t seed = first_seed(), seed##_end = seed + (is_long() ? (all) : ((all) + 7) / 8);  \
         seed < seed##_end; seed++)

/* The places 1, 2, … where something fails: every fourth of them in a quick run. */
#define FOR_PLACES(n, last)                                                                        \
    for (int64_t n = is_quick() ? 1 + (int64_t)(first_seed() % 4) : 1; n <= (last);                \
         n += is_quick() ? 4 : 1)

#endif
