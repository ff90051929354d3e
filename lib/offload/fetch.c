/* Bringing values back from the disk; see offload.h. */
#include "offload/offload.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"

enum { PIECE_BYTES = 1024 * 1024 };

/* Host memory to read into: free, or of a value that is also in the file. Does not wait. */
static memopt_status take_staging(memopt_offloader *offloader, uint64_t bytes,
                                  mo_host_range **out_range)
{
    for (;;) {
        memopt_status status = mo_host_pool_take(&offloader->pool, bytes, 0, out_range);
        if (status != MEMOPT_LIMIT_REACHED)
            return status;
        status = mo_spill_drop_stored(offloader);
        if (status == MEMOPT_LIMIT_REACHED)
            return mo_fail(MEMOPT_LIMIT_REACHED,
                           "offload: %s to bring back from the disk, but %s of the host limit of "
                           "%s are in use; the value is still on the disk. Release tickets first",
                           MO_SIZE(bytes), MO_SIZE(offloader->pool.used),
                           MO_SIZE(offloader->pool.limit));
        if (status != MEMOPT_OK)
            return status;
    }
}

memopt_status mo_fetch_start(memopt_offloader *offloader, mo_packed *value, mo_fetch where,
                             mo_host_range **out_staging)
{
    mo_disk *disk = offloader->disk;
    mo_host_range *range = NULL;
    MO_TRY(mo_fetch_finish(offloader, value)); /* one job of a slot at a time */
    MO_TRY(mo_timeline_reserve(&disk->line));
    MO_TRY(take_staging(offloader, value->bytes, &range));
    memopt_status status = mo_timeline_order(&offloader->out, range->written, disk->line.stream);
    if (status == MEMOPT_OK)
        status = mo_timeline_order(&offloader->back, range->read, disk->line.stream);
    if (status == MEMOPT_OK)
        status = mo_disk_read(disk, value->slot, range->base);
    if (status != MEMOPT_OK) {
        mo_host_pool_give(&offloader->pool, range);
        return status;
    }
    range->stored = value->slot->mark;
    value->fetching = where;
    *out_staging = range;
    return MEMOPT_OK;
}

memopt_status mo_fetch_finish(memopt_offloader *offloader, mo_packed *value)
{
    if (value->fetching == MO_FETCH_NONE)
        return MEMOPT_OK;
    MO_TRY(mo_spill_wait(offloader, value->slot));
    memopt_status status = mo_disk_result(value->slot);
    value->spoilt |= status != MEMOPT_OK && value->fetching == MO_FETCH_INTO;
    value->fetching = MO_FETCH_NONE;
    return status;
}

/* --- with the host full */

typedef struct destination {
    memopt_offloader *offloader;
    unsigned char *base;
} destination;

static memopt_status copy_piece(void *context, const void *piece, uint64_t offset, uint64_t bytes)
{
    const destination *to = context;
    memopt_device *device = to->offloader->device;
    memopt_stream back = to->offloader->back.stream;
    memopt_status status = memopt_copy(device, to->base + offset, piece, bytes, back);
    if (status == MEMOPT_OK)
        status = memopt_stream_sync(device, back);
    if (status != MEMOPT_OK) /* both ends of the copy are about to be freed */
        (void)memopt_device_sync(device);
    return status;
}

memopt_status mo_fetch_slowly(memopt_offloader *offloader, mo_packed *value, void *base,
                              memopt_stream stream)
{
    destination to = {offloader, base};
    uint64_t bytes = mo_min_u64(value->bytes, PIECE_BYTES);
    MO_TRY(mo_fetch_finish(offloader, value));
    MO_TRY(mo_offload_follow(offloader, stream, offloader->back.stream));
    void *buffer = mo_malloc(bytes);
    if (buffer == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    offloader->stats.disk_waits++;
    memopt_status status = mo_disk_read_pieces(value->slot, buffer, bytes, copy_piece, &to);
    mo_free(buffer);
    return status;
}
