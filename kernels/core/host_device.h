/*
 * The macros that let one source be compiled as C11, C++, CUDA and HIP.
 *
 * Functions of headers for both sides are `MO_HD static inline`. They use fixed-width types, the
 * operations + - * / on floats (IEEE, never contracted: everything is built with -ffp-contract=off,
 * --fmad=false under nvcc), and from here bit casts, fma and square root.
 */
#ifndef MO_KERNELS_CORE_HOST_DEVICE_H
#define MO_KERNELS_CORE_HOST_DEVICE_H

#include <stdint.h>

#if defined(__CUDACC__) || defined(__HIPCC__) || defined(__CUDA__) || defined(__HIP__)
/* The attribute form needs no vendor header. Always inlined: otherwise a function that several
 * kernels share would use generic loads and stores. */
#if defined(__clang__)
#define MO_HD __attribute__((host)) __attribute__((device)) __attribute__((always_inline))
#else
#define MO_HD __host__ __device__ __attribute__((always_inline))
#endif
#else
#define MO_HD
#endif

/* A function of MO_HD whose result may be an argument of a template. */
#if defined(__cplusplus)
#define MO_HD_CONSTANT MO_HD constexpr
#else
#define MO_HD_CONSTANT MO_HD
#endif

/* nvcc's and NVRTC's device pass have other names for what the others do by builtins. */
#if defined(__CUDA_ARCH__) && !defined(__clang__)
#define MO_NVCC_DEVICE 1
#else
#define MO_NVCC_DEVICE 0
#endif

/* For a pointer that was read from memory, a compiler uses generic (flat) loads and stores, which
 * on a GPU are slower than those of global memory. MO_AT is what a pointer into global memory
 * points at. */
#if defined(__clang__) && (defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__))
#define MO_IN_GLOBAL __attribute__((address_space(1)))
#define MO_AT(type, pointer) (*(MO_IN_GLOBAL type *)(pointer))
#elif MO_NVCC_DEVICE
template <class T> __device__ static inline T *mo_global(T *pointer)
{
    __builtin_assume(__isGlobal((const void *)pointer));
    return pointer;
}
#define MO_AT(type, pointer) (*mo_global((type *)(pointer)))
#else
#define MO_AT(type, pointer) (*(type *)(pointer))
#endif

/* Hashes and files are little-endian. No GPU is big-endian, nor is the host of one. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define MO_BIG_ENDIAN 1
#else
#define MO_BIG_ENDIAN 0
#endif

MO_HD static inline uint32_t mo_f32_bits(float value)
{
#if MO_NVCC_DEVICE
    return __float_as_uint(value);
#else
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
#endif
}

MO_HD static inline float mo_f32_from_bits(uint32_t bits)
{
#if MO_NVCC_DEVICE
    return __uint_as_float(bits);
#else
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
#endif
}

MO_HD static inline uint64_t mo_f64_bits(double value)
{
#if MO_NVCC_DEVICE
    return (uint64_t)__double_as_longlong(value);
#else
    uint64_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
#endif
}

MO_HD static inline double mo_f64_from_bits(uint64_t bits)
{
#if MO_NVCC_DEVICE
    return __longlong_as_double((long long)bits);
#else
    double value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
#endif
}

/* a * b + c, rounded once. */
MO_HD static inline float mo_fmaf(float a, float b, float c)
{
#if MO_NVCC_DEVICE
    return __fmaf_rn(a, b, c);
#else
    return __builtin_fmaf(a, b, c);
#endif
}

/* Correctly rounded square roots. */
MO_HD static inline float mo_sqrtf(float value)
{
#if MO_NVCC_DEVICE
    return __fsqrt_rn(value);
#else
    return __builtin_sqrtf(value);
#endif
}

MO_HD static inline double mo_sqrt(double value)
{
#if MO_NVCC_DEVICE
    return __dsqrt_rn(value);
#else
    return __builtin_sqrt(value);
#endif
}

/* A table of constants. On a GPU it lies in global memory: threads look up different entries, which
 * constant memory would serve one by one. clang takes `const` there for constant memory. */
#if defined(__clang__) && defined(__CUDA__)
#define MO_LOOKUP_TABLE static __device__ __attribute__((aligned(16)))
#elif defined(__CUDACC__) || defined(__HIP__)
#define MO_LOOKUP_TABLE static __device__ __attribute__((aligned(16))) const
#else
#define MO_LOOKUP_TABLE static __attribute__((unused)) const
#endif

#endif
