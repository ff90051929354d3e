/*
 * Split weights: a bf16 parameter with a residual of 8 bits, together a float of 24 bits. The
 * parameter is the 24 bits rounded to nearest, ties away from zero; the residual is what the
 * rounding has taken away, in units of 2^-8 of a bf16's last place, as a signed byte (two's
 * complement). So the model reads ordinary bf16 weights, and updates below half their last place
 * are not lost.
 */
#ifndef MO_KERNELS_OPTIM_SPLIT_WEIGHTS_H
#define MO_KERNELS_OPTIM_SPLIT_WEIGHTS_H

#include "kernels/core/numerics.h"

typedef struct mo_split_weight {
    uint16_t weight; /* bf16 */
    uint8_t residual;
} mo_split_weight;

/* A weight that something else has written may be zero beside a negative residual: that is zero. */
MO_HD static inline float mo_weight_join(uint16_t weight, uint8_t residual)
{
    uint32_t above = (weight & 0x7fffu) << 16 | (uint32_t)residual << 8;
    int32_t magnitude = (int32_t)(above - ((residual & 0x80u) << 9));
    magnitude = magnitude < 0 ? 0 : magnitude;
    return mo_f32_from_bits((uint32_t)magnitude | (weight & 0x8000u) << 16);
}

/* Rounds a value whose only NaN is MO_F32_NAN_BITS to 24 bits, nearest even, and splits it. */
MO_HD static inline mo_split_weight mo_weight_split(float value)
{
    uint32_t bits = mo_f32_bits(value), magnitude = bits & 0x7fffffffu;
    uint32_t kept = (magnitude + 0x7f + (magnitude >> 8 & 1)) >> 8;
    uint32_t weight = (kept + 0x80) >> 8;
    mo_split_weight split;
    split.weight = (uint16_t)(weight | (bits >> 16 & 0x8000u));
    split.residual = (uint8_t)(kept - (weight << 8));
    return split;
}

#endif
