/* Files: the small texts of /proc and /sys, and bytes. */
#ifndef MO_BASE_SMALL_FILE_H
#define MO_BASE_SMALL_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Reads the start of a file as text without its last newline. 0, or an errno. */
int mo_read_text(const char *path, char *text, size_t size);
/* Exactly `bytes` from where the file is. 0 where it ends before, or fails with errno. */
int mo_read_bytes(int file, void *data, uint64_t bytes);
/* pwrite, or what a test puts in its place. */
typedef ssize_t mo_write_call(int file, const void *data, size_t bytes, off_t offset);
/* Writes all of it. 0, or an errno: EFBIG beyond the process's limit of a file's size, without the
 * signal. */
int mo_write_at(mo_write_call *call, int file, const void *data, uint64_t bytes, uint64_t offset);
/* A file that holds one decimal number. 0, or an errno (EINVAL: it is none). */
int mo_read_number(const char *path, uint64_t *out_number);
/* "12" → 12; 0 where the whole text is not a number that fits. */
int mo_parse_number(const char *text, uint64_t *out_number);

#endif
