/* The steps and codes of step_simd.h on AVX-512. */
#define MO_FORM(name) name##_avx512
#include "kernels/optim/step_simd_avx512.h"

MO_LANE_ADAMW32(mo_adamw32_span_avx512)
