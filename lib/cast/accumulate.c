/* memopt_accumulate: checks, then the chunks of all tensors in as few launches as their
 * descriptions fill. */
#include "kernels/cast/accumulate.h"

#include "cast/tensors.h"
#include "device/device.h"
#include "memopt/cast.h"

memopt_status memopt_accumulate(memopt_device *device, const memopt_tensor *destinations,
                                const memopt_tensor *sources, uint64_t count, float scale,
                                memopt_stream stream)
{
    MO_NOT_NULL("accumulate", device);
    if (!mo_f32_is_finite(scale))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "accumulate: scale is %g; it must be finite",
                       (double)scale);
    if (count == 0)
        return MEMOPT_OK;
    MO_TRY(mo_pairs_check("accumulate", destinations, sources, count, mo_dtype_is_gradient));
    MO_TRY(mo_pairs_memory_check(device, "accumulate", destinations, sources, count, 0, NULL));
    mo_accumulate_args args = {.scale = scale};
    return mo_pairs_launch(device, &mo_kernel_accumulate, &args, args.segments, &args.count,
                           destinations, sources, count, stream);
}
