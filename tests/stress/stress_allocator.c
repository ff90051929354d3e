/*
 * Threads on one allocator, its pools and streams: each runs operations of its own on blocks, pools
 * and streams that all share. Now and then they meet, and the oracle (tests/oracle) looks at
 * everything: statistics, limits, contents, what observers know. Both kinds of segments, in eager
 * order.
 */
#include "oracle/oracle.h"
#include "support/sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, OPERATIONS = 500, CONFIGS = 4 };

#define FEATURE(name) (1u << ORACLE_HAS_##name)
#define SHARED                                                                                     \
    (FEATURE(POOLS) | FEATURE(STREAM_ENDS) | FEATURE(OBSERVERS) | FEATURE(PINNED) |                \
     FEATURE(PROVIDER) | FEATURE(LIMITS) | FEATURE(PAUSES))

int main(int argc, char **argv)
{
    uint64_t seed = first_seed();
    double seconds = 2;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0)
            seed = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--seconds") == 0)
            seconds = strtod(argv[i + 1], NULL);
    }
    for (uint32_t i = 0; i < CONFIGS; i++) {
        oracle_case c = {.device = "cpu", .config = i, .count = OPERATIONS, .seed = seed + i};
        c.features = SHARED | (i % 2 == 0 ? FEATURE(EXPANDABLE) | FEATURE(REMAP) : 0);
        oracle_run_threads(&c, THREADS, seconds / CONFIGS);
    }
    return 0;
}
