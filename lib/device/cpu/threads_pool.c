/*
 * Threads of the "cpu" device by pthreadpool. Its workers yield between launches instead of
 * spinning, since the caller's own threads (matrix products) need the cores.
 */
#include "device/cpu/threads.h"

#include <pthreadpool.h>

void mo_threads_init(mo_threads *threads)
{
    threads->started = 0;
    threads->pool = NULL;
}

void mo_threads_fini(mo_threads *threads)
{
    pthreadpool_destroy(threads->pool);
}

void mo_threads_start(mo_threads *threads, uint32_t count)
{
    /* Without threads (the system has none left) the pool is NULL and runs on this thread. */
    if (!threads->started)
        threads->pool = pthreadpool_create(count);
    threads->started = threads->pool != NULL;
}

void mo_threads_run(mo_threads *threads, mo_chunk chunk, void *context, size_t items, size_t tile)
{
    pthreadpool_parallelize_1d_tile_1d(threads->pool, chunk, context, items, tile,
                                       PTHREADPOOL_FLAG_YIELD_WORKERS);
}
