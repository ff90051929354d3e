/*
 * The 8-bit codes of blocks of 256 elements for AVX2, 32 elements at a time and without gathers.
 *
 * To code, y's code is computed as a real number, the smallest of a few lines (the map has seven
 * decades with codes at equal distances), in units of 2^-16, and rounded down. Its error has a
 * bound, epsilon, which is added: only where the fraction is below twice that may the code be
 * wrong, and then the specification's search decides. cmake/make_tables.c
 * computes the lines and the bound. Four decades (five if unsigned) and the top code are tried
 * first. A group of 32 with a value below them, or near a threshold, is coded again by all lines;
 * behind two such groups the rest of a block is coded by all lines at once.
 */
#ifndef MO_KERNELS_OPTIM_STATE_CODES_AVX2_H
#define MO_KERNELS_OPTIM_STATE_CODES_AVX2_H

#include "kernels/core/vector_avx2.h"
#include "kernels/optim/state_codes.h"

/* Lines in units of 2^-16 of a shifted code, y = 1 being the absmax; each offset includes
 * epsilon. */
typedef struct mo_lines {
    int decades;                         /* of the fast lines: 4 if signed, else 5 */
    float fast_slope[6], fast_offset[6]; /* decades up to 6, and behind them the top code: larger */
    float low_slope[4], low_offset[4];   /* the decades below, and zero if signed */
    float low_most;                      /* the most that the low lines give */
    int epsilon;                         /* bound of the error, in the same unit */
    int bias;                            /* shifted code 0 of the fast lines means this */
    int low_top;                   /* the fast lines tell codes above this one (less the bias) */
    int fast_step[4], low_step[4]; /* shifted codes from which on one is to be taken off */
} mo_lines;

#include "kernels/generated/blockcode_lines.h"

/* How 16 consecutive elements lie in two vectors: the first eight and the last, or those of even
 * index and those of odd index, which is how pairs of bf16 come apart. A constant to callers. */
enum { MO_HALVES, MO_EVEN_ODD };

typedef struct mo_f32x16 {
    __m256 a, b;
} mo_f32x16;

/* The steps from shifted codes to codes, in every lane. They are read from memory: a compiler that
 * knows their values makes them anew in every round of a loop. */
typedef struct mo_unshift {
    __m256i step[4];  /* less 1, and less 128 if unsigned: compares are signed */
    __m256i up, down; /* code = up + n, of negative values down - n */
} mo_unshift;

static __attribute__((noinline)) void mo_unshift_of(const mo_lines *lines, int is_signed,
                                                    int is_fast, mo_unshift *u)
{
    const int *step = is_fast ? lines->fast_step : lines->low_step;
    int bias = is_fast ? lines->bias : 0, zero = is_signed ? MO_SIGNED_ZERO : 0;
    for (int k = 0; k < lines->decades - 1; k++)
        u->step[k] = _mm256_set1_epi8((char)(step[k] - 1 - (is_signed ? 0 : 128)));
    u->up = _mm256_set1_epi8((char)(zero + bias));
    u->down = _mm256_set1_epi8((char)(zero - bias));
}

/* For four decades, and for all. */
typedef struct mo_steps {
    mo_unshift fast, low;
    __m256i clear; /* twice epsilon in the lower halves, the least shifted code that the fast lines
                      tell in the upper ones */
} mo_steps;

MO_INLINE mo_steps mo_steps_of(const mo_lines *lines, int is_signed)
{
    mo_steps s;
    mo_unshift_of(lines, is_signed, 1, &s.fast);
    mo_unshift_of(lines, is_signed, 0, &s.low);
    s.clear = _mm256_set1_epi32((lines->low_top + 1) << 16 | 2 * lines->epsilon);
    return s;
}

/* What codes a block. */
typedef struct mo_coder {
    __m256 slope[6];      /* of the fast lines, times the inverse; 0 where that overflows */
    float up, inverse;    /* y = (x * up) * inverse */
    mo_block_scale scale; /* the specification's */
} mo_coder;

MO_INLINE mo_coder mo_coder_of(const mo_block_scale *scale, const mo_lines *lines)
{
    mo_coder c = {.up = 1.0f, .scale = *scale};
    int tiny = c.scale.absmax < 0x1p-88f;
    c.inverse = c.scale.inverse;
    if (tiny) {
        c.up = 0x1p100f;
        c.inverse *= c.scale.prescale * 0x1p-100f;
    }
    for (int k = 0; k <= lines->decades; k++)
        c.slope[k] = _mm256_set1_ps(tiny ? 0.0f : lines->fast_slope[k] * c.inverse);
    return c;
}

