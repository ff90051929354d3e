/* The NEON forms of the reductions and of the scale kernel. */
#include "kernels/core/vector_neon.h"

#include "kernels/reduce/reduce_simd.h"

MO_REDUCE_FORMS(neon)
