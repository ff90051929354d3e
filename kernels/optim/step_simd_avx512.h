/*
 * The steps and codes of step_simd.h on AVX-512: included by a file for each set of instructions,
 * which defines MO_FORM(name), the name with the set's suffix.
 */
#include "kernels/optim/optim_avx512.h"

MO_INLINE void v_decode_8bit(int is_signed, const uint8_t *codes, float scale, float *values)
{
    for (int i = 0; i < MO_BLOCK_SIZE; i += 64) {
        mo_f32x64 x = is_signed ? mo_decode64_signed(codes + i, v_set(scale))
                                : mo_decode64_unsigned(codes + i, v_set(scale));
        for (int k = 0; k < 4; k++)
            v_store(values + i + 16 * k, x.part[k]);
    }
}

/* `values` are aligned and may be changed. The stages of coding take a signed and an unsigned
 * state; the compiler drops the unused half. */
MO_INLINE void v_encode_8bit(int is_signed, float *values, const mo_block_scale *scale,
                             uint8_t *codes)
{
    float factor = mo_normalize_block(values, scale, is_signed);
    for (int i = 0; i < MO_BLOCK_SIZE; i += 64) {
        mo_encode64 e;
        e.y[0] = e.y[1] = mo_normalize64(values + i, factor);
        mo_encode64_lines(&e);
        mo_encode64_compare(&e);
        _mm512_storeu_si512(codes + i,
                            is_signed ? mo_encode64_signed(&e) : mo_encode64_unsigned(&e));
    }
}

MO_INLINE void v_write_stochastic(const mo_optim_span *s, uint64_t at, uint64_t n,
                                  const float *values)
{
    for (uint64_t i = 0; i < n; i += 64) {
        mo_f32x64 x;
        for (int k = 0; k < 4; k++)
            x.part[k] = v_load(values + i + 16 * (uint64_t)k);
        mo_store64_stochastic(s->parameter, at + i, s->parameter_dtype, &x, &s->random,
                              s->start + at + i);
    }
}

#include "kernels/optim/step_simd.h"

MO_LANE_STEP(MO_FORM(mo_step_adamw4), MO_RULE_ADAMW, MO_STATE_4BIT)
MO_LANE_STEP(MO_FORM(mo_step_adamwf8), MO_RULE_ADAMW, MO_STATE_F8)
MO_LANE_STEP(MO_FORM(mo_step_adamwc8), MO_RULE_ADAMW, MO_STATE_COMPANDED)
MO_LANE_STEP(MO_FORM(mo_step_lion8), MO_RULE_LION, MO_STATE_8BIT)
MO_LANE_STEP(MO_FORM(mo_step_sgd8), MO_RULE_SGD, MO_STATE_8BIT)
MO_LANE_STEP(MO_FORM(mo_step_adam8), MO_RULE_ADAM, MO_STATE_8BIT)
MO_LANE_STEP(MO_FORM(mo_step_adamw16), MO_RULE_ADAMW, MO_STATE_BF16)
MO_LANE_STEP(MO_FORM(mo_step_schedule_free), MO_RULE_SCHEDULE_FREE, MO_STATE_F32)
MO_LANE_STEP(MO_FORM(mo_step_rmsprop8), MO_RULE_RMSPROP, MO_STATE_8BIT)
MO_LANE_STEP(MO_FORM(mo_step_rmspropm8), MO_RULE_RMSPROP_MOMENTUM, MO_STATE_8BIT)
MO_LANE_CODE(MO_FORM(mo_quantize), MO_FORM(mo_dequantize), MO_STATE_8BIT)
MO_LANE_CODE(MO_FORM(mo_quantize4), MO_FORM(mo_dequantize4), MO_STATE_4BIT)
MO_LANE_CODE(MO_FORM(mo_quantizef8), MO_FORM(mo_dequantizef8), MO_STATE_F8)
MO_LANE_CODE(MO_FORM(mo_quantizec8), MO_FORM(mo_dequantizec8), MO_STATE_COMPANDED)
