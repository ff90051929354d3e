/*
 * The streams that have used an optimizer. Before a free, the optimizer records each of them with
 * the allocator. It drops a stream that ends; until that stream's work is complete, a free waits
 * for the device.
 *
 * `streams_lock` is held while a stream is recorded, so that the stream cannot end meanwhile. It
 * comes after the device's lock of listeners, before the allocator's.
 */
#include "optim/optim.h"

#include "base/lock.h"
#include "base/memory.h"

static memopt_optimizer *owner_of(mo_stream_listener *listener)
{
    return (memopt_optimizer *)(void *)((char *)listener - offsetof(memopt_optimizer, listener));
}

static void on_ending(mo_stream_listener *listener, memopt_stream stream)
{
    memopt_optimizer *o = owner_of(listener);
    mo_lock(&o->streams_lock);
    for (uint64_t i = 0; i < o->stream_count; i++)
        if (o->streams[i].stream == stream)
            o->streams[i].ending = 1;
    mo_unlock(&o->streams_lock);
}

static void on_ended(mo_stream_listener *listener, memopt_stream stream, int complete)
{
    memopt_optimizer *o = owner_of(listener);
    uint64_t kept = 0;
    mo_lock(&o->streams_lock);
    for (uint64_t i = 0; i < o->stream_count; i++) {
        if (o->streams[i].stream != stream)
            o->streams[kept++] = o->streams[i];
        else if (!complete)
            o->unwaited = 1;
    }
    o->stream_count = kept;
    mo_unlock(&o->streams_lock);
}

void mo_optimizer_listen(memopt_optimizer *o)
{
    pthread_mutex_init(&o->streams_lock, NULL);
    o->listener = (mo_stream_listener){on_ending, on_ended, NULL};
    mo_stream_listen(o->device, &o->listener);
}

void mo_optimizer_unlisten(memopt_optimizer *o)
{
    mo_stream_unlisten(o->device, &o->listener);
    pthread_mutex_destroy(&o->streams_lock);
    mo_free(o->streams);
}

static int add(memopt_optimizer *o, memopt_stream stream)
{
    for (uint64_t i = 0; i < o->stream_count; i++)
        if (o->streams[i].stream == stream)
            return 1;
    if (!mo_grow((void **)&o->streams, &o->stream_capacity, o->stream_count + 1,
                 sizeof *o->streams))
        return 0;
    o->streams[o->stream_count++] = (mo_optimizer_stream){stream, 0};
    return 1;
}

memopt_status mo_optimizer_use_stream(memopt_optimizer *o, memopt_stream stream)
{
    mo_lock(&o->streams_lock);
    int added = add(o, stream);
    mo_unlock(&o->streams_lock);
    return added ? MEMOPT_OK : MEMOPT_OUT_OF_HOST_MEMORY;
}

/* Records the live streams with the allocator. *out_wait is 1 if others may have pending work. */
static memopt_status tell_uses(memopt_optimizer *o, void *block, int *out_wait)
{
    memopt_status result = MEMOPT_OK;
    mo_lock(&o->streams_lock);
    *out_wait = o->unwaited;
    for (uint64_t i = 0; i < o->stream_count; i++) {
        memopt_status status = MEMOPT_OK;
        if (o->streams[i].ending)
            *out_wait = 1;
        else
            status = memopt_allocator_record_stream(o->allocator, block, o->streams[i].stream);
        result = result == MEMOPT_OK ? status : result;
    }
    mo_unlock(&o->streams_lock);
    return result;
}

memopt_status mo_optimizer_release(memopt_optimizer *o, void *block)
{
    int wait;
    if (block == NULL)
        return MEMOPT_OK;
    memopt_status result = tell_uses(o, block, &wait);
    if (result != MEMOPT_OK || wait) /* unknown which work is pending: wait for all */
        (void)memopt_device_sync(o->device);
    memopt_status status = memopt_allocator_free(o->allocator, block);
    return result == MEMOPT_OK ? status : result;
}
