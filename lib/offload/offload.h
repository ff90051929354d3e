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
 * A value is on the host (range), in the file of the disk tier (slot), on the device (device), or
 * in several of these places. Kept values have neither range nor slot.
 *
 * Spilling (spill.c). Values on the host that have no slot are in a list by age; so are those with
 * a slot, whose write is under way or done. A value's host memory is freed only after its write
 * succeeded, so a failing disk loses no value.
 *
 *   store    the disk's stream waits for the copy to the host, then writes.
 *   fetch    the disk's stream reads into host memory taken for that, after the copies that used it
 *            before; `back` waits for the read, and the host memory is free again, behind that
 *            copy. The calling thread waits for the disk and checks the data before it returns the
 *            value.
 *
 * Fixed values (fixed.c) never leave their place: those of memopt_offloader_reserve() the host, those
 * of memopt_offloader_map_file() the file. They are in no list by age. While the host writes one
 * (`hosted`), no copy of it begins; before that the calling thread has waited for those that read it.
 *
 *   rewrite  as a pack into the same host memory: out waits for the caller's stream and for the last
 *            copy back that read it.
 *
 * Failure. Whatever needs memory is reserved before the first piece of work is enqueued. A pack
 * that fails after its copy was enqueued waits for that copy, so that the caller may use the block
 * again.
 *
 * Streams that end. When a stream has ended its work is complete, and a new stream may get its
 * handle. So only prefetch uses a stored handle (pack_stream), and streams.c replaces it by `out`
 * when its stream ends. All other uses are recorded with the allocator, which knows the stream of
 * each block.
 *
 * Threads: one at a time per offloader; but a stream may end on any thread, so `streams_lock`
 * guards the array of values (its place, and each pack_stream). It comes after the device's lock of
 * listeners and before none.
 */
#ifndef MO_OFFLOAD_OFFLOAD_H
#define MO_OFFLOAD_OFFLOAD_H

#include "memopt/offload.h"

#include "device/device.h"
#include "offload/disk.h"
#include "offload/host_pool.h"

#include <pthread.h>

typedef enum mo_origin {
    MO_ORIGIN_HOST = 0, /* copied to the host; device memory, if any, was allocated by bring */
    MO_ORIGIN_KEPT,     /* never copied; device memory is a block taken over */
    MO_ORIGIN_BORROWED  /* never copied; device memory is the caller's */
} mo_origin;

typedef enum mo_fetch { MO_FETCH_NONE = 0, MO_FETCH_OWN, MO_FETCH_INTO } mo_fetch;

typedef struct mo_packed {
    memopt_ticket ticket; /* 0: the place is free */
    uint64_t bytes;
    mo_host_range *range;      /* NULL: not on the host */
    mo_disk_slot *slot;        /* NULL: not in the file */
    void *device;              /* NULL: not on the device */
    memopt_stream pack_stream; /* wrote the value; `out` once that one has ended */
    uint64_t written;          /* on out: the copy to the host, or the work that wrote the value */
    uint64_t brought;          /* on back: the copy to device */
    uint64_t into;             /* on back: the last copy into the caller's memory */
    uint64_t next_free;        /* place of the next free one */
    uint64_t older, newer;     /* places + 1 of the neighbours in its list; 0: none */
    mo_origin origin;
    int fixed;         /* it stays where it is: range, or a slot of a file of the caller's */
    uint32_t hosted;   /* the host's access that was not ended: a memopt_host_access, or 0 */
    int prefetched;    /* device came by prefetch and was not unpacked yet */
    int awaited;       /* a stream of the caller waits for `brought` */
    mo_fetch fetching; /* where to the last read of the slot goes that was not looked at yet */
    int spoilt;        /* such a read failed; wait_unpacked has not returned that yet */
} mo_packed;

/* Values by age, as places + 1 of the ends; 0: none. */
typedef struct mo_age_list {
    uint64_t oldest, newest;
} mo_age_list;

/* A value on the host is in one of these: without a slot, by the kind of its slab, or with one. */
enum { MO_LIST_LARGE, MO_LIST_SMALL, MO_LIST_STORED, MO_LIST_COUNT };

