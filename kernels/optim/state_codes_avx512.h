/*
 * Block-wise codes, 64 elements at a time, for AVX-512.
 *
 * The nearest code is found without a search: a line in 16-bit arithmetic, chosen by the exponent,
 * gives for the upper half of |y| the only code whose threshold may lie near; one exact comparison
 * with that threshold settles it (blockcode_tables.py makes and checks the lines). Maps and
 * thresholds are looked up by bytes where the file is compiled with VBMI, else by 32-bit words:
 * mo_decode64_signed, mo_decode64_unsigned and mo_look_thresholds.
 */
#ifndef MO_KERNELS_BLOCKCODE_AVX512_H
#define MO_KERNELS_BLOCKCODE_AVX512_H

#include "kernels/optim/state_codes.h"

#include <immintrin.h>

#define MO_PLANES static __attribute__((aligned(64), unused))
#define MO_INLINE static inline __attribute__((always_inline))

#include "kernels/generated/blockcode_planes.h"

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
 * stage alone is a chain of dependent instructions, so a processor is kept busy only by running
 * several chains at once, and it looks ahead no further than about 200 of them.
 */
typedef struct mo_encode64 {
    mo_f32x64 y[2];     /* normalised: signed, unsigned */
    __m512i line[2][2]; /* 32 words each: the candidate code in the high byte */
    __m512i code[2];    /* candidates in order */
    __mmask64 reached[2];
    __mmask64 negative;
} mo_encode64;

#define MO_EACH for (int i = 0; i < 4; i++)

#if defined(__AVX512VBMI__)
#include "kernels/optim/blockcode_bytes.h"
#else
#include "kernels/optim/blockcode_dwords.h"
#endif

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

/* Some blocks are normalised with more care and beforehand: where the prescale is not 1, and where
 * the quotient of a positive value may underflow (an unsigned y is then made positive). Returns the
 * factor that is left for mo_normalize64. */
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
