#include "allocator/streams/stream_state.h"

#include "base/log.h"

memopt_status mo_stream_check(const memopt_allocator *allocator, memopt_stream stream)
{
    int32_t capturing;
    if (stream == NULL)
        return MEMOPT_OK;
    memopt_status status = mo_stream_capturing(allocator->device, stream, &capturing);
    return status == MEMOPT_INVALID_ARGUMENT ? status : MEMOPT_OK;
}

/* A handle that no stream has: the address of its owner. */
void mo_stream_dead(memopt_allocator *allocator, memopt_stream stream)
{
    mo_log(MEMOPT_LOG_WARNING,
           "allocator: stream %p was destroyed without memopt_stream_release_sync; what it used is "
           "held until a wait for the device",
           (void *)stream);
    for (mo_pool *pool = allocator->pools; pool != NULL; pool = pool->next) {
        if (pool->stream != stream || pool->life != MO_STREAM_LIVE)
            continue;
        mo_plan_forget(allocator, pool, NULL);
        pool->life = MO_STREAM_ENDING;
        pool->awaited = 0;
        pool->stream = (memopt_stream)(void *)pool;
    }
    for (mo_use_queue *queue = allocator->events.queues; queue != NULL; queue = queue->next) {
        if (queue->stream != stream || queue->life != MO_STREAM_LIVE)
            continue;
        queue->life = MO_STREAM_ENDING;
        queue->awaited = 0;
        queue->stream = (memopt_stream)(void *)queue;
    }
}

/* Where the driver does not say, the stream is taken for one that records: nothing is spoilt then.
 */
int mo_stream_captures(memopt_allocator *allocator, memopt_stream stream)
{
    int32_t capturing = 0;
    memopt_status status = mo_stream_capturing(allocator->device, stream, &capturing);
    if (status == MEMOPT_INVALID_ARGUMENT)
        mo_stream_dead(allocator, stream);
    return status == MEMOPT_OK ? capturing : status == MEMOPT_DRIVER_ERROR;
}
