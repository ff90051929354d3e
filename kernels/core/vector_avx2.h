/*
 * The vocabulary of vectors on AVX2 with FMA and F16C: maths that stands once, for every
 * instruction set, uses these names (optim/step_coded.h); vector_avx512.h and vector_neon.h have the
 * same ones.
 *
 * VF and VI are MO_LANES_N floats and int32, VD half as many doubles, VM what compares give.
 * v_load_as and v_store_as take f32, f16 or bf16 elements: callers pass a constant type, so the
 * choice is made by the compiler.
 */
#ifndef MO_KERNELS_CORE_VECTOR_AVX2_H
#define MO_KERNELS_CORE_VECTOR_AVX2_H

#include "kernels/core/numerics.h"

#include <immintrin.h>

#define MO_INLINE static inline __attribute__((always_inline))

enum { MO_LANES_N = 8, MO_LANES_D = 4 };
typedef __m256 VF, VM;
typedef __m256i VI;
typedef __m256d VD;

#define v_set _mm256_set1_ps
#define v_seti _mm256_set1_epi32
#define v_load _mm256_loadu_ps
#define v_store _mm256_storeu_ps
#define v_add _mm256_add_ps
#define v_sub _mm256_sub_ps
#define v_mul _mm256_mul_ps
#define v_div _mm256_div_ps
#define v_sqrt _mm256_sqrt_ps
#define v_min _mm256_min_ps
#define v_fma _mm256_fmadd_ps
#define v_bits _mm256_castsi256_ps
#define v_ints _mm256_castps_si256
#define v_float _mm256_cvtepi32_ps
#define v_and _mm256_and_si256
#define v_or _mm256_or_si256
#define v_xor _mm256_xor_si256
#define v_xor3(x, y, z) v_xor(v_xor(x, y), z)
#define v_addi _mm256_add_epi32
#define v_subi _mm256_sub_epi32
#define v_muli _mm256_mullo_epi32
/* The upper halves of numbers that are not negative, times a constant of 16 bits. */
#define v_mul_upper(x, k) _mm256_madd_epi16(x, v_seti((int)((uint32_t)(k) << 16)))
#define v_maxi _mm256_max_epi32
#define v_mini _mm256_min_epi32
/* The larger magnitude; whether NaN counts is the instruction set's affair. */
#define v_max_magnitude(top, x) v_bits(v_maxi(v_ints(top), v_and(v_ints(x), v_seti(0x7fffffff))))
#define v_maxu _mm256_max_epu32
#define v_sll _mm256_slli_epi32
#define v_srl _mm256_srli_epi32
#define v_is_nan(x) _mm256_cmp_ps(x, x, _CMP_UNORD_Q)
#define v_any_nan(x) (_mm256_movemask_ps(v_is_nan(x)) != 0)
#define v_not_zero(x) _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_NEQ_OQ) /* nor NaN */
#define v_lt(a, b) _mm256_cmp_ps(a, b, _CMP_LT_OQ)
#define v_gti(a, b) _mm256_castsi256_ps(_mm256_cmpgt_epi32(a, b))
#define v_eqi(a, b) _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b))
#define v_select(mask, a, b) _mm256_blendv_ps(b, a, mask)
#define v_selecti(mask, a, b) _mm256_castps_si256(_mm256_blendv_ps(v_bits(b), v_bits(a), mask))
#define v_only(mask, x) v_and(v_ints(mask), x)
#define v_count(n, mask) _mm256_sub_epi32(n, _mm256_castps_si256(mask))
#define v_cut _mm256_cvttps_epi32
#define v_set64 _mm256_set1_epi64x
#define v_add64 _mm256_add_epi64
#define v_srl64 _mm256_srli_epi64
#define v_mul_wide _mm256_mul_epu32
#define v_min_bytes _mm256_min_epu8
#define v_add_bytes _mm256_add_epi8
#define v_less_bytes _mm256_subs_epu8 /* a - b, at least 0 */
#define v_setd _mm256_set1_pd
#define v_addd _mm256_add_pd
#define v_fmad _mm256_fmadd_pd
#define v_stored _mm256_storeu_pd
#define v_double_low(x) _mm256_cvtps_pd(_mm256_castps256_ps128(x))
#define v_double_high(x) _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1))

