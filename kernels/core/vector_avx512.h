/* The vocabulary of vectors on AVX-512; vector_avx2.h explains it. */
#ifndef MO_KERNELS_CORE_VECTOR_AVX512_H
#define MO_KERNELS_CORE_VECTOR_AVX512_H

#include "kernels/core/numerics.h"

#include <immintrin.h>

#define MO_INLINE static inline __attribute__((always_inline))

enum { MO_LANES_N = 16, MO_LANES_D = 8 };
typedef __m512 VF;
typedef __mmask16 VM;
typedef __m512i VI;
typedef __m512d VD;

#define v_set _mm512_set1_ps
#define v_seti _mm512_set1_epi32
#define v_load _mm512_loadu_ps
#define v_store _mm512_storeu_ps
#define v_add _mm512_add_ps
#define v_sub _mm512_sub_ps
#define v_mul _mm512_mul_ps
#define v_div _mm512_div_ps
#define v_sqrt _mm512_sqrt_ps
#define v_min _mm512_min_ps
#define v_fma _mm512_fmadd_ps
#define v_bits _mm512_castsi512_ps
#define v_ints _mm512_castps_si512
#define v_float _mm512_cvtepi32_ps
#define v_and _mm512_and_si512
#define v_or _mm512_or_si512
#define v_xor _mm512_xor_si512
#define v_xor3(x, y, z) _mm512_ternarylogic_epi32(x, y, z, 0x96)
#define v_addi _mm512_add_epi32
#define v_subi _mm512_sub_epi32
#define v_muli _mm512_mullo_epi32
#define v_mul_upper(x, k) _mm512_madd_epi16(x, v_seti((int)((uint32_t)(k) << 16)))
#define v_maxi _mm512_max_epi32
#define v_mini _mm512_min_epi32
#define v_max_magnitude(top, x) _mm512_range_ps(top, x, 0x0b) /* NaN does not count */
#define v_maxu _mm512_max_epu32
#define v_largestu _mm512_reduce_max_epu32
#define v_sll(x, n) _mm512_slli_epi32(x, (unsigned)(n))
#define v_srl(x, n) _mm512_srli_epi32(x, (unsigned)(n))
#define v_is_nan(x) _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q)
#define v_any_nan(x) (v_is_nan(x) != 0)
#define v_not_zero(x) _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NEQ_OQ) /* nor NaN */
#define v_lt(a, b) _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ)
#define v_gti _mm512_cmpgt_epi32_mask
#define v_eqi _mm512_cmpeq_epi32_mask
#define v_select(mask, a, b) _mm512_mask_blend_ps(mask, b, a)
#define v_selecti(mask, a, b) _mm512_mask_blend_epi32(mask, b, a)
#define v_only _mm512_maskz_mov_epi32
#define v_count(n, mask) _mm512_mask_sub_epi32(n, mask, n, _mm512_set1_epi32(-1))
#define v_largest(x) ((uint32_t)_mm512_reduce_max_epi32(x))
#define v_cut _mm512_cvttps_epi32
#define v_set64 _mm512_set1_epi64
#define v_add64 _mm512_add_epi64
#define v_srl64 _mm512_srli_epi64
#define v_mul_wide _mm512_mul_epu32
#define v_min_bytes _mm512_min_epu8
#define v_add_bytes _mm512_add_epi8
#define v_less_bytes _mm512_subs_epu8
#define v_mul64(a, b) _mm512_mullo_epi64(a, v_set64((long long)(b)))
#define v_setd _mm512_set1_pd
#define v_addd _mm512_add_pd
#define v_fmad _mm512_fmadd_pd
#define v_stored _mm512_storeu_pd
#define v_double_low(x) _mm512_cvtps_pd(_mm512_castps512_ps256(x))
#define v_double_high(x) _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1))

/* --- elements in memory ----------------------------------------------------------------------- */

