#include "cast/tensors.h"

#include "base/checked.h"
#include "base/memory.h"
#include "device/device.h"

#include <inttypes.h>
#include <stdio.h>

int mo_dtype_is_gradient(memopt_dtype dtype)
{
    return dtype == MEMOPT_DTYPE_F32 || dtype == MEMOPT_DTYPE_F16 || dtype == MEMOPT_DTYPE_BF16;
}

int mo_dtype_is_float(memopt_dtype dtype)
{
    return mo_dtype_is_gradient(dtype) || dtype == MEMOPT_DTYPE_F8_E4M3 ||
           dtype == MEMOPT_DTYPE_F8_E5M2 || dtype == MEMOPT_DTYPE_F8_E4M3FNUZ ||
           dtype == MEMOPT_DTYPE_F8_E5M2FNUZ;
}

static memopt_status check_type(const char *subject, uint64_t index, const memopt_tensor *tensor,
                                int (*type_allowed)(memopt_dtype))
{
    if (memopt_dtype_size(tensor->dtype) == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s[%" PRIu64 "]: dtype %d is not an element type",
                       subject, index, (int)tensor->dtype);
    if (!type_allowed(tensor->dtype))
        return mo_fail(MEMOPT_UNSUPPORTED, "%s[%" PRIu64 "]: the element type %s is not supported",
                       subject, index, memopt_dtype_name(tensor->dtype));
    return MEMOPT_OK;
}

memopt_status mo_tensor_check(const char *subject, uint64_t index, const memopt_tensor *tensor,
                              int (*type_allowed)(memopt_dtype))
{
    uint64_t size, bytes, end;
    MO_TRY(check_type(subject, index, tensor, type_allowed));
    size = memopt_dtype_size(tensor->dtype);
    if (!mo_mul_u64(tensor->count, size, &bytes) ||
        !mo_add_u64((uintptr_t)tensor->data, bytes, &end))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s[%" PRIu64 "]: %" PRIu64 " elements of %s at %p do not fit the address "
                       "space",
                       subject, index, tensor->count, memopt_dtype_name(tensor->dtype),
                       tensor->data);
    if (tensor->count != 0 && tensor->data == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s[%" PRIu64 "]: data is NULL but count is %" PRIu64, subject, index,
                       tensor->count);
    if ((uintptr_t)tensor->data % size != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s[%" PRIu64 "]: %p is not aligned to an element of %s (%" PRIu64 " bytes)",
                       subject, index, tensor->data, memopt_dtype_name(tensor->dtype), size);
    return MEMOPT_OK;
}

memopt_status mo_tensors_reachable(memopt_device *device, const char *subject,
                                   const memopt_tensor *tensors, uint64_t count)
{
    memopt_status status = MEMOPT_OK;
    for (uint64_t i = 0; i < count && status == MEMOPT_OK; i++)
        status = mo_reachable(device, subject, i, tensors[i].data,
                              tensors[i].count * memopt_dtype_size(tensors[i].dtype));
    return status;
}

/* From this many bytes on, outputs do not stay in the caches; non-temporal writes save reading the
 * lines that they overwrite. */
#define STREAMING_BYTES (8u << 20)

uint8_t mo_tensors_streaming(const memopt_tensor *tensors, uint64_t count)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < count && bytes < STREAMING_BYTES; i++)
        bytes += tensors[i].count * memopt_dtype_size(tensors[i].dtype);
    return bytes >= STREAMING_BYTES;
}

/* --- overlap --------------------------------------------------------------------------------- */

static void sink(mo_tensor_range *ranges, uint64_t at, uint64_t count)
{
    mo_tensor_range value = ranges[at];
    for (;;) {
        uint64_t child = 2 * at + 1;
        if (child >= count)
            break;
        if (child + 1 < count && ranges[child + 1].begin > ranges[child].begin)
            child++;
        if (ranges[child].begin <= value.begin)
            break;
        ranges[at] = ranges[child];
        at = child;
    }
    ranges[at] = value;
}

/* Heapsort by begin: no recursion, no allocation (qsort of the C library may make one). */
static void sort_ranges(mo_tensor_range *ranges, uint64_t count)
{
    for (uint64_t i = count / 2; i-- > 0;)
        sink(ranges, i, count);
    for (uint64_t rest = count; rest > 1; rest--) {
        mo_tensor_range last = ranges[rest - 1];
        ranges[rest - 1] = ranges[0];
        ranges[0] = last;
        sink(ranges, 0, rest - 1);
    }
}

/* The later end of two ranges; *reach is updated. */
static void extend(const mo_tensor_range **reach, const mo_tensor_range *range)
{
    if (*reach == NULL || range->end > (*reach)->end)
        *reach = range;
}

memopt_status mo_tensor_ranges_check(const char *subject, mo_tensor_range *ranges, uint64_t count)
{
    const mo_tensor_range *any = NULL, *written = NULL; /* those that reach farthest so far */
    sort_ranges(ranges, count);
    for (uint64_t i = 0; i < count; i++) {
        const mo_tensor_range *range = &ranges[i];
        const mo_tensor_range *before = range->written ? any : written;
        if (before != NULL && before->end > range->begin) {
            uint64_t low = mo_min_u64(before->index, range->index);
            uint64_t high = mo_max_u64(before->index, range->index);
            return mo_fail(MEMOPT_INVALID_ARGUMENT,
                           "%s: tensors %" PRIu64 " and %" PRIu64
                           " overlap at %p and one of them is written",
                           subject, low, high, (void *)range->begin);
        }
        extend(&any, range);
        if (range->written)
            extend(&written, range);
    }
    return MEMOPT_OK;
}

