/*
 * The AVX2 and F16C form of the cast kernel: 32 elements at a time (64 with random bits), as four
 * vectors of f32 bits. Its parts are those of the AVX-512 form. Adding to round subnormals of 8-bit
 * floats relies on the default rounding mode.
 */
#include "kernels/cast/cast_cpu.h"
#include "kernels/core/prefetch.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

INLINE __m256i all(uint32_t value)
{
    return _mm256_set1_epi32((int)value);
}

INLINE void put(unsigned char *at, __m256i value, int streaming)
{
    if (streaming)
        _mm256_stream_si256((__m256i *)(void *)at, value);
    else
        _mm256_storeu_si256((__m256i *)(void *)at, value);
}

/* --- loads: 32 elements as f32 bits ---------------------------------------------------------- */

INLINE void load_f32(const unsigned char *base, uint64_t i, __m256i v[4])
{
    for (int k = 0; k < 4; k++)
        v[k] = _mm256_loadu_si256((const __m256i *)(const void *)(base + 4 * i + 32 * k));
}

INLINE __m128i halfwords(const unsigned char *base, uint64_t i, int k)
{
    return _mm_loadu_si128((const __m128i *)(const void *)(base + 2 * i + 16 * k));
}

INLINE void load_bf16(const unsigned char *base, uint64_t i, __m256i v[4])
{
    for (int k = 0; k < 4; k++)
        v[k] = _mm256_slli_epi32(_mm256_cvtepu16_epi32(halfwords(base, i, k)), 16);
}

INLINE void load_f16(const unsigned char *base, uint64_t i, __m256i v[4])
{
    for (int k = 0; k < 4; k++)
        v[k] = _mm256_castps_si256(_mm256_cvtph_ps(halfwords(base, i, k)));
}

INLINE __m128i bytes(const unsigned char *base, uint64_t i, int k)
{
    return _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)(base + i + 8 * k)));
}

INLINE void load_e5m2(const unsigned char *base, uint64_t i, __m256i v[4])
{
    for (int k = 0; k < 4; k++)
        v[k] = _mm256_castps_si256(_mm256_cvtph_ps(_mm_slli_epi16(bytes(base, i, k), 8)));
}

/* As a half with the same mantissa the value is 2^-8 of what it should be, subnormals included. */
INLINE void load_e4m3(const unsigned char *base, uint64_t i, __m256i v[4])
{
    for (int k = 0; k < 4; k++) {
        __m128i code = bytes(base, i, k);
        __m128i magnitude = _mm_and_si128(code, _mm_set1_epi16(0x7f));
        __m128i sign = _mm_slli_epi16(_mm_xor_si128(code, magnitude), 8);
        __m128i nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f));
        __m128i half = _mm_or_si128(sign, _mm_slli_epi16(magnitude, 7));
        __m256 value = _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
        __m256i wide_sign = _mm256_slli_epi32(_mm256_cvtepu16_epi32(sign), 16);
        __m256i quiet = _mm256_or_si256(wide_sign, all(MO_F32_NAN_BITS));
        v[k] = _mm256_blendv_epi8(_mm256_castps_si256(value), quiet, _mm256_cvtepi16_epi32(nan));
    }
}

/* --- random bits ----------------------------------------------------------------------------- */

/* Ten rounds on four blocks; each word of a block in the low half of a 64-bit lane (the upper
 * halves hold what the multiplication ignores). */
INLINE void philox(__m256i c[4], uint32_t k0, uint32_t k1)
{
    const __m256i m0 = _mm256_set1_epi64x(0xd2511f53), m1 = _mm256_set1_epi64x(0xcd9e8d57);
    for (int round = 0; round < 10; round++) {
        __m256i p0 = _mm256_mul_epu32(c[0], m0), p1 = _mm256_mul_epu32(c[2], m1);
        c[0] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c[1]), all(k0));
        c[1] = p1;
        c[2] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c[3]), all(k1));
        c[3] = p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
}

/* The random halfwords of 64 elements from `element` (a multiple of 64) on, 16 a vector. The lanes
 * take the blocks in such an order that the 4 x 4 transposition below leaves them sorted. */
