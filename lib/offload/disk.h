/*
 * The disk tier: values in a file without a name, each in an extent of whole blocks.
 *
 * All reading and writing is done by functions of the host on one timeline, in the order in which
 * it was asked for: the caller waits for the disk only where it needs the answer, and no stream of
 * the caller's waits for it but behind a copy back. Where the driver calls no functions of the host
 * the asking thread waits for what comes before, and does it.
 *
 * A job's result is in its slot, and may be read once the slot's mark is complete. A slot has one
 * job at a time. A slot that is released while its job runs stays until that is over.
 *
 * A value is read back with a check of its content, so a disk that loses or changes something is
 * noticed. In a child process nothing is read or written: the parent goes on using the file.
 *
 * Threads: as the offloader's, one at a time; jobs run on others, and touch nothing but their slot,
 * its memory, the file and the counters.
 */
#ifndef MO_OFFLOAD_DISK_H
#define MO_OFFLOAD_DISK_H

#include "offload/disk_file.h"
#include "offload/extents.h"
#include "offload/timeline.h"

#include <stdatomic.h>

enum { MO_DISK_BLOCK = 4096 };

typedef struct mo_disk mo_disk;

typedef struct mo_disk_slot {
    mo_disk *disk;
    uint64_t offset; /* in the file */
    uint64_t bytes;  /* of the value */
    uint64_t hash;   /* of the value */
    uint64_t mark;   /* the end of the last job, on the disk's timeline */
    void *memory;    /* of that job */
    int writes;      /* what that job does */
    _Atomic int problem;
    struct mo_disk_slot *next; /* among the released or the spare ones */
} mo_disk_slot;

struct mo_disk {
    memopt_device *device;
    mo_timeline line;
    mo_extents extents;
    char *path;
    int file;
    int64_t process;
    int troubled; /* the last write that is known of failed */
    mo_disk_slot *released;
    mo_disk_slot *spare;
    _Atomic uint64_t written, read; /* bytes in all */
};

/* limit: of the file, in bytes. */
memopt_status mo_disk_open(memopt_device *device, const char *path, uint64_t limit, int own_stream,
                           mo_disk **out_disk);

/* Waits for its jobs. Everything is gone afterwards, whatever comes back. NULL is fine. */
memopt_status mo_disk_close(mo_disk *disk);

/* Begins to write memory to a new slot, behind what was put on the timeline's stream before.
 * LIMIT_REACHED without a message where the limit leaves no room. On failure nothing is under way.
 * The timeline was reserved. */
memopt_status mo_disk_write(mo_disk *disk, void *memory, uint64_t bytes, mo_disk_slot **out_slot);

/* Begins to read a slot into memory, behind what was put on the timeline's stream before. On
 * failure nothing is under way. The timeline was reserved, and the slot's last job was waited for.
 */
memopt_status mo_disk_read(mo_disk *disk, mo_disk_slot *slot, void *memory);

/* Reads a slot in pieces through `buffer` (whole blocks) on this thread, handing each to `take`. */
memopt_status mo_disk_read_pieces(mo_disk_slot *slot, void *buffer, uint64_t buffer_bytes,
                                  memopt_status (*take)(void *context, const void *piece,
                                                        uint64_t offset, uint64_t bytes),
                                  void *context);

/* What came of a slot's last job: IO_ERROR, CORRUPT or UNSUPPORTED with the numbers. Its mark
 * is complete. */
memopt_status mo_disk_result(const mo_disk_slot *slot);

/* Gives a slot's place in the file back, after its job. */
void mo_disk_release(mo_disk_slot *slot);

/* Clears away what was released and whose jobs are over. */
void mo_disk_sweep(mo_disk *disk);

/* Gives the file system back what lies behind the last value. Waits for nothing. */
void mo_disk_trim(mo_disk *disk);

#endif
