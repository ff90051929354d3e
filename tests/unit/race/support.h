/* What the tests of the race finder share: a finder with two streams, and short names for calls. */
#ifndef TEST_RACE_SUPPORT_H
#define TEST_RACE_SUPPORT_H

#include "support/checks.h"

#include "base/memory.h"
#include "memopt/race.h"

enum { HOST = MEMOPT_RACE_HOST, READ = MEMOPT_RACE_READ, WRITE = MEMOPT_RACE_WRITE };

static inline memopt_race *new_race_of(memopt_race_options options, uint32_t streams)
{
    memopt_race *race = NULL;
    uint32_t stream;
    options.struct_size = sizeof options;
    OK(memopt_race_create(&options, &race));
    for (uint32_t i = 1; i <= streams; i++) {
        OK(memopt_race_add_stream(race, &stream));
        assert_int_equal(stream, i);
    }
    return race;
}

static inline memopt_race *new_race(uint64_t max_bytes, uint32_t streams)
{
    return new_race_of((memopt_race_options){.max_bytes = max_bytes}, streams);
}

/* An operation of a stream, or of the host, with one access. */
static inline void touch(memopt_race *race, uint32_t actor, uint64_t tag, memopt_race_mode mode,
                         uint64_t address, uint64_t bytes)
{
    memopt_race_access access = {.address = address, .bytes = bytes, .mode = mode};
    OK(memopt_race_run(race, actor, tag, &access, 1));
}

static inline memopt_race_stats stats_of(memopt_race *race)
{
    memopt_race_stats stats = MEMOPT_RACE_STATS_INIT;
    OK(memopt_race_get_stats(race, &stats));
    return stats;
}

static inline memopt_race_report report_of(memopt_race *race, uint64_t index)
{
    memopt_race_report report = MEMOPT_RACE_REPORT_INIT;
    OK(memopt_race_get_report(race, index, &report));
    return report;
}

#define RACE_TEST(name)                                                                            \
    static void name##_of(memopt_race *race);                                                      \
    TEST(name)                                                                                     \
    {                                                                                              \
        int64_t blocks = mo_memory_live_blocks();                                                  \
        memopt_race *race = new_race(0, 3);                                                        \
        name##_of(race);                                                                           \
        OK(memopt_race_destroy(race));                                                             \
        assert_int_equal(mo_memory_live_blocks(), blocks);                                         \
    }                                                                                              \
    static void name##_of(memopt_race *race)

#endif