/* --- from codes ------------------------------------------------------------------------------ */

/* An entry in every lane. Blends of these are faster than gathers, and than blends with memory. */
MO_INLINE __m128 mo_entry4(const uint32_t *map, uint8_t code)
{
    return _mm_broadcast_ss((const float *)(const void *)(map + code));
}

/* Of the codes at c, c + step, ... */
MO_INLINE __m128 mo_lookup4(const uint32_t *map, const uint8_t *c, int step)
{
    __m128 x = mo_entry4(map, c[0]);
    x = _mm_blend_ps(x, mo_entry4(map, c[step]), 2);
    x = _mm_blend_ps(x, mo_entry4(map, c[2 * step]), 4);
    return _mm_blend_ps(x, mo_entry4(map, c[3 * step]), 8);
}

/* Eight codes, loaded at once: a load each would be half of the loads. They are rotated down, which
 * leaves the word as it was, where a shift is of a copy. */
MO_INLINE void mo_bytes8(const uint8_t *codes, uint8_t *c)
{
    uint64_t w;
    __builtin_memcpy(&w, codes, sizeof w);
    for (int k = 0; k < 8; k++)
        c[k] = (uint8_t)(w >> 8 * k | w << (-8 * k & 63));
}

MO_INLINE __m256 mo_join8(__m128 low, __m128 high)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
}

MO_INLINE mo_f32x16 mo_decode16(const uint32_t *map, const uint8_t *codes, __m256 absmax, int order)
{
    uint8_t c[16];
    mo_f32x16 x;
    mo_bytes8(codes, c);
    mo_bytes8(codes + 8, c + 8);
    if (order == MO_EVEN_ODD) {
        x.a = mo_join8(mo_lookup4(map, c, 2), mo_lookup4(map, c + 8, 2));
        x.b = mo_join8(mo_lookup4(map, c + 1, 2), mo_lookup4(map, c + 9, 2));
    } else {
        x.a = mo_join8(mo_lookup4(map, c, 1), mo_lookup4(map, c + 4, 1));
        x.b = mo_join8(mo_lookup4(map, c + 8, 1), mo_lookup4(map, c + 12, 1));
    }
    return (mo_f32x16){_mm256_mul_ps(x.a, absmax), _mm256_mul_ps(x.b, absmax)};
}

/* --- to codes -------------------------------------------------------------------------------- */

/* Shifted codes of 32 elements as bytes, and their fractions, as two packs would take them. */
typedef struct mo_shifted32 {
    __m256i codes, fractions[2];
} mo_shifted32;

