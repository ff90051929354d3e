/*
 * The file of the disk tier: unlinked as soon as it is open, so that it never outlives the process;
 * whole reads and writes at an offset; a content hash.
 *
 * Reads and writes return a number instead of calling mo_fail, because they run on other threads:
 * 0, an errno, or one of the problems below.
 */
#ifndef MO_OFFLOAD_DISK_FILE_H
#define MO_OFFLOAD_DISK_FILE_H

#include "memopt/base.h"

#include <sys/types.h>

enum {
    MO_DISK_PENDING = -1, /* it has not run yet */
    MO_DISK_SHORT = -2,   /* the file ends before the value does */
    MO_DISK_DAMAGED = -3  /* what was read is not what was written */
};

/* In `path`, a directory; or at `path`, which must not exist. IO_ERROR, or INVALID_ARGUMENT if the
 * path exists. The caller closes *out_file. */
memopt_status mo_disk_file_open(const char *path, int *out_file);

int mo_disk_file_write(int file, const void *from, uint64_t bytes, uint64_t offset);
int mo_disk_file_read(int file, void *to, uint64_t bytes, uint64_t offset);

/* Adds bytes to a hash that starts as 0. All pieces of a value but the last are multiples of 4096
 * bytes. */
uint64_t mo_disk_hash(uint64_t hash, const void *data, uint64_t bytes);

/* The name of an errno, "ENOSPC", as far as disks give it. */
const char *mo_disk_errno_name(int code);

/* The system calls. Tests replace them by ones that fail. */
typedef struct mo_disk_system {
    ssize_t (*write)(int file, const void *from, size_t bytes, off_t offset);
    ssize_t (*read)(int file, void *to, size_t bytes, off_t offset);
    int no_unnamed; /* the file system makes no file without a name */
} mo_disk_system;
#ifdef MEMOPT_TEST_HOOKS
#define MO_REPLACEABLE
#else
#define MO_REPLACEABLE const
#endif
extern MO_REPLACEABLE mo_disk_system mo_disk_calls;

#endif
