/*
 * The reductions and the loss scaler's kernels on a GPU. The order of additions is reduce.h's: a
 * group of 32 threads is a stripe's lanes, whatever the width of the warp, and a block's 16 groups
 * are a chunk's stripes.
 */
#include "kernels/reduce/reduce_gpu.h"
#include "kernels/reduce/scale.h"

enum { MO_STRIPES = MO_CHUNK_ELEMENTS / MO_STRIPE_ELEMENTS };

typedef struct mo_stripe_sums {
    double of[MO_STRIPES];
} mo_stripe_sums;

/* One thread calls it, on memory of the block. */
template <class ARGS>
MO_DEVICE void mo_chunk_of(const ARGS &args, uint64_t item, mo_tensor_chunk *chunk)
{
    if (args.table) {
        mo_tensor_chunk_of(args.table, args.count, item, chunk);
        MO_APART;
    } else {
        mo_tensor_chunk_of(args.segments, args.count, item, chunk);
    }
}

/* --- reductions ------------------------------------------------------------------------------ */

MO_GLOBAL(mo_square_sum, mo_reduce_args, MO_SQUARE_SUM_THREADS)
{
    MO_SHARED(mo_tensor_chunk, chunk);
    MO_SHARED(mo_stripe_sums, sums);
    uint64_t item = first_item + mo_block_index();
    if (mo_thread_index() == 0)
        mo_chunk_of(args, item, &chunk);
    mo_barrier();
    const uint32_t count = (uint32_t)chunk.count, stripe = mo_thread_index() / MO_STRIPE_LANES;
    const uint32_t lane = mo_thread_index() % MO_STRIPE_LANES, start = stripe * MO_STRIPE_ELEMENTS;
    uint32_t end = start + MO_STRIPE_ELEMENTS < count ? start + MO_STRIPE_ELEMENTS : count;
    double sum;
    if (chunk.dtype == MO_DTYPE_F32)
        sum = mo_lane_squares<MO_DTYPE_F32>(chunk.data, start + lane, end);
    else if (chunk.dtype == MO_DTYPE_BF16)
        sum = mo_lane_squares<MO_DTYPE_BF16>(chunk.data, start + lane, end);
    else
        sum = mo_lane_squares<MO_DTYPE_F16>(chunk.data, start + lane, end);
    sum = mo_lanes_tree(sum);
    if (lane == 0)
        sums.of[stripe] = sum;
    mo_barrier();
    if (mo_thread_index() == 0) {
        /* A stripe past the end is 0, and adding it changes nothing. */
        double total = 0;
        for (uint32_t s = 0; s < MO_STRIPES; s++)
            total += sums.of[s];
        args.partials[item] = total;
    }
}

template <int N>
MO_DEVICE int mo_check_pack(const unsigned char *data, uint64_t at, uint32_t rest, uint32_t dtype,
                            int aligned)
{
    /* The exponent bits; only infinities and NaNs have all of them set. */
    uint32_t mask = dtype == MO_DTYPE_F32 ? 0x7f800000u : dtype == MO_DTYPE_F16 ? 0x7c00u : 0x7f80u;
    uint32_t codes[N];
    int found = 0;
    mo_read_pack<N>(data, at, rest, mo_element_size(dtype), aligned, codes);
    MO_UNROLL
    for (int k = 0; k < N; k++)
        found |= (codes[k] & mask) == mask;
    return found;
}

template <int N>
MO_DEVICE int mo_check_packs(const unsigned char *data, uint64_t count, uint32_t dtype)
{
    int aligned = mo_pack_aligned<N>(data, dtype), found = 0;
    for (uint64_t at = (uint64_t)mo_thread_index() * N; at < count; at += MO_CHECK_THREADS * N)
        found |= mo_check_pack<N>(data, at, mo_pack_rest<N>(count, at), dtype, aligned);
    return found;
}

