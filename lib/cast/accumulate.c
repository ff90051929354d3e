/* memopt_accumulate: checks, then the chunks of all tensors in as few launches as their
 * descriptions fill. */
#include "kernels/accumulate.h"

#include "base/memory.h"
#include "cast/tensors.h"
#include "device/device.h"
#include "memopt/cast.h"

#include <inttypes.h>

static memopt_status check_pair(uint64_t index, const memopt_tensor *destination,
                                const memopt_tensor *source)
{
    memopt_status status =
        mo_tensor_check("accumulate: sources", index, source, mo_dtype_is_gradient);
    if (status == MEMOPT_OK)
        status =
            mo_tensor_check("accumulate: destinations", index, destination, mo_dtype_is_gradient);
    if (status == MEMOPT_OK && source->count != destination->count)
        status = mo_fail(MEMOPT_INVALID_ARGUMENT,
                         "accumulate: source %" PRIu64 " has %" PRIu64
                         " elements, its destination %" PRIu64,
                         index, source->count, destination->count);
    return status;
}

static memopt_status check_tensors(const memopt_tensor *destinations, const memopt_tensor *sources,
                                   uint64_t count)
{
    uint64_t used = 0;
    memopt_status status = MEMOPT_OK;
    if (destinations == NULL || sources == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "accumulate: %s is NULL",
                       destinations == NULL ? "destinations" : "sources");
    if (count > UINT32_MAX)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "accumulate: %" PRIu64 " tensors; a call takes at most 2^32 - 1", count);
    for (uint64_t i = 0; i < count && status == MEMOPT_OK; i++)
        status = check_pair(i, &destinations[i], &sources[i]);
    if (status != MEMOPT_OK)
        return status;
    mo_range *ranges = mo_malloc(2 * count * sizeof *ranges);
    if (ranges == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    for (uint64_t i = 0; i < count; i++) {
        if (sources[i].count == 0)
            continue;
        ranges[used++] = mo_range_of(&destinations[i], i, 1);
        ranges[used++] = mo_range_of(&sources[i], i, 0);
    }
    status = mo_ranges_check("accumulate", ranges, used);
    mo_free(ranges);
    return status;
}

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
    status = check_tensors(destinations, sources, count);
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
