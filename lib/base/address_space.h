/* How many addresses the process may still map, where a limit is set (ulimit -v; batch systems). */
#ifndef MO_BASE_ADDRESS_SPACE_H
#define MO_BASE_ADDRESS_SPACE_H

#include <stdint.h>

/* Bytes; UINT64_MAX where there is no limit. *out_limit: RLIMIT_AS, or UINT64_MAX. */
uint64_t mo_address_space_left(uint64_t *out_limit);

#endif
