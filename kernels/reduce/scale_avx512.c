/* The AVX-512 form of the scale kernel, 32 elements at a time. */
#include "kernels/core/prefetch.h"
#include "kernels/reduce/reduce_cpu.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

/* mo_scale_element on 16 values; *bad collects those that were not finite. */
INLINE __m512i scale_bits(__m512i u, __m512 factor, __mmask16 *bad)
{
    const __m512i exponent = _mm512_set1_epi32(0x7f800000);
    __m512 value = _mm512_castsi512_ps(u);
    __m512 product = _mm512_mul_ps(value, factor);
    __mmask16 was_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    __mmask16 is_nan = _mm512_cmp_ps_mask(product, product, _CMP_UNORD_Q);
    __m512i result = _mm512_mask_mov_epi32(_mm512_castps_si512(product), is_nan,
                                           _mm512_set1_epi32((int)MO_F32_NAN_BITS));
    *bad = (__mmask16)(*bad | _mm512_cmpeq_epi32_mask(_mm512_and_si512(u, exponent), exponent));
    return _mm512_mask_or_epi32(result, was_nan, u, _mm512_set1_epi32((int)MO_F32_QUIET_BIT));
}

INLINE __m256i f32_to_bf16(__m512i u)
{
    __m512i magnitude = _mm512_and_si512(u, _mm512_set1_epi32(0x7fffffff));
    __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
    __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), lsb);
    rounded = _mm512_mask_or_epi32(rounded, nan, u, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

INLINE __m512i load(const unsigned char *at, uint32_t dtype)
{
    if (dtype == MO_DTYPE_F32)
        return _mm512_loadu_si512(at);
    __m256i codes = _mm256_loadu_si256((const __m256i *)(const void *)at);
    if (dtype == MO_DTYPE_F16)
        return _mm512_castps_si512(_mm512_cvtph_ps(codes));
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(codes), 16);
}

INLINE void store(unsigned char *at, __m512i u, uint32_t dtype)
{
    if (dtype == MO_DTYPE_F32) {
        _mm512_storeu_si512(at, u);
        return;
    }
    __m256i codes = dtype == MO_DTYPE_F16
                        ? _mm512_cvtps_ph(_mm512_castsi512_ps(u), _MM_FROUND_TO_NEAREST_INT)
                        : f32_to_bf16(u);
    _mm256_storeu_si256((__m256i *)(void *)at, codes);
}

INLINE int scale_typed(unsigned char *data, uint64_t count, uint32_t dtype, float factor)
{
    const __m512 wide = _mm512_set1_ps(factor);
    uint64_t i = 0, size = mo_element_size(dtype);
    __mmask16 bad = 0;
    for (; i + 32 <= count; i += 32) {
        unsigned char *at = data + i * size;
        mo_ask_ahead(at, 32 * mo_element_size(dtype));
        __m512i low = scale_bits(load(at, dtype), wide, &bad);
        __m512i high = scale_bits(load(at + 16 * size, dtype), wide, &bad);
        store(at, low, dtype);
        store(at + 16 * size, high, dtype);
    }
    int found = mo_scale_scalar(data + i * size, count - i, dtype, factor);
    return found || bad != 0;
}

static int scale(unsigned char *data, uint64_t count, uint32_t dtype, float factor)
{
    if (dtype == MO_DTYPE_F32)
        return scale_typed(data, count, MO_DTYPE_F32, factor);
    return dtype == MO_DTYPE_F16 ? scale_typed(data, count, MO_DTYPE_F16, factor)
                                 : scale_typed(data, count, MO_DTYPE_BF16, factor);
}

void mo_scale_avx512(const void *args, uint64_t begin, uint64_t end)
{
    mo_scale_run(args, begin, end, scale);
}
