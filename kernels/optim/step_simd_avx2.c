/* The steps and codes of step_simd.h on AVX2 with FMA and F16C. */
#include "kernels/optim/optim_avx2.h"

#include "kernels/optim/step_simd.h"
#include "kernels/optim/step_simd_sized.h"

MO_LANE_STEP(mo_step_adamw16_avx2, MO_RULE_ADAMW, MO_STATE_BF16)
MO_LANE_STEP(mo_step_schedule_free_avx2, MO_RULE_SCHEDULE_FREE, MO_STATE_F32)
MO_LANE_CODE(mo_quantize_avx2, mo_dequantize_avx2, MO_STATE_8BIT)
MO_LANE_CODE(mo_quantize4_avx2, mo_dequantize4_avx2, MO_STATE_4BIT)
MO_LANE_CODE(mo_quantizef8_avx2, mo_dequantizef8_avx2, MO_STATE_F8)
MO_LANE_CODE(mo_quantizec8_avx2, mo_dequantizec8_avx2, MO_STATE_COMPANDED)
MO_LANE_CODE(mo_quantizec4_avx2, mo_dequantizec4_avx2, MO_STATE_COMPANDED4)
MO_SIZED_FORMS(avx2)
MO_LANE_ADAMW32(mo_adamw32_span_avx2)

/* 32-bit states, for step8_avx2.c. */
static __attribute__((noinline)) void span32(uint32_t rule, const mo_optim_span *span)
{
    mo_lane_coef coef = mo_lane_coef_of(&span->coef);
    mo_lane_work work;
    lane_step_plain(rule, MO_STATE_F32, span, &coef, &work);
}

void mo_adam32_span_avx2(const mo_optim_span *span)
{
    span32(MO_RULE_ADAM, span);
}

void mo_lion32_span_avx2(const mo_optim_span *span)
{
    span32(MO_RULE_LION, span);
}

void mo_sgd32_span_avx2(const mo_optim_span *span)
{
    span32(MO_RULE_SGD, span);
}

void mo_rmsprop32_span_avx2(const mo_optim_span *span)
{
    span32(MO_RULE_RMSPROP, span);
}

void mo_rmspropm32_span_avx2(const mo_optim_span *span)
{
    span32(MO_RULE_RMSPROP_MOMENTUM, span);
}

void mo_ademamix32_span_avx2(const mo_optim_span *span)
{
    span32(MO_RULE_ADEMAMIX, span);
}
