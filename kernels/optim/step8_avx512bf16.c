/* The steps with 8-bit states on AVX-512 with VBMI and BF16. */
#define MO_FORM(name) name##_avx512bf16
#include "kernels/optim/step8_avx512.h"