/* Lanes of 64 bits times a constant: the product of the lower halves, and the mixed products in the
 * upper half. */
MO_INLINE VI v_mul64(VI a, uint64_t b)
{
    VI mixed = _mm256_mullo_epi32(a, v_set64((long long)(b << 32 | b >> 32)));
    mixed = _mm256_add_epi32(mixed, _mm256_slli_epi64(mixed, 32));
    mixed = _mm256_blend_epi32(mixed, _mm256_setzero_si256(), 0x55);
    return _mm256_add_epi64(_mm256_mul_epu32(a, v_set64((long long)b)), mixed);
}

/* --- elements in memory ----------------------------------------------------------------------- */

MO_INLINE __m256 mo_load8(const void *data, uint64_t i, int32_t dtype)
{
    if (dtype == MO_DTYPE_F32)
        return _mm256_loadu_ps((const float *)data + i);
    __m128i half = _mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)data + i));
    if (dtype == MO_DTYPE_BF16) {
        const __m256i upper =
            _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7, -1, -1, 8, 9,
                             -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
        return _mm256_castsi256_ps(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(half), upper));
    }
    return _mm256_cvtph_ps(half);
}

/* Nearest even in integers; NaN keeps its upper bits and becomes quiet. */
MO_INLINE __m128i mo_bf16x8(__m256 value)
{
    __m256i u = _mm256_castps_si256(value);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x00400000));
    r = _mm256_blendv_epi8(r, quiet,
                           _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q)));
    r = _mm256_srli_epi32(r, 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}

/* Rounds to nearest even. */
MO_INLINE void mo_store8(void *data, uint64_t i, int32_t dtype, __m256 value)
{
    __m128i *halves = (__m128i *)(void *)((uint16_t *)data + i);
    if (dtype == MO_DTYPE_F32)
        _mm256_storeu_ps((float *)data + i, value);
    else if (dtype == MO_DTYPE_BF16)
        _mm_storeu_si128(halves, mo_bf16x8(value));
    else
        _mm_storeu_si128(halves, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

MO_INLINE VI v_loadi(const void *at)
{
    return _mm256_loadu_si256((const __m256i *)at);
}

/* Past the caches where `streaming`; then `at` is aligned to the vector. */
MO_INLINE void v_put(void *at, VI x, int streaming)
{
    if (streaming)
        _mm256_stream_si256((__m256i *)at, x);
    else
        _mm256_storeu_si256((__m256i *)at, x);
}

/* Two vectors. */
MO_INLINE void v_load2_as(const void *data, uint64_t i, int32_t dtype, VF x[2])
{
    for (uint64_t k = 0; k < 2; k++)
        x[k] = mo_load8(data, i + 8 * k, dtype);
}

#define v_load_as mo_load8
#define v_store_as mo_store8

/* Two vectors to bf16, nearest even; the only NaN that they may hold is MO_F32_NAN_BITS. */
MO_INLINE void v_store_bf16_pair(uint16_t *halves, __m256 a, __m256 b)
{
    __m256i u[2] = {_mm256_castps_si256(a), _mm256_castps_si256(b)};
    for (int k = 0; k < 2; k++) {
        __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u[k], 16), _mm256_set1_epi32(1));
        u[k] = _mm256_add_epi32(_mm256_add_epi32(u[k], _mm256_set1_epi32(0x7fff)), odd);
        u[k] = _mm256_srli_epi32(u[k], 16);
    }
    __m256i packed = _mm256_packus_epi32(u[0], u[1]);
    _mm256_storeu_si256((__m256i *)(void *)halves, _mm256_permute4x64_epi64(packed, 0xd8));
}

/* Whatever NaN an operation made becomes the one that is stored. */
MO_INLINE __m256 mo_one_nan8(__m256 x)
{
    __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32((int)MO_F32_NAN_BITS));
    return _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

