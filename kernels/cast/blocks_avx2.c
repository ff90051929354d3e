/* The AVX2 form of the block kernels. */
#include "kernels/core/vector_avx2.h"

#include "kernels/cast/blocks_simd.h"

BLOCKS_KERNELS(avx2, _mm_sfence())
