/*
 * Magnitudes of the values that a GPU thread has, and of a group of threads: as bits, which grow
 * with them. NaN is the largest.
 */
#ifndef MO_KERNELS_MAGNITUDES_H
#define MO_KERNELS_MAGNITUDES_H

#include "kernels/core/gpu_vector_io.h"

#include "kernels/optim/rule.h"

/* Every NaN becomes the one that is stored. */
template <int N> MO_DEVICE void mo_one_nan(float values[N])
{
    MO_UNROLL
    for (int k = 0; k < N; k++)
        values[k] = mo_f32_one_nan(values[k]);
}

/* The larger of bits and the bits of value's magnitude, where all bits above infinity's are one to
 * the caller. */
MO_DEVICE uint32_t mo_larger(uint32_t bits, float value)
{
#if MO_NVCC_DEVICE && __CUDA_ARCH__ >= 800
    float larger;
    asm("{.reg .f32 a; abs.f32 a, %2; max.NaN.f32 %0, %1, a;}"
        : "=f"(larger)
        : "f"(mo_f32_from_bits(bits)), "f"(value));
    return mo_f32_bits(larger);
#else
    uint32_t magnitude = mo_f32_bits(value) & 0x7fffffffu;
    return magnitude > bits ? magnitude : bits;
#endif
}

template <int N> MO_DEVICE uint32_t mo_largest(const float values[N])
{
    uint32_t largest = 0;
    MO_UNROLL
    for (int k = 0; k < N; k++)
        largest = mo_larger(largest, values[k]);
    return largest;
}

/* The least of the bits as signed numbers: at most 0 if any value is not positive. */
template <int N> MO_DEVICE int32_t mo_least(const float values[N])
{
    int32_t least = (int32_t)mo_f32_bits(values[0]);
    MO_UNROLL
    for (int k = 1; k < N; k++) {
        int32_t bits = (int32_t)mo_f32_bits(values[k]);
        least = bits < least ? bits : least;
    }
    return least;
}

/* The larger of |value| and least, bits; value is not NaN. */
MO_DEVICE uint32_t mo_magnitude_from(float value, uint32_t least)
{
#if MO_NVCC_DEVICE
    return mo_f32_bits(fmaxf(fabsf(value), mo_f32_from_bits(least)));
#else
    uint32_t magnitude = mo_f32_bits(value) & 0x7fffffffu;
    return magnitude > least ? magnitude : least;
#endif
}

/* Over a group of threads, all of which come here. */
template <uint32_t LANES> MO_DEVICE uint32_t mo_group_largest(uint32_t value)
{
    uint32_t lanes = LANES;
#if MO_NVCC_DEVICE && __CUDA_ARCH__ >= 800
    if (LANES == 32) {
        asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(value) : "r"(value));
        lanes = 1;
    }
#endif
    MO_UNROLL
    for (uint32_t mask = lanes / 2; mask > 0; mask /= 2) {
        uint32_t other = mo_shuffle_xor_u32(value, mask);
        value = other > value ? other : value;
    }
    return value;
}

#endif
