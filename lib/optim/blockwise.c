/* Block-wise quantisation of the caller's tensors. */
#include "optim/optim.h"

#include "base/checked.h"

#include <inttypes.h>

static memopt_status check_values(const char *verb, const memopt_tensor *values)
{
    memopt_dtype t = values->dtype;
    if (t != MEMOPT_DTYPE_F32 && t != MEMOPT_DTYPE_F16 && t != MEMOPT_DTYPE_BF16)
        return mo_fail(MEMOPT_UNSUPPORTED, "%s: values of type %s; f32, f16 and bf16 are supported",
                       verb, memopt_dtype_name(t));
    return MEMOPT_OK;
}

/* NULL, alignment, address space; an empty tensor needs no address. */
static memopt_status check_range(const char *verb, const char *name, const memopt_tensor *t)
{
    uint64_t size = memopt_dtype_size(t->dtype), bytes;
    if ((t->data == NULL && t->count != 0) || (uintptr_t)t->data % size != 0 ||
        !mo_mul_u64(t->count, size, &bytes) || bytes > UINTPTR_MAX - (uintptr_t)t->data)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: %s: address %p with %" PRIu64 " elements of %" PRIu64 " bytes", verb,
                       name, t->data, t->count, size);
    return MEMOPT_OK;
}

/* By state format: the kernels to codes and back. */
static const mo_kernel *const kernels[MO_STATE_FORMATS][2] = {
#define CODES(suffix, format)                                                                      \
    [MO_STATE_##format] = {&mo_kernel_quantize##suffix, &mo_kernel_dequantize##suffix},
    MO_EACH_CODE(CODES)};

static memopt_status check_format(const char *verb, uint32_t format)
{
    char list[MO_FORMAT_LIST];
    uint32_t set = 0;
    for (uint32_t f = 0; f < MO_STATE_FORMATS; f++)
        set |= (uint32_t)(kernels[f][0] != NULL) << f;
    if (format < MO_STATE_FORMATS && (set >> format & 1))
        return MEMOPT_OK;
    if (mo_format_is_old(format))
        return mo_format_fail_old(verb, format);
    return mo_fail(MEMOPT_UNSUPPORTED, "%s: state_format is %" PRIu32 "; formats with codes are %s",
                   verb, format, mo_format_list(list, set));
}

static memopt_status check_types(const char *verb, const memopt_tensor *values,
                                 const memopt_tensor *codes, const memopt_tensor *absmax,
                                 int32_t is_signed)
{
    if (is_signed != 0 && is_signed != 1)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: is_signed is %d, must be 0 or 1", verb,
                       (int)is_signed);
    if (codes->dtype != MEMOPT_DTYPE_U8 || absmax->dtype != MEMOPT_DTYPE_F32)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "%s: codes of type %s (u8 is supported), absmax of type %s (f32)", verb,
                       memopt_dtype_name(codes->dtype), memopt_dtype_name(absmax->dtype));
    return check_values(verb, values);
}

static memopt_status check_memory(const char *verb, memopt_device *device,
                                  const memopt_tensor *const tensors[3])
{
    memopt_status status = MEMOPT_OK;
    for (uint64_t i = 0; i < 3 && status == MEMOPT_OK; i++)
        status = mo_optim_tensor_reachable(device, verb, i, tensors[i]);
    return status;
}

static memopt_status check(const char *verb, uint32_t format, memopt_device *device,
                           const memopt_tensor *values, const memopt_tensor *codes,
                           const memopt_tensor *absmax, int32_t is_signed)
{
    if (device == NULL || values == NULL || codes == NULL || absmax == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: a pointer is NULL", verb);
    memopt_status status = check_format(verb, format);
    if (status == MEMOPT_OK)
        status = check_types(verb, values, codes, absmax, is_signed);
    if (status == MEMOPT_OK)
        status = check_range(verb, "values", values);
    if (status == MEMOPT_OK)
        status = check_range(verb, "codes", codes);
    if (status == MEMOPT_OK)
        status = check_range(verb, "absmax", absmax);
    if (status != MEMOPT_OK)
        return status;
    uint64_t bytes = mo_format_bytes(format, values->count);
    uint64_t blocks = mo_ceil_div_u64(values->count, mo_format_block(format));
    if (codes->count != bytes || absmax->count != blocks)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: %" PRIu64 " values, %" PRIu64 " codes (%" PRIu64 " needed), %" PRIu64
                       " absmax (%" PRIu64 " needed: one for %" PRIu32 " values)",
                       verb, values->count, codes->count, bytes, absmax->count, blocks,
                       mo_format_block(format));
    if (mo_optim_tensors_overlap(values, codes) || mo_optim_tensors_overlap(values, absmax) ||
        mo_optim_tensors_overlap(codes, absmax))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: tensors overlap", verb);
    return check_memory(verb, device, (const memopt_tensor *const[3]){values, codes, absmax});
}

static memopt_status run(const char *verb, uint32_t format, int back, memopt_device *device,
                         const memopt_tensor *values, const memopt_tensor *codes,
                         const memopt_tensor *absmax, int32_t is_signed, memopt_stream stream)
{
    memopt_status status = check(verb, format, device, values, codes, absmax, is_signed);
    if (status != MEMOPT_OK)
        return status;
    mo_blockcode_args args = {values->data,  codes->data,   absmax->data,
                              values->count, values->dtype, (uint32_t)is_signed};
    mo_tensor_used(device, verb, values, back, stream);
    mo_tensor_used(device, verb, codes, !back, stream);
    mo_tensor_used(device, verb, absmax, !back, stream);
    return mo_launch(device, stream, kernels[format][back], &args, mo_chunks_of(values->count));
}

memopt_status memopt_quantize(memopt_device *device, uint32_t state_format,
                              const memopt_tensor *codes, const memopt_tensor *scales,
                              const memopt_tensor *source, int32_t is_signed, memopt_stream stream)
{
    return run("quantize", state_format, 0, device, source, codes, scales, is_signed, stream);
}

memopt_status memopt_dequantize(memopt_device *device, uint32_t state_format,
                                const memopt_tensor *destination, const memopt_tensor *codes,
                                const memopt_tensor *scales, int32_t is_signed,
                                memopt_stream stream)
{
    return run("dequantize", state_format, 1, device, destination, codes, scales, is_signed,
               stream);
}

memopt_status memopt_state_map(uint32_t state_format, int32_t is_signed, float *out_values)
{
    memopt_status status = check_format("state_map", state_format);
    if (status != MEMOPT_OK)
        return status;
    if (out_values == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "state_map: out_values is NULL");
    uint32_t codes = mo_format_is_4bit(state_format) ? 16 : 256;
    for (uint32_t code = 0; code < codes; code++)
        out_values[code] = mo_format_value(state_format, is_signed != 0, code, 1.0f);
    return MEMOPT_OK;
}
