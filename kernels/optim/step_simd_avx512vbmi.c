/* The codes of step_simd.h that lookups of bytes and of VBMI make faster. */
#include "kernels/optim/optim_avx512.h"
#include "kernels/optim/step_simd.h"

MO_LANE_CODE(mo_quantize_avx512vbmi, mo_dequantize_avx512vbmi, MO_STATE_8BIT)
MO_LANE_CODE(mo_quantizec8_avx512vbmi, mo_dequantizec8_avx512vbmi, MO_STATE_COMPANDED)
MO_LANE_CODE(mo_quantizec4_avx512vbmi, mo_dequantizec4_avx512vbmi, MO_STATE_COMPANDED4)
