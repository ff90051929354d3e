/* The steps of step_simd_adamw.h on AVX-512. */
#include "kernels/optim/optim_avx512.h"
#include "kernels/optim/step_simd_adamw.h"

MO_ADAMW_STEP(adamwc8, avx512, MO_STATE_COMPANDED, mo_adamw32_span_avx512)
MO_ADAMW_STEP(adamwc4, avx512, MO_STATE_COMPANDED4, mo_adamw32_span_avx512)
