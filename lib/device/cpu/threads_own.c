/*
 * Threads of the "cpu" device where there is no pthreadpool: workers that sleep between runs and
 * take tiles from a shared counter. A worker that wakes up late finds nothing left and sleeps
 * again.
 */
#include "device/cpu/threads.h"

#include "base/lock.h"

void mo_threads_init(mo_threads *threads)
{
    threads->started = 0;
    threads->pool = NULL;
    threads->worker_count = threads->working = 0;
    threads->round = 0;
    threads->closing = 0;
    atomic_init(&threads->next, 0);
    pthread_mutex_init(&threads->lock, NULL);
    pthread_cond_init(&threads->work, NULL);
    pthread_cond_init(&threads->done, NULL);
}

static void take_tiles(mo_threads *threads, mo_chunk chunk, void *context, size_t items,
                       size_t tile)
{
    for (;;) {
        size_t begin = atomic_fetch_add_explicit(&threads->next, tile, memory_order_relaxed);
        if (begin >= items)
            return;
        chunk(context, begin, items - begin < tile ? items - begin : tile);
    }
}

static void *worker(void *argument)
{
    mo_threads *threads = argument;
    uint64_t seen = 0;
    mo_lock(&threads->lock);
    for (;;) {
        while (!threads->closing && threads->round == seen)
            pthread_cond_wait(&threads->work, &threads->lock);
        if (threads->closing)
            break;
        seen = threads->round;
        mo_chunk chunk = threads->chunk;
        void *context = threads->context;
        size_t items = threads->items, tile = threads->tile;
        if (chunk == NULL) /* the run is over */
            continue;
        threads->working++;
        mo_unlock(&threads->lock);
        take_tiles(threads, chunk, context, items, tile);
        mo_lock(&threads->lock);
        if (--threads->working == 0)
            pthread_cond_signal(&threads->done);
    }
    mo_unlock(&threads->lock);
    return NULL;
}

void mo_threads_start(mo_threads *threads, uint32_t count)
{
    if (threads->started)
        return;
    threads->started = 1;
    while (threads->worker_count + 1 < count && threads->worker_count < MO_MOST_WORKERS) {
        pthread_t *place = &threads->workers[threads->worker_count];
        if (pthread_create(place, NULL, worker, threads) != 0)
            return;
        threads->worker_count++;
    }
}

void mo_threads_run(mo_threads *threads, mo_chunk chunk, void *context, size_t items, size_t tile)
{
    atomic_store_explicit(&threads->next, 0, memory_order_relaxed);
    mo_lock(&threads->lock);
    threads->chunk = chunk;
    threads->context = context;
    threads->items = items;
    threads->tile = tile;
    threads->round++;
    pthread_cond_broadcast(&threads->work);
    mo_unlock(&threads->lock);
    take_tiles(threads, chunk, context, items, tile);
    mo_lock(&threads->lock);
    threads->chunk = NULL; /* workers that wake up from here on have nothing to do */
    while (threads->working != 0)
        pthread_cond_wait(&threads->done, &threads->lock);
    mo_unlock(&threads->lock);
}

void mo_threads_fini(mo_threads *threads)
{
    mo_lock(&threads->lock);
    threads->closing = 1;
    pthread_cond_broadcast(&threads->work);
    mo_unlock(&threads->lock);
    for (uint32_t i = 0; i < threads->worker_count; i++)
        pthread_join(threads->workers[i], NULL);
    pthread_cond_destroy(&threads->done);
    pthread_cond_destroy(&threads->work);
    pthread_mutex_destroy(&threads->lock);
}
