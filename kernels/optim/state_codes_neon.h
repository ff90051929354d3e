/*
 * The 8-bit codes of a block for NEON, 16 elements at a time.
 *
 * The candidate for the nearest code comes from a line in 16-bit arithmetic, as on AVX-512
 * (state_codes_avx512.h explains it). Maps and thresholds are looked up by ordinary loads, one an
 * element: TBL takes 64 bytes at most, so the four byte planes of a table of 256 floats would take
 * 16 look-ups for 16 codes, which are more instructions and, on the processors that llvm-mca knows,
 * more time.
 */
#ifndef MO_KERNELS_OPTIM_STATE_CODES_NEON_H
#define MO_KERNELS_OPTIM_STATE_CODES_NEON_H

#include "kernels/core/vector_neon.h"
#include "kernels/generated/blockcode_planes.h"
#include "kernels/optim/state_codes.h"

/* Entries of a table by the 8 bytes of `index`, the first in the lowest. */
MO_INLINE VI mo_look8(const uint32_t *table, uint64_t index)
{
    uint32x4_t low = {table[index & 255], table[index >> 8 & 255], table[index >> 16 & 255],
                      table[index >> 24 & 255]};
    uint32x4_t high = {table[index >> 32 & 255], table[index >> 40 & 255], table[index >> 48 & 255],
                       table[index >> 56]};
    return (VI){vreinterpretq_s32_u32(low), vreinterpretq_s32_u32(high)};
}

/* n values, a multiple of 8. */
MO_INLINE void v_decode_8bit(int is_signed, const uint8_t *codes, float scale, float *values,
                             uint32_t n)
{
    const uint32_t *map = is_signed ? mo_map_signed : mo_map_unsigned;
    for (uint32_t i = 0; i < n; i += 8) {
        uint64_t index = vget_lane_u64(vreinterpret_u64_u8(vld1_u8(codes + i)), 0);
        v_store(values + i, v_mul(v_bits(mo_look8(map, index)), v_set(scale)));
    }
}

/* --- candidates ------------------------------------------------------------------------------ */

/* A line of each exponent: slopes, and offsets in two planes. */
typedef struct mo_line {
    uint8x16x2_t slope, lower, upper;
} mo_line;

MO_INLINE mo_line mo_line_of(const uint16_t slopes[32], const uint16_t offsets[32])
{
    const uint8_t *s = (const uint8_t *)slopes, *o = (const uint8_t *)offsets;
    uint8x16x2_t s0 = vld2q_u8(s), s1 = vld2q_u8(s + 32), o0 = vld2q_u8(o), o1 = vld2q_u8(o + 32);
    return (mo_line){{{s0.val[0], s1.val[0]}}, {{o0.val[0], o1.val[0]}}, {{o0.val[1], o1.val[1]}}};
}

/* The line's values for 16 upper halves. */
MO_INLINE uint16x8x2_t mo_line_values(const mo_line *line, uint8x16_t exponent, uint16x8x2_t u)
{
    uint8x16_t slope = vqtbl2q_u8(line->slope, exponent);
    uint8x16_t lower = vqtbl2q_u8(line->lower, exponent);
    uint8x16_t upper = vqtbl2q_u8(line->upper, exponent);
    uint16x8_t low = vreinterpretq_u16_u8(vzip1q_u8(lower, upper));
    uint16x8_t high = vreinterpretq_u16_u8(vzip2q_u8(lower, upper));
    u.val[0] = vmlaq_u16(low, u.val[0], vmovl_u8(vget_low_u8(slope)));
    u.val[1] = vmlaq_u16(high, u.val[1], vmovl_high_u8(slope));
    return u;
}

/* The candidates of 16 magnitudes' upper halves: the high bytes of the lower line. */
MO_INLINE uint8x16_t mo_candidates(const mo_line line[2], uint16x8x2_t u)
{
    uint8x16_t exponent = vshrn_high_n_u16(vshrn_n_u16(u.val[0], 7), u.val[1], 7);
    exponent = vandq_u8(exponent, vdupq_n_u8(31));
    uint16x8x2_t a = mo_line_values(&line[0], exponent, u);
    uint16x8x2_t b = mo_line_values(&line[1], exponent, u);
    return vuzp2q_u8(vreinterpretq_u8_u16(vminq_u16(a.val[0], b.val[0])),
                     vreinterpretq_u8_u16(vminq_u16(a.val[1], b.val[1])));
}

/* --- coding ---------------------------------------------------------------------------------- */

