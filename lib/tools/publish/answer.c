/* The line that a publisher answers with. Its room was reserved when the list grew. */
#include "tools/publish/publish.h"

#include "tools/lock.h"
#include "tools/pluggable/pluggable.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ALLOCATED, ALLOCATED_PEAK, RESERVED, RESERVED_PEAK, OOMS, RETRIES, FIGURES, STATS = 256 };

typedef struct entry {
    uint64_t figure[FIGURES];
} entry;

static const char *const names[FIGURES] = {
    "allocated_bytes.all.current",
    "allocated_bytes.all.peak",
    "reserved_bytes.all.current",
    "reserved_bytes.all.peak",
    "num_ooms",
    "num_alloc_retries",
};

/* Adds an allocator's figures; the sum of peaks is an upper bound of the peak of a sum. */
static void add_figures(memopt_allocator *allocator, entry *sum)
{
    uint64_t values[STATS], total = 0;
    if (memopt_allocator_get_stats(allocator, STATS, values, &total) != MEMOPT_OK)
        return;
    for (uint64_t i = 0; i < total && i < STATS; i++)
        for (int n = 0; n < FIGURES; n++)
            if (strcmp(memopt_allocator_stat_name(i), names[n]) == 0)
                sum->figure[n] += values[i];
}

static uint64_t say_entry(char *text, uint64_t room, int first, memopt_allocator *allocator,
                          const entry *figures)
{
    memopt_device_properties properties = MEMOPT_DEVICE_PROPERTIES_INIT;
    if (memopt_device_get_properties(memopt_allocator_get_device(allocator), &properties) !=
        MEMOPT_OK)
        return 0;
    int length = snprintf(
        text, room,
        "%s{\"device\": \"%s:%" PRId32 "\", \"allocated\": %" PRIu64
        ", \"allocated_peak\": %" PRIu64 ", \"reserved\": %" PRIu64 ", \"reserved_peak\": %" PRIu64
        ", \"ooms\": %" PRIu64 ", \"retries\": %" PRIu64 "}",
        first ? "" : ", ", properties.backend, properties.index, figures->figure[ALLOCATED],
        figures->figure[ALLOCATED_PEAK], figures->figure[RESERVED], figures->figure[RESERVED_PEAK],
        figures->figure[OOMS], figures->figure[RETRIES]);
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
    mo_tools_lock(&mo_plug_lock);
    for (mo_graph_pool *pool = slot->pools; pool != NULL; pool = pool->next)
        add_figures(pool->allocator, sum);
    mo_tools_unlock(&mo_plug_lock);
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
