/* The AVX2 forms of Adafactor. */
#include "kernels/core/vector_avx2.h"

#include "kernels/adafactor/adafactor_simd.h"

MO_ADAFACTOR_FORMS(avx2)
