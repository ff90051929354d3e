/* The scalar form of the block kernels, and the loop over items that all CPU forms share. */
#include "kernels/cast/blocks_cpu.h"
#include "kernels/core/element_io.h"
#include "kernels/core/prefetch.h"

#include <string.h>

/* --- strips ---------------------------------------------------------------------------------- */

static inline void amax_strip(const mo_block_strip *s, uint64_t start, uint32_t *amax, int dtype)
{
    for (uint64_t i = start; i < s->count; i++) {
        uint32_t bits = mo_f32_bits(mo_load_element(s->values, i, dtype)) & 0x7fffffffu;
        uint32_t *of = &amax[i >> s->shift];
        *of = bits > *of ? bits : *of;
    }
}

static inline void put_code(unsigned char *codes, uint64_t i, uint32_t kind, uint32_t code)
{
    if (!mo_codes_are_pairs(kind))
        codes[i] = (unsigned char)code;
    else if (i % 2 == 0) /* the other half of a row's last odd element is a zero */
        codes[i / 2] = (unsigned char)(kind == MO_CODES_NF4 ? code << 4 | MO_NF4_ZERO : code);
    else if (kind == MO_CODES_NF4)
        codes[i / 2] = (unsigned char)((codes[i / 2] & 0xf0) | code);
    else
        codes[i / 2] = (unsigned char)(codes[i / 2] | code << 4);
}

static inline uint32_t get_code(const unsigned char *codes, uint64_t i, uint32_t kind)
{
    if (!mo_codes_are_pairs(kind))
        return codes[i];
    return codes[i / 2] >> ((i % 2 != 0) != (kind == MO_CODES_NF4)) * 4 & 0xfu;
}

/* Eight elements share a block of random bits. */
static inline void quantize_strip(const mo_block_strip *s, uint64_t start, uint32_t kind, int dtype,
                                  int stochastic)
{
    uint32_t block[4] = {0}, random = 0;
    for (uint64_t i = start; i < s->count; i++) {
        if (stochastic && i % 8 == 0)
            mo_random_block(&s->stream, (s->number + i) / 8, block);
        if (stochastic)
            random = mo_random_bits16(block, (uint32_t)(i % 8));
        put_code(s->codes, i, kind,
                 mo_blocks_code(kind, mo_load_element(s->values, i, dtype),
                                s->factors[i >> s->shift], stochastic, random));
    }
}

static inline void dequantize_strip(const mo_block_strip *s, uint64_t start, uint32_t kind,
                                    int dtype)
{
    for (uint64_t i = start; i < s->count; i++)
        mo_store_element(
            s->values, i, dtype,
            mo_blocks_value(kind, get_code(s->codes, i, kind), s->factors[i >> s->shift]));
}

#define AMAX(unused, name, dtype)                                                                  \
    static void amax_##name(const mo_block_strip *strip, uint64_t start, uint32_t *amax)           \
    {                                                                                              \
        amax_strip(strip, start, amax, dtype);                                                     \
    }
#define STRIPS(kind_name, kind, name, dtype)                                                       \
    static void nearest_##kind_name##_##name(const mo_block_strip *strip, uint64_t start)          \
    {                                                                                              \
        quantize_strip(strip, start, kind, dtype, 0);                                              \
    }                                                                                              \
    static void stochastic_##kind_name##_##name(const mo_block_strip *strip, uint64_t start)       \
    {                                                                                              \
        quantize_strip(strip, start, kind, dtype, 1);                                              \
    }                                                                                              \
    static void decode_##kind_name##_##name(const mo_block_strip *strip, uint64_t start)           \
    {                                                                                              \
        dequantize_strip(strip, start, kind, dtype);                                               \
    }

MO_BLOCKS_TYPES(AMAX, )
MO_BLOCKS_PAIRS(STRIPS)

static void e8m0_scales(const uint32_t *amax, uint64_t count, uint32_t emax, uint8_t *codes,
                        float *factors)
{
    for (uint64_t b = 0; b < count; b++) {
        mo_blocks_scale scale = mo_e8m0_scale(amax[b], emax);
        codes[b] = (uint8_t)scale.code;
        factors[b] = scale.factor;
    }
}

static void nvfp4_scales(const uint32_t *amax, uint64_t count, float tensor_scale, uint8_t *codes,
                         float *factors)
{
    for (uint64_t b = 0; b < count; b++) {
        mo_blocks_scale scale = mo_nvfp4_scale(amax[b], tensor_scale);
        codes[b] = (uint8_t)scale.code;
        factors[b] = scale.factor;
    }
}