INLINE void random_64(const mo_random_stream *stream, uint64_t element, __m256i r[4])
{
    uint64_t block = element / 8;
    __m256i base = _mm256_set1_epi64x((long long)block);
    __m256i a[4], b[4], w[4];
    a[0] = _mm256_add_epi64(base, _mm256_setr_epi64x(0, 4, 1, 5));
    b[0] = _mm256_add_epi64(base, _mm256_setr_epi64x(2, 6, 3, 7));
    a[1] = b[1] = _mm256_set1_epi64x((long long)(block >> 32));
    a[2] = b[2] = _mm256_set1_epi64x(stream->high[0]);
    a[3] = b[3] = _mm256_set1_epi64x(stream->high[1]);
    philox(a, stream->key[0], stream->key[1]);
    philox(b, stream->key[0], stream->key[1]);
    for (int k = 0; k < 4; k++)
        w[k] = _mm256_blend_epi32(a[k], _mm256_slli_epi64(b[k], 32), 0xaa);
    __m256i x = _mm256_unpacklo_epi32(w[0], w[1]), y = _mm256_unpacklo_epi32(w[2], w[3]);
    __m256i z = _mm256_unpackhi_epi32(w[0], w[1]), t = _mm256_unpackhi_epi32(w[2], w[3]);
    r[0] = _mm256_unpacklo_epi64(x, y);
    r[1] = _mm256_unpackhi_epi64(x, y);
    r[2] = _mm256_unpacklo_epi64(z, t);
    r[3] = _mm256_unpackhi_epi64(z, t);
}

/* --- rounding: 8 values, codes in 32-bit lanes ----------------------------------------------- */

INLINE __m256i magnitude_of(__m256i u)
{
    return _mm256_and_si256(u, all(0x7fffffffu));
}

INLINE __m256i above(__m256i a, uint32_t limit)
{
    return _mm256_cmpgt_epi32(a, all(limit));
}

INLINE __m256i choose(__m256i no, __m256i yes, __m256i condition)
{
    return _mm256_blendv_epi8(no, yes, condition);
}

INLINE __m256i round_nearest(__m256i a, uint32_t mantissa, uint32_t bias)
{
    int shift = 23 - (int)mantissa;
    uint32_t magic = (151 - bias - mantissa) << 23;
    __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(a, shift), all(1));
    __m256i bump = all((1u << (shift - 1)) - 1 - ((127 - bias) << 23));
    __m256i normal = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(a, bump), lsb), shift);
    __m256 sum = _mm256_add_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(all(magic)));
    __m256i subnormal = _mm256_sub_epi32(_mm256_castps_si256(sum), all(magic));
    return choose(subnormal, normal, above(a, ((128 - bias) << 23) - 1));
}

INLINE __m256i round_stochastic(__m256i a, uint32_t mantissa, uint32_t bias, __m256i random)
{
    int shift = 23 - (int)mantissa;
    uint32_t scale = (142 + bias + mantissa) << 23;
    __m256i noise = shift < 16 ? _mm256_srli_epi32(random, 16 - (shift & 15))
                               : _mm256_slli_epi32(random, shift & 15);
    __m256i sum = _mm256_add_epi32(_mm256_sub_epi32(a, all((127 - bias) << 23)), noise);
    __m256i normal = _mm256_srli_epi32(sum, shift);
    __m256 parts = _mm256_mul_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(all(scale)));
    __m256i subnormal = _mm256_srli_epi32(_mm256_add_epi32(_mm256_cvttps_epi32(parts), random), 16);
    return choose(subnormal, normal, above(a, ((128 - bias) << 23) - 1));
}

/* NaNs of bf16, whose codes are the upper halves of the lanes, keep u's upper half. */
INLINE __m256i quiet_nan(__m256i rounded, __m256i u)
{
    __m256i quiet = _mm256_or_si256(u, all(MO_F32_QUIET_BIT));
    return choose(rounded, quiet, above(magnitude_of(u), MO_F32_INF_BITS));
}

INLINE __m256i bf16_nearest(__m256i u)
{
    __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(u, 16), all(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, all(0x7fff)), lsb);
    return _mm256_srli_epi32(quiet_nan(rounded, u), 16);
}

INLINE __m256i bf16_stochastic(__m256i u, __m256i random)
{
    __m256i noise = _mm256_andnot_si256(above(magnitude_of(u), 0x7f7effffu), random);
    return _mm256_srli_epi32(quiet_nan(_mm256_add_epi32(u, noise), u), 16);
}

