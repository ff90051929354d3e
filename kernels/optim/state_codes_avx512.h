/*
 * Block-wise codes, 64 elements at a time, for AVX-512.
 *
 * The nearest code is found without a search: a line in 16-bit arithmetic, chosen by the exponent,
 * gives for the upper half of |y| the only code whose threshold may lie near; one exact comparison
 * with that threshold settles it (cmake/make_tables.c makes and checks the lines).
 * Maps and thresholds are looked up by bytes where the file is compiled with VBMI, else by 32-bit
 * words: mo_decode64_signed, mo_decode64_unsigned and mo_look_thresholds.
 */
#ifndef MO_KERNELS_OPTIM_STATE_CODES_AVX512_H
#define MO_KERNELS_OPTIM_STATE_CODES_AVX512_H

#include "kernels/core/vector_avx512.h"
#include "kernels/generated/blockcode_planes.h"
#include "kernels/optim/state_codes.h"

/* Four vectors: 64 consecutive elements. */
typedef struct mo_f32x64 {
    __m512 part[4];
} mo_f32x64;

#define MO_ODD(n) 2 * (n) + 1
#define MO_ODD16(n)                                                                                \
    MO_ODD(n), MO_ODD(n + 1), MO_ODD(n + 2), MO_ODD(n + 3), MO_ODD(n + 4), MO_ODD(n + 5),          \
        MO_ODD(n + 6), MO_ODD(n + 7), MO_ODD(n + 8), MO_ODD(n + 9), MO_ODD(n + 10),                \
        MO_ODD(n + 11), MO_ODD(n + 12), MO_ODD(n + 13), MO_ODD(n + 14), MO_ODD(n + 15)

/* High words of 32 floats in two vectors. */
MO_PLANES const uint16_t mo_high_words[32] = {MO_ODD16(0), MO_ODD16(16)};

MO_INLINE __m512i mo_table64(const void *table)
{
    return _mm512_load_si512(table);
}

/*
 * Coding goes in stages over a pair of states, 64 signed and 64 unsigned values side by side: each
 * stage alone is a chain of dependent instructions. Only several chains at once keep a processor
 * busy, and it looks ahead only about 200 instructions.
 */
typedef struct mo_encode64 {
    mo_f32x64 y[2];     /* normalised: signed, unsigned */
    __m512i line[2][2]; /* 32 words each: the candidate code in the high byte */
    __m512i code[2];    /* candidates in order */
    __mmask64 reached[2];
    __mmask64 negative;
} mo_encode64;

#define MO_EACH for (int i = 0; i < 4; i++)

/* --- lookups --------------------------------------------------------------------------------- */

#if defined(__AVX512VBMI__)

/* A map of fp32 values is kept as four byte planes, so that vpermi2b looks up 64 bytes at once; the
 * codes are permuted first such that unpacking the four planes gives whole floats in order. */

/* Byte 16 l + 4 r + k takes 16 r + 4 l + k: unpacking turns that into elements in order. */
#define MO_SPREAD(l)                                                                               \
    4 * (l), 4 * (l) + 1, 4 * (l) + 2, 4 * (l) + 3, 16 + 4 * (l), 17 + 4 * (l), 18 + 4 * (l),      \
        19 + 4 * (l), 32 + 4 * (l), 33 + 4 * (l), 34 + 4 * (l), 35 + 4 * (l), 48 + 4 * (l),        \
        49 + 4 * (l), 50 + 4 * (l), 51 + 4 * (l)
#define MO_ODD_SPREAD(l)                                                                           \
    MO_ODD(4 * (l)), MO_ODD(4 * (l) + 1), MO_ODD(4 * (l) + 2), MO_ODD(4 * (l) + 3),                \
        MO_ODD(16 + 4 * (l)), MO_ODD(17 + 4 * (l)), MO_ODD(18 + 4 * (l)), MO_ODD(19 + 4 * (l)),    \
        MO_ODD(32 + 4 * (l)), MO_ODD(33 + 4 * (l)), MO_ODD(34 + 4 * (l)), MO_ODD(35 + 4 * (l)),    \
        MO_ODD(48 + 4 * (l)), MO_ODD(49 + 4 * (l)), MO_ODD(50 + 4 * (l)), MO_ODD(51 + 4 * (l))

