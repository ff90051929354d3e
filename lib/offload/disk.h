/*
 * The disk tier: values in a file without a name, each in an extent of whole blocks.
 *
 * Host functions on one timeline read and write in the order of the requests. The caller waits for
 * the disk only when it needs the result; its streams wait only through a copy back. If the driver
 * cannot call host functions, the requesting thread waits for earlier jobs and does the work.
 *
 * A job's result is in its slot, and may be read once the slot's mark is complete. A slot has one
 * job at a time. A slot that is released while its job runs stays until the job ends.
 *
 * A value is read back with a check of its content, so lost or changed bytes are found. A slot may
 * also be a part of a file of the caller's, which is only read: its first read decides what the
 * content is.
 *
 * Threads: as the offloader's, one at a time; jobs run on others, and touch nothing but their slot,
 * its memory, the file and the counters.
 */
#ifndef MO_OFFLOAD_DISK_H
#define MO_OFFLOAD_DISK_H

#include "base/unnamed_file.h"
#include "offload/extents.h"
#include "offload/mapped.h"
#include "offload/timeline.h"

#include <stdatomic.h>

enum { MO_DISK_BLOCK = 4096 };

/* What a job may end with, beside 0, an errno and MO_FILE_SHORT. */
enum {
    MO_DISK_PENDING = -1, /* it has not run yet */
    MO_DISK_DAMAGED = -3  /* what was read is not what was written */
};

typedef struct mo_disk mo_disk;

typedef struct mo_disk_slot {
    mo_disk *disk;
    uint64_t offset; /* in the file */
    uint64_t bytes;  /* of the value */
    uint64_t hash;   /* of the value, once it is `hashed` */
    uint64_t mark;   /* the end of the last job, on the disk's timeline */
    void *memory;    /* of that job */
    int writes;      /* what that job does */
    int hashed;
    mo_mapped_file *mapped; /* NULL: the tier's own file */
    _Atomic int problem;
    struct mo_disk_slot *next; /* among the released or the spare ones */
} mo_disk_slot;

struct mo_disk {
    memopt_device *device;
    mo_timeline line;
    mo_extents extents;
    char *path; /* NULL, with file -1: there is no file of its own */
    int file;
    mo_mapped_file *mapped; /* the files of the caller's */
    int troubled;           /* the last write that is known of failed */
    mo_disk_slot *released;
    mo_disk_slot *spare;
    _Atomic uint64_t written, read; /* bytes in all */
};

/* limit: of the file, in bytes. path NULL: for mapped files only. */
memopt_status mo_disk_open(memopt_device *device, const char *path, uint64_t limit, int own_stream,
                           mo_disk **out_disk);

/* Waits for its jobs. Frees everything, whatever the status. NULL is allowed. */
memopt_status mo_disk_close(mo_disk *disk);

/* Begins to write memory to a new slot, after earlier work of the timeline's stream. LIMIT_REACHED
 * without a message if the limit leaves no room. On failure no job is pending. The timeline was
 * reserved. */
memopt_status mo_disk_write(mo_disk *disk, void *memory, uint64_t bytes, mo_disk_slot **out_slot);

/* A new slot, a part of a file of the caller's; mapped.h has the statuses. */
memopt_status mo_disk_map(mo_disk *disk, const char *path, uint64_t offset, uint64_t bytes,
                          mo_disk_slot **out_slot);

/* Begins to read a slot into memory, after earlier work of the timeline's stream. On failure no job
 * is pending. The timeline was reserved, and the slot's last job was waited for. */
memopt_status mo_disk_read(mo_disk *disk, mo_disk_slot *slot, void *memory);

/* Reads a slot in pieces through `buffer` (whole blocks) on this thread, handing each to `take`. */
memopt_status mo_disk_read_pieces(mo_disk_slot *slot, void *buffer, uint64_t buffer_bytes,
                                  memopt_status (*take)(void *context, const void *piece,
                                                        uint64_t offset, uint64_t bytes),
                                  void *context);

/* The result of a slot's last job: OK, or IO_ERROR, CORRUPT or DRIVER_ERROR with the numbers. Its
 * mark is complete. */
memopt_status mo_disk_result(const mo_disk_slot *slot);

/* Gives back a slot's place in the file, after its job. */
void mo_disk_release(mo_disk_slot *slot);

/* Frees the released slots whose jobs have ended. */
void mo_disk_sweep(mo_disk *disk);

/* Truncates the file behind the last value. Does not wait. */
void mo_disk_trim(mo_disk *disk);

#endif
