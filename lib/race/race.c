/* The public calls of the race finder: arguments, the lock, and in which order a clock moves. */
#include "race/finder.h"

#include "base/checked.h"
#include "base/lock.h"
#include "base/memory.h"
#include "base/options.h"

#include <inttypes.h>

enum { DEFAULT_REPORTS = 1000 };

memopt_status memopt_race_create(const memopt_race_options *options, memopt_race **out_race)
{
    memopt_race_options copy;
    uint32_t host;
    MO_NOT_NULL("race_create", out_race);
    MO_TRY(mo_options_read(&copy, sizeof copy, options, "memopt_race_options"));
    if (copy.inherit > 1 || copy.reserved != 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "race_create: inherit is %" PRIu32 ", reserved %" PRIu32
                       "; inherit is 0 or 1, reserved 0",
                       copy.inherit, copy.reserved);
    memopt_race *race = mo_calloc(1, sizeof *race);
    if (race == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    race->options = copy;
    if (copy.max_reports == 0)
        race->options.max_reports = DEFAULT_REPORTS;
    race->stats.struct_size = sizeof race->stats;
    race->stats.bytes = race->stats.bytes_peak = sizeof *race;
    if (mo_race_clocks_add(race, &host) != MEMOPT_OK) {
        mo_race_clocks_fini(race);
        mo_free(race);
        return MEMOPT_OUT_OF_HOST_MEMORY;
    }
    pthread_mutex_init(&race->lock, NULL);
    *out_race = race;
    return MEMOPT_OK;
}

memopt_status memopt_race_destroy(memopt_race *race)
{
    if (race == NULL)
        return MEMOPT_OK;
    mo_race_memory_fini(race);
    mo_race_clocks_fini(race);
    mo_free(race->found);
    pthread_mutex_destroy(&race->lock);
    mo_free(race);
    return MEMOPT_OK;
}

/* --- checks. The lock is held ------------------------------------------------------------------ */

static memopt_status check_actor(const memopt_race *race, const char *call, uint32_t actor,
                                 uint32_t least)
{
    if (actor >= least && actor < race->actor_count)
        return MEMOPT_OK;
    return mo_fail(MEMOPT_INVALID_ARGUMENT,
                   "%s: there is no stream %" PRIu32 "; the finder has %" PRIu64, call, actor,
                   race->actor_count - 1);
}

static memopt_status check_event(const memopt_race *race, const char *call, uint64_t event)
{
    if (event != 0 && event <= race->event_count && race->events[event - 1].live)
        return MEMOPT_OK;
    return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: there is no event %" PRIu64, call, event);
}

static memopt_status check_access(uint32_t index, const memopt_race_access *access)
{
    mo_race_shape shape;
    uint64_t lo, hi;
    if (access->mode == 0 || access->mode > (MEMOPT_RACE_READ | MEMOPT_RACE_WRITE))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "race_run: access %" PRIu32 " has the mode %" PRIu32
                       "; it is 1 (reads), 2 (writes) or 3",
                       index, access->mode);
    if (access->dims > MEMOPT_RACE_MOST_DIMS ||
        (access->dims != 0 && (access->shape == NULL || access->strides == NULL)))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "race_run: access %" PRIu32 " has %" PRIu32
                       " dimensions, shape %p and strides %p; at most %d, and both arrays",
                       index, access->dims, (const void *)access->shape,
                       (const void *)access->strides, MEMOPT_RACE_MOST_DIMS);
    if (mo_race_shape_of(access, &shape, &lo, &hi) < 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "race_run: access %" PRIu32 ", elements of %" PRIu64 " bytes from %#" PRIx64
                       ", has a negative count or leaves the address space",
                       index, access->bytes, access->address);
    return MEMOPT_OK;
}

/* An operation of an actor, whose accesses have been checked. */
static void operate(memopt_race *race, uint32_t actor, uint64_t tag,
                    const memopt_race_access *accesses, uint32_t count)
{
    mo_race_follow_host(race, actor);
    mo_race_use use = {.tag = tag, .actor = actor};
    if (actor != MEMOPT_RACE_HOST)
        use.seq = ++race->actors[actor].clock.at[actor];
    race->stats.operations++;
    for (uint32_t i = 0; i < count; i++) {
        mo_race_shape shape;
        uint64_t lo, hi;
        use.write = (accesses[i].mode & MEMOPT_RACE_WRITE) != 0;
        if (mo_race_shape_of(&accesses[i], &shape, &lo, &hi) > 0)
            mo_race_touch(race, &use, shape.dims != 0 ? &shape : NULL, lo, hi);
    }
}

/* --- calls ------------------------------------------------------------------------------------- */

memopt_status memopt_race_add_stream(memopt_race *race, uint32_t *out_stream)
{
    memopt_status status;
    MO_NOT_NULL("race_add_stream", race, out_stream);
    mo_lock(&race->lock);
    if (race->actor_count > MEMOPT_RACE_MOST_STREAMS)
        status = mo_fail(MEMOPT_LIMIT_REACHED, "race_add_stream: the finder has %d streams",
                         MEMOPT_RACE_MOST_STREAMS);
    else
        status = mo_race_clocks_add(race, out_stream);
    mo_unlock(&race->lock);
    return status;
}

