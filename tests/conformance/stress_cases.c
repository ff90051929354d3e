/*
 * Random work on an allocator, streams, copies and an offloader, with what every block must hold
 * known at each moment. A run is named by its seed; --seconds gives each case a time instead of a
 * number of rounds, with a new seed for every run.
 */
#include "conformance.h"

#include "offload/offload.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 48, STREAMS = 3, THREADS = 3 };

/* A live block: `value` in all of its bytes, written in the order of its stream. */
typedef struct block {
    void *data;
    uint64_t bytes;
    memopt_ticket ticket; /* it is packed; data is NULL */
    int stream;
    unsigned char value;
} block;

typedef struct stress {
    world *w;
    uint64_t random;
    memopt_stream streams[STREAMS];
    memopt_event *event;
    memopt_offloader *offloader;
    block blocks[BLOCKS];
    uint64_t most; /* bytes of a block */
    unsigned char *host;
} stress;

static uint64_t below(stress *s, uint64_t limit)
{
    return next_random(&s->random) % limit;
}

static void fill_block(stress *s, block *b)
{
    b->value = (unsigned char)below(s, 256);
    OK(memopt_fill(s->w->device, b->data, b->value, b->bytes, s->streams[b->stream]));
}

static void make(stress *s, block *b)
{
    b->bytes = 1 + below(s, below(s, 4) == 0 ? s->most : 70000);
    b->stream = (int)below(s, STREAMS);
    b->ticket = 0;
    OK(memopt_allocator_alloc(s->w->allocator, b->bytes, MEMOPT_TAG_ACTIVATIONS,
                              s->streams[b->stream], &b->data));
    fill_block(s, b);
}

/* Reads the block on a stream (that waits for the block's own) and compares all of it. */
static void verify(stress *s, const block *b, int stream)
{
    world *w = s->w;
    if (stream != b->stream) {
        OK(memopt_event_record(s->event, s->streams[b->stream]));
        OK(memopt_stream_wait_event(w->device, s->streams[stream], s->event));
    }
    OK(memopt_copy(w->device, s->host, b->data, b->bytes, s->streams[stream]));
    OK(memopt_stream_sync(w->device, s->streams[stream]));
    for (uint64_t i = 0; i < b->bytes; i++)
        if (s->host[i] != b->value)
            fail(__FILE__, __LINE__, "seed %llu: byte %llu of %llu is %02x, not %02x",
                 (unsigned long long)w->options->seed, (unsigned long long)i,
                 (unsigned long long)b->bytes, s->host[i], b->value);
}

/* Frees while work is pending, on its own stream or on a recorded one whose result is kept. */
static void drop(stress *s, block *b)
{
    world *w = s->w;
    int other = (int)below(s, STREAMS);
    if (other != b->stream && below(s, 2) == 0) {
        block kept = {NULL, b->bytes, 0, other, b->value};
        OK(memopt_allocator_alloc(w->allocator, b->bytes, MEMOPT_TAG_OTHER, s->streams[other],
                                  &kept.data));
        OK(memopt_event_record(s->event, s->streams[b->stream]));
        OK(memopt_stream_wait_event(w->device, s->streams[other], s->event));
        OK(memopt_copy(w->device, kept.data, b->data, b->bytes, s->streams[other]));
        OK(memopt_allocator_record_stream(w->allocator, b->data, s->streams[other]));
        OK(memopt_allocator_free(w->allocator, b->data));
        *b = kept;
        return;
    }
    OK(memopt_allocator_free(w->allocator, b->data));
    b->data = NULL;
}

static void pack(stress *s, block *b)
{
    OK(memopt_offloader_pack(s->offloader, b->data, b->bytes, s->streams[b->stream], &b->ticket));
    b->data = NULL;
}

/* Back into a block of its own, by either way. */
static void unpack(stress *s, block *b)
{
    world *w = s->w;
    int stream = (int)below(s, STREAMS);
    void *data = NULL, *into = NULL;
    if (below(s, 3) == 0) {
        OK(memopt_offloader_prefetch(s->offloader, b->ticket));
        if (below(s, 2) == 0)
            return;
    }
    OK(memopt_allocator_alloc(w->allocator, b->bytes, MEMOPT_TAG_ACTIVATIONS, s->streams[stream],
                              &into));
    if (below(s, 2) == 0) {
        OK(mo_offloader_unpack_into(s->offloader, b->ticket, into, b->bytes, s->streams[stream]));
    } else {
        OK(memopt_offloader_unpack(s->offloader, b->ticket, s->streams[stream], &data));
        OK(memopt_copy(w->device, into, data, b->bytes, s->streams[stream]));
    }
    OK(memopt_offloader_release(s->offloader, b->ticket, s->streams[stream]));
    b->data = into;
    b->stream = stream;
    b->ticket = 0;
}

