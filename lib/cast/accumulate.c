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
    memopt_status status;
    if (device == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "accumulate: device is NULL");
    if (!mo_f32_is_finite(scale))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "accumulate: scale is %g; it must be finite",
                       (double)scale);
    if (count == 0)
        return MEMOPT_OK;
    status = mo_pairs_check("accumulate", destinations, sources, count, mo_dtype_is_gradient);
    if (status == MEMOPT_OK)
        status = mo_pairs_memory_check(device, "accumulate", destinations, sources, count, 0);
    mo_accumulate_args args = {.scale = scale};
    uint64_t chunks = 0;
    for (uint64_t i = 0; i < count && status == MEMOPT_OK; i++) {
        if (sources[i].count != 0) {
            mo_accumulate_segment *segment = &args.segments[args.count++];
            segment->source = sources[i].data;
            segment->destination = destinations[i].data;
            segment->count = sources[i].count;
            segment->first_chunk = chunks;
            segment->source_dtype = (uint32_t)sources[i].dtype;
            segment->destination_dtype = (uint32_t)destinations[i].dtype;
            chunks += mo_chunks_of(sources[i].count);
        }
        if (args.count == MO_ACCUMULATE_SEGMENTS || (i + 1 == count && args.count != 0)) {
            status = mo_launch(device, stream, &mo_kernel_accumulate, &args, chunks);
            args.count = 0;
            chunks = 0;
        }
    }
    return status;
}
