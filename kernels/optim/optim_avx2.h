/* Stochastically rounded parameters, and what step_simd.h needs, for AVX2 with FMA and F16C. */
#ifndef MO_KERNELS_OPTIM_OPTIM_AVX2_H
#define MO_KERNELS_OPTIM_OPTIM_AVX2_H

#include "kernels/core/vector_avx2.h"
#include "kernels/core/vector_stochastic.h"
#include "kernels/optim/optim_cpu.h"
#include "kernels/optim/state_codes_avx2.h"

/* Parameters of 16 bits, rounded stochastically: n elements, a multiple of 64, from `at` of the
 * span on, a multiple of 64. */
MO_INLINE void mo_write_stochastic(const mo_optim_span *s, uint64_t at, uint64_t n,
                                   const float *values)
{
    for (uint64_t i = 0; i < n; i += 64) {
        uint16_t *halves = (uint16_t *)s->parameter + at + i;
        __m256i bits[4];
        mo_random_lanes(&s->random, s->start + at + i, bits);
        for (int k = 0; k < 8; k++) {
            __m256i u = _mm256_castps_si256(_mm256_loadu_ps(values + i + 8 * (uint64_t)k));
            __m256i random = mo_random_lane(bits, k);
            __m256i code = s->parameter_dtype == MO_DTYPE_BF16
                               ? v_srl(mo_bf16_stochastic_lanes(u, random), 16)
                               : mo_f16_stochastic_lanes(u, random);
            _mm_storeu_si128(
                (__m128i *)(void *)(halves + 8 * k),
                _mm_packus_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1)));
        }
    }
}

/* --- what step_simd.h needs ------------------------------------------------------------------ */

#define v_write_stochastic mo_write_stochastic

/* --- what step_coded.h needs ------------------------------------------------------------------ */

#define V_TYPES 1
#define V_MASTER(format) ((format) != MO_STATE_8BIT)
enum { V_PART = 16 };

/* Pairs of bf16 come apart as even and odd ones: no shuffles. */
#define v_order(f) ((f).format == MO_STATE_8BIT && (f).p == MO_DTYPE_BF16 ? MO_EVEN_ODD : MO_HALVES)

#define v_turns(f) ((void)(f), 0)

MO_INLINE void v_decode_part(int is_signed, const uint8_t *codes, VF scale, int order, VF x[2])
{
    mo_f32x16 y = mo_decode16(is_signed ? mo_map_signed : mo_map_unsigned, codes, scale, order);
    x[0] = y.a;
    x[1] = y.b;
}

typedef struct v_coder {
    mo_coder of;
    int doubts; /* mo_encode32_store */
} v_coder;

MO_INLINE void v_coder_of(int is_signed, const mo_block_scale *scale, float *values, v_coder *coder)
{
    (void)values;
    coder->of = mo_coder_of(scale, is_signed ? &mo_lines_signed : &mo_lines_unsigned);
    coder->doubts = 0;
}

typedef int v_coding; /* all at its end */
#define v_code_begin(m, m_coder, v, v_coder, x) ((void)(m), (void)(v), (void)(x))
#define v_code_compare(x) ((void)(x))

/* GROUP values. */
MO_INLINE void v_code_end(const v_steps *steps, int is_signed, const float *values, v_coder *coder,
                          int order, const v_coding *x, uint8_t *codes)
{
    (void)x;
    mo_encode32_store(steps, &coder->of, values, order, is_signed, codes, &coder->doubts);
}

#endif