INLINE __m256i f16_stochastic(__m256i u, __m256i random)
{
    __m256i a = magnitude_of(u);
    __m256i sign = _mm256_and_si256(_mm256_srli_epi32(u, 16), all(0x8000));
    __m256i code = round_stochastic(a, 10, 15, random);
    __m256i payload = _mm256_and_si256(_mm256_srli_epi32(a, 13), all(0x3ff));
    code = choose(code, all(0x7bff), above(a, 0x477fdfffu));
    code = choose(code, all(0x7c00), above(a, 0x477fffffu));
    code = choose(code, _mm256_or_si256(payload, all(0x7e00)), above(a, MO_F32_INF_BITS));
    return _mm256_or_si256(code, sign);
}

INLINE __m256i finish_f8(__m256i u, __m256i code, uint32_t largest, uint32_t limit, int saturate)
{
    __m256i a = magnitude_of(u);
    __m256i overflow = all(saturate ? largest : largest + 1);
    __m256i sign = _mm256_and_si256(_mm256_srli_epi32(u, 24), all(0x80));
    __m256i over = _mm256_or_si256(above(code, largest), above(a, limit - 1));
    code = choose(code, overflow, over);
    code = choose(code, all(0x7f), above(a, MO_F32_INF_BITS));
    return _mm256_or_si256(code, sign);
}

INLINE __m256i e4m3_nearest(__m256i u, int saturate)
{
    return finish_f8(u, round_nearest(magnitude_of(u), 3, 7), 0x7e, 0x43f00000u, saturate);
}

INLINE __m256i e5m2_nearest(__m256i u, int saturate)
{
    return finish_f8(u, round_nearest(magnitude_of(u), 2, 15), 0x7b, 0x47800000u, saturate);
}

INLINE __m256i e4m3_stochastic(__m256i u, __m256i random, int saturate)
{
    __m256i a = magnitude_of(u);
    __m256i code = round_stochastic(a, 3, 7, random);
    code = choose(code, all(0x7e), above(a, 0x43dfffffu));
    return finish_f8(u, code, 0x7e, 0x43f00000u, saturate);
}

INLINE __m256i e5m2_stochastic(__m256i u, __m256i random, int saturate)
{
    __m256i a = magnitude_of(u);
    __m256i code = round_stochastic(a, 2, 15, random);
    code = choose(code, all(0x7b), above(a, 0x475fffffu));
    return finish_f8(u, code, 0x7b, 0x47800000u, saturate);
}

/* --- stores: 32 elements --------------------------------------------------------------------- */

INLINE __m256i pack(__m256i a, __m256i b)
{
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
}

INLINE __m256i widen(const __m256i *random, int k)
{
    __m128i half = k & 1 ? _mm256_extracti128_si256(random[k >> 1], 1)
                         : _mm256_castsi256_si128(random[k >> 1]);
    return _mm256_cvtepu16_epi32(half);
}

INLINE void put_halves(unsigned char *base, uint64_t i, const __m256i v[4], int streaming)
{
    put(base + 2 * i, pack(v[0], v[1]), streaming);
    put(base + 2 * i + 32, pack(v[2], v[3]), streaming);
}

INLINE void put_bytes(unsigned char *base, uint64_t i, const __m256i v[4], int streaming)
{
    __m256i codes = _mm256_packus_epi16(pack(v[0], v[1]), pack(v[2], v[3]));
    put(base + i, _mm256_permute4x64_epi64(codes, 0xd8), streaming);
}

INLINE void store_f32(const mo_cast_piece *p, uint64_t i, __m256i v[4])
{
    for (int k = 0; k < 4; k++)
        put(p->destination + 4 * i + 32 * k, v[k], p->streaming);
}

INLINE void store_bf16(const mo_cast_piece *p, uint64_t i, __m256i v[4])
{
    for (int k = 0; k < 4; k++)
        v[k] = bf16_nearest(v[k]);
    put_halves(p->destination, i, v, p->streaming);
}

INLINE void store_f16(const mo_cast_piece *p, uint64_t i, __m256i v[4])
{
    for (int k = 0; k < 4; k += 2) {
        __m128i low = _mm256_cvtps_ph(_mm256_castsi256_ps(v[k]), _MM_FROUND_TO_NEAREST_INT);
        __m128i high = _mm256_cvtps_ph(_mm256_castsi256_ps(v[k + 1]), _MM_FROUND_TO_NEAREST_INT);
        put(p->destination + 2 * i + 16 * k, _mm256_set_m128i(high, low), p->streaming);
    }
}

