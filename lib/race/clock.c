#include "race/finder.h"

#include "base/checked.h"
#include "base/memory.h"

#include <inttypes.h>
#include <string.h>

enum { LEAST_CLOCK = 8 };

/* --- host memory ----------------------------------------------------------------------------- */

static void count_bytes(memopt_race *race, uint64_t bytes)
{
    race->stats.bytes += bytes;
    race->stats.bytes_peak = mo_max_u64(race->stats.bytes_peak, race->stats.bytes);
}

void *mo_race_take(memopt_race *race, uint64_t bytes)
{
    void *pointer = mo_malloc(bytes);
    if (pointer != NULL)
        count_bytes(race, bytes);
    return pointer;
}

void mo_race_give(memopt_race *race, void *pointer, uint64_t bytes)
{
    if (pointer != NULL)
        race->stats.bytes -= bytes;
    mo_free(pointer);
}

int mo_race_grow(memopt_race *race, void **array, uint64_t *capacity, uint64_t needed,
                 uint64_t element_size)
{
    uint64_t before = *capacity;
    int grown = mo_grow(array, capacity, needed, element_size);
    count_bytes(race, (*capacity - before) * element_size);
    return grown;
}

/* --- clocks ---------------------------------------------------------------------------------- */

/* Room for `size` numbers; 0 without memory, and the clock is as it was. */
static int widen(memopt_race *race, mo_race_clock *clock, uint64_t size)
{
    if (size <= clock->size)
        return 1;
    size = mo_max_u64(mo_max_u64(size, LEAST_CLOCK), 2 * clock->size);
    uint64_t *at = mo_race_take(race, size * sizeof *at);
    if (at == NULL)
        return 0;
    memset(at, 0, size * sizeof *at);
    if (clock->size != 0)
        memcpy(at, clock->at, clock->size * sizeof *at);
    mo_race_give(race, clock->at, clock->size * sizeof *at);
    *clock = (mo_race_clock){at, size};
    return 1;
}

static void end(memopt_race *race, mo_race_clock *clock)
{
    mo_race_give(race, clock->at, clock->size * sizeof *clock->at);
    *clock = (mo_race_clock){NULL, 0};
}

memopt_status mo_race_clocks_add(memopt_race *race, uint32_t *out_stream)
{
    uint64_t count = race->actor_count;
    mo_race_clock clock = {NULL, 0};
    int room = mo_race_grow(race, (void **)&race->actors, &race->actor_capacity, count + 1,
                            sizeof *race->actors) &&
               widen(race, &clock, count + 1);
    for (uint64_t i = 0; i < count && room; i++)
        room = widen(race, &race->actors[i].clock, count + 1);
    if (!room) {
        end(race, &clock);
        return MEMOPT_OUT_OF_HOST_MEMORY;
    }
    race->actors[count] = (mo_race_actor){.clock = clock};
    race->actor_count++;
    mo_race_follow_host(race, (uint32_t)count);
    *out_stream = (uint32_t)count;
    return MEMOPT_OK;
}

void mo_race_clocks_fini(memopt_race *race)
{
    for (uint64_t i = 0; i < race->actor_count; i++)
        end(race, &race->actors[i].clock);
    for (uint64_t i = 0; i < race->event_count; i++)
        end(race, &race->events[i].clock);
    mo_free(race->actors);
    mo_free(race->events);
}

void mo_race_join(memopt_race *race, uint32_t waiter, const mo_race_clock *clock)
{
    uint64_t *at = race->actors[waiter].clock.at;
    uint64_t size = mo_min_u64(clock->size, race->actor_count);
    for (uint64_t i = 0; i < size; i++)
        at[i] = mo_max_u64(at[i], clock->at[i]);
}

void mo_race_follow_host(memopt_race *race, uint32_t stream)
{
    if (stream != MEMOPT_RACE_HOST)
        mo_race_join(race, stream, &race->actors[MEMOPT_RACE_HOST].clock);
}

/* --- events ---------------------------------------------------------------------------------- */

/* The number of a new event, or 0 without memory. */
static uint64_t new_event(memopt_race *race)
{
    uint64_t number = race->unused_event;
    if (number != 0) {
        race->unused_event = race->events[number - 1].next;
    } else {
        if (!mo_race_grow(race, (void **)&race->events, &race->event_capacity,
                          race->event_count + 1, sizeof *race->events))
            return 0;
        number = ++race->event_count;
        race->events[number - 1] = (mo_race_event){{NULL, 0}, 0, 0};
    }
    race->events[number - 1].live = 1;
    return number;
}

void mo_race_event_drop(memopt_race *race, uint64_t number)
{
    mo_race_event *event = &race->events[number - 1];
    event->live = 0;
    event->next = race->unused_event;
    race->unused_event = number;
}

memopt_status mo_race_event_record(memopt_race *race, uint32_t stream, uint64_t *number)
{
    uint64_t recorded = *number != 0 ? *number : new_event(race);
    if (recorded == 0)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    mo_race_clock *clock = &race->events[recorded - 1].clock;
    if (!widen(race, clock, race->actor_count)) {
        if (*number == 0)
            mo_race_event_drop(race, recorded);
        return MEMOPT_OUT_OF_HOST_MEMORY;
    }
    memcpy(clock->at, race->actors[stream].clock.at, race->actor_count * sizeof *clock->at);
    *number = recorded;
    return MEMOPT_OK;
}
