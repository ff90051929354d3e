/* The steps and codes of step_simd.h on AVX-512. */
#include "kernels/optim/optim_avx512.h"
#include "kernels/optim/step_simd.h"

MO_LANE_SPANS32(avx512)
MO_LANE_STEP(mo_step_adamw16_avx512, MO_RULE_ADAMW, MO_STATE_BF16)
MO_LANE_STEP(mo_step_schedule_free_avx512, MO_RULE_SCHEDULE_FREE, MO_STATE_F32)
MO_LANE_CODE(mo_quantize_avx512, mo_dequantize_avx512, MO_STATE_8BIT)
MO_LANE_CODE(mo_quantizec8_avx512, mo_dequantizec8_avx512, MO_STATE_COMPANDED)
MO_LANE_CODE(mo_quantizec4_avx512, mo_dequantizec4_avx512, MO_STATE_COMPANDED4)
