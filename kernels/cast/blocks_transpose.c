/*
 * Matrices and their transposes, both quantised: the items of all CPU forms. Where a tile has one
 * scale, its codes are turned. Elsewhere its rows are quantised first, which brings its values to
 * the caches. Then some of its columns at a time are laid one behind the other and quantised as
 * rows. So each transpose has the bits of a matrix that was transposed before.
 */
#include "kernels/cast/blocks_cpu.h"
#include "kernels/core/prefetch.h"

#include <string.h>

/* Tiles side by side that are done together: long rows, but no more than the second cache holds. */
enum { TILES_TOGETHER = 8, ROWS_AHEAD = 4 };

/* Columns that were turned; their codes and scales go on from here to rows of the transpose. */
typedef struct turned_columns {
    _Alignas(64) unsigned char values[4 * MO_STRIP_ELEMENTS];
    _Alignas(64) unsigned char codes[MO_STRIP_ELEMENTS];
    _Alignas(64) unsigned char scales[4 * MO_STRIP_BLOCKS];
} turned_columns;

static unsigned char *values_at(const mo_blocks_segment *s, uint64_t row, uint64_t column)
{
    return (unsigned char *)s->values + (row * s->columns + column) * mo_element_size(s->dtype);
}

/* --- the transpose --------------------------------------------------------------------------- */

static unsigned char *codes_at(const mo_blocks_segment *s, uint64_t row, uint64_t column)
{
    return (unsigned char *)s->turned_codes + row * mo_blocks_code_bytes(s->format, s->rows) +
           mo_blocks_code_bytes(s->format, column);
}

/* Codes of MO_BLOCKS_TILE columns, which lie row by row, go to rows of a matrix. */
static void put_codes(mo_item_work *work, unsigned char *to, uint64_t columns,
                      const unsigned char *codes, uint64_t rows)
{
    const uint32_t format = work->segment->format;
    const uint64_t pitch = mo_blocks_code_bytes(format, columns);
    const int streaming = work->args->streaming && ((uintptr_t)to | pitch) % 64 == 0;
    work->form->spread(to, pitch, codes, mo_blocks_code_bytes(format, MO_BLOCKS_TILE), rows,
                       streaming);
    work->streamed |= streaming;
}

static unsigned char *scales_at(const mo_blocks_segment *s, uint64_t row, uint64_t column)
{
    const uint64_t across = mo_blocks_of(s->rows, mo_blocks_width_bits(s->format));
    const uint64_t at = (row >> mo_blocks_height_bits(s->format)) * across +
                        (column >> mo_blocks_width_bits(s->format));
    return (unsigned char *)s->turned_scales + at * mo_blocks_scale_size(s->format);
}

/* Whole rows of a tile as one strip: `rows` of them from `row` on. */
static void quantize_together(mo_item_work *work, mo_strip_rows *all, uint64_t row, uint64_t rows,
                              uint64_t column, turned_columns *turned)
{
    const mo_blocks_segment *s = work->segment;
    const uint64_t size = (MO_BLOCKS_TILE >> work->width_bits) * mo_blocks_scale_size(s->format);
    all->strip.codes = turned->codes;
    all->strip.count = rows * MO_BLOCKS_TILE;
    all->scales = turned->scales;
    mo_strip_rows_quantize(work, all);
    put_codes(work, codes_at(s, row, column), s->rows, turned->codes, rows);
    for (uint64_t r = 0; r < rows && !work->known; r++)
        for (uint64_t k = 0; k < size; k += 4)
            memcpy(scales_at(s, row + r, column) + k, turned->scales + r * size + k, 4);
}

/* Rows [row, row + rows) of the transpose, at most MO_TURN_COLUMNS, in the tile's columns. */
static void quantize_turned(mo_item_work *work, const mo_blocks_item *tile, uint64_t row,
                            uint64_t rows, turned_columns *turned)
{
    const mo_blocks_segment *s = work->segment;
    const uint64_t size = mo_element_size(s->dtype), count = tile->rows, column = tile->row;
    mo_strip_rows all = {.rows = 1};
    work->form->turn[size / 2](values_at(s, column, row), s->columns * size, count, rows,
                               turned->values);
    all.strip = (mo_block_strip){.values = turned->values,
                                 .count = count,
                                 .shift = work->width_bits,
                                 .stream = work->stream,
                                 .nvfp4 = work->nvfp4};
    if (count == MO_BLOCKS_TILE && !work->args->stochastic) {
        quantize_together(work, &all, row, rows, column, turned);
        return;
    }
    for (uint64_t r = row; r < row + rows; r++, all.strip.values += count * size) {
        all.strip.codes = codes_at(s, r, column);
        all.strip.number = mo_blocks_number(r, column, s->rows);
        all.scales = scales_at(s, r, column);
        mo_strip_rows_quantize(work, &all);
    }
}

/* --- tiles ----------------------------------------------------------------------------------- */

/* The scale of a tile that is one block. */
static void measure_tile(mo_item_work *work, const mo_blocks_item *tile)
{
    const mo_blocks_segment *s = work->segment;
    const uint64_t size = mo_element_size(s->dtype);
    _Alignas(64) unsigned char columns[4 * MO_BLOCKS_TILE];
    uint32_t amax = 0;
    mo_block_strip strip = {
        .values = columns, .count = tile->columns, .shift = MO_BLOCKS_TILE_BITS};
    work->form->fold[size == 4](values_at(s, tile->row, tile->column), s->columns * size,
                                tile->rows, tile->columns, columns);
    work->form->amax[s->dtype](&strip, 0, &amax);
    work->amax = amax > work->amax ? amax : work->amax;
    work->largest = amax;
    work->whole = mo_f32_scale(amax, 448.0f, work->args->power_of_two);
    work->known = 1;
    work->measure = 0;
}

