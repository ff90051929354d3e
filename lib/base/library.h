/*
 * Opening a vendor's library: where the loader finds it, or in the folders of $MEMOPT_DRIVER_PATH
 * and nowhere else.
 */
#ifndef MO_BASE_LIBRARY_H
#define MO_BASE_LIBRARY_H

#include "base/error.h"

enum { MO_LIBRARY_FILE = 256, MO_LIBRARY_TEXT = 512 };

/* $MEMOPT_DRIVER_PATH, or NULL. */
const char *mo_driver_path(void);

/* Opens the first of a NULL-ended list of names that opens; NULL where none does. Gives the file's
 * path (MO_LIBRARY_FILE), the names tried and what dlerror said (MO_LIBRARY_TEXT each). */
void *mo_library_open(const char *const *names, char *out_file, char *out_tried, char *out_problem);

/* Opens this file, whatever $MEMOPT_DRIVER_PATH is. Gives its path, or what dlerror said. */
void *mo_library_open_file(const char *path, char *out_file, char *out_problem);

/* One of these libraries that the program has loaded already, from any folder and in any version
 * ("libx.so.7" for "libx.so.5"): a process must not have two runtimes of one vendor. Gives the
 * file's path. NULL where there is none, and with $MEMOPT_DRIVER_PATH, which says what to use. End
 * it with dlclose. */
void *mo_library_loaded(const char *const *names, char *out_file);

/* One that the program has loaded, or else mo_library_open. */
void *mo_library_share(const char *const *names, char *out_file, char *out_tried,
                       char *out_problem);

/* Appends to text[size] as far as it fits. */
void mo_append(char *text, size_t size, const char *format, ...) MO_PRINTF(3, 4);

#endif