static void fold_halves(const unsigned char *values, uint64_t pitch, uint64_t rows,
                        uint64_t columns, unsigned char *largest)
{
    uint16_t *most = (uint16_t *)(void *)largest;
    memset(largest, 0, 2 * columns);
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < columns; c++) {
            uint16_t bits = ((const uint16_t *)(const void *)(values + r * pitch))[c] & 0x7fffu;
            most[c] = bits > most[c] ? bits : most[c];
        }
}

static void fold_words(const unsigned char *values, uint64_t pitch, uint64_t rows, uint64_t columns,
                       unsigned char *largest)
{
    uint32_t *most = (uint32_t *)(void *)largest;
    memset(largest, 0, 4 * columns);
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < columns; c++) {
            uint32_t bits = ((const uint32_t *)(const void *)(values + r * pitch))[c] & 0x7fffffffu;
            most[c] = bits > most[c] ? bits : most[c];
        }
}

const mo_blocks_form mo_blocks_scalar_form = MO_BLOCKS_FORM(NULL, NULL, 0);

/* --- items ----------------------------------------------------------------------------------- */

static unsigned char *scales_at(const mo_item_work *work, uint64_t row, uint64_t column)
{
    const mo_blocks_segment *s = work->segment;
    uint64_t at = row / work->height * work->across + (column >> work->width_bits);
    if (mo_blocks_is_tensor(s->format))
        at = 0;
    return (unsigned char *)s->scales + at * mo_blocks_scale_size(s->format);
}

/* `count` columns of so many rows of the matrix. */
static mo_strip_rows strip_rows_of(mo_item_work *work, uint64_t row, uint64_t rows, uint64_t column,
                                   uint64_t count)
{
    const mo_blocks_segment *s = work->segment;
    mo_strip_rows all = {.rows = rows,
                         .value_step = s->columns * mo_element_size(s->dtype),
                         .code_step = mo_blocks_code_bytes(s->format, s->columns),
                         .number_step = mo_blocks_number(1, 0, s->columns),
                         .scales = scales_at(work, row, column)};
    all.strip.values =
        (unsigned char *)s->values + row * all.value_step + column * mo_element_size(s->dtype);
    all.strip.codes =
        (unsigned char *)s->codes + row * all.code_step + mo_blocks_code_bytes(s->format, column);
    all.strip.count = count;
    all.strip.number = mo_blocks_number(row, column, s->columns);
    all.strip.shift = work->width_bits;
    all.strip.stream = work->stream;
    all.strip.nvfp4 = work->nvfp4;
    return all;
}

static void next_row(const mo_strip_rows *all, mo_block_strip *strip)
{
    strip->values += all->value_step;
    strip->codes += all->code_step;
    strip->number += all->number_step;
}

/* Writes the scales of a band of blocks. */
static void put_scales(mo_item_work *work, const uint32_t *amax, uint64_t count, void *scales,
                       float *factors)
{
    const uint32_t format = work->segment->format;
    if (format == MO_BLOCKS_NVFP4)
        work->form->nvfp4(amax, count, work->tensor_scale, scales, factors);
    else if (mo_blocks_scale_size(format) == 1)
        work->form->e8m0(amax, count, mo_blocks_emax(format), scales, factors);
    else
        for (uint64_t b = 0; b < count; b++) {
            mo_blocks_scale scale =
                mo_blocks_scale_of(format, amax[b], work->tensor_scale, work->args->power_of_two);
            factors[b] = scale.factor;
            ((uint32_t *)scales)[b] = scale.code;
        }
}

static int streams(const mo_item_work *work, const mo_block_strip *strip)
{
    return work->args->streaming && (uintptr_t)strip->codes % 64 == 0;
}

/* A form's shorter way for one row, or NULL. */
static mo_bf16_function short_way(const mo_item_work *work)
{
    const mo_blocks_segment *s = work->segment;
    return s->format > MO_BLOCKS_NVFP4 || s->dtype != MO_DTYPE_BF16 || work->args->stochastic
               ? NULL
               : work->form->bf16[s->format];
}

