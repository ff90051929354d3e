/*
 * The lookups of blockcode_avx512.h with VBMI: a map of fp32 values is kept as four byte planes, so
 * that vpermi2b looks up 64 bytes at once; the codes are permuted first such that unpacking the
 * four planes gives whole floats in order.
 */
#ifndef MO_KERNELS_BLOCKCODE_BYTES_H
#define MO_KERNELS_BLOCKCODE_BYTES_H

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

#endif
