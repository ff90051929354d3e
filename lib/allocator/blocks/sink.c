#include "allocator/blocks/sink.h"

#include "allocator/blocks/state.h"

static void sum_up(memopt_allocator *allocator)
{
    mo_sink **end = &allocator->beside;
    allocator->told = 0;
    for (mo_sink *sink = allocator->sinks; sink != NULL; sink = sink->next) {
        allocator->told |= sink->wants;
        if (sink->beside == 0)
            continue;
        *end = sink;
        end = &sink->next_beside;
    }
    *end = NULL;
}

void mo_sink_add(memopt_allocator *allocator, mo_sink *sink)
{
    mo_sink **place = &allocator->sinks;
    while (*place != NULL)
        place = &(*place)->next;
    *place = sink;
    sink->next = NULL;
    sum_up(allocator);
}

void mo_sink_remove(memopt_allocator *allocator, mo_sink *sink)
{
    mo_sink **place = &allocator->sinks;
    while (*place != sink)
        place = &(*place)->next;
    *place = sink->next;
    sum_up(allocator);
}

static void tell_block(memopt_allocator *allocator, mo_sink *sink, mo_block *block)
{
    mo_event event = {.what = MO_ALLOC, .block = block, .stream = block->segment->pool->stream};
    sink->tell(allocator, sink, &event);
    event.what = MO_USE;
    for (const mo_stream_use *use = block->uses; use != NULL; use = use->next) {
        event.stream = use->queue->stream;
        sink->tell(allocator, sink, &event);
    }
}

void mo_sink_tell_present(memopt_allocator *allocator, mo_sink *sink)
{
    for (mo_segment *segment = allocator->segments; segment != NULL; segment = segment->next) {
        const mo_event mapped = {.what = MO_MAPPED,
                                 .segment = segment,
                                 .bytes = segment->mapped,
                                 .stream = segment->pool->stream};
        if (segment->mapped > 0 && (sink->wants & MO_WANTS(MO_MAPPED)) != 0)
            sink->tell(allocator, sink, &mapped);
        for (mo_block *block = segment->first; block != NULL; block = block->next)
            if (block->state == MO_BLOCK_LIVE)
                tell_block(allocator, sink, block);
    }
}

int mo_sinks_open(const memopt_allocator *allocator)
{
    for (mo_sink *sink = allocator->sinks; sink != NULL; sink = sink->next)
        if (sink->open != NULL && !sink->open(sink))
            return 0;
    return 1;
}

void mo_tell_all(memopt_allocator *allocator, const mo_event *event)
{
    for (mo_sink *sink = allocator->sinks; sink != NULL; sink = sink->next)
        if ((sink->wants & MO_WANTS(event->what)) != 0)
            sink->tell(allocator, sink, event);
}
