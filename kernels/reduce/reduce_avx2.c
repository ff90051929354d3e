/* The AVX2 forms of the reductions and of the scale kernel. */
#include "kernels/core/prefetch.h"
#include "kernels/core/vector_io_avx2.h"
#include "kernels/reduce/reduce_cpu.h"

/* --- sum of squares -------------------------------------------------------------------------- */

/* The product is exact, so fma gives what a multiplication and an addition give. */
MO_INLINE __m256d add_square(__m256d sum, __m128 values)
{
    __m256d wide = _mm256_cvtps_pd(values);
    return _mm256_fmadd_pd(wide, wide, sum);
}

MO_INLINE double tree(const double lanes[MO_STRIPE_LANES])
{
    __m256d part[4];
    for (int k = 0; k < 4; k++)
        part[k] =
            _mm256_add_pd(_mm256_loadu_pd(lanes + 4 * k), _mm256_loadu_pd(lanes + 4 * k + 16));
    __m256d four = _mm256_add_pd(_mm256_add_pd(part[0], part[2]), _mm256_add_pd(part[1], part[3]));
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

MO_INLINE double stripe(const unsigned char *data, uint64_t count, uint32_t dtype)
{
    __m256d sums[8];
    double lanes[MO_STRIPE_LANES];
    uint64_t i = 0;
    for (int k = 0; k < 8; k++)
        sums[k] = _mm256_setzero_pd();
    for (; i + 32 <= count; i += 32) {
        const unsigned char *at = data + i * mo_element_size(dtype);
        mo_prefetch_page_ahead(at, 32 * mo_element_size(dtype));
        for (int k = 0; k < 4; k++) {
            __m256 values = mo_load8(data, i + 8 * (uint64_t)k, (int32_t)dtype);
            sums[2 * k] = add_square(sums[2 * k], _mm256_castps256_ps128(values));
            sums[2 * k + 1] = add_square(sums[2 * k + 1], _mm256_extractf128_ps(values, 1));
        }
    }
    for (int k = 0; k < 8; k++)
        _mm256_storeu_pd(lanes + 4 * k, sums[k]);
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

static int check(const unsigned char *data, uint64_t count, uint32_t dtype)
{
    uint64_t bytes = count * mo_element_size(dtype), at = 0;
    __m256i found = _mm256_setzero_si256();
    if (dtype == MO_DTYPE_F32) {
        const __m256i exponent = _mm256_set1_epi32(0x7f800000);
        for (; at + 32 <= bytes; at += 32) {
            mo_prefetch_page_ahead(data + at, 64);
            __m256i u = _mm256_loadu_si256((const __m256i *)(const void *)(data + at));
            u = _mm256_cmpeq_epi32(_mm256_and_si256(u, exponent), exponent);
            found = _mm256_or_si256(found, u);
        }
    } else {
        const __m256i exponent = _mm256_set1_epi16(dtype == MO_DTYPE_F16 ? 0x7c00 : 0x7f80);
        for (; at + 32 <= bytes; at += 32) {
            mo_prefetch_page_ahead(data + at, 64);
            __m256i u = _mm256_loadu_si256((const __m256i *)(const void *)(data + at));
            u = _mm256_cmpeq_epi16(_mm256_and_si256(u, exponent), exponent);
            found = _mm256_or_si256(found, u);
        }
    }
    return !_mm256_testz_si256(found, found) ||
           mo_check_scalar(data + at, (bytes - at) / mo_element_size(dtype), dtype);
}

/* --- scale ----------------------------------------------------------------------------------- */

/* mo_scale_element on 8 values; *bad collects those that were not finite. */
MO_INLINE __m256 scale_8(__m256 value, __m256 factor, __m256i *bad)
{
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    __m256i u = _mm256_castps_si256(value);
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32((int)MO_F32_QUIET_BIT));
    __m256 was_nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
    __m256 result = mo_one_nan8(_mm256_mul_ps(value, factor));
    *bad = _mm256_or_si256(*bad, _mm256_cmpeq_epi32(_mm256_and_si256(u, exponent), exponent));
    return _mm256_blendv_ps(result, _mm256_castsi256_ps(quiet), was_nan);
}

MO_INLINE int scale_typed(unsigned char *data, uint64_t count, int32_t dtype, float factor)
{
    const __m256 wide = _mm256_set1_ps(factor);
    uint64_t i = 0, size = mo_element_size((uint32_t)dtype);
    __m256i bad = _mm256_setzero_si256();
    for (; i + 16 <= count; i += 16) {
        mo_prefetch_page_ahead(data + i * size, 64);
        __m256 low = scale_8(mo_load8(data, i, dtype), wide, &bad);
        __m256 high = scale_8(mo_load8(data, i + 8, dtype), wide, &bad);
        mo_store8(data, i, dtype, low);
        mo_store8(data, i + 8, dtype, high);
    }
    int found = mo_scale_scalar(data + i * size, count - i, (uint32_t)dtype, factor);
    return found || !_mm256_testz_si256(bad, bad);
}

static int scale(unsigned char *data, uint64_t count, uint32_t dtype, float factor)
{
    if (dtype == MO_DTYPE_F32)
        return scale_typed(data, count, MO_DTYPE_F32, factor);
    return dtype == MO_DTYPE_F16 ? scale_typed(data, count, MO_DTYPE_F16, factor)
                                 : scale_typed(data, count, MO_DTYPE_BF16, factor);
}

/* --- the forms ------------------------------------------------------------------------------- */

void mo_square_sum_avx2(const void *args, uint64_t begin, uint64_t end)
{
    mo_square_sum_run(args, begin, end, square);
}

void mo_check_avx2(const void *args, uint64_t begin, uint64_t end)
{
    mo_check_run(args, begin, end, check);
}

void mo_scale_avx2(const void *args, uint64_t begin, uint64_t end)
{
    mo_scale_run(args, begin, end, scale);
}