struct memopt_offloader {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_offloader_options options;
    mo_timeline out;
    mo_timeline back;
    mo_host_pool pool;
    mo_disk *disk; /* NULL: no disk tier, and no mapped file */
    mo_age_list lists[MO_LIST_COUNT];
    uint64_t stored_bytes; /* payload of the values in MO_LIST_STORED */
    uint64_t fixed_bytes;  /* payload of fixed values on the host */
    int spills;            /* MEMOPT_OVERFLOW_SPILL */
    memopt_event *ready; /* recorded on a caller's stream and waited for at once, again and again */

    mo_stream_listener listener;
    pthread_mutex_t streams_lock;
    mo_packed *packed;
    uint64_t packed_count;
    uint64_t packed_capacity;
    uint64_t first_free; /* packed_count: none */
    uint64_t serial;
    int prefetching; /* memory for a prefetch is being allocated */
    memopt_offloader_stats stats;
};

/* --- tickets.c */

/* Makes room for one more ticket. LIMIT_REACHED when numbers are used up. */
memopt_status mo_tickets_reserve(memopt_offloader *offloader);

/* Stores a value in the place that was reserved. Returns its ticket. */
memopt_ticket mo_tickets_add(memopt_offloader *offloader, const mo_packed *value);

/* NOT_FOUND, or INVALID_ARGUMENT where offloader is NULL; call is the function's name. The pointer
 * is valid until the next add. */
memopt_status mo_tickets_find(memopt_offloader *offloader, memopt_ticket ticket, const char *call,
                              mo_packed **out_value);

void mo_tickets_remove(memopt_offloader *offloader, mo_packed *value);

/* --- streams.c */
void mo_offload_listen(memopt_offloader *offloader);
void mo_offload_unlisten(memopt_offloader *offloader);
/* The stream that wrote the value, or `out`. */
memopt_stream mo_offload_writer(memopt_offloader *offloader, const mo_packed *value);

/* --- order */

/* UNSUPPORTED where the stream records a graph. Checked before anything is enqueued, because a wait
 * for work outside the graph would break the capture. */
memopt_status mo_offload_check_stream(const memopt_offloader *offloader, memopt_stream stream,
                                      const char *call);
/* Makes `waiter` wait for all work of `stream` so far. */
memopt_status mo_offload_follow(memopt_offloader *offloader, memopt_stream stream,
                                memopt_stream waiter);

/* --- unpack.c: release without looking the ticket up. */
memopt_status mo_offload_drop(memopt_offloader *offloader, mo_packed *value, memopt_stream stream);

/* --- spill.c */

/* Host memory for a value; moves older values to the disk if necessary. LIMIT_REACHED without a
 * message if neither the host nor the disk has room. */
memopt_status mo_spill_take(memopt_offloader *offloader, uint64_t bytes, mo_host_range **out_range);
/* Registers a value on the host, and starts to write old ones when little room is left. */
void mo_spill_packed(memopt_offloader *offloader, memopt_ticket ticket);
/* Frees the host memory of a value whose write is done. Does not wait; LIMIT_REACHED without a
 * message if there is none. */
memopt_status mo_spill_drop_stored(memopt_offloader *offloader);
/* Waits for the job of a slot. */
memopt_status mo_spill_wait(memopt_offloader *offloader, const mo_disk_slot *slot);
/* A value is released: takes it out of its list and gives its slot back. */
void mo_spill_forget(memopt_offloader *offloader, mo_packed *value);

/* --- fetch.c */

/* Begins to read a value that is only in the file into host memory taken for it, which the caller
 * gives back to the pool. LIMIT_REACHED with a message if none is available at once. */
memopt_status mo_fetch_start(memopt_offloader *offloader, mo_packed *value, mo_fetch where,
                             mo_host_range **out_staging);
/* Waits for the disk's read of a value and returns its result. */
memopt_status mo_fetch_finish(memopt_offloader *offloader, mo_packed *value);
/* Brings a value that is only in the file to `destination`, free in the order of `stream`, waiting
 * for each copy; used when the host is full. */
memopt_status mo_fetch_slowly(memopt_offloader *offloader, mo_packed *value, void *destination,
                              memopt_stream stream);

/* pack.c, unpack.c: what the requests do, and what memopt/offload.h says of them. */
memopt_status mo_offloader_pack_borrowed(memopt_offloader *offloader, const void *data,
                                         uint64_t bytes, memopt_stream stream,
                                         memopt_ticket *out_ticket, int32_t *out_kept);
memopt_status mo_offloader_unpack_into(memopt_offloader *offloader, memopt_ticket ticket,
                                       void *destination, uint64_t bytes, memopt_stream stream);

#endif
