/* The content hash of a caller's tensor. */
#include "memopt/checkpoint.h"

#include "base/checked.h"
#include "device/device.h"
#include "kernels/hash/hash.h"

#include <inttypes.h>

_Static_assert(MEMOPT_CONTENT_GRANULE == MO_HASH_GRANULE, "one size");

static memopt_status check(memopt_device *device, const memopt_tensor *tensor,
                           const uint64_t *hashes, uint64_t *out_bytes)
{
    uint64_t size = memopt_dtype_size(tensor->dtype);
    if (size == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "content hash: %d is not an element type",
                       (int)tensor->dtype);
    if (!mo_mul_u64(tensor->count, size, out_bytes))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "content hash: %" PRIu64 " elements of %" PRIu64 " bytes do not fit 64 bits",
                       tensor->count, size);
    if (*out_bytes == 0)
        return MEMOPT_OK;
    uint64_t hash_bytes = mo_ceil_div_u64(*out_bytes, MO_HASH_GRANULE) * sizeof(uint64_t);
    if (tensor->data == NULL || hashes == NULL || (uintptr_t)hashes % sizeof(uint64_t) != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "content hash: the tensor is at %p and its hashes at %p; neither may be "
                       "NULL, and hashes are aligned to 8 bytes",
                       tensor->data, (const void *)hashes);
    if (mo_ranges_overlap(tensor->data, *out_bytes, hashes, hash_bytes))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "content hash: the hashes at %p overlap the %" PRIu64 " bytes at %p",
                       (const void *)hashes, *out_bytes, tensor->data);
    MO_TRY(mo_reachable(device, "content hash: tensor", 0, tensor->data, *out_bytes));
    return mo_reachable(device, "content hash: hashes", 0, hashes, hash_bytes);
}

memopt_status memopt_content_hash(memopt_device *device, uint64_t *hashes,
                                  const memopt_tensor *tensor, memopt_stream stream)
{
    uint64_t bytes = 0;
    MO_NOT_NULL("content hash", device, tensor);
    memopt_status status = check(device, tensor, hashes, &bytes);
    if (status != MEMOPT_OK || bytes == 0)
        return status;
    mo_hash_granules_args args = {tensor->data, hashes, bytes};
    mo_reads(device, stream, "content hash", tensor->data, bytes);
    mo_writes(device, stream, "content hash", hashes,
              mo_ceil_div_u64(bytes, MO_HASH_GRANULE) * sizeof *hashes);
    return mo_launch(device, stream, &mo_kernel_hash_granules, &args,
                     mo_ceil_div_u64(bytes, MO_HASH_GRANULE));
}