/* --- pairs ----------------------------------------------------------------------------------- */

memopt_status mo_pairs_check(const char *verb, const memopt_tensor *destinations,
                             const memopt_tensor *sources, uint64_t count,
                             int (*type_allowed)(memopt_dtype))
{
    char from[32], into[32];
    memopt_status status = MEMOPT_OK;
    MO_NOT_NULL(verb, destinations, sources);
    if (count > UINT32_MAX)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: %" PRIu64 " tensors; a call takes at most 2^32 - 1", verb, count);
    snprintf(from, sizeof from, "%s: sources", verb);
    snprintf(into, sizeof into, "%s: destinations", verb);
    for (uint64_t i = 0; i < count && status == MEMOPT_OK; i++) {
        status = mo_tensor_check(from, i, &sources[i], type_allowed);
        if (status == MEMOPT_OK)
            status = mo_tensor_check(into, i, &destinations[i], type_allowed);
        if (status == MEMOPT_OK && sources[i].count != destinations[i].count)
            status =
                mo_fail(MEMOPT_INVALID_ARGUMENT,
                        "%s: source %" PRIu64 " has %" PRIu64 " elements, its destination %" PRIu64,
                        verb, i, sources[i].count, destinations[i].count);
    }
    return status;
}

static int same_place(const memopt_tensor *destination, const memopt_tensor *source)
{
    return destination->data == source->data &&
           memopt_dtype_size(destination->dtype) == memopt_dtype_size(source->dtype);
}

/* Fills ranges (room for 2 * count) and returns how many: a tensor written in place is one. */
static uint64_t pair_ranges(mo_tensor_range *ranges, const memopt_tensor *destinations,
                            const memopt_tensor *sources, uint64_t count, int in_place)
{
    uint64_t used = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (sources[i].count == 0)
            continue;
        if (destinations != NULL)
            ranges[used++] = mo_tensor_range_of(&destinations[i], i, 1);
        if (!in_place || destinations == NULL || !same_place(&destinations[i], &sources[i]))
            ranges[used++] = mo_tensor_range_of(&sources[i], i, 0);
    }
    return used;
}

memopt_status mo_pairs_memory_check(memopt_device *device, const char *verb,
                                    const memopt_tensor *destinations, const memopt_tensor *sources,
                                    uint64_t count, int in_place, const float *amax)
{
    char subject[32];
    mo_tensor_range *ranges = mo_malloc((2 * count + 1) * sizeof *ranges);
    if (ranges == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    uint64_t used = pair_ranges(ranges, destinations, sources, count, in_place);
    if (amax != NULL)
        ranges[used++] = (mo_tensor_range){(uintptr_t)amax, (uintptr_t)(amax + count), count, 1};
    memopt_status status = mo_tensor_ranges_check(verb, ranges, used);
    mo_free(ranges);
    snprintf(subject, sizeof subject, "%s: source", verb);
    if (status == MEMOPT_OK)
        status = mo_tensors_reachable(device, subject, sources, count);
    snprintf(subject, sizeof subject, "%s: destination", verb);
    if (status == MEMOPT_OK && destinations != NULL)
        status = mo_tensors_reachable(device, subject, destinations, count);
    snprintf(subject, sizeof subject, "%s: amax", verb);
    if (status == MEMOPT_OK && amax != NULL)
        status = mo_reachable(device, subject, 0, amax, count * sizeof *amax);
    return status;
}

memopt_status mo_pairs_launch(memopt_device *device, const mo_kernel *kernel, const void *args,
                              mo_cast_segment *segments, uint32_t *segment_count,
                              const memopt_tensor *destinations, const memopt_tensor *sources,
                              uint64_t count, memopt_stream stream)
{
    uint64_t chunks = 0;
    memopt_status status = MEMOPT_OK;
    for (uint64_t i = 0; i < count && status == MEMOPT_OK; i++) {
        const memopt_tensor nothing = {NULL, 0, sources[i].dtype}, *from = &sources[i];
        const memopt_tensor *to = destinations != NULL ? &destinations[i] : &nothing;
        if (from->count != 0) {
            mo_tensor_used(device, kernel->name, from, 0, stream);
            mo_tensor_used(device, kernel->name, to, 1, stream);
            segments[(*segment_count)++] =
                (mo_cast_segment){from->data,         to->data,
                                  from->count,        chunks,
                                  (uint32_t)i,        (uint16_t)from->dtype,
                                  (uint16_t)to->dtype};
            chunks += mo_chunks_of(from->count);
        }
        if (*segment_count == MO_CAST_SEGMENTS || (i + 1 == count && *segment_count != 0)) {
            status = mo_launch(device, stream, kernel, args, chunks);
            *segment_count = 0;
            chunks = 0;
        }
    }
    return status;
}
