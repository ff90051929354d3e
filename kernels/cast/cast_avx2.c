/*
 * The AVX2 and F16C form of the cast kernel: 32 elements at a time (64 with random bits), as four
 * vectors of f32 bits. Its parts are those of the AVX-512 form. Adding to round subnormals of 8-bit
 * floats relies on the default rounding mode.
 */
#include "kernels/cast/cast_cpu.h"
#include "kernels/core/prefetch.h"
#include "kernels/core/stochastic_avx2.h"

MO_INLINE void put(unsigned char *at, __m256i value, int streaming)
{
    if (streaming)
        _mm256_stream_si256((__m256i *)(void *)at, value);
    else
        _mm256_storeu_si256((__m256i *)(void *)at, value);
}

/* --- loads: 32 elements as f32 bits ---------------------------------------------------------- */

MO_INLINE void load_f32(const unsigned char *base, uint64_t i, __m256i v[4])
{
    for (int k = 0; k < 4; k++)
        v[k] = _mm256_loadu_si256((const __m256i *)(const void *)(base + 4 * i + 32 * k));
}

MO_INLINE __m128i halfwords(const unsigned char *base, uint64_t i, int k)
{
    return _mm_loadu_si128((const __m128i *)(const void *)(base + 2 * i + 16 * k));
}

MO_INLINE void load_bf16(const unsigned char *base, uint64_t i, __m256i v[4])
{
    for (int k = 0; k < 4; k++)
        v[k] = _mm256_slli_epi32(_mm256_cvtepu16_epi32(halfwords(base, i, k)), 16);
}

MO_INLINE void load_f16(const unsigned char *base, uint64_t i, __m256i v[4])
{
    for (int k = 0; k < 4; k++)
        v[k] = _mm256_castps_si256(_mm256_cvtph_ps(halfwords(base, i, k)));
}

MO_INLINE __m128i bytes(const unsigned char *base, uint64_t i, int k)
{
    return _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)(base + i + 8 * k)));
}

MO_INLINE void load_e5m2(const unsigned char *base, uint64_t i, __m256i v[4])
{
    for (int k = 0; k < 4; k++)
        v[k] = _mm256_castps_si256(_mm256_cvtph_ps(_mm_slli_epi16(bytes(base, i, k), 8)));
}

/* As a half with the same mantissa the value is 2^-8 of what it should be, subnormals included. */
MO_INLINE void load_e4m3(const unsigned char *base, uint64_t i, __m256i v[4])
{
    for (int k = 0; k < 4; k++) {
        __m128i code = bytes(base, i, k);
        __m128i magnitude = _mm_and_si128(code, _mm_set1_epi16(0x7f));
        __m128i sign = _mm_slli_epi16(_mm_xor_si128(code, magnitude), 8);
        __m128i nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f));
        __m128i half = _mm_or_si128(sign, _mm_slli_epi16(magnitude, 7));
        __m256 value = _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
        __m256i wide_sign = _mm256_slli_epi32(_mm256_cvtepu16_epi32(sign), 16);
        __m256i quiet = _mm256_or_si256(wide_sign, mo_all8(MO_F32_NAN_BITS));
        v[k] = _mm256_blendv_epi8(_mm256_castps_si256(value), quiet, _mm256_cvtepi16_epi32(nan));
    }
}

/* --- rounding: 8 values, codes in 32-bit lanes ----------------------------------------------- */

MO_INLINE __m256i round_nearest(__m256i a, uint32_t mantissa, uint32_t bias)
{
    int shift = 23 - (int)mantissa;
    uint32_t magic = (151 - bias - mantissa) << 23;
    __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(a, shift), mo_all8(1));
    __m256i bump = mo_all8((1u << (shift - 1)) - 1 - ((127 - bias) << 23));
    __m256i normal = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(a, bump), lsb), shift);
    __m256 sum = _mm256_add_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(mo_all8(magic)));
    __m256i subnormal = _mm256_sub_epi32(_mm256_castps_si256(sum), mo_all8(magic));
    return mo_choose8(subnormal, normal, mo_above8(a, ((128 - bias) << 23) - 1));
}

MO_INLINE __m256i bf16_nearest(__m256i u)
{
    __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(u, 16), mo_all8(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, mo_all8(0x7fff)), lsb);
    return _mm256_srli_epi32(mo_bf16_quiet_nan8(rounded, u), 16);
}

MO_INLINE __m256i finish_f8(__m256i u, __m256i code, uint32_t largest, uint32_t limit, int saturate)
{
    __m256i a = mo_without_sign8(u);
    __m256i overflow = mo_all8(saturate ? largest : largest + 1);
    __m256i sign = _mm256_and_si256(_mm256_srli_epi32(u, 24), mo_all8(0x80));
    __m256i over = _mm256_or_si256(mo_above8(code, largest), mo_above8(a, limit - 1));
    code = mo_choose8(code, overflow, over);
    code = mo_choose8(code, mo_all8(0x7f), mo_above8(a, MO_F32_INF_BITS));
    return _mm256_or_si256(code, sign);
}

MO_INLINE __m256i e4m3_nearest(__m256i u, int saturate)
{
    return finish_f8(u, round_nearest(mo_without_sign8(u), 3, 7), 0x7e, 0x43f00000u, saturate);
}