MO_INLINE __m512 mo_load16(const void *data, uint64_t i, int32_t dtype)
{
    const uint16_t *halves = data;
    if (dtype == MO_DTYPE_F32)
        return _mm512_loadu_ps((const float *)data + i);
    __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)(halves + i));
    if (dtype == MO_DTYPE_BF16)
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    return _mm512_cvtph_ps(half);
}

/* Nearest even in integers, since the hardware's conversion flushes subnormals; NaN keeps its upper
 * bits and becomes quiet. */
MO_INLINE __m256i mo_bf16x16(__m512 value)
{
    __m512i u = _mm512_castps_si512(value);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x00400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16));
}

/* Rounds to nearest even. */
MO_INLINE void mo_store16(void *data, uint64_t i, int32_t dtype, __m512 value)
{
    uint16_t *halves = data;
    if (dtype == MO_DTYPE_F32)
        _mm512_storeu_ps((float *)data + i, value);
    else if (dtype == MO_DTYPE_BF16)
        _mm256_storeu_si256((__m256i *)(void *)(halves + i), mo_bf16x16(value));
    else
        _mm256_storeu_si256((__m256i *)(void *)(halves + i),
                            _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

#define v_loadi _mm512_loadu_si512

MO_INLINE void v_put(void *at, VI x, int streaming)
{
    if (streaming)
        _mm512_stream_si512((VI *)at, x);
    else
        _mm512_storeu_si512(at, x);
}

/* Four vectors. bf16 is widened by one permutation a vector. */
/* Two vectors. */
MO_INLINE void v_load2_as(const void *data, uint64_t i, int32_t dtype, VF x[2])
{
    const uint16_t *halves = (const uint16_t *)data + i;
    if (dtype != MO_DTYPE_BF16) {
        for (uint64_t k = 0; k < 2; k++)
            x[k] = mo_load16(data, i + 16 * k, dtype);
        return;
    }
    /* each element's halfword goes into the upper half of its lane */
    const __m512i index = _mm512_slli_epi32(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 16);
    const __m512i upper = _mm512_add_epi32(index, _mm512_set1_epi32(0x100000));
    __m512i both = _mm512_loadu_si512(halves);
    x[0] = _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, index, both));
    x[1] = _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, upper, both));
}

#define v_load_as mo_load16
#define v_store_as mo_store16

/* Upper halves are bf16. The only NaN of x may be MO_F32_NAN_BITS. */
MO_INLINE __m512i mo_bf16_round16(__m512 x)
{
    __m512i u = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
}

/* Whatever NaN an operation made becomes the one that is stored. */
MO_INLINE __m512 mo_one_nan16(__m512 x)
{
    __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32((int)MO_F32_NAN_BITS));
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
}

#define v_one_nan mo_one_nan16

/* --- codes of a byte, a lane each ------------------------------------------------------------- */

MO_INLINE VI v_load_codes(const uint8_t *codes)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)codes));
}

MO_INLINE VI v_load_signed(const uint8_t *codes)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)codes));
}

MO_INLINE VF v_load_e5m2(const uint8_t *codes)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)codes);
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8));
}

/* --- narrower lanes, in order ----------------------------------------------------------------- */

/* Halfwords `odd`, odd + 2, … of a, then of b. */
MO_INLINE VI mo_halves16(VI a, VI b, int odd)
{
    VI index = _mm512_cvtepi8_epi16(_mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24,
                                                     26, 28, 30, 32, 34, 36, 38, 40, 42, 44, 46, 48,
                                                     50, 52, 54, 56, 58, 60, 62));
    return _mm512_permutex2var_epi16(a, _mm512_add_epi16(index, _mm512_set1_epi16((short)odd)), b);
}

#define v_low_halves(a, b) mo_halves16(a, b, 0)
#define v_high_halves(a, b) mo_halves16(a, b, 1)