MO_PLANES const uint8_t mo_spread[64] = {MO_SPREAD(0), MO_SPREAD(1), MO_SPREAD(2), MO_SPREAD(3)};
/* High bytes of 64 words in two vectors, spread and in order. */
MO_PLANES const uint8_t mo_high_spread[64] = {MO_ODD_SPREAD(0), MO_ODD_SPREAD(1), MO_ODD_SPREAD(2),
                                              MO_ODD_SPREAD(3)};
MO_PLANES const uint8_t mo_high_bytes[64] = {MO_ODD16(0), MO_ODD16(16), MO_ODD16(32), MO_ODD16(48)};

/* Four planes of 64 spread bytes to 64 floats in order. */
MO_INLINE mo_f32x64 mo_unpack_planes(__m512i p0, __m512i p1, __m512i p2, __m512i p3)
{
    __m512i low01 = _mm512_unpacklo_epi8(p0, p1), high01 = _mm512_unpackhi_epi8(p0, p1);
    __m512i low23 = _mm512_unpacklo_epi8(p2, p3), high23 = _mm512_unpackhi_epi8(p2, p3);
    return (mo_f32x64){{_mm512_castsi512_ps(_mm512_unpacklo_epi16(low01, low23)),
                        _mm512_castsi512_ps(_mm512_unpackhi_epi16(low01, low23)),
                        _mm512_castsi512_ps(_mm512_unpacklo_epi16(high01, high23)),
                        _mm512_castsi512_ps(_mm512_unpackhi_epi16(high01, high23))}};
}

/* A plane of 128 entries by the low seven bits of each index. */
MO_INLINE __m512i mo_look128(const uint8_t *plane, __m512i index)
{
    return _mm512_permutex2var_epi8(mo_table64(plane), index, mo_table64(plane + 64));
}

MO_INLINE __m512i mo_look256(const uint8_t *plane, __m512i index, __mmask64 upper)
{
    return _mm512_mask_blend_epi8(upper, mo_look128(plane, index), mo_look128(plane + 128, index));
}

/* map[code] * absmax of 64 codes. */
MO_INLINE mo_f32x64 mo_decode64_signed(const uint8_t *codes, __m512 absmax)
{
    __m512i code = _mm512_permutexvar_epi8(mo_table64(mo_spread), _mm512_loadu_si512(codes));
    __m512i offset = _mm512_sub_epi8(code, _mm512_set1_epi8(MO_SIGNED_ZERO));
    __m512i magnitude = _mm512_abs_epi8(offset);
    __mmask64 one = _mm512_movepi8_mask(magnitude); /* only 128 has the top bit */
    __mmask64 negative = _mm512_movepi8_mask(offset);
    __m512i p0 = mo_look128(mo_plane_map_signed[0], magnitude);
    __m512i p1 = mo_look128(mo_plane_map_signed[1], magnitude);
    __m512i p2 = mo_look128(mo_plane_map_signed[2], magnitude);
    __m512i p3 = mo_look128(mo_plane_map_signed[3], magnitude);
    p2 = _mm512_mask_mov_epi8(p2, one, _mm512_set1_epi8((char)0x80)); /* 1.0f = 0x3f800000 */
    p3 = _mm512_mask_add_epi8(p3, negative, p3, _mm512_set1_epi8((char)0x80));
    p3 = _mm512_mask_mov_epi8(p3, one, _mm512_set1_epi8(0x3f));
    mo_f32x64 x = mo_unpack_planes(p0, p1, p2, p3);
    for (int i = 0; i < 4; i++)
        x.part[i] = _mm512_mul_ps(x.part[i], absmax);
    return x;
}

