/* Loads, stores, codes and the update, 8 elements at a time, for AVX2 with FMA and F16C. The codes
 * go by gathers: the map by code, the candidate code by the upper half of |y|, its threshold. */
#ifndef MO_KERNELS_OPTIM_OPTIM_AVX2_H
#define MO_KERNELS_OPTIM_OPTIM_AVX2_H

#include "kernels/core/stochastic_avx2.h"
#include "kernels/optim/optim_cpu.h"

/* Parameters of 16 bits, rounded stochastically: n elements, a multiple of 64, from `at` of the
 * span on, a multiple of 64. */
MO_INLINE void mo_write_stochastic(const mo_optim_span *s, uint64_t at, uint64_t n,
                                   const float *values)
{
    for (uint64_t i = 0; i < n; i += 64) {
        uint16_t *halves = (uint16_t *)s->parameter + at + i;
        __m256i bits[4];
        mo_random_bits8(&s->random, s->start + at + i, bits);
        for (int k = 0; k < 8; k++) {
            __m256i u = _mm256_castps_si256(_mm256_loadu_ps(values + i + 8 * (uint64_t)k));
            __m256i random = mo_widen_bits8(bits, k);
            __m256i code = s->parameter_dtype == MO_DTYPE_BF16 ? mo_bf16_stochastic8(u, random)
                                                               : mo_f16_stochastic8(u, random);
            _mm_storeu_si128(
                (__m128i *)(void *)(halves + 8 * k),
                _mm_packus_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1)));
        }
    }
}

/* The parameter, to nearest, and its copy; i is relative to the span and a multiple of 8. */
MO_INLINE void mo_optim_store8(const mo_optim_span *s, uint64_t i, int32_t p_dtype, __m256 value)
{
    mo_store8(s->parameter, i, p_dtype, value);
    if (s->copy != NULL)
        mo_store8(s->copy, i, s->copy_dtype, value);
}

MO_INLINE __m256i mo_codes8(const uint8_t *codes)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)codes));
}

MO_INLINE __m256 mo_decode8(const uint32_t *map, const uint8_t *codes, __m256 absmax)
{
    __m256i bits = _mm256_i32gather_epi32((const int *)(const void *)map, mo_codes8(codes), 4);
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), absmax);
}

/* The magnitude codes of 8 values given as bits without sign. */
MO_INLINE __m256i mo_magnitude8(const uint8_t *cells, const uint32_t *threshold, int umin,
                                __m256i bits)
{
    __m256i u = _mm256_max_epi32(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(umin));
    u = _mm256_sub_epi32(u, _mm256_set1_epi32(umin));
    __m256i code = _mm256_i32gather_epi32((const int *)(const void *)cells, u, 1);
    code = _mm256_and_si256(code, _mm256_set1_epi32(0xff));
    __m256i t = _mm256_i32gather_epi32((const int *)(const void *)threshold, code, 4);
    return _mm256_add_epi32(code, _mm256_cmpgt_epi32(t, bits));
}

MO_INLINE __m256i mo_encode8_signed(__m256 y)
{
    __m256i bits = _mm256_castps_si256(y), sign = _mm256_srai_epi32(bits, 31);
    __m256i code = mo_magnitude8(mo_cell_signed, mo_threshold_signed, MO_SIGNED_UMIN,
                                 _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
    code = _mm256_sub_epi32(_mm256_xor_si256(code, sign), sign);
    code = _mm256_add_epi32(code, _mm256_set1_epi32(MO_SIGNED_ZERO));
    return _mm256_max_epi32(code, _mm256_setzero_si256());
}

/* x >= 0 without -0; y its normalised value. */
MO_INLINE __m256i mo_encode8_unsigned(__m256 x, __m256 y)
{
    __m256i least = _mm256_min_epu32(_mm256_castps_si256(x), _mm256_set1_epi32(1));
    __m256i code = mo_magnitude8(mo_cell_unsigned, mo_threshold_unsigned, MO_UNSIGNED_UMIN,
                                 _mm256_castps_si256(y));
    return _mm256_max_epi32(code, least);
}

MO_INLINE void mo_store_codes8(uint8_t *codes, __m256i code)
{
    __m128i words =
        _mm_packus_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
    _mm_storel_epi64((__m128i *)(void *)codes, _mm_packus_epi16(words, words));
}

/* Codes of one finite block. */
MO_INLINE void mo_quantize_block8(const float *x, const mo_block_scale *scale, int is_signed,
                                  uint8_t *codes)
{
    __m256 prescale = _mm256_set1_ps(scale->prescale), inverse = _mm256_set1_ps(scale->inverse);
    for (int i = 0; i < MO_BLOCK_SIZE; i += 8) {
        __m256 value = _mm256_loadu_ps(x + i);
        __m256 y = _mm256_mul_ps(_mm256_mul_ps(value, prescale), inverse);
        mo_store_codes8(codes + i,
                        is_signed ? mo_encode8_signed(y) : mo_encode8_unsigned(value, y));
    }
}

MO_INLINE uint32_t mo_largest8(__m256i bits)
{
    uint32_t lanes[8], largest = 0;
    _mm256_storeu_si256((__m256i *)(void *)lanes, bits);
    for (int i = 0; i < 8; i++)
        largest = lanes[i] > largest ? lanes[i] : largest;
    return largest;
}

/* The coefficients in every lane. */
typedef struct mo_coef8 {
    __m256 beta1, one_minus_beta1, beta2, one_minus_beta2, decay, rate, eps, factor;
} mo_coef8;

MO_INLINE mo_coef8 mo_coef8_of(const mo_rule_coef *c)
{
    return (mo_coef8){
        _mm256_set1_ps(c->beta1), _mm256_set1_ps(c->one_minus_beta1),
        _mm256_set1_ps(c->beta2), _mm256_set1_ps(c->one_minus_beta2),
        _mm256_set1_ps(c->decay), _mm256_set1_ps(c->rate),
        _mm256_set1_ps(c->eps),   _mm256_set1_ps(c->factor),
    };
}

/* mo_rule_update of 8 elements, AdamW. */
MO_INLINE __m256 mo_update8(const mo_coef8 *c, __m256 g, __m256 p, __m256 *m, __m256 *v)
{
    __m256 h = _mm256_mul_ps(g, c->factor);
    *m = _mm256_fmadd_ps(c->beta1, *m, _mm256_mul_ps(c->one_minus_beta1, h));
    *v = _mm256_fmadd_ps(c->beta2, *v, _mm256_mul_ps(_mm256_mul_ps(c->one_minus_beta2, h), h));
    /* min returns its second operand where one is NaN */
    *v = _mm256_min_ps(_mm256_set1_ps(0x1.fffffep127f), *v);
    __m256 u = _mm256_div_ps(*m, _mm256_add_ps(_mm256_sqrt_ps(*v), c->eps));
    *m = mo_one_nan8(*m);
    *v = mo_one_nan8(*v);
    return mo_one_nan8(_mm256_fmadd_ps(c->rate, u, _mm256_fmadd_ps(c->decay, p, p)));
}

#endif
