/*
 * The process-wide log sink. Lines above the level are dropped before they are formatted.
 *
 * A line that is logged while the thread holds a lock of the library (lock.h) waits in a small
 * buffer until the thread holds none; lines that do not fit are counted and reported. Lines that
 * the callback causes are dropped, and the last error is restored when it returns.
 */
#ifndef MO_BASE_LOG_H
#define MO_BASE_LOG_H

#include "base/error.h"

/* memopt_set_log with a level that exists. 0: this thread is inside the callback. */
int mo_log_set_sink(memopt_log_callback callback, void *user, memopt_log_level level);

void mo_log(memopt_log_level level, const char *format, ...) MO_PRINTF(2, 3);

/* The thread's locks, and the lines that wait for the last of them. Not initial-exec: dlopen leaves
 * little room in the static block of thread-locals. */
typedef struct mo_log_state {
    int locks;
    int lines; /* that wait, those that did not fit included */
} mo_log_state;
extern __attribute__((visibility("hidden"))) _Thread_local mo_log_state mo_log_held;

/* Hands over the lines that wait; no lock is held. */
void mo_log_flush(void);

#endif
