/*
 * The AVX-512 form of the cast kernel: 64 elements at a time (128 with random bits), as four
 * vectors of f32 bits. bfloat16 is rounded by integer arithmetic, since the hardware conversion
 * flushes denormals. Whole cache lines are written past the caches where outputs are large.
 */
#include "kernels/cast/cast_cpu.h"
#include "kernels/core/prefetch.h"
#include "kernels/core/stochastic_avx512.h"

MO_INLINE void put(unsigned char *at, __m512i value, int streaming)
{
    if (streaming)
        _mm512_stream_si512((void *)at, value);
    else
        _mm512_storeu_si512(at, value);
}

/* --- loads: 64 elements as f32 bits ---------------------------------------------------------- */

MO_INLINE void load_f32(const unsigned char *base, uint64_t i, __m512i v[4])
{
    for (int k = 0; k < 4; k++)
        v[k] = _mm512_loadu_si512(base + 4 * i + 64 * k);
}

MO_INLINE __m256i halfwords(const unsigned char *base, uint64_t i, int k)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)(base + 2 * i + 32 * k));
}

MO_INLINE void load_bf16(const unsigned char *base, uint64_t i, __m512i v[4])
{
    for (int k = 0; k < 4; k++)
        v[k] = _mm512_slli_epi32(_mm512_cvtepu16_epi32(halfwords(base, i, k)), 16);
}

MO_INLINE void load_f16(const unsigned char *base, uint64_t i, __m512i v[4])
{
    for (int k = 0; k < 4; k++)
        v[k] = _mm512_castps_si512(_mm512_cvtph_ps(halfwords(base, i, k)));
}

MO_INLINE __m256i bytes(const unsigned char *base, uint64_t i, int k)
{
    return _mm256_cvtepu8_epi16(
        _mm_loadu_si128((const __m128i *)(const void *)(base + i + 16 * k)));
}

MO_INLINE void load_e5m2(const unsigned char *base, uint64_t i, __m512i v[4])
{
    for (int k = 0; k < 4; k++)
        v[k] = _mm512_castps_si512(_mm512_cvtph_ps(_mm256_slli_epi16(bytes(base, i, k), 8)));
}

/* As a half with the same mantissa the value is 2^-8 of what it should be, subnormals included. */
MO_INLINE void load_e4m3(const unsigned char *base, uint64_t i, __m512i v[4])
{
    for (int k = 0; k < 4; k++) {
        __m256i code = bytes(base, i, k);
        __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi16(0x7f));
        __m256i sign = _mm256_slli_epi16(_mm256_xor_si256(code, magnitude), 8);
        __mmask16 nan = _mm256_cmpeq_epi16_mask(magnitude, _mm256_set1_epi16(0x7f));
        __m256i half = _mm256_or_si256(sign, _mm256_slli_epi16(magnitude, 7));
        __m512 value = _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f));
        __m512i wide_sign = _mm512_slli_epi32(_mm512_cvtepu16_epi32(sign), 16);
        v[k] = _mm512_mask_or_epi32(_mm512_castps_si512(value), nan, wide_sign,
                                    mo_all16(MO_F32_NAN_BITS));
    }
}

/* --- random bits ----------------------------------------------------------------------------- */

/* The random halfwords of 128 elements from `element` (a multiple of 128) on, 32 a vector. The
 * lanes take the blocks in such an order that the 4 x 4 transposition below leaves them sorted. */
MO_INLINE void random_128(const mo_random_stream *stream, uint64_t element, __m512i r[4])
{
    uint64_t block = element / 8;
    __m512i base = _mm512_set1_epi64((long long)block);
    __m512i a[4], b[4], w[4];
    a[0] = _mm512_add_epi64(base, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11));
    b[0] = _mm512_add_epi64(base, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15));
    a[1] = b[1] = _mm512_set1_epi64((long long)(block >> 32));
    a[2] = b[2] = _mm512_set1_epi64(stream->high[0]);
    a[3] = b[3] = _mm512_set1_epi64(stream->high[1]);
    mo_philox16(a, stream->key[0], stream->key[1]);
    mo_philox16(b, stream->key[0], stream->key[1]);
    for (int k = 0; k < 4; k++)
        w[k] = _mm512_mask_shuffle_epi32(a[k], 0xaaaa, b[k], _MM_PERM_CCAA);
    __m512i x = _mm512_unpacklo_epi32(w[0], w[1]), y = _mm512_unpacklo_epi32(w[2], w[3]);
    __m512i z = _mm512_unpackhi_epi32(w[0], w[1]), t = _mm512_unpackhi_epi32(w[2], w[3]);
    r[0] = _mm512_unpacklo_epi64(x, y);
    r[1] = _mm512_unpackhi_epi64(x, y);
    r[2] = _mm512_unpacklo_epi64(z, t);
    r[3] = _mm512_unpackhi_epi64(z, t);
}

