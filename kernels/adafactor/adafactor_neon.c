/* The NEON forms of Adafactor. */
#include "kernels/core/vector_neon.h"

#include "kernels/adafactor/adafactor_simd.h"

MO_ADAFACTOR_FORMS(neon)