static void one_round(stress *s)
{
    block *b = &s->blocks[below(s, BLOCKS)];
    uint64_t choice = below(s, 100);
    if (choice < 2)
        OK(memopt_allocator_trim_sync(s->w->allocator, 0, NULL));
    else if (choice < 4)
        OK(memopt_offloader_trim_sync(s->offloader, NULL));
    else if (b->ticket != 0)
        unpack(s, b);
    else if (b->data == NULL)
        make(s, b);
    else if (choice < 30)
        drop(s, b);
    else if (choice < 55)
        pack(s, b);
    else if (choice < 70)
        fill_block(s, b);
    else
        verify(s, b, (int)below(s, STREAMS));
}

static void end_round(stress *s)
{
    for (int i = 0; i < BLOCKS; i++) {
        while (s->blocks[i].ticket != 0)
            unpack(s, &s->blocks[i]);
        if (s->blocks[i].data != NULL) {
            verify(s, &s->blocks[i], s->blocks[i].stream);
            OK(memopt_allocator_free(s->w->allocator, s->blocks[i].data));
        }
        s->blocks[i].data = NULL;
    }
}

static void stress_world(world *w)
{
    stress *s = host_memory(sizeof *s);
    double end = seconds_now() + w->options->seconds;
    memset(s, 0, sizeof *s);
    s->w = w;
    s->random = w->options->seed + 1000 * w->kind;
    s->most = w->properties.total_memory / 128; /* all threads' blocks fit, twice */
    s->most = s->most < 6 * MIB ? s->most : 6 * MIB;
    s->host = host_memory(s->most < 70000 ? 70000 : s->most);
    OK(memopt_event_create(w->device, 0, &s->event));
    OK(memopt_offloader_create(w->device, w->allocator, NULL, &s->offloader));
    for (int i = 0; i < STREAMS; i++)
        OK(memopt_stream_create(w->device, &s->streams[i]));
    do {
        for (uint64_t i = 0; i < w->options->rounds; i++)
            one_round(s);
        end_round(s);
    } while (seconds_now() < end);
    for (int i = 0; i < STREAMS; i++)
        OK(memopt_stream_sync(w->device, s->streams[i]));
    OK(memopt_offloader_destroy(s->offloader));
    OK(memopt_event_destroy(s->event));
    OK(memopt_allocator_trim_sync(w->allocator, 0, NULL));
    for (int i = 0; i < STREAMS; i++)
        OK(memopt_stream_destroy(w->device, s->streams[i]));
    free(s->host);
    free(s);
}

static void nothing_is_left(world *w, const memopt_memory_info *before)
{
    uint64_t left = 1;
    OK(memopt_allocator_trim_sync(w->allocator, 0, NULL));
    OK(memopt_allocator_get_stat(w->allocator, "reserved_bytes.all.current", &left));
    memopt_memory_info after = info_of(w);
    CHECK(left == 0 && after.used == before->used && after.pinned == before->pinned);
}

static void random_work_holds(world *w)
{
    memopt_memory_info before = info_of(w);
    stress_world(w);
    nothing_is_left(w, &before);
}

/* --- several threads ----------------------------------------------------------------------- */

typedef struct worker {
    world w;
    case_outcome outcome;
    char message[512];
} worker;

static void *work(void *user)
{
    worker *me = user;
    me->outcome = run_guarded(stress_world, &me->w, me->message, sizeof me->message);
    return NULL;
}

/* Threads share the allocator; streams and the offloader are each one's own. */
static void random_work_holds_in_threads(world *w)
{
    static worker workers[THREADS];
    pthread_t threads[THREADS];
    memopt_memory_info before = info_of(w);
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i].w = *w;
        workers[i].w.kind = i + 1; /* another seed */
        CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        if (workers[i].outcome != PASSED)
            fail(__FILE__, __LINE__, "thread %d: %s", i, workers[i].message);
    nothing_is_left(w, &before);
}

const conformance_case stress_cases[] = {
    {"stress", random_work_holds, 0, 0, 0},
    {"stress_threads", random_work_holds_in_threads, 0, 0, 0},
    {NULL, NULL, 0, 0, 0},
};
