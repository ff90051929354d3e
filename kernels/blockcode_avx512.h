/*
 * Block-wise codes, 64 elements at a time, for AVX-512 VBMI.
 *
 * A map of fp32 values is kept as four byte planes, so that vpermi2b looks up 64 bytes at once; the
 * codes are permuted first such that unpacking the four planes gives whole floats in order. The
 * nearest code is found without a search: a line in 16-bit arithmetic, chosen by the exponent,
 * gives for the upper half of |y| the only code whose threshold may lie near; one exact comparison
 * with that threshold settles it (blockcode_tables.py makes and checks the lines).
 */
#ifndef MO_KERNELS_BLOCKCODE_AVX512_H
#define MO_KERNELS_BLOCKCODE_AVX512_H

#include "kernels/blockcode.h"

#include <immintrin.h>

#define MO_PLANES static __attribute__((aligned(64), unused))
#define MO_INLINE static inline __attribute__((always_inline))

#include "kernels/blockcode_planes.h"

/* Four vectors: 64 consecutive elements. */
typedef struct mo_f32x64 {
    __m512 part[4];
} mo_f32x64;

/* Byte 16 l + 4 r + k takes 16 r + 4 l + k: unpacking turns that into elements in order. */
#define MO_SPREAD(l)                                                                               \
    4 * (l), 4 * (l) + 1, 4 * (l) + 2, 4 * (l) + 3, 16 + 4 * (l), 17 + 4 * (l), 18 + 4 * (l),      \
        19 + 4 * (l), 32 + 4 * (l), 33 + 4 * (l), 34 + 4 * (l), 35 + 4 * (l), 48 + 4 * (l),        \
        49 + 4 * (l), 50 + 4 * (l), 51 + 4 * (l)
#define MO_ODD(n) 2 * (n) + 1
#define MO_ODD_SPREAD(l)                                                                           \
    MO_ODD(4 * (l)), MO_ODD(4 * (l) + 1), MO_ODD(4 * (l) + 2), MO_ODD(4 * (l) + 3),                \
        MO_ODD(16 + 4 * (l)), MO_ODD(17 + 4 * (l)), MO_ODD(18 + 4 * (l)), MO_ODD(19 + 4 * (l)),    \
        MO_ODD(32 + 4 * (l)), MO_ODD(33 + 4 * (l)), MO_ODD(34 + 4 * (l)), MO_ODD(35 + 4 * (l)),    \
        MO_ODD(48 + 4 * (l)), MO_ODD(49 + 4 * (l)), MO_ODD(50 + 4 * (l)), MO_ODD(51 + 4 * (l))
#define MO_ODD16(n)                                                                                \
    MO_ODD(n), MO_ODD(n + 1), MO_ODD(n + 2), MO_ODD(n + 3), MO_ODD(n + 4), MO_ODD(n + 5),          \
        MO_ODD(n + 6), MO_ODD(n + 7), MO_ODD(n + 8), MO_ODD(n + 9), MO_ODD(n + 10),                \
        MO_ODD(n + 11), MO_ODD(n + 12), MO_ODD(n + 13), MO_ODD(n + 14), MO_ODD(n + 15)

MO_PLANES const uint8_t mo_spread[64] = {MO_SPREAD(0), MO_SPREAD(1), MO_SPREAD(2), MO_SPREAD(3)};
/* High bytes of 64 words in two vectors, spread and in order. */
MO_PLANES const uint8_t mo_high_spread[64] = {MO_ODD_SPREAD(0), MO_ODD_SPREAD(1), MO_ODD_SPREAD(2),
                                        MO_ODD_SPREAD(3)};
MO_PLANES const uint8_t mo_high_bytes[64] = {MO_ODD16(0), MO_ODD16(16), MO_ODD16(32), MO_ODD16(48)};
/* High words of 32 floats in two vectors. */
MO_PLANES const uint16_t mo_high_words[32] = {MO_ODD16(0), MO_ODD16(16)};

MO_INLINE __m512i mo_table64(const void *table)
{
    return _mm512_load_si512(table);
}

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

/* The line's value for 32 upper halves of |y|; its high byte is the candidate code. */
MO_INLINE __m512i mo_line(const uint16_t lines[4][32], __m512i half, int umin)
{
    __m512i u = _mm512_max_epu16(_mm512_and_si512(half, _mm512_set1_epi16(0x7fff)),
                                 _mm512_set1_epi16((short)umin));
    __m512i exponent = _mm512_srli_epi16(u, 7);
    __m512i a = _mm512_mullo_epi16(u, _mm512_permutexvar_epi16(exponent, mo_table64(lines[0])));
    __m512i b = _mm512_mullo_epi16(u, _mm512_permutexvar_epi16(exponent, mo_table64(lines[2])));
    a = _mm512_add_epi16(a, _mm512_permutexvar_epi16(exponent, mo_table64(lines[1])));
    b = _mm512_add_epi16(b, _mm512_permutexvar_epi16(exponent, mo_table64(lines[3])));
    return _mm512_min_epu16(a, b);
}