/* Goes on from the strips' element `done`, which begins a block. */
static void skip(const mo_item_work *work, mo_strip_rows *all, uint64_t done)
{
    const mo_blocks_segment *s = work->segment;
    all->strip.values += done * mo_element_size(s->dtype);
    all->strip.codes += mo_blocks_code_bytes(s->format, done);
    all->strip.number += done;
    all->strip.count -= done;
    all->scales += (done >> work->width_bits) * mo_blocks_scale_size(s->format);
}

/* Returns how many elements it has done. */
static uint64_t quantize_bf16(mo_item_work *work, const mo_strip_rows *all)
{
    mo_block_strip strip = all->strip;
    if (short_way(work) == NULL)
        return 0;
    strip.streaming &= streams(work, &strip);
    work->streamed |= strip.streaming;
    return short_way(work)(&strip, all->scales, &work->amax);
}

static void measure(mo_item_work *work, const mo_strip_rows *all, uint32_t *amax, uint64_t blocks)
{
    const mo_blocks_segment *s = work->segment;
    _Alignas(64) unsigned char columns[4 * MO_STRIP_ELEMENTS];
    mo_block_strip strip = all->strip;
    memset(amax, 0, blocks * sizeof *amax);
    if (all->rows > 1) {
        work->form->fold[mo_element_size(s->dtype) == 4](strip.values, all->value_step, all->rows,
                                                         strip.count, columns);
        strip.values = columns;
    }
    work->form->amax[s->dtype](&strip, 0, amax);
    for (uint64_t b = 0; b < blocks && s->amax != NULL; b++)
        work->amax = amax[b] > work->amax ? amax[b] : work->amax;
}

/* The borders of the blocks of bf16 that have a scale of f32. Returns 0 if the form wants none, a
 * scale is not finite, or the strip is too short to gain by them. */
static int find_borders(mo_item_work *work, const uint32_t *amax, const float *factors,
                        uint64_t blocks, uint64_t rows, mo_e4m3_scale *scales)
{
    const mo_blocks_segment *s = work->segment;
    const int other = mo_blocks_is_tensor(s->format) || work->args->power_of_two;
    if (blocks * rows < 4 || work->e4m3->refused || s->dtype != MO_DTYPE_BF16 ||
        work->args->stochastic || work->form->e4m3 == NULL || s->format < MO_BLOCKS_E4M3_1X128 ||
        s->format > MO_BLOCKS_E4M3_TENSOR)
        return 0;
    for (uint64_t b = 0; b < blocks; b++) {
        if (factors[b] == 0.0f)
            return 0;
        const uint32_t least = mo_f32_bits(MO_BLOCKS_LEAST);
        const uint32_t most = other ? 0 : amax[b];
        const uint32_t mantissa = most < least ? 0 : most >> 16 & 0x7f;
        scales[b] = mo_e4m3_scale_of(work->e4m3, other ? MO_E4M3_ANY : mantissa, factors[b]);
    }
    return 1;
}

/* Returns how many elements of each row are done. */
static uint64_t by_borders(mo_item_work *work, const mo_strip_rows *all,
                           const mo_block_strip *strip)
{
    const int tensor = mo_blocks_is_tensor(work->segment->format);
    mo_strip_rows rows = *all;
    rows.strip = *strip;
    rows.strip.streaming &= streams(work, strip) && (all->rows == 1 || all->code_step % 64 == 0);
    work->streamed |= rows.strip.streaming;
    const uint64_t done = work->form->e4m3(&rows, tensor);
    work->e4m3->refused |= tensor && strip->count - done >= 128;
    return done;
}

/* Scales and codes of the blocks of some rows, no more than a block has. */
static void strip_rows_quantize(mo_item_work *work, const mo_strip_rows *rows)
{
    const mo_blocks_segment *s = work->segment;
    mo_strip_rows all = *rows;
    uint32_t amax[MO_STRIP_BLOCKS];
    float factors[MO_STRIP_BLOCKS];
    mo_e4m3_scale e4m3[MO_STRIP_ELEMENTS / 128];
    uint64_t done = quantize_bf16(work, &all);
    if (done == all.strip.count)
        return;
    skip(work, &all, done);
    uint64_t blocks = mo_blocks_of(all.strip.count, work->width_bits);
    if (!work->known || s->amax != NULL)
        measure(work, &all, amax, blocks);
    if (work->known)
        for (uint64_t b = 0; b < blocks; b++)
            factors[b] = work->whole.factor;
    else
        put_scales(work, amax, blocks, all.scales, factors);
    mo_block_strip strip = all.strip;
    strip.factors = factors;
    strip.e4m3 = e4m3;
    const int borders = find_borders(work, amax, factors, blocks, all.rows, e4m3);
    done = borders ? by_borders(work, &all, &strip) : 0;
    for (uint64_t r = 0; r < all.rows && done < strip.count; r++, next_row(&all, &strip)) {
        strip.streaming = all.strip.streaming && streams(work, &strip);
        work->form->quantize[work->args->stochastic][mo_blocks_codes(s->format)][s->dtype](&strip,
                                                                                           done);
        work->streamed |= strip.streaming;
    }
}

