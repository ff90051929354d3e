/* The lookups of blockcode_avx512.h without VBMI: vpermi2ps looks up 16 floats of 32 at once. */
#ifndef MO_KERNELS_BLOCKCODE_DWORDS_H
#define MO_KERNELS_BLOCKCODE_DWORDS_H

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
