/*
 * Block-wise e4m3 codes (OCP 8-bit floats; the scale as in torchao's AdamWFp8): the scalar
 * specification.
 *
 * A block is 256 consecutive elements with one fp32 scale = absmax / 448, at least 2^-126 where
 * absmax is not 0: then no quotient overflows. A code c stands for e4m3(c) * scale. The code is
 * x * (1 / scale), the inverse correctly rounded, to nearest even, saturating. In an unsigned state
 * (a second moment) a positive value never gets code 0. A block that is not finite stores a NaN
 * scale and codes of zero.
 */
#ifndef MO_KERNELS_BLOCKCODE8F_H
#define MO_KERNELS_BLOCKCODE8F_H

#include "kernels/optim/state_codes.h"

/* `absmax` of the result is the scale that is stored. */
MO_HD static inline mo_block_scale mo_block_scale_f8_of(uint32_t absmax_bits)
{
    mo_block_scale s = mo_block_scale_of(absmax_bits);
    s.prescale = 1.0f;
    if (absmax_bits == 0 || absmax_bits >= MO_F32_INF_BITS)
        return s;
    s.absmax = s.absmax / 448.0f;
    if (s.absmax < 0x1p-126f)
        s.absmax = 0x1p-126f;
    s.inverse = 1.0f / s.absmax;
    return s;
}

MO_HD static inline uint32_t mo_code_f8_signed(float y)
{
    return y != y ? 0u : mo_f32_to_e4m3(y, 1);
}

/* x is the value before it was normalised to y. Negative values get code 0. */
MO_HD static inline uint32_t mo_code_f8_unsigned(float x, float y)
{
    if (!(y >= 0.0f) || !(x > 0.0f))
        return 0;
    uint32_t code = mo_f32_to_e4m3(y, 1);
    return code == 0 ? 1 : code;
}

#endif
