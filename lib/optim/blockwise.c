/* Block-wise quantisation of the caller's tensors. */
#include "optim/optim.h"

#include "base/checked.h"

#include <inttypes.h>
#include <string.h>

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
    if (t->reserved != 0 || (t->data == NULL && t->count != 0) || (uintptr_t)t->data % size != 0 ||
        !mo_mul_u64(t->count, size, &bytes) || bytes > UINTPTR_MAX - (uintptr_t)t->data)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: %s: address %p with %" PRIu64 " elements of %" PRIu64
                       " bytes, reserved %d",
                       verb, name, t->data, t->count, size, (int)t->reserved);
    return MEMOPT_OK;
}

static memopt_status check_types(const char *verb, const memopt_tensor *values,
                                 const memopt_tensor *codes, const memopt_tensor *absmax,
                                 int32_t is_signed, uint32_t block_size)
{
    if (is_signed != 0 && is_signed != 1)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: is_signed is %d, must be 0 or 1", verb,
                       (int)is_signed);
    if (block_size != MO_BLOCK_SIZE)
        return mo_fail(MEMOPT_UNSUPPORTED, "%s: block_size %" PRIu32 "; 256 is supported", verb,
                       block_size);
    if (codes->dtype != MEMOPT_DTYPE_U8 || absmax->dtype != MEMOPT_DTYPE_F32)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "%s: codes of type %s (u8 is supported), absmax of type %s (f32)", verb,
                       memopt_dtype_name(codes->dtype), memopt_dtype_name(absmax->dtype));
    return check_values(verb, values);
}

/* Pre: all have passed check_range. */
static memopt_status check_memory(const char *verb, memopt_device *device,
                                  const memopt_tensor *const tensors[3])
{
    memopt_status status = MEMOPT_OK;
    for (uint64_t i = 0; i < 3 && status == MEMOPT_OK; i++)
        status = mo_optim_tensor_reachable(device, verb, i, tensors[i]);
    return status;
}

static memopt_status check(const char *verb, memopt_device *device, const memopt_tensor *values,
                           const memopt_tensor *codes, const memopt_tensor *absmax,
                           int32_t is_signed, uint32_t block_size)
{
    if (device == NULL || values == NULL || codes == NULL || absmax == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: a pointer is NULL", verb);
    memopt_status status = check_types(verb, values, codes, absmax, is_signed, block_size);
    if (status == MEMOPT_OK)
        status = check_range(verb, "values", values);
    if (status == MEMOPT_OK)
        status = check_range(verb, "codes", codes);
    if (status == MEMOPT_OK)
        status = check_range(verb, "absmax", absmax);
    if (status != MEMOPT_OK)
        return status;
    uint64_t blocks = mo_ceil_div_u64(values->count, block_size);
    if (codes->count != values->count || absmax->count != blocks)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: %" PRIu64 " values, %" PRIu64 " codes, %" PRIu64 " absmax (%" PRIu64
                       " needed)",
                       verb, values->count, codes->count, absmax->count, blocks);
    if (mo_optim_tensors_overlap(values, codes) || mo_optim_tensors_overlap(values, absmax) ||
        mo_optim_tensors_overlap(codes, absmax))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: tensors overlap", verb);
    return check_memory(verb, device, (const memopt_tensor *const[3]){values, codes, absmax});
}

static memopt_status run(const char *verb, memopt_device *device, const mo_kernel *kernel,
                         const memopt_tensor *values, const memopt_tensor *codes,
                         const memopt_tensor *absmax, int32_t is_signed, uint32_t block_size,
                         memopt_stream stream)
{
    memopt_status status = check(verb, device, values, codes, absmax, is_signed, block_size);
    if (status != MEMOPT_OK)
        return status;
    mo_blockcode_args args = {values->data,  codes->data,   absmax->data,
                              values->count, values->dtype, (uint32_t)is_signed};
    return mo_launch(device, stream, kernel, &args, mo_chunks_of(values->count));
}

memopt_status memopt_quantize_blockwise(memopt_device *device, const memopt_tensor *source,
                                        const memopt_tensor *codes, const memopt_tensor *absmax,
                                        int32_t is_signed, uint32_t block_size,
                                        memopt_stream stream)
{
    return run("quantize_blockwise", device, &mo_kernel_quantize, source, codes, absmax, is_signed,
               block_size, stream);
}

memopt_status memopt_dequantize_blockwise(memopt_device *device, const memopt_tensor *codes,
                                          const memopt_tensor *absmax,
                                          const memopt_tensor *destination, int32_t is_signed,
                                          uint32_t block_size, memopt_stream stream)
{
    return run("dequantize_blockwise", device, &mo_kernel_dequantize, destination, codes, absmax,
               is_signed, block_size, stream);
}

memopt_status memopt_dynamic_map(int32_t is_signed, float *out_values)
{
    if (out_values == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "dynamic_map: out_values is NULL");
    if (is_signed)
        memcpy(out_values, mo_map_signed, sizeof mo_map_signed);
    else
        memcpy(out_values, mo_map_unsigned, sizeof mo_map_unsigned);
    return MEMOPT_OK;
}
