/* The AVX-512 forms of Adafactor. */
#include "kernels/core/vector_avx512.h"

#include "kernels/adafactor/adafactor_simd.h"

MO_ADAFACTOR_FORMS(avx512)