INLINE void store_e4m3(const mo_cast_piece *p, uint64_t i, __m256i v[4])
{
    for (int k = 0; k < 4; k++)
        v[k] = e4m3_nearest(v[k], p->saturate);
    put_bytes(p->destination, i, v, p->streaming);
}

INLINE void store_e5m2(const mo_cast_piece *p, uint64_t i, __m256i v[4])
{
    for (int k = 0; k < 4; k++)
        v[k] = e5m2_nearest(v[k], p->saturate);
    put_bytes(p->destination, i, v, p->streaming);
}

INLINE void dither_bf16(const mo_cast_piece *p, uint64_t i, __m256i v[4], const __m256i random[2])
{
    for (int k = 0; k < 4; k++)
        v[k] = bf16_stochastic(v[k], widen(random, k));
    put_halves(p->destination, i, v, p->streaming);
}

INLINE void dither_f16(const mo_cast_piece *p, uint64_t i, __m256i v[4], const __m256i random[2])
{
    for (int k = 0; k < 4; k++)
        v[k] = f16_stochastic(v[k], widen(random, k));
    put_halves(p->destination, i, v, p->streaming);
}

INLINE void dither_e4m3(const mo_cast_piece *p, uint64_t i, __m256i v[4], const __m256i random[2])
{
    for (int k = 0; k < 4; k++)
        v[k] = e4m3_stochastic(v[k], widen(random, k), p->saturate);
    put_bytes(p->destination, i, v, p->streaming);
}

INLINE void dither_e5m2(const mo_cast_piece *p, uint64_t i, __m256i v[4], const __m256i random[2])
{
    for (int k = 0; k < 4; k++)
        v[k] = e5m2_stochastic(v[k], widen(random, k), p->saturate);
    put_bytes(p->destination, i, v, p->streaming);
}

/* --- pieces ---------------------------------------------------------------------------------- */

INLINE void ask_ahead(const mo_cast_piece *piece, uint64_t i, uint32_t size)
{
    if (piece->streaming)
        mo_prefetch_page_ahead(piece->source + i * size, 32 * size);
}

#define NEAREST(from, to, from_dtype, to_dtype)                                                    \
    static void nearest_##from##_##to(const mo_cast_piece *piece, uint64_t start)                  \
    {                                                                                              \
        uint64_t i = start;                                                                        \
        for (; i + 32 <= piece->count; i += 32) {                                                  \
            __m256i v[4];                                                                          \
            ask_ahead(piece, i, mo_element_size(from_dtype));                                      \
            load_##from(piece->source, i, v);                                                      \
            store_##to(piece, i, v);                                                               \
        }                                                                                          \
        mo_cast_scalar_table[0][from_dtype][to_dtype](piece, i);                                   \
    }

#define STOCHASTIC(from, to, from_dtype, to_dtype)                                                 \
    static void stochastic_##from##_##to(const mo_cast_piece *piece, uint64_t start)               \
    {                                                                                              \
        uint64_t i = start;                                                                        \
        for (; i + 64 <= piece->count; i += 64) {                                                  \
            __m256i v[4], random[4];                                                               \
            random_64(&piece->stream, piece->first + i, random);                                   \
            ask_ahead(piece, i, mo_element_size(from_dtype));                                      \
            ask_ahead(piece, i + 32, mo_element_size(from_dtype));                                 \
            load_##from(piece->source, i, v);                                                      \
            dither_##to(piece, i, v, random);                                                      \
            load_##from(piece->source, i + 32, v);                                                 \
            dither_##to(piece, i + 32, v, random + 2);                                             \
        }                                                                                          \
        mo_cast_scalar_table[1][from_dtype][to_dtype](piece, i);                                   \
    }

#define BOTH(from, to, from_dtype, to_dtype)                                                       \
    NEAREST(from, to, from_dtype, to_dtype) STOCHASTIC(from, to, from_dtype, to_dtype)

MO_CAST_PAIRS(NEAREST, BOTH)

static const mo_cast_table table = MO_CAST_TABLE;

void mo_cast_avx2(const void *args, uint64_t begin, uint64_t end)
{
    if (mo_cast_run((const mo_cast_args *)args, begin, end, table))
        _mm_sfence();
}