MO_INLINE __m256i mo_magnitude_ints8(__m256 x)
{
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

MO_INLINE __m256i mo_line8(__m256 x, __m256 slope, float offset)
{
    return _mm256_castps_si256(_mm256_fmadd_ps(x, slope, _mm256_set1_ps(offset)));
}

/* Lines are positive where they matter, so they compare as integers. x >= 0. */
MO_INLINE __m256i mo_fast_lines8(const mo_lines *lines, const __m256 *slope, __m256 x)
{
    __m256i t = mo_line8(x, slope[0], lines->fast_offset[0]);
    const int top = lines->decades;
    for (int k = 1; k < top; k++)
        t = _mm256_min_epi32(t, mo_line8(x, slope[k], lines->fast_offset[k]));
    return _mm256_max_epi32(t, mo_line8(x, slope[top], lines->fast_offset[top]));
}

MO_INLINE __m256i mo_low_lines8(const mo_lines *lines, const __m256 *slope, __m256 x)
{
    __m256i t = _mm256_castps_si256(_mm256_set1_ps(lines->low_most));
    for (int k = 0; k < 4; k++)
        t = _mm256_min_epi32(t, mo_line8(x, slope[k], lines->low_offset[k]));
    return t;
}

/* Bytes that two packs of four such vectors made, in the order of the elements. */
MO_INLINE __m256i mo_sort32(__m256i bytes, int order)
{
    return order == MO_EVEN_ODD ? _mm256_permute4x64_epi64(bytes, 0xd8) : mo_byte_order(bytes);
}

/* From what the lines give to integers. */
MO_INLINE void mo_round32(__m256i *t)
{
    for (int k = 0; k < 4; k++)
        t[k] = _mm256_cvtps_epi32(_mm256_castsi256_ps(t[k]));
}

MO_INLINE mo_shifted32 mo_split32(const __m256i *n)
{
    mo_shifted32 out;
    out.codes = _mm256_packus_epi16(mo_pairs16(n[0], n[1], 2), mo_pairs16(n[2], n[3], 2));
    out.fractions[0] = mo_pairs16(n[0], n[1], 0);
    out.fractions[1] = mo_pairs16(n[2], n[3], 0);
    return out;
}

/* Codes from shifted codes of |x|, both in the packs' order. */
MO_INLINE __m256i mo_codes32(const mo_unshift *u, __m256i shifted, int is_signed, const __m256 *x)
{
    __m256i n = shifted, compared = shifted;
    if (!is_signed)
        compared = _mm256_xor_si256(shifted, _mm256_set1_epi32((int)0x80808080u));
    for (int k = 0; k < (is_signed ? 3 : 4); k++)
        n = _mm256_add_epi8(n, _mm256_cmpgt_epi8(compared, u->step[k]));
    __m256i up = _mm256_add_epi8(n, u->up);
    if (!is_signed)
        return up;
    const __m256i *bits = (const __m256i *)(const void *)x;
    __m256i signs =
        _mm256_packs_epi16(mo_pairs16(bits[0], bits[1], 2), mo_pairs16(bits[2], bits[3], 2));
    return _mm256_blendv_epi8(up, _mm256_subs_epu8(u->down, n), signs);
}

/* The lanes that are not 0 are where the fast lines are not enough. Their numbers are positive. */
MO_INLINE __m256i mo_doubt32(__m256i clear, const __m256i *n)
{
    __m256i least = _mm256_min_epu16(_mm256_min_epu16(n[0], n[1]), _mm256_min_epu16(n[2], n[3]));
    return _mm256_subs_epu16(clear, least);
}

/* 32 values of an unsigned block are not negative. Where *doubt is not all zeros the codes may be
 * wrong: see mo_encode32_again. */
MO_INLINE __m256i mo_encode32(const mo_steps *steps, const mo_coder *c, const mo_f32x16 *x,
                              int order, int is_signed, __m256i *doubt)
{
    const mo_lines *lines = is_signed ? &mo_lines_signed : &mo_lines_unsigned;
    __m256 v[4] = {x[0].a, x[0].b, x[1].a, x[1].b};
    __m256i t[4];
    for (int k = 0; k < 4; k++) {
        __m256 y = is_signed ? _mm256_castsi256_ps(mo_magnitude_ints8(v[k])) : v[k];
        t[k] = mo_fast_lines8(lines, c->slope, y);
    }
    mo_round32(t);
    *doubt = mo_doubt32(steps->clear, t);
    return mo_sort32(mo_codes32(&steps->fast, mo_split32(t).codes, is_signed, v), order);
}

/* Element i of 32. */
MO_INLINE float mo_element32(const float *x, unsigned i, int order)
{
    return order == MO_HALVES ? x[i] : x[(i & 16) + (i & 1) * 8 + (i & 15) / 2];
}

/* A bit for each element one of whose fractions leaves the code open. */
MO_INLINE uint32_t mo_open32(int epsilon, const mo_shifted32 *s, const mo_shifted32 *t, int order)
{
    const __m256i near = _mm256_set1_epi16((short)(2 * epsilon));
    __m256i clear[2];
    for (int k = 0; k < 2; k++) {
        __m256i f = _mm256_min_epu16(s->fractions[k], t->fractions[k]);
        clear[k] = _mm256_cmpeq_epi16(_mm256_max_epu16(f, near), f);
    }
    __m256i bytes = mo_sort32(_mm256_packs_epi16(clear[0], clear[1]), order);
    return ~(uint32_t)_mm256_movemask_epi8(bytes);
}

/* A byte of 1 where the value is not 0, as two packs make it. */
MO_INLINE __m256i mo_not_zero32(const __m256i *magnitudes)
{
    __m256i some[4];
    for (int k = 0; k < 4; k++)
        some[k] = _mm256_cmpgt_epi32(magnitudes[k], _mm256_setzero_si256());
    __m256i bytes = _mm256_packs_epi16(_mm256_blend_epi16(some[0], some[1], 0xaa),
                                       _mm256_blend_epi16(some[2], some[3], 0xaa));
    return _mm256_and_si256(bytes, _mm256_set1_epi8(1));
}

/* By all lines, and by the specification's search next to a threshold. x: 32 values as vectors of
 * eight. */
static __attribute__((noinline)) void mo_encode32_again(const mo_steps *steps, const mo_coder *c,
                                                        const float *x, int order, int is_signed,
                                                        uint8_t *codes)
{
    const mo_lines *lines = is_signed ? &mo_lines_signed : &mo_lines_unsigned;
    __m256 fast_slope[6], low_slope[4], v[4];
    __m256i fast[4], low[4], magnitude[4];
    for (int k = 0; k <= lines->decades; k++)
        fast_slope[k] = _mm256_set1_ps(lines->fast_slope[k] * c->inverse);
    for (int k = 0; k < 4; k++)
        low_slope[k] = _mm256_set1_ps(lines->low_slope[k] * c->inverse);
    for (int k = 0; k < 4; k++) {
        v[k] = _mm256_mul_ps(_mm256_loadu_ps(x + 8 * k), _mm256_set1_ps(c->up));
        magnitude[k] = mo_magnitude_ints8(v[k]);
        fast[k] = mo_fast_lines8(lines, fast_slope, _mm256_castsi256_ps(magnitude[k]));
        low[k] = mo_low_lines8(lines, low_slope, _mm256_castsi256_ps(magnitude[k]));
    }
    mo_round32(fast);
    mo_round32(low);
    mo_shifted32 high_part = mo_split32(fast), low_part = mo_split32(low);
    if (!is_signed) /* a positive value never gets code 0 */
        low_part.codes = _mm256_max_epu8(low_part.codes, mo_not_zero32(magnitude));
    __m256i high = mo_codes32(&steps->fast, high_part.codes, is_signed, v);
    __m256i small = mo_codes32(&steps->low, low_part.codes, is_signed, v);
    const __m256i some = _mm256_set1_epi8((char)(lines->low_top + 1));
    __m256i is_high = _mm256_cmpeq_epi8(_mm256_max_epu8(high_part.codes, some), high_part.codes);
    _mm256_storeu_si256((__m256i *)(void *)codes,
                        mo_sort32(_mm256_blendv_epi8(small, high, is_high), order));
    uint32_t open = mo_open32(lines->epsilon, &high_part, &low_part, order);
    for (; open != 0; open &= open - 1) {
        unsigned i = (unsigned)__builtin_ctz(open);
        codes[i] =
            (uint8_t)mo_format_code(MO_STATE_8BIT, is_signed, mo_element32(x, i, order), &c->scale);
    }
}

MO_INLINE mo_f32x16 mo_read16(const float *x)
{
    return (mo_f32x16){_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)};
}

