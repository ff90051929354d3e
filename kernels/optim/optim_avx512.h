/* Loads, stores and roundings of the optimizer's AVX-512 forms: 16 or 64 elements as fp32. */
#ifndef MO_KERNELS_OPTIM_OPTIM_AVX512_H
#define MO_KERNELS_OPTIM_OPTIM_AVX512_H

#include "kernels/core/vector_avx512.h"
#include "kernels/core/vector_stochastic.h"
#include "kernels/optim/optim_cpu.h"
#include "kernels/optim/state_codes_avx512.h"
#include "kernels/optim/step_simd_rules.h"

/* Where the hardware's conversion to bf16 differs from the specification: it flushes subnormals
 * (and NaNs take the careful path too). */
MO_INLINE __mmask16 mo_bf16_odd(__m512 value)
{
    return _mm512_fpclass_ps_mask(value, 0xa1);
}

/* Nearest even, with values that are not mo_bf16_odd. */
MO_INLINE void mo_store64_plain(void *data, uint64_t i, int32_t dtype, const mo_f32x64 *x)
{
#if defined(__AVX512BF16__)
    if (dtype == MO_DTYPE_BF16) {
        uint16_t *halves = (uint16_t *)data + i;
        _mm512_storeu_si512(halves, (__m512i)_mm512_cvtne2ps_pbh(x->part[1], x->part[0]));
        _mm512_storeu_si512(halves + 32, (__m512i)_mm512_cvtne2ps_pbh(x->part[3], x->part[2]));
        return;
    }
#endif
    for (uint64_t k = 0; k < 4; k++)
        mo_store16(data, i + 16 * k, dtype, x->part[k]);
}

/* Nearest even. */
MO_INLINE void mo_store64(void *data, uint64_t i, int32_t dtype, const mo_f32x64 *x)
{
    for (uint64_t k = 0; k < 4; k++)
        mo_store16(data, i + 16 * k, dtype, x->part[k]);
}

/* The random bits of 64 elements from `first` (a multiple of 64) on, 32 halfwords a vector: eight
 * Philox blocks, one in each 64-bit lane. */
MO_INLINE void mo_random64(const mo_random_stream *r, uint64_t first, __m512i out[2])
{
    __m512i block = _mm512_add_epi64(_mm512_set1_epi64((long long)(first / 8)),
                                     _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
    __m512i c[1][4] = {{block, _mm512_srli_epi64(block, 32), _mm512_set1_epi64(r->high[0]),
                        _mm512_set1_epi64(r->high[1])}};
    mo_philox_lanes(c, 1, r->key);
    __m512i low = _mm512_mask_blend_epi32(0xaaaa, c[0][0], _mm512_slli_epi64(c[0][1], 32));
    __m512i high = _mm512_mask_blend_epi32(0xaaaa, c[0][2], _mm512_slli_epi64(c[0][3], 32));
    __m512i even = _mm512_unpacklo_epi64(low, high), odd = _mm512_unpackhi_epi64(low, high);
    out[0] = _mm512_permutex2var_epi64(even, _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0), odd);
    out[1] = _mm512_permutex2var_epi64(even, _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4), odd);
}

/* Stochastic; first: the index in the tensor of element i, a multiple of 64. */
MO_INLINE void mo_store64_stochastic(void *data, uint64_t i, int32_t dtype, const mo_f32x64 *x,
                                     const mo_random_stream *random, uint64_t first)
{
    uint16_t *halves = (uint16_t *)data + i;
    __m512i bits[2];
    mo_random64(random, first, bits);
    for (int k = 0; k < 4; k++) {
        __m512i u = _mm512_castps_si512(x->part[k]), r = mo_random_lane(bits, k);
        __m512i code = dtype == MO_DTYPE_BF16 ? v_srl(mo_bf16_stochastic_lanes(u, r), 16)
                                              : mo_f16_stochastic_lanes(u, r);
        _mm256_storeu_si256((__m256i *)(void *)(halves + 16 * k), _mm512_cvtepi32_epi16(code));
    }
}

/* The update of AdamW or Adam, 16 elements; the caller handles values that are not finite. */
MO_INLINE __m512 mo_update16(uint32_t rule, const mo_lane_coef *c, __m512 g, __m512 p, __m512 *m,
                             __m512 *v)
{
    __m512 h = _mm512_mul_ps(g, c->factor);
    if (rule == MO_RULE_ADAM)
        h = _mm512_fmadd_ps(c->decay, p, h);
    *m = _mm512_fmadd_ps(c->beta1, *m, _mm512_mul_ps(c->one_minus_beta1, h));
    *v = _mm512_fmadd_ps(c->beta2, *v, _mm512_mul_ps(_mm512_mul_ps(c->one_minus_beta2, h), h));
    __m512 u = _mm512_div_ps(*m, _mm512_add_ps(_mm512_sqrt_ps(*v), c->eps));
    return _mm512_fmadd_ps(c->rate, u, rule == MO_RULE_ADAM ? p : _mm512_fmadd_ps(c->decay, p, p));
}

/* --- what step_simd.h needs ------------------------------------------------------------------ */

MO_INLINE void v_decode_8bit(int is_signed, const uint8_t *codes, float scale, float *values,
                             uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 64) {
        mo_f32x64 x = is_signed ? mo_decode64_signed(codes + i, v_set(scale))
                                : mo_decode64_unsigned(codes + i, v_set(scale));
        for (int k = 0; k < 4; k++)
            v_store(values + i + 16 * (uint32_t)k, x.part[k]);
    }
}

/* n is MO_BLOCK_SIZE. `values` are aligned and may be changed. The stages of coding take a signed
 * and an unsigned state; the compiler drops the unused half. */
MO_INLINE void v_encode_8bit(int is_signed, float *values, const mo_block_scale *scale,
                             uint8_t *codes, uint32_t n)
{
    float factor = mo_normalize_block(values, scale, is_signed);
    for (uint32_t i = 0; i < n; i += 64) {
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

#endif
