/*
 * Runs a GPU kernel that was compiled for the host: a block's threads are fibers, and each runs on
 * its own until a barrier or a shuffle, in an order that changes every time. Any warp width.
 */
#ifndef TESTS_KERNELS_BUILD_BLOCKS_H
#define TESTS_KERNELS_BUILD_BLOCKS_H

#include "kernels/core/kernel_launch.h"

/* Runs `items` items of the kernel; ends the program with a message where threads of a warp do not
 * reach a shuffle together, or threads of a block a barrier. */
void blocks_run(const mo_kernel *kernel, const void *args, uint64_t items, uint32_t warp_size);

#endif
