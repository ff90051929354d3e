/*
 * What a trace is replayed on: a "cpu" device, an allocator, the trace's streams. Its blocks are
 * addresses only; nothing is ever written to them.
 */
#ifndef MO_ALLOCATOR_TRACE_MACHINE_H
#define MO_ALLOCATOR_TRACE_MACHINE_H

#include "memopt/allocator.h"
#include "trace/trace.h"

/* The progress of all passes of one call, and its callback. */
typedef struct mo_trace_meter {
    memopt_replay_progress progress;
    void *user;
    uint64_t before; /* events of the passes that are over */
    uint64_t total;
} mo_trace_meter;

/* A block. */
typedef struct mo_trace_place {
    void *address; /* NULL where it does not live */
    int used;      /* 1: a stream is recorded for it */
} mo_trace_place;

typedef struct mo_trace_machine {
    const memopt_trace *trace;
    mo_trace_meter *meter;
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_stream *streams; /* by number; NULL for the default one */
    mo_trace_place *blocks; /* by number */
    uint64_t capacity, lag;
} mo_trace_machine;

/* How one pass ended. */
typedef struct mo_trace_pass {
    uint64_t done;        /* events; fewer than all where memory ran out */
    double ns;            /* CPU time of them */
    uint64_t failed_live; /* requested bytes alive when memory ran out */
    uint64_t failed_reserved;
} mo_trace_pass;

/* More than the trace can take, whatever the configuration's fragmentation. */
uint64_t mo_trace_ample(const memopt_trace *trace);

/* Opens the device with this capacity (0: ample) and the options' lag, and makes all else. */
memopt_status mo_trace_machine_open(mo_trace_machine *machine, const memopt_trace *trace,
                                    const memopt_replay_options *options, uint64_t capacity,
                                    mo_trace_meter *meter);
void mo_trace_machine_close(mo_trace_machine *machine);

/* Called after each range of a pass that is cut into ranges. */
typedef memopt_status (*mo_trace_range)(mo_trace_machine *machine, uint64_t last, void *user);

/* Does all events, `step` at a time, and then frees what lives. range may be NULL. OK also where
 * memory ran out. Other statuses leave blocks alive; close frees them. */
memopt_status mo_trace_machine_pass(mo_trace_machine *machine, uint64_t step, mo_trace_range range,
                                    void *user, mo_trace_pass *out_pass);

memopt_status mo_trace_machine_stat(mo_trace_machine *machine, const char *name,
                                    uint64_t *out_value);

/* --- replay.c -------------------------------------------------------------------------- */

enum { MO_TRACE_RANGE = 1 << 16 }; /* events between two calls of progress */

/* Refuses a trace without allocations and a bad struct; `name` is the calling function's. */
memopt_status mo_trace_options(const memopt_trace *trace, const memopt_replay_options *options,
                               const char *name, memopt_replay_options *out_options);

#endif
