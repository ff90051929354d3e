/* The steps of step_simd_adamw.h on AVX-512 with VBMI and BF16. */
#include "kernels/optim/optim_avx512.h"
#include "kernels/optim/step_simd_adamw.h"

MO_ADAMW_STEP(mo_step_adamw4_avx512bf16, MO_STATE_4BIT)
MO_ADAMW_STEP(mo_step_adamwf8_avx512bf16, MO_STATE_F8)
MO_ADAMW_STEP(mo_step_adamwc8_avx512bf16, MO_STATE_COMPANDED)
MO_ADAMW_STEP(mo_step_adamwc4_avx512bf16, MO_STATE_COMPANDED4)
