/*
 * Leaves dependencies of the offloader out, to show that a test finds them: the linker gives this
 * program its own forms of the calls that make streams and frees wait (see CMakeLists.txt).
 */
#ifndef MEMOPT_TEST_LEFT_OUT_H
#define MEMOPT_TEST_LEFT_OUT_H

#include "support.h"

#include "allocator/allocator.h"
#include "support/sweep.h"

/* What waits for what. */
enum {
    LEFT_OUT_NOTHING,
    PACK_WAIT = 1,             /* out for the caller's stream */
    REUSE_WAIT = 2,            /* out for the last copy back */
    FREE_RECORD = 4,           /* the allocator for out */
    BRING_WAIT = 8,            /* back for the copy to the host */
    MEMORY_WAIT = 16,          /* back for the memory's last user */
    UNPACK_WAIT = 32,          /* the caller's stream for the copy back */
    RELEASE_RECORD = 64,       /* the allocator for other streams than out */
    KEPT_WAIT = 128,           /* the caller's stream for what wrote a value */
    STORE_WAIT = 256,          /* the disk for the copy to the host */
    STORED_WAIT = 512,         /* out for the disk */
    STAGING_WAIT = 256 | 1024, /* the disk for copies that used the memory */
    FETCH_WAIT = 2048          /* back for the disk */
};

static memopt_offloader *watched;
static uint32_t left_out;

static int is_of(const mo_timeline *line, const memopt_event *event)
{
    for (uint64_t i = 0; i < line->capacity; i++)
        if (line->ring[i] == event)
            return 1;
    return 0;
}

static uint32_t dependency(const memopt_offloader *o, memopt_stream waiter,
                           const memopt_event *event)
{
    int on_disk = o->disk != NULL && waiter == o->disk->line.stream;
    if (event == o->ready)
        return waiter == o->out.stream ? PACK_WAIT : waiter == o->back.stream ? MEMORY_WAIT : 0;
    if (is_of(&o->out, event))
        return on_disk ? STORE_WAIT : waiter == o->back.stream ? BRING_WAIT : KEPT_WAIT;
    if (is_of(&o->back, event))
        return on_disk ? 1024 : waiter == o->out.stream ? REUSE_WAIT : UNPACK_WAIT;
    if (o->disk != NULL && is_of(&o->disk->line, event))
        return waiter == o->out.stream ? STORED_WAIT : FETCH_WAIT;
    return 0;
}

memopt_status __real_memopt_stream_wait_event(memopt_device *device, memopt_stream stream,
                                              memopt_event *event);
memopt_status __wrap_memopt_stream_wait_event(memopt_device *device, memopt_stream stream,
                                              memopt_event *event);
memopt_status __wrap_memopt_stream_wait_event(memopt_device *device, memopt_stream stream,
                                              memopt_event *event)
{
    if (left_out != 0 && (dependency(watched, stream, event) & left_out) != 0)
        return MEMOPT_OK;
    return __real_memopt_stream_wait_event(device, stream, event);
}

static int is_recorded(memopt_stream stream)
{
    uint32_t record = stream == watched->out.stream ? FREE_RECORD : RELEASE_RECORD;
    return (left_out & record) == 0;
}

memopt_status __real_mo_allocator_record_taken(memopt_allocator *allocator, mo_taken *taken,
                                               const memopt_stream *streams, uint64_t count);
memopt_status __wrap_mo_allocator_record_taken(memopt_allocator *allocator, mo_taken *taken,
                                               const memopt_stream *streams, uint64_t count);
memopt_status __wrap_mo_allocator_record_taken(memopt_allocator *allocator, mo_taken *taken,
                                               const memopt_stream *streams, uint64_t count)
{
    memopt_stream rest[2];
    uint64_t kept = 0;
    for (uint64_t i = 0; i < count; i++)
        if (left_out == 0 || is_recorded(streams[i]))
            rest[kept++] = streams[i];
    return __real_mo_allocator_record_taken(allocator, taken, rest, kept);
}

memopt_status __real_memopt_allocator_record_stream(memopt_allocator *allocator, void *pointer,
                                                    memopt_stream stream);
memopt_status __wrap_memopt_allocator_record_stream(memopt_allocator *allocator, void *pointer,
                                                    memopt_stream stream);
memopt_status __wrap_memopt_allocator_record_stream(memopt_allocator *allocator, void *pointer,
                                                    memopt_stream stream)
{
    if (left_out != 0 && !is_recorded(stream))
        return MEMOPT_OK;
    return __real_memopt_allocator_record_stream(allocator, pointer, stream);
}

typedef int (*program)(world *w);

/* Of the program: where it runs, and for how many seeds. */
static world race_world(uint64_t seed);
static uint64_t race_seeds(void);

/* 1 if the program goes right without a dependency. What nobody has read yet counts, too. The race
 * finder needs no seed: it tells each program without its guard, and none with it. */
static int runs_without(program race, uint32_t what, uint64_t seed)
{
    memopt_race_stats found = MEMOPT_RACE_STATS_INIT;
    memopt_race *finder = NULL;
    bench_races = MEMOPT_RACE_SEARCH_QUIET;
    world w = race_world(seed);
    watched = w.offloader;
    left_out = what;
    int good = race(&w);
    left_out = LEFT_OUT_NOTHING;
    memopt_status late = memopt_device_sync(w.device);
    if (what == LEFT_OUT_NOTHING)
        OK(late);
    OK(memopt_device_get_race(w.device, &finder));
    OK(memopt_race_get_stats(finder, &found));
    if ((found.reports == 0) != (what == LEFT_OUT_NOTHING))
        fail_msg("seed %d, without %u: %d races are reported", (int)seed, what, (int)found.reports);
    world_close(&w);
    return good && late == MEMOPT_OK;
}

static void check_race(program race, uint32_t guard, uint64_t one_in)
{
    uint64_t noticed = 0, seeds = race_seeds(), first = first_seed();
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        if (!runs_without(race, LEFT_OUT_NOTHING, seed))
            fail_msg("seed %d goes wrong: %s", (int)seed, memopt_last_error());
        noticed += !runs_without(race, guard, seed);
    }
    /* Chance may give few of them: then up to ten times as many seeds say. */
    for (uint64_t end = first + 10 * seeds; noticed < seeds / one_in && first + seeds < end;
         seeds++)
        noticed += !runs_without(race, guard, first + seeds);
    if (noticed < seeds / one_in)
        fail_msg("without its guard, only %d of %d seeds go wrong", (int)noticed, (int)seeds);
}

/* A program, which returns 1 if it went right, is a test: it does for every seed, and without the
 * dependency that it needs goes wrong for one seed in `one_in` at least. */
#define RACE(name, guard, one_in, begin)                                                           \
    static int name(world *w);                                                                     \
    TEST_NAMED(#name, name##_is_guarded, begin, NULL, no_fixture)                                  \
    {                                                                                              \
        check_race(name, guard, one_in);                                                           \
    }                                                                                              \
    static int name(world *w)

#endif
