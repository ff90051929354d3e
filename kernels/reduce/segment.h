/* The piece of a tensor that a thread block of a reduction or of the scale kernel works on. */
#ifndef MO_KERNELS_SEGMENT_H
#define MO_KERNELS_SEGMENT_H

#include "kernels/core/gpu_vector_io.h"

#include "kernels/reduce/scale.h"

typedef struct mo_piece {
    unsigned char *data;
    uint64_t count; /* elements, at most MO_CHUNK_ELEMENTS */
    uint32_t dtype;
} mo_piece;

MO_DEVICE void mo_piece_in(const mo_segment *segments, uint32_t count, uint64_t item,
                           mo_piece *piece)
{
    uint32_t s = mo_chunk_segment(&segments[0].first_chunk, sizeof *segments, count, item);
    uint64_t chunk = item - segments[s].first_chunk;
    uint32_t dtype = segments[s].dtype;
    piece->data =
        (unsigned char *)segments[s].data + chunk * MO_CHUNK_ELEMENTS * mo_element_size(dtype);
    piece->count = mo_chunk_length(segments[s].count, chunk);
    piece->dtype = dtype;
}

/* One thread calls it, on memory of the block. */
template <class ARGS> MO_DEVICE void mo_piece_of(const ARGS &args, uint64_t item, mo_piece *piece)
{
    if (args.table) {
        mo_piece_in(args.table, args.count, item, piece);
        MO_APART;
    } else {
        mo_piece_in(args.segments, args.count, item, piece);
    }
}

#endif
