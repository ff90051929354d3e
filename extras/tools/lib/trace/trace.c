/* The events of a trace: appended, checked, counted. */
#include "trace/trace.h"

#include "base/checked.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/precondition.h"

#include <inttypes.h>

/* Gives an unknown stream the next number. */
static memopt_status know_stream(memopt_trace *trace, uint64_t id)
{
    if (trace->stream_count > 0 && id == 0)
        return MEMOPT_OK; /* most streams, by far */
    if (!mo_trace_table_reserve(&trace->streams, 1) ||
        !mo_grow((void **)&trace->stream_ids, &trace->stream_room, trace->stream_count + 1,
                 sizeof *trace->stream_ids))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    mo_trace_entry *entry = mo_trace_table_find(&trace->streams, id);
    if (entry->state != MO_TRACE_UNUSED)
        return MEMOPT_OK;
    if (trace->stream_count >=
        MO_TRACE_USE - 1) /* the last one with MO_TRACE_USE is MO_TRACE_SAME */
        return mo_fail(MEMOPT_LIMIT_REACHED, "trace: more than %u streams", MO_TRACE_USE - 1);
    mo_trace_table_take(&trace->streams, entry, id);
    entry->state = MO_TRACE_LIVE;
    entry->number = (uint32_t)trace->stream_count;
    trace->stream_ids[trace->stream_count++] = id;
    return MEMOPT_OK;
}

