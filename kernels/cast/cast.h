/*
 * The cast kernel: any of f32, f16, bf16 and the 8-bit floats into any other, many tensors a
 * launch. Values pass through f32, which holds all of them exactly, so each is rounded once. The
 * same type, or a wider one, needs no rounding; the same type copies bits.
 */
#ifndef MO_KERNELS_CAST_CAST_H
#define MO_KERNELS_CAST_CAST_H

#include "kernels/core/kernel_launch.h"
#include "kernels/core/numerics.h"

typedef struct mo_cast_segment {
    const void *source;
    void
        *destination; /* may be source itself where the sizes are equal; NULL: only amax is found */
    uint64_t count;
    uint64_t first_chunk;
    uint32_t tensor; /* its number, for the random stream of a cast */
    uint16_t source_dtype;
    uint16_t destination_dtype;
} mo_cast_segment;

enum { MO_CAST_SEGMENTS = 98, MO_CAST_THREADS = 256 };

typedef struct mo_cast_args {
    uint64_t seed, sequence;      /* of stochastic rounding */
    const mo_cast_segment *table; /* in device memory, or NULL: `segments` below */
    uint32_t *amax;               /* to the kernel with amax: a cell for each tensor */
    uint32_t count;               /* segments */
    uint8_t stochastic;           /* 1: stochastic, 0: to nearest even */
    uint8_t saturate;             /* 1: overflow of 8-bit floats gives the largest number */
    uint8_t streaming;            /* 1: the outputs are too large to stay in the caches */
    uint8_t reserved;
    mo_cast_segment segments[MO_CAST_SEGMENTS];
} mo_cast_args;

/* The second one also raises a cell to the largest magnitude of the source; it is a kernel of its
 * own, so that the plain one has nothing to do with it. */
extern const mo_kernel mo_kernel_cast, mo_kernel_cast_amax;

/* A code without its sign: as integers, such are in the order of their magnitudes, NaNs above all.
 * fnuz's NaN would be -0: it stays as it is. */
MO_HD static inline uint32_t mo_code_order(uint32_t dtype, uint32_t code)
{
    uint32_t size = mo_element_size(dtype);
    if (dtype >= MO_DTYPE_F8_E4M3FNUZ && code == 0x80u)
        return code;
    return code & (size == 4 ? 0x7fffffffu : size == 2 ? 0x7fffu : 0x7fu);
}

/* The value of a code in that order as the bits of an f32; every NaN is one. */
MO_HD static inline uint32_t mo_code_magnitude(uint32_t dtype, uint32_t code)
{
    const uint8_t byte = (uint8_t)code;
    uint32_t bits = dtype == MO_DTYPE_F32           ? code
                    : dtype == MO_DTYPE_BF16        ? code << 16
                    : dtype == MO_DTYPE_F16         ? mo_f32_bits(mo_f16_to_f32((uint16_t)code))
                    : dtype == MO_DTYPE_F8_E4M3     ? mo_f32_bits(mo_e4m3_to_f32(byte))
                    : dtype == MO_DTYPE_F8_E4M3FNUZ ? mo_f32_bits(mo_e4m3fnuz_to_f32(byte))
                    : dtype == MO_DTYPE_F8_E5M2FNUZ ? mo_f32_bits(mo_e5m2fnuz_to_f32(byte))
                                                    : mo_f32_bits(mo_e5m2_to_f32(byte));
    return bits > MO_F32_INF_BITS ? MO_F32_NAN_BITS : bits;
}

#endif
