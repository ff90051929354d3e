/* Sixteen elements of f32, f16 or bf16 as fp32 and back, for the AVX-512 forms. Callers pass a
 * constant type, so the choice is made by the compiler. */
#ifndef MO_KERNELS_CORE_VECTOR_IO_AVX512_H
#define MO_KERNELS_CORE_VECTOR_IO_AVX512_H

#include "kernels/core/numerics.h"

#include <immintrin.h>

#define MO_INLINE static inline __attribute__((always_inline))

MO_INLINE __m512 mo_load16(const void *data, uint64_t i, int32_t dtype)
{
    const uint16_t *halves = data;
    if (dtype == MO_DTYPE_F32)
        return _mm512_loadu_ps((const float *)data + i);
    __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)(halves + i));
    if (dtype == MO_DTYPE_BF16)
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    return _mm512_cvtph_ps(half);
}

/* Nearest even in integers, since the hardware's conversion flushes subnormals; NaN keeps its upper
 * bits and becomes quiet. */
MO_INLINE __m256i mo_bf16x16(__m512 value)
{
    __m512i u = _mm512_castps_si512(value);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x00400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16));
}

/* Rounds to nearest even. */
MO_INLINE void mo_store16(void *data, uint64_t i, int32_t dtype, __m512 value)
{
    uint16_t *halves = data;
    if (dtype == MO_DTYPE_F32)
        _mm512_storeu_ps((float *)data + i, value);
    else if (dtype == MO_DTYPE_BF16)
        _mm256_storeu_si256((__m256i *)(void *)(halves + i), mo_bf16x16(value));
    else
        _mm256_storeu_si256((__m256i *)(void *)(halves + i),
                            _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

/* Whatever NaN an operation made becomes the one that is stored. */
MO_INLINE __m512 mo_one_nan16(__m512 x)
{
    __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32((int)MO_F32_NAN_BITS));
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
}

#endif
