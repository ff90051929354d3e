/* The steps and codes of step_simd.h on AVX2 with FMA and F16C. */
#include "kernels/optim/optim_avx2.h"
#include "kernels/optim/state_codes_avx2.h"

MO_INLINE void v_decode_8bit(int is_signed, const uint8_t *codes, float scale, float *values)
{
    const uint32_t *map = is_signed ? mo_padded_map_signed : mo_padded_map_unsigned;
    for (int i = 0; i < MO_BLOCK_SIZE; i += 16) {
        mo_f32x16 x = mo_decode16(map, codes + i, v_set(scale), MO_HALVES);
        v_store(values + i, x.a);
        v_store(values + i + 8, x.b);
    }
}

MO_INLINE void v_encode_8bit(int is_signed, const float *values, const mo_block_scale *scale,
                             uint8_t *codes)
{
    const mo_lines *lines = is_signed ? &mo_lines_signed : &mo_lines_unsigned;
    mo_coder c = mo_coder_of(scale, lines);
    mo_steps steps = mo_steps_of(lines, is_signed);
    int doubts = 0;
    for (int i = 0; i < MO_BLOCK_SIZE; i += 32)
        mo_encode32_store(&steps, &c, values + i, MO_HALVES, is_signed, codes + i, &doubts);
}

#define v_write_stochastic mo_write_stochastic

#include "kernels/optim/step_simd.h"

MO_LANE_STEP(mo_step_adamw4_avx2, MO_RULE_ADAMW, MO_STATE_4BIT)
MO_LANE_STEP(mo_step_adamwf8_avx2, MO_RULE_ADAMW, MO_STATE_F8)
MO_LANE_STEP(mo_step_adamwc8_avx2, MO_RULE_ADAMW, MO_STATE_COMPANDED)
MO_LANE_STEP(mo_step_adam8_avx2, MO_RULE_ADAM, MO_STATE_8BIT)
MO_LANE_STEP(mo_step_adamw16_avx2, MO_RULE_ADAMW, MO_STATE_BF16)
MO_LANE_STEP(mo_step_schedule_free_avx2, MO_RULE_SCHEDULE_FREE, MO_STATE_F32)
MO_LANE_STEP(mo_step_rmsprop8_avx2, MO_RULE_RMSPROP, MO_STATE_8BIT)
MO_LANE_STEP(mo_step_rmspropm8_avx2, MO_RULE_RMSPROP_MOMENTUM, MO_STATE_8BIT)
MO_LANE_CODE(mo_quantize_avx2, mo_dequantize_avx2, MO_STATE_8BIT)
MO_LANE_CODE(mo_quantize4_avx2, mo_dequantize4_avx2, MO_STATE_4BIT)
MO_LANE_CODE(mo_quantizef8_avx2, mo_dequantizef8_avx2, MO_STATE_F8)
MO_LANE_CODE(mo_quantizec8_avx2, mo_dequantizec8_avx2, MO_STATE_COMPANDED)
MO_LANE_ADAMW32(mo_adamw32_span_avx2)

/* 32-bit states of Lion and SGD, for step8_avx2.c. */
static __attribute__((noinline)) void span32(uint32_t rule, const mo_optim_span *span)
{
    mo_lane_coef coef = mo_lane_coef_of(&span->coef);
    mo_lane_work work;
    lane_step_plain(rule, MO_STATE_F32, span, &coef, &work);
}

void mo_lion32_span_avx2(const mo_optim_span *span)
{
    span32(MO_RULE_LION, span);
}

void mo_sgd32_span_avx2(const mo_optim_span *span)
{
    span32(MO_RULE_SGD, span);
}
