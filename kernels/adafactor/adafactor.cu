/*
 * Adafactor on a GPU. The order of additions is adafactor.h's: a group of 32 threads is a stripe's
 * lanes, whatever the width of the warp; a block's groups take the rows of a tile in turn.
 */
#include "kernels/adafactor/adafactor.h"
#include "kernels/reduce/reduce_gpu.h"

enum { MO_ADAFACTOR_GROUPS = MO_ADAFACTOR_THREADS / MO_STRIPE_LANES };

typedef struct mo_adafactor_row_sums {
    float of[MO_TILE_ROWS];
} mo_adafactor_row_sums;

/* mo_adafactor_tree over the lanes of a group: lane 0's result is the stripe's. */
MO_DEVICE float mo_adafactor_lanes_tree(float value)
{
    MO_UNROLL
    for (uint32_t distance = MO_STRIPE_LANES / 2; distance > 0; distance /= 2)
        value += mo_f32_from_bits(mo_shuffle_xor_u32(mo_f32_bits(value), distance));
    return value;
}

template <uint32_t DTYPE>
MO_DEVICE float mo_adafactor_value(const mo_adafactor_matrix &a, uint64_t element)
{
    uint32_t code = mo_read_code(a.gradient, element, DTYPE == MO_DTYPE_F32 ? 4 : 2);
    return mo_decode_as<DTYPE>(code) * a.scale;
}

/* --- squares --------------------------------------------------------------------------------- */

template <uint32_t DTYPE>
MO_DEVICE void mo_adafactor_add_columns(const mo_adafactor_matrix &a, const mo_adafactor_tile &tile)
{
    const uint64_t down = mo_tiles_of(a.rows, MO_TILE_ROWS);
    float *sums = a.column_squares + (tile.matrix * down + tile.down) * a.columns + tile.column;
    for (uint32_t j = mo_thread_index(); j < tile.columns; j += MO_ADAFACTOR_THREADS) {
        float sum = 0;
        for (uint32_t i = 0; i < tile.rows; i++) {
            float x = mo_adafactor_value<DTYPE>(a, tile.element + i * a.columns + j);
            sum = mo_fmaf(x, x, sum);
        }
        MO_AT(float, sums + j) = sum;
    }
}

template <uint32_t DTYPE>
MO_DEVICE void mo_adafactor_add_rows(const mo_adafactor_matrix &a, const mo_adafactor_tile &tile)
{
    const uint64_t across = mo_tiles_of(a.columns, MO_TILE_COLUMNS);
    const uint32_t lane = mo_thread_index() % MO_STRIPE_LANES;
    float *sums = a.row_squares + (tile.matrix * across + tile.across) * a.rows + tile.row;
    /* All groups take as many turns: a warp may be two of them. */
    for (uint32_t turn = 0; turn < MO_TILE_ROWS; turn += MO_ADAFACTOR_GROUPS) {
        uint32_t i = turn + mo_thread_index() / MO_STRIPE_LANES;
        float sum = 0;
        for (uint32_t j = lane; i < tile.rows && j < tile.columns; j += MO_STRIPE_LANES) {
            float x = mo_adafactor_value<DTYPE>(a, tile.element + i * a.columns + j);
            sum = mo_fmaf(x, x, sum);
        }
        sum = mo_adafactor_lanes_tree(sum);
        if (lane == 0 && i < tile.rows)
            MO_AT(float, sums + i) = sum;
    }
}

template <uint32_t DTYPE>
MO_DEVICE void mo_adafactor_add(const mo_adafactor_matrix &a, const mo_adafactor_tile &tile)
{
    mo_adafactor_add_columns<DTYPE>(a, tile);
    mo_adafactor_add_rows<DTYPE>(a, tile);
}

MO_GLOBAL(mo_adafactor_squares, mo_adafactor_args, MO_ADAFACTOR_THREADS)
{
    mo_adafactor_matrix m;
    mo_adafactor_tile tile;
    if (args.control->skip)
        return;
    uint64_t own =
        mo_adafactor_find(&args, &args.plans->first_tile, first_item + mo_block_index(), &m);
    mo_adafactor_tile_of(&m, own, &tile);
    if (!m.row_var)
        return;
    if (m.gradient_dtype == MO_DTYPE_F32)
        mo_adafactor_add<MO_DTYPE_F32>(m, tile);
    else if (m.gradient_dtype == MO_DTYPE_BF16)
        mo_adafactor_add<MO_DTYPE_BF16>(m, tile);
    else
        mo_adafactor_add<MO_DTYPE_F16>(m, tile);
}