/* --- rounding: 16 values, codes in 32-bit lanes ---------------------------------------------- */

/* mo_round_nearest. Subnormals: adding 2^23 quanta leaves the rounded number of quanta in the
 * mantissa. */
MO_INLINE __m512i round_nearest(__m512i a, uint32_t mantissa, uint32_t bias)
{
    uint32_t shift = 23 - mantissa, magic = (151 - bias - mantissa) << 23;
    __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(a, shift), mo_all16(1));
    __m512i bump = mo_all16((1u << (shift - 1)) - 1 - ((127 - bias) << 23));
    __m512i normal = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(a, bump), lsb), shift);
    __m512 sum = _mm512_add_round_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(mo_all16(magic)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512i subnormal = _mm512_sub_epi32(_mm512_castps_si512(sum), mo_all16(magic));
    return _mm512_mask_mov_epi32(subnormal, mo_above16(a, ((128 - bias) << 23) - 1), normal);
}

/* bf16 in the upper halves of the lanes. */
MO_INLINE __m512i bf16_nearest(__m512i u)
{
    __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(u, 16), mo_all16(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(u, mo_all16(0x7fff)), lsb);
    return _mm512_mask_or_epi32(rounded, mo_above16(mo_without_sign16(u), MO_F32_INF_BITS), u,
                                mo_all16(MO_F32_QUIET_BIT));
}

/* An 8-bit float. `largest`: its largest number's code; from `limit` on the value overflows. */
MO_INLINE __m512i finish_f8(__m512i u, __m512i code, uint32_t largest, uint32_t limit, int saturate)
{
    __m512i a = mo_without_sign16(u);
    __m512i overflow = mo_all16(saturate ? largest : largest + 1);
    __m512i sign = _mm512_and_si512(_mm512_srli_epi32(u, 24), mo_all16(0x80));
    __mmask16 over = (__mmask16)(mo_above16(code, largest) | mo_above16(a, limit - 1));
    code = _mm512_mask_mov_epi32(code, over, overflow);
    code = _mm512_mask_mov_epi32(code, mo_above16(a, MO_F32_INF_BITS), mo_all16(0x7f));
    return _mm512_or_si512(code, sign);
}

MO_INLINE __m512i e4m3_nearest(__m512i u, int saturate)
{
    return finish_f8(u, round_nearest(mo_without_sign16(u), 3, 7), 0x7e, 0x43f00000u, saturate);
}

MO_INLINE __m512i e5m2_nearest(__m512i u, int saturate)
{
    return finish_f8(u, round_nearest(mo_without_sign16(u), 2, 15), 0x7b, 0x47800000u, saturate);
}

/* Between the largest number and `limit` a value rounds down. */
MO_INLINE __m512i e4m3_stochastic(__m512i u, __m512i random, int saturate)
{
    __m512i a = mo_without_sign16(u);
    __m512i code = mo_round_stochastic16(a, 3, 7, random);
    code = _mm512_mask_mov_epi32(code, mo_above16(a, 0x43dfffffu), mo_all16(0x7e));
    return finish_f8(u, code, 0x7e, 0x43f00000u, saturate);
}

MO_INLINE __m512i e5m2_stochastic(__m512i u, __m512i random, int saturate)
{
    __m512i a = mo_without_sign16(u);
    __m512i code = mo_round_stochastic16(a, 2, 15, random);
    code = _mm512_mask_mov_epi32(code, mo_above16(a, 0x475fffffu), mo_all16(0x7b));
    return finish_f8(u, code, 0x7b, 0x47800000u, saturate);
}

/* --- stores: 64 elements --------------------------------------------------------------------- */

/* The halfwords number `odd`, odd + 2, … of a and b. */
MO_INLINE __m512i pack(__m512i a, __m512i b, int odd)
{
    __m512i index = _mm512_cvtepi8_epi16(_mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22,
                                                          24, 26, 28, 30, 32, 34, 36, 38, 40, 42,
                                                          44, 46, 48, 50, 52, 54, 56, 58, 60, 62));
    return _mm512_permutex2var_epi16(a, _mm512_add_epi16(index, _mm512_set1_epi16((short)odd)), b);
}

MO_INLINE void put_halves(unsigned char *base, uint64_t i, const __m512i v[4], int odd,
                          int streaming)
{
    put(base + 2 * i, pack(v[0], v[1], odd), streaming);
    put(base + 2 * i + 64, pack(v[2], v[3], odd), streaming);
}

MO_INLINE void put_bytes(unsigned char *base, uint64_t i, const __m512i v[4], int streaming)
{
    __m256i low = _mm512_cvtepi16_epi8(pack(v[0], v[1], 0));
    __m256i high = _mm512_cvtepi16_epi8(pack(v[2], v[3], 0));
    put(base + i, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), streaming);
}

