/*
 * Threads × streams on one allocator and its pools, in eager order: every block is filled on its
 * stream, some are read on another after record_stream, and what a block holds is verified before
 * it is freed, by any thread. One more thread ends streams and makes new ones in their place, while
 * blocks of theirs are live, pending, freed and trimmed; another one puts new pools in the place of
 * old ones, and pauses and resumes them while the others are at work. Invariants are checked all
 * along. Both kinds of segments, tight capacities.
 */
#include "support/allocator_check.h"
#include "support/sweep.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB ((uint64_t)1 << 20)

enum { THREADS = 4, STREAMS = 4, SLOTS = 96, MEMBERS = 3 };

typedef struct slot {
    pthread_mutex_t lock; /* the slot's owner of the moment */
    unsigned char *block;
    memopt_allocator *owner;
    uint64_t bytes;
    unsigned char pattern;
    int stream;
} slot;

typedef struct shared {
    memopt_device *device;
    memopt_allocator *members[MEMBERS];   /* the parent, and pools */
    pthread_rwlock_t member_use[MEMBERS]; /* read: it may be used; write: it changes, or pauses */
    memopt_stream streams[STREAMS];
    pthread_rwlock_t in_use[STREAMS]; /* read: the handle is used; write: it ends */
    slot slots[SLOTS];
    atomic_int stop;
    atomic_uint_fast64_t operations, refused, ended, renewed, paused, put_off;
    _Atomic(memopt_pool *) frozen; /* nobody else touches its blocks */
    atomic_int closed;             /* nothing is allocated: a resume needs memory */
    int can_pause;
} shared;

typedef struct worker {
    shared *all;
    uint64_t random;
    unsigned char *scratch; /* device memory that readers copy to, 4 KiB for each stream */
    pthread_t thread;
} worker;

static void need(memopt_status status, const char *what)
{
    if (status == MEMOPT_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, memopt_last_error());
    abort();
}

#define NEED(call) need((call), #call)

/* splitmix64 */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* A pressure callback that frees nothing, from whatever thread it is called on. */
static uint64_t on_pressure(void *user, uint64_t bytes)
{
    (void)bytes;
    atomic_fetch_add((atomic_uint_fast64_t *)user, 1);
    return 0;
}

/* A member that may be used, until member_use is unlocked: one by `random`, or the parent. */
static uint64_t enter_member(const worker *w, uint64_t random)
{
    uint64_t member = random % MEMBERS;
    if (member == 0 || pthread_rwlock_tryrdlock(&w->all->member_use[member]) == 0) {
        if (member == 0)
            pthread_rwlock_rdlock(&w->all->member_use[0]);
        return member;
    }
    pthread_rwlock_rdlock(&w->all->member_use[0]);
    return 0;
}

static void fill_slot(worker *w, slot *s)
{
    shared *all = w->all;
    void *block;
    int stream = (int)(next_random(&w->random) % STREAMS);
    uint64_t bytes =
        1 + next_random(&w->random) % (UINT64_C(1) << (8 + next_random(&w->random) % 15));
    s->pattern = (unsigned char)next_random(&w->random);
    uint64_t member = enter_member(w, next_random(&w->random));
    s->owner = all->members[member];
    pthread_rwlock_rdlock(&all->in_use[stream]);
    memopt_status status = memopt_allocator_alloc(
        s->owner, bytes, (memopt_tag)(next_random(&w->random) % 5), all->streams[stream], &block);
    if (status == MEMOPT_OK)
        NEED(memopt_fill(all->device, block, s->pattern, bytes, all->streams[stream]));
    pthread_rwlock_unlock(&all->in_use[stream]);
    pthread_rwlock_unlock(&all->member_use[member]);
    if (status == MEMOPT_OUT_OF_DEVICE_MEMORY) {
        atomic_fetch_add(&all->refused, 1);
        return;
    }
    need(status, "alloc");
    s->block = block;
    s->bytes = bytes;
    s->stream = stream;
}

