/*
 * Optimizer states in 16, 8 and 4 bits: the scalar specification of the codes, and the formats by
 * number.
 *
 * With 8 and 4 bits a block of consecutive elements of a tensor shares one fp32 scale; the last
 * block may be shorter.
 * A code stands for a number of at most 1 times the scale, one fp32 multiplication.
 * A block with a value that is not finite stores a NaN scale and decodes to NaN until it is
 * overwritten, so that trouble shows. The fast forms (cells, byte planes) find the same codes in
 * other ways.
 */
#ifndef MO_KERNELS_OPTIM_STATE_CODES_H
#define MO_KERNELS_OPTIM_STATE_CODES_H

#include "kernels/core/numerics.h"
#include "kernels/generated/blockcode_tables.h"
#include "kernels/optim/steps.def"

/* Formats of states. */
#define MO_STATE_VALUE(id, number, name, word) MO_STATE_##id = number,
enum { MO_EACH_FORMAT(MO_STATE_VALUE) MO_STATE_FORMATS };

/* --- 8 bits: the dynamic map (Dettmers et al. 2022) --------------------------------------------
 *
 * Blocks of 256 elements with their absmax. The nearest code is taken, ties to the smaller
 * magnitude. In the unsigned map a positive value never gets code 0: a second moment that is not
 * zero never vanishes.
 */

enum {
    MO_BLOCK_SIZE = 256,
    MO_SIGNED_ZERO = 127,      /* the signed map's code of 0 */
    MO_SIGNED_TOP = 128,       /* the largest magnitude code of the signed map: 1.0 */
    MO_UNSIGNED_TOP = 255,     /* the same of the unsigned map */
    MO_SIGNED_UMIN = 105 << 7, /* upper half of |x| of the first cell */
    MO_UNSIGNED_UMIN = 106 << 7
};

/* How a block with a given absmax is normalised: y = (x * prescale) * inverse. */
typedef struct mo_block_scale {
    float absmax;   /* what is stored: NaN if the block holds a value that is not finite */
    float prescale; /* 2^100 where absmax is below 2^-100 (its inverse would overflow), else 1 */
    float inverse;  /* 1 / (absmax * prescale), correctly rounded; 0 where absmax is 0 */
} mo_block_scale;

/* absmax_bits: the largest of all bits(x) & 0x7fffffff. A block that is not finite is poisoned: it
 * decodes to NaN until it is overwritten, so that trouble shows. */
MO_HD static inline mo_block_scale mo_block_scale_of(uint32_t absmax_bits)
{
    mo_block_scale s;
    if (absmax_bits >= 0x7f800000u) {
        s.absmax = mo_f32_from_bits(0x7fc00000u);
        s.prescale = 1.0f;
        s.inverse = s.absmax;
        return s;
    }
    s.absmax = mo_f32_from_bits(absmax_bits);
    s.prescale = absmax_bits < 0x0d800000u ? 0x1p100f : 1.0f; /* 2^-100 */
    s.inverse = absmax_bits == 0 ? 0.0f : 1.0f / (s.absmax * s.prescale);
    return s;
}