/* --- moments --------------------------------------------------------------------------------- */

typedef struct mo_adafactor_row_block {
    float moments[MO_ROW_BLOCK];
} mo_adafactor_row_block;

MO_GLOBAL(mo_adafactor_rows, mo_adafactor_args, MO_ADAFACTOR_THREADS)
{
    MO_SHARED(mo_adafactor_row_block, block);
    mo_adafactor_matrix m;
    if (args.control->skip)
        return;
    const uint64_t item = first_item + mo_block_index();
    const uint64_t own = mo_adafactor_find(&args, &args.plans->first_row_block, item, &m);
    const uint64_t blocks = mo_tiles_of(m.rows, MO_ROW_BLOCK), first = own % blocks * MO_ROW_BLOCK;
    uint64_t rest = m.rows - first;
    rest = rest < MO_ROW_BLOCK ? rest : (uint64_t)MO_ROW_BLOCK;
    for (uint64_t i = mo_thread_index(); i < rest; i += MO_ADAFACTOR_THREADS)
        block.moments[i] = mo_adafactor_row(&m, own / blocks, first + i);
    mo_barrier();
    double sum = 0;
    if (mo_thread_index() < MO_STRIPE_LANES)
        for (uint64_t i = mo_thread_index(); i < rest; i += MO_STRIPE_LANES)
            sum += (double)block.moments[i];
    sum = mo_lanes_tree(sum);
    if (mo_thread_index() == 0)
        MO_AT(double, args.row_totals + item) = sum;
}

MO_GLOBAL(mo_adafactor_columns, mo_adafactor_args, MO_ADAFACTOR_THREADS)
{
    mo_adafactor_matrix m;
    if (args.control->skip)
        return;
    const uint64_t own = mo_adafactor_find(&args, &args.plans->first_column_block,
                                           first_item + mo_block_index(), &m);
    const uint64_t across = mo_tiles_of(m.columns, MO_TILE_COLUMNS);
    const uint64_t first = own % across * MO_TILE_COLUMNS;
    uint64_t rest = m.columns - first;
    rest = rest < MO_TILE_COLUMNS ? rest : (uint64_t)MO_TILE_COLUMNS;
    float mean = mo_adafactor_row_mean(&m, own / across);
    for (uint64_t j = mo_thread_index(); j < rest; j += MO_ADAFACTOR_THREADS)
        mo_adafactor_column(&m, own / across, first + j, mean);
}

/* --- the update ------------------------------------------------------------------------------ */

/* The sum of the squares in each row of the tile. */
template <uint32_t DTYPE>
MO_DEVICE void mo_adafactor_lengths(const mo_adafactor_matrix &a, const mo_adafactor_tile &tile,
                                    mo_adafactor_row_sums *sums)
{
    const uint32_t lane = mo_thread_index() % MO_STRIPE_LANES;
    const float *columns = a.column_factor + tile.matrix * a.columns + tile.column;
    const float *rows = a.row_factor + tile.matrix * a.rows + tile.row;
    for (uint32_t turn = 0; turn < MO_TILE_ROWS; turn += MO_ADAFACTOR_GROUPS) {
        uint32_t i = turn + mo_thread_index() / MO_STRIPE_LANES;
        float sum = 0;
        for (uint32_t j = lane; i < tile.rows && j < tile.columns; j += MO_STRIPE_LANES) {
            float factor = MO_AT(const float, rows + i) * MO_AT(const float, columns + j);
            float u = mo_adafactor_value<DTYPE>(a, tile.element + i * a.columns + j) *
                      mo_adafactor_capped(factor, a.cap);
            sum = mo_fmaf(u, u, sum);
        }
        sum = mo_adafactor_lanes_tree(sum);
        if (lane == 0)
            sums->of[i] = sum;
    }
}

typedef struct mo_adafactor_updates {
    float of[MO_TILE_COLUMNS];
} mo_adafactor_updates;

/* Of an element of a vector: its new moment. */
template <uint32_t DTYPE>
MO_DEVICE float mo_adafactor_moment_at(const mo_adafactor_matrix &a, uint64_t element)
{
    float x = mo_adafactor_value<DTYPE>(a, element);
    return mo_adafactor_moment(MO_AT(const float, a.column_var + element), x * x, a.fresh);
}

