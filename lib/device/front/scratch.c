/*
 * Scratch: device memory for a call that has no handle of its own, such as a norm. The device keeps
 * it for the next call.
 *
 * A piece is one call's while the call enqueues its work, then its stream's: the next call there
 * runs behind it. After the stream has ended any stream may have it. One that a graph records is
 * the graph's until the device closes; so is one whose stream ended without a wait.
 *
 * `lock` of the device guards the list; nothing is called under it.
 */
#include "device/front/handle.h"

#include "base/checked.h"
#include "base/lock.h"
#include "base/memory.h"

/* Bytes are a power of two up to the most, then a multiple of it. */
enum { LEAST = 4096, MOST = 1 << 20 };

struct mo_scratch {
    mo_scratch *next;
    void *pointer;
    uint64_t bytes;
    memopt_stream stream;
    int streamless; /* its stream has ended: any may have it */
    int taken;      /* by a call, or for good */
};

static memopt_status is_recorded(memopt_device *device, memopt_stream stream, int32_t *out_recorded)
{
    *out_recorded = 0;
    return device->ops->stream_capturing == NULL
               ? MEMOPT_OK
               : device->ops->stream_capturing(device, stream, out_recorded);
}

static mo_scratch *find(memopt_device *device, uint64_t bytes, memopt_stream stream)
{
    mo_scratch *found = NULL;
    mo_lock(&device->lock);
    for (mo_scratch *each = device->scratch; each != NULL; each = each->next)
        if (!each->taken && each->bytes >= bytes && (each->streamless || each->stream == stream) &&
            (found == NULL || each->bytes < found->bytes))
            found = each;
    if (found != NULL) {
        found->taken = 1;
        found->streamless = 0;
        found->stream = stream;
    }
    mo_unlock(&device->lock);
    return found;
}

static memopt_status make(memopt_device *device, uint64_t bytes, memopt_stream stream,
                          mo_scratch **out_piece)
{
    mo_scratch *piece = mo_malloc(sizeof *piece);
    if (piece == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    *piece = (mo_scratch){.bytes = LEAST, .stream = stream, .taken = 1};
    while (piece->bytes < bytes && piece->bytes < MOST)
        piece->bytes *= 2;
    if (!mo_round_up_u64(mo_max_u64(bytes, piece->bytes), piece->bytes, &piece->bytes))
        piece->bytes = UINT64_MAX; /* the device says that it has not so much */
    memopt_status status = mo_mem_alloc(device, piece->bytes, &piece->pointer);
    if (status != MEMOPT_OK) {
        mo_free(piece);
        return status;
    }
    mo_lock(&device->lock);
    piece->next = device->scratch;
    device->scratch = piece;
    mo_unlock(&device->lock);
    *out_piece = piece;
    return MEMOPT_OK;
}

memopt_status mo_scratch_take(memopt_device *device, uint64_t bytes, memopt_stream stream,
                              mo_scratch **out_piece, void **out_pointer)
{
    int32_t recorded;
    MO_TRY(is_recorded(device, stream, &recorded));
    mo_scratch *piece = recorded ? NULL : find(device, bytes, stream);
    if (piece == NULL)
        MO_TRY(make(device, bytes, stream, &piece));
    *out_piece = recorded ? NULL : piece;
    *out_pointer = piece->pointer;
    return MEMOPT_OK;
}

void mo_scratch_return(memopt_device *device, mo_scratch *piece)
{
    if (piece == NULL)
        return;
    mo_lock(&device->lock);
    piece->taken = 0;
    mo_unlock(&device->lock);
}

void mo_scratch_stream_ended(memopt_device *device, memopt_stream stream, int complete)
{
    mo_lock(&device->lock);
    for (mo_scratch *each = device->scratch; each != NULL; each = each->next)
        if (!each->taken && !each->streamless && each->stream == stream) {
            each->streamless = complete;
            each->taken = !complete;
        }
    mo_unlock(&device->lock);
}

uint64_t mo_scratch_count(const memopt_device *device)
{
    uint64_t count = 0;
    for (const mo_scratch *each = device->scratch; each != NULL; each = each->next)
        count++;
    return count;
}

void mo_scratch_end(memopt_device *device)
{
    while (device->scratch != NULL) {
        mo_scratch *piece = device->scratch;
        device->scratch = piece->next;
        (void)mo_mem_free(device, piece->pointer, piece->bytes);
        mo_free(piece);
    }
}
