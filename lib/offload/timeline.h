/*
 * A copy stream whose work is numbered: every copy is followed by a mark, marks count from 1, and
 * "mark n is complete" means that all work up to it is. Two numbers per piece of host memory (the
 * last write, the last read) then suffice to know who may use it.
 *
 * Invariants: done <= last; the event of mark n sits in ring[n % capacity] while done < n <= last,
 * so at most `capacity` marks are open. Events are made once and recorded again and again. If a
 * mark cannot be made, the call waits at once, so no work is left without a mark.
 */
#ifndef MO_OFFLOAD_TIMELINE_H
#define MO_OFFLOAD_TIMELINE_H

#include "memopt/device.h"

typedef struct mo_timeline {
    memopt_device *device;
    memopt_stream stream;
    memopt_event **ring;
    uint64_t capacity;
    uint64_t done;
    uint64_t last;
} mo_timeline;

/* On a stream of its own, or on the device's NULL stream. */
memopt_status mo_timeline_open(mo_timeline *timeline, memopt_device *device, int own_stream);

/* Waits for the stream's work. Frees everything, whatever the status. */
memopt_status mo_timeline_close(mo_timeline *timeline);

/* Makes sure that the next mark needs no memory. */
memopt_status mo_timeline_reserve(mo_timeline *timeline);

/* Marks the end of the stream's work so far. One mark was reserved. */
memopt_status mo_timeline_mark(mo_timeline *timeline, uint64_t *out_mark);

/* Does not wait; *out_done is 1 if the mark is complete. */
memopt_status mo_timeline_query(mo_timeline *timeline, uint64_t mark, int *out_done);

/* Later work of `stream` waits for the mark. */
memopt_status mo_timeline_order(mo_timeline *timeline, uint64_t mark, memopt_stream stream);

/* The calling thread waits for the mark. */
memopt_status mo_timeline_sync(mo_timeline *timeline, uint64_t mark);

#endif