MO_INLINE mo_f32x64 mo_decode64_unsigned(const uint8_t *codes, __m512 absmax)
{
    __m512i code = _mm512_permutexvar_epi8(mo_table64(mo_spread), _mm512_loadu_si512(codes));
    __mmask64 upper = _mm512_movepi8_mask(code);
    mo_f32x64 x = mo_unpack_planes(mo_look256(mo_plane_map_unsigned[0], code, upper),
                                   mo_look256(mo_plane_map_unsigned[1], code, upper),
                                   mo_look256(mo_plane_map_unsigned[2], code, upper),
                                   mo_look256(mo_plane_map_unsigned[3], code, upper));
    for (int i = 0; i < 4; i++)
        x.part[i] = _mm512_mul_ps(x.part[i], absmax);
    return x;
}

/* The candidates in order, and their thresholds: signed, unsigned. */
MO_INLINE void mo_look_thresholds(mo_encode64 *e, mo_f32x64 *t, mo_f32x64 *r)
{
    __m512i spread[2], p[4], q[4];
    for (int i = 0; i < 2; i++)
        spread[i] =
            _mm512_permutex2var_epi8(e->line[i][0], mo_table64(mo_high_spread), e->line[i][1]);
    for (int i = 0; i < 2; i++)
        e->code[i] =
            _mm512_permutex2var_epi8(e->line[i][0], mo_table64(mo_high_bytes), e->line[i][1]);
    __mmask64 upper = _mm512_movepi8_mask(spread[1]);
    MO_EACH p[i] = mo_look128(mo_plane_threshold_signed[i], spread[0]);
    MO_EACH q[i] = mo_look256(mo_plane_threshold_unsigned[i], spread[1], upper);
    *t = mo_unpack_planes(p[0], p[1], p[2], p[3]);
    *r = mo_unpack_planes(q[0], q[1], q[2], q[3]);
}

#else /* no VBMI: vpermi2ps looks up 16 floats of 32 at once */

/* An entry of 32 by the low five bits of each index. */
MO_INLINE __m512 mo_look32(const uint32_t *table, __m512i index)
{
    return _mm512_permutex2var_ps(_mm512_loadu_ps(table), index, _mm512_loadu_ps(table + 16));
}

/* An entry of 128 by the low seven bits of each index. */
MO_INLINE __m512 mo_look128(const uint32_t *table, __m512i index)
{
    __mmask16 bit5 = _mm512_test_epi32_mask(index, _mm512_set1_epi32(32));
    __mmask16 bit6 = _mm512_test_epi32_mask(index, _mm512_set1_epi32(64));
    __m512 low = _mm512_mask_blend_ps(bit5, mo_look32(table, index), mo_look32(table + 32, index));
    __m512 high =
        _mm512_mask_blend_ps(bit5, mo_look32(table + 64, index), mo_look32(table + 96, index));
    return _mm512_mask_blend_ps(bit6, low, high);
}

MO_INLINE __m512 mo_look256(const uint32_t *table, __m512i index)
{
    __mmask16 bit7 = _mm512_test_epi32_mask(index, _mm512_set1_epi32(128));
    return _mm512_mask_blend_ps(bit7, mo_look128(table, index), mo_look128(table + 128, index));
}

MO_INLINE __m512i mo_codes16(const uint8_t *codes)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)codes));
}

/* map[code] * absmax of 64 codes. Magnitudes 1 to 128 lie behind the map's zero. */
MO_INLINE mo_f32x64 mo_decode64_signed(const uint8_t *codes, __m512 absmax)
{
    const __m512i one = _mm512_set1_epi32(1), sign = _mm512_set1_epi32((int)0x80000000u);
    mo_f32x64 x;
    for (int i = 0; i < 4; i++) {
        __m512i offset =
            _mm512_sub_epi32(mo_codes16(codes + 16 * i), _mm512_set1_epi32(MO_SIGNED_ZERO));
        __m512i index = _mm512_sub_epi32(_mm512_abs_epi32(offset), one);
        __m512i bits = _mm512_castps_si512(mo_look128(mo_map_signed + MO_SIGNED_ZERO + 1, index));
        bits = _mm512_or_si512(bits, _mm512_and_si512(offset, sign));
        bits = _mm512_maskz_mov_epi32(_mm512_test_epi32_mask(offset, offset), bits);
        x.part[i] = _mm512_mul_ps(_mm512_castsi512_ps(bits), absmax);
    }
    return x;
}

