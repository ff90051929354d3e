/* The steps of step_simd_adamw.h on AVX2 with FMA and F16C. */
#include "kernels/optim/optim_avx2.h"
#include "kernels/optim/step_simd_adamw.h"

MO_ADAMW_STEP(adamwc8, avx2, MO_STATE_COMPANDED, mo_adamw32_span_avx2)
MO_ADAMW_STEP(adamwc4, avx2, MO_STATE_COMPANDED4, mo_adamw32_span_avx2)
