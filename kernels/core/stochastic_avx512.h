/*
 * Stochastic rounding to f16 and bf16 for the AVX-512 forms: random bits (numerics.h has the
 * specification) and roundings of 16 values as fp32 bits, whose codes come out in 32-bit lanes.
 */
#ifndef MO_KERNELS_CORE_STOCHASTIC_AVX512_H
#define MO_KERNELS_CORE_STOCHASTIC_AVX512_H

#include "kernels/core/vector_io_avx512.h"

MO_INLINE __m512i mo_all16(uint32_t value)
{
    return _mm512_set1_epi32((int)value);
}

MO_INLINE __m512i mo_without_sign16(__m512i u)
{
    return _mm512_and_si512(u, mo_all16(0x7fffffffu));
}

MO_INLINE __mmask16 mo_above16(__m512i a, uint32_t limit)
{
    return _mm512_cmpgt_epi32_mask(a, mo_all16(limit));
}

/* --- random bits ----------------------------------------------------------------------------- */

/* Ten rounds on eight blocks; each word of a block in the low half of a 64-bit lane (the upper
 * halves hold what the multiplication ignores). */
MO_INLINE void mo_philox16(__m512i c[4], uint32_t k0, uint32_t k1)
{
    const __m512i m0 = _mm512_set1_epi64(0xd2511f53), m1 = _mm512_set1_epi64(0xcd9e8d57);
    for (int round = 0; round < 10; round++) {
        __m512i p0 = _mm512_mul_epu32(c[0], m0), p1 = _mm512_mul_epu32(c[2], m1);
        c[0] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), c[1], mo_all16(k0), 0x96);
        c[1] = p1;
        c[2] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), c[3], mo_all16(k1), 0x96);
        c[3] = p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
}

/* Halfwords 16 k to 16 k + 15 of those in `random`, each in a lane. */
MO_INLINE __m512i mo_widen_bits16(const __m512i *random, int k)
{
    __m256i half = k & 1 ? _mm512_extracti64x4_epi64(random[k >> 1], 1)
                         : _mm512_castsi512_si256(random[k >> 1]);
    return _mm512_cvtepu16_epi32(half);
}

/* --- roundings ------------------------------------------------------------------------------- */

/* mo_round_stochastic. Subnormals: the number of 2^-16 quanta, cut, plus the random bits. */
MO_INLINE __m512i mo_round_stochastic16(__m512i a, uint32_t mantissa, uint32_t bias, __m512i random)
{
    uint32_t shift = 23 - mantissa, scale = (142 + bias + mantissa) << 23;
    __m512i noise = shift < 16 ? _mm512_srli_epi32(random, 16 - (shift & 15))
                               : _mm512_slli_epi32(random, shift & 15);
    __m512i sum = _mm512_add_epi32(_mm512_sub_epi32(a, mo_all16((127 - bias) << 23)), noise);
    __m512i normal = _mm512_srli_epi32(sum, shift);
    __m512 parts = _mm512_mul_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(mo_all16(scale)));
    __m512i subnormal = _mm512_srli_epi32(_mm512_add_epi32(_mm512_cvttps_epi32(parts), random), 16);
    return _mm512_mask_mov_epi32(subnormal, mo_above16(a, ((128 - bias) << 23) - 1), normal);
}

/* The codes are in the upper halves of the lanes. */
MO_INLINE __m512i mo_bf16_stochastic16(__m512i u, __m512i random)
{
    __m512i a = mo_without_sign16(u);
    __m512i rounded =
        _mm512_mask_add_epi32(u, _mm512_cmplt_epi32_mask(a, mo_all16(0x7f7f0000u)), u, random);
    return _mm512_mask_or_epi32(rounded, mo_above16(a, MO_F32_INF_BITS), u,
                                mo_all16(MO_F32_QUIET_BIT));
}

MO_INLINE __m512i mo_f16_stochastic16(__m512i u, __m512i random)
{
    __m512i a = mo_without_sign16(u);
    __m512i sign = _mm512_and_si512(_mm512_srli_epi32(u, 16), mo_all16(0x8000));
    __m512i code = mo_round_stochastic16(a, 10, 15, random);
    __m512i payload = _mm512_and_si512(_mm512_srli_epi32(a, 13), mo_all16(0x3ff));
    code = _mm512_mask_mov_epi32(code, mo_above16(a, 0x477fdfffu), mo_all16(0x7bff));
    code = _mm512_mask_mov_epi32(code, mo_above16(a, 0x477fffffu), mo_all16(0x7c00));
    code = _mm512_mask_or_epi32(code, mo_above16(a, MO_F32_INF_BITS), payload, mo_all16(0x7e00));
    return _mm512_or_si512(code, sign);
}

#endif
