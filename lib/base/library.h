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

/* Appends to text[size] as far as it fits. */
void mo_append(char *text, size_t size, const char *format, ...) MO_PRINTF(3, 4);

#endif