#define v_one_nan mo_one_nan8

/* --- codes of a byte, a lane each ------------------------------------------------------------- */

MO_INLINE __m256i mo_codes8(const uint8_t *codes)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)codes));
}

/* The same of signed codes. */
MO_INLINE __m256i v_load_signed(const uint8_t *codes)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)codes));
}

/* e5m2 is the upper byte of f16. */
MO_INLINE VF v_load_e5m2(const uint8_t *codes)
{
    __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)codes);
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 8));
}

#define v_load_codes mo_codes8

/* --- narrower lanes, in order ----------------------------------------------------------------- */

/* The lower halves of the lanes of a, then of b; the upper halves are zero. */
MO_INLINE VI v_low_halves(VI a, VI b)
{
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
}

MO_INLINE VI v_high_halves(VI a, VI b)
{
    return v_low_halves(v_srl(a, 16), v_srl(b, 16));
}

/* Whether one of four is NaN or, on AVX-512, such that v_store_bf16x4 must be careful. */
MO_INLINE int v_odd4(const VF x[4])
{
    VF odd = _mm256_or_ps(_mm256_cmp_ps(x[0], x[1], _CMP_UNORD_Q),
                          _mm256_cmp_ps(x[2], x[3], _CMP_UNORD_Q));
    return _mm256_movemask_ps(odd) != 0;
}

/* Four vectors to bf16. Where `careful`, the only NaN is MO_F32_NAN_BITS; else none is v_odd4. */
MO_INLINE void v_store_bf16x4(uint16_t *halves, const VF x[4], int careful)
{
    (void)careful;
    v_store_bf16_pair(halves, x[0], x[1]);
    v_store_bf16_pair(halves + 16, x[2], x[3]);
}

/* To f16, to nearest even. */
MO_INLINE VI v_f16(VF a, VF b)
{
    return _mm256_set_m128i(_mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

MO_INLINE __m256i mo_in_order8(__m256i packed)
{
    return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* The lanes of four vectors as signed bytes; what is larger becomes the nearest of -128 and 127. */
MO_INLINE VI v_pack_bytes(const VI v[4])
{
    return mo_in_order8(
        _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3])));
}

/* A lane for each halfword of the lower and of the upper half of x. */
#define v_widen_low(x) _mm256_cvtepu16_epi32(_mm256_castsi256_si128(x))
#define v_widen_high(x) _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1))

/* The even lanes of a and b by turns: a0 b0 a2 b2 … */
#define v_even32(a, b) _mm256_blend_epi32(a, _mm256_slli_epi64(b, 32), 0xaa)

/* In every 16 bytes by turns: lanes of 32 or 64 bits of the lower, or upper, 8 bytes of a and b. */
#define v_zip32_low _mm256_unpacklo_epi32
#define v_zip32_high _mm256_unpackhi_epi32
#define v_zip64_low _mm256_unpacklo_epi64
#define v_zip64_high _mm256_unpackhi_epi64
#define v_zip8_low _mm256_unpacklo_epi8
#define v_zip8_high _mm256_unpackhi_epi8
/* x with its 8 bytes in such an order that zips of it are in order. */
#define v_zip_order(x) _mm256_permute4x64_epi64(x, 0xd8)

/* The codes of 4 bits of MO_LANES_N elements, an even one's in the upper half of its byte: in the
 * low bits of each lane, with others above. */
MO_INLINE VI v_load_codes4(const uint8_t *pairs)
{
    int32_t word;
    __builtin_memcpy(&word, pairs, sizeof word);
    return _mm256_srlv_epi32(_mm256_set1_epi32(word),
                             _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24));
}

