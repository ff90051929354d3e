/* The steps and codes of step_simd.h on NEON. */
#include "kernels/core/vector_neon.h"

#include "kernels/core/vector_stochastic.h"
#include "kernels/optim/optim_cpu.h"
#include "kernels/optim/state_codes_neon.h"

/* The 16-bit codes of 8 parameters, rounded stochastically. */
MO_INLINE uint16x8_t stochastic_codes(int32_t dtype, VF value, VI random)
{
    if (dtype == MO_DTYPE_BF16)
        return mo_narrow_high8(mo_bf16_stochastic_lanes(v_ints(value), random));
    return mo_narrow8(mo_f16_stochastic_lanes(v_ints(value), random));
}

/* n: a multiple of 64. */
MO_INLINE void v_write_stochastic(const mo_optim_span *s, uint64_t at, uint64_t n,
                                  const float *values)
{
    uint16_t *codes = (uint16_t *)s->parameter + at;
    for (uint64_t i = 0; i < n; i += 64) {
        VI random[4];
        mo_random_lanes(&s->random, s->start + at + i, random);
        for (int k = 0; k < 8; k++, codes += 8)
            vst1q_u16(codes,
                      stochastic_codes(s->parameter_dtype, v_load(values + i + 8 * (uint64_t)k),
                                       mo_random_lane(random, k)));
    }
}

#include "kernels/optim/step_simd.h"

MO_LANE_STEP(mo_optim_step_neon, MO_RULE_ADAMW, MO_STATE_8BIT)
MO_LANE_STEP(mo_step_adamwc8_neon, MO_RULE_ADAMW, MO_STATE_COMPANDED)
MO_LANE_STEP(mo_step_adamwc4_neon, MO_RULE_ADAMW, MO_STATE_COMPANDED4)
MO_LANE_STEP(mo_step_lion8_neon, MO_RULE_LION, MO_STATE_8BIT)
MO_LANE_STEP(mo_step_sgd8_neon, MO_RULE_SGD, MO_STATE_8BIT)
MO_LANE_STEP(mo_step_adam8_neon, MO_RULE_ADAM, MO_STATE_8BIT)
MO_LANE_STEP(mo_step_adamw16_neon, MO_RULE_ADAMW, MO_STATE_BF16)
MO_LANE_STEP(mo_step_schedule_free_neon, MO_RULE_SCHEDULE_FREE, MO_STATE_F32)
MO_LANE_STEP(mo_step_rmsprop8_neon, MO_RULE_RMSPROP, MO_STATE_8BIT)
MO_LANE_STEP(mo_step_rmspropm8_neon, MO_RULE_RMSPROP_MOMENTUM, MO_STATE_8BIT)
MO_LANE_STEP(mo_step_ademamix8_neon, MO_RULE_ADEMAMIX, MO_STATE_8BIT)
MO_LANE_CODE(mo_quantize_neon, mo_dequantize_neon, MO_STATE_8BIT)
MO_LANE_CODE(mo_quantizec8_neon, mo_dequantizec8_neon, MO_STATE_COMPANDED)
MO_LANE_CODE(mo_quantizec4_neon, mo_dequantizec4_neon, MO_STATE_COMPANDED4)
MO_LANE_SPANS32(neon)
