/* The steps of step_simd_adamw.h on AVX-512 with VBMI and BF16, for what is rounded to bf16. */
#include "kernels/optim/optim_avx512.h"
#include "kernels/optim/step_simd_adamw.h"

MO_ADAMW_HALVES(adamwc8, avx512bf16, MO_STATE_COMPANDED, mo_adamwc8_span_avx512vbmi)
MO_ADAMW_HALVES(adamwc4, avx512bf16, MO_STATE_COMPANDED4, mo_adamwc4_span_avx512vbmi)
