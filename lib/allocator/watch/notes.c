/* A device that checks how memory is used is told when a block begins, and when its memory is free
 * in the order of its stream. */
#include "allocator/watch/notes.h"

static void note(memopt_allocator *allocator, mo_sink *sink, const mo_event *event)
{
    const mo_block *block = event->block;
    const mo_pool *pool = block->segment->pool;
    (void)sink;
    if (event->what == MO_ALLOC)
        mo_note_alloc(allocator->device, block->address, block->size, event->stream);
    else if (pool->life == MO_STREAM_LIVE && !event->asleep)
        mo_note_free(allocator->device, block->address, block->size, pool->stream);
}

void mo_notes_init(memopt_allocator *allocator)
{
    const uint32_t wants = MO_WANTS(MO_ALLOC) | MO_WANTS(MO_END);
    allocator->notes = mo_device_takes_notes(allocator->device);
    allocator->noting = (mo_sink){.wants = wants, .beside = wants, .tell = note};
    if (allocator->notes && !allocator->foreign)
        mo_sink_add(allocator, &allocator->noting);
}
