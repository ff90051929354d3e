/* The AVX2 form of the scale kernel, 16 elements at a time. */
#include "kernels/ahead.h"
#include "kernels/reduce_cpu.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

/* mo_scale_element on 8 values; *bad collects those that were not finite. */
INLINE __m256i scale_bits(__m256i u, __m256 factor, __m256i *bad)
{
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    __m256 value = _mm256_castsi256_ps(u);
    __m256 product = _mm256_mul_ps(value, factor);
    __m256 was_nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
    __m256 is_nan = _mm256_cmp_ps(product, product, _CMP_UNORD_Q);
    __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32((int)MO_F32_NAN_BITS));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32((int)MO_F32_QUIET_BIT));
    __m256 result = _mm256_blendv_ps(product, nan, is_nan);
    *bad = _mm256_or_si256(*bad, _mm256_cmpeq_epi32(_mm256_and_si256(u, exponent), exponent));
    return _mm256_castps_si256(_mm256_blendv_ps(result, _mm256_castsi256_ps(quiet), was_nan));
}

INLINE __m128i f32_to_bf16(__m256i u)
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

INLINE __m256i load(const unsigned char *at, uint32_t dtype)
{
    if (dtype == MO_DTYPE_F32)
        return _mm256_loadu_si256((const __m256i *)(const void *)at);
    __m128i codes = _mm_loadu_si128((const __m128i *)(const void *)at);
    if (dtype == MO_DTYPE_F16)
        return _mm256_castps_si256(_mm256_cvtph_ps(codes));
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(codes), 16);
}

INLINE void store(unsigned char *at, __m256i u, uint32_t dtype)
{
    if (dtype == MO_DTYPE_F32) {
        _mm256_storeu_si256((__m256i *)(void *)at, u);
        return;
    }
    __m128i codes = dtype == MO_DTYPE_F16
                        ? _mm256_cvtps_ph(_mm256_castsi256_ps(u), _MM_FROUND_TO_NEAREST_INT)
                        : f32_to_bf16(u);
    _mm_storeu_si128((__m128i *)(void *)at, codes);
}

INLINE int scale_typed(unsigned char *data, uint64_t count, uint32_t dtype, float factor)
{
    const __m256 wide = _mm256_set1_ps(factor);
    uint64_t i = 0, size = mo_element_size(dtype);
    __m256i bad = _mm256_setzero_si256();
    for (; i + 16 <= count; i += 16) {
        unsigned char *at = data + i * size;
        mo_ask_ahead(at, 64);
        __m256i low = scale_bits(load(at, dtype), wide, &bad);
        __m256i high = scale_bits(load(at + 8 * size, dtype), wide, &bad);
        store(at, low, dtype);
        store(at + 8 * size, high, dtype);
    }
    int found = mo_scale_scalar(data + i * size, count - i, dtype, factor);
    return found || !_mm256_testz_si256(bad, bad);
}

static int scale(unsigned char *data, uint64_t count, uint32_t dtype, float factor)
{
    if (dtype == MO_DTYPE_F32)
        return scale_typed(data, count, MO_DTYPE_F32, factor);
    return dtype == MO_DTYPE_F16 ? scale_typed(data, count, MO_DTYPE_F16, factor)
                                 : scale_typed(data, count, MO_DTYPE_BF16, factor);
}

void mo_scale_avx2(const void *args, uint64_t begin, uint64_t end)
{
    mo_scale_run(args, begin, end, scale);
}
