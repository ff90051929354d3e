/* The AVX-512 forms of the sum of squares and of the check. */
#include "kernels/core/prefetch.h"
#include "kernels/reduce/reduce_cpu.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

/* 16 elements as f32. */
INLINE __m512 load(const unsigned char *data, uint64_t i, uint32_t dtype)
{
    if (dtype == MO_DTYPE_F32)
        return _mm512_loadu_ps((const void *)(data + 4 * i));
    __m256i codes = _mm256_loadu_si256((const __m256i *)(const void *)(data + 2 * i));
    if (dtype == MO_DTYPE_F16)
        return _mm512_cvtph_ps(codes);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(codes), 16));
}

/* The product is exact, so fma gives what a multiplication and an addition give. */
INLINE __m512d add_square(__m512d sum, __m256 values)
{
    __m512d wide = _mm512_cvtps_pd(values);
    return _mm512_fmadd_pd(wide, wide, sum);
}

INLINE double tree(const double lanes[MO_STRIPE_LANES])
{
    __m512d low = _mm512_add_pd(_mm512_loadu_pd(lanes), _mm512_loadu_pd(lanes + 16));
    __m512d high = _mm512_add_pd(_mm512_loadu_pd(lanes + 8), _mm512_loadu_pd(lanes + 24));
    __m512d eight = _mm512_add_pd(low, high);
    __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

INLINE double stripe(const unsigned char *data, uint64_t count, uint32_t dtype)
{
    __m512d sums[4] = {_mm512_setzero_pd(), _mm512_setzero_pd(), _mm512_setzero_pd(),
                       _mm512_setzero_pd()};
    double lanes[MO_STRIPE_LANES];
    uint64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        const unsigned char *at = data + i * mo_element_size(dtype);
        mo_ask_ahead(at, 32 * mo_element_size(dtype));
        __m512 low = load(data, i, dtype), high = load(data, i + 16, dtype);
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

/* The upper halves of the exponents decide, so 16-bit types are looked at without conversion. */
static int check(const unsigned char *data, uint64_t count, uint32_t dtype)
{
    uint64_t bytes = count * mo_element_size(dtype), at = 0;
    uint64_t found = 0;
    if (dtype == MO_DTYPE_F32) {
        const __m512i exponent = _mm512_set1_epi32(0x7f800000);
        for (; at + 64 <= bytes; at += 64) {
            mo_ask_ahead(data + at, 64);
            __m512i u = _mm512_and_si512(_mm512_loadu_si512(data + at), exponent);
            found |= _mm512_cmpeq_epi32_mask(u, exponent);
        }
    } else {
        const __m512i exponent = _mm512_set1_epi16(dtype == MO_DTYPE_F16 ? 0x7c00 : 0x7f80);
        for (; at + 64 <= bytes; at += 64) {
            mo_ask_ahead(data + at, 64);
            __m512i u = _mm512_and_si512(_mm512_loadu_si512(data + at), exponent);
            found |= _mm512_cmpeq_epi16_mask(u, exponent);
        }
    }
    return found != 0 || mo_check_scalar(data + at, (bytes - at) / mo_element_size(dtype), dtype);
}

void mo_square_sum_avx512(const void *args, uint64_t begin, uint64_t end)
{
    mo_square_sum_run(args, begin, end, square);
}

void mo_check_avx512(const void *args, uint64_t begin, uint64_t end)
{
    mo_check_run(args, begin, end, check);
}