/* The same where an even element's code is in the lower half of its byte. */
MO_INLINE VI v_load_low4(const uint8_t *pairs)
{
    int32_t word;
    __builtin_memcpy(&word, pairs, sizeof word);
    return _mm256_srlv_epi32(_mm256_set1_epi32(word),
                             _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
}

/* --- bytes; v_minb and v_maxb compare signed ones --------------------------------------------- */

#define v_setb _mm256_set1_epi8
#define v_minb _mm256_min_epi8
#define v_maxb _mm256_max_epi8

/* The same as bytes from 0 to 255. */
MO_INLINE VI v_bytes(const VI x[4])
{
    return mo_in_order8(
        _mm256_packus_epi16(_mm256_packs_epi32(x[0], x[1]), _mm256_packs_epi32(x[2], x[3])));
}

/* Bytes of halfwords of four vectors by turns, in order. */
MO_INLINE VI mo_byte_order(VI bytes)
{
    const VI in_lane = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    return mo_in_order8(_mm256_shuffle_epi8(bytes, in_lane));
}

/* The halfwords from a byte of each lane of a and b on, by turns; byte is 0, 1 or 2. */
MO_INLINE VI mo_pairs16(VI a, VI b, int byte)
{
    a = byte == 0 ? a : v_srl(a, 8 * byte);
    return _mm256_blend_epi16(a, byte == 2 ? b : v_sll(b, 16 - 8 * byte), 0xaa);
}

/* The upper halves of the lanes of a and b by turns. */
#define v_pair_up(a, b) mo_pairs16(a, b, 2)

/* The lowest bytes of four vectors; the lower halfwords are from -128 to 127. */
MO_INLINE VI v_low_bytes(const VI x[4])
{
    return mo_byte_order(_mm256_packs_epi16(mo_pairs16(x[0], x[1], 0), mo_pairs16(x[2], x[3], 0)));
}

/* The bytes of (x - least) >> 8 of four vectors, 0 where x is smaller. `least` has but its upper
 * byte. */
MO_INLINE VI v_second_bytes(const VI x[4], int32_t least)
{
    (void)least;
    return mo_byte_order(_mm256_packus_epi16(mo_pairs16(x[0], x[1], 1), mo_pairs16(x[2], x[3], 1)));
}

/* `weights`: what an even and an odd code are multiplied by, as bytes of a halfword. */
MO_INLINE void mo_store_pairs8(uint8_t *pairs, VI x, short weights)
{
    __m256i words = _mm256_maddubs_epi16(x, _mm256_set1_epi16(weights));
    _mm_storeu_si128(
        (__m128i *)(void *)pairs,
        _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

/* Codes of 4 bits, two a byte, as v_load_codes4 reads them, and as v_load_low4 does. */
#define v_store_bytes4(pairs, x) mo_store_pairs8(pairs, x, 0x0110)
#define v_store_low4(pairs, x) mo_store_pairs8(pairs, x, 0x1001)

/* --- halfwords -------------------------------------------------------------------------------- */

#define v_seth(x) _mm256_set1_epi16((short)(x))
#define v_addh _mm256_add_epi16
#define v_subh _mm256_sub_epi16
#define v_less_halves _mm256_subs_epu16 /* a - b of unsigned ones, at least 0 */
#define v_min_halves _mm256_min_epi16   /* as signed numbers, and the next one */
#define v_max_halves _mm256_max_epi16
#define v_srlh _mm256_srli_epi16
#define v_zip16_low _mm256_unpacklo_epi16
#define v_zip16_high _mm256_unpackhi_epi16
#define v_sub_bytes _mm256_sub_epi8
#define v_any(x) (!_mm256_testz_si256(x, x))
#define v_merge(x, y, mask) v_or(x, v_and(y, mask))

/* Each halfword of n and 1 where a is larger than b, as signed numbers. */
#define v_count_halves(n, a, b) _mm256_sub_epi16(n, _mm256_cmpgt_epi16(a, b))

/* How many of seven ascending borders are below each halfword of a: for each 16 halfwords of a
 * vector a table of eight, the first alone here, of which the last does not count. Three steps find
 * it; the result is a number that v_found knows. Reads 16 bytes from a table's second border on. */
enum { V_BLOCKS16 = 1 };
MO_INLINE VI v_search7(const int16_t *first, const int16_t *second, VI a)
{
    (void)second;
    VI even = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)first));
    VI odd =
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(first + 1)));
    VI above = _mm256_cmpgt_epi16(a, _mm256_set1_epi16(first[3]));
    VI at = _mm256_add_epi16(_mm256_and_si256(above, v_seth(0x0808)), v_seth(0x0100));
    above = _mm256_cmpgt_epi16(a, _mm256_shuffle_epi8(odd, at));
    at = _mm256_add_epi16(_mm256_and_si256(above, v_seth(0x0404)), at);
    above = _mm256_cmpgt_epi16(a, _mm256_shuffle_epi8(even, at));
    return _mm256_sub_epi16(_mm256_and_si256(at, v_seth(0xff)), above);
}