MO_INLINE __m256i e5m2_nearest(__m256i u, int saturate)
{
    return finish_f8(u, round_nearest(mo_without_sign8(u), 2, 15), 0x7b, 0x47800000u, saturate);
}

MO_INLINE __m256i e4m3_stochastic(__m256i u, __m256i random, int saturate)
{
    __m256i a = mo_without_sign8(u);
    __m256i code = mo_round_stochastic8(a, 3, 7, random);
    code = mo_choose8(code, mo_all8(0x7e), mo_above8(a, 0x43dfffffu));
    return finish_f8(u, code, 0x7e, 0x43f00000u, saturate);
}

MO_INLINE __m256i e5m2_stochastic(__m256i u, __m256i random, int saturate)
{
    __m256i a = mo_without_sign8(u);
    __m256i code = mo_round_stochastic8(a, 2, 15, random);
    code = mo_choose8(code, mo_all8(0x7b), mo_above8(a, 0x475fffffu));
    return finish_f8(u, code, 0x7b, 0x47800000u, saturate);
}

/* --- stores: 32 elements --------------------------------------------------------------------- */

MO_INLINE __m256i pack(__m256i a, __m256i b)
{
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
}

MO_INLINE void put_halves(unsigned char *base, uint64_t i, const __m256i v[4], int streaming)
{
    put(base + 2 * i, pack(v[0], v[1]), streaming);
    put(base + 2 * i + 32, pack(v[2], v[3]), streaming);
}

MO_INLINE void put_bytes(unsigned char *base, uint64_t i, const __m256i v[4], int streaming)
{
    __m256i codes = _mm256_packus_epi16(pack(v[0], v[1]), pack(v[2], v[3]));
    put(base + i, _mm256_permute4x64_epi64(codes, 0xd8), streaming);
}

MO_INLINE void store_f32(const mo_cast_piece *p, uint64_t i, __m256i v[4])
{
    for (int k = 0; k < 4; k++)
        put(p->destination + 4 * i + 32 * k, v[k], p->streaming);
}

MO_INLINE void store_bf16(const mo_cast_piece *p, uint64_t i, __m256i v[4])
{
    for (int k = 0; k < 4; k++)
        v[k] = bf16_nearest(v[k]);
    put_halves(p->destination, i, v, p->streaming);
}

MO_INLINE void store_f16(const mo_cast_piece *p, uint64_t i, __m256i v[4])
{
    for (int k = 0; k < 4; k += 2) {
        __m128i low = _mm256_cvtps_ph(_mm256_castsi256_ps(v[k]), _MM_FROUND_TO_NEAREST_INT);
        __m128i high = _mm256_cvtps_ph(_mm256_castsi256_ps(v[k + 1]), _MM_FROUND_TO_NEAREST_INT);
        put(p->destination + 2 * i + 16 * k, _mm256_set_m128i(high, low), p->streaming);
    }
}

MO_INLINE void store_e4m3(const mo_cast_piece *p, uint64_t i, __m256i v[4])
{
    for (int k = 0; k < 4; k++)
        v[k] = e4m3_nearest(v[k], p->saturate);
    put_bytes(p->destination, i, v, p->streaming);
}

MO_INLINE void store_e5m2(const mo_cast_piece *p, uint64_t i, __m256i v[4])
{
    for (int k = 0; k < 4; k++)
        v[k] = e5m2_nearest(v[k], p->saturate);
    put_bytes(p->destination, i, v, p->streaming);
}

MO_INLINE void dither_bf16(const mo_cast_piece *p, uint64_t i, __m256i v[4],
                           const __m256i random[2])
{
    for (int k = 0; k < 4; k++)
        v[k] = mo_bf16_stochastic8(v[k], mo_widen_bits8(random, k));
    put_halves(p->destination, i, v, p->streaming);
}

MO_INLINE void dither_f16(const mo_cast_piece *p, uint64_t i, __m256i v[4], const __m256i random[2])
{
    for (int k = 0; k < 4; k++)
        v[k] = mo_f16_stochastic8(v[k], mo_widen_bits8(random, k));
    put_halves(p->destination, i, v, p->streaming);
}

MO_INLINE void dither_e4m3(const mo_cast_piece *p, uint64_t i, __m256i v[4],
                           const __m256i random[2])
{
    for (int k = 0; k < 4; k++)
        v[k] = e4m3_stochastic(v[k], mo_widen_bits8(random, k), p->saturate);
    put_bytes(p->destination, i, v, p->streaming);
}

MO_INLINE void dither_e5m2(const mo_cast_piece *p, uint64_t i, __m256i v[4],
                           const __m256i random[2])
{
    for (int k = 0; k < 4; k++)
        v[k] = e5m2_stochastic(v[k], mo_widen_bits8(random, k), p->saturate);
    put_bytes(p->destination, i, v, p->streaming);
}

/* --- pieces ---------------------------------------------------------------------------------- */

MO_INLINE void ask_ahead(const mo_cast_piece *piece, uint64_t i, uint32_t size)
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
            mo_random_bits8(&piece->stream, piece->first + i, random);                             \
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