/* The stream that a block was filled on may have ended; then the fill is done, and so the new one
 * in its place has nothing to add. */
static void note_filled(shared *all, const slot *s, memopt_event *filled)
{
    pthread_rwlock_rdlock(&all->in_use[s->stream]);
    NEED(memopt_event_record(filled, all->streams[s->stream]));
    pthread_rwlock_unlock(&all->in_use[s->stream]);
}

/* Work of another stream on the block: it waits for the fill, and is recorded. */
static void read_elsewhere(worker *w, slot *s)
{
    shared *all = w->all;
    memopt_event *filled;
    uint64_t reader = next_random(&w->random) % STREAMS;
    uint64_t bytes = s->bytes < 4096 ? s->bytes : 4096;
    NEED(memopt_event_create(all->device, 0, &filled));
    note_filled(all, s, filled);
    pthread_rwlock_rdlock(&all->in_use[reader]);
    memopt_stream other = all->streams[reader];
    NEED(memopt_stream_wait_event(all->device, other, filled));
    NEED(memopt_event_destroy(filled));
    NEED(memopt_copy(all->device, w->scratch + reader * 4096, s->block, bytes, other));
    NEED(memopt_allocator_record_stream(s->owner, s->block, other));
    pthread_rwlock_unlock(&all->in_use[reader]);
}

static void verify_and_free(worker *w, slot *s)
{
    shared *all = w->all;
    if (next_random(&w->random) % 4 == 0) {
        pthread_rwlock_rdlock(&all->in_use[s->stream]);
        NEED(memopt_stream_sync(all->device, all->streams[s->stream]));
        pthread_rwlock_unlock(&all->in_use[s->stream]);
        for (uint64_t i = 0; i < s->bytes; i += 1 + s->bytes / 64) {
            if (s->block[i] != s->pattern) {
                fprintf(stderr, "byte %" PRIu64 " of %" PRIu64 " is %d, not %d\n", i, s->bytes,
                        s->block[i], s->pattern);
                abort();
            }
        }
    }
    if (next_random(&w->random) % 3 == 0)
        read_elsewhere(w, s);
    NEED(memopt_allocator_free(s->owner, s->block));
    s->block = NULL;
}

static void *work(void *argument)
{
    worker *w = argument;
    shared *all = w->all;
    while (!atomic_load(&all->stop)) {
        slot *s = &all->slots[next_random(&w->random) % SLOTS];
        pthread_mutex_lock(&s->lock);
        if (s->block == NULL && !atomic_load(&all->closed))
            fill_slot(w, s);
        else if (s->block != NULL && s->owner != atomic_load(&all->frozen))
            verify_and_free(w, s);
        pthread_mutex_unlock(&s->lock);
        uint64_t done = atomic_fetch_add(&all->operations, 1);
        uint64_t member = enter_member(w, done / 256);
        if (done % 256 == 0)
            NEED(mo_allocator_check(all->members[member]));
        if (done % 2048 == 0)
            NEED(memopt_allocator_trim_to_sync(all->members[member],
                                               next_random(&w->random) % (4 * MIB), NULL));
        if (done % 512 == 0)
            NEED(memopt_allocator_mark_step(all->members[member],
                                            (memopt_step)(next_random(&w->random) % 8 == 0
                                                              ? MEMOPT_STEP_END
                                                              : MEMOPT_STEP_LEARN)));
        pthread_rwlock_unlock(&all->member_use[member]);
    }
    return NULL;
}