/* The largest g with threshold[g] <= bits, 0 if none; threshold[1..top] grows. */
MO_HD static inline uint32_t mo_code_search(const uint32_t *threshold, uint32_t top, uint32_t bits)
{
    uint32_t low = 0, high = top;
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        if (bits >= threshold[middle])
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* The signed map's code of a magnitude code and the sign of y. */
MO_HD static inline uint8_t mo_signed_code(uint32_t magnitude, float y)
{
    if (mo_f32_bits(y) >> 31)
        return (uint8_t)(magnitude > MO_SIGNED_ZERO ? 0 : MO_SIGNED_ZERO - magnitude);
    return (uint8_t)(MO_SIGNED_ZERO + magnitude);
}

/* The nearest code of a normalised value. The map has no -1: negatives end at code 0. */
MO_HD static inline uint8_t mo_code_signed(float y)
{
    uint32_t bits = mo_f32_bits(y) & 0x7fffffffu;
    if (bits > 0x7f800000u)
        return MO_SIGNED_ZERO;
    return mo_signed_code(mo_code_search(mo_threshold_signed, MO_SIGNED_TOP, bits), y);
}

/* x is the value before it was normalised to y. Negative values get code 0. */
MO_HD static inline uint8_t mo_code_unsigned(float x, float y)
{
    if (!(y >= 0.0f) || !(x > 0.0f))
        return 0;
    uint32_t code = mo_code_search(mo_threshold_unsigned, MO_UNSIGNED_TOP, mo_f32_bits(y));
    return (uint8_t)(code == 0 ? 1 : code);
}

MO_HD static inline float mo_decode_signed(uint8_t code, float absmax)
{
    return mo_f32_from_bits(mo_map_signed[code]) * absmax;
}

MO_HD static inline float mo_decode_unsigned(uint8_t code, float absmax)
{
    return mo_f32_from_bits(mo_map_unsigned[code]) * absmax;
}

/* --- companded 8 bits ---------------------------------------------------------------------------
 *
 * Blocks of 256 elements with their absmax. Arithmetic instead of tables, and no division.
 *
 * A first moment's code c, from -127 to 127, stands for (c / 127)^3. The nearest is taken by a cube
 * root that is at most 0.02 codes off: a guess from the exponent, and a parabola that mends it.
 * -128 is not made. A slow one, Lion's or AdEMAMix's mean, is drawn as a second moment is.
 *
 * A second moment's code stands for ((c + 3) / 258)^4: never 0 in a block that is not all zeros.
 * Between two codes the upper one is taken as often as the value is near it: bits of the value that
 * decide nothing else are the draw. To nearest, a mean that changes by a thousandth a step would
 * stay where it is. A decoded code gets the same code again.
 *
 * Roots of higher order hold elements a thousand times smaller than their block's largest: with even
 * steps these would become 0 or the lowest code, and their steps be wrong.
 */

#define MO_SLOW 2                  /* is_signed of a slow first moment */
#define MO_COMPAND_ROUND 0x1.8p23f /* adding it rounds to a whole number, in the low byte */
/* Guesses of roots subtract a share of a number's bits; polynomials mend them: near 127 * u^(-2/3) for
 * u from 0.900 to 1.111, near 258 * u^(-3/4) from 0.882 to 1.134. */
#define MO_COMPAND_GUESS 0x54a24a00
#define MO_COMPAND_THIRD (-21846) /* of the upper half */
#define MO_COMPAND_0 0x1.1a43fep+8f
#define MO_COMPAND_1 -0x1.c2afc2p+7f
#define MO_COMPAND_2 0x1.1851fap+6f
#define MO_COMPAND_FOURTH_GUESS 0x4f5878c0u
#define MO_COMPAND_FOURTH_0 0x1.ccd12cp+9f
#define MO_COMPAND_FOURTH_1 -0x1.8a5fe8p+10f
#define MO_COMPAND_FOURTH_2 0x1.772162p+10f
#define MO_COMPAND_FOURTH_3 -0x1.6ccc14p+9f
#define MO_COMPAND_FOURTH_4 0x1.1ddfd6p+7f
#define MO_EXPAND_SIGNED 0x1.020408p-7f /* 1 / 127 */
#define MO_EXPAND_STEP 0x1.fc07fp-9f    /* 1 / 258 */
#define MO_EXPAND_LEAST 0x1.7d05f4p-7f  /* 3 / 258 */

MO_HD static inline float mo_cubic(float x, float c0, float c1, float c2, float c3)
{
    return mo_fmaf(mo_fmaf(mo_fmaf(c3, x, c2), x, c1), x, c0);
}

/* x^(-1/3), up to 3.6 % off. */
MO_HD static inline float mo_inverse_cube_root_near(float x)
{
    int32_t upper = (int32_t)(mo_f32_bits(x) >> 16);
    return mo_f32_from_bits((uint32_t)(MO_COMPAND_GUESS + upper * MO_COMPAND_THIRD));
}

/* Near 127 times the cube root of a normalised value, plus an addend. */
MO_HD static inline float mo_companded_cube_root(float y, float addend)
{
    float r = mo_inverse_cube_root_near(mo_magnitude(y));
    float root = y * (r * r), u = mo_magnitude(root) * r;
    float slope = mo_fmaf(mo_fmaf(MO_COMPAND_2, u, MO_COMPAND_1), u, MO_COMPAND_0);
    return mo_fmaf(root, slope, addend);
}

/* The code of a normalised value; of NaN that of 0. */
MO_HD static inline uint32_t mo_code_companded_signed(float y)
{
    return y != y ? 0u : mo_f32_bits(mo_companded_cube_root(y, MO_COMPAND_ROUND)) & 0xffu;
}

/* What is added to a slow one before it is rounded: from -15 to 15 odd numbers of 32nds, which y
 * draws. */
#define MO_COMPAND_SLOW_MASK 0xf0u
#define MO_COMPAND_SLOW_BITS 0x47400008u
#define MO_COMPAND_SLOW_MIDDLE 49152.5f

MO_HD static inline float mo_companded_slow_draw(float y)
{
    uint32_t bits = (mo_f32_bits(y) & MO_COMPAND_SLOW_MASK) | MO_COMPAND_SLOW_BITS;
    return mo_f32_from_bits(bits) - MO_COMPAND_SLOW_MIDDLE;
}

MO_HD static inline uint32_t mo_code_companded_slow(float y)
{
    float sum = mo_companded_cube_root(y, mo_companded_slow_draw(y)) + MO_COMPAND_ROUND;
    return y != y ? 0u : mo_f32_bits(sum) & 0xffu;
}

/* What is added to the fourth root: 2^15 - 3, so that the whole number is in the second byte, and
 * an odd number of 64ths that y draws, less half of what the sum is rounded to (2^-8). */
#define MO_COMPAND_DRAW_MASK 0x1f0u
#define MO_COMPAND_DRAW_BITS 0x46fffa07u
#define MO_COMPAND_DRAW_LEAST 0x1p15f

MO_HD static inline float mo_companded_draw(float y)
{
    return mo_f32_from_bits((mo_f32_bits(y) & MO_COMPAND_DRAW_MASK) | MO_COMPAND_DRAW_BITS);
}

/* Near 258 times the fourth root of a normalised value, plus an addend. */
MO_HD static inline float mo_companded_fourth_root(float y, float addend)
{
    float r = mo_f32_from_bits(MO_COMPAND_FOURTH_GUESS - (mo_f32_bits(y) >> 2)); /* y^(-1/4) */
    float square = r * r, root = y * square, u = root * square;
    float slope = mo_cubic(u, MO_COMPAND_FOURTH_1, MO_COMPAND_FOURTH_2, MO_COMPAND_FOURTH_3,
                           MO_COMPAND_FOURTH_4);
    return mo_fmaf(root * r, mo_fmaf(slope, u, MO_COMPAND_FOURTH_0), addend);
}

/* The code of a normalised value. Negative ones and NaN get code 0. */
MO_HD static inline uint32_t mo_code_companded_unsigned(float y)
{
    float sum = mo_companded_fourth_root(y, mo_companded_draw(y));
    sum = sum > MO_COMPAND_DRAW_LEAST ? sum : MO_COMPAND_DRAW_LEAST;
    return mo_f32_bits(sum) >> 8 & 0xffu;
}

/* The values of codes as floats, -128 to 127 and 0 to 255. */
MO_HD static inline float mo_expand_signed(float code)
{
    float root = code * MO_EXPAND_SIGNED;
    return root * root * root;
}

MO_HD static inline float mo_expand_unsigned(float code)
{
    float root = mo_fmaf(code, MO_EXPAND_STEP, MO_EXPAND_LEAST);
    return root * root * (root * root);
}

/* --- companded 4 bits ----------------------------------------------------------------------------
 *
 * Blocks of 128 elements with their absmax. Two codes share a byte: the element of even index in
 * the upper half. The half byte behind a last element of even index holds the code of new states: 7
 * signed, 0 unsigned.
 *
 * A first moment's code is 7 plus a whole number near 7 * 2y / (1 + |y|), for which k stands k /
 * (14 - |k|); code 15 is not made. A second moment's stands for (c + 1) / 16 (Li, Chen & Zhu,
 * "Memory Efficient Optimizers with 4-bit States", 2023), without a zero: it never becomes 0 in a
 * block that is not all zeros. The nearest code is taken, ties to the smaller magnitude.
 */

enum {
    MO_BLOCK4_SIZE = 128,
    MO_SIGNED4_ZERO = 7, /* the signed map's code of 0 */
    MO_UNSIGNED4_TOP = 15
};

/* The least c with 16 * y - 0.5 <= c + 1: all of it is exact. Negative values and NaN get 0. */
MO_HD static inline uint32_t mo_code4_unsigned(float y)
{
    float t = y * 16.0f - 0.5f;
    if (!(t > 0.0f))
        return 0;
    if (t > 15.0f)
        return MO_UNSIGNED4_TOP;
    uint32_t whole = (uint32_t)t;
    return whole - ((float)whole == t);
}

MO_HD static inline float mo_decode4_unsigned(uint32_t code, float absmax)
{
    return (float)(code + 1) * 0.0625f * absmax;
}

/* Near 7 * 2 / (1 + |y|), by powers. */
#define MO_COMPAND4_0 0x1.b88a82p+3f
#define MO_COMPAND4_1 -0x1.791514p+3f
#define MO_COMPAND4_2 0x1.acf02cp+2f
#define MO_COMPAND4_3 -0x1.af6c1ep+0f
#define MO_COMPAND4_ROUND (MO_COMPAND_ROUND + (float)MO_SIGNED4_ZERO)

MO_LOOKUP_TABLE uint32_t mo_map4_companded[16] = {
    0xbf800000, 0xbf400000, 0xbf0e38e4, 0xbecccccd, 0xbe8ba2e9, 0xbe2aaaab, 0xbd9d89d9, 0x00000000,
    0x3d9d89d9, 0x3e2aaaab, 0x3e8ba2e9, 0x3ecccccd, 0x3f0e38e4, 0x3f400000, 0x3f800000, 0x3faaaaab};

/* The code of a normalised value; of NaN that of 0. */
MO_HD static inline uint32_t mo_code4_companded(float y)
{
    float slope =
        mo_cubic(mo_magnitude(y), MO_COMPAND4_0, MO_COMPAND4_1, MO_COMPAND4_2, MO_COMPAND4_3);
    return y != y ? (uint32_t)MO_SIGNED4_ZERO
                  : mo_f32_bits(mo_fmaf(y, slope, MO_COMPAND4_ROUND)) & 15u;
}

/* --- bfloat16 ------------------------------------------------------------------------------------
 *
 * Two moments rounded stochastically, without scales. To nearest a mean would stop: with beta2 =
 * 0.999 a change is less than half a unit unless the square is three times the mean, which then
 * could only grow. The random bits are a hash of the element's new moments and of the step. So they
 * do not depend on where an element lies, and shards step as the whole. A positive second moment
 * never becomes 0.
 */

typedef struct mo_moment_codes {
    uint16_t m, v;
} mo_moment_codes;

/* Odd factors for the hash; each has about as many ones as zeros. */
#define MO_MOMENT_MIX_0 0x9e3779b1u
#define MO_MOMENT_MIX_1 0xb5297a4du
#define MO_MOMENT_MIX_2 0x68e31da5u

MO_HD static inline uint32_t mo_moment_key(uint64_t step)
{
    return (uint32_t)step * MO_MOMENT_MIX_0;
}

/* 16 bits for m in the lower half, 16 for v in the upper half. */
MO_HD static inline uint32_t mo_moment_random(uint32_t m_bits, uint32_t v_bits, uint32_t key)
{
    uint32_t x = (m_bits ^ key) * MO_MOMENT_MIX_1;
    x = (x ^ x >> 15 ^ v_bits) * MO_MOMENT_MIX_2;
    x = (x ^ x >> 16) * MO_MOMENT_MIX_0;
    return x ^ x >> 15;
}

/* Of values whose only NaN is MO_F32_NAN_BITS. */
MO_HD static inline mo_moment_codes mo_moment_codes_of(float m, float v, uint32_t key)
{
    mo_moment_codes codes;
    uint32_t random = mo_moment_random(mo_f32_bits(m), mo_f32_bits(v), key);
    codes.m = mo_f32_to_bf16_stochastic(m, random & 0xffffu);
    codes.v = mo_f32_to_bf16_stochastic(v, random >> 16);
    if (codes.v == 0 && mo_f32_bits(v) != 0)
        codes.v = 1;
    return codes;
}

/* --- the formats by number -----------------------------------------------------------------------
 *
 * Callers pass a constant, so the choice is made by the compiler. A new format is a line in each.
 */

/* Whether two codes share a byte. */
MO_HD_CONSTANT static inline int mo_format_is_4bit(uint32_t format)
{
    return format == MO_STATE_COMPANDED4 || format == MO_STATE_OLD_4BIT;
}

/* Elements that share a scale. */
MO_HD_CONSTANT static inline uint32_t mo_format_block(uint32_t format)
{
    return mo_format_is_4bit(format) ? (uint32_t)MO_BLOCK4_SIZE : (uint32_t)MO_BLOCK_SIZE;
}

/* Whether blocks have scales. */
MO_HD_CONSTANT static inline int mo_format_has_scales(uint32_t format)
{
    return format != MO_STATE_F32 && format != MO_STATE_BF16;
}

/* Bytes of `count` elements of one moment. */
MO_HD static inline uint64_t mo_format_bytes(uint32_t format, uint64_t count)
{
    return format == MO_STATE_F32      ? count * 4
           : format == MO_STATE_BF16   ? count * 2
           : mo_format_is_4bit(format) ? count / 2 + (count & 1)
                                       : count;
}

/* The code of zero; of the least value where there is no zero. */
MO_HD static inline uint32_t mo_format_zero_code(uint32_t format, int is_signed)
{
    if (!is_signed)
        return 0;
    return format == MO_STATE_8BIT     ? (uint32_t)MO_SIGNED_ZERO
           : mo_format_is_4bit(format) ? (uint32_t)MO_SIGNED4_ZERO
                                       : 0u;
}

/* The byte that a new moment is filled with. */
MO_HD static inline uint32_t mo_format_zero(uint32_t format, int is_signed)
{
    return mo_format_zero_code(format, is_signed) * (mo_format_is_4bit(format) ? 0x11u : 1u);
}

MO_HD static inline uint32_t mo_format_code(uint32_t format, int is_signed, float x,
                                            const mo_block_scale *scale)
{
    float y = x * scale->prescale * scale->inverse;
    if (format == MO_STATE_COMPANDED)
        return is_signed == MO_SLOW ? mo_code_companded_slow(y)
               : is_signed          ? mo_code_companded_signed(y)
                                    : mo_code_companded_unsigned(y);
    if (format == MO_STATE_COMPANDED4)
        return is_signed ? mo_code4_companded(y) : mo_code4_unsigned(y);
    return is_signed ? mo_code_signed(y) : mo_code_unsigned(x, y);
}

MO_HD static inline float mo_format_value(uint32_t format, int is_signed, uint32_t code,
                                          float scale)
{
    if (format == MO_STATE_COMPANDED)
        return (is_signed ? mo_expand_signed((float)((int32_t)(code ^ 0x80u) - 128))
                          : mo_expand_unsigned((float)code)) *
               scale;
    if (format == MO_STATE_COMPANDED4)
        return is_signed ? mo_f32_from_bits(mo_map4_companded[code]) * scale
                         : mo_decode4_unsigned(code, scale);
    return is_signed ? mo_decode_signed((uint8_t)code, scale)
                     : mo_decode_unsigned((uint8_t)code, scale);
}

MO_HD static inline uint32_t mo_format_read(uint32_t format, const uint8_t *codes, uint64_t i)
{
    if (mo_format_is_4bit(format))
        return (uint32_t)codes[i / 2] >> (i % 2 ? 0 : 4) & 15u;
    return codes[i];
}

/* In order of i: an even element of a 4-bit state also writes the lower half, which may stay
 * unused. */
MO_HD static inline void mo_format_write(uint32_t format, int is_signed, uint8_t *codes, uint64_t i,
                                         uint32_t code)
{
    if (!mo_format_is_4bit(format))
        codes[i] = (uint8_t)code;
    else if (i % 2 == 0)
        codes[i / 2] = (uint8_t)(code << 4 | mo_format_zero_code(format, is_signed));
    else
        codes[i / 2] = (uint8_t)((codes[i / 2] & 0xf0u) | code);
}

#endif
