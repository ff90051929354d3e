/* The public functions of histories; see history.c. */
#include "allocator/watch/history.h"

#include "base/lock.h"
#include "base/memory.h"
#include "base/options.h"

static memopt_status start(memopt_allocator *allocator, const memopt_history_options *options)
{
    memopt_history_options copy;
    mo_history *history;
    MO_TRY(mo_options_read(&copy, sizeof copy, options, "memopt_history_options"));
    MO_TRY(mo_history_make(&copy, &history));
    mo_lock(&allocator->lock);
    int begun = mo_history_begin(allocator, history);
    mo_unlock(&allocator->lock);
    if (begun)
        return MEMOPT_OK;
    mo_history_discard(history);
    return mo_fail(MEMOPT_BUSY, "allocator_set_history: there is a history already; end it first, "
                                "by options of NULL");
}

static memopt_status stop(memopt_allocator *allocator)
{
    void *events = NULL;
    mo_lock(&allocator->lock);
    int stopped = allocator->history != NULL;
    if (stopped)
        events = mo_history_stop(allocator);
    mo_unlock(&allocator->lock);
    mo_free(events);
    return stopped ? MEMOPT_OK
                   : mo_fail(MEMOPT_NOT_FOUND, "allocator_set_history: options is NULL, which ends "
                                               "a history, but there is no history");
}

memopt_status memopt_allocator_set_history(memopt_allocator *allocator,
                                           const memopt_history_options *options)
{
    MO_NOT_NULL("allocator_set_history", allocator);
    MO_TRY(mo_check_process(allocator->device, "allocator_set_history"));
    return options != NULL ? start(allocator, options) : stop(allocator);
}

memopt_status memopt_allocator_read_history(memopt_allocator *allocator, uint64_t first,
                                            uint64_t count, memopt_history_event *out_events,
                                            uint64_t *out_first, uint64_t *out_count)
{
    if (allocator == NULL || (out_events == NULL && count != 0) || out_first == NULL ||
        out_count == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "allocator_read_history: %s is NULL",
                       allocator == NULL   ? "allocator"
                       : out_first == NULL ? "out_first"
                       : out_count == NULL ? "out_count"
                                           : "out_events");
    MO_TRY(mo_check_process(allocator->device, "allocator_read_history"));
    mo_lock(&allocator->lock);
    int found = allocator->history != NULL;
    if (found)
        mo_history_copy(allocator->history, &first, &count, out_events);
    mo_unlock(&allocator->lock);
    if (!found)
        return mo_fail(MEMOPT_NOT_FOUND, "allocator_read_history: there is no history; call "
                                         "memopt_allocator_set_history first");
    *out_first = first;
    *out_count = count;
    return MEMOPT_OK;
}
