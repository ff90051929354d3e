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

#define mo_lane_table int /* tables would be slower here */
#define mo_lane_table_of(format) 0
#define v_look_companded(format, table, codes, scale, x, odd) ((void)(table), 0)

#endif
