/* The AVX2 form of the scale kernel, 16 elements at a time. */
#include "kernels/core/prefetch.h"
#include "kernels/core/vector_io_avx2.h"
#include "kernels/reduce/reduce_cpu.h"

/* mo_scale_element on 8 values; *bad collects those that were not finite. */
MO_AVX2_INLINE __m256i scale_bits(__m256i u, __m256 factor, __m256i *bad)
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

MO_AVX2_INLINE int scale_typed(unsigned char *data, uint64_t count, uint32_t dtype, float factor)
{
    const __m256 wide = _mm256_set1_ps(factor);
    uint64_t i = 0, size = mo_element_size(dtype);
    __m256i bad = _mm256_setzero_si256();
    for (; i + 16 <= count; i += 16) {
        unsigned char *at = data + i * size;
        mo_ask_ahead(at, 64);
        __m256i low = scale_bits(mo_load_gradients_8(at, dtype), wide, &bad);
        __m256i high = scale_bits(mo_load_gradients_8(at + 8 * size, dtype), wide, &bad);
        mo_store_gradients_8(at, low, dtype);
        mo_store_gradients_8(at + 8 * size, high, dtype);
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
