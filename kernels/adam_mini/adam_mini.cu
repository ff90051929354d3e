/*
 * Adam-mini on a GPU. A group of 32 threads is a stripe's lanes in the sums of squares, and takes
 * 256 elements of a row in the step, eight a thread.
 */
#include "kernels/adam_mini/adam_mini.h"
#include "kernels/optim/state_codes_gpu.h"
#include "kernels/reduce/reduce_gpu.h"

enum { MO_ADAM_MINI_GROUPS = MO_ADAM_MINI_THREADS / MO_STRIPE_LANES };

/* Of an item's blocks. Those of more than a stripe are few. */
typedef struct mo_adam_mini_found {
    double stripes[MO_ADAM_MINI_BLOCKS];
    float rates[MO_ADAM_MINI_BLOCKS];
} mo_adam_mini_found;

/* --- squares --------------------------------------------------------------------------------- */

/* A stripe from an element on; lane 0's result is the sum. All threads of a warp must call it. */
MO_DEVICE double mo_adam_mini_stripe(const mo_adam_mini_args &a, uint64_t first, uint32_t count)
{
    const uint32_t lane = mo_thread_index() % MO_STRIPE_LANES;
    const unsigned char *data = a.gradient + first * mo_element_size(a.gradient_dtype);
    double sum;
    if (a.gradient_dtype == MO_DTYPE_F32)
        sum = mo_lane_squares<MO_DTYPE_F32>(data, lane, count);
    else if (a.gradient_dtype == MO_DTYPE_BF16)
        sum = mo_lane_squares<MO_DTYPE_BF16>(data, lane, count);
    else
        sum = mo_lane_squares<MO_DTYPE_F16>(data, lane, count);
    return mo_lanes_tree(sum);
}

/* The stripes of `runs` runs of `length` elements, which are at most MO_ADAM_MINI_BLOCKS, to
 * memory of the block; a barrier is due before and after. */
MO_DEVICE void mo_adam_mini_stripes(const mo_adam_mini_args &a, uint64_t first, uint32_t runs,
                                    uint32_t length, double *stripes)
{
    const uint32_t each = (length + MO_STRIPE_ELEMENTS - 1) / MO_STRIPE_ELEMENTS;
    /* All groups take as many turns: a warp may be two of them. */
    for (uint32_t turn = 0; turn < runs * each; turn += MO_ADAM_MINI_GROUPS) {
        uint32_t stripe = turn + mo_thread_index() / MO_STRIPE_LANES, count = 0;
        uint32_t start = stripe % each * MO_STRIPE_ELEMENTS;
        if (stripe < runs * each)
            count = length - start < MO_STRIPE_ELEMENTS ? length - start : MO_STRIPE_ELEMENTS;
        double sum = mo_adam_mini_stripe(
            a, first + (count ? (uint64_t)(stripe / each) * length + start : 0), count);
        if (count && mo_thread_index() % MO_STRIPE_LANES == 0)
            stripes[stripe] = sum;
    }
}

MO_DEVICE double mo_adam_mini_total(const double *stripes, uint32_t length)
{
    double total = 0;
    for (uint32_t i = 0; i * MO_STRIPE_ELEMENTS < length; i++)
        total += stripes[i];
    return total;
}

MO_GLOBAL(mo_adam_mini_squares, mo_adam_mini_args, MO_ADAM_MINI_THREADS)
{
    MO_SHARED(mo_adam_mini_found, found);
    const uint64_t item = first_item + mo_block_index(), size = mo_adam_mini_size(&args);
    const uint64_t chunks = mo_chunks_of(size), chunk = item % chunks;
    const uint32_t length = (uint32_t)mo_chunk_length(size, chunk);
    mo_adam_mini_stripes(args, item / chunks * size + chunk * MO_CHUNK_ELEMENTS, 1, length,
                         found.stripes);
    mo_barrier();
    if (mo_thread_index() == 0)
        MO_AT(double, args.chunk_squares + item) = mo_adam_mini_total(found.stripes, length);
}

