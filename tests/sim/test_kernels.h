/* Arguments of the test kernels: device pointers and a count of elements (move16: of bytes). */
#ifndef MEMOPT_SIM_TEST_KERNELS_H
#define MEMOPT_SIM_TEST_KERNELS_H

#include <stdint.h>

typedef struct sim_test_args {
    uint64_t to, from, count;
} sim_test_args;

#endif
