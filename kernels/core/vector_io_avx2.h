/* Eight elements of f32, f16 or bf16 as fp32 and back, for the AVX2 forms. Callers pass a constant
 * type, so the choice is made by the compiler. */
#ifndef MO_KERNELS_CORE_VECTOR_IO_AVX2_H
#define MO_KERNELS_CORE_VECTOR_IO_AVX2_H

#include "kernels/core/numerics.h"

#include <immintrin.h>

#define MO_INLINE static inline __attribute__((always_inline))

MO_INLINE __m256 mo_load8(const void *data, uint64_t i, int32_t dtype)
{
    if (dtype == MO_DTYPE_F32)
        return _mm256_loadu_ps((const float *)data + i);
    __m128i half = _mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)data + i));
    if (dtype == MO_DTYPE_BF16)
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    return _mm256_cvtph_ps(half);
}

/* Nearest even in integers; NaN keeps its upper bits and becomes quiet. */
MO_INLINE __m128i mo_bf16x8(__m256 value)
{
    __m256i u = _mm256_castps_si256(value);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x00400000));
    r = _mm256_blendv_epi8(r, quiet,
                           _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q)));
    r = _mm256_srli_epi32(r, 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}

/* Rounds to nearest even. */
MO_INLINE void mo_store8(void *data, uint64_t i, int32_t dtype, __m256 value)
{
    __m128i *halves = (__m128i *)(void *)((uint16_t *)data + i);
    if (dtype == MO_DTYPE_F32)
        _mm256_storeu_ps((float *)data + i, value);
    else if (dtype == MO_DTYPE_BF16)
        _mm_storeu_si128(halves, mo_bf16x8(value));
    else
        _mm_storeu_si128(halves, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

/* Whatever NaN an operation made becomes the one that is stored. */
MO_INLINE __m256 mo_one_nan8(__m256 x)
{
    __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32((int)MO_F32_NAN_BITS));
    return _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

#endif
