/* Every kernel, for back ends that look them up by name. */
#ifndef MO_KERNELS_CORE_ALL_KERNELS_H
#define MO_KERNELS_CORE_ALL_KERNELS_H

#include "kernels/core/kernel_launch.h"

extern const mo_kernel *const mo_all_kernels[];
extern const uint32_t mo_all_kernels_count;

#endif
