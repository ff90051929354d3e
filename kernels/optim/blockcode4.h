/*
 * Block-wise 4-bit codes (Li, Chen & Zhu, "Memory Efficient Optimizers with 4-bit States", 2023;
 * the same maps as torchao's AdamW4bit): the scalar specification.
 *
 * A block is 128 consecutive elements with one fp32 absmax. Two codes share a byte: the element of
 * even index in the upper half. A code c stands for map[c] * absmax, one fp32 multiplication. The
 * signed map is the dynamic map of 4 bits; the unsigned one is (c + 1) / 16, without a zero: a
 * second moment never vanishes beside others (a block of zeros has absmax 0 and so decodes to
 * zeros). The nearest code is taken, ties to the smaller magnitude. The half byte behind a last
 * element of even index holds the code of new states: 7 signed, 0 unsigned.
 */
#ifndef MO_KERNELS_BLOCKCODE4_H
#define MO_KERNELS_BLOCKCODE4_H

#include "kernels/optim/state_codes.h"

enum {
    MO_BLOCK4_SIZE = 128,
    MO_SIGNED4_ZERO = 7, /* the signed map's code of 0 */
    MO_SIGNED4_TOP = 8,  /* the largest magnitude code: 1.0 */
    MO_UNSIGNED4_TOP = 15
};

/* The signed map, as fp32 bits, and for each magnitude code the smallest bits nearer to it than to
 * the one below. */
MO_TABLE uint32_t mo_map4_signed[16] = {
    0xbf633333, 0xbf29999a, 0xbee00000, 0xbe599999, 0xbd9eb852, 0xbd051eb9, 0xbbb43958, 0x00000000,
    0x3bb43958, 0x3d051eb9, 0x3d9eb852, 0x3e599999, 0x3ee00000, 0x3f29999a, 0x3f633333, 0x3f800000};
MO_TABLE uint32_t mo_threshold4_signed[12] = {0x00000000, 0x3b343959, 0x3c9ba5e5,
                                              0x3d6147af, 0x3e147ae2, 0x3ea66667,
                                              0x3f0cccce, 0x3f466667, 0x3f71999a};

/* threshold: mo_threshold4_signed or a copy of it. The map has no -1: negatives end at code 0. */
MO_HD static inline uint32_t mo_code4_signed_in(const uint32_t *threshold, float y)
{
    uint32_t bits = mo_f32_bits(y) & 0x7fffffffu, magnitude = 0;
    if (bits > MO_F32_INF_BITS)
        return MO_SIGNED4_ZERO;
    for (int k = 1; k <= MO_SIGNED4_TOP; k++)
        magnitude += bits >= threshold[k];
    if (mo_f32_bits(y) >> 31)
        return magnitude > MO_SIGNED4_ZERO ? 0 : MO_SIGNED4_ZERO - magnitude;
    return MO_SIGNED4_ZERO + magnitude;
}

MO_HD static inline uint32_t mo_code4_signed(float y)
{
    return mo_code4_signed_in(mo_threshold4_signed, y);
}

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

#endif
