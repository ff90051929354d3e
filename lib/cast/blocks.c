/* memopt_blocks_*: sizes and checks of block-scaled matrices, then the items of all of them in as
 * few launches as their descriptions fill. */
#include "kernels/cast/blocks.h"

#include "base/checked.h"
#include "base/memory.h"
#include "base/options.h"
#include "cast/tensors.h"
#include "device/device.h"
#include "memopt/cast.h"

#include <inttypes.h>
#include <stdio.h>

_Static_assert((int)MO_BLOCKS_MXFP8_E4M3 == (int)MEMOPT_BLOCKS_MXFP8_E4M3 &&
                   (int)MO_BLOCKS_MXFP8_E5M2 == (int)MEMOPT_BLOCKS_MXFP8_E5M2 &&
                   (int)MO_BLOCKS_MXFP4 == (int)MEMOPT_BLOCKS_MXFP4 &&
                   (int)MO_BLOCKS_NVFP4 == (int)MEMOPT_BLOCKS_NVFP4 &&
                   (int)MO_BLOCKS_E4M3_1X128 == (int)MEMOPT_BLOCKS_E4M3_1X128 &&
                   (int)MO_BLOCKS_E4M3_128X128 == (int)MEMOPT_BLOCKS_E4M3_128X128 &&
                   (int)MO_BLOCKS_E4M3_TENSOR == (int)MEMOPT_BLOCKS_E4M3_TENSOR &&
                   (int)MO_BLOCKS_E5M2_TENSOR == (int)MEMOPT_BLOCKS_E5M2_TENSOR &&
                   (int)MO_BLOCKS_NF4_32 == (int)MEMOPT_BLOCKS_NF4_32 &&
                   (int)MO_BLOCKS_NF4_4096 == (int)MEMOPT_BLOCKS_NF4_4096 &&
                   (int)MO_BLOCKS_DYNAMIC8 == (int)MEMOPT_BLOCKS_DYNAMIC8,
               "kernels use the values of memopt_block_format");

/* --- sizes ----------------------------------------------------------------------------------- */

static memopt_status find_layout(const char *subject, uint64_t index, memopt_block_format format,
                                 uint64_t rows, uint64_t columns, memopt_blocks_layout *layout)
{
    uint64_t elements, bytes;
    if (format < MEMOPT_BLOCKS_MXFP8_E4M3 || format > MO_BLOCKS_LAST)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s[%" PRIu64 "]: format %" PRIu32 " is not a memopt_block_format (1 to %d)",
                       subject, index, format, MO_BLOCKS_LAST);
    /* The largest scales: 4 bytes for each row of one column. */
    if (!mo_mul_u64(rows, columns, &elements) || !mo_mul_u64(elements, 4, &bytes))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s[%" PRIu64 "]: %" PRIu64 " rows of %" PRIu64
                       " columns do not fit the address space",
                       subject, index, rows, columns);
    layout->block_rows = mo_blocks_height(format);
    layout->block_columns = mo_blocks_width(format);
    layout->code_bits = mo_codes_are_pairs(mo_blocks_codes(format)) ? 4 : 8;
    layout->code_row_bytes = mo_blocks_code_bytes(format, columns);
    layout->code_bytes = rows * layout->code_row_bytes;
    layout->scale_size = mo_blocks_scale_size(format);
    layout->scale_rows = mo_blocks_of(rows, mo_blocks_height_bits(format));
    layout->scale_columns = mo_blocks_of(columns, mo_blocks_width_bits(format));
    if (mo_blocks_is_tensor(format)) {
        layout->block_rows = rows;
        layout->block_columns = columns;
        layout->scale_rows = rows != 0;
        layout->scale_columns = columns != 0;
    }
    layout->scale_bytes = layout->scale_rows * layout->scale_columns * layout->scale_size;
    return MEMOPT_OK;
}

memopt_status memopt_blocks_get_layout(memopt_block_format format, uint64_t rows, uint64_t columns,
                                       memopt_blocks_layout *out_layout)
{
    memopt_blocks_layout layout = MEMOPT_BLOCKS_LAYOUT_INIT;
    MO_TRY(find_layout("blocks_get_layout", 0, format, rows, columns, &layout));
    return mo_result_write(out_layout, &layout, sizeof layout, "memopt_blocks_layout");
}

