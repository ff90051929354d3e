/*
 * The library's mutexes. Every lock goes through here: while a thread holds one, no log line goes
 * to the program's callback (log.h), which may call the library.
 */
#ifndef MO_BASE_LOCK_H
#define MO_BASE_LOCK_H

#include "base/log.h"
#include "base/precondition.h"

#include <pthread.h>

static inline void mo_lock(pthread_mutex_t *mutex)
{
    pthread_mutex_lock(mutex);
    mo_log_held.locks++;
}

/* The thread's last unlock delivers the waiting lines. */
static inline void mo_unlock(pthread_mutex_t *mutex)
{
    pthread_mutex_unlock(mutex);
    if (--mo_log_held.locks == 0 && mo_log_held.lines != 0)
        mo_log_flush();
}

/* The same for a lock that many may hold to read. */
static inline void mo_lock_to_read(pthread_rwlock_t *lock)
{
    pthread_rwlock_rdlock(lock);
    mo_log_held.locks++;
}

static inline void mo_lock_to_write(pthread_rwlock_t *lock)
{
    pthread_rwlock_wrlock(lock);
    mo_log_held.locks++;
}

static inline void mo_unlock_shared(pthread_rwlock_t *lock)
{
    pthread_rwlock_unlock(lock);
    if (--mo_log_held.locks == 0 && mo_log_held.lines != 0)
        mo_log_flush();
}

/* For MO_PRE: this thread holds a lock, and some thread holds this one. */
static inline int mo_is_locked(pthread_mutex_t *mutex)
{
    if (mo_log_held.locks == 0 || pthread_mutex_trylock(mutex) != 0)
        return mo_log_held.locks != 0;
    pthread_mutex_unlock(mutex);
    return 0;
}

#endif
