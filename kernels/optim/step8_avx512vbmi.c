/* The steps with 8-bit states on AVX-512 with VBMI. */
#define MO_FORM(name) name##_avx512vbmi
#include "kernels/optim/step8_avx512.h"
