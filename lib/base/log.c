/*
 * The log sink: one callback per process. A read-write lock keeps a callback from being replaced
 * while it runs; it is taken while no other lock of the library is held.
 */
#include "base/log.h"
#include "base/precondition.h"

#include "memopt/experimental/hooks.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_rwlock_t sink_lock = PTHREAD_RWLOCK_INITIALIZER;
static memopt_log_callback sink_callback;
static void *sink_user;
static atomic_int sink_level;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* 1 while the thread is inside the callback. */
static _Thread_local int inside;

static const char *const level_names[] = {"off", "error", "warning", "info", "debug"};

static void to_standard_error(void *user, memopt_log_level level, const char *message)
{
    (void)user;
    fprintf(stderr, "memopt %s: %s\n", level_names[level], message);
}

/* The default sink, set by the environment. */
static void set_default(void)
{
    const char *wanted = getenv("MEMOPT_LOG");
    sink_callback = NULL;
    sink_user = NULL;
    atomic_store(&sink_level, MEMOPT_LOG_OFF);
    if (wanted == NULL)
        return;
    for (int level = MEMOPT_LOG_ERROR; level <= MEMOPT_LOG_DEBUG; level++) {
        if (strcmp(wanted, level_names[level]) == 0) {
            sink_callback = to_standard_error;
            atomic_store(&sink_level, level);
        }
    }
}

int mo_log_set_sink(memopt_log_callback callback, void *user, memopt_log_level level)
{
    if (inside)
        return 0;
    pthread_once(&once, set_default);
    pthread_rwlock_wrlock(&sink_lock);
    if (callback == NULL) {
        set_default();
    } else {
        sink_callback = callback;
        sink_user = user;
        atomic_store(&sink_level, (int)level);
    }
    pthread_rwlock_unlock(&sink_lock);
    return 1;
}

/* --- delivering lines -------------------------------------------------------------------- */

enum { LINE_BYTES = 1100, WAITING_LINES = 4 };

_Thread_local mo_log_state mo_log_held;

static _Thread_local struct {
    memopt_log_level level;
    char text[LINE_BYTES];
} waiting[WAITING_LINES];

/* The callback may call the library: its errors must not replace the error of the logging call. */
static void hand_over(memopt_log_level level, const char *text)
{
    mo_error_record kept = *mo_error_here();
    inside = 1;
    pthread_rwlock_rdlock(&sink_lock);
    /* The sink may have been replaced by a quieter one since the line was formatted. */
    if (sink_callback != NULL && (int)level <= atomic_load(&sink_level))
        sink_callback(sink_user, level, text);
    pthread_rwlock_unlock(&sink_lock);
    inside = 0;
    *mo_error_here() = kept;
}

void mo_log_flush(void)
{
    int lines = mo_log_held.lines;
    MO_PRE(mo_log_held.locks == 0);
    mo_log_held.lines = 0;
    for (int i = 0; i < lines && i < WAITING_LINES; i++)
        hand_over(waiting[i].level, waiting[i].text);
    if (lines > WAITING_LINES)
        mo_log(MEMOPT_LOG_WARNING, "log: %d more lines came while a lock was held",
               lines - WAITING_LINES);
}

void mo_log(memopt_log_level level, const char *format, ...)
{
    char text[LINE_BYTES];
    va_list arguments;
    pthread_once(&once, set_default);
    if ((int)level > atomic_load_explicit(&sink_level, memory_order_relaxed) || inside)
        return;
    if (mo_log_held.locks != 0 && mo_log_held.lines >= WAITING_LINES) {
        mo_log_held.lines++;
        return;
    }
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (mo_log_held.locks == 0) {
        hand_over(level, text);
        return;
    }
    waiting[mo_log_held.lines].level = level;
    memcpy(waiting[mo_log_held.lines++].text, text, sizeof text);
}

/* --- for locks of other libraries ------------------------------------------------------------ */

/* --- errors are logged as they are recorded */

/* The text may be the last message itself, or NULL. */
static void keep(char *kept, size_t size, const char *text)
{
    size_t length = text != NULL ? strnlen(text, size - 1) : 0;
    if (length != 0)
        memmove(kept, text, length);
    kept[length] = '\0';
}

memopt_status memopt_set_error(memopt_status status, int32_t driver_code,
                               const char *driver_message, const char *message)
{
    mo_error_record *last = mo_error_here();
    last->status = status;
    last->driver_code = driver_code;
    keep(last->message, sizeof last->message, message);
    keep(last->driver_message, sizeof last->driver_message, driver_message);
    mo_log(MEMOPT_LOG_ERROR, "%s: %s", memopt_status_name(status), last->message);
    return status;
}
