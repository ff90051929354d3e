/* Prefetching in the CPU forms of kernels that stream through memory. */
#ifndef MO_KERNELS_AHEAD_H
#define MO_KERNELS_AHEAD_H

#include <stdint.h>

/* Asks for the lines of [at, +bytes) a page further on: one core's own prefetcher stops at each
 * page and leaves a fifth of the bandwidth unused. Harmless wherever the page is. */
static inline __attribute__((always_inline)) void mo_ask_ahead(const void *at, uint64_t bytes)
{
    for (uint64_t line = 0; line < bytes; line += 64)
        __builtin_prefetch((const char *)at + 4096 + line, 0, 3);
}

#endif
