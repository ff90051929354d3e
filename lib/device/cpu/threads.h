/*
 * Threads that share the items of one launch on the "cpu" device.
 *
 * Two implementations, chosen by the build: pthreadpool if the machine has it (threads_pool.c),
 * else our own threads (threads_own.c), so that the library builds with a C compiler alone. The
 * struct is the same for both. One run at a time: the caller holds a lock.
 */
#ifndef MO_DEVICE_CPU_THREADS_H
#define MO_DEVICE_CPU_THREADS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { MO_MOST_WORKERS = 127 }; /* of our own; the caller's thread works too */

/* Items [begin, begin + count). */
typedef void (*mo_chunk)(void *context, size_t begin, size_t count);

typedef struct mo_threads {
    int started;
    struct pthreadpool *pool; /* pthreadpool's; NULL where it could not be made */
    /* Our own; all below is guarded by lock, but next. */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    pthread_t workers[MO_MOST_WORKERS];
    uint32_t worker_count, working;
    uint64_t round; /* of the run that workers are to join */
    int closing;
    mo_chunk chunk;
    void *context;
    size_t items, tile;
    atomic_size_t next; /* the first item that is not taken */
} mo_threads;

void mo_threads_init(mo_threads *threads);
void mo_threads_fini(mo_threads *threads);
/* Starts `count` threads, including the caller's; fewer if the system has no more. Does nothing
 * once they are started. */
void mo_threads_start(mo_threads *threads, uint32_t count);
/* Calls chunk for all items, `tile` at a time, and returns when all are done. */
void mo_threads_run(mo_threads *threads, mo_chunk chunk, void *context, size_t items, size_t tile);

#endif
