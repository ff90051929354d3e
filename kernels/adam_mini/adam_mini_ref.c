/* The scalar forms of Adam-mini, and the loops over items that all CPU forms share. */
#include "kernels/adam_mini/adam_mini_cpu.h"
#include "kernels/core/element_io.h"
#include "kernels/optim/optim_cpu.h"

/* --- a piece --------------------------------------------------------------------------------- */

/* One element, whose mean changes in place. */
static void move_element(const mo_adam_mini_piece *p, int32_t parameter, int32_t gradient,
                         uint64_t i, float *mean)
{
    float g = mo_load_element(p->gradient, i, gradient);
    float value = mo_load_element(p->parameter, i, parameter);
    *mean = mo_adam_mini_mean(p->beta1, p->fresh1, *mean, g);
    mo_store_element(p->parameter, i, parameter,
                     mo_adam_mini_moved(p->rate, p->decay, *mean, value));
}

void mo_adam_mini_tail(const mo_adam_mini_piece *p, int32_t parameter, int32_t gradient,
                       uint64_t first)
{
    float *means = p->mean;
    for (uint64_t i = first; i < p->count; i++) {
        move_element(p, parameter, gradient, i, &means[i]);
        means[i] = mo_f32_one_nan(means[i]);
    }
}

uint32_t mo_adam_mini_tail8(const mo_adam_mini_piece *p, int32_t parameter, int32_t gradient,
                            uint64_t first, uint64_t end, float *means)
{
    uint32_t largest = 0;
    for (uint64_t i = first; i < end; i++) {
        move_element(p, parameter, gradient, i, &means[i - first]);
        uint32_t bits = mo_f32_bits(means[i - first]) & 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

static void move_coded(const mo_adam_mini_piece *p, int32_t parameter, int32_t gradient)
{
    for (uint64_t at = 0; at < p->count; at += MO_BLOCK_SIZE) {
        float means[MO_BLOCK_SIZE];
        uint32_t n = mo_block_length(MO_BLOCK_SIZE, p->count, at);
        mo_block_decode(MO_STATE_8BIT, 1, p->mean, p->scales[at / MO_BLOCK_SIZE], at, n, means);
        mo_adam_mini_tail8(p, parameter, gradient, at, at + n, means);
        mo_block_encode(MO_STATE_8BIT, 1, means, at, n, p->mean, &p->scales[at / MO_BLOCK_SIZE]);
    }
}

static void move_scalar(const mo_adam_mini_rows *r)
{
    MO_ADAM_MINI_EACH(r, piece,
                      mo_adam_mini_tail(&piece, r->parameter_dtype, r->gradient_dtype, 0));
}

static void move8_scalar(const mo_adam_mini_rows *r)
{
    MO_ADAM_MINI_EACH(r, piece, move_coded(&piece, r->parameter_dtype, r->gradient_dtype));
}

/* --- the loops over items -------------------------------------------------------------------- */

void mo_adam_mini_squares_run(const void *args, uint64_t begin, uint64_t end,
                              mo_square_function square)
{
    const mo_adam_mini_args *a = args;
    const uint64_t size = mo_adam_mini_size(a), chunks = mo_chunks_of(size);
    for (uint64_t item = begin; item < end; item++) {
        uint64_t first = item / chunks * size + item % chunks * MO_CHUNK_ELEMENTS;
        a->chunk_squares[item] = square(a->gradient + first * mo_element_size(a->gradient_dtype),
                                        mo_chunk_length(size, item % chunks), a->gradient_dtype);
    }
}

void mo_adam_mini_rates_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_adam_mini_args *a = args;
    const uint64_t chunks = mo_chunks_of(mo_adam_mini_size(a));
    if (mo_adam_mini_is_skipped(a))
        return;
    for (uint64_t block = begin; block < end; block++) {
        double lanes[MO_STRIPE_LANES] = {0};
        for (uint64_t i = 0; i < chunks; i++)
            lanes[i % MO_STRIPE_LANES] += a->chunk_squares[block * chunks + i];
        a->rates[block] = mo_adam_mini_rate(a, block, mo_stripe_tree(lanes));
    }
}

/* The item's rows from one on. */
static mo_adam_mini_rows rows_of(const mo_adam_mini_args *a, const mo_adam_mini_item *item,
                                 uint64_t row, uint64_t rows)
{
    const uint64_t at = row * a->columns + item->column;
    mo_adam_mini_rows result = {
        .rows = rows,
        .left = a->block_rows - row % a->block_rows,
        .block_rows = a->block_rows,
        .columns = a->columns,
        .row_scales = mo_parts_of(a->columns, MO_BLOCK_SIZE),
        .parameter_dtype = (int32_t)a->parameter_dtype,
        .gradient_dtype = (int32_t)a->gradient_dtype,
        .piece = {.parameter = a->parameter + at * mo_element_size(a->parameter_dtype),
                  .gradient = a->gradient + at * mo_element_size(a->gradient_dtype),
                  .mean = (unsigned char *)a->mean + at * (a->scales ? 1 : sizeof(float)),
                  .count = item->columns,
                  .beta1 = a->beta1,
                  .fresh1 = a->fresh1,
                  .decay = a->decay},
    };
    if (a->scales)
        result.piece.scales = a->scales + row * result.row_scales + item->column / MO_BLOCK_SIZE;
    return result;
}

/* Some whole blocks: first all squares, then all rates, whose roots and quotients need not wait for
 * each other so. */
static void move_blocks(const mo_adam_mini_args *a, const mo_adam_mini_rows *r, uint64_t block,
                        uint64_t blocks, mo_square_function square, mo_adam_mini_move move)
{
    const uint64_t size = mo_adam_mini_size(a);
    double sums[MO_ADAM_MINI_BLOCKS];
    float rates[MO_ADAM_MINI_BLOCKS];
    for (uint64_t i = 0; i < blocks; i++)
        sums[i] = square(r->piece.gradient + i * size * mo_element_size(a->gradient_dtype), size,
                         a->gradient_dtype);
    for (uint64_t i = 0; i < blocks; i++)
        rates[i] = mo_adam_mini_rate(a, block + i, sums[i]);
    mo_adam_mini_rows rows = *r;
    rows.rates = rates;
    move(&rows);
}

/* Of an item of whole blocks, as many at a time as fit a first-level cache. */
static void move_item(const mo_adam_mini_args *a, const mo_adam_mini_item *item,
                      mo_square_function square, mo_adam_mini_move move)
{
    enum { CACHED = 4096 };
    const uint64_t size = mo_adam_mini_size(a), end = (item->row + item->rows) / a->block_rows;
    const uint64_t most = size < CACHED ? CACHED / size : 1;
    for (uint64_t block = item->row / a->block_rows; block < end; block += most) {
        uint64_t blocks = end - block < most ? end - block : most;
        mo_adam_mini_rows rows = rows_of(a, item, block * a->block_rows, blocks * a->block_rows);
        move_blocks(a, &rows, block, blocks, square, move);
    }
}

void mo_adam_mini_step_run(const void *args, uint64_t begin, uint64_t end,
                           mo_square_function square, mo_adam_mini_move move)
{
    const mo_adam_mini_args *a = args;
    if (mo_adam_mini_is_skipped(a))
        return;
    for (uint64_t number = begin; number < end; number++) {
        mo_adam_mini_item item = mo_adam_mini_item_of(a, number);
        if (!a->rates) {
            move_item(a, &item, square, move);
            continue;
        }
        mo_adam_mini_rows rows = rows_of(a, &item, item.row, item.rows);
        rows.rates = a->rates + item.row / a->block_rows;
        move(&rows);
    }
}

/* --- the forms ------------------------------------------------------------------------------- */

void mo_adam_mini_squares_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_adam_mini_squares_run(args, begin, end, mo_squares_ref);
}

void mo_adam_mini_step_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_adam_mini_step_run(args, begin, end, mo_squares_ref, move_scalar);
}

void mo_adam_mini_step8_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_adam_mini_step_run(args, begin, end, mo_squares_ref, move8_scalar);
}
