/* The AVX-512 forms of the reductions and of the scale kernel. */
#include "kernels/core/prefetch.h"
#include "kernels/core/vector_io_avx512.h"
#include "kernels/reduce/reduce_cpu.h"

/* --- sum of squares -------------------------------------------------------------------------- */

/* The product is exact, so fma gives what a multiplication and an addition give. */
MO_INLINE __m512d add_square(__m512d sum, __m256 values)
{
    __m512d wide = _mm512_cvtps_pd(values);
    return _mm512_fmadd_pd(wide, wide, sum);
}

MO_INLINE double tree(const double lanes[MO_STRIPE_LANES])
{
    __m512d low = _mm512_add_pd(_mm512_loadu_pd(lanes), _mm512_loadu_pd(lanes + 16));
    __m512d high = _mm512_add_pd(_mm512_loadu_pd(lanes + 8), _mm512_loadu_pd(lanes + 24));
    __m512d eight = _mm512_add_pd(low, high);
    __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

MO_INLINE double stripe(const unsigned char *data, uint64_t count, uint32_t dtype)
{
    __m512d sums[4] = {_mm512_setzero_pd(), _mm512_setzero_pd(), _mm512_setzero_pd(),
                       _mm512_setzero_pd()};
    double lanes[MO_STRIPE_LANES];
    uint64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        const unsigned char *at = data + i * mo_element_size(dtype);
        mo_prefetch_page_ahead(at, 32 * mo_element_size(dtype));
        __m512 low = mo_load16(data, i, (int32_t)dtype),
               high = mo_load16(data, i + 16, (int32_t)dtype);
        sums[0] = add_square(sums[0], _mm512_castps512_ps256(low));
        sums[1] = add_square(sums[1], _mm512_extractf32x8_ps(low, 1));
        sums[2] = add_square(sums[2], _mm512_castps512_ps256(high));
        sums[3] = add_square(sums[3], _mm512_extractf32x8_ps(high, 1));
    }
    for (int k = 0; k < 4; k++)
        _mm512_storeu_pd(lanes + 8 * k, sums[k]);
    if (i < count)
        mo_square_tail(data + i * mo_element_size(dtype), count - i, dtype, lanes);
    return tree(lanes);
}

MO_INLINE double square_typed(const unsigned char *data, uint64_t count, uint32_t dtype)
{
    double sum = 0;
    for (uint64_t i = 0; i < count; i += MO_STRIPE_ELEMENTS) {
        uint64_t rest = count - i < MO_STRIPE_ELEMENTS ? count - i : MO_STRIPE_ELEMENTS;
        sum += stripe(data + i * mo_element_size(dtype), rest, dtype);
    }
    return sum;
}

static double square(const unsigned char *data, uint64_t count, uint32_t dtype)
{
    if (dtype == MO_DTYPE_F32)
        return square_typed(data, count, MO_DTYPE_F32);
    return dtype == MO_DTYPE_F16 ? square_typed(data, count, MO_DTYPE_F16)
                                 : square_typed(data, count, MO_DTYPE_BF16);
}

/* --- check ----------------------------------------------------------------------------------- */

/* The upper halves contain the exponents, so 16-bit types need no conversion. */
static int check(const unsigned char *data, uint64_t count, uint32_t dtype)
{
    uint64_t bytes = count * mo_element_size(dtype), at = 0;
    uint64_t found = 0;
    if (dtype == MO_DTYPE_F32) {
        const __m512i exponent = _mm512_set1_epi32(0x7f800000);
        for (; at + 64 <= bytes; at += 64) {
            mo_prefetch_page_ahead(data + at, 64);
            __m512i u = _mm512_and_si512(_mm512_loadu_si512(data + at), exponent);
            found |= _mm512_cmpeq_epi32_mask(u, exponent);
        }
    } else {
        const __m512i exponent = _mm512_set1_epi16(dtype == MO_DTYPE_F16 ? 0x7c00 : 0x7f80);
        for (; at + 64 <= bytes; at += 64) {
            mo_prefetch_page_ahead(data + at, 64);
            __m512i u = _mm512_and_si512(_mm512_loadu_si512(data + at), exponent);
            found |= _mm512_cmpeq_epi16_mask(u, exponent);
        }
    }
    return found != 0 || mo_check_scalar(data + at, (bytes - at) / mo_element_size(dtype), dtype);
}

/* --- scale ----------------------------------------------------------------------------------- */

/* mo_scale_element on 16 values; *bad collects those that were not finite. */
MO_INLINE __m512 scale_16(__m512 value, __m512 factor, __mmask16 *bad)
{
    const __m512i exponent = _mm512_set1_epi32(0x7f800000);
    __m512i u = _mm512_castps_si512(value);
    __m512i result = _mm512_castps_si512(mo_one_nan16(_mm512_mul_ps(value, factor)));
    __mmask16 was_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    *bad = (__mmask16)(*bad | _mm512_cmpeq_epi32_mask(_mm512_and_si512(u, exponent), exponent));
    result = _mm512_mask_or_epi32(result, was_nan, u, _mm512_set1_epi32((int)MO_F32_QUIET_BIT));
    return _mm512_castsi512_ps(result);
}

MO_INLINE int scale_typed(unsigned char *data, uint64_t count, int32_t dtype, float factor)
{
    const __m512 wide = _mm512_set1_ps(factor);
    uint64_t i = 0, size = mo_element_size((uint32_t)dtype);
    __mmask16 bad = 0;
    for (; i + 32 <= count; i += 32) {
        mo_prefetch_page_ahead(data + i * size, 32 * size);
        __m512 low = scale_16(mo_load16(data, i, dtype), wide, &bad);
        __m512 high = scale_16(mo_load16(data, i + 16, dtype), wide, &bad);
        mo_store16(data, i, dtype, low);
        mo_store16(data, i + 16, dtype, high);
    }
    int found = mo_scale_scalar(data + i * size, count - i, (uint32_t)dtype, factor);
    return found || bad != 0;
}

static int scale(unsigned char *data, uint64_t count, uint32_t dtype, float factor)
{
    if (dtype == MO_DTYPE_F32)
        return scale_typed(data, count, MO_DTYPE_F32, factor);
    return dtype == MO_DTYPE_F16 ? scale_typed(data, count, MO_DTYPE_F16, factor)
                                 : scale_typed(data, count, MO_DTYPE_BF16, factor);
}

/* --- the forms ------------------------------------------------------------------------------- */

void mo_square_sum_avx512(const void *args, uint64_t begin, uint64_t end)
{
    mo_square_sum_run(args, begin, end, square);
}

void mo_check_avx512(const void *args, uint64_t begin, uint64_t end)
{
    mo_check_run(args, begin, end, check);
}

void mo_scale_avx512(const void *args, uint64_t begin, uint64_t end)
{
    mo_scale_run(args, begin, end, scale);
}
