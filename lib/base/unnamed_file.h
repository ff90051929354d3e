/*
 * A file without a name: unlinked as soon as it is open, so that it never outlives the process;
 * whole reads and writes at an offset.
 *
 * Reads and writes return a number instead of calling mo_fail, because they may run on other
 * threads: 0, an errno, or MO_FILE_SHORT.
 */
#ifndef MO_BASE_UNNAMED_FILE_H
#define MO_BASE_UNNAMED_FILE_H

#include "memopt/base.h"

#include <sys/types.h>

enum { MO_FILE_SHORT = -2 /* the file ends before the value does */ };

/* In `path`, a directory; or at `path`, which must not exist. IO_ERROR, or INVALID_ARGUMENT if the
 * path exists; messages begin with `subject` and call the path `option`. The caller closes
 * *out_file. */
memopt_status mo_file_open(const char *subject, const char *option, const char *path,
                           int *out_file);

int mo_file_write(int file, const void *from, uint64_t bytes, uint64_t offset);
int mo_file_read(int file, void *to, uint64_t bytes, uint64_t offset);
/* What was written is in the file for sure: 0, or an errno. */
int mo_file_sync(int file);

/* What this user may still write to the file's system, in bytes; 0 if that is unknown. */
uint64_t mo_file_room(int file);

/* The name of an errno, "ENOSPC", as far as disks give it. */
const char *mo_errno_name(int code);

/* The system calls. Tests replace them by ones that fail. */
typedef struct mo_file_system {
    ssize_t (*write)(int file, const void *from, size_t bytes, off_t offset);
    ssize_t (*read)(int file, void *to, size_t bytes, off_t offset);
    int (*sync)(int file);
    int no_unnamed; /* the file system makes no file without a name */
} mo_file_system;
#ifdef MEMOPT_TEST_HOOKS
#define MO_REPLACEABLE
#else
#define MO_REPLACEABLE const
#endif
extern MO_REPLACEABLE mo_file_system mo_file_calls;

#endif
