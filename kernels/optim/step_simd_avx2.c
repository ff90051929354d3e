/* The steps and codes of step_simd.h on AVX2 with FMA and F16C. */
#include "kernels/optim/optim_avx2.h"

#include "kernels/optim/step_simd.h"

MO_LANE_STEP(mo_step_adamw16_avx2, MO_RULE_ADAMW, MO_STATE_BF16)
MO_LANE_STEP(mo_step_schedule_free_avx2, MO_RULE_SCHEDULE_FREE, MO_STATE_F32)
MO_LANE_CODE(mo_quantize_avx2, mo_dequantize_avx2, MO_STATE_8BIT)
MO_LANE_CODE(mo_quantizec8_avx2, mo_dequantizec8_avx2, MO_STATE_COMPANDED)
MO_LANE_CODE(mo_quantizec4_avx2, mo_dequantizec4_avx2, MO_STATE_COMPANDED4)
MO_LANE_SPANS32(avx2)
