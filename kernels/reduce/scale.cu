/* The loss scaler's kernels on a GPU. */
#include "kernels/reduce/segment.h"

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
    for (uint64_t at = (uint64_t)mo_thread() * N; at < count; at += MO_SCALE_THREADS * N)
        found |= mo_scale_pack<N>(data, at, mo_pack_rest<N>(count, at), dtype, aligned, factor);
    return found;
}

MO_GLOBAL(mo_scale, mo_scale_args, MO_SCALE_THREADS)
{
    MO_SHARED(mo_piece, piece);
    float factor = args.scale ? mo_inverse_scale(*args.scale) : *args.factor;
    if (!args.scale && factor == 1.0f && !args.found_inf)
        return;
    if (mo_thread() == 0)
        mo_piece_of(args, first_item + mo_block(), &piece);
    mo_barrier();
    int found = piece.dtype == MO_DTYPE_F32
                    ? mo_scale_packs<4>(piece.data, piece.count, piece.dtype, factor)
                    : mo_scale_packs<8>(piece.data, piece.count, piece.dtype, factor);
    if (found && args.found_inf)
        mo_flag_raise(args.found_inf);
}

MO_GLOBAL(mo_norm, mo_norm_args, MO_ONE_THREADS)
{
    (void)first_item;
    if (mo_thread() != 0)
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
    if (mo_thread() == 0)
        mo_scaler_step(args.block, args.disabled);
}

MO_GLOBAL(mo_scaler_set, mo_scaler_set_args, MO_ONE_THREADS)
{
    (void)first_item;
    if (mo_thread() == 0)
        mo_scaler_assign(&args);
}