/* Halfwords of two vectors as bytes from 0 to 255, or from -128 to 127, in an order that
 * v_pack_order mends. */
#define v_pack_halves _mm256_packus_epi16
#define v_pack_signed _mm256_packs_epi16
#define v_pack_order(x) _mm256_permute4x64_epi64(x, 0xd8)

/* The lanes, from 0 to 255, as MO_LANES_N bytes. */
MO_INLINE void v_put_bytes(uint8_t *at, VI x)
{
    __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storel_epi64((__m128i *)(void *)at, _mm_packus_epi16(halves, halves));
}

/* Codes of 4 bits in the bytes of two vectors in that order: two a byte, as v_load_low4 reads them,
 * in order. */
MO_INLINE VI v_pack_low4(VI a, VI b)
{
    const VI weights = v_seth(0x1001);
    return mo_in_order8(
        _mm256_packus_epi16(_mm256_maddubs_epi16(a, weights), _mm256_maddubs_epi16(b, weights)));
}

/* --- look-ups and reductions ------------------------------------------------------------------ */

/* VT: a table of 16 floats, each times the factor; v_look16 takes the low four bits of an index. */
typedef struct VT {
    __m256 low, high;
} VT;

MO_INLINE VT v_table16(const uint32_t *table, VF factor)
{
    VF low = _mm256_loadu_ps((const float *)(const void *)table);
    VF high = _mm256_loadu_ps((const float *)(const void *)(table + 8));
    return (VT){v_mul(low, factor), v_mul(high, factor)};
}

/* Codes of e2m1: what v_search7 has found, in bytes, with bit 3 of `sign`. */
#define v_found(found, sign)                                                                       \
    v_merge(v_lookup((const uint8_t[16]){0, 1, 0, 0, 2, 3, 0, 0, 4, 5, 0, 0, 6, 7}, found), sign,  \
            v_seti(0x08080808))

/* One of 16 bytes by each byte of the index, below 16. */
MO_INLINE VI v_lookup(const uint8_t table[16], VI index)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), index);
}

/* How many of seven ascending bytes are below each byte of a, all of them from 0 to 127. `second`
 * has the second, fourth and sixth of them in its bytes 0, 1 and 4, `third` the others in 0, 2, 4
 * and 6. Reads 16 bytes of each. */
MO_INLINE VI v_search8(const int8_t *second, const int8_t *third, VI a)
{
    VI above = _mm256_cmpgt_epi8(a, v_setb(second[1]));
    VI at = v_and(above, v_setb(4));
    above = _mm256_cmpgt_epi8(a, v_lookup((const uint8_t *)second, at));
    at = v_or(at, v_and(above, v_setb(2)));
    above = _mm256_cmpgt_epi8(a, v_lookup((const uint8_t *)third, at));
    return _mm256_sub_epi8(at, above);
}

MO_INLINE VI mo_two_tables(const uint8_t *first, const uint8_t *second)
{
    return _mm256_set_m128i(_mm_loadu_si128((const __m128i *)(const void *)second),
                            _mm_loadu_si128((const __m128i *)(const void *)first));
}

/* 32 codes of 4 bits, as v_load_low4 reads them, to halfwords in memory: by the first table, then
 * by the second. A table has 16 lower bytes, 16 upper bytes and 16 halfwords. */
