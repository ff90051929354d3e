/*
 * How much a test sweeps: an eighth by default, everything with MEMOPT_TEST_LONG (./check --long).
 * With MEMOPT_TEST_QUICK (./check alone) the slowest take a part of the default, and under a
 * sanitizer all do: what is computed was seen without it. ./check sets MEMOPT_TEST_SEED from the
 * commit, so that every commit sweeps another part.
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

/* Of so many seeds, those of this run. */
static inline uint64_t seeds_of(uint64_t all)
{
    uint64_t share = is_long() ? 1 : 8;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    share *= is_quick() ? 4 : 1;
#endif
    return (all + share - 1) / share;
}

/* The seeds of a loop that takes `all` in full. */
#define FOR_SEEDS(seed, all)                                                                       \
    for (uint64_t seed = first_seed(), seed##_end = seed + seeds_of(all); seed < seed##_end; seed++)

/* The first of the places 1, 2, … where something fails, and how far it is to the next: a quick run
 * takes every fourth of them. */
static inline int64_t first_place(void)
{
    return is_quick() ? 1 + (int64_t)(first_seed() % 4) : 1;
}

static inline int64_t next_place(int64_t n)
{
    return n + (is_quick() ? 4 : 1);
}

#define FOR_PLACES(n, last) for (int64_t n = first_place(); n <= (last); n = next_place(n))

#endif
