/* The steps of step_simd_adamw.h on AVX2 with FMA and F16C. */
#include "kernels/optim/optim_avx2.h"
#include "kernels/optim/step_simd_adamw.h"

MO_ADAMW_STEP(mo_step_adamw4_avx2, MO_STATE_4BIT)
MO_ADAMW_STEP(mo_step_adamwf8_avx2, MO_STATE_F8)
MO_ADAMW_STEP(mo_step_adamwc8_avx2, MO_STATE_COMPANDED)
MO_ADAMW_STEP(mo_step_adamwc4_avx2, MO_STATE_COMPANDED4)
