/*
 * The accumulate kernel: destination = destination + scale * source over many tensors a launch,
 * which sums gradients of micro-batches in a wider type than their own, and takes updates from
 * parameters at rates that lie in device memory. One fused multiply-add in f32, rounded once to the
 * destination's type.
 */
#ifndef MO_KERNELS_CAST_ACCUMULATE_H
#define MO_KERNELS_CAST_ACCUMULATE_H

#include "kernels/cast/cast.h"

enum { MO_ACCUMULATE_THREADS = 256 };

/* One item per chunk. */
typedef struct mo_accumulate_args {
    uint32_t count; /* segments */
    float scale;
    const float *scales;    /* by the segments' tensors, in place of `scale`; or NULL */
    const float *found_inf; /* not 0: nothing changes; or NULL */
    mo_cast_segment segments[MO_CAST_SEGMENTS]; /* of f32, f16 or bf16; none overlaps another */
} mo_accumulate_args;

extern const mo_kernel mo_kernel_accumulate;

/* Every NaN becomes MO_F32_NAN_BITS, because processors differ in which operand's bits they
 * keep. */
MO_HD static inline float mo_accumulate_element(float sum, float value, float scale)
{
    float result = mo_fmaf(scale, value, sum);
    return mo_f32_is_nan(result) ? mo_f32_from_bits(MO_F32_NAN_BITS) : result;
}

/* What one item works on. */
typedef struct mo_accumulate_piece {
    const unsigned char *source;
    unsigned char *destination;
    uint64_t count; /* elements, at most MO_CHUNK_ELEMENTS; 0: nothing changes */
    uint32_t source_dtype, destination_dtype;
    float scale;
} mo_accumulate_piece;

MO_HD static inline void mo_accumulate_piece_of(const mo_accumulate_args *args, uint64_t item,
                                                mo_accumulate_piece *piece)
{
    const mo_cast_segment *segments = args->segments;
    uint32_t s = mo_chunk_segment(&segments[0].first_chunk, sizeof *segments, args->count, item);
    uint64_t chunk = item - segments[s].first_chunk, first = chunk * MO_CHUNK_ELEMENTS;
    uint32_t from = segments[s].source_dtype, to = segments[s].destination_dtype;
    piece->source = (const unsigned char *)segments[s].source + first * mo_element_size(from);
    piece->destination = (unsigned char *)segments[s].destination + first * mo_element_size(to);
    piece->count = mo_chunk_length(segments[s].count, chunk);
    if (args->found_inf && MO_AT(const float, args->found_inf) != 0.0f)
        piece->count = 0;
    piece->scale =
        args->scales ? MO_AT(const float, args->scales + segments[s].tensor) : args->scale;
    piece->source_dtype = from;
    piece->destination_dtype = to;
}

#endif