/* One band: `rows` rows of a block's height or fewer, `count` columns. */
static void quantize_band(mo_item_work *work, uint64_t row, uint64_t rows, uint64_t column,
                          uint64_t count)
{
    mo_strip_rows all = strip_rows_of(work, row, rows, column, count);
    all.strip.streaming = work->args->streaming;
    if (work->args->streaming && work->height > 1)
        all.strip.ahead = count * mo_element_size(work->segment->dtype); /* the tiles beside */
    else if (work->args->streaming)
        all.strip.ahead = short_way(work) != NULL /* else the next strip, with this one's codes */
                              ? 4096
                              : MO_STRIP_ELEMENTS * mo_element_size(work->segment->dtype);
    strip_rows_quantize(work, &all);
}

enum { SCALES_AHEAD = 1024 }; /* those of the next strips */

/* Returns how many elements it has done. */
static uint64_t dequantize_e2m1(mo_item_work *work, const mo_strip_rows *all)
{
    const mo_blocks_segment *s = work->segment;
    mo_block_strip strip = all->strip;
    if (mo_blocks_codes(s->format) != MO_CODES_E2M1 || s->dtype == MO_DTYPE_F32 ||
        work->form->e2m1 == NULL)
        return 0;
    const uint8_t *scales = all->scales, *known = work->e2m1->known;
    const uint64_t blocks = mo_blocks_of(strip.count, work->width_bits);
    if (work->args->streaming)
        mo_prefetch(scales + SCALES_AHEAD, blocks);
    for (uint64_t b = 0; b < blocks; b++)
        if (!known[scales[b]])
            mo_e2m1_know(work, scales[b]);
    strip.e2m1 = work->e2m1->of;
    work->streamed |= strip.streaming;
    return work->form->e2m1(&strip, all->scales);
}

static void dequantize_band(mo_item_work *work, uint64_t row, uint64_t rows, uint64_t column,
                            uint64_t count)
{
    const mo_blocks_segment *s = work->segment;
    float factors[MO_STRIP_BLOCKS];
    mo_strip_rows all = strip_rows_of(work, row, rows, column, count);
    all.strip.ahead = work->args->streaming ? 4096 : 0;
    all.strip.streaming = work->args->streaming && (uintptr_t)all.strip.values % 64 == 0;
    skip(work, &all, dequantize_e2m1(work, &all));
    if (all.strip.count == 0)
        return;
    for (uint64_t b = 0; b < mo_blocks_of(all.strip.count, work->width_bits); b++) {
        const void *scale = mo_blocks_is_tensor(s->format)
                                ? s->scales
                                : all.scales + b * mo_blocks_scale_size(s->format);
        uint32_t code = mo_blocks_scale_size(s->format) == 1 ? *(const uint8_t *)scale
                                                             : *(const uint32_t *)scale;
        factors[b] = mo_blocks_factor(s->format, code, work->tensor_scale);
    }
    mo_block_strip strip = all.strip;
    strip.factors = factors;
    for (uint64_t r = 0; r < rows; r++, next_row(&all, &strip)) {
        strip.streaming = work->args->streaming && (uintptr_t)strip.values % 64 == 0;
        work->form->dequantize[mo_blocks_codes(s->format)][s->dtype](&strip, 0);
        work->streamed |= strip.streaming;
    }
}

typedef void (*band_function)(mo_item_work *work, uint64_t row, uint64_t rows, uint64_t column,
                              uint64_t count);

/* Tiles side by side that are done together, in the second cache. */
enum { TILES_TOGETHER = 4 };