/* --- checks ---------------------------------------------------------------------------------- */

/* What a call works on. */
typedef struct blocks_call {
    memopt_device *device;
    const char *verb;
    const memopt_blocks *blocks;
    const memopt_tensor *values;
    uint64_t count;
    const mo_kernel *kernel;
    int quantize; /* blocks are written, else values are */
    int stochastic;
    float *amax;
    memopt_stream stream;
} blocks_call;

/* Address, alignment and size of one of a matrix's pieces of memory. */
static memopt_status check_piece(const char *subject, uint64_t index, const char *name,
                                 const void *data, uint64_t bytes, uint64_t unit)
{
    uint64_t end;
    if (bytes != 0 && data == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s[%" PRIu64 "]: %s is NULL but has %" PRIu64 " bytes", subject, index,
                       name, bytes);
    if ((uintptr_t)data % unit != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s[%" PRIu64 "]: %s: %p is not aligned to %" PRIu64 " bytes", subject,
                       index, name, data, unit);
    if (!mo_add_u64((uintptr_t)data, bytes, &end))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s[%" PRIu64 "]: %s: %" PRIu64 " bytes at %p do not fit the address space",
                       subject, index, name, bytes, data);
    return MEMOPT_OK;
}

static memopt_status check_matrix(const char *subject, uint64_t i, const memopt_blocks *blocks)
{
    memopt_blocks_layout layout;
    MO_TRY(find_layout(subject, i, blocks->format, blocks->rows, blocks->columns, &layout));
    MO_TRY(check_piece(subject, i, "codes", blocks->codes, layout.code_bytes, 1));
    MO_TRY(
        check_piece(subject, i, "scales", blocks->scales, layout.scale_bytes, layout.scale_size));
    if (blocks->tensor_amax == NULL)
        return MEMOPT_OK;
    if (blocks->format != MEMOPT_BLOCKS_NVFP4 && !mo_blocks_is_tensor(blocks->format) &&
        mo_blocks_codes(blocks->format) != MO_CODES_NF4)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s[%" PRIu64 "]: tensor_amax is given, but format %" PRIu32
                       " has no number of the tensor; it is for NVFP4 (4), one scale (7, 8) and"
                       " NF4 (9 to 16)",
                       subject, i, blocks->format);
    return check_piece(subject, i, "tensor_amax", blocks->tensor_amax, 4, 4);
}

/* Every list there must be is there. */
static memopt_status check_call(const blocks_call *call, const char *blocks, const char *values)
{
    if (call->device == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: device is NULL", call->verb);
    if (call->count > UINT32_MAX)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: %" PRIu64 " matrices; a call takes at most 2^32 - 1", call->verb,
                       call->count);
    if (call->count == 0)
        return MEMOPT_OK;
    if (call->blocks == NULL || call->values == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s is NULL",
                       call->values == NULL ? values : blocks);
    return MEMOPT_OK;
}

static memopt_status check_lists(const blocks_call *call)
{
    char blocks[64], values[64];
    const char *into = "destinations", *from = "sources";
    snprintf(blocks, sizeof blocks, "%s: %s", call->verb, call->quantize ? into : from);
    snprintf(values, sizeof values, "%s: %s", call->verb, call->quantize ? from : into);
    memopt_status status = check_call(call, blocks, values);
    for (uint64_t i = 0; i < call->count && status == MEMOPT_OK; i++) {
        const memopt_blocks *b = &call->blocks[i];
        status = mo_tensor_check(values, i, &call->values[i], mo_dtype_is_gradient);
        if (status == MEMOPT_OK)
            status = check_matrix(blocks, i, b);
        if (status == MEMOPT_OK && call->stochastic &&
            mo_codes_are_mapped(mo_blocks_codes(b->format)))
            status = mo_fail(MEMOPT_INVALID_ARGUMENT,
                             "%s[%" PRIu64 "]: format %" PRIu32
                             " rounds to nearest alone; rounding is stochastic",
                             blocks, i, b->format);
        if (status == MEMOPT_OK && call->values[i].count != b->rows * b->columns)
            status = mo_fail(MEMOPT_INVALID_ARGUMENT,
                             "%s[%" PRIu64 "] has %" PRIu64 " elements; %" PRIu64
                             " rows of %" PRIu64 " columns have %" PRIu64,
                             values, i, call->values[i].count, b->rows, b->columns,
                             b->rows * b->columns);
    }
    return status;
}

