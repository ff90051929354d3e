/* Translated kernels (tests/ptx, tests/gcn) are one text, compiled in parts or, without PART,
 * whole. */
#ifndef MEMOPT_TEST_SIM_PARTS_H
#define MEMOPT_TEST_SIM_PARTS_H

#include "../sim/kernels.h"

#define HIDDEN __attribute__((visibility("hidden")))
#if !defined PART || PART == 0
#define MO_FIRST_PART 1
#define SHARED HIDDEN
#else
#define MO_FIRST_PART 0
#define SHARED extern HIDDEN
#endif

SHARED const mo_sim_calls *calls;
SHARED int approximation; /* of results that a device only approximates: how far they are off */

#endif
