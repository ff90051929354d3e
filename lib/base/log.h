/*
 * The process-wide log sink. Lines above the level are dropped before they are formatted.
 *
 * A line that comes while the thread holds a lock of the library (lock.h) waits until it holds
 * none, in room for a few lines; what does not fit is counted and told. Lines that the callback
 * itself causes are dropped, and the last error that it finds is there again when it returns.
 */
#ifndef MO_BASE_LOG_H
#define MO_BASE_LOG_H

#include "base/error.h"

/* memopt_set_log with a level that exists. 0: this thread is inside the callback. */
int mo_log_set_sink(memopt_log_callback callback, void *user, memopt_log_level level);

void mo_log(memopt_log_level level, const char *format, ...) MO_PRINTF(2, 3);

/* The thread's locks, and the lines that wait for the last of them. Not of the initial-exec model:
 * a library that is loaded by dlopen finds little room in the static block of thread-locals. */
typedef struct mo_log_state {
    int locks;
    int lines; /* that wait, those that did not fit included */
} mo_log_state;
extern __attribute__((visibility("hidden"))) _Thread_local mo_log_state mo_log_held;

/* Hands over the lines that wait; no lock is held. */
void mo_log_flush(void);

#endif
