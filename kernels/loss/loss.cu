/* Cross-entropy on a GPU, the equal of loss_ref.c bit for bit: a group of 32 threads is a stripe's
 * lanes, whatever the width of the warp. */
#include "kernels/core/gpu_vector_io.h"

#include "kernels/loss/loss.h"

enum { MO_LOSS_GROUPS = MO_LOSS_THREADS / MO_LOSS_LANES };

typedef struct mo_loss_stripes {
    float largest[MO_LOSS_GROUPS], sum[MO_LOSS_GROUPS];
} mo_loss_stripes;

MO_DEVICE mo_loss_row mo_loss_row_at(const mo_loss_row *at)
{
    mo_loss_row row = {mo_load_as<double>(&at->sum), mo_load_as<float>(&at->largest),
                       mo_load_as<float>(&at->target), mo_load_as<uint32_t>(&at->found), 0};
    return row;
}

enum { MO_LOSS_EACH = MO_LOSS_STRIPE / MO_LOSS_LANES };

template <int N, uint32_t DTYPE>
MO_DEVICE void mo_loss_read(const unsigned char *logits, uint32_t from, uint32_t columns, float *x)
{
    MO_UNROLL
    for (uint32_t k = 0; k < N; k++) {
        uint32_t i = from + k * MO_LOSS_LANES;
        x[k] = -mo_f32_from_bits(MO_F32_INF_BITS);
        if (i < columns)
            x[k] = mo_decode_as<DTYPE>(mo_read_code(logits, i, DTYPE == MO_DTYPE_F32 ? 4 : 2));
    }
}

/* The stripe from column `from` on, which may be past the end. Lane 0 has the results. */
MO_DEVICE void mo_loss_stripe(const unsigned char *logits, uint32_t dtype, uint32_t from,
                              uint32_t columns, uint32_t lane, float *out_largest, float *out_sum)
{
    enum { N = MO_LOSS_EACH };
    float x[N], top = -mo_f32_from_bits(MO_F32_INF_BITS), sum = 0.0f;
    MO_BY_FLOAT(dtype, mo_loss_read, logits, from + lane, columns, x);
    MO_UNROLL
    for (uint32_t k = 0; k < N; k++)
        top = x[k] > top ? x[k] : top;
    MO_UNROLL
    for (uint32_t distance = MO_LOSS_LANES / 2; distance > 0; distance /= 2) {
        float other = mo_f32_from_bits(mo_shuffle_xor_u32(mo_f32_bits(top), distance));
        top = other > top ? other : top;
    }
    const float base = mo_loss_base(top);
    MO_UNROLL
    for (uint32_t k = 0; k < N; k++)
        sum += mo_exp_down(x[k] - base);
    MO_UNROLL
    for (uint32_t distance = MO_LOSS_LANES / 2; distance > 0; distance /= 2)
        sum += mo_f32_from_bits(mo_shuffle_xor_u32(mo_f32_bits(sum), distance));
    *out_largest = top;
    *out_sum = sum;
}

MO_GLOBAL_ROOM(mo_logits_add, mo_logits_args, MO_LOSS_THREADS, 2)
{
    MO_SHARED(mo_loss_stripes, stripes);
    const uint64_t r = first_item + mo_block_index();
    const uint32_t size = mo_element_size(args.dtype), thread = mo_thread_index();
    const uint32_t group = thread / MO_LOSS_LANES, lane = thread % MO_LOSS_LANES;
    const unsigned char *logits = args.logits + r * args.stride * size;
    enum { N = 1 };
    mo_loss_row row = {0.0, 0.0f, 0.0f, 0, 0};
    if (thread == 0) {
        row = mo_loss_row_at(args.rows + r);
        const int32_t target = MO_AT(const int32_t, args.targets + r);
        if (target >= 0 && (uint32_t)target - args.first < args.columns) {
            float logit;
            MO_BY_FLOAT(args.dtype, mo_loss_read, logits, (uint32_t)target - args.first,
                        args.columns, &logit);
            mo_loss_target(&row, logit);
        }
    }
    for (uint32_t at = 0; at < args.columns; at += MO_LOSS_GROUPS * MO_LOSS_STRIPE) {
        float largest, sum;
        mo_loss_stripe(logits, args.dtype, at + group * MO_LOSS_STRIPE, args.columns, lane,
                       &largest, &sum);
        if (lane == 0) {
            stripes.largest[group] = largest;
            stripes.sum[group] = sum;
        }
        mo_barrier();
        for (uint32_t g = 0;
             thread == 0 && g < MO_LOSS_GROUPS && at + g * MO_LOSS_STRIPE < args.columns; g++)
            mo_loss_join(&row, stripes.largest[g], stripes.sum[g]);
        mo_barrier();
    }
    if (thread == 0) {
        mo_store_as<double>(&args.rows[r].sum, row.sum);
        mo_store_as<float>(&args.rows[r].largest, row.largest);
        mo_store_as<float>(&args.rows[r].target, row.target);
        mo_store_as<uint32_t>(&args.rows[r].found, row.found);
    }
}

template <int N> MO_DEVICE void mo_logits_gradient_row(const mo_logits_args &args, uint64_t r)
{
    unsigned char *logits = args.logits + r * args.stride * mo_element_size(args.dtype);
    const int32_t target = MO_AT(const int32_t, args.targets + r);
    const int aligned = mo_pack_aligned<N>(logits, args.dtype);
    const mo_loss_row row = mo_loss_row_at(args.rows + r);
    const float base = mo_loss_base(row.largest), factor = mo_loss_factor(&row, args.scale);
    const uint32_t own = (uint32_t)target - args.first;
    for (uint32_t at = mo_thread_index() * N; at < args.columns; at += MO_LOSS_THREADS * N) {
        uint32_t rest = mo_pack_rest<N>(args.columns, at);
        float x[N];
        mo_load_pack<N>(logits, at, rest, args.dtype, aligned, x);
        MO_UNROLL
        for (uint32_t k = 0; k < N; k++) {
            float less = at + k == own ? args.scale : 0.0f;
            x[k] = target < 0 ? 0.0f : mo_loss_gradient(x[k], base, factor, less);
        }
        mo_store_pack<N>(logits, at, rest, args.dtype, aligned, x);
    }
}

MO_GLOBAL(mo_logits_gradient, mo_logits_args, MO_LOSS_THREADS)
{
    const uint64_t r = first_item + mo_block_index();
    if (args.dtype == MO_DTYPE_F32)
        mo_logits_gradient_row<4>(args, r);
    else
        mo_logits_gradient_row<8>(args, r);
}

MO_GLOBAL(mo_losses, mo_losses_args, MO_LOSS_THREADS)
{
    uint64_t r = (first_item + mo_block_index()) * MO_LOSS_THREADS + mo_thread_index();
    if (r >= args.count)
        return;
    const mo_loss_row row = mo_loss_row_at(args.rows + r);
    MO_AT(float, args.losses + r) = mo_loss_of(&row, MO_AT(const int32_t, args.targets + r));
}