/* --- memory ---------------------------------------------------------------------------------- */

enum { PIECES = 4 }; /* values, tensor_amax, codes and scales */

static uint64_t add_piece(mo_tensor_range *ranges, uint64_t used, const void *data, uint64_t bytes,
                          uint64_t index, int written)
{
    uintptr_t begin = (uintptr_t)data;
    if (bytes == 0)
        return used;
    ranges[used] = (mo_tensor_range){begin, begin + bytes, index, written};
    return used + 1;
}

static uint64_t add_matrix(mo_tensor_range *ranges, uint64_t used, const memopt_blocks *b,
                           uint64_t index, int written)
{
    memopt_blocks_layout layout;
    (void)find_layout("blocks", index, b->format, b->rows, b->columns, &layout);
    used = add_piece(ranges, used, b->codes, layout.code_bytes, index, written);
    return add_piece(ranges, used, b->scales, layout.scale_bytes, index, written);
}

static uint64_t list_pieces(const blocks_call *call, mo_tensor_range *ranges)
{
    uint64_t used = 0;
    for (uint64_t i = 0; i < call->count; i++) {
        const memopt_blocks *b = &call->blocks[i];
        const memopt_tensor *v = &call->values[i];
        used = add_piece(ranges, used, v->data, v->count * memopt_dtype_size(v->dtype), i,
                         !call->quantize);
        used = add_piece(ranges, used, b->tensor_amax, b->tensor_amax == NULL ? 0 : 4, i, 0);
        used = add_matrix(ranges, used, b, i, call->quantize);
    }
    return add_piece(ranges, used, call->amax, call->amax == NULL ? 0 : 4 * call->count,
                     call->count, 1);
}

/* No piece that is written overlaps another; the device can reach all of them. The finder of races
 * hears of them: the launches follow. */