MO_INLINE void v_store_bf16_pair(uint16_t *halves, __m512 a, __m512 b)
{
    _mm512_storeu_si512(halves, v_high_halves(mo_bf16_round16(a), mo_bf16_round16(b)));
}

/* The hardware's conversion to bf16 flushes subnormals. */
MO_INLINE int v_odd4(const VF x[4])
{
#if defined(__AVX512BF16__)
    __mmask16 odd[4];
    for (int k = 0; k < 4; k++)
        odd[k] = _mm512_fpclass_ps_mask(x[k], 0xa1);
    return !_kortestz_mask16_u8(_kor_mask16(odd[0], odd[1]), _kor_mask16(odd[2], odd[3]));
#else
    return !_kortestz_mask16_u8(_mm512_cmp_ps_mask(x[0], x[1], _CMP_UNORD_Q),
                                _mm512_cmp_ps_mask(x[2], x[3], _CMP_UNORD_Q));
#endif
}

MO_INLINE void v_store_bf16x4(uint16_t *halves, const VF x[4], int careful)
{
#if defined(__AVX512BF16__)
    if (!careful) {
        _mm512_storeu_si512(halves, (__m512i)_mm512_cvtne2ps_pbh(x[1], x[0]));
        _mm512_storeu_si512(halves + 32, (__m512i)_mm512_cvtne2ps_pbh(x[3], x[2]));
        return;
    }
#endif
    (void)careful;
    v_store_bf16_pair(halves, x[0], x[1]);
    v_store_bf16_pair(halves + 32, x[2], x[3]);
}

MO_INLINE VI v_f16(VF a, VF b)
{
    __m256i low = _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT);
    __m256i high = _mm512_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

MO_INLINE __m512i mo_in_order16(__m512i packed)
{
    return _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), packed);
}

MO_INLINE VI v_pack_bytes(const VI v[4])
{
    return mo_in_order16(
        _mm512_packs_epi16(_mm512_packs_epi32(v[0], v[1]), _mm512_packs_epi32(v[2], v[3])));
}

MO_INLINE VI v_low_bytes(const VI x[4])
{
#if defined(__AVX512VBMI__)
    const VI index = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0x7c787470, 0x6c686460, 0x5c585450,
                                      0x4c484440, 0x3c383430, 0x2c282420, 0x1c181410, 0x0c080400);
    VI low = _mm512_permutex2var_epi8(x[0], index, x[1]);
    VI high = _mm512_permutex2var_epi8(x[2], index, x[3]);
    return _mm512_inserti64x4(low, _mm512_castsi512_si256(high), 1);
#else
    VI y[4];
    for (int k = 0; k < 4; k++)
        y[k] = v_and(x[k], v_seti(0xff));
    return mo_in_order16(
        _mm512_packus_epi16(_mm512_packs_epi32(y[0], y[1]), _mm512_packs_epi32(y[2], y[3])));
#endif
}

MO_INLINE VI v_second_bytes(const VI x[4], int32_t least)
{
    VI y[4];
    for (int k = 0; k < 4; k++)
        y[k] = v_subi(x[k], v_seti(least));
    VI low = _mm512_packus_epi32(y[0], y[1]), high = _mm512_packus_epi32(y[2], y[3]);
    return mo_in_order16(
        _mm512_packus_epi16(_mm512_srli_epi16(low, 8), _mm512_srli_epi16(high, 8)));
}

#define v_widen_low(x) _mm512_cvtepu16_epi32(_mm512_castsi512_si256(x))
#define v_widen_high(x) _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(x, 1))
#define v_even32(a, b) _mm512_mask_shuffle_epi32(a, 0xaaaa, b, _MM_PERM_CCAA)
#define v_zip32_low _mm512_unpacklo_epi32
#define v_zip32_high _mm512_unpackhi_epi32
#define v_zip64_low _mm512_unpacklo_epi64
#define v_zip64_high _mm512_unpackhi_epi64
#define v_zip8_low _mm512_unpacklo_epi8
#define v_zip8_high _mm512_unpackhi_epi8
#define v_zip_order(x) _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), x)

