/*
 * The recording of steps: each allocation with its lane, its size, and when it began and ended in
 * events of the step. Blocks that live over a mark are followed for one more step, since a step
 * that repeats frees them at the same event every time.
 */
#include "allocator/steps/step_recorder.h"

#include "base/memory.h"

#include <string.h>

/* A longer step is not recorded. */
enum { MOST_ENTRIES = 1 << 20 };

static mo_lane *new_lane(mo_steps *steps, memopt_stream stream)
{
    mo_lane *lane = mo_calloc(1, sizeof *lane);
    if (lane == NULL)
        return NULL;
    lane->stream = stream;
    lane->next = steps->lanes;
    steps->lanes = lane;
    return lane;
}

mo_lane *mo_lane_of(memopt_allocator *allocator, mo_pool *pool)
{
    mo_lane *lane = pool->lane;
    if (lane != NULL)
        return lane;
    for (lane = allocator->steps->lanes; lane != NULL; lane = lane->next)
        if (lane->stream == pool->stream && !lane->ended)
            break;
    if (lane == NULL)
        lane = new_lane(allocator->steps, pool->stream);
    return pool->lane = lane;
}

static int has_room(mo_step_record *record)
{
    return record->count < record->room ||
           mo_grow((void **)&record->entries, &record->room, (uint64_t)record->count + 1,
                   sizeof *record->entries);
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 29;
}

/* The block may be larger than the request. A step with a lent one is not compared: it repeats only
 * by chance. */
static void note_alloc(memopt_allocator *allocator, mo_block *block, const mo_request *request)
{
    mo_steps *steps = allocator->steps;
    mo_step_record *now = &steps->now;
    if (!steps->recording || steps->broken)
        return;
    const mo_pool *pool = request->pool;
    int lent = pool->life != MO_STREAM_LIVE || pool->stream != request->stream;
    mo_lane *lane = lent ? NULL : mo_lane_of(allocator, request->pool);
    if (lane == NULL || now->count == MOST_ENTRIES || !has_room(now)) {
        steps->broken = 1;
        return;
    }
    now->entries[now->count++] =
        (mo_step_entry){.lane = lane, .block = block, .size = request->size, .born = now->clock++};
    block->entry = now->count;
    lane->count++;
    lane->hash = mix(lane->hash, request->size);
}

static mo_step_entry *entry_of(mo_steps *steps, const mo_block *block, int *out_before)
{
    *out_before = (block->entry & MO_ENTRY_BEFORE) != 0;
    mo_step_record *record = *out_before ? &steps->before : &steps->now;
    return &record->entries[(block->entry & ~MO_ENTRY_BEFORE) - 1];
}

static void note_wait(memopt_allocator *allocator, const mo_block *block)
{
    int before;
    mo_step_entry *entry = entry_of(allocator->steps, block, &before);
    entry->freed = allocator->steps->now.clock++;
    entry->delayed = 1;
}

static void note_end(memopt_allocator *allocator, mo_block *block)
{
    int before;
    mo_step_entry *entry = entry_of(allocator->steps, block, &before);
    entry->died = allocator->steps->now.clock++;
    entry->fate = before ? MO_FATE_NEXT : MO_FATE_GONE;
    entry->block = NULL;
    block->entry = 0;
}

static void note(memopt_allocator *allocator, mo_sink *sink, const mo_event *event)
{
    (void)sink;
    if (event->what == MO_ALLOC)
        note_alloc(allocator, event->block, event->request);
    else if (event->block->entry != 0 && event->what == MO_WAITS)
        note_wait(allocator, event->block);
    else if (event->block->entry != 0)
        note_end(allocator, event->block);
}

/* Stripes do not record. */
static int may_open(mo_sink *sink)
{
    return !((const mo_steps *)sink)->recording;
}

const mo_sink mo_step_sink = {.wants = MO_WANTS(MO_ALLOC) | MO_WANTS(MO_WAITS) | MO_WANTS(MO_END),
                              .tell = note,
                              .open = may_open};

/* Blocks that are alive are followed no more. */
static void let_go(mo_step_record *record)
{
    for (uint32_t i = 0; i < record->count; i++)
        if (record->entries[i].block != NULL)
            record->entries[i].block->entry = 0;
    record->count = record->clock = 0;
}

static void turn_lanes(mo_steps *steps)
{
    for (mo_lane *lane = steps->lanes; lane != NULL; lane = lane->next) {
        lane->count_before = lane->count;
        lane->whole_before = lane->whole;
        lane->count = lane->whole = lane->hash = 0;
    }
}

void mo_step_turn(mo_steps *steps)
{
    mo_step_record old = steps->before;
    let_go(&old);
    turn_lanes(steps);
    steps->before = steps->now;
    steps->now = old;
    steps->has_before = steps->recording && !steps->broken;
    for (uint32_t i = 0; i < steps->before.count; i++)
        if (steps->before.entries[i].block != NULL)
            steps->before.entries[i].block->entry |= MO_ENTRY_BEFORE;
    steps->broken = 0;
}

void mo_step_stop(mo_steps *steps)
{
    mo_step_record *records[] = {&steps->now, &steps->before};
    for (int i = 0; i < 2; i++) {
        let_go(records[i]);
        mo_free(records[i]->entries);
        memset(records[i], 0, sizeof *records[i]);
    }
    turn_lanes(steps);
    steps->recording = steps->has_before = steps->broken = 0;
    steps->recent_count = 0;
}

int mo_step_is_alike(const mo_steps *steps)
{
    if (!steps->recording || steps->broken || !steps->has_before || steps->now.count == 0)
        return 0;
    for (const mo_lane *lane = steps->lanes; lane != NULL; lane = lane->next)
        if (lane->count != lane->count_before || lane->whole != lane->whole_before)
            return 0;
    return 1;
}

void mo_step_note_mark(mo_steps *steps)
{
    uint64_t all = 0;
    for (mo_lane *lane = steps->lanes; lane != NULL; lane = lane->next) {
        all += mix((uint64_t)(uintptr_t)lane->stream, lane->hash);
        lane->whole = mix(lane->whole, lane->hash);
        lane->hash = 0;
    }
    if (!steps->recording || steps->broken) {
        steps->recent_count = 0;
        return;
    }
    memmove(steps->recent + 1, steps->recent, sizeof steps->recent - sizeof *steps->recent);
    steps->recent[0] = all;
    steps->recent_count += steps->recent_count < 2 * MO_MOST_PERIOD;
}

uint32_t mo_step_find_period(const mo_steps *steps)
{
    for (uint32_t period = 1; 2 * period <= steps->recent_count; period++)
        if (memcmp(steps->recent, steps->recent + period, period * sizeof *steps->recent) == 0)
            return period;
    return 0;
}
