/* Loads, stores and roundings of the optimizer's AVX-512 forms: 16 or 64 elements as fp32. */
#ifndef MO_KERNELS_OPTIM_OPTIM_AVX512_H
#define MO_KERNELS_OPTIM_OPTIM_AVX512_H

#include "kernels/core/vector_avx512.h"
#include "kernels/core/vector_stochastic.h"
#include "kernels/optim/optim_cpu.h"
#include "kernels/optim/state_codes_avx512.h"

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
    __m512i c[4] = {block, _mm512_srli_epi64(block, 32), _mm512_set1_epi64(r->high[0]),
                    _mm512_set1_epi64(r->high[1])};
    mo_philox_lanes(c, r->key[0], r->key[1]);
    __m512i low = _mm512_mask_blend_epi32(0xaaaa, c[0], _mm512_slli_epi64(c[1], 32));
    __m512i high = _mm512_mask_blend_epi32(0xaaaa, c[2], _mm512_slli_epi64(c[3], 32));
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

/* The coefficients in every lane. */
typedef struct mo_coef16 {
    __m512 beta1, one_minus_beta1, beta2, one_minus_beta2, decay, rate, eps, factor;
} mo_coef16;

MO_INLINE mo_coef16 mo_coef16_of(const mo_rule_coef *c)
{
    return (mo_coef16){
        _mm512_set1_ps(c->beta1), _mm512_set1_ps(c->one_minus_beta1),
        _mm512_set1_ps(c->beta2), _mm512_set1_ps(c->one_minus_beta2),
        _mm512_set1_ps(c->decay), _mm512_set1_ps(c->rate),
        _mm512_set1_ps(c->eps),   _mm512_set1_ps(c->factor),
    };
}

/* mo_adamw_update of 16 elements; the caller handles values that are not finite. */
MO_INLINE __m512 mo_update16(const mo_coef16 *c, __m512 g, __m512 p, __m512 *m, __m512 *v)
{
    __m512 h = _mm512_mul_ps(g, c->factor);
    *m = _mm512_fmadd_ps(c->beta1, *m, _mm512_mul_ps(c->one_minus_beta1, h));
    *v = _mm512_fmadd_ps(c->beta2, *v, _mm512_mul_ps(_mm512_mul_ps(c->one_minus_beta2, h), h));
    __m512 u = _mm512_div_ps(*m, _mm512_add_ps(_mm512_sqrt_ps(*v), c->eps));
    return _mm512_fmadd_ps(c->rate, u, _mm512_fmadd_ps(c->decay, p, p));
}

#endif
