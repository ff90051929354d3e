/* memopt_cast: checks, then the chunks of all tensors in as few launches as their descriptions
 * fill. */
#include "memopt/cast.h"

#include "base/options.h"
#include "cast/tensors.h"
#include "device/device.h"
#include "kernels/cast/cast.h"

#include <inttypes.h>

_Static_assert((int)MO_DTYPE_F32 == (int)MEMOPT_DTYPE_F32 &&
                   (int)MO_DTYPE_F16 == (int)MEMOPT_DTYPE_F16 &&
                   (int)MO_DTYPE_BF16 == (int)MEMOPT_DTYPE_BF16 &&
                   (int)MO_DTYPE_F8_E4M3 == (int)MEMOPT_DTYPE_F8_E4M3 &&
                   (int)MO_DTYPE_F8_E5M2 == (int)MEMOPT_DTYPE_F8_E5M2 &&
                   (int)MO_DTYPE_F8_E4M3FNUZ == (int)MEMOPT_DTYPE_F8_E4M3FNUZ &&
                   (int)MO_DTYPE_F8_E5M2FNUZ == (int)MEMOPT_DTYPE_F8_E5M2FNUZ,
               "kernels use the values of memopt_dtype");

static memopt_status read_options(memopt_cast_options *copy, const memopt_cast_options *options)
{
    MO_TRY(mo_options_read(copy, sizeof *copy, options, "memopt_cast_options"));
    if (copy->rounding > MEMOPT_ROUND_STOCHASTIC)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "cast: rounding %" PRIu32 " is not a memopt_rounding (0 or 1)",
                       copy->rounding);
    if (copy->saturate > 1)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "cast: saturate is %" PRIu32 "; it is 0 or 1",
                       copy->saturate);
    if ((uintptr_t)copy->amax % sizeof *copy->amax != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "cast: amax: %p is not aligned to 4 bytes",
                       (const void *)copy->amax);
    return MEMOPT_OK;
}

/* No destinations: the sources' magnitudes alone. */
static memopt_status find_amax(memopt_device *device, const memopt_tensor *sources, uint64_t count,
                               float *amax, memopt_stream stream)
{
    MO_TRY(mo_pairs_check("cast", sources, sources, count, mo_dtype_is_float));
    MO_TRY(mo_pairs_memory_check(device, "cast", NULL, sources, count, 0, amax));
    mo_cast_args args = {.amax = (uint32_t *)amax};
    mo_writes(device, stream, "cast", amax, count * sizeof *amax);
    return mo_pairs_launch(device, &mo_kernel_cast_amax, &args, args.segments, &args.count, NULL,
                           sources, count, stream);
}

memopt_status memopt_cast(memopt_device *device, const memopt_tensor *destinations,
                          const memopt_tensor *sources, uint64_t count,
                          const memopt_cast_options *options, memopt_stream stream)
{
    memopt_cast_options how;
    memopt_status status;
    MO_NOT_NULL("cast", device);
    status = read_options(&how, options);
    if (status != MEMOPT_OK || count == 0)
        return status;
    if (destinations == NULL && how.amax != NULL)
        return find_amax(device, sources, count, how.amax, stream);
    MO_TRY(mo_pairs_check("cast", destinations, sources, count, mo_dtype_is_float));
    MO_TRY(mo_pairs_memory_check(device, "cast", destinations, sources, count, 1, how.amax));
    mo_cast_args args = {.seed = how.seed,
                         .sequence = how.sequence,
                         .stochastic = how.rounding == MEMOPT_ROUND_STOCHASTIC,
                         .saturate = (uint8_t)how.saturate,
                         .streaming = mo_tensors_streaming(destinations, count),
                         .amax = (uint32_t *)how.amax};
    mo_writes(device, stream, "cast", how.amax, count * sizeof *how.amax);
    return mo_pairs_launch(device, how.amax ? &mo_kernel_cast_amax : &mo_kernel_cast, &args,
                           args.segments, &args.count, destinations, sources, count, stream);
}
