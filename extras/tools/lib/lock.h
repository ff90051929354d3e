/*
 * Locks of this library. Log lines wait while the thread holds one: the log callback may call the
 * library.
 */
#ifndef MO_TOOLS_LOCK_H
#define MO_TOOLS_LOCK_H

#include "memopt/experimental/hooks.h"

#include <pthread.h>

static inline void mo_tools_lock(pthread_mutex_t *mutex)
{
    pthread_mutex_lock(mutex);
    memopt_log_hold();
}

static inline void mo_tools_unlock(pthread_mutex_t *mutex)
{
    pthread_mutex_unlock(mutex);
    memopt_log_release();
}

#endif