/* Each of two words in eight lanes. */
MO_INLINE VI mo_spread16(const uint8_t *words)
{
    __m512i x = _mm512_castsi128_si512(_mm_loadl_epi64((const __m128i *)(const void *)words));
    return _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), x);
}

MO_INLINE VI v_load_codes4(const uint8_t *pairs)
{
    return _mm512_srlv_epi32(mo_spread16(pairs), _mm512_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24, 4,
                                                                   0, 12, 8, 20, 16, 28, 24));
}

MO_INLINE VI v_load_low4(const uint8_t *pairs)
{
    return _mm512_srlv_epi32(mo_spread16(pairs), _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0,
                                                                   4, 8, 12, 16, 20, 24, 28));
}

/* --- bytes ------------------------------------------------------------------------------------ */

#define v_setb _mm512_set1_epi8
#define v_minb _mm512_min_epi8
#define v_maxb _mm512_max_epi8

MO_INLINE VI v_bytes(const VI x[4])
{
    return mo_in_order16(
        _mm512_packus_epi16(_mm512_packs_epi32(x[0], x[1]), _mm512_packs_epi32(x[2], x[3])));
}

MO_INLINE void mo_store_pairs16(uint8_t *pairs, VI x, short weights)
{
    __m512i words = _mm512_maddubs_epi16(x, _mm512_set1_epi16(weights));
    _mm256_storeu_si256((__m256i *)(void *)pairs, _mm512_cvtepi16_epi8(words));
}

#define v_store_bytes4(pairs, x) mo_store_pairs16(pairs, x, 0x0110)
#define v_store_low4(pairs, x) mo_store_pairs16(pairs, x, 0x1001)

