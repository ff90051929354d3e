/*
 * Moments of an export in another format than the optimizer's: to f32 and on to that format, a run
 * of blocks at a time in device memory. What no kernel decodes becomes f32 on the host: blocks of
 * other sizes and the formats that older libraries had. Nothing here allocates once a run has begun.
 */
#include "optim/convert.h"
#include "optim/layout.h"

#include "kernels/cast/cast.h"

#include "base/checked.h"
#include "base/memory.h"

#include <string.h>

/* Elements of a run, a multiple of every block. */
enum { RUN = 1 << 18, MOST = MO_EXPORT_BLOCK_MOST };

memopt_status mo_converter_begin(memopt_optimizer *o, uint64_t elements, memopt_stream stream,
                                 mo_converter *out)
{
    uint64_t blocks = mo_ceil_div_u64(mo_min_u64(elements, RUN), MOST);
    *out = (mo_converter){.o = o, .stream = stream, .run = blocks * MOST};
    if (elements == 0)
        return MEMOPT_OK;
    uint64_t scales = out->run / MO_BLOCK4_SIZE;
    out->host = mo_malloc(out->run * sizeof *out->host);
    if (out->host == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memopt_status status =
        memopt_allocator_alloc(o->allocator, out->run * 4 + scales * 4 + out->run * 2,
                               MEMOPT_TAG_OPTIMIZER, stream, &out->memory);
    if (status != MEMOPT_OK) {
        mo_free(out->host);
        return status;
    }
    out->values = out->memory;
    out->scales = out->values + out->run;
    out->codes = out->scales + scales;
    return MEMOPT_OK;
}

memopt_status mo_converter_end(mo_converter *c)
{
    mo_free(c->host);
    return mo_optimizer_release(c->o, c->memory);
}

/* The tensors of a run of p's count: its values, and its codes (bf16: numbers) and scales. */
typedef struct run {
    memopt_tensor values, codes, scales;
} run;

static run run_of(const mo_converter *c, const mo_parameter *p)
{
    run r = {
        {c->values, p->tensor.count, MEMOPT_DTYPE_F32}, mo_parameter_state(p, 0), {NULL, 0, 0}};
    r.codes.data = c->codes;
    if (mo_format_has_scales(p->format))
        r.scales = mo_parameter_state(p, p->moments);
    r.scales.data = c->scales;
    return r;
}

/* memopt_cast() to nearest, without its allocation. */
static memopt_status cast(const mo_converter *c, const memopt_tensor *to, const memopt_tensor *from)
{
    mo_cast_args args = {.count = 1};
    args.segments[0] = (mo_cast_segment){.source = from->data,
                                         .destination = to->data,
                                         .count = from->count,
                                         .source_dtype = (uint16_t)from->dtype,
                                         .destination_dtype = (uint16_t)to->dtype};
    return mo_launch(c->o->device, c->stream, &mo_kernel_cast, &args, mo_chunks_of(from->count));
}

/* The dynamic map of 4 bits for a first moment (torchao's AdamW4bit), before the scale. */
static const uint32_t old_map4[16] = {/* bits of fp32 */
                                      0xbf633333, 0xbf29999a, 0xbee00000, 0xbe599999,
                                      0xbd9eb852, 0xbd051eb9, 0xbbb43958, 0x00000000,
                                      0x3bb43958, 0x3d051eb9, 0x3d9eb852, 0x3e599999,
                                      0x3ee00000, 0x3f29999a, 0x3f633333, 0x3f800000};

/* Before the scale: near c / (254 - |c|), by powers; or a root in 255 even steps. */
static float even_companded(int is_signed, uint32_t code)
{
    float c = is_signed ? (float)(int8_t)code : (float)code;
    if (!is_signed)
        return c * c * 0x1.020304p-16f;
    return c * mo_cubic(mo_magnitude(c), 0x1.0566aep-8f, 0x1.fcd448p-17f, 0x1.521964p-26f,
                        0x1.b8b4fep-31f);
}

static float value_of(uint32_t format, int is_signed, uint32_t code, float scale)
{
    if (format == MO_STATE_OLD_F8) /* torchao's AdamWFp8: the scale is absmax / 448 */
        return mo_e4m3_to_f32((uint8_t)code) * scale;
    if (format == MO_STATE_OLD_COMPANDED)
        return even_companded(is_signed, code) * scale;
    if (format == MO_STATE_OLD_4BIT)
        return is_signed ? mo_f32_from_bits(old_map4[code]) * scale
                         : mo_decode4_unsigned(code, scale);
    return mo_format_value(format, is_signed, code, scale);
}

/* On the host. Waits for the stream, so that the next run can have the memory. */
static memopt_status decode_here(const mo_converter *c, const mo_parameter *p,
                                 const mo_moment *from, uint64_t at)
{
    float scale = 0.0f;
    for (uint64_t i = 0; i < p->tensor.count; i++) {
        if (i % p->block == 0)
            memcpy(&scale, from->scales + (at + i) / p->block * sizeof scale, sizeof scale);
        uint32_t code = mo_format_read(p->format, from->codes, at + i);
        c->host[i] = mo_f32_one_nan(value_of(p->format, from->is_signed, code, scale));
    }
    memopt_status status =
        memopt_copy(c->o->device, c->values, c->host, p->tensor.count * sizeof *c->host, c->stream);
    return status == MEMOPT_OK ? memopt_stream_sync(c->o->device, c->stream) : status;
}

/* To f32: p's count of elements, from `at` on. */
static memopt_status decode(const mo_converter *c, const mo_parameter *p, const mo_moment *from,
                            uint64_t at)
{
    memopt_device *device = c->o->device;
    const run r = run_of(c, p);
    int plain = p->format == MEMOPT_STATE_F32;
    if (mo_format_is_old(p->format) ||
        (mo_format_has_scales(p->format) && p->block != mo_format_block(p->format)))
        return decode_here(c, p, from, at);
    memopt_status status = memopt_copy(device, plain ? r.values.data : r.codes.data,
                                       from->codes + mo_format_bytes(p->format, at),
                                       mo_format_bytes(p->format, p->tensor.count), c->stream);
    if (status != MEMOPT_OK || plain)
        return status;
    if (p->format == MEMOPT_STATE_BF16)
        return cast(c, &r.values, &r.codes);
    status = memopt_copy(device, r.scales.data, from->scales + at / p->block * 4,
                         r.scales.count * 4, c->stream);
    return status != MEMOPT_OK ? status
                               : memopt_dequantize(device, p->format, &r.values, &r.codes,
                                                   &r.scales, from->is_signed, c->stream);
}

/* The way back. */
static memopt_status encode(const mo_converter *c, const mo_parameter *p, const mo_moment *to,
                            uint64_t at)
{
    memopt_device *device = c->o->device;
    const run r = run_of(c, p);
    memopt_status status = MEMOPT_OK;
    if (p->format == MEMOPT_STATE_BF16)
        status = cast(c, &r.codes, &r.values);
    else if (p->format != MEMOPT_STATE_F32)
        status = memopt_quantize(device, p->format, &r.codes, &r.scales, &r.values, to->is_signed,
                                 c->stream);
    if (status == MEMOPT_OK && r.scales.count != 0)
        status = memopt_copy(device, to->out_scales + at / p->block * 4, r.scales.data,
                             r.scales.count * 4, c->stream);
    if (status != MEMOPT_OK)
        return status;
    return memopt_copy(device, to->out_codes + mo_format_bytes(p->format, at),
                       p->format == MEMOPT_STATE_F32 ? r.values.data : r.codes.data,
                       mo_format_bytes(p->format, p->tensor.count), c->stream);
}

memopt_status mo_convert(const mo_converter *c, const mo_parameter *from, const mo_parameter *to,
                         const mo_moment *moment)
{
    memopt_status status = MEMOPT_OK;
    mo_parameter a = *from, b = *to;
    for (uint64_t at = 0; at < to->tensor.count && status == MEMOPT_OK; at += c->run) {
        a.tensor.count = b.tensor.count = mo_min_u64(c->run, to->tensor.count - at);
        status = decode(c, &a, moment, at);
        if (status == MEMOPT_OK)
            status = encode(c, &b, moment, at);
    }
    return status;
}
