/* The order of the streams, and those that end while values were written on them; see offload.h. */
#include "offload/offload.h"

#include "base/lock.h"

static void on_ending(mo_stream_listener *listener, memopt_stream stream)
{
    memopt_offloader *offloader =
        (memopt_offloader *)(void *)((char *)listener - offsetof(memopt_offloader, listener));
    mo_lock(&offloader->streams_lock);
    for (uint64_t i = 0; i < offloader->packed_count; i++)
        if (offloader->packed[i].pack_stream == stream)
            offloader->packed[i].pack_stream = offloader->out.stream;
    mo_unlock(&offloader->streams_lock);
}

/* After on_ending nothing uses the handle. */
static void on_ended(mo_stream_listener *listener, memopt_stream stream, int complete)
{
    (void)complete;
    on_ending(listener, stream);
}

void mo_offload_listen(memopt_offloader *offloader)
{
    pthread_mutex_init(&offloader->streams_lock, NULL);
    offloader->listener = (mo_stream_listener){on_ending, on_ended, NULL};
    mo_stream_listen(offloader->device, &offloader->listener);
}

void mo_offload_unlisten(memopt_offloader *offloader)
{
    mo_stream_unlisten(offloader->device, &offloader->listener);
    pthread_mutex_destroy(&offloader->streams_lock);
}

memopt_stream mo_offload_writer(memopt_offloader *offloader, const mo_packed *value)
{
    mo_lock(&offloader->streams_lock);
    memopt_stream stream = value->pack_stream;
    mo_unlock(&offloader->streams_lock);
    return stream;
}

memopt_status mo_offload_check_stream(const memopt_offloader *offloader, memopt_stream stream,
                                      const char *call)
{
    int32_t capturing = 0;
    memopt_status status = mo_stream_capturing(offloader->device, stream, &capturing);
    if (status == MEMOPT_OK && capturing)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "%s: stream %p records a graph; a replay would copy from and to memory that "
                       "other values use by then; offload outside of the capture",
                       call, (void *)stream);
    return status;
}

memopt_status mo_offload_follow(memopt_offloader *offloader, memopt_stream stream,
                                memopt_stream waiter)
{
    if (stream == waiter)
        return MEMOPT_OK;
    MO_TRY(memopt_event_record(offloader->ready, stream));
    return memopt_stream_wait_event(offloader->device, waiter, offloader->ready);
}