MO_GLOBAL(mo_adam_mini_rates, mo_adam_mini_args, MO_SUM_THREADS)
{
    const uint64_t block = first_item + mo_block_index();
    const uint64_t chunks = mo_chunks_of(mo_adam_mini_size(&args));
    double sum = 0;
    if (mo_adam_mini_is_skipped(&args))
        return;
    if (mo_thread_index() < MO_STRIPE_LANES)
        for (uint64_t i = mo_thread_index(); i < chunks; i += MO_STRIPE_LANES)
            sum += MO_AT(double, args.chunk_squares + block * chunks + i);
    sum = mo_lanes_tree(sum);
    if (mo_thread_index() == 0)
        MO_AT(float, args.rates + block) = mo_adam_mini_rate(&args, block, sum);
}

/* The rates of an item's blocks. */
MO_DEVICE void mo_adam_mini_find_rates(const mo_adam_mini_args &a, const mo_adam_mini_item &item,
                                       mo_adam_mini_found *found)
{
    const uint32_t size = (uint32_t)mo_adam_mini_size(&a);
    const uint32_t each = (size + MO_STRIPE_ELEMENTS - 1) / MO_STRIPE_ELEMENTS;
    const uint64_t first = item.row / a.block_rows;
    const uint32_t blocks = item.rows / (uint32_t)a.block_rows;
    mo_adam_mini_stripes(a, first * size, blocks, size, found->stripes);
    mo_barrier();
    for (uint32_t i = mo_thread_index(); i < blocks; i += MO_ADAM_MINI_THREADS)
        found->rates[i] =
            mo_adam_mini_rate(&a, first + i, mo_adam_mini_total(found->stripes + i * each, size));
    mo_barrier();
}

/* --- the step -------------------------------------------------------------------------------- */

/* Which of the tensors may travel as vectors. */
typedef struct mo_adam_mini_aligned {
    int parameter, gradient, mean;
} mo_adam_mini_aligned;

template <int CODED>
MO_DEVICE mo_adam_mini_aligned mo_adam_mini_alignment(const mo_adam_mini_args &a)
{
    const int rows = a.columns % 8 == 0;
    mo_adam_mini_aligned aligned;
    aligned.parameter = rows && mo_pack_aligned<8>(a.parameter, a.parameter_dtype);
    aligned.gradient = rows && mo_pack_aligned<8>(a.gradient, a.gradient_dtype);
    aligned.mean = rows && (CODED ? mo_codes_aligned<MO_STATE_8BIT>(a.mean)
                                  : mo_pack_aligned<8>(a.mean, MO_DTYPE_F32));
    return aligned;
}

/* Moves eight parameters from an element on, of which `rest` exist; their new means. */
MO_DEVICE void mo_adam_mini_pack(const mo_adam_mini_args &a, const mo_adam_mini_aligned &aligned,
                                 uint64_t element, uint32_t rest, float rate, float means[8])
{
    float g[8], p[8];
    mo_load_pack<8>(a.gradient, element, rest, a.gradient_dtype, aligned.gradient, g);
    mo_load_pack<8>(a.parameter, element, rest, a.parameter_dtype, aligned.parameter, p);
    MO_UNROLL
    for (int k = 0; k < 8; k++) {
        means[k] = mo_adam_mini_mean(a.beta1, a.fresh1, means[k], g[k]);
        p[k] = mo_adam_mini_moved(rate, a.decay, means[k], p[k]);
    }
    mo_store_pack<8>(a.parameter, element, rest, a.parameter_dtype, aligned.parameter, p);
}

/* 256 elements of a row, from `column` on, for each group. Those past the end have rest 0: every
 * thread of a warp must reach the reductions. */
