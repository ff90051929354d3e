/* The AVX2 forms of Adam-mini. */
#include "kernels/optim/state_codes_avx2.h"

#include "kernels/adam_mini/adam_mini_simd.h"

MO_ADAM_MINI_FORMS(avx2)
