/*
 * What happens to blocks and memory, and who follows it. A feature that follows registers a sink
 * for the events that it wants; those that tell do not know who listens. Sinks are told in the
 * order of their registration, under the allocator's lock. Of ALLOC, FREE and END a sink may also
 * be told in a stripe, beside other threads: that of those in `beside`.
 */
#ifndef MO_ALLOCATOR_SINK_H
#define MO_ALLOCATOR_SINK_H

#include "memopt/allocator.h"
#include "memopt/allocator_report.h"

#include <stdatomic.h>

struct mo_block;
struct mo_request;
struct mo_segment;

/* The first ones are those of a history. */
typedef enum mo_happening {
    MO_ALLOC = MEMOPT_HISTORY_ALLOC,         /* block, request, stream */
    MO_USE = MEMOPT_HISTORY_RECORD_STREAM,   /* block, stream: a stream that uses it */
    MO_FREE = MEMOPT_HISTORY_FREE,           /* block: the caller's free */
    MO_COMPLETED = MEMOPT_HISTORY_COMPLETED, /* block: no stream uses it any more */
    MO_FAILED = MEMOPT_HISTORY_FAILED,       /* request */
    MO_MAPPED = MEMOPT_HISTORY_MAP,          /* segment, bytes */
    MO_UNMAPPED = MEMOPT_HISTORY_UNMAP,      /* segment, bytes */
    MO_WAITS,                                /* block: its free waits for streams */
    MO_END                                   /* block, asleep: it goes back to its pool */
} mo_happening;

typedef struct mo_event {
    mo_happening what;
    int asleep; /* its pages are not there */
    struct mo_block *block;
    const struct mo_request *request;
    const struct mo_segment *segment;
    uint64_t bytes;
    memopt_stream stream;
} mo_event;

#define MO_WANTS(what) (UINT32_C(1) << (what))

typedef struct mo_sink mo_sink;
struct mo_sink {
    mo_sink *next, *next_beside;
    uint32_t wants;  /* bits: MO_WANTS */
    uint32_t beside; /* of them, in stripes, too */
    void (*tell)(memopt_allocator *allocator, mo_sink *sink, const mo_event *event);
    /* The gate is about to open; 0: it stays closed. NULL: it may open. */
    int (*open)(mo_sink *sink);
    /* In stripes, while the first is below the second; NULL: always. */
    const _Atomic uint64_t *count;
    uint64_t until;
};

/* Lock held, or nobody else has the allocator yet. */
void mo_sink_add(memopt_allocator *allocator, mo_sink *sink);
void mo_sink_remove(memopt_allocator *allocator, mo_sink *sink);
/* Tells one sink of the live blocks, as if they were allocated now, and, if it wants that, of the
 * memory that is mapped. Lock held. */
void mo_sink_tell_present(memopt_allocator *allocator, mo_sink *sink);
/* Asks all before the gate opens; 0: it stays closed. */
int mo_sinks_open(const memopt_allocator *allocator);

void mo_tell_all(memopt_allocator *allocator, const mo_event *event);

#endif
