/* The smallest device that a trace completes on: bisection over pages. */
#include "trace/replayer.h"

#include "base/checked.h"
#include "base/error.h"

#include <inttypes.h>

static const uint64_t page = (uint64_t)2 << 20;
enum { GUESSED_PROBES = 12 };

typedef struct search {
    const memopt_trace *trace;
    const memopt_replay_options *options;
    mo_trace_meter meter;
    uint64_t low, high; /* pages: does not complete, completes */
} search;

/* How many bytes the trace needed of this capacity; *out_pass says whether it completed. */
static memopt_status probe(search *s, uint64_t capacity, mo_trace_pass *out_pass,
                           uint64_t *out_reserved)
{
    mo_trace_machine machine;
    memopt_status status =
        mo_trace_machine_open(&machine, s->trace, s->options, capacity, &s->meter);
    if (status != MEMOPT_OK)
        return status;
    status = mo_trace_machine_pass(&machine, MO_TRACE_RANGE, NULL, NULL, out_pass);
    if (status == MEMOPT_OK)
        status = mo_trace_machine_stat(&machine, "reserved_bytes.all.peak", out_reserved);
    mo_trace_machine_close(&machine);
    return status;
}

static memopt_status does_not_complete(const search *s, uint64_t capacity,
                                       const mo_trace_pass *pass)
{
    return mo_fail(MEMOPT_OUT_OF_DEVICE_MEMORY,
                   "trace_find_capacity: the trace does not complete on %s: event %" PRIu64
                   " of %" PRIu64 " asks for %s while %s are alive and %s are held",
                   MO_SIZE(capacity), pass->done + 1, s->trace->count,
                   MO_SIZE(s->trace->steps[pass->done].bytes), MO_SIZE(pass->failed_live),
                   MO_SIZE(pass->failed_reserved));
}

/* The most replays that halving this many pages takes. */
static uint64_t halvings(uint64_t pages)
{
    uint64_t count = 0;
    for (; pages > 1; pages -= pages / 2)
        count++;
    return count;
}

/* Halves until neighbours are left. */
static memopt_status bisect(search *s)
{
    uint64_t reserved;
    mo_trace_pass pass;
    while (s->high - s->low > 1) {
        uint64_t middle = s->low + (s->high - s->low) / 2;
        s->meter.total = s->meter.before + halvings(s->high - s->low) * s->trace->count;
        memopt_status status = probe(s, middle * page, &pass, &reserved);
        if (status != MEMOPT_OK)
            return status;
        if (pass.done == s->trace->count)
            s->high = middle;
        else
            s->low = middle;
    }
    return MEMOPT_OK;
}

/* The bytes reserved without a limit mostly suffice as a limit too, unless the configuration allows
 * only a part of the device. The largest is known to suffice. */
static memopt_status bracket(search *s, uint64_t largest, uint64_t reserved)
{
    mo_trace_pass pass;
    uint64_t most = largest / page;
    s->low = (s->trace->info.peak_live_bytes - 1) / page;
    for (s->high = mo_ceil_div_u64(reserved, page); s->high < most; s->high *= 2) {
        memopt_status status = probe(s, s->high * page, &pass, &reserved);
        if (status != MEMOPT_OK || pass.done == s->trace->count)
            return status;
        s->low = s->high;
    }
    s->high = most;
    return MEMOPT_OK;
}

memopt_status memopt_trace_find_capacity(const memopt_trace *trace,
                                         const memopt_replay_options *options,
                                         uint64_t *out_capacity)
{
    memopt_replay_options copy;
    if (out_capacity == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "trace_find_capacity: out_capacity is NULL");
    memopt_status status = mo_trace_options(trace, options, "trace_find_capacity", &copy);
    if (status != MEMOPT_OK)
        return status;
    search s = {.trace = trace,
                .options = &copy,
                .meter = {.progress = copy.progress, .user = copy.progress_user}};
    uint64_t largest = copy.capacity > 0 ? copy.capacity : mo_trace_ample(trace), reserved;
    mo_trace_pass pass;
    s.meter.total = GUESSED_PROBES * trace->count;
    status = probe(&s, largest, &pass, &reserved);
    if (status == MEMOPT_OK && pass.done < trace->count)
        return does_not_complete(&s, largest, &pass);
    if (status == MEMOPT_OK)
        status = bracket(&s, largest, reserved);
    if (status == MEMOPT_OK)
        status = bisect(&s);
    if (status == MEMOPT_OK)
        *out_capacity = s.high * page;
    return status;
}