MO_INLINE void store_f32(const mo_cast_piece *p, uint64_t i, __m512i v[4])
{
    for (int k = 0; k < 4; k++)
        put(p->destination + 4 * i + 64 * k, v[k], p->streaming);
}

MO_INLINE void store_bf16(const mo_cast_piece *p, uint64_t i, __m512i v[4])
{
    for (int k = 0; k < 4; k++)
        v[k] = bf16_nearest(v[k]);
    put_halves(p->destination, i, v, 1, p->streaming);
}

MO_INLINE void store_f16(const mo_cast_piece *p, uint64_t i, __m512i v[4])
{
    for (int k = 0; k < 4; k += 2) {
        __m256i low = _mm512_cvtps_ph(_mm512_castsi512_ps(v[k]), _MM_FROUND_TO_NEAREST_INT);
        __m256i high = _mm512_cvtps_ph(_mm512_castsi512_ps(v[k + 1]), _MM_FROUND_TO_NEAREST_INT);
        put(p->destination + 2 * i + 32 * k,
            _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), p->streaming);
    }
}

MO_INLINE void store_e4m3(const mo_cast_piece *p, uint64_t i, __m512i v[4])
{
    for (int k = 0; k < 4; k++)
        v[k] = e4m3_nearest(v[k], p->saturate);
    put_bytes(p->destination, i, v, p->streaming);
}

MO_INLINE void store_e5m2(const mo_cast_piece *p, uint64_t i, __m512i v[4])
{
    for (int k = 0; k < 4; k++)
        v[k] = e5m2_nearest(v[k], p->saturate);
    put_bytes(p->destination, i, v, p->streaming);
}

MO_INLINE void dither_bf16(const mo_cast_piece *p, uint64_t i, __m512i v[4],
                           const __m512i random[2])
{
    for (int k = 0; k < 4; k++)
        v[k] = mo_bf16_stochastic16(v[k], mo_widen_bits16(random, k));
    put_halves(p->destination, i, v, 1, p->streaming);
}

MO_INLINE void dither_f16(const mo_cast_piece *p, uint64_t i, __m512i v[4], const __m512i random[2])
{
    for (int k = 0; k < 4; k++)
        v[k] = mo_f16_stochastic16(v[k], mo_widen_bits16(random, k));
    put_halves(p->destination, i, v, 0, p->streaming);
}

MO_INLINE void dither_e4m3(const mo_cast_piece *p, uint64_t i, __m512i v[4],
                           const __m512i random[2])
{
    for (int k = 0; k < 4; k++)
        v[k] = e4m3_stochastic(v[k], mo_widen_bits16(random, k), p->saturate);
    put_bytes(p->destination, i, v, p->streaming);
}

MO_INLINE void dither_e5m2(const mo_cast_piece *p, uint64_t i, __m512i v[4],
                           const __m512i random[2])
{
    for (int k = 0; k < 4; k++)
        v[k] = e5m2_stochastic(v[k], mo_widen_bits16(random, k), p->saturate);
    put_bytes(p->destination, i, v, p->streaming);
}

/* --- pieces ---------------------------------------------------------------------------------- */

MO_INLINE void ask_ahead(const mo_cast_piece *piece, uint64_t i, uint32_t size)
{
    if (piece->streaming)
        mo_prefetch_page_ahead(piece->source + i * size, 64 * size);
}

#define NEAREST(from, to, from_dtype, to_dtype)                                                    \
    static void nearest_##from##_##to(const mo_cast_piece *piece, uint64_t start)                  \
    {                                                                                              \
        uint64_t i = start;                                                                        \
        for (; i + 64 <= piece->count; i += 64) {                                                  \
            __m512i v[4];                                                                          \
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
        for (; i + 128 <= piece->count; i += 128) {                                                \
            __m512i v[4], random[4];                                                               \
            random_128(&piece->stream, piece->first + i, random);                                  \
            ask_ahead(piece, i, mo_element_size(from_dtype));                                      \
            ask_ahead(piece, i + 64, mo_element_size(from_dtype));                                 \
            load_##from(piece->source, i, v);                                                      \
            dither_##to(piece, i, v, random);                                                      \
            load_##from(piece->source, i + 64, v);                                                 \
            dither_##to(piece, i + 64, v, random + 2);                                             \
        }                                                                                          \
        mo_cast_scalar_table[1][from_dtype][to_dtype](piece, i);                                   \
    }

#define BOTH(from, to, from_dtype, to_dtype)                                                       \
    NEAREST(from, to, from_dtype, to_dtype) STOCHASTIC(from, to, from_dtype, to_dtype)

MO_CAST_PAIRS(NEAREST, BOTH)

static const mo_cast_table table = MO_CAST_TABLE;

void mo_cast_avx512(const void *args, uint64_t begin, uint64_t end)
{
    if (mo_cast_run((const mo_cast_args *)args, begin, end, table))
        _mm_sfence();
}
