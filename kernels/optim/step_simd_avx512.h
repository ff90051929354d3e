/*
 * The steps and codes of step_simd.h on AVX-512: included by a file for each set of instructions,
 * which defines MO_FORM(name), the name with the set's suffix.
 */
#include "kernels/optim/optim_avx512.h"

#include "kernels/optim/step_simd.h"

/* Where step8_avx512.h has no form. */
MO_LANE_SPAN(MO_FORM(mo_adam8_span), MO_RULE_ADAM, MO_STATE_8BIT)
MO_LANE_SPAN(MO_FORM(mo_lion8_span), MO_RULE_LION, MO_STATE_8BIT)
MO_LANE_SPAN(MO_FORM(mo_sgd8_span), MO_RULE_SGD, MO_STATE_8BIT)
MO_LANE_STEP(MO_FORM(mo_step_adamw16), MO_RULE_ADAMW, MO_STATE_BF16)
MO_LANE_STEP(MO_FORM(mo_step_schedule_free), MO_RULE_SCHEDULE_FREE, MO_STATE_F32)
MO_LANE_SPAN(MO_FORM(mo_rmsprop8_span), MO_RULE_RMSPROP, MO_STATE_8BIT)
MO_LANE_SPAN(MO_FORM(mo_rmspropm8_span), MO_RULE_RMSPROP_MOMENTUM, MO_STATE_8BIT)
MO_LANE_SPAN(MO_FORM(mo_ademamix8_span), MO_RULE_ADEMAMIX, MO_STATE_8BIT)
MO_LANE_CODE(MO_FORM(mo_quantize), MO_FORM(mo_dequantize), MO_STATE_8BIT)
MO_LANE_CODE(MO_FORM(mo_quantize4), MO_FORM(mo_dequantize4), MO_STATE_4BIT)
MO_LANE_CODE(MO_FORM(mo_quantizef8), MO_FORM(mo_dequantizef8), MO_STATE_F8)
MO_LANE_CODE(MO_FORM(mo_quantizec8), MO_FORM(mo_dequantizec8), MO_STATE_COMPANDED)
MO_LANE_CODE(MO_FORM(mo_quantizec4), MO_FORM(mo_dequantizec4), MO_STATE_COMPANDED4)