/* A tile of a vector: its updates' squares. */
template <uint32_t DTYPE>
MO_DEVICE void
mo_adafactor_vector_length(const mo_adafactor_matrix &a, const mo_adafactor_tile &tile,
                           mo_adafactor_updates *updates, mo_adafactor_row_sums *sums)
{
    for (uint32_t j = mo_thread_index(); j < tile.columns; j += MO_ADAFACTOR_THREADS) {
        const uint64_t at = tile.element + j;
        updates->of[j] = mo_adafactor_value<DTYPE>(a, at) *
                         mo_adafactor_factor(mo_adafactor_moment_at<DTYPE>(a, at), a.cap);
    }
    mo_barrier();
    float sum = 0;
    if (mo_thread_index() < MO_STRIPE_LANES)
        for (uint32_t j = mo_thread_index(); j < tile.columns; j += MO_STRIPE_LANES)
            sum = mo_fmaf(updates->of[j], updates->of[j], sum);
    sum = mo_adafactor_lanes_tree(sum);
    if (mo_thread_index() == 0)
        sums->of[0] = sum;
}

template <uint32_t DTYPE>
MO_DEVICE void mo_adafactor_tile_length(const mo_adafactor_matrix &a, const mo_adafactor_tile &tile,
                                        mo_adafactor_updates *updates, mo_adafactor_row_sums *sums)
{
    if (a.row_var)
        mo_adafactor_lengths<DTYPE>(a, tile, sums);
    else
        mo_adafactor_vector_length<DTYPE>(a, tile, updates, sums);
}

MO_GLOBAL(mo_adafactor_update, mo_adafactor_args, MO_ADAFACTOR_THREADS)
{
    MO_SHARED(mo_adafactor_row_sums, sums);
    MO_SHARED(mo_adafactor_updates, updates);
    const uint64_t item = first_item + mo_block_index();
    mo_adafactor_matrix m;
    mo_adafactor_tile tile;
    if (args.control->skip)
        return;
    mo_adafactor_tile_of(&m, mo_adafactor_find(&args, &args.plans->first_tile, item, &m), &tile);
    if (m.gradient_dtype == MO_DTYPE_F32)
        mo_adafactor_tile_length<MO_DTYPE_F32>(m, tile, &updates, &sums);
    else if (m.gradient_dtype == MO_DTYPE_BF16)
        mo_adafactor_tile_length<MO_DTYPE_BF16>(m, tile, &updates, &sums);
    else
        mo_adafactor_tile_length<MO_DTYPE_F16>(m, tile, &updates, &sums);
    mo_barrier();
    if (mo_thread_index() != 0)
        return;
    double total = 0;
    for (uint32_t i = 0; i < tile.rows; i++)
        total += (double)sums.of[i];
    MO_AT(double, args.tile_squares + item) = total;
}

/* The sum of values in the order of mo_launch_sum(); every thread's. */
MO_DEVICE double mo_adafactor_total(const double *values, uint64_t count, double *levels)
{
    while (count > 1) {
        const uint64_t sums = mo_tiles_of(count, MO_STRIPE_ELEMENTS);
        for (uint64_t k = 0; k < sums; k++) {
            const uint64_t first = k * MO_STRIPE_ELEMENTS, rest = count - first;
            double sum = 0;
            /* The second half of the block only fills whole warps. */
            if (mo_thread_index() < MO_STRIPE_LANES)
                for (uint64_t i = mo_thread_index(); i < rest && i < MO_STRIPE_ELEMENTS;
                     i += MO_STRIPE_LANES)
                    sum += MO_AT(const double, values + first + i);
            sum = mo_lanes_tree(sum);
            if (mo_thread_index() == 0)
                MO_AT(double, levels + k) = sum;
        }
        mo_barrier();
        values = levels;
        levels += sums;
        count = sums;
    }
    return MO_AT(const double, values);
}

MO_GLOBAL(mo_adafactor_rate, mo_adafactor_args, MO_SUM_THREADS)
{
    const uint64_t i = first_item + mo_block_index();
    if (args.control->skip)
        return;
    const mo_tensor_segment *g = &args.gradients[i];
    const mo_adafactor_plan *plan = &args.plans[i];
    double *levels = args.levels + plan->first_double;
    const uint64_t chunk = g->first_chunk - args.gradients->first_chunk;
    const double parameter =
        mo_adafactor_total(args.chunk_squares + chunk, mo_chunks_of(g->count), levels);
    mo_barrier();
    const uint64_t tiles = mo_adafactor_tiles(g->count, plan->rows, plan->columns);
    const double update = mo_adafactor_total(args.tile_squares + plan->first_tile, tiles, levels);
    if (mo_thread_index() == 0)
        MO_AT(float, args.rates + i) = mo_adafactor_rate_of(&args, (uint32_t)i, parameter, update);
}