template <int CODED>
MO_DEVICE void mo_adam_mini_span(const mo_adam_mini_args &a, const mo_adam_mini_aligned &aligned,
                                 const mo_code_tables *tables, uint64_t row, uint64_t column,
                                 uint32_t rest, float rate)
{
    const uint64_t scales = mo_parts_of(a.columns, MO_BLOCK_SIZE), first = row * a.columns;
    float means[8];
    uint32_t largest = 0;
    if (!CODED) {
        if (rest > 0) {
            mo_load_pack<8>(a.mean, first + column, rest, MO_DTYPE_F32, aligned.mean, means);
            mo_adam_mini_pack(a, aligned, first + column, rest, rate, means);
            mo_one_nan<8>(means);
            mo_store_pack<8>(a.mean, first + column, rest, MO_DTYPE_F32, aligned.mean, means);
        }
        return;
    }
    unsigned char *codes = (unsigned char *)a.mean + first + column;
    float *scale = a.scales + row * scales + column / MO_BLOCK_SIZE;
    if (rest > 0) {
        mo_decode_block<MO_STATE_8BIT>(tables, 1, codes, scale, (uint32_t)0, rest, aligned.mean,
                                       means);
        mo_adam_mini_pack(a, aligned, first + column, rest, rate, means);
        largest = mo_largest<8>(means);
    }
    largest = mo_block_largest<MO_STATE_8BIT>(largest);
    if (rest > 0)
        mo_encode_block<MO_STATE_8BIT>(tables, 1, means, largest, 0, 0, rest, aligned.mean, codes,
                                       scale);
}

template <int CODED>
MO_DEVICE void mo_adam_mini_move(const mo_adam_mini_args &a, const mo_adam_mini_item &item,
                                 const mo_adam_mini_found *found, const mo_code_tables *tables)
{
    const mo_adam_mini_aligned aligned = mo_adam_mini_alignment<CODED>(a);
    const uint32_t spans = (item.columns + MO_BLOCK_SIZE - 1) / MO_BLOCK_SIZE;
    for (uint32_t turn = 0; turn < item.rows * spans; turn += MO_ADAM_MINI_GROUPS) {
        uint32_t span = turn + mo_thread_index() / MO_STRIPE_LANES, i = span / spans, rest = 0;
        uint32_t column = span % spans * MO_BLOCK_SIZE + mo_thread_index() % MO_STRIPE_LANES * 8;
        float rate = 0.0f;
        if (i < item.rows) {
            uint64_t block = (item.row + i) / a.block_rows;
            rest = mo_pack_rest<8>(item.columns, column);
            rate = a.rates ? MO_AT(const float, a.rates + block)
                           : found->rates[block - item.row / a.block_rows];
        }
        mo_adam_mini_span<CODED>(a, aligned, tables, item.row + i, item.column + column, rest,
                                 rate);
    }
}

/* The arguments of the second half lie in shared memory: AMD's scalar registers are not enough for
 * all of them. */
MO_DEVICE int mo_adam_mini_begin(const mo_adam_mini_args &args, uint64_t number,
                                 mo_adam_mini_args *shared, mo_adam_mini_found *found)
{
    if (mo_adam_mini_is_skipped(&args))
        return 0;
    if (mo_thread_index() == 0)
        *shared = args;
    if (!args.rates)
        mo_adam_mini_find_rates(args, mo_adam_mini_item_of(&args, number), found);
    mo_barrier();
    return 1;
}

MO_GLOBAL_ROOM(mo_adam_mini_step, mo_adam_mini_args, MO_ADAM_MINI_THREADS, 3)
{
    MO_SHARED(mo_adam_mini_args, shared);
    MO_SHARED(mo_adam_mini_found, found);
    const uint64_t number = first_item + mo_block_index();
    if (mo_adam_mini_begin(args, number, &shared, &found))
        mo_adam_mini_move<0>(shared, mo_adam_mini_item_of(&shared, number), &found, 0);
}

MO_GLOBAL_ROOM(mo_adam_mini_step8, mo_adam_mini_args, MO_ADAM_MINI_THREADS, 3)
{
    MO_SHARED(mo_adam_mini_args, shared);
    MO_SHARED(mo_adam_mini_found, found);
    MO_SHARED(mo_code_tables, tables);
    const uint64_t number = first_item + mo_block_index();
    mo_codec<MO_STATE_8BIT>::load(&tables);
    if (mo_adam_mini_begin(args, number, &shared, &found))
        mo_adam_mini_move<1>(shared, mo_adam_mini_item_of(&shared, number), &found, &tables);
}
