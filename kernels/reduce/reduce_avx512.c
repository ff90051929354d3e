/* The AVX-512 forms of the reductions and of the scale kernel. */
#include "kernels/core/vector_avx512.h"

#include "kernels/reduce/reduce_simd.h"

MO_REDUCE_FORMS(avx512)
