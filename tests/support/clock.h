#ifndef TEST_SUPPORT_CLOCK_H
#define TEST_SUPPORT_CLOCK_H

#include <time.h>

/* Of a clock that only goes forward. */
static inline double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
