/* Checks of the tensors that callers hand in. */
#include "optim/optim.h"

#include "base/checked.h"
#include "base/precondition.h"

#include <inttypes.h>

/* An address of so many elements. */
static memopt_status check_memory(const char *subject, uint64_t index, const memopt_tensor *tensor)
{
    uint64_t size = memopt_dtype_size(tensor->dtype), bytes;
    if (tensor->data == NULL || tensor->count == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s %" PRIu64 ": data is %p, count is %" PRIu64 "; neither may be 0",
                       subject, index, tensor->data, tensor->count);
    if ((uintptr_t)tensor->data % size != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s %" PRIu64 ": address %p is not a multiple of its element size %" PRIu64,
                       subject, index, tensor->data, size);
    if (!mo_mul_u64(tensor->count, size, &bytes) || bytes > UINTPTR_MAX - (uintptr_t)tensor->data)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s %" PRIu64 ": %" PRIu64 " elements reach beyond the address space",
                       subject, index, tensor->count);
    return MEMOPT_OK;
}

memopt_status mo_optim_tensor_check(const char *subject, uint64_t index,
                                    const memopt_tensor *tensor, uint64_t least)
{
    if (tensor->dtype != MEMOPT_DTYPE_F32 && tensor->dtype != MEMOPT_DTYPE_F16 &&
        tensor->dtype != MEMOPT_DTYPE_BF16)
        return mo_fail(memopt_dtype_size(tensor->dtype) == 0 ? MEMOPT_INVALID_ARGUMENT
                                                             : MEMOPT_UNSUPPORTED,
                       "%s %" PRIu64 ": element type %s (%d); f32, f16 and bf16 are supported",
                       subject, index, memopt_dtype_name(tensor->dtype), (int)tensor->dtype);
    return tensor->count == 0 && least == 0 ? MEMOPT_OK : check_memory(subject, index, tensor);
}

memopt_status mo_optim_tensor_reachable(memopt_device *device, const char *subject, uint64_t index,
                                        const memopt_tensor *tensor)
{
    MO_PRE(tensor->data != NULL && memopt_dtype_size(tensor->dtype) != 0 &&
           tensor->count <= UINT64_MAX / memopt_dtype_size(tensor->dtype));
    return mo_reachable(device, subject, index, tensor->data,
                        tensor->count * memopt_dtype_size(tensor->dtype));
}

int mo_optim_tensors_overlap(const memopt_tensor *a, const memopt_tensor *b)
{
    if (a->data == NULL || b->data == NULL || a->count == 0 || b->count == 0)
        return 0;
    return mo_ranges_overlap(a->data, a->count * memopt_dtype_size(a->dtype), b->data,
                             b->count * memopt_dtype_size(b->dtype));
}
