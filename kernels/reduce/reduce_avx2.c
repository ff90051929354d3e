/* The AVX2 forms of the sum of squares and of the check. */
#include "kernels/core/prefetch.h"
#include "kernels/reduce/reduce_cpu.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

/* 8 elements as f32. */
INLINE __m256 load(const unsigned char *data, uint64_t i, uint32_t dtype)
{
    if (dtype == MO_DTYPE_F32)
        return _mm256_loadu_ps((const float *)(const void *)(data + 4 * i));
    __m128i codes = _mm_loadu_si128((const __m128i *)(const void *)(data + 2 * i));
    if (dtype == MO_DTYPE_F16)
        return _mm256_cvtph_ps(codes);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(codes), 16));
}

/* The product is exact, so fma gives what a multiplication and an addition give. */
INLINE __m256d add_square(__m256d sum, __m128 values)
{
    __m256d wide = _mm256_cvtps_pd(values);
    return _mm256_fmadd_pd(wide, wide, sum);
}

INLINE double tree(const double lanes[MO_STRIPE_LANES])
{
    __m256d part[4];
    for (int k = 0; k < 4; k++)
        part[k] =
            _mm256_add_pd(_mm256_loadu_pd(lanes + 4 * k), _mm256_loadu_pd(lanes + 4 * k + 16));
    __m256d four = _mm256_add_pd(_mm256_add_pd(part[0], part[2]), _mm256_add_pd(part[1], part[3]));
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

INLINE double stripe(const unsigned char *data, uint64_t count, uint32_t dtype)
{
    __m256d sums[8];
    double lanes[MO_STRIPE_LANES];
    uint64_t i = 0;
    for (int k = 0; k < 8; k++)
        sums[k] = _mm256_setzero_pd();
    for (; i + 32 <= count; i += 32) {
        const unsigned char *at = data + i * mo_element_size(dtype);
        mo_ask_ahead(at, 32 * mo_element_size(dtype));
        for (int k = 0; k < 4; k++) {
            __m256 values = load(data, i + 8 * (uint64_t)k, dtype);
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

INLINE double square_typed(const unsigned char *data, uint64_t count, uint32_t dtype)
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

static int check(const unsigned char *data, uint64_t count, uint32_t dtype)
{
    uint64_t bytes = count * mo_element_size(dtype), at = 0;
    __m256i found = _mm256_setzero_si256();
    if (dtype == MO_DTYPE_F32) {
        const __m256i exponent = _mm256_set1_epi32(0x7f800000);
        for (; at + 32 <= bytes; at += 32) {
            mo_ask_ahead(data + at, 64);
            __m256i u = _mm256_loadu_si256((const __m256i *)(const void *)(data + at));
            u = _mm256_cmpeq_epi32(_mm256_and_si256(u, exponent), exponent);
            found = _mm256_or_si256(found, u);
        }
    } else {
        const __m256i exponent = _mm256_set1_epi16(dtype == MO_DTYPE_F16 ? 0x7c00 : 0x7f80);
        for (; at + 32 <= bytes; at += 32) {
            mo_ask_ahead(data + at, 64);
            __m256i u = _mm256_loadu_si256((const __m256i *)(const void *)(data + at));
            u = _mm256_cmpeq_epi16(_mm256_and_si256(u, exponent), exponent);
            found = _mm256_or_si256(found, u);
        }
    }
    return !_mm256_testz_si256(found, found) ||
           mo_check_scalar(data + at, (bytes - at) / mo_element_size(dtype), dtype);
}

void mo_square_sum_avx2(const void *args, uint64_t begin, uint64_t end)
{
    mo_square_sum_run(args, begin, end, square);
}

void mo_check_avx2(const void *args, uint64_t begin, uint64_t end)
{
    mo_check_run(args, begin, end, check);
}