static memopt_status check_memory(const blocks_call *call)
{
    mo_tensor_range *ranges = mo_malloc((PIECES * call->count + 1) * sizeof *ranges);
    if (ranges == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    uint64_t used = list_pieces(call, ranges);
    memopt_status status = mo_tensor_ranges_check(call->verb, ranges, used);
    for (uint64_t r = 0; r < used && status == MEMOPT_OK; r++)
        status = mo_reachable(call->device, call->verb, ranges[r].index,
                              (const void *)ranges[r].begin, ranges[r].end - ranges[r].begin);
    for (uint64_t r = 0; r < used && status == MEMOPT_OK; r++)
        (ranges[r].written ? mo_writes : mo_reads)(call->device, call->stream, call->verb,
                                                   (const void *)ranges[r].begin,
                                                   ranges[r].end - ranges[r].begin);
    mo_free(ranges);
    return status;
}

/* --- launches -------------------------------------------------------------------------------- */

/* Cuts a matrix into items. Where each row ends with a block, and the random bits allow it, all
 * rows are one. */
static uint64_t cut(mo_blocks_segment *s, int stochastic)
{
    uint64_t unit = stochastic ? (uint64_t)MO_BLOCKS_PITCH : mo_blocks_width(s->format);
    if (mo_blocks_height(s->format) == 1 && s->columns % unit == 0) {
        s->columns *= s->rows;
        s->rows = 1;
    }
    if (mo_blocks_is_item(s->format)) {
        s->item_rows = mo_blocks_height(s->format);
        s->item_columns = mo_blocks_width(s->format);
    } else {
        s->item_columns = (uint32_t)mo_min_u64(s->columns, MO_CHUNK_ELEMENTS);
        s->item_rows = MO_CHUNK_ELEMENTS / s->item_columns;
    }
    s->items_across = mo_ceil_div_u64(s->columns, s->item_columns);
    return mo_ceil_div_u64(s->rows, s->item_rows) * s->items_across;
}

static mo_blocks_segment segment_of(const blocks_call *call, uint64_t i)
{
    const memopt_blocks *b = &call->blocks[i];
    return (mo_blocks_segment){.values = call->values[i].data,
                               .codes = b->codes,
                               .scales = b->scales,
                               .tensor_amax = b->tensor_amax,
                               .amax = call->amax ? (uint32_t *)&call->amax[i] : NULL,
                               .rows = b->rows,
                               .columns = b->columns,
                               .tensor = (uint32_t)i,
                               .dtype = (uint16_t)call->values[i].dtype,
                               .format = (uint16_t)b->format};
}

static memopt_status launch(const blocks_call *call, mo_blocks_args *args)
{
    uint64_t items = 0;
    memopt_status status = MEMOPT_OK;
    for (uint64_t i = 0; i < call->count && status == MEMOPT_OK; i++) {
        if (call->values[i].count != 0) {
            mo_blocks_segment *s = &args->segments[args->count++];
            *s = segment_of(call, i);
            s->first_item = items;
            items += cut(s, args->stochastic);
        }
        if (args->count == MO_BLOCKS_SEGMENTS || (i + 1 == call->count && args->count != 0)) {
            status = mo_launch(call->device, call->stream, call->kernel, args, items);
            args->count = 0;
            items = 0;
        }
    }
    return status;
}

static memopt_status read_options(const char *verb, memopt_blocks_options *copy,
                                  const memopt_blocks_options *options)
{
    MO_TRY(mo_options_read(copy, sizeof *copy, options, "memopt_blocks_options"));
    if (copy->rounding > MEMOPT_ROUND_STOCHASTIC)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: rounding %" PRIu32 " is not a memopt_rounding (0 or 1)", verb,
                       copy->rounding);
    if (copy->power_of_two > 1)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: power_of_two is %" PRIu32 "; it is 0 or 1",
                       verb, copy->power_of_two);
    if ((uintptr_t)copy->amax % sizeof(float) != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: amax: %p is not aligned to 4 bytes", verb,
                       (void *)copy->amax);
    return MEMOPT_OK;
}

memopt_status memopt_blocks_quantize(memopt_device *device, const memopt_blocks *destinations,
                                     const memopt_tensor *sources, uint64_t count,
                                     const memopt_blocks_options *options, memopt_stream stream)
{
    blocks_call call = {.device = device,
                        .verb = "blocks_quantize",
                        .blocks = destinations,
                        .values = sources,
                        .count = count,
                        .kernel = &mo_kernel_blocks_quantize,
                        .quantize = 1,
                        .stream = stream};
    memopt_blocks_options how;
    MO_TRY(read_options(call.verb, &how, options));
    call.amax = how.amax;
    call.stochastic = how.rounding == MEMOPT_ROUND_STOCHASTIC;
    memopt_status status = check_lists(&call);
    if (status == MEMOPT_OK && count != 0)
        status = check_memory(&call);
    if (status != MEMOPT_OK || count == 0)
        return status;
    mo_blocks_args args = {.seed = how.seed,
                           .sequence = how.sequence,
                           .stochastic = (uint8_t)call.stochastic,
                           .power_of_two = (uint8_t)how.power_of_two,
                           .streaming = mo_tensors_streaming(sources, count)};
    return launch(&call, &args);
}

memopt_status memopt_blocks_dequantize(memopt_device *device, const memopt_tensor *destinations,
                                       const memopt_blocks *sources, uint64_t count,
                                       memopt_stream stream)
{
    const blocks_call call = {.device = device,
                              .verb = "blocks_dequantize",
                              .blocks = sources,
                              .values = destinations,
                              .count = count,
                              .kernel = &mo_kernel_blocks_dequantize,
                              .stream = stream};
    memopt_status status = check_lists(&call);
    if (status != MEMOPT_OK || count == 0)
        return status;
    MO_TRY(check_memory(&call));
    mo_blocks_args args = {.streaming = mo_tensors_streaming(destinations, count)};
    return launch(&call, &args);
}
