#include "base/address_space.h"

#include "base/small_file.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

/* The first number of statm is what is mapped, in pages. */
uint64_t mo_address_space_left(uint64_t *out_limit)
{
    struct rlimit limit;
    char text[128];
    *out_limit = UINT64_MAX;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    *out_limit = limit.rlim_cur;
    if (mo_read_text("/proc/self/statm", text, sizeof text) != 0)
        return limit.rlim_cur;
    uint64_t mapped = strtoull(text, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
    return mapped < limit.rlim_cur ? limit.rlim_cur - mapped : 0;
}
