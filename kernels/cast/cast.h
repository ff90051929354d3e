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
    void *destination; /* may be source itself where the sizes are equal */
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
    uint32_t count;               /* segments */
    uint8_t stochastic;           /* 1: stochastic, 0: to nearest even */
    uint8_t saturate;             /* 1: overflow of 8-bit floats gives the largest number */
    uint8_t streaming;            /* 1: the outputs are too large to stay in the caches */
    uint8_t reserved;
    mo_cast_segment segments[MO_CAST_SEGMENTS];
} mo_cast_args;

extern const mo_kernel mo_kernel_cast;

#endif