MO_INLINE __m512i mo_halves(__m512 a, __m512 b)
{
    return _mm512_permutex2var_epi16(_mm512_castps_si512(a), mo_table64(mo_high_words),
                                     _mm512_castps_si512(b));
}

/* Where |y| >= t, by element; y and t are compared as bits. */
MO_INLINE __mmask64 mo_reaches(const mo_f32x64 *y, const mo_f32x64 *t, __m512i and_mask)
{
    __mmask16 k[4];
    for (int i = 0; i < 4; i++)
        k[i] = _mm512_cmpge_epu32_mask(_mm512_and_si512(_mm512_castps_si512(y->part[i]), and_mask),
                                       _mm512_castps_si512(t->part[i]));
    return _mm512_kunpackd(_mm512_kunpackw(k[3], k[2]), _mm512_kunpackw(k[1], k[0]));
}

/* The codes of 64 normalised values; none may be NaN. */
MO_INLINE __m512i mo_encode64_signed(const mo_f32x64 *y)
{
    __m512i half0 = mo_halves(y->part[0], y->part[1]), half1 = mo_halves(y->part[2], y->part[3]);
    __m512i line0 = mo_line(mo_lines_signed, half0, MO_SIGNED_UMIN);
    __m512i line1 = mo_line(mo_lines_signed, half1, MO_SIGNED_UMIN);
    __m512i spread = _mm512_permutex2var_epi8(line0, mo_table64(mo_high_spread), line1);
    __m512i code = _mm512_permutex2var_epi8(line0, mo_table64(mo_high_bytes), line1);
    mo_f32x64 t = mo_unpack_planes(mo_look128(mo_plane_threshold_signed[0], spread),
                                   mo_look128(mo_plane_threshold_signed[1], spread),
                                   mo_look128(mo_plane_threshold_signed[2], spread),
                                   mo_look128(mo_plane_threshold_signed[3], spread));
    __mmask64 reached = mo_reaches(y, &t, _mm512_set1_epi32(0x7fffffff));
    __mmask64 negative = _mm512_kunpackd(_mm512_movepi16_mask(half1), _mm512_movepi16_mask(half0));
    __m512i zero = _mm512_set1_epi8(MO_SIGNED_ZERO);
    code = _mm512_mask_sub_epi8(code, reached, code, _mm512_set1_epi8(-1));
    return _mm512_mask_subs_epu8(_mm512_add_epi8(code, zero), negative, zero, code);
}

/* The same for values >= 0; a y that underflowed from x > 0 must have been made positive. */
MO_INLINE __m512i mo_encode64_unsigned(const mo_f32x64 *y)
{
    __m512i line0 =
        mo_line(mo_lines_unsigned, mo_halves(y->part[0], y->part[1]), MO_UNSIGNED_UMIN);
    __m512i line1 =
        mo_line(mo_lines_unsigned, mo_halves(y->part[2], y->part[3]), MO_UNSIGNED_UMIN);
    __m512i spread = _mm512_permutex2var_epi8(line0, mo_table64(mo_high_spread), line1);
    __m512i code = _mm512_permutex2var_epi8(line0, mo_table64(mo_high_bytes), line1);
    __mmask64 upper = _mm512_movepi8_mask(spread);
    mo_f32x64 t = mo_unpack_planes(mo_look256(mo_plane_threshold_unsigned[0], spread, upper),
                                   mo_look256(mo_plane_threshold_unsigned[1], spread, upper),
                                   mo_look256(mo_plane_threshold_unsigned[2], spread, upper),
                                   mo_look256(mo_plane_threshold_unsigned[3], spread, upper));
    __mmask64 below = ~mo_reaches(y, &t, _mm512_set1_epi32(-1));
    return _mm512_mask_add_epi8(code, below, code, _mm512_set1_epi8(-1));
}

/* Normalises 64 values and writes their codes. special: the block's prescale is not 1, or the
 * quotient of a positive value may underflow. */
MO_INLINE void mo_quantize64(const float *x, const mo_block_scale *scale, int special,
                             int is_signed, uint8_t *codes)
{
    mo_f32x64 y;
    for (int i = 0; i < 4; i++) {
        __m512 value = _mm512_load_ps(x + 16 * i);
        if (special) {
            __m512i least = _mm512_min_epu32(_mm512_castps_si512(value), _mm512_set1_epi32(1));
            value = _mm512_mul_ps(value, _mm512_set1_ps(scale->prescale));
            value = _mm512_mul_ps(value, _mm512_set1_ps(scale->inverse));
            y.part[i] = is_signed ? value
                                  : _mm512_castsi512_ps(_mm512_max_epu32(
                                        _mm512_castps_si512(value), least));
        } else {
            y.part[i] = _mm512_mul_ps(value, _mm512_set1_ps(scale->inverse));
        }
    }
    __m512i code = is_signed ? mo_encode64_signed(&y) : mo_encode64_unsigned(&y);
    _mm512_storeu_si512(codes, code);
}

/* True where mo_quantize64 needs its careful form. */
MO_INLINE int mo_scale_special(const mo_block_scale *scale)
{
    return scale->prescale != 1.0f || scale->absmax > 1.0f;
}

#endif
