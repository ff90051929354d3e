/* Stochastically rounded parameters for NEON. */
#ifndef MO_KERNELS_OPTIM_OPTIM_NEON_H
#define MO_KERNELS_OPTIM_OPTIM_NEON_H

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

#endif
