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

/* --- what step_coded.h needs ------------------------------------------------------------------ */

#define V_TYPES 1
#define V_MASTER(format) 1
enum { V_PART = 16, MO_HALVES = 0, MO_EVEN_ODD = 1 };

#define v_order(f) ((void)(f), MO_HALVES)
#define v_turns(f) ((void)(f), 0)

MO_INLINE void v_decode_part(int is_signed, const uint8_t *codes, VF scale, int order, VF x[2])
{
    const uint32_t *map = is_signed ? mo_map_signed : mo_map_unsigned;
    (void)order;
    for (int k = 0; k < 2; k++) {
        uint64_t index = vget_lane_u64(vreinterpret_u64_u8(vld1_u8(codes + 8 * k)), 0);
        x[k] = v_mul(v_bits(mo_look8(map, index)), scale);
    }
}

typedef mo_block_scale v_coder;
#define v_coder_of(is_signed, scale, values, coder) ((void)(values), (void)(*(coder) = *(scale)))

typedef int v_coding; /* all at its end */
#define v_code_begin(m, m_coder, v, v_coder, x) ((void)(m), (void)(v), (void)(x))
#define v_code_compare(x) ((void)(x))

MO_INLINE void v_code_end(const v_steps *steps, int is_signed, const float *values,
                          const v_coder *coder, int order, const v_coding *x, uint8_t *codes)
{
    (void)order, (void)x;
    v_encode_part(steps, is_signed, values, 4 * MO_LANES_N, coder, codes);
}

#endif
