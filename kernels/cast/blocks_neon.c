/* The NEON form of the block kernels. */
#include "kernels/core/vector_neon.h"

#include "kernels/cast/blocks_simd.h"

BLOCKS_KERNELS(neon, (void)0)
