/*
 * Stochastic rounding to f16 and bf16 for the AVX2 forms: random bits (numerics.h has the
 * specification) and roundings of 8 values as fp32 bits, whose codes come out in 32-bit lanes.
 */
#ifndef MO_KERNELS_CORE_STOCHASTIC_AVX2_H
#define MO_KERNELS_CORE_STOCHASTIC_AVX2_H

#include "kernels/core/vector_io_avx2.h"

MO_INLINE __m256i mo_all8(uint32_t value)
{
    return _mm256_set1_epi32((int)value);
}

MO_INLINE __m256i mo_without_sign8(__m256i u)
{
    return _mm256_and_si256(u, mo_all8(0x7fffffffu));
}

MO_INLINE __m256i mo_above8(__m256i a, uint32_t limit)
{
    return _mm256_cmpgt_epi32(a, mo_all8(limit));
}

MO_INLINE __m256i mo_choose8(__m256i no, __m256i yes, __m256i condition)
{
    return _mm256_blendv_epi8(no, yes, condition);
}

/* --- random bits ----------------------------------------------------------------------------- */

/* Ten rounds on four blocks; each word of a block in the low half of a 64-bit lane (the upper
 * halves hold what the multiplication ignores). */
MO_INLINE void mo_philox8(__m256i c[4], uint32_t k0, uint32_t k1)
{
    const __m256i m0 = _mm256_set1_epi64x(0xd2511f53), m1 = _mm256_set1_epi64x(0xcd9e8d57);
    for (int round = 0; round < 10; round++) {
        __m256i p0 = _mm256_mul_epu32(c[0], m0), p1 = _mm256_mul_epu32(c[2], m1);
        c[0] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c[1]), mo_all8(k0));
        c[1] = p1;
        c[2] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c[3]), mo_all8(k1));
        c[3] = p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
}

/* The random halfwords of 64 elements from `element` (a multiple of 64) on, 16 a vector. The lanes
 * take the blocks in such an order that the 4 x 4 transposition below leaves them sorted. */
MO_INLINE void mo_random_bits8(const mo_random_stream *stream, uint64_t element, __m256i r[4])
{
    uint64_t block = element / 8;
    __m256i base = _mm256_set1_epi64x((long long)block);
    __m256i a[4], b[4], w[4];
    a[0] = _mm256_add_epi64(base, _mm256_setr_epi64x(0, 4, 1, 5));
    b[0] = _mm256_add_epi64(base, _mm256_setr_epi64x(2, 6, 3, 7));
    a[1] = b[1] = _mm256_set1_epi64x((long long)(block >> 32));
    a[2] = b[2] = _mm256_set1_epi64x(stream->high[0]);
    a[3] = b[3] = _mm256_set1_epi64x(stream->high[1]);
    mo_philox8(a, stream->key[0], stream->key[1]);
    mo_philox8(b, stream->key[0], stream->key[1]);
    for (int k = 0; k < 4; k++)
        w[k] = _mm256_blend_epi32(a[k], _mm256_slli_epi64(b[k], 32), 0xaa);
    __m256i x = _mm256_unpacklo_epi32(w[0], w[1]), y = _mm256_unpacklo_epi32(w[2], w[3]);
    __m256i z = _mm256_unpackhi_epi32(w[0], w[1]), t = _mm256_unpackhi_epi32(w[2], w[3]);
    r[0] = _mm256_unpacklo_epi64(x, y);
    r[1] = _mm256_unpackhi_epi64(x, y);
    r[2] = _mm256_unpacklo_epi64(z, t);
    r[3] = _mm256_unpackhi_epi64(z, t);
}

/* Halfwords 8 k to 8 k + 7 of those in `random`, each in a lane. */
MO_INLINE __m256i mo_widen_bits8(const __m256i *random, int k)
{
    __m128i half = k & 1 ? _mm256_extracti128_si256(random[k >> 1], 1)
                         : _mm256_castsi256_si128(random[k >> 1]);
    return _mm256_cvtepu16_epi32(half);
}

/* --- roundings ------------------------------------------------------------------------------- */

/* mo_round_stochastic. Subnormals: the number of 2^-16 quanta, cut, plus the random bits. */
MO_INLINE __m256i mo_round_stochastic8(__m256i a, uint32_t mantissa, uint32_t bias, __m256i random)
{
    int shift = 23 - (int)mantissa;
    uint32_t scale = (142 + bias + mantissa) << 23;
    __m256i noise = shift < 16 ? _mm256_srli_epi32(random, 16 - (shift & 15))
                               : _mm256_slli_epi32(random, shift & 15);
    __m256i sum = _mm256_add_epi32(_mm256_sub_epi32(a, mo_all8((127 - bias) << 23)), noise);
    __m256i normal = _mm256_srli_epi32(sum, shift);
    __m256 parts = _mm256_mul_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(mo_all8(scale)));
    __m256i subnormal = _mm256_srli_epi32(_mm256_add_epi32(_mm256_cvttps_epi32(parts), random), 16);
    return mo_choose8(subnormal, normal, mo_above8(a, ((128 - bias) << 23) - 1));
}

/* NaNs of bf16, whose codes are the upper halves of the lanes, keep u's upper half. */
MO_INLINE __m256i mo_bf16_quiet_nan8(__m256i rounded, __m256i u)
{
    __m256i quiet = _mm256_or_si256(u, mo_all8(MO_F32_QUIET_BIT));
    return mo_choose8(rounded, quiet, mo_above8(mo_without_sign8(u), MO_F32_INF_BITS));
}

MO_INLINE __m256i mo_bf16_stochastic8(__m256i u, __m256i random)
{
    __m256i noise = _mm256_andnot_si256(mo_above8(mo_without_sign8(u), 0x7f7effffu), random);
    return _mm256_srli_epi32(mo_bf16_quiet_nan8(_mm256_add_epi32(u, noise), u), 16);
}

MO_INLINE __m256i mo_f16_stochastic8(__m256i u, __m256i random)
{
    __m256i a = mo_without_sign8(u);
    __m256i sign = _mm256_and_si256(_mm256_srli_epi32(u, 16), mo_all8(0x8000));
    __m256i code = mo_round_stochastic8(a, 10, 15, random);
    __m256i payload = _mm256_and_si256(_mm256_srli_epi32(a, 13), mo_all8(0x3ff));
    code = mo_choose8(code, mo_all8(0x7bff), mo_above8(a, 0x477fdfffu));
    code = mo_choose8(code, mo_all8(0x7c00), mo_above8(a, 0x477fffffu));
    code =
        mo_choose8(code, _mm256_or_si256(payload, mo_all8(0x7e00)), mo_above8(a, MO_F32_INF_BITS));
    return _mm256_or_si256(code, sign);
}

#endif
