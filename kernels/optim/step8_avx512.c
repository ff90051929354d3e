/* The steps with 8-bit states on AVX-512. */
#define MO_FORM(name) name##_avx512
#include "kernels/optim/step8_avx512.h"
