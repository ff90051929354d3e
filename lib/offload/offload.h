/*
 * The offloader: what its parts share.
 *
 * Streams and order. All copies to the host run on one stream of the offloader (`out`), all copies
 * back on another (`back`); both are timelines, so every copy has a number. What waits for what:
 *
 *   pack     out waits for the caller's stream (the value is written), and for the last copy back
 *            that read the host memory it is going to write.
 *   free     a block that was taken over is freed with `out` recorded, so the allocator gives it
 *            out again only after the copy.
 *   bring    device memory comes from the allocator in the order of the stream that will use it,
 *            not of `back`: one pool serves pack and unpack, nothing has to move between pools
 *            when memory is tight, and a free in stream order needs no event. So `back` waits for
 *            that stream's work so far (the memory may still be in use by it) and for the copy to
 *            the host. What the caller enqueues after a prefetch overlaps with the copy; what it
 *            enqueued before comes first.
 *   unpack   the caller's stream waits for the copy back.
 *   release  device memory is freed on its stream; other streams that used it, and `back` where
 *            nobody waited for the copy, are recorded first. Host memory goes to the pool with the
 *            numbers of its copies.
 *
 * No copy waits for one that is enqueued later, so there is no deadlock.
 *
 * A value is on the host (range), on the device (device), or both. Kept values have no range.
 *
 * Failure. Whatever needs memory is reserved before the first piece of work is enqueued. A pack
 * that fails after its copy was enqueued makes the caller's stream wait for that copy, so that the
 * block really is the caller's again.
 *
 * Threads: one at a time per offloader; nothing is locked.
 */
#ifndef MO_OFFLOAD_OFFLOAD_H
#define MO_OFFLOAD_OFFLOAD_H

#include "memopt/offload.h"

#include "offload/host_pool.h"

typedef enum mo_origin {
    MO_ORIGIN_HOST = 0, /* copied to the host; device memory, if any, was allocated by bring */
    MO_ORIGIN_KEPT,     /* never copied; device memory is a block taken over */
    MO_ORIGIN_BORROWED  /* never copied; device memory is the caller's */
} mo_origin;

typedef struct mo_packed {
    memopt_ticket ticket; /* 0: the place is free */
    uint64_t bytes;
    mo_host_range *range;        /* NULL: not on the host */
    void *device;                /* NULL: not on the device */
    memopt_stream pack_stream;   /* wrote the value */
    memopt_stream device_stream; /* device was allocated on it; of origin host only */
    uint64_t written;   /* on out: the copy to the host, or the work that wrote the value */
    uint64_t brought;   /* on back: the copy to device */
    uint64_t next_free; /* place of the next free one */
    mo_origin origin;
    int prefetched; /* device came by prefetch and was not unpacked yet */
    int awaited;    /* a stream of the caller waits for `brought` */
} mo_packed;

struct memopt_offloader {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_offloader_options options;
    mo_timeline out;
    mo_timeline back;
    mo_host_pool pool;
    memopt_event *ready; /* recorded on a caller's stream and waited for at once, again and again */

    mo_packed *packed;
    uint64_t packed_count;
    uint64_t packed_capacity;
    uint64_t first_free; /* packed_count: none */
    uint64_t serial;
    memopt_offloader_stats stats;
};

/* --- tickets.c */

/* Makes room for one more ticket. LIMIT_REACHED when numbers are used up. */
memopt_status mo_tickets_reserve(memopt_offloader *offloader);

/* Stores a value. Pre: reserved. Returns its ticket. */
memopt_ticket mo_tickets_add(memopt_offloader *offloader, const mo_packed *value);

/* NOT_FOUND, or INVALID_ARGUMENT where offloader is NULL; call is the function's name. The pointer
 * is valid until the next add. */
memopt_status mo_tickets_find(memopt_offloader *offloader, memopt_ticket ticket, const char *call,
                              mo_packed **out_value);

void mo_tickets_remove(memopt_offloader *offloader, mo_packed *value);

/* --- order */

/* UNSUPPORTED where the stream records a graph. Asked before anything is enqueued, since a wait for
 * work outside of the graph would spoil the capture. */
memopt_status mo_offload_check_stream(const memopt_offloader *offloader, memopt_stream stream,
                                      const char *call);
/* Makes `waiter` wait for all work of `stream` so far. */
memopt_status mo_offload_follow(memopt_offloader *offloader, memopt_stream stream,
                                memopt_stream waiter);

/* release without looking the ticket up. */
memopt_status mo_offload_drop(memopt_offloader *offloader, mo_packed *value, memopt_stream stream);

/* --- for tests: leaves out one of the dependencies above, to show that its absence is noticed. */
enum {
    MO_OMIT_NOTHING = 0,
    MO_OMIT_PACK_WAIT = 1,    /* out does not wait for the caller's stream */
    MO_OMIT_REUSE_WAIT = 2,   /* out does not wait for the last copy back */
    MO_OMIT_FREE_RECORD = 4,  /* a block taken over is freed without recording out */
    MO_OMIT_BRING_WAIT = 8,   /* back does not wait for the copy to the host */
    MO_OMIT_MEMORY_WAIT = 16, /* back does not wait for the memory's last user */
    MO_OMIT_UNPACK_WAIT = 32, /* the caller's stream does not wait for the copy back */
    MO_OMIT_RELEASE_RECORD =
        64,                 /* memory in use on other streams is freed without recording them */
    MO_OMIT_KEPT_WAIT = 128 /* release of a kept value does not wait for what wrote it */
};
extern uint32_t mo_offload_omitted;

#define MO_OMITTED(dependency) (__builtin_expect((mo_offload_omitted & (dependency)) != 0, 0))

#endif
