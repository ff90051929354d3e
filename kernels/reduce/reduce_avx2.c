/* The AVX2 forms of the reductions and of the scale kernel. */
#include "kernels/core/vector_avx2.h"

#include "kernels/reduce/reduce_simd.h"

MO_REDUCE_FORMS(avx2)