MO_INLINE void mo_write16(float *x, mo_f32x16 value)
{
    _mm256_storeu_ps(x, value.a);
    _mm256_storeu_ps(x + 8, value.b);
}

/* 32 values of a finite block, as vectors of eight. *doubts counts the block's groups that the fast
 * lines were not enough for. */
MO_INLINE void mo_encode32_store(const mo_steps *steps, const mo_coder *c, const float *x,
                                 int order, int is_signed, uint8_t *codes, int *doubts)
{
    if (__builtin_expect(*doubts < 2, 1)) {
        mo_f32x16 parts[2] = {mo_read16(x), mo_read16(x + 16)};
        __m256i doubt;
        _mm256_storeu_si256((__m256i *)(void *)codes,
                            mo_encode32(steps, c, parts, order, is_signed, &doubt));
        if (__builtin_expect(_mm256_testz_si256(doubt, doubt), 1))
            return;
        ++*doubts;
    }
    mo_encode32_again(steps, c, x, order, is_signed, codes);
}

/* --- a block --------------------------------------------------------------------------------- */

/* n values, a multiple of 32. */
MO_INLINE void v_decode_8bit(int is_signed, const uint8_t *codes, float scale, float *values,
                             uint32_t n)
{
    const uint32_t *map = is_signed ? mo_map_signed : mo_map_unsigned;
    for (uint32_t i = 0; i < n; i += 16)
        mo_write16(values + i, mo_decode16(map, codes + i, v_set(scale), MO_HALVES));
}

/* What stays the same from block to block. */
typedef mo_steps v_steps;

MO_INLINE v_steps v_steps_of(int is_signed)
{
    return mo_steps_of(is_signed ? &mo_lines_signed : &mo_lines_unsigned, is_signed);
}

/* n values of a finite block, a multiple of 32. */
MO_INLINE void v_encode_part(const v_steps *steps, int is_signed, const float *values, uint32_t n,
                             const mo_block_scale *scale, uint8_t *codes)
{
    mo_coder c = mo_coder_of(scale, is_signed ? &mo_lines_signed : &mo_lines_unsigned);
    int doubts = 0;
    for (uint32_t i = 0; i < n; i += 32)
        mo_encode32_store(steps, &c, values + i, MO_HALVES, is_signed, codes + i, &doubts);
}

MO_INLINE void v_encode_8bit(int is_signed, const float *values, const mo_block_scale *scale,
                             uint8_t *codes, uint32_t n)
{
    v_steps steps = v_steps_of(is_signed);
    v_encode_part(&steps, is_signed, values, n, scale, codes);
}

#endif
