/*
 * The formats of states by number: blocks, bytes, scales, codes. Callers pass a constant, so the
 * choice is made by the compiler. A new format is a line in each of these.
 */
#ifndef MO_KERNELS_STATEFORMAT_H
#define MO_KERNELS_STATEFORMAT_H

#include "kernels/optim/blockcode4.h"
#include "kernels/optim/blockcode8f.h"
#include "kernels/optim/rule.h"

/* Elements that share a scale. */
MO_HD static inline uint32_t mo_format_block(uint32_t format)
{
    return format == MO_STATE_4BIT ? (uint32_t)MO_BLOCK4_SIZE : (uint32_t)MO_BLOCK_SIZE;
}

/* Bytes of `count` elements of one moment. */
MO_HD static inline uint64_t mo_format_bytes(uint32_t format, uint64_t count)
{
    return format == MO_STATE_F32    ? count * 4
           : format == MO_STATE_4BIT ? count / 2 + (count & 1)
                                     : count;
}

/* The code of zero; of the least value where there is no zero. */
MO_HD static inline uint32_t mo_format_zero_code(uint32_t format, int is_signed)
{
    if (!is_signed)
        return 0;
    return format == MO_STATE_8BIT   ? (uint32_t)MO_SIGNED_ZERO
           : format == MO_STATE_4BIT ? (uint32_t)MO_SIGNED4_ZERO
                                     : 0u;
}

/* The byte that a new moment is filled with. */
MO_HD static inline uint32_t mo_format_zero(uint32_t format, int is_signed)
{
    return mo_format_zero_code(format, is_signed) * (format == MO_STATE_4BIT ? 0x11u : 1u);
}

/* absmax_bits: the largest of all bits(x) & 0x7fffffff of the block. */
MO_HD static inline mo_block_scale mo_format_scale(uint32_t format, uint32_t absmax_bits)
{
    return format == MO_STATE_F8 ? mo_block_scale_f8_of(absmax_bits)
                                 : mo_block_scale_of(absmax_bits);
}

MO_HD static inline uint32_t mo_format_code(uint32_t format, int is_signed, float x,
                                            const mo_block_scale *scale)
{
    float y = x * scale->prescale * scale->inverse;
    if (format == MO_STATE_F8)
        return is_signed ? mo_code_f8_signed(y) : mo_code_f8_unsigned(x, y);
    if (format == MO_STATE_4BIT)
        return is_signed ? mo_code4_signed(y) : mo_code4_unsigned(y);
    return is_signed ? mo_code_signed(y) : mo_code_unsigned(x, y);
}

MO_HD static inline float mo_format_value(uint32_t format, int is_signed, uint32_t code,
                                          float scale)
{
    if (format == MO_STATE_F8)
        return mo_e4m3_to_f32((uint8_t)code) * scale;
    if (format == MO_STATE_4BIT)
        return is_signed ? mo_f32_from_bits(mo_map4_signed[code]) * scale
                         : mo_decode4_unsigned(code, scale);
    return is_signed ? mo_decode_signed((uint8_t)code, scale)
                     : mo_decode_unsigned((uint8_t)code, scale);
}

MO_HD static inline uint32_t mo_format_read(uint32_t format, const uint8_t *codes, uint64_t i)
{
    if (format == MO_STATE_4BIT)
        return (uint32_t)codes[i / 2] >> (i % 2 ? 0 : 4) & 15u;
    return codes[i];
}

/* In order of i: an even element of a 4-bit state also writes what stands behind a last one. */
MO_HD static inline void mo_format_write(uint32_t format, int is_signed, uint8_t *codes, uint64_t i,
                                         uint32_t code)
{
    if (format != MO_STATE_4BIT)
        codes[i] = (uint8_t)code;
    else if (i % 2 == 0)
        codes[i / 2] = (uint8_t)(code << 4 | mo_format_zero_code(format, is_signed));
    else
        codes[i / 2] = (uint8_t)((codes[i / 2] & 0xf0u) | code);
}

#endif
