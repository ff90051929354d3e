/*
 * How much a test sweeps: an eighth by default, everything with MEMOPT_TEST_LONG (./check --long).
 * ./check sets MEMOPT_TEST_SEED from the commit, so that every commit sweeps another part.
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

/* The seeds of a loop that takes `all` in full. */
#define FOR_SEEDS(seed, all)                                                                       \
    for (uint64_t seed = first_seed(), seed##_end = seed + (is_long() ? (all) : ((all) + 7) / 8);  \
         seed < seed##_end; seed++)

#endif
