/* The accumulate kernel on a GPU: the equal of accumulate_ref.c bit for bit. */
#include "kernels/core/gpu_vector_io.h"

#include "kernels/cast/accumulate.h"

template <int N> MO_DEVICE void mo_accumulate_packs(const mo_accumulate_piece *piece)
{
    const float scale = piece->scale;
    uint32_t from = piece->source_dtype, to = piece->destination_dtype;
    int from_aligned = mo_pack_aligned<N>(piece->source, from);
    int to_aligned = mo_pack_aligned<N>(piece->destination, to);
    for (uint64_t at = (uint64_t)mo_thread_index() * N; at < piece->count;
         at += MO_ACCUMULATE_THREADS * N) {
        uint32_t rest = mo_pack_rest<N>(piece->count, at);
        float values[N], sums[N];
        mo_load_pack<N>(piece->source, at, rest, from, from_aligned, values);
        mo_load_pack<N>(piece->destination, at, rest, to, to_aligned, sums);
        MO_UNROLL
        for (int k = 0; k < N; k++)
            sums[k] = mo_accumulate_element(sums[k], values[k], scale);
        mo_store_pack<N>(piece->destination, at, rest, to, to_aligned, sums);
    }
}

MO_GLOBAL(mo_accumulate, mo_accumulate_args, MO_ACCUMULATE_THREADS)
{
    MO_SHARED(mo_accumulate_piece, piece);
    if (mo_thread_index() == 0)
        mo_accumulate_piece_of(&args, first_item + mo_block_index(), &piece);
    mo_barrier();
    if (piece.source_dtype == MO_DTYPE_F32 || piece.destination_dtype == MO_DTYPE_F32)
        mo_accumulate_packs<4>(&piece);
    else
        mo_accumulate_packs<8>(&piece);
}
