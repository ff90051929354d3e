/* The AVX-512 VBMI form of the block kernels: codes of e4m3 are looked up by their mantissa. */
#include "kernels/core/vector_avx512.h"

#include "kernels/cast/blocks_simd.h"

BLOCKS_KERNELS(avx512vbmi, _mm_sfence())
