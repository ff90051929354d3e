/*
 * How much a test sweeps: a sample of its seeds, places or inputs, and everything with
 * MEMOPT_TEST_LONG (./check --long). The sample is always the same one, so that what a newcomer
 * runs has been run; MEMOPT_TEST_SEED chooses another (continuous integration takes it from the
 * commit). What a test asks of its sample it asks in proportion: of so many seeds, so much.
 */
#ifndef MEMOPT_TEST_SWEEP_H
#define MEMOPT_TEST_SWEEP_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* What one thread computes is nothing for ThreadSanitizer, which takes ten times as long. */
#ifdef __SANITIZE_THREAD__
enum { UNDER_TSAN = 1 };
#else
enum { UNDER_TSAN = 0 };
#endif

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

/* Of so many seeds, those of this run. */
static inline uint64_t seeds_of(uint64_t all)
{
    uint64_t share = is_long() ? 1 : UNDER_TSAN ? 32 : 8;
    return (all + share - 1) / share;
}

/* The seeds of a loop that takes `all` in full. */
#define FOR_SEEDS(seed, all)                                                                       \
    for (uint64_t seed = first_seed(), seed##_end = seed + seeds_of(all); seed < seed##_end; seed++)

/* The first of the places 1, 2, … where something fails, and the next one: a sample has every
 * fourth, under ThreadSanitizer every sixteenth. */
static inline int64_t first_place(void)
{
    return is_long() ? 1 : 1 + (int64_t)(first_seed() % 4);
}

static inline int64_t next_place(int64_t n)
{
    return n + (is_long() ? 1 : UNDER_TSAN ? 16 : 4);
}

#define FOR_PLACES(n, last) for (int64_t n = first_place(); n <= (last); n = next_place(n))

#endif
