/*
 * Split weights: a bf16 parameter with a residual of 8 or 16 bits, together a float of 24 or 32.
 * The parameter is that float rounded to nearest; the residual is what the rounding has taken away,
 * in units of 2^-8 or 2^-16 of a bf16's last place, as a signed number (two's complement). So the
 * model reads ordinary bf16 weights, and updates below half their last place are not lost.
 *
 * A residual of half a place is negative: ties are away from zero. With 16 bits the model has to
 * read what a cast of the float would give, whose ties are to even. So a float in the middle of an
 * even weight and the next one becomes the float before it, a 2^24th less, and is no tie.
 */
#ifndef MO_KERNELS_OPTIM_SPLIT_WEIGHTS_H
#define MO_KERNELS_OPTIM_SPLIT_WEIGHTS_H

#include "kernels/core/numerics.h"

typedef struct mo_split_weight {
    uint16_t weight;   /* bf16 */
    uint16_t residual; /* of 16 bits; of 8 bits these are its upper half, and the rest is 0 */
} mo_split_weight;

/* A weight that something else has written may be zero beside a negative residual: that is zero. */
MO_HD static inline float mo_weight_join(uint32_t weight, uint32_t residual)
{
    uint32_t above = (weight & 0x7fffu) << 16 | residual;
    int32_t magnitude = (int32_t)(above - ((residual & 0x8000u) << 1));
    magnitude = magnitude < 0 ? 0 : magnitude;
    return mo_f32_from_bits((uint32_t)magnitude | (weight & 0x8000u) << 16);
}

/* Splits a value whose only NaN is MO_F32_NAN_BITS, for a residual of 1 byte rounded to 24 bits
 * (nearest even) first. */
MO_HD static inline mo_split_weight mo_weight_split(float value, uint32_t residual_bytes)
{
    uint32_t bits = mo_f32_bits(value), magnitude = bits & 0x7fffffffu;
    if (residual_bytes == 1)
        magnitude = (magnitude + 0x7f + (magnitude >> 8 & 1)) & ~0xffu;
    else
        magnitude -= (magnitude & 0x1ffffu) == 0x8000u;
    mo_split_weight split;
    split.weight = (uint16_t)((magnitude + 0x8000) >> 16 | (bits >> 16 & 0x8000u));
    split.residual = (uint16_t)magnitude;
    return split;
}

#endif