memopt_status memopt_trace_create(const memopt_trace_options *options, memopt_trace **out_trace)
{
    memopt_trace_options copy;
    if (out_trace == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "trace_create: out_trace is NULL");
    memopt_status status = mo_options_read(&copy, sizeof copy, options, "memopt_trace_options");
    if (status != MEMOPT_OK)
        return status;
    memopt_trace *trace = mo_calloc(1, sizeof *trace);
    if (trace == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    trace->with_failed = copy.with_failed != 0;
    status = know_stream(trace, 0);
    if (status != MEMOPT_OK) {
        (void)memopt_trace_destroy(trace);
        return status;
    }
    *out_trace = trace;
    return MEMOPT_OK;
}

memopt_status memopt_trace_destroy(memopt_trace *trace)
{
    if (trace == NULL)
        return MEMOPT_OK;
    mo_free(trace->steps);
    mo_free(trace->stream_ids);
    mo_free(trace->blocks.entries);
    mo_free(trace->streams.entries);
    mo_free(trace->unused);
    mo_free(trace);
    return MEMOPT_OK;
}

memopt_status mo_trace_reserve(memopt_trace *trace, const memopt_trace_event *events,
                               uint64_t count)
{
    uint64_t allocs = 0, steps, slots;
    for (uint64_t i = 0; i < count; i++) {
        allocs += events[i].action == MEMOPT_TRACE_ALLOC || events[i].action == MEMOPT_TRACE_FAILED;
        if (events[i].stream == MEMOPT_TRACE_OWN_STREAM)
            continue;
        memopt_status status = know_stream(trace, events[i].stream);
        if (status != MEMOPT_OK)
            return status;
    }
    /* An allocation makes up to three events: a missing free before it if its id is alive, itself,
     * and its free if it failed. */
    if (!mo_mul_u64(allocs, 2, &steps) || !mo_add_u64(count, steps, &steps) ||
        !mo_add_u64(steps, trace->count, &steps) || !mo_add_u64(allocs, trace->slots, &slots))
        steps = slots = UINT64_MAX;
    if (!mo_grow((void **)&trace->steps, &trace->room, steps, sizeof *trace->steps) ||
        !mo_grow((void **)&trace->unused, &trace->unused_room, slots, sizeof *trace->unused) ||
        !mo_trace_table_reserve(&trace->blocks, allocs + 1)) /* + 1: find needs an unused entry */
        return MEMOPT_OUT_OF_HOST_MEMORY;
    return MEMOPT_OK;
}

static uint32_t use_stream(memopt_trace *trace, uint64_t id)
{
    mo_trace_entry *entry = mo_trace_table_find(&trace->streams, id);
    trace->info.streams += entry->bytes == 0;
    entry->bytes = 1;
    return entry->number;
}

static void add_step(memopt_trace *trace, uint64_t bytes, uint32_t block, uint32_t stream)
{
    MO_PRE(trace->count < trace->room);
    trace->steps[trace->count++] = (mo_trace_step){bytes, block, stream};
    trace->info.events = trace->count;
}

static void add_free(memopt_trace *trace, mo_trace_entry *block, uint32_t stream)
{
    MO_PRE(block->state == MO_TRACE_LIVE);
    add_step(trace, 0, block->number, stream == block->stream ? MO_TRACE_SAME : stream);
    block->state = MO_TRACE_FREED;
    trace->unused[trace->unused_count++] = block->number;
    trace->info.live_bytes -= block->bytes;
    trace->info.live_blocks--;
}

static memopt_status add_alloc(memopt_trace *trace, mo_trace_entry *block,
                               const memopt_trace_event *event, const char *kind, uint64_t record)
{
    memopt_trace_info *info = &trace->info;
    uint64_t live;
    if (!mo_add_u64(info->live_bytes, event->bytes, &live))
        return mo_fail(MEMOPT_LIMIT_REACHED,
                       "trace: %s %" PRIu64 ": %" PRIu64 " bytes and the %" PRIu64
                       " live ones do not fit 64 bits",
                       kind, record, event->bytes, info->live_bytes);
    if (trace->unused_count == 0 && trace->slots >= MO_TRACE_SAME - 1)
        return mo_fail(MEMOPT_LIMIT_REACHED, "trace: %s %" PRIu64 ": more than %u blocks alive",
                       kind, record, MO_TRACE_SAME - 1);
    block->number =
        trace->unused_count > 0 ? trace->unused[--trace->unused_count] : (uint32_t)trace->slots++;
    block->bytes = event->bytes;
    block->stream = use_stream(trace, event->stream);
    block->state = MO_TRACE_LIVE;
    add_step(trace, event->bytes, block->number, block->stream);
    info->allocations++;
    info->live_bytes = live;
    info->live_blocks++;
    info->peak_live_bytes = mo_max_u64(info->peak_live_bytes, live);
    info->peak_live_blocks = mo_max_u64(info->peak_live_blocks, info->live_blocks);
    return MEMOPT_OK;
}

static void count_first(uint64_t *count, uint64_t *first, uint64_t record)
{
    if ((*count)++ == 0)
        *first = record;
}

static memopt_status append_alloc(memopt_trace *trace, const memopt_trace_event *event,
                                  const char *kind, uint64_t record)
{
    memopt_trace_info *info = &trace->info;
    mo_trace_entry *block = mo_trace_table_find(&trace->blocks, event->id);
    if (block->state == MO_TRACE_LIVE) {
        count_first(&info->lost_frees, &info->first_lost, record);
        add_free(trace, block, block->stream);
    } else if (block->state == MO_TRACE_UNUSED) {
        mo_trace_table_take(&trace->blocks, block, event->id);
        block->state = MO_TRACE_FREED;
    }
    if (event->bytes > 0)
        return add_alloc(trace, block, event, kind, record);
    block->state = MO_TRACE_EMPTY;
    info->empty_allocations++;
    return MEMOPT_OK;
}

static void append_free(memopt_trace *trace, const memopt_trace_event *event, uint64_t record)
{
    memopt_trace_info *info = &trace->info;
    mo_trace_entry *block = mo_trace_table_find(&trace->blocks, event->id);
    switch (block->state) {
    case MO_TRACE_LIVE:
        add_free(trace, block,
                 event->stream == MEMOPT_TRACE_OWN_STREAM ? block->stream
                                                          : use_stream(trace, event->stream));
        break;
    case MO_TRACE_EMPTY:
        block->state = MO_TRACE_FREED;
        break;
    case MO_TRACE_FREED:
        count_first(&info->double_frees, &info->first_double, record);
        break;
    case MO_TRACE_UNUSED:
    default:
        count_first(&info->unknown_frees, &info->first_unknown, record);
    }
}

static void append_use(memopt_trace *trace, const memopt_trace_event *event)
{
    const mo_trace_entry *block = mo_trace_table_find(&trace->blocks, event->id);
    if (block->state != MO_TRACE_LIVE)
        return;
    uint32_t stream = use_stream(trace, event->stream);
    if (stream != block->stream)
        add_step(trace, 0, block->number, stream | MO_TRACE_USE);
}

/* One block that lives for a moment. */
static memopt_status append_failed(memopt_trace *trace, const memopt_trace_event *event,
                                   const char *kind, uint64_t record)
{
    const memopt_trace_event block = {UINT64_MAX /* no address */, event->bytes, event->stream,
                                      MEMOPT_TRACE_ALLOC};
    if (trace->with_failed) {
        memopt_status status = append_alloc(trace, &block, kind, record);
        if (status != MEMOPT_OK)
            return status;
        append_free(trace, &block, record);
    }
    trace->info.failed_allocations++;
    trace->info.failed_bytes = mo_max_u64(trace->info.failed_bytes, event->bytes);
    return MEMOPT_OK;
}

memopt_status mo_trace_append(memopt_trace *trace, const memopt_trace_event *event,
                              const char *kind, uint64_t record)
{
    if (event->action == MEMOPT_TRACE_ALLOC)
        return append_alloc(trace, event, kind, record);
    if (event->action == MEMOPT_TRACE_FAILED)
        return append_failed(trace, event, kind, record);
    if (event->action == MEMOPT_TRACE_RECORD_STREAM)
        append_use(trace, event);
    else
        append_free(trace, event, record);
    return MEMOPT_OK;
}

static memopt_status check_event(const memopt_trace_event *event, uint64_t number)
{
    if (event->action < MEMOPT_TRACE_ALLOC || event->action > MEMOPT_TRACE_RECORD_STREAM)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "trace_add: events[%" PRIu64 "].action is %" PRIu64
                       ", which is not a memopt_trace_action",
                       number, event->action);
    if (event->action != MEMOPT_TRACE_FREE && event->stream == MEMOPT_TRACE_OWN_STREAM)
        return mo_fail(
            MEMOPT_INVALID_ARGUMENT,
            "trace_add: events[%" PRIu64 "] %s MEMOPT_TRACE_OWN_STREAM, which is for frees", number,
            event->action == MEMOPT_TRACE_RECORD_STREAM ? "records" : "allocates on");
    return MEMOPT_OK;
}

memopt_status memopt_trace_add(memopt_trace *trace, const memopt_trace_event *events,
                               uint64_t count)
{
    memopt_status status = MEMOPT_OK;
    if (trace == NULL || (events == NULL && count > 0))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "trace_add: %s is NULL",
                       trace == NULL ? "trace" : "events");
    for (uint64_t i = 0; i < count && status == MEMOPT_OK; i++)
        status = check_event(&events[i], i);
    if (status == MEMOPT_OK)
        status = mo_trace_reserve(trace, events, count);
    for (uint64_t i = 0; i < count && status == MEMOPT_OK; i++)
        status = mo_trace_append(trace, &events[i], "event", ++trace->added);
    return status;
}

memopt_status memopt_trace_get_info(const memopt_trace *trace, memopt_trace_info *out_info)
{
    if (trace == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "trace_get_info: trace is NULL");
    return mo_result_write(out_info, &trace->info, sizeof trace->info, "memopt_trace_info");
}