template <uint32_t PARAMETER, uint32_t GRADIENT>
MO_DEVICE void mo_adafactor_move(const mo_adafactor_matrix &a, const mo_adafactor_tile &tile)
{
    const uint32_t size = PARAMETER == MO_DTYPE_F32 ? 4 : 2;
    const float *columns = a.column_factor + tile.matrix * a.columns + tile.column;
    const float *rows = a.row_factor + tile.matrix * a.rows + tile.row;
    const float rate = MO_AT(const float, a.rate);
    for (uint32_t j = mo_thread_index(); j < tile.columns; j += MO_ADAFACTOR_THREADS) {
        float column, alone = 0.0f;
        if (a.row_var) {
            column = MO_AT(const float, columns + j);
        } else {
            column = mo_adafactor_moment_at<GRADIENT>(a, tile.element + j);
            alone = mo_adafactor_factor(column, a.cap);
            MO_AT(float, a.column_var + tile.element + j) = column;
        }
        for (uint32_t i = 0; i < tile.rows; i++) {
            uint64_t at = tile.element + i * a.columns + j;
            float value = mo_decode_as<PARAMETER>(mo_read_code(a.parameter, at, size));
            float factor = alone;
            if (a.row_var)
                factor = mo_adafactor_capped(MO_AT(const float, rows + i) * column, a.cap);
            float u = mo_adafactor_value<GRADIENT>(a, at) * factor;
            value = mo_f32_one_nan(mo_fmaf(-rate, u, value * a.keep));
            mo_write_code(a.parameter, at, size, mo_encode_as<PARAMETER>(value, 0));
        }
    }
}

template <uint32_t PARAMETER>
MO_DEVICE void mo_adafactor_move_by(const mo_adafactor_matrix &a, const mo_adafactor_tile &tile)
{
    if (a.gradient_dtype == MO_DTYPE_F32)
        mo_adafactor_move<PARAMETER, MO_DTYPE_F32>(a, tile);
    else if (a.gradient_dtype == MO_DTYPE_BF16)
        mo_adafactor_move<PARAMETER, MO_DTYPE_BF16>(a, tile);
    else
        mo_adafactor_move<PARAMETER, MO_DTYPE_F16>(a, tile);
}

/* The tiles of the first column keep the moments of rows, those of the first row those of columns. */
MO_DEVICE void mo_adafactor_keep(const mo_adafactor_matrix &a, const mo_adafactor_tile &tile)
{
    const uint64_t row = tile.matrix * a.rows + tile.row;
    const uint64_t column = tile.matrix * a.columns + tile.column;
    const uint32_t thread = mo_thread_index();
    if (a.row_var && tile.across == 0)
        for (uint64_t i = row + thread; i < row + tile.rows; i += MO_ADAFACTOR_THREADS)
            MO_AT(float, a.row_var + i) = MO_AT(const float, a.row_moment + i);
    if (a.row_var && tile.down == 0)
        for (uint64_t j = column + thread; j < column + tile.columns; j += MO_ADAFACTOR_THREADS)
            MO_AT(float, a.column_var + j) = MO_AT(const float, a.column_moment + j);
    if (tile.element == 0 && thread == 0)
        MO_AT(uint64_t, a.steps) = a.step;
}

MO_GLOBAL_ROOM(mo_adafactor_apply, mo_adafactor_args, MO_ADAFACTOR_THREADS, 3)
{
    mo_adafactor_matrix m;
    mo_adafactor_tile tile;
    if (args.control->skip)
        return;
    uint64_t own =
        mo_adafactor_find(&args, &args.plans->first_tile, first_item + mo_block_index(), &m);
    mo_adafactor_tile_of(&m, own, &tile);
    if (m.parameter_dtype == MO_DTYPE_F32)
        mo_adafactor_move_by<MO_DTYPE_F32>(m, tile);
    else if (m.parameter_dtype == MO_DTYPE_BF16)
        mo_adafactor_move_by<MO_DTYPE_BF16>(m, tile);
    else
        mo_adafactor_move_by<MO_DTYPE_F16>(m, tile);
    mo_adafactor_keep(m, tile);
}