/* A positive value of an unsigned state stays positive. */
MO_INLINE VI mo_normalize8(int is_signed, const float *values, const mo_block_scale *scale)
{
    VF x = v_load(values), y = v_mul(v_mul(x, v_set(scale->prescale)), v_set(scale->inverse));
    return is_signed ? v_ints(y) : v_maxi(v_ints(y), v_mini(v_ints(x), v_seti(1)));
}

/* 16 bytes: those of a mask where 16 magnitudes are below their candidates' thresholds. */
MO_INLINE uint8x16_t mo_below16(const uint32_t *threshold, uint8x16_t candidate, VI a, VI b)
{
    uint64x2_t index = vreinterpretq_u64_u8(candidate);
    VM low = v_gti(mo_look8(threshold, vgetq_lane_u64(index, 0)), a);
    VM high = v_gti(mo_look8(threshold, vgetq_lane_u64(index, 1)), b);
    uint16x8_t first = vuzp1q_u16(vreinterpretq_u16_u32(low.low), vreinterpretq_u16_u32(low.high));
    uint16x8_t last = vuzp1q_u16(vreinterpretq_u16_u32(high.low), vreinterpretq_u16_u32(high.high));
    return vuzp1q_u8(vreinterpretq_u8_u16(first), vreinterpretq_u8_u16(last));
}

/* Magnitude codes of 16 magnitudes. A signed candidate is one less than its threshold's code. */
MO_INLINE uint8x16_t mo_encode16(int is_signed, const mo_line line[2], VI a, VI b)
{
    const uint16x8_t least = vdupq_n_u16(is_signed ? MO_SIGNED_UMIN : MO_UNSIGNED_UMIN);
    uint16x8x2_t u = {{vmaxq_u16(mo_narrow_high8(a), least), vmaxq_u16(mo_narrow_high8(b), least)}};
    uint8x16_t candidate = mo_candidates(line, u);
    if (!is_signed)
        return vaddq_u8(candidate, mo_below16(mo_threshold_unsigned, candidate, a, b));
    uint8x16_t below = mo_below16(mo_threshold_signed + 1, candidate, a, b);
    return vaddq_u8(vaddq_u8(candidate, vdupq_n_u8(1)), below);
}

/* Magnitude codes with the signs of their values; negatives end at code 0. */
MO_INLINE uint8x16_t mo_apply_signs(uint8x16_t code, VI a, VI b)
{
    const uint8x16_t zero = vdupq_n_u8(MO_SIGNED_ZERO);
    uint8x16_t signs = vuzp2q_u8(vreinterpretq_u8_u16(mo_narrow_high8(a)),
                                 vreinterpretq_u8_u16(mo_narrow_high8(b)));
    uint8x16_t negative = vcltzq_s8(vreinterpretq_s8_u8(signs));
    return vbslq_u8(negative, vqsubq_u8(zero, code), vaddq_u8(zero, code));
}

/* What stays the same from block to block. */
typedef struct v_steps {
    mo_line line[2];
} v_steps;

MO_INLINE v_steps v_steps_of(int is_signed)
{
    const uint16_t(*lines)[32] = is_signed ? mo_lines_signed : mo_lines_unsigned;
    return (v_steps){{mo_line_of(lines[0], lines[1]), mo_line_of(lines[2], lines[3])}};
}

/* n values of a finite block, a multiple of 16; those of an unsigned one are not negative. */
MO_INLINE void v_encode_part(const v_steps *steps, int is_signed, const float *values, uint32_t n,
                             const mo_block_scale *scale, uint8_t *codes)
{
    for (uint32_t i = 0; i < n; i += 16) {
        VI a = mo_normalize8(is_signed, values + i, scale);
        VI b = mo_normalize8(is_signed, values + i + 8, scale);
        if (is_signed) {
            const VI magnitude = v_seti(0x7fffffff);
            uint8x16_t code = mo_encode16(1, steps->line, v_and(a, magnitude), v_and(b, magnitude));
            vst1q_u8(codes + i, mo_apply_signs(code, a, b));
        } else {
            vst1q_u8(codes + i, mo_encode16(0, steps->line, a, b));
        }
    }
}

MO_INLINE void v_encode_8bit(int is_signed, const float *values, const mo_block_scale *scale,
                             uint8_t *codes, uint32_t n)
{
    v_steps steps = v_steps_of(is_signed);
    v_encode_part(&steps, is_signed, values, n, scale, codes);
}

#endif
