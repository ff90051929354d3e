#include "offload/timeline.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/precondition.h"

#include <string.h>

enum { FIRST_CAPACITY = 16 };

memopt_status mo_timeline_open(mo_timeline *timeline, memopt_device *device, int own_stream)
{
    memset(timeline, 0, sizeof *timeline);
    MO_TRY(own_stream ? memopt_stream_create(device, &timeline->stream) : MEMOPT_OK);
    timeline->device = device;
    return MEMOPT_OK;
}

memopt_status mo_timeline_close(mo_timeline *timeline)
{
    if (timeline->device == NULL)
        return MEMOPT_OK;
    memopt_status first = timeline->stream != NULL
                              ? memopt_stream_destroy(timeline->device, timeline->stream)
                              : memopt_stream_sync(timeline->device, NULL);
    for (uint64_t i = 0; i < timeline->capacity; i++) {
        mo_keep_first(&first, memopt_event_destroy(timeline->ring[i]));
    }
    mo_free(timeline->ring);
    memset(timeline, 0, sizeof *timeline);
    return first;
}

/* Moves `done` forward over the marks that are complete. */
static memopt_status look(mo_timeline *timeline)
{
    while (timeline->done < timeline->last) {
        uint64_t next = timeline->done + 1;
        memopt_status status = memopt_event_query(timeline->ring[next % timeline->capacity]);
        if (status == MEMOPT_NOT_READY)
            return MEMOPT_OK;
        if (status != MEMOPT_OK)
            return status;
        timeline->done = next;
    }
    return MEMOPT_OK;
}

/* Twice the room; open marks and spare events move to their places in the new ring. */
static memopt_status grow(mo_timeline *timeline)
{
    uint64_t old = timeline->capacity, capacity = old == 0 ? FIRST_CAPACITY : 2 * old;
    memopt_event **ring = mo_calloc(capacity, sizeof *ring);
    if (ring == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    for (uint64_t i = 1; i <= old; i++) {
        /* A full window of `old` numbers hits every old place once and no new place twice. */
        uint64_t mark = timeline->done + i;
        ring[mark % capacity] = timeline->ring[mark % old];
    }
    mo_free(timeline->ring);
    timeline->ring = ring;
    timeline->capacity = capacity;
    return MEMOPT_OK;
}

memopt_status mo_timeline_reserve(mo_timeline *timeline)
{
    MO_TRY(look(timeline));
    if (timeline->last - timeline->done == timeline->capacity)
        MO_TRY(grow(timeline));
    memopt_event **place = &timeline->ring[(timeline->last + 1) % timeline->capacity];
    return *place != NULL ? MEMOPT_OK : memopt_event_create(timeline->device, 0, place);
}

memopt_status mo_timeline_mark(mo_timeline *timeline, uint64_t *out_mark)
{
    uint64_t mark = timeline->last + 1;
    MO_PRE(mark - timeline->done <= timeline->capacity &&
           timeline->ring[mark % timeline->capacity] != NULL);
    if (timeline->stream == NULL && memopt_stream_query(timeline->device, NULL) == MEMOPT_OK) {
        timeline->done = timeline->last =
            mark; /* all work so far is complete: no event is needed */
        *out_mark = mark;
        return MEMOPT_OK;
    }
    memopt_status status =
        memopt_event_record(timeline->ring[mark % timeline->capacity], timeline->stream);
    if (status != MEMOPT_OK) {
        (void)memopt_stream_sync(timeline->device, timeline->stream);
        return status;
    }
    timeline->last = mark;
    *out_mark = mark;
    return MEMOPT_OK;
}

memopt_status mo_timeline_query(mo_timeline *timeline, uint64_t mark, int *out_done)
{
    MO_TRY(mark <= timeline->done ? MEMOPT_OK : look(timeline));
    *out_done = mark <= timeline->done;
    return MEMOPT_OK;
}

memopt_status mo_timeline_order(mo_timeline *timeline, uint64_t mark, memopt_stream stream)
{
    if (mark <= timeline->done || stream == timeline->stream)
        return MEMOPT_OK;
    return memopt_stream_wait_event(timeline->device, stream,
                                    timeline->ring[mark % timeline->capacity]);
}

memopt_status mo_timeline_sync(mo_timeline *timeline, uint64_t mark)
{
    if (mark <= timeline->done)
        return MEMOPT_OK;
    memopt_status status = memopt_event_sync(timeline->ring[mark % timeline->capacity]);
    if (status == MEMOPT_OK)
        timeline->done = mark; /* a stream runs in order: all before it are complete, too */
    return status;
}