MO_INLINE void v_put_pairs(unsigned char *at, const uint8_t *pairs, const uint8_t *first,
                           const uint8_t *second, int streaming)
{
    VI x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)pairs));
    x = v_and(v_or(x, _mm256_slli_epi16(x, 4)), v_seti(0x0f0f0f0f));
    VI low = _mm256_shuffle_epi8(mo_two_tables(first, second), x);
    VI high = _mm256_shuffle_epi8(mo_two_tables(first + 16, second + 16), x);
    VI even = _mm256_unpacklo_epi8(low, high), odd = _mm256_unpackhi_epi8(low, high);
    v_put(at, _mm256_permute2x128_si256(even, odd, 0x20), streaming);
    v_put(at + sizeof(VI), _mm256_permute2x128_si256(even, odd, 0x31), streaming);
}

/* A table for v_put_codes4 of 16 halfwords: 32 bytes. */
MO_INLINE void v_make_codes4(uint8_t *table, const uint16_t *halves)
{
    const VI apart = _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4,
                                      6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    v_put(table, v_zip_order(_mm256_shuffle_epi8(v_loadi(halves), apart)), 0);
}

/* 32 codes of 4 bits, as v_load_codes4 reads them, to halfwords of a table in memory. */
MO_INLINE void v_put_codes4(unsigned char *at, const uint8_t *pairs, const uint8_t *table,
                            int streaming)
{
    VI x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)pairs));
    x = v_and(v_or(_mm256_srli_epi16(x, 4), _mm256_slli_epi16(x, 8)), v_seti(0x0f0f0f0f));
    x = v_zip_order(x);
    VI low = v_lookup(table, x), high = v_lookup(table + 16, x);
    v_put(at, v_zip8_low(low, high), streaming);
    v_put(at + sizeof(VI), v_zip8_high(low, high), streaming);
}

MO_INLINE VF v_look16(const VT *table, VI index)
{
    VF upper = v_bits(v_sll(index, 28)); /* the sign: bit 3 of the index */
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table->low, index),
                            _mm256_permutevar8x32_ps(table->high, index), upper);
}

/* The largest of non-negative int32. */
MO_INLINE uint32_t v_largest(VI bits)
{
    __m128i x = _mm_max_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(x);
}

/* The largest of unsigned ones. */
MO_INLINE uint32_t v_largestu(VI bits)
{
    __m128i x = _mm_max_epu32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 0x4e));
    x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(x);
}

/* The largest halfword as a signed number; it is not negative. */
MO_INLINE uint32_t mo_largest_half8(__m128i x)
{
    __m128i least = _mm_minpos_epu16(_mm_xor_si128(x, _mm_set1_epi16(0x7fff)));
    return ((uint32_t)_mm_cvtsi128_si32(least) & 0x7fff) ^ 0x7fff;
}

MO_INLINE uint32_t v_largest_half(VI halves)
{
    return mo_largest_half8(
        _mm_max_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
}

/* Of 8 vectors, *x alone here, whose halfword k of each 16 bytes is of vector k: the largest of
 * each vector in a lane. */
MO_INLINE VI v_largest_halves(const VI *x)
{
    return _mm256_cvtepu16_epi32(
        _mm_max_epi16(_mm256_castsi256_si128(*x), _mm256_extracti128_si256(*x, 1)));
}

/* The same of MO_LANES_N vectors of words: word k of each 16 bytes of x[t] is of vector 4 t + k. */
MO_INLINE VI v_largest_words(const VI *x)
{
    return v_maxi(_mm256_permute2x128_si256(x[0], x[1], 0x20),
                  _mm256_permute2x128_si256(x[0], x[1], 0x31));
}

/* The bits of f16 without sign, a lane each, as those of f32; NaNs become quiet. */
#define v_f16_bits(x)                                                                              \
    _mm256_castps_si256(_mm256_cvtph_ps(                                                           \
        _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1))))

/* The same for every 16 halfwords of the vectors. */
#define v_largest_halves16 v_largest_halves

/* The largest of 16 halfwords in memory without their upper bits. */
MO_INLINE uint32_t v_largest16(const void *at)
{
    return v_largest_half(_mm256_and_si256(v_loadi(at), _mm256_set1_epi16(0x7fff)));
}

#endif