MO_INLINE uint32_t mo_largest_half16(__m256i y)
{
    __m128i x = _mm_max_epi16(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
    __m128i least = _mm_minpos_epu16(_mm_xor_si128(x, _mm_set1_epi16(0x7fff)));
    return ((uint32_t)_mm_cvtsi128_si32(least) & 0x7fff) ^ 0x7fff;
}

MO_INLINE uint32_t v_largest_half(VI halves)
{
    return mo_largest_half16(
        _mm256_max_epi16(_mm512_castsi512_si256(halves), _mm512_extracti64x4_epi64(halves, 1)));
}

MO_INLINE uint32_t v_largest16(const void *at)
{
    __m256i y = _mm256_loadu_si256((const __m256i *)at);
    return mo_largest_half16(_mm256_and_si256(y, _mm256_set1_epi16(0x7fff)));
}

/* --- halfwords -------------------------------------------------------------------------------- */

#define v_seth(x) _mm512_set1_epi16((short)(x))
#define v_addh _mm512_add_epi16
#define v_subh _mm512_sub_epi16
#define v_less_halves _mm512_subs_epu16
#define v_min_halves _mm512_min_epi16
#define v_max_halves _mm512_max_epi16
#ifdef __clang__ /* its count is unsigned, gcc's an int */
#define v_srlh(x, n) _mm512_srli_epi16(x, (unsigned)(n))
#else
#define v_srlh _mm512_srli_epi16
#endif
#define v_zip16_low _mm512_unpacklo_epi16
#define v_zip16_high _mm512_unpackhi_epi16
#define v_sub_bytes _mm512_sub_epi8
#define v_any(x) (_mm512_test_epi32_mask(x, x) != 0)
#define v_merge(x, y, mask) _mm512_ternarylogic_epi32(x, y, mask, 0xf8)
#define v_pair_up(a, b) v_merge(v_srl(a, 16), b, v_seti((int)0xffff0000u))
#define v_count_halves(n, a, b)                                                                    \
    _mm512_mask_sub_epi16(n, _mm512_cmpgt_epi16_mask(a, b), n, _mm512_set1_epi16(-1))
enum { V_BLOCKS16 = 2 };

/* The upper 16 halfwords look up in the second table, from entry 8 on. */
MO_INLINE VI v_search7(const int16_t *first, const int16_t *second, VI a)
{
    const VI one = v_seth(1), start = _mm512_mask_set1_epi16(one, 0xffff0000u, 9);
    const __m128i low = _mm_loadu_si128((const __m128i *)(const void *)first);
    const __m128i high = _mm_loadu_si128((const __m128i *)(const void *)second);
    VI tables = _mm512_castsi256_si512(_mm256_set_m128i(high, low));
    VI border = _mm512_permutexvar_epi16(_mm512_add_epi16(start, v_seth(2)), tables);
    VI at = _mm512_mask_add_epi16(start, _mm512_cmpgt_epi16_mask(a, border), start, v_seth(4));
    __mmask32 above = _mm512_cmpgt_epi16_mask(a, _mm512_permutexvar_epi16(at, tables));
    at = _mm512_mask_add_epi16(_mm512_sub_epi16(at, one), above, at, one);
    above = _mm512_cmpgt_epi16_mask(a, _mm512_permutexvar_epi16(at, tables));
    return _mm512_mask_add_epi16(at, above, at, one);
}

#define v_found(found, sign) _mm512_ternarylogic_epi32(v_seti(0x08080808), sign, found, 0xca)
#define v_pack_halves _mm512_packus_epi16
#define v_pack_signed _mm512_packs_epi16
#define v_pack_order(x) _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), x)

MO_INLINE void v_put_bytes(uint8_t *at, VI x)
{
    _mm_storeu_si128((__m128i *)(void *)at, _mm512_cvtepi32_epi8(x));
}

MO_INLINE VI v_pack_low4(VI a, VI b)
{
    const VI weights = v_seth(0x1001);
    return mo_in_order16(
        _mm512_packus_epi16(_mm512_maddubs_epi16(a, weights), _mm512_maddubs_epi16(b, weights)));
}

/* Two of x: 16 vectors. */
MO_INLINE VI v_largest_halves(const VI *x)
{
    VI low = _mm512_shuffle_i64x2(x[0], x[1], 0x44), high = _mm512_shuffle_i64x2(x[0], x[1], 0xee);
    low = v_max_halves(low, high); /* two parts of x[0], two of x[1] */
    low = v_max_halves(low, _mm512_shuffle_i64x2(low, low, 0xb1));
    return _mm512_cvtepu16_epi32(_mm512_castsi512_si256(
        _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 4, 5, 0, 1, 4, 5), low)));
}

MO_INLINE VI v_largest_words(const VI *x)
{
    VI half[2];
    for (int k = 0; k < 2; k++)
        half[k] = v_maxi(_mm512_shuffle_i64x2(x[2 * k], x[2 * k + 1], 0x44),
                         _mm512_shuffle_i64x2(x[2 * k], x[2 * k + 1], 0xee));
    return v_maxi(_mm512_shuffle_i64x2(half[0], half[1], 0x88),
                  _mm512_shuffle_i64x2(half[0], half[1], 0xdd));
}

#define v_f16_bits(x) _mm512_castps_si512(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)))

MO_INLINE VI v_largest_halves16(const VI *at)
{
    VI x = v_max_halves(*at, _mm512_shuffle_i64x2(*at, *at, 0xb1));
    VI odd = _mm512_shuffle_i64x2(x, x, 0xee);
    return _mm512_cvtepu16_epi32(_mm256_set_m128i(
        _mm_unpackhi_epi16(_mm512_castsi512_si128(x), _mm512_castsi512_si128(odd)),
        _mm_unpacklo_epi16(_mm512_castsi512_si128(x), _mm512_castsi512_si128(odd))));
}

/* --- 128 bytes: with VBMI --------------------------------------------------------------------- */