/* The scale of a tile that is one block, or of the matrix. */
static void put_whole(mo_item_work *work, const mo_blocks_item *tile)
{
    const mo_blocks_segment *s = work->segment;
    if (work->height == 1 && (tile->row != 0 || tile->column != 0))
        return;
    *(uint32_t *)(void *)scales_at(s, tile->column, tile->row) = work->whole.code;
    if (s->codes != NULL)
        *(uint32_t *)(void *)mo_strip_rows_of(work, tile->row, 1, tile->column, 1).scales =
            work->whole.code;
}

static void quantize_rows(mo_item_work *work, const mo_blocks_item *tile)
{
    const uint64_t scales = work->across * mo_blocks_scale_size(work->segment->format);
    mo_strip_rows all = mo_strip_rows_of(work, tile->row, 1, tile->column, tile->columns);
    all.strip.streaming = work->args->streaming;
    all.strip.ahead = work->args->streaming ? ROWS_AHEAD * all.value_step : 0;
    if (work->known && !work->measure) {
        all.rows = tile->rows;
        mo_strip_rows_quantize(work, &all);
        return;
    }
    for (uint64_t r = 0; r < tile->rows; r++, all.scales += scales) {
        mo_strip_rows_quantize(work, &all);
        all.strip.values += all.value_step;
        all.strip.codes += all.code_step;
        all.strip.number += all.number_step;
    }
}

/* Where the rows are not wanted, what would have brought them to the caches. */
static void fetch_rows(const mo_blocks_segment *s, const mo_blocks_item *tile)
{
    for (uint64_t r = 0; r < tile->rows; r++)
        mo_prefetch(values_at(s, tile->row + r, tile->column),
                    tile->columns * mo_element_size(s->dtype));
}

/* Codes and codes of the transpose of 128 columns from `column` on, where both have one known
 * scale: they are the same. */
static void turn_codes(mo_item_work *work, const mo_blocks_item *tile, uint64_t column,
                       turned_columns *turned)
{
    const mo_blocks_segment *s = work->segment;
    _Alignas(64) unsigned char codes[MO_BLOCKS_TILE * MO_BLOCKS_TILE];
    const uint64_t side = MO_BLOCKS_TILE;
    const mo_strip_rows all = {
        .strip = {.values = values_at(s, tile->row, column),
                  .codes = codes,
                  .count = side,
                  .shift = work->width_bits,
                  .ahead = work->args->streaming
                               ? ROWS_AHEAD * s->columns * mo_element_size(s->dtype)
                               : 0},
        .rows = side,
        .value_step = s->columns * mo_element_size(s->dtype),
        .code_step = side};
    mo_strip_rows_quantize(work, &all);
    if (s->codes != NULL)
        put_codes(work, (unsigned char *)s->codes + tile->row * s->columns + column, s->columns,
                  codes, side);
    for (uint64_t c = 0; c < side; c += MO_TURN_COLUMNS) {
        work->form->turn[0](codes + c, side, side, MO_TURN_COLUMNS, turned->codes);
        put_codes(work, codes_at(s, column + c, tile->row), s->rows, turned->codes,
                  MO_TURN_COLUMNS);
    }
}

/* The rows of a tile, then its columns. */
static void quantize_twice(mo_item_work *work, const mo_blocks_item *tile, turned_columns *turned)
{
    if (work->segment->codes != NULL) {
        quantize_rows(work, tile);
        work->measure = 0;
    } else if (work->args->streaming) {
        fetch_rows(work->segment, tile);
    }
    for (uint64_t c = 0; c < tile->columns; c += MO_TURN_COLUMNS) {
        uint64_t rest = tile->columns - c;
        quantize_turned(work, tile, tile->column + c,
                        rest < MO_TURN_COLUMNS ? rest : MO_TURN_COLUMNS, turned);
    }
}

static void transpose_tile(mo_item_work *work, const mo_blocks_item *tile)
{
    const int measure = work->measure;
    const int whole = tile->rows == MO_BLOCKS_TILE && tile->columns % MO_BLOCKS_TILE == 0;
    turned_columns turned;
    if (work->height > 1)
        measure_tile(work, tile);
    if (work->known)
        put_whole(work, tile);
    if (work->known && whole && !work->args->stochastic)
        for (uint64_t c = 0; c < tile->columns; c += MO_BLOCKS_TILE)
            turn_codes(work, tile, tile->column + c, &turned);
    else
        quantize_twice(work, tile, &turned);
    work->measure = measure;
}

static uint64_t transpose_items(mo_item_work *work, uint64_t begin, uint64_t end)
{
    const mo_blocks_segment *s = work->segment;
    mo_blocks_item tile = mo_blocks_item_at(s, begin, begin / s->items_across);
    uint64_t count = s->items_across - begin % s->items_across;
    count = count < end - begin ? count : end - begin;
    if (count > TILES_TOGETHER)
        count = TILES_TOGETHER;
    if (work->height > 1)
        count = 1;
    tile.columns = s->columns - tile.column;
    if (tile.columns > count * MO_BLOCKS_TILE)
        tile.columns = count * MO_BLOCKS_TILE;
    transpose_tile(work, &tile);
    return count;
}

int mo_blocks_transpose_run(const mo_blocks_args *args, uint64_t begin, uint64_t end,
                            const mo_blocks_form *form)
{
    return mo_blocks_items_run(args, begin, end, form, transpose_items);
}

void mo_blocks_transpose_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_blocks_transpose_run(args, begin, end, &mo_blocks_scalar_form);
}
