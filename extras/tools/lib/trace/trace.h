/*
 * A trace, and which file owns what:
 *
 *   trace.c           its events: appended, checked, counted
 *   block_table.[ch]  what it knows of an id or a stream
 *   csv.c             text to events
 *   replayer.c        a device and an allocator to replay on; one pass
 *   replay.c          passes, times, samples
 *   capacity.c        the search for the smallest device
 *
 * A block has a number, by which a replay finds its pointer. Numbers of freed blocks are given out
 * again, so that they stay below the most that are alive at once.
 *
 * Invariants: live blocks and the numbers in `unused` tile 0 … slots; events of frees name a live
 * block.
 */
#ifndef MO_ALLOCATOR_TRACE_H
#define MO_ALLOCATOR_TRACE_H

#include "memopt/tools/trace.h"
#include "trace/block_table.h"

typedef struct mo_trace_step {
    uint64_t bytes;  /* 0: a free or a recorded stream */
    uint32_t block;  /* its number */
    uint32_t stream; /* its number, with MO_TRACE_USE where it is recorded; MO_TRACE_SAME in a free
                      * on the block's own */
} mo_trace_step;

#define MO_TRACE_SAME UINT32_MAX
#define MO_TRACE_USE (UINT32_C(1) << 31) /* numbers of streams are below it */

static inline int mo_trace_is_use(const mo_trace_step *step)
{
    return step->stream >= MO_TRACE_USE && step->stream != MO_TRACE_SAME;
}

enum { MO_TRACE_LINE = 4096, MO_TRACE_COLUMNS = 64, MO_TRACE_EMPTY_LINES = 1 << 20 };

/* Where a CSV text stands between two pieces. */
typedef struct mo_trace_csv {
    uint64_t line;        /* lines of this text so far */
    uint64_t empty;       /* of them without anything */
    memopt_status status; /* not OK: the reading has failed at `line` */
    int has_header;
    int columns;
    int action, pointer, size, stream; /* columns; stream is -1 where there is none */
    uint64_t kept;                     /* bytes of an unfinished line */
    char text[MO_TRACE_LINE];
} mo_trace_csv;

struct memopt_trace {
    mo_trace_step *steps;
    uint64_t count, room;
    uint64_t *stream_ids; /* by number; number 0 is stream 0 */
    uint64_t stream_count, stream_room;
    mo_trace_table blocks;
    mo_trace_table streams; /* `bytes` is 1 in those that an event has used */
    uint32_t *unused;       /* numbers to give out again; room for all */
    uint64_t unused_count, unused_room;
    uint64_t slots; /* numbers ever given out */
    uint64_t added; /* events given to memopt_trace_add */
    int with_failed;
    memopt_trace_info info;
    mo_trace_csv csv;
};

/* Makes room for these events and registers their streams; the trace's figures do not change. */
memopt_status mo_trace_reserve(memopt_trace *trace, const memopt_trace_event *events,
                               uint64_t count);
/* Appends one event; `kind` and `record` name it in messages ("line 7"). Room was reserved. */
memopt_status mo_trace_append(memopt_trace *trace, const memopt_trace_event *event,
                              const char *kind, uint64_t record);
#endif
