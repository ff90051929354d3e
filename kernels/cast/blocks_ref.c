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
    if (kind != MO_CODES_E2M1)
        codes[i] = (unsigned char)code;
    else if (i % 2 == 0)
        codes[i / 2] = (unsigned char)code; /* of a row's last odd element the upper half is 0 */
    else
        codes[i / 2] = (unsigned char)(codes[i / 2] | code << 4);
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
    for (uint64_t i = start; i < s->count; i++) {
        uint32_t code =
            kind == MO_CODES_E2M1 ? (uint32_t)(s->codes[i / 2] >> i % 2 * 4 & 0xf) : s->codes[i];
        mo_store_element(s->values, i, dtype,
                         mo_blocks_value(kind, code, s->factors[i >> s->shift]));
    }
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

const mo_blocks_form mo_blocks_scalar_form = MO_BLOCKS_FORM(0);

/* --- NVFP4 of bf16 --------------------------------------------------------------------------- */

static uint32_t nvfp4_code(uint32_t magnitude, float factor)
{
    return mo_blocks_code(MO_CODES_E2M1, mo_bf16_to_f32((uint16_t)magnitude), factor, 0, 0);
}

/* Close to the quotient first, then step by step. */
void mo_nvfp4_borders(mo_nvfp4_tables *tables, uint32_t code)
{
    static const float borders[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    const uint32_t finite = code != 0 && code != 0x7f;
    float factor = finite ? 1.0f / tables->tensor_scale / mo_e4m3_to_f32((uint8_t)code) : 0.0f;
    for (uint32_t k = 0; k < 7; k++) {
        uint32_t first = finite ? mo_f32_bits(borders[k] / factor) >> 16 : 0x7f80;
        first = first > 0x7fff ? 0x7fff : first;
        while (first > 0 && nvfp4_code(first - 1, factor) > k)
            first--;
        while (first < 0x8000 && nvfp4_code(first, factor) <= k)
            first++;
        tables->border[code][k] = (int32_t)((first - 1) * 0x10001u);
    }
    tables->known[code] = 1;
}

/* --- items ----------------------------------------------------------------------------------- */

/* What the strips of an item have in common. */
typedef struct item_work {
    const mo_blocks_args *args;
    const mo_blocks_segment *segment;
    const mo_blocks_form *form;
    float tensor_scale;
    mo_nvfp4_tables *nvfp4;
    uint32_t width_bits, height, amax;
    uint64_t across; /* blocks of a row of the matrix */
    mo_random_stream stream;
    int streamed;
} item_work;

static mo_block_strip strip_at(item_work *work, uint64_t row, uint64_t column, uint64_t count,
                               const float *factors)
{
    const mo_blocks_segment *s = work->segment;
    mo_block_strip strip;
    strip.values =
        (unsigned char *)s->values + (row * s->columns + column) * mo_element_size(s->dtype);
    strip.codes = (unsigned char *)s->codes + row * mo_blocks_code_bytes(s->format, s->columns) +
                  mo_blocks_code_bytes(s->format, column);
    strip.factors = factors;
    strip.count = count;
    strip.number = mo_blocks_number(row, column, s->columns);
    strip.shift = work->width_bits;
    strip.streaming = 0;
    strip.ahead = 0;
    strip.stream = work->stream;
    strip.nvfp4 = work->nvfp4;
    return strip;
}

/* The same columns of the row below. */
static void next_row(const item_work *work, mo_block_strip *strip)
{
    const mo_blocks_segment *s = work->segment;
    strip->values += s->columns * mo_element_size(s->dtype);
    strip->codes += mo_blocks_code_bytes(s->format, s->columns);
    strip->number += mo_blocks_number(1, 0, s->columns);
}

/* Writes the scales of a band of blocks. */
static void put_scales(item_work *work, const uint32_t *amax, uint64_t count, uint64_t at,
                       float *factors)
{
    const mo_blocks_segment *s = work->segment;
    if (s->format == MO_BLOCKS_NVFP4)
        work->form->nvfp4(amax, count, work->tensor_scale, (uint8_t *)s->scales + at, factors);
    else if (mo_blocks_scale_size(s->format) == 1)
        work->form->e8m0(amax, count, mo_blocks_emax(s->format), (uint8_t *)s->scales + at,
                         factors);
    else
        for (uint64_t b = 0; b < count; b++) {
            mo_blocks_scale scale = mo_f32_scale(amax[b], work->args->power_of_two);
            factors[b] = scale.factor;
            ((uint32_t *)s->scales)[at + b] = scale.code;
        }
}

enum { ROWS_AHEAD = 8 };

/* What a form has a shorter way for, of a part of one row. Returns how many elements it has done.
 */
static uint64_t quantize_bf16(item_work *work, uint64_t row, uint64_t column, uint64_t count)
{
    const mo_blocks_segment *s = work->segment;
    if (s->format > MO_BLOCKS_NVFP4 || s->dtype != MO_DTYPE_BF16 || work->args->stochastic ||
        work->form->bf16[s->format] == NULL)
        return 0;
    mo_block_strip strip = strip_at(work, row, column, count, NULL);
    strip.streaming = work->args->streaming && (uintptr_t)strip.codes % 64 == 0;
    strip.ahead = work->args->streaming ? 4096 : 0;
    work->streamed |= strip.streaming;
    return work->form->bf16[s->format](
        &strip, (uint8_t *)s->scales + row * work->across + (column >> work->width_bits),
        &work->amax);
}

/* One band: `rows` rows of a block's height or fewer, `count` columns. */
static void quantize_band(item_work *work, uint64_t row, uint64_t rows, uint64_t column,
                          uint64_t count)
{
    const mo_blocks_segment *s = work->segment;
    uint64_t done = quantize_bf16(work, row, column, count);
    if (done == count)
        return;
    column += done;
    count -= done;
    uint32_t amax[MO_STRIP_BLOCKS];
    float factors[MO_STRIP_BLOCKS];
    uint64_t blocks = mo_blocks_of(count, work->width_bits);
    memset(amax, 0, blocks * sizeof *amax);
    const mo_block_strip first = strip_at(work, row, column, count, factors);
    mo_block_strip strip = first;
    for (uint64_t r = 0; r < rows; r++, next_row(work, &strip)) {
        if (work->height > 1) /* a new page each row: the processor does not foresee them */
            mo_prefetch(strip.values + ROWS_AHEAD * s->columns * mo_element_size(s->dtype),
                        count * mo_element_size(s->dtype));
        work->form->amax[s->dtype](&strip, 0, amax);
    }
    for (uint64_t b = 0; b < blocks && s->amax != NULL; b++)
        work->amax = amax[b] > work->amax ? amax[b] : work->amax;
    put_scales(work, amax, blocks, row / work->height * work->across + (column >> work->width_bits),
               factors);
    uint32_t kind = mo_blocks_codes(s->format);
    strip = first;
    if (work->args->streaming &&
        work->height == 1) /* the next strip, while this one's codes are made */
        strip.ahead = MO_STRIP_ELEMENTS * mo_element_size(s->dtype);
    for (uint64_t r = 0; r < rows; r++, next_row(work, &strip)) {
        strip.streaming = work->args->streaming && (uintptr_t)strip.codes % 64 == 0;
        work->form->quantize[work->args->stochastic][kind][s->dtype](&strip, 0);
        work->streamed |= strip.streaming;
    }
}

static void dequantize_band(item_work *work, uint64_t row, uint64_t rows, uint64_t column,
                            uint64_t count)
{
    const mo_blocks_segment *s = work->segment;
    float factors[MO_STRIP_BLOCKS];
    uint64_t blocks = mo_blocks_of(count, work->width_bits);
    uint64_t at = row / work->height * work->across + (column >> work->width_bits);
    for (uint64_t b = 0; b < blocks; b++) {
        uint32_t code = mo_blocks_scale_size(s->format) == 1
                            ? ((const uint8_t *)s->scales)[at + b]
                            : ((const uint32_t *)s->scales)[at + b];
        factors[b] = mo_blocks_factor(s->format, code, work->tensor_scale);
    }
    mo_block_strip strip = strip_at(work, row, column, count, factors);
    strip.ahead = work->args->streaming ? 4096 : 0;
    for (uint64_t r = 0; r < rows; r++, next_row(work, &strip)) {
        strip.streaming = work->args->streaming && (uintptr_t)strip.values % 64 == 0;
        work->form->dequantize[mo_blocks_codes(s->format)][s->dtype](&strip, 0);
        work->streamed |= strip.streaming;
    }
}

typedef void (*band_function)(item_work *work, uint64_t row, uint64_t rows, uint64_t column,
                              uint64_t count);

static void run_item(item_work *work, const mo_blocks_item *item, band_function band)
{
    for (uint64_t r = 0; r < item->rows; r += work->height)
        for (uint64_t c = 0; c < item->columns; c += MO_STRIP_ELEMENTS) {
            uint64_t rows = item->rows - r, columns = item->columns - c;
            band(work, item->row + r, rows < work->height ? rows : work->height, item->column + c,
                 columns < MO_STRIP_ELEMENTS ? columns : MO_STRIP_ELEMENTS);
        }
}

static item_work work_of(const mo_blocks_args *args, const mo_blocks_segment *segment,
                         const mo_blocks_form *form)
{
    item_work work = {.args = args,
                      .segment = segment,
                      .form = form,
                      .tensor_scale = mo_nvfp4_tensor_scale(segment->tensor_amax),
                      .width_bits = mo_blocks_width_bits(segment->format),
                      .height = mo_blocks_height(segment->format)};
    work.across = mo_blocks_of(segment->columns, work.width_bits);
    if (args->stochastic)
        work.stream = mo_random_stream_of(args->seed, args->sequence, segment->tensor);
    return work;
}

static int run(const mo_blocks_args *args, uint64_t begin, uint64_t end, const mo_blocks_form *form,
               band_function band)
{
    const mo_blocks_segment *segments = args->segments;
    int streamed = 0;
    mo_nvfp4_tables nvfp4;
    while (begin < end) {
        uint32_t s =
            mo_chunk_segment(&segments[0].first_item, sizeof *segments, args->count, begin);
        uint64_t last = s + 1 < args->count ? segments[s + 1].first_item : end;
        item_work work = work_of(args, &segments[s], form);
        work.nvfp4 = &nvfp4;
        nvfp4.tensor_scale = work.tensor_scale;
        memset(nvfp4.known, 0, sizeof nvfp4.known);
        for (last = last < end ? last : end; begin < last; begin++) {
            uint64_t number = begin - segments[s].first_item;
            mo_blocks_item item =
                mo_blocks_item_at(&segments[s], number, number / segments[s].items_across);
            run_item(&work, &item, band);
        }
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
    return run(args, begin, end, form, quantize_band);
}

int mo_blocks_dequantize_run(const mo_blocks_args *args, uint64_t begin, uint64_t end,
                             const mo_blocks_form *form)
{
    return run(args, begin, end, form, dequantize_band);
}

void mo_blocks_quantize_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_blocks_quantize_run(args, begin, end, &mo_blocks_scalar_form);
}

void mo_blocks_dequantize_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_blocks_dequantize_run(args, begin, end, &mo_blocks_scalar_form);
}
