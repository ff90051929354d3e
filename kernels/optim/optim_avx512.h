/* Loads, stores and roundings of the optimizer's AVX-512 forms: 16 or 64 elements as fp32. */
#ifndef MO_KERNELS_OPTIM_OPTIM_AVX512_H
#define MO_KERNELS_OPTIM_OPTIM_AVX512_H

#include "kernels/optim/optim_cpu.h"
#include "kernels/optim/state_codes_avx512.h"

/* Where the hardware's conversion to bf16 differs from the specification: it flushes subnormals
 * (and NaNs are left to the careful way too). */
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
    uint32_t k0 = r->key[0], k1 = r->key[1];
    __m512i block = _mm512_add_epi64(_mm512_set1_epi64((long long)(first / 8)),
                                     _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
    __m512i c0 = block, c1 = _mm512_srli_epi64(block, 32);
    __m512i c2 = _mm512_set1_epi64(r->high[0]), c3 = _mm512_set1_epi64(r->high[1]);
    for (int round = 0; round < 10; round++) {
        __m512i p0 = _mm512_mul_epu32(c0, _mm512_set1_epi64(0xd2511f53));
        __m512i p1 = _mm512_mul_epu32(c2, _mm512_set1_epi64(0xcd9e8d57));
        c0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), c1, _mm512_set1_epi64(k0), 0x96);
        c1 = p1;
        c2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), c3, _mm512_set1_epi64(k1), 0x96);
        c3 = p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    __m512i low = _mm512_mask_blend_epi32(0xaaaa, c0, _mm512_slli_epi64(c1, 32));
    __m512i high = _mm512_mask_blend_epi32(0xaaaa, c2, _mm512_slli_epi64(c3, 32));
    __m512i even = _mm512_unpacklo_epi64(low, high), odd = _mm512_unpackhi_epi64(low, high);
    out[0] = _mm512_permutex2var_epi64(even, _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0), odd);
    out[1] = _mm512_permutex2var_epi64(even, _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4), odd);
}

MO_INLINE __m256i mo_bf16_stochastic(__m512 value, __m256i random)
{
    __m512i u = _mm512_castps_si512(value);
    __m512i a = _mm512_and_si512(u, _mm512_set1_epi32(0x7fffffff));
    __mmask16 inside = _mm512_cmplt_epu32_mask(a, _mm512_set1_epi32(0x7f7f0000));
    __mmask16 nan = _mm512_cmpgt_epu32_mask(a, _mm512_set1_epi32(0x7f800000));
    __m512i r = _mm512_mask_add_epi32(u, inside, u, _mm512_cvtepu16_epi32(random));
    r = _mm512_mask_or_epi32(r, nan, r, _mm512_set1_epi32(0x00400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16));
}

MO_INLINE __m256i mo_f16_stochastic(__m512 value, __m256i random)
{
    __m512i u = _mm512_castps_si512(value), r = _mm512_cvtepu16_epi32(random);
    __m512i a = _mm512_and_si512(u, _mm512_set1_epi32(0x7fffffff));
    __m512i exponent = _mm512_max_epu32(_mm512_srli_epi32(a, 23), _mm512_set1_epi32(1));
    /* a number below 2^-14: its significand in units of 2^-16 quanta, by a shift either way */
    __m512i down = _mm512_sub_epi32(_mm512_set1_epi32(110), exponent),
            zero = _mm512_setzero_si512();
    __mmask16 normal = _mm512_cmpge_epu32_mask(a, _mm512_set1_epi32(0x00800000));
    __m512i whole = _mm512_and_si512(a, _mm512_set1_epi32(0x007fffff));
    whole = _mm512_mask_or_epi32(whole, normal, whole, _mm512_set1_epi32(0x00800000));
    whole = _mm512_sllv_epi32(whole, _mm512_max_epi32(_mm512_sub_epi32(zero, down), zero));
    whole = _mm512_srlv_epi32(whole, _mm512_max_epi32(down, zero));
    __m512i small = _mm512_srli_epi32(_mm512_add_epi32(whole, r), 16);
    __m512i code = _mm512_add_epi32(_mm512_sub_epi32(a, _mm512_set1_epi32(112 << 23)),
                                    _mm512_srli_epi32(r, 3));
    code = _mm512_srli_epi32(code, 13);
    code = _mm512_mask_mov_epi32(code, _mm512_cmplt_epu32_mask(a, _mm512_set1_epi32(113 << 23)),
                                 small);
    code = _mm512_mask_mov_epi32(code, _mm512_cmpge_epu32_mask(a, _mm512_set1_epi32(0x477fe000)),
                                 _mm512_set1_epi32(0x7bff));
    code = _mm512_mask_mov_epi32(code, _mm512_cmpge_epu32_mask(a, _mm512_set1_epi32(0x47800000)),
                                 _mm512_set1_epi32(0x7c00));
    __m512i nan = _mm512_and_si512(_mm512_srli_epi32(a, 13), _mm512_set1_epi32(0x3ff));
    code = _mm512_mask_or_epi32(code, _mm512_cmpgt_epu32_mask(a, _mm512_set1_epi32(0x7f800000)),
                                nan, _mm512_set1_epi32(0x7e00));
    __m512i sign = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x8000));
    return _mm512_cvtepi32_epi16(_mm512_or_si512(code, sign));
}

/* Stochastic; first: the index in the tensor of element i, a multiple of 64. */
MO_INLINE void mo_store64_stochastic(void *data, uint64_t i, int32_t dtype, const mo_f32x64 *x,
                                     const mo_random_stream *random, uint64_t first)
{
    uint16_t *halves = (uint16_t *)data + i;
    __m512i bits[2];
    mo_random64(random, first, bits);
    for (int k = 0; k < 4; k++) {
        __m256i r =
            k & 1 ? _mm512_extracti64x4_epi64(bits[k / 2], 1) : _mm512_castsi512_si256(bits[k / 2]);
        __m256i codes = dtype == MO_DTYPE_BF16 ? mo_bf16_stochastic(x->part[k], r)
                                               : mo_f16_stochastic(x->part[k], r);
        _mm256_storeu_si256((__m256i *)(void *)(halves + 16 * k), codes);
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

/* mo_rule_update of 16 elements, AdamW. bounded: v is kept finite and NaNs become the one that is
 * stored, else both are up to the caller. */
MO_INLINE __m512 mo_update16(const mo_coef16 *c, __m512 g, __m512 p, __m512 *m, __m512 *v,
                             int bounded)
{
    __m512 h = _mm512_mul_ps(g, c->factor);
    *m = _mm512_fmadd_ps(c->beta1, *m, _mm512_mul_ps(c->one_minus_beta1, h));
    *v = _mm512_fmadd_ps(c->beta2, *v, _mm512_mul_ps(_mm512_mul_ps(c->one_minus_beta2, h), h));
    if (bounded) /* min returns its second operand where one is NaN */
        *v = _mm512_min_ps(_mm512_set1_ps(0x1.fffffep127f), *v);
    __m512 u = _mm512_div_ps(*m, _mm512_add_ps(_mm512_sqrt_ps(*v), c->eps));
    p = _mm512_fmadd_ps(c->rate, u, _mm512_fmadd_ps(c->decay, p, p));
    if (!bounded)
        return p;
    *m = mo_one_nan16(*m);
    *v = mo_one_nan16(*v);
    return mo_one_nan16(p);
}

#endif
