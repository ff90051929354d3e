/* Loads, stores, codes and the update, 8 elements at a time, for AVX2 with FMA and F16C. The codes
 * go by gathers: the map by code, the candidate code by the upper half of |y|, its threshold. */
#ifndef MO_KERNELS_OPTIM_OPTIM_AVX2_H
#define MO_KERNELS_OPTIM_OPTIM_AVX2_H

#include "kernels/core/vector_io_avx2.h"
#include "kernels/optim/optim_cpu.h"

/* The random bits of 32 elements from `first` (a multiple of 8) on, 8 halfwords a vector: four
 * Philox blocks, one in each 64-bit lane. */
MO_INLINE void mo_random32(const mo_random_stream *r, uint64_t first, __m128i out[4])
{
    uint32_t k0 = r->key[0], k1 = r->key[1];
    __m256i c0 =
        _mm256_add_epi64(_mm256_set1_epi64x((long long)(first / 8)), _mm256_set_epi64x(3, 2, 1, 0));
    __m256i c1 = _mm256_srli_epi64(c0, 32);
    __m256i c2 = _mm256_set1_epi64x(r->high[0]), c3 = _mm256_set1_epi64x(r->high[1]);
    for (int round = 0; round < 10; round++) {
        __m256i p0 = _mm256_mul_epu32(c0, _mm256_set1_epi64x(0xd2511f53));
        __m256i p1 = _mm256_mul_epu32(c2, _mm256_set1_epi64x(0xcd9e8d57));
        c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1),
                              _mm256_set1_epi64x(k0));
        c1 = p1;
        c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3),
                              _mm256_set1_epi64x(k1));
        c3 = p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    __m256i low = _mm256_blend_epi32(c0, _mm256_slli_epi64(c1, 32), 0xaa);
    __m256i high = _mm256_blend_epi32(c2, _mm256_slli_epi64(c3, 32), 0xaa);
    __m256i even = _mm256_unpacklo_epi64(low, high), odd = _mm256_unpackhi_epi64(low, high);
    out[0] = _mm256_castsi256_si128(even);
    out[1] = _mm256_castsi256_si128(odd);
    out[2] = _mm256_extracti128_si256(even, 1);
    out[3] = _mm256_extracti128_si256(odd, 1);
}

MO_INLINE __m256i mo_blend8(__m256i a, __m256i b, __m256i mask)
{
    return _mm256_blendv_epi8(a, b, mask);
}

/* Magnitudes (no sign bit) from `least` on. */
MO_INLINE __m256i mo_from8(__m256i a, int least)
{
    return _mm256_cmpgt_epi32(a, _mm256_set1_epi32(least - 1));
}

MO_INLINE __m256i mo_bf16_stochastic8(__m256i u, __m256i a, __m256i random)
{
    __m256i code = _mm256_add_epi32(u, _mm256_andnot_si256(mo_from8(a, 0x7f7f0000), random));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x00400000));
    return _mm256_srli_epi32(mo_blend8(code, quiet, mo_from8(a, 0x7f800001)), 16);
}

MO_INLINE __m256i mo_f16_stochastic8(__m256i u, __m256i a, __m256i random)
{
    __m256i exponent = _mm256_max_epi32(_mm256_srli_epi32(a, 23), _mm256_set1_epi32(1));
    /* a number below 2^-14: its significand in units of 2^-16 quanta, by a shift either way */
    __m256i down = _mm256_sub_epi32(_mm256_set1_epi32(110), exponent),
            zero = _mm256_setzero_si256();
    __m256i whole = _mm256_and_si256(a, _mm256_set1_epi32(0x007fffff));
    __m256i hidden = _mm256_and_si256(mo_from8(a, 0x00800000), _mm256_set1_epi32(0x00800000));
    whole = _mm256_or_si256(whole, hidden);
    whole = _mm256_sllv_epi32(whole, _mm256_max_epi32(_mm256_sub_epi32(zero, down), zero));
    whole = _mm256_srlv_epi32(whole, _mm256_max_epi32(down, zero));
    __m256i small = _mm256_srli_epi32(_mm256_add_epi32(whole, random), 16);
    __m256i code = _mm256_add_epi32(_mm256_sub_epi32(a, _mm256_set1_epi32(112 << 23)),
                                    _mm256_srli_epi32(random, 3));
    code = mo_blend8(small, _mm256_srli_epi32(code, 13), mo_from8(a, 113 << 23));
    code = mo_blend8(code, _mm256_set1_epi32(0x7bff), mo_from8(a, 0x477fe000));
    code = mo_blend8(code, _mm256_set1_epi32(0x7c00), mo_from8(a, 0x47800000));
    __m256i nan = _mm256_and_si256(_mm256_srli_epi32(a, 13), _mm256_set1_epi32(0x3ff));
    nan = _mm256_or_si256(nan, _mm256_set1_epi32(0x7e00));
    code = mo_blend8(code, nan, mo_from8(a, 0x7f800001));
    return _mm256_or_si256(code,
                           _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x8000)));
}

/* Parameters of 16 bits, rounded stochastically: n elements, a multiple of 32, from `at` of the
 * span on. */
MO_INLINE void mo_write_stochastic(const mo_optim_span *s, uint64_t at, uint64_t n,
                                   const float *values)
{
    for (uint64_t i = 0; i < n; i += 32) {
        uint16_t *halves = (uint16_t *)s->parameter + at + i;
        __m128i bits[4];
        mo_random32(&s->random, s->start + at + i, bits);
        for (int k = 0; k < 4; k++) {
            __m256i u = _mm256_castps_si256(_mm256_loadu_ps(values + i + 8 * (uint64_t)k));
            __m256i a = _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff));
            __m256i random = _mm256_cvtepu16_epi32(bits[k]);
            __m256i code = s->parameter_dtype == MO_DTYPE_BF16 ? mo_bf16_stochastic8(u, a, random)
                                                               : mo_f16_stochastic8(u, a, random);
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