MO_INLINE mo_f32x64 mo_decode64_unsigned(const uint8_t *codes, __m512 absmax)
{
    mo_f32x64 x;
    for (int i = 0; i < 4; i++)
        x.part[i] = _mm512_mul_ps(mo_look256(mo_map_unsigned, mo_codes16(codes + 16 * i)), absmax);
    return x;
}

/* The high bytes of 64 words in two vectors. */
MO_INLINE __m512i mo_high_bytes64(const __m512i words[2])
{
    __m256i low = _mm512_cvtepi16_epi8(_mm512_srli_epi16(words[0], 8));
    __m256i high = _mm512_cvtepi16_epi8(_mm512_srli_epi16(words[1], 8));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* The high bytes of the 16 words number 16 i to 16 i + 15 of two vectors. */
MO_INLINE __m512i mo_high_bytes16(const __m512i words[2], int i)
{
    __m256i half =
        i % 2 ? _mm512_extracti64x4_epi64(words[i / 2], 1) : _mm512_castsi512_si256(words[i / 2]);
    return _mm512_cvtepu16_epi32(_mm256_srli_epi16(half, 8));
}

/* The candidates in order, and their thresholds: signed (a candidate's is the next code's),
 * unsigned. */
MO_INLINE void mo_look_thresholds(mo_encode64 *e, mo_f32x64 *t, mo_f32x64 *r)
{
    e->code[0] = mo_high_bytes64(e->line[0]);
    e->code[1] = mo_high_bytes64(e->line[1]);
    MO_EACH t->part[i] = mo_look128(mo_threshold_signed + 1, mo_high_bytes16(e->line[0], i));
    MO_EACH r->part[i] = mo_look256(mo_threshold_unsigned, mo_high_bytes16(e->line[1], i));
}

#endif

/* --- coding ---------------------------------------------------------------------------------- */

MO_INLINE __m512i mo_halves(__m512 a, __m512 b)
{
    return _mm512_permutex2var_epi16(_mm512_castps_si512(a), mo_table64(mo_high_words),
                                     _mm512_castps_si512(b));
}

/* The lines' values for upper halves of |y|: 64 signed, then 64 unsigned (each two vectors). The
 * vectors go through each instruction together. */
MO_INLINE void mo_encode64_lines(mo_encode64 *e)
{
    __m512i u[4], exponent[4], a[4], b[4], t[4];
    const uint16_t(*const lines[4])[32] = {mo_lines_signed, mo_lines_signed, mo_lines_unsigned,
                                           mo_lines_unsigned};
    MO_EACH u[i] = mo_halves(e->y[i / 2].part[2 * (i % 2)], e->y[i / 2].part[2 * (i % 2) + 1]);
    e->negative = _mm512_kunpackd(_mm512_movepi16_mask(u[1]), _mm512_movepi16_mask(u[0]));
    u[0] = _mm512_and_si512(u[0], _mm512_set1_epi16(0x7fff));
    u[1] = _mm512_and_si512(u[1], _mm512_set1_epi16(0x7fff));
    MO_EACH u[i] = _mm512_max_epu16(
        u[i], _mm512_set1_epi16((short)(i < 2 ? MO_SIGNED_UMIN : MO_UNSIGNED_UMIN)));
    MO_EACH exponent[i] = _mm512_srli_epi16(u[i], 7);
    MO_EACH a[i] = _mm512_permutexvar_epi16(exponent[i], mo_table64(lines[i][0]));
    MO_EACH b[i] = _mm512_permutexvar_epi16(exponent[i], mo_table64(lines[i][2]));
    MO_EACH a[i] = _mm512_mullo_epi16(u[i], a[i]);
    MO_EACH b[i] = _mm512_mullo_epi16(u[i], b[i]);
    MO_EACH t[i] = _mm512_permutexvar_epi16(exponent[i], mo_table64(lines[i][1]));
    MO_EACH a[i] = _mm512_add_epi16(a[i], t[i]);
    MO_EACH t[i] = _mm512_permutexvar_epi16(exponent[i], mo_table64(lines[i][3]));
    MO_EACH b[i] = _mm512_add_epi16(b[i], t[i]);
    MO_EACH e->line[i / 2][i % 2] = _mm512_min_epu16(a[i], b[i]);
}

MO_INLINE __mmask64 mo_join_masks(const __mmask16 k[4])
{
    return _mm512_kunpackd(_mm512_kunpackw(k[3], k[2]), _mm512_kunpackw(k[1], k[0]));
}

/* The candidates, and where |y| reaches their thresholds; floats are compared as bits. */
MO_INLINE void mo_encode64_compare(mo_encode64 *e)
{
    __mmask16 k[4], l[4];
    mo_f32x64 t, r;
    mo_look_thresholds(e, &t, &r);
    MO_EACH k[i] = _mm512_cmpge_epu32_mask(
        _mm512_and_si512(_mm512_castps_si512(e->y[0].part[i]), _mm512_set1_epi32(0x7fffffff)),
        _mm512_castps_si512(t.part[i]));
    MO_EACH l[i] = _mm512_cmplt_epu32_mask(_mm512_castps_si512(e->y[1].part[i]),
                                           _mm512_castps_si512(r.part[i]));
    e->reached[0] = mo_join_masks(k);
    e->reached[1] = mo_join_masks(l);
}

MO_INLINE __m512i mo_encode64_signed(const mo_encode64 *e)
{
    __m512i zero = _mm512_set1_epi8(MO_SIGNED_ZERO), code = e->code[0];
    code = _mm512_mask_sub_epi8(code, e->reached[0], code, _mm512_set1_epi8(-1));
    return _mm512_mask_subs_epu8(_mm512_add_epi8(code, zero), e->negative, zero, code);
}

/* reached[1] says where y is below the threshold. */
MO_INLINE __m512i mo_encode64_unsigned(const mo_encode64 *e)
{
    return _mm512_mask_add_epi8(e->code[1], e->reached[1], e->code[1], _mm512_set1_epi8(-1));
}

MO_INLINE mo_f32x64 mo_normalize64(const float *x, float inverse)
{
    mo_f32x64 y;
    MO_EACH y.part[i] = _mm512_mul_ps(_mm512_load_ps(x + 16 * i), _mm512_set1_ps(inverse));
    return y;
}

/* Normalises two kinds of blocks carefully and beforehand: the prescale is not 1, or the quotient
 * of a positive value may underflow (an unsigned y is then made positive). Returns the remaining
 * factor for mo_normalize64. */
MO_INLINE float mo_normalize_block(float *x, const mo_block_scale *scale, int is_signed)
{
    if (__builtin_expect(scale->prescale == 1.0f && scale->absmax <= 1.0f, 1))
        return scale->inverse;
    for (int i = 0; i < MO_BLOCK_SIZE; i += 16) {
        __m512 value = _mm512_load_ps(x + i);
        __m512i least = _mm512_min_epu32(_mm512_castps_si512(value), _mm512_set1_epi32(1));
        value = _mm512_mul_ps(value, _mm512_set1_ps(scale->prescale));
        value = _mm512_mul_ps(value, _mm512_set1_ps(scale->inverse));
        if (!is_signed)
            value = _mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(value), least));
        _mm512_store_ps(x + i, value);
    }
    return 1.0f;
}

#endif
