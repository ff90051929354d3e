/*
 * The log sink: one callback per process. A read-write lock keeps a callback from being replaced
 * while it runs; it is the last lock of any order, since a callback must not call the library.
 */
#include "base/log.h"

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

static const char *const level_names[] = {"off", "error", "warning", "info", "debug"};

static void to_standard_error(void *user, memopt_log_level level, const char *message)
{
    (void)user;
    fprintf(stderr, "memopt %s: %s\n", level_names[level], message);
}

/* The default sink: what the environment asks for. */
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

memopt_status memopt_set_log(memopt_log_callback callback, void *user, memopt_log_level level)
{
    if ((int)level < MEMOPT_LOG_OFF || (int)level > MEMOPT_LOG_DEBUG)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "set_log: %d is not a log level (0 to %d)",
                       (int)level, MEMOPT_LOG_DEBUG);
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
    return MEMOPT_OK;
}

void mo_log(memopt_log_level level, const char *format, ...)
{
    char text[1100];
    va_list arguments;
    pthread_once(&once, set_default);
    if ((int)level > atomic_load_explicit(&sink_level, memory_order_relaxed))
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    pthread_rwlock_rdlock(&sink_lock);
    /* The sink may have been replaced by a quieter one since the line was formatted. */
    if (sink_callback != NULL && (int)level <= atomic_load(&sink_level))
        sink_callback(sink_user, level, text);
    pthread_rwlock_unlock(&sink_lock);
}
