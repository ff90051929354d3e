/* The line that a publisher answers with. It fits the room that was made when the list grew. */
#include "allocator/publish.h"

#include "allocator/internal.h"
#include "allocator/pluggable.h"
#include "base/lock.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

typedef struct entry {
    uint64_t allocated, allocated_peak, reserved, reserved_peak, ooms, retries;
} entry;

/* Adds an allocator's figures; the sum of peaks is an upper bound of the peak of a sum. */
static void add_figures(memopt_allocator *allocator, entry *sum)
{
    const mo_stats *stats = &allocator->stats;
    mo_lock(&allocator->lock);
    const mo_stat *all = stats->by_pool[MO_POOL_ALL];
    sum->allocated += all[MO_STAT_ALLOCATED_BYTES].current;
    sum->allocated_peak += all[MO_STAT_ALLOCATED_BYTES].peak;
    sum->reserved += all[MO_STAT_RESERVED_BYTES].current;
    sum->reserved_peak += all[MO_STAT_RESERVED_BYTES].peak;
    sum->ooms += stats->counter[MO_STAT_NUM_OOMS];
    sum->retries += stats->counter[MO_STAT_NUM_ALLOC_RETRIES];
    mo_unlock(&allocator->lock);
}

static uint64_t say_entry(char *text, uint64_t room, int first, memopt_allocator *allocator,
                          const entry *figures)
{
    memopt_device_properties properties = {.struct_size = sizeof properties};
    if (memopt_device_get_properties(memopt_allocator_device(allocator), &properties) != MEMOPT_OK)
        return 0;
    int length = snprintf(text, room,
                          "%s{\"device\": \"%s:%" PRId32 "\", \"allocated\": %" PRIu64
                          ", \"allocated_peak\": %" PRIu64 ", \"reserved\": %" PRIu64
                          ", \"reserved_peak\": %" PRIu64 ", \"ooms\": %" PRIu64
                          ", \"retries\": %" PRIu64 "}",
                          first ? "" : ", ", properties.backend, properties.index,
                          figures->allocated, figures->allocated_peak, figures->reserved,
                          figures->reserved_peak, figures->ooms, figures->retries);
    return length > 0 && (uint64_t)length < room ? (uint64_t)length : 0;
}

/* The allocators of one device behind the entry points for frameworks, as one; NULL if none. */
static memopt_allocator *sum_slot(mo_plug_slot *slot, entry *sum)
{
    memopt_allocator *first = atomic_load_explicit(&slot->first, memory_order_acquire);
    if (first == NULL)
        return NULL;
    add_figures(first, sum);
    if (atomic_load_explicit(&slot->pool_count, memory_order_acquire) == 0)
        return first;
    mo_lock(&mo_plug_lock);
    for (mo_graph_pool *pool = slot->pools; pool != NULL; pool = pool->next)
        add_figures(pool->allocator, sum);
    mo_unlock(&mo_plug_lock);
    return first;
}

uint64_t mo_publish_answer(memopt_publisher *publisher)
{
    char *text = publisher->text;
    uint64_t room = publisher->room;
    int head =
        snprintf(text, room, "{\"memopt\": 1, \"version\": \"%s\", \"pid\": %ld, \"allocators\": [",
                 memopt_version_string(), (long)getpid());
    uint64_t at = (uint64_t)head, start = at;
    for (uint64_t i = 0; i < publisher->count; i++) {
        entry figures = {0};
        add_figures(publisher->allocators[i], &figures);
        at += say_entry(text + at, room - at, at == start, publisher->allocators[i], &figures);
    }
    for (int i = 0; publisher->pluggable && i < MO_PLUG_DEVICES; i++) {
        entry figures = {0};
        memopt_allocator *first = sum_slot(&mo_plug_slots[i], &figures);
        if (first != NULL)
            at += say_entry(text + at, room - at, at == start, first, &figures);
    }
    int tail = snprintf(text + at, room - at, "]}\n");
    return at + (uint64_t)tail;
}
