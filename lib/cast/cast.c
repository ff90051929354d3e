/* memopt_cast: checks, then the chunks of all tensors in as few launches as their descriptions
 * fill. */
#include "memopt/cast.h"

#include "base/memory.h"
#include "base/options.h"
#include "cast/tensors.h"
#include "device/device.h"
#include "kernels/cast.h"

#include <inttypes.h>

_Static_assert((int)MO_DTYPE_F32 == (int)MEMOPT_DTYPE_F32 &&
                   (int)MO_DTYPE_F16 == (int)MEMOPT_DTYPE_F16 &&
                   (int)MO_DTYPE_BF16 == (int)MEMOPT_DTYPE_BF16 &&
                   (int)MO_DTYPE_F8_E4M3 == (int)MEMOPT_DTYPE_F8_E4M3 &&
                   (int)MO_DTYPE_F8_E5M2 == (int)MEMOPT_DTYPE_F8_E5M2,
               "kernels use the values of memopt_dtype");

/* From this many bytes of output on, none of it would still be in the caches when it is used, and
 * writing past them saves the reading of lines that are overwritten. */
#define STREAMING_BYTES (8u << 20)

static memopt_status read_options(memopt_cast_options *copy, const memopt_cast_options *options)
{
    memopt_status status = mo_options_read(copy, sizeof *copy, options, "memopt_cast_options");
    if (status != MEMOPT_OK)
        return status;
    if (copy->rounding > MEMOPT_ROUND_STOCHASTIC)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "cast: rounding %" PRIu32 " is not a memopt_rounding (0 or 1)",
                       copy->rounding);
    if (copy->saturate > 1)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "cast: saturate is %" PRIu32 "; it is 0 or 1",
                       copy->saturate);
    return MEMOPT_OK;
}

static memopt_status check_pair(uint64_t index, const memopt_tensor *destination,
                                const memopt_tensor *source)
{
    memopt_status status = mo_tensor_check("cast: sources", index, source, mo_dtype_is_float);
    if (status == MEMOPT_OK)
        status = mo_tensor_check("cast: destinations", index, destination, mo_dtype_is_float);
    if (status == MEMOPT_OK && source->count != destination->count)
        status = mo_fail(MEMOPT_INVALID_ARGUMENT,
                         "cast: source %" PRIu64 " has %" PRIu64 " elements, its destination "
                         "%" PRIu64,
                         index, source->count, destination->count);
    return status;
}

static int in_place(const memopt_tensor *destination, const memopt_tensor *source)
{
    return destination->data == source->data &&
           memopt_dtype_size(destination->dtype) == memopt_dtype_size(source->dtype);
}

/* Fills ranges (room for 2 * count) and returns how many: a tensor cast in place is one. */
static uint64_t collect_ranges(mo_range *ranges, const memopt_tensor *destinations,
                               const memopt_tensor *sources, uint64_t count)
{
    uint64_t used = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (sources[i].count == 0)
            continue;
        ranges[used++] = mo_range_of(&destinations[i], i, 1);
        if (!in_place(&destinations[i], &sources[i]))
            ranges[used++] = mo_range_of(&sources[i], i, 0);
    }
    return used;
}

static memopt_status check_tensors(memopt_device *device, const memopt_tensor *destinations,
                                   const memopt_tensor *sources, uint64_t count)
{
    memopt_status status = MEMOPT_OK;
    if (destinations == NULL || sources == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "cast: %s is NULL",
                       destinations == NULL ? "destinations" : "sources");
    if (count > UINT32_MAX)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "cast: %" PRIu64 " tensors; a call takes at most 2^32 - 1", count);
    for (uint64_t i = 0; i < count && status == MEMOPT_OK; i++)
        status = check_pair(i, &destinations[i], &sources[i]);
    if (status != MEMOPT_OK)
        return status;
    mo_range *ranges = mo_malloc(2 * count * sizeof *ranges);
    if (ranges == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    status = mo_ranges_check("cast", ranges, collect_ranges(ranges, destinations, sources, count));
    mo_free(ranges);
    if (status == MEMOPT_OK)
        status = mo_tensors_reachable(device, "cast: source", sources, count);
    return status == MEMOPT_OK
               ? mo_tensors_reachable(device, "cast: destination", destinations, count)
               : status;
}

/* 1 where the outputs are together too large to stay in the caches. */
static uint8_t streaming(const memopt_tensor *destinations, uint64_t count)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < count && bytes < STREAMING_BYTES; i++)
        bytes += destinations[i].count * memopt_dtype_size(destinations[i].dtype);
    return bytes >= STREAMING_BYTES;
}

memopt_status memopt_cast(memopt_device *device, const memopt_tensor *destinations,
                          const memopt_tensor *sources, uint64_t count,
                          const memopt_cast_options *options, memopt_stream stream)
{
    memopt_cast_options how;
    memopt_status status;
    if (device == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "cast: device is NULL");
    status = read_options(&how, options);
    if (status != MEMOPT_OK || count == 0)
        return status;
    status = check_tensors(device, destinations, sources, count);
    if (status != MEMOPT_OK)
        return status;

    mo_cast_args args = {.seed = how.seed,
                         .sequence = how.sequence,
                         .stochastic = how.rounding == MEMOPT_ROUND_STOCHASTIC,
                         .saturate = (uint8_t)how.saturate,
                         .streaming = streaming(destinations, count)};
    uint64_t chunks = 0;
    for (uint64_t i = 0; i < count && status == MEMOPT_OK; i++) {
        if (sources[i].count != 0) {
            mo_cast_segment *segment = &args.segments[args.count++];
            segment->source = sources[i].data;
            segment->destination = destinations[i].data;
            segment->count = sources[i].count;
            segment->first_chunk = chunks;
            segment->tensor = (uint32_t)i;
            segment->source_dtype = (uint16_t)sources[i].dtype;
            segment->destination_dtype = (uint16_t)destinations[i].dtype;
            chunks += mo_chunks_of(sources[i].count);
        }
        if (args.count == MO_CAST_SEGMENTS || (i + 1 == count && args.count != 0)) {
            status = mo_launch(device, stream, &mo_kernel_cast, &args, chunks);
            args.count = 0;
            chunks = 0;
        }
    }
    return status;
}