/* Ends streams, and every third time a handle lives on as if it were a new one's. */
static void *churn(void *argument)
{
    worker *w = argument;
    shared *all = w->all;
    while (!atomic_load(&all->stop)) {
        uint64_t which = 1 + next_random(&w->random) % (STREAMS - 1);
        pthread_rwlock_wrlock(&all->in_use[which]);
        if (next_random(&w->random) % 3 == 0) {
            NEED(memopt_stream_release_sync(all->device, all->streams[which]));
        } else {
            NEED(memopt_stream_destroy(all->device, all->streams[which]));
            NEED(memopt_stream_create(all->device, &all->streams[which]));
        }
        pthread_rwlock_unlock(&all->in_use[which]);
        atomic_fetch_add(&all->ended, 1);
        struct timespec pause = {0, (long)(next_random(&w->random) % 400000)};
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static memopt_pool *new_pool(worker *w)
{
    memopt_pool_options options = MEMOPT_POOL_OPTIONS_INIT;
    memopt_pool *pool;
    options.limit = next_random(&w->random) % 2 == 0 ? 0 : 16 * MIB;
    options.retain = next_random(&w->random) % 4 == 0;
    NEED(memopt_pool_create(w->all->members[0], &options, &pool));
    return pool;
}

/* Frees blocks of the pool, or of the others: about one in `part`. */
static void free_some(worker *w, const memopt_pool *pool, int others, uint64_t part)
{
    for (int i = 0; i < SLOTS; i++) {
        slot *s = &w->all->slots[i];
        pthread_mutex_lock(&s->lock);
        if (s->block != NULL && (s->owner != pool) == others &&
            next_random(&w->random) % part == 0) {
            NEED(memopt_allocator_free(s->owner, s->block));
            s->block = NULL;
        }
        pthread_mutex_unlock(&s->lock);
    }
}

/* Puts a new pool in the place of an old one, whose blocks are freed meanwhile. */
static void renew_pool(worker *w, uint64_t which)
{
    shared *all = w->all;
    memopt_pool *fresh = new_pool(w), *old;
    pthread_rwlock_wrlock(&all->member_use[which]);
    old = all->members[which];
    all->members[which] = fresh;
    pthread_rwlock_unlock(&all->member_use[which]);
    free_some(w, old, 0, 1);
    NEED(memopt_allocator_destroy(old));
    atomic_fetch_add(&all->renewed, 1);
}

/* Some milliseconds at most. */
static void rest(worker *w)
{
    struct timespec pause = {0, (long)(next_random(&w->random) % 4000000)};
    nanosleep(&pause, NULL);
}

/* Others may hold all memory until they are stopped. */
static void resume(worker *w, memopt_pool *pool)
{
    memopt_status status;
    while ((status = memopt_pool_resume_sync(pool)) == MEMOPT_OUT_OF_DEVICE_MEMORY) {
        NEED(mo_allocator_check(pool));
        atomic_fetch_add(&w->all->put_off, 1);
        atomic_store(&w->all->closed, 1);
        free_some(w, pool, 1, 1);
    }
    need(status, "resume");
    atomic_store(&w->all->closed, 0);
}

/* From here on nobody allocates from the pool or uses its blocks. */
static memopt_pool *freeze(shared *all, uint64_t which)
{
    pthread_rwlock_wrlock(&all->member_use[which]);
    atomic_store(&all->frozen, all->members[which]);
    for (int i = 0; i < SLOTS; i++) { /* those that have begun end */
        pthread_mutex_lock(&all->slots[i].lock);
        pthread_mutex_unlock(&all->slots[i].lock);
    }
    return all->members[which];
}

static void pause_pool(worker *w, uint64_t which)
{
    shared *all = w->all;
    memopt_pool *pool = freeze(all, which);
    NEED(memopt_pool_pause_sync(pool, MEMOPT_PAUSE_KEEP, NULL));
    NEED(mo_allocator_check(pool));
    rest(w);
    free_some(w, pool, 0, 4);
    resume(w, pool);
    NEED(mo_allocator_check(pool));
    atomic_store(&all->frozen, NULL);
    pthread_rwlock_unlock(&all->member_use[which]);
    atomic_fetch_add(&all->paused, 1);
}

static void *change_pools(void *argument)
{
    worker *w = argument;
    while (!atomic_load(&w->all->stop)) {
        uint64_t which = 1 + next_random(&w->random) % (MEMBERS - 1);
        if (w->all->can_pause && next_random(&w->random) % 3 != 0)
            pause_pool(w, which);
        else
            renew_pool(w, which);
        rest(w);
    }
    return NULL;
}

static void finish(shared *all)
{
    for (int i = 0; i < SLOTS; i++)
        if (all->slots[i].block != NULL)
            NEED(memopt_allocator_free(all->slots[i].owner, all->slots[i].block));
    for (int i = MEMBERS - 1; i >= 0; i--) {
        NEED(mo_allocator_check(all->members[i]));
        NEED(memopt_allocator_destroy(all->members[i]));
    }
    for (int i = 0; i < STREAMS; i++)
        NEED(memopt_stream_destroy(all->device, all->streams[i]));
    NEED(memopt_device_close(all->device));
}

static void run(const char *config, uint64_t seed, double seconds)
{
    static shared all;
    static atomic_uint_fast64_t pressed;
    worker workers[THREADS], ender = {&all, seed * 77, NULL, 0},
                             renewer = {&all, seed * 99, NULL, 0};
    memopt_device_options device = MEMOPT_DEVICE_OPTIONS_INIT;
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    memset(&all, 0, sizeof all);
    device.capacity = 24 * MIB;
    device.threads = 1;
    options.pressure = on_pressure;
    options.pressure_user = &pressed;
    NEED(memopt_device_open("cpu", &device, &all.device));
    NEED(memopt_allocator_create(all.device, config, &options, &all.members[0]));
    for (int i = 1; i < MEMBERS; i++)
        all.members[i] = new_pool(&renewer);
    for (int i = 0; i < MEMBERS; i++)
        pthread_rwlock_init(&all.member_use[i], NULL);
    all.can_pause = strstr(config, "expandable_segments:True") != NULL;
    for (int i = 1; i < STREAMS; i++)
        NEED(memopt_stream_create(all.device, &all.streams[i]));
    for (int i = 0; i < STREAMS; i++)
        pthread_rwlock_init(&all.in_use[i], NULL);
    for (int i = 0; i < SLOTS; i++)
        pthread_mutex_init(&all.slots[i].lock, NULL);
    for (int i = 0; i < THREADS; i++) {
        void *scratch;
        NEED(memopt_allocator_alloc(all.members[0], STREAMS * 4096, 0, NULL, &scratch));
        workers[i] = (worker){&all, seed * 1000 + (uint64_t)i, scratch, 0};
        pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    pthread_create(&ender.thread, NULL, churn, &ender);
    pthread_create(&renewer.thread, NULL, change_pools, &renewer);
    struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&pause, NULL);
    atomic_store(&all.stop, 1);
    for (int i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    pthread_join(ender.thread, NULL);
    pthread_join(renewer.thread, NULL);
    NEED(memopt_device_sync(all.device));
    for (int i = 0; i < THREADS; i++)
        NEED(memopt_allocator_free(all.members[0], workers[i].scratch));
    printf("\"%s\": %" PRIuFAST64 " operations, %" PRIuFAST64 " refused, %" PRIuFAST64
           " pressure calls, %" PRIuFAST64 " streams ended, %" PRIuFAST64
           " pools renewed, %" PRIuFAST64 " paused, %" PRIuFAST64 " resumes put off\n",
           config, atomic_load(&all.operations), atomic_load(&all.refused), atomic_load(&pressed),
           atomic_load(&all.ended), atomic_load(&all.renewed), atomic_load(&all.paused),
           atomic_load(&all.put_off));
    finish(&all);
}

int main(int argc, char **argv)
{
    static const char *const configs[] = {"", "expandable_segments:True",
                                          "max_split_size_mb:20,garbage_collection_threshold:0.6",
                                          "expandable_segments:True,roundup_power2_divisions:4"};
    uint64_t seed = first_seed();
    double seconds = 2;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0)
            seed = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--seconds") == 0)
            seconds = strtod(argv[i + 1], NULL);
    }
    for (int i = 0; i < 4; i++)
        run(configs[i], seed, seconds / 4);
    return 0;
}