MO_GLOBAL(mo_check, mo_reduce_args, MO_CHECK_THREADS)
{
    MO_SHARED(mo_tensor_chunk, chunk);
    if (mo_thread_index() == 0)
        mo_chunk_of(args, first_item + mo_block_index(), &chunk);
    mo_barrier();
    int found = chunk.dtype == MO_DTYPE_F32
                    ? mo_check_packs<4>(chunk.data, chunk.count, chunk.dtype)
                    : mo_check_packs<8>(chunk.data, chunk.count, chunk.dtype);
    if (found)
        mo_flag_raise(args.found_inf);
}

MO_GLOBAL(mo_sum, mo_sum_args, MO_SUM_THREADS)
{
    uint64_t item = first_item + mo_block_index(), start = item * MO_STRIPE_ELEMENTS;
    uint64_t rest =
        args.count - start < MO_STRIPE_ELEMENTS ? args.count - start : (uint64_t)MO_STRIPE_ELEMENTS;
    double sum = 0;
    /* The second half of the block only fills whole warps. */
    if (mo_thread_index() < MO_STRIPE_LANES)
        for (uint64_t i = mo_thread_index(); i < rest; i += MO_STRIPE_LANES)
            sum += args.values[start + i];
    sum = mo_lanes_tree(sum);
    if (mo_thread_index() == 0)
        args.destination[item] = sum;
}

/* --- the loss scaler ------------------------------------------------------------------------- */

template <int N>
MO_DEVICE int mo_scale_pack(unsigned char *data, uint64_t at, uint32_t rest, uint32_t dtype,
                            int aligned, float factor)
{
    float values[N];
    int found = 0;
    mo_load_pack<N>(data, at, rest, dtype, aligned, values);
    MO_UNROLL
    for (int k = 0; k < N; k++) {
        found |= !mo_f32_is_finite(values[k]);
        values[k] = mo_scale_element(values[k], factor);
    }
    mo_store_pack<N>(data, at, rest, dtype, aligned, values);
    return found;
}

template <int N>
MO_DEVICE int mo_scale_packs(unsigned char *data, uint64_t count, uint32_t dtype, float factor)
{
    int aligned = mo_pack_aligned<N>(data, dtype), found = 0;
    for (uint64_t at = (uint64_t)mo_thread_index() * N; at < count; at += MO_SCALE_THREADS * N)
        found |= mo_scale_pack<N>(data, at, mo_pack_rest<N>(count, at), dtype, aligned, factor);
    return found;
}

MO_GLOBAL(mo_scale, mo_scale_args, MO_SCALE_THREADS)
{
    MO_SHARED(mo_tensor_chunk, chunk);
    float factor = args.scale ? mo_inverse_scale(*args.scale) : *args.factor;
    if (!args.scale && factor == 1.0f && !args.found_inf)
        return;
    if (mo_thread_index() == 0)
        mo_chunk_of(args, first_item + mo_block_index(), &chunk);
    mo_barrier();
    int found = chunk.dtype == MO_DTYPE_F32
                    ? mo_scale_packs<4>(chunk.data, chunk.count, chunk.dtype, factor)
                    : mo_scale_packs<8>(chunk.data, chunk.count, chunk.dtype, factor);
    if (found && args.found_inf)
        mo_flag_raise(args.found_inf);
}

MO_GLOBAL(mo_norm, mo_norm_args, MO_ONE_THREADS)
{
    (void)first_item;
    if (mo_thread_index() != 0)
        return;
    double sum = args.sum ? *args.sum : 0.0;
    if (args.norm)
        *args.norm = mo_norm_of(sum);
    if (args.coefficient)
        *args.coefficient = mo_clip_coefficient(sum, args.max_norm);
}

MO_GLOBAL(mo_scaler_update, mo_scaler_update_args, MO_ONE_THREADS)
{
    (void)first_item;
    if (mo_thread_index() == 0)
        mo_scaler_step(args.block, args.disabled);
}

MO_GLOBAL(mo_scaler_set, mo_scaler_set_args, MO_ONE_THREADS)
{
    (void)first_item;
    if (mo_thread_index() == 0)
        mo_scaler_assign(&args);
}