#if defined(__AVX512VBMI__)
#define V_HAS_LOOKUP128
typedef struct VT128 {
    __m512i low, high;
} VT128;

MO_INLINE VT128 v_table128(const uint8_t table[128])
{
    return (VT128){_mm512_loadu_si512(table), _mm512_loadu_si512(table + 64)};
}

/* By the lower seven bits of each byte. */
MO_INLINE VI v_lookup128(const VT128 *table, VI index)
{
    return _mm512_permutex2var_epi8(table->low, index, table->high);
}

/* The lower, or upper, bytes of the halfwords of a, then of b. */
MO_INLINE VI mo_bytes_of64(VI a, VI b, int odd)
{
    static const uint8_t even[64] = {
        0,  2,  4,   6,   8,   10,  12,  14,  16,  18,  20,  22,  24,  26,  28,  30,
        32, 34, 36,  38,  40,  42,  44,  46,  48,  50,  52,  54,  56,  58,  60,  62,
        64, 66, 68,  70,  72,  74,  76,  78,  80,  82,  84,  86,  88,  90,  92,  94,
        96, 98, 100, 102, 104, 106, 108, 110, 112, 114, 116, 118, 120, 122, 124, 126};
    VI index = _mm512_add_epi8(_mm512_loadu_si512(even), _mm512_set1_epi8((char)odd));
    return _mm512_permutex2var_epi8(a, index, b);
}

#define v_low_bytes_of(a, b) mo_bytes_of64(a, b, 0)
#define v_high_bytes(a, b) mo_bytes_of64(a, b, 1)
#endif

/* --- look-ups --------------------------------------------------------------------------------- */

typedef struct VT {
    __m512 all;
} VT;

MO_INLINE VT v_table16(const uint32_t *table, VF factor)
{
    return (VT){v_mul(_mm512_loadu_ps((const float *)(const void *)table), factor)};
}

MO_INLINE void v_put_pairs(unsigned char *at, const uint8_t *pairs, const uint8_t *first,
                           const uint8_t *second, int streaming)
{
    const VI of = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
    __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(first + 32));
    __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(second + 32));
    VI table = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), x = v_load_codes(pairs);
    x = _mm512_ternarylogic_epi32(x, v_sll(x, 12), v_seti(0x000f000f), 0xa8);
    v_put(at, _mm512_permutexvar_epi16(v_or(x, of), table), streaming);
}

MO_INLINE void v_make_codes4(uint8_t *table, const uint16_t *halves)
{
    _mm256_storeu_si256((__m256i *)(void *)table,
                        _mm256_loadu_si256((const __m256i *)(const void *)halves));
}

MO_INLINE void v_put_codes4(unsigned char *at, const uint8_t *pairs, const uint8_t *table,
                            int streaming)
{
    VI all = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)table));
    VI x = v_load_codes(pairs);
    x = _mm512_ternarylogic_epi32(v_srl(x, 4), v_sll(x, 16), v_seti(0x000f000f), 0xa8);
    v_put(at, _mm512_permutexvar_epi16(x, all), streaming);
}

MO_INLINE VF v_look16(const VT *table, VI index)
{
    return _mm512_permutexvar_ps(index, table->all);
}

MO_INLINE VI v_lookup(const uint8_t table[16], VI index)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)table);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), index);
}

MO_INLINE VI v_search8(const int8_t *second, const int8_t *third, VI a)
{
    VI at = _mm512_maskz_set1_epi8(_mm512_cmpgt_epi8_mask(a, v_setb(second[1])), 4);
    __mmask64 above = _mm512_cmpgt_epi8_mask(a, v_lookup((const uint8_t *)second, at));
    at = _mm512_mask_add_epi8(at, above, at, v_setb(2));
    above = _mm512_cmpgt_epi8_mask(a, v_lookup((const uint8_t *)third, at));
    return _mm512_mask_add_epi8(at, above, at, v_setb(1));
}

#endif
