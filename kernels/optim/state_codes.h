/*
 * Block-wise 8-bit codes of the dynamic map (Dettmers et al. 2022): the scalar specification.
 *
 * A block is 256 consecutive elements of a tensor (the last one may be shorter) with one fp32
 * absmax. A code c stands for map[c] * absmax, one fp32 multiplication. The nearest code is taken,
 * ties to the smaller magnitude. In the unsigned map a positive value never gets code 0: a second
 * moment that is not zero never vanishes.
 *
 * Fast forms elsewhere (cells, byte planes) are other ways to find the same codes.
 */
#ifndef MO_KERNELS_BLOCKCODE_H
#define MO_KERNELS_BLOCKCODE_H

#include "kernels/core/numerics.h"

/* On a GPU, global memory: threads look up different entries, which constant memory would serve one
 * by one. clang takes `const` there for constant memory. */
#if defined(__clang__) && defined(__CUDA__)
#define MO_TABLE static __device__ __attribute__((aligned(16)))
#elif defined(__CUDACC__) || defined(__HIP__)
#define MO_TABLE static __device__ __attribute__((aligned(16))) const
#else
#define MO_TABLE static __attribute__((unused)) const
#endif

#include "kernels/generated/blockcode_tables.h"

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

#endif
