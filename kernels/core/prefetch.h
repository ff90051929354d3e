/* Prefetching in the CPU forms of kernels that stream through memory. */
#ifndef MO_KERNELS_CORE_PREFETCH_H
#define MO_KERNELS_CORE_PREFETCH_H

#include <stdint.h>

/* Prefetches the lines of [at, +bytes), which need not exist. */
static inline __attribute__((always_inline)) void mo_prefetch(const void *at, uint64_t bytes)
{
    for (uint64_t line = 0; line < bytes; line += 64)
        __builtin_prefetch((const char *)at + line, 0, 3);
}

/* Prefetches the lines of [at, +bytes) one page further on: a core's prefetcher stops at each page
 * and leaves a fifth of the bandwidth unused. The page need not exist. */
static inline __attribute__((always_inline)) void mo_prefetch_page_ahead(const void *at,
                                                                         uint64_t bytes)
{
    mo_prefetch((const char *)at + 4096, bytes);
}

#endif