/* Returns how many items it has done. */
static uint64_t run_items(mo_item_work *work, uint64_t begin, uint64_t end, band_function band)
{
    const mo_blocks_segment *s = work->segment;
    mo_blocks_item item = mo_blocks_item_at(s, begin, begin / s->items_across);
    uint64_t count = 1;
    while (work->height > 1 && count < TILES_TOGETHER && begin + count < end &&
           (begin + count) % s->items_across != 0)
        item.columns += mo_blocks_item_at(s, begin + count++, begin / s->items_across).columns;
    for (uint64_t r = 0; r < item.rows; r += work->height)
        for (uint64_t c = 0; c < item.columns; c += MO_STRIP_ELEMENTS) {
            uint64_t rows = item.rows - r, columns = item.columns - c;
            band(work, item.row + r, rows < work->height ? rows : work->height, item.column + c,
                 columns < MO_STRIP_ELEMENTS ? columns : MO_STRIP_ELEMENTS);
        }
    return count;
}

static uint64_t quantize_items(mo_item_work *work, uint64_t begin, uint64_t end)
{
    if (begin == 0 && mo_blocks_is_tensor(work->segment->format))
        *(uint32_t *)work->segment->scales = work->whole.code;
    return run_items(work, begin, end, quantize_band);
}

static uint64_t dequantize_items(mo_item_work *work, uint64_t begin, uint64_t end)
{
    return run_items(work, begin, end, dequantize_band);
}

static mo_item_work work_of(const mo_blocks_args *args, const mo_blocks_segment *segment,
                            const mo_blocks_form *form)
{
    mo_item_work work = {.args = args,
                         .segment = segment,
                         .form = form,
                         .width_bits = mo_blocks_width_bits(segment->format),
                         .height = mo_blocks_height(segment->format),
                         .known = mo_blocks_is_tensor(segment->format)};
    work.across = mo_blocks_of(segment->columns, work.width_bits);
    if (work.known)
        work.whole =
            mo_blocks_whole_scale(segment->format, segment->tensor_amax, args->power_of_two);
    else
        work.tensor_scale = mo_blocks_tensor_number(segment->format, segment->tensor_amax);
    if (args->stochastic)
        work.stream = mo_random_stream_of(args->seed, args->sequence, segment->tensor);
    return work;
}

/* Runs items [begin, end) of a segment; returns how many of them it has done. */
typedef uint64_t (*items_function)(mo_item_work *work, uint64_t begin, uint64_t end);

static int run_segments(const mo_blocks_args *args, uint64_t begin, uint64_t end,
                        const mo_blocks_form *form, items_function items)
{
    const mo_blocks_segment *segments = args->segments;
    int streamed = 0;
    mo_nvfp4_tables nvfp4;
    mo_e2m1_tables e2m1;
    mo_e4m3_tables e4m3;
    while (begin < end) {
        uint32_t s =
            mo_chunk_segment(&segments[0].first_item, sizeof *segments, args->count, begin);
        uint64_t last = s + 1 < args->count ? segments[s + 1].first_item : end;
        uint64_t first = segments[s].first_item;
        mo_item_work work = work_of(args, &segments[s], form);
        work.nvfp4 = &nvfp4;
        nvfp4.tensor_scale = work.tensor_scale;
        nvfp4.first = 1;
        nvfp4.last = 0;
        work.e2m1 = &e2m1;
        memset(e2m1.known, 0, sizeof e2m1.known);
        work.e4m3 = &e4m3;
        memset(e4m3.known, 0, sizeof e4m3.known);
        e4m3.refused = 0;
        for (last = last < end ? last : end; begin < last;)
            begin += items(&work, begin - first, last - first);
        if (segments[s].amax != NULL)
            mo_cell_raise(segments[s].amax,
                          work.amax > MO_F32_INF_BITS ? MO_F32_NAN_BITS : work.amax);
        streamed |= work.streamed;
    }
    return streamed;
}

int mo_blocks_quantize_run(const mo_blocks_args *args, uint64_t begin, uint64_t end,
                           const mo_blocks_form *form)
{
    return run_segments(args, begin, end, form, quantize_items);
}

int mo_blocks_dequantize_run(const mo_blocks_args *args, uint64_t begin, uint64_t end,
                             const mo_blocks_form *form)
{
    return run_segments(args, begin, end, form, dequantize_items);
}

void mo_blocks_quantize_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_blocks_quantize_run(args, begin, end, &mo_blocks_scalar_form);
}

void mo_blocks_dequantize_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_blocks_dequantize_run(args, begin, end, &mo_blocks_scalar_form);
}
