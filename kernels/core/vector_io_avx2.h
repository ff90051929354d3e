/* Eight elements of f32, f16 or bf16 as f32 and back: for the AVX2 forms that work on gradients. */
#ifndef MO_KERNELS_GRADIENTS_AVX2_H
#define MO_KERNELS_GRADIENTS_AVX2_H

#include "kernels/core/numerics.h"

#include <immintrin.h>

#define MO_AVX2_INLINE static inline __attribute__((always_inline))

MO_AVX2_INLINE __m128i mo_bf16_codes_8(__m256i u)
{
    __m256i magnitude = _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff));
    __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), lsb);
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    rounded = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0xd8);
    return _mm256_castsi256_si128(packed);
}

/* The bits of eight f32. */
MO_AVX2_INLINE __m256i mo_load_gradients_8(const unsigned char *at, uint32_t dtype)
{
    if (dtype == MO_DTYPE_F32)
        return _mm256_loadu_si256((const __m256i *)(const void *)at);
    __m128i codes = _mm_loadu_si128((const __m128i *)(const void *)at);
    if (dtype == MO_DTYPE_F16)
        return _mm256_castps_si256(_mm256_cvtph_ps(codes));
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(codes), 16);
}

MO_AVX2_INLINE void mo_store_gradients_8(unsigned char *at, __m256i u, uint32_t dtype)
{
    if (dtype == MO_DTYPE_F32) {
        _mm256_storeu_si256((__m256i *)(void *)at, u);
        return;
    }
    __m128i codes = dtype == MO_DTYPE_F16
                        ? _mm256_cvtps_ph(_mm256_castsi256_ps(u), _MM_FROUND_TO_NEAREST_INT)
                        : mo_bf16_codes_8(u);
    _mm_storeu_si128((__m128i *)(void *)at, codes);
}

#endif