memopt_status memopt_race_allocate(memopt_race *race, uint64_t address, uint64_t bytes,
                                   memopt_race_memory memory, uint32_t stream, uint64_t tag)
{
    uint64_t end;
    memopt_status status = MEMOPT_OK;
    MO_NOT_NULL("race_allocate", race);
    if (!mo_add_u64(address, bytes, &end) ||
        (memory != MEMOPT_RACE_DEVICE && memory != MEMOPT_RACE_PINNED))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "race_allocate: %" PRIu64 " bytes at %#" PRIx64 " of memory %" PRIu32
                       "; the range must not wrap around, memory is 1 (device) or 2 (page-locked)",
                       bytes, address, memory);
    mo_lock(&race->lock);
    if (memory == MEMOPT_RACE_DEVICE)
        status = check_actor(race, "race_allocate", stream, 1);
    if (status == MEMOPT_OK)
        mo_race_block_begin(race, address, end, memory, stream, tag);
    mo_unlock(&race->lock);
    return status;
}

memopt_status memopt_race_free(memopt_race *race, uint64_t address, uint64_t tag)
{
    MO_NOT_NULL("race_free", race);
    mo_lock(&race->lock);
    mo_race_block_end(race, address, tag);
    mo_unlock(&race->lock);
    return MEMOPT_OK;
}

memopt_status memopt_race_record_stream(memopt_race *race, uint64_t address, uint32_t stream)
{
    MO_NOT_NULL("race_record_stream", race);
    mo_lock(&race->lock);
    memopt_status status = check_actor(race, "race_record_stream", stream, 1);
    if (status == MEMOPT_OK)
        mo_race_block_recorded(race, address, stream);
    mo_unlock(&race->lock);
    return status;
}

memopt_status memopt_race_run(memopt_race *race, uint32_t actor, uint64_t tag,
                              const memopt_race_access *accesses, uint32_t count)
{
    MO_NOT_NULL("race_run", race);
    if (count != 0)
        MO_NOT_NULL("race_run", accesses);
    mo_lock(&race->lock);
    memopt_status status = check_actor(race, "race_run", actor, 0);
    for (uint32_t i = 0; i < count && status == MEMOPT_OK; i++)
        status = check_access(i, &accesses[i]);
    if (status == MEMOPT_OK)
        operate(race, actor, tag, accesses, count);
    mo_unlock(&race->lock);
    return status;
}

memopt_status memopt_race_wait(memopt_race *race, uint32_t waiter, uint32_t waited)
{
    MO_NOT_NULL("race_wait", race);
    mo_lock(&race->lock);
    memopt_status status = check_actor(race, "race_wait", waiter, 0);
    if (status == MEMOPT_OK)
        status = check_actor(race, "race_wait", waited, 0);
    if (status == MEMOPT_OK)
        mo_race_join(race, waiter, &race->actors[waited].clock);
    mo_unlock(&race->lock);
    return status;
}

memopt_status memopt_race_record(memopt_race *race, uint32_t stream, uint64_t *event)
{
    MO_NOT_NULL("race_record", race, event);
    mo_lock(&race->lock);
    memopt_status status = check_actor(race, "race_record", stream, 1);
    if (status == MEMOPT_OK && *event != 0)
        status = check_event(race, "race_record", *event);
    if (status == MEMOPT_OK)
        status = mo_race_event_record(race, stream, event);
    mo_unlock(&race->lock);
    return status;
}

memopt_status memopt_race_wait_event(memopt_race *race, uint32_t waiter, uint64_t event)
{
    MO_NOT_NULL("race_wait_event", race);
    mo_lock(&race->lock);
    memopt_status status = check_actor(race, "race_wait_event", waiter, 0);
    if (status == MEMOPT_OK)
        status = check_event(race, "race_wait_event", event);
    if (status == MEMOPT_OK)
        mo_race_join(race, waiter, &race->events[event - 1].clock);
    mo_unlock(&race->lock);
    return status;
}

memopt_status memopt_race_drop_event(memopt_race *race, uint64_t event)
{
    MO_NOT_NULL("race_drop_event", race);
    if (event == 0)
        return MEMOPT_OK;
    mo_lock(&race->lock);
    memopt_status status = check_event(race, "race_drop_event", event);
    if (status == MEMOPT_OK)
        mo_race_event_drop(race, event);
    mo_unlock(&race->lock);
    return status;
}

memopt_status memopt_race_get_stats(memopt_race *race, memopt_race_stats *out_stats)
{
    MO_NOT_NULL("race_get_stats", race, out_stats);
    mo_lock(&race->lock);
    memopt_race_stats stats = race->stats;
    mo_unlock(&race->lock);
    return mo_result_write(out_stats, &stats, sizeof stats, "memopt_race_stats");
}

memopt_status memopt_race_get_report(memopt_race *race, uint64_t index,
                                     memopt_race_report *out_report)
{
    memopt_race_report report = MEMOPT_RACE_REPORT_INIT;
    MO_NOT_NULL("race_get_report", race, out_report);
    mo_lock(&race->lock);
    uint64_t count = race->stats.reports;
    if (index < count)
        report = race->found[index];
    mo_unlock(&race->lock);
    if (index >= count)
        return mo_fail(MEMOPT_NOT_FOUND,
                       "race_get_report: there is no report %" PRIu64 "; there are %" PRIu64, index,
                       count);
    return mo_result_write(out_report, &report, sizeof report, "memopt_race_report");
}
