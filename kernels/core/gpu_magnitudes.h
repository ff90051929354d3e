/*
 * The largest and the least of numbers on a GPU, as bits, which grow with a magnitude; NaN is the
 * largest.
 */
#ifndef MO_KERNELS_CORE_GPU_MAGNITUDES_H
#define MO_KERNELS_CORE_GPU_MAGNITUDES_H

#include "kernels/core/gpu_compat.h"

#include "kernels/core/numerics.h"

/* The larger of bits and the bits of value's magnitude; the caller does not distinguish NaNs. */
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

/* The smaller of least and value's magnitude; NaN if either is. */
MO_DEVICE float mo_least_magnitude(float least, float value)
{
#if MO_NVCC_DEVICE && __CUDA_ARCH__ >= 800
    asm("{.reg .f32 a; abs.f32 a, %1; min.NaN.f32 %0, %0, a;}" : "+f"(least) : "f"(value));
    return least;
#else
    float magnitude = mo_magnitude(value);
    return least != least || least < magnitude ? least : magnitude;
#endif
}

template <int N> MO_DEVICE uint32_t mo_largest(const float values[N])
{
#if MO_NVCC_DEVICE
    uint32_t largest = mo_f32_bits(fabsf(values[0])); /* free, as part of the first comparison */
#else
    uint32_t largest = mo_f32_bits(values[0]) & 0x7fffffffu;
#endif
    MO_UNROLL
    for (int k = 1; k < N; k++)
        largest = mo_larger(largest, values[k]);
    return largest;
}

/* mo_largest of values that are at least 0; of others their bits, which are above an infinity's. */
template <int N> MO_DEVICE uint32_t mo_largest_positive(const float values[N])
{
    uint32_t largest = mo_f32_bits(values[0]);
    MO_UNROLL
    for (int k = 1; k < N; k++) {
        uint32_t bits = mo_f32_bits(values[k]);
        largest = bits > largest ? bits : largest;
    }
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

/* Over a group of threads, all of which must call it. */
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
