/* The AVX-512 form of the block kernels. */
#include "kernels/core/vector_avx512.h"

#include "kernels/cast/blocks_simd.h"

BLOCKS_KERNELS(avx512, _mm_sfence())
