/*
 * Files of the caller's that are read, and never written: opened once for all values that lie in
 * one. They are read by pread and not mapped, so a file that becomes shorter is an error of the
 * read and no signal.
 *
 * Threads: one at a time.
 */
#ifndef MO_OFFLOAD_MAPPED_H
#define MO_OFFLOAD_MAPPED_H

#include "memopt/base.h"

typedef struct mo_mapped_file {
    int file;
    char *path;
    uint64_t device, inode; /* what the path named when it was opened */
    uint64_t uses;
    struct mo_mapped_file *next;
} mo_mapped_file;

/* The file for a value at `offset`, one more use of it. IO_ERROR where it cannot be opened;
 * INVALID_ARGUMENT where it is no regular file, or ends before the value does. */
memopt_status mo_mapped_open(mo_mapped_file **list, const char *path, uint64_t offset,
                             uint64_t bytes, mo_mapped_file **out_file);

/* Ends a use; the last one closes the file. */
void mo_mapped_close(mo_mapped_file **list, mo_mapped_file *file);
void mo_mapped_close_all(mo_mapped_file **list);

#endif
