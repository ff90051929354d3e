/* Statistics as the caller sees them: names, values, peaks. */
#include "allocator/watch/stats.h"

#include "base/lock.h"

#include <inttypes.h>
#include <string.h>

#define ONE_POOL(key, pool)                                                                        \
#key "." #pool ".current", #key "." #pool ".peak", #key "." #pool ".allocated",                \
        #key "." #pool ".freed",
#define BY_POOL(name, key) ONE_POOL(key, all) ONE_POOL(key, small_pool) ONE_POOL(key, large_pool)
#define OVERSIZE(name, key) #key ".current", #key ".peak", #key ".allocated", #key ".freed",
#define COUNTER(name, key) #key,

static const char *const names[] = {MO_STAT_LIST(BY_POOL) MO_STAT_OVERSIZE_LIST(OVERSIZE)
                                        MO_STAT_COUNTER_LIST(COUNTER)};

enum {
    NAME_COUNT = sizeof names / sizeof names[0],
    FORMS = 4,
    FIRST_OVERSIZE = MO_STAT_COUNT * MO_POOL_KINDS * FORMS,
    FIRST_COUNTER = FIRST_OVERSIZE + MO_STAT_OVERSIZE_COUNT * FORMS
};

static uint64_t form_of(const mo_stat *stat, uint64_t form)
{
    const uint64_t forms[FORMS] = {stat->current, stat->peak, stat->added,
                                   stat->added - stat->current};
    return forms[form];
}

/* In the order of the names. */
static uint64_t value_at(const mo_stats *stats, uint64_t index)
{
    if (index >= FIRST_COUNTER)
        return stats->counter[index - FIRST_COUNTER];
    if (index >= FIRST_OVERSIZE)
        return form_of(&stats->oversize[(index - FIRST_OVERSIZE) / FORMS], index % FORMS);
    uint64_t row = index / FORMS;
    return form_of(&stats->by_pool[row % MO_POOL_KINDS][row / MO_POOL_KINDS], index % FORMS);
}

const char *mo_stat_name(uint64_t index)
{
    return index < NAME_COUNT ? names[index] : NULL;
}

memopt_status memopt_allocator_get_stats(memopt_allocator *allocator, uint64_t count,
                                         const char **out_names, uint64_t *out_values,
                                         uint64_t *out_total)
{
    if (count != 0 && out_names == NULL && out_values == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "allocator_get_stats: out_names and out_values are NULL, count is %" PRIu64,
                       count);
    if (allocator == NULL && out_values != NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "allocator_get_stats: allocator is NULL");
    if (allocator != NULL && mo_device_inherited(allocator->device))
        return mo_fail_inherited("allocator_get_stats");
    if (out_values != NULL) {
        mo_lock(&allocator->lock);
        for (uint64_t i = 0; i < count && i < NAME_COUNT; i++)
            out_values[i] = value_at(&allocator->stats, i);
        mo_unlock(&allocator->lock);
    }
    for (uint64_t i = 0; out_names != NULL && i < count && i < NAME_COUNT; i++)
        out_names[i] = names[i];
    if (out_total != NULL)
        *out_total = NAME_COUNT;
    return MEMOPT_OK;
}

memopt_status memopt_allocator_get_stat(memopt_allocator *allocator, const char *name,
                                        uint64_t *out_value)
{
    MO_NOT_NULL("allocator_get_stat", allocator, name, out_value);
    MO_TRY(mo_check_process(allocator->device, "allocator_get_stat"));
    for (uint64_t i = 0; i < NAME_COUNT; i++) {
        if (strcmp(names[i], name) != 0)
            continue;
        mo_lock(&allocator->lock);
        *out_value = value_at(&allocator->stats, i);
        mo_unlock(&allocator->lock);
        return MEMOPT_OK;
    }
    return mo_fail(MEMOPT_NOT_FOUND,
                   "allocator_get_stat: no statistic is called \"%.60s\"; "
                   "memopt_allocator_get_stats lists all %d",
                   name, (int)NAME_COUNT);
}

memopt_status memopt_allocator_reset_peaks(memopt_allocator *allocator)
{
    MO_NOT_NULL("allocator_reset_peaks", allocator);
    MO_TRY(mo_check_process(allocator->device, "allocator_reset_peaks"));
    mo_lock(&allocator->lock);
    uint64_t active = allocator->stats.by_pool[MO_POOL_ALL][MO_STAT_ACTIVE_BYTES].peak;
    allocator->most_active = mo_max_u64(allocator->most_active, active);
    for (int pool = 0; pool < MO_POOL_KINDS; pool++)
        for (int id = 0; id < MO_STAT_COUNT; id++)
            allocator->stats.by_pool[pool][id].peak = allocator->stats.by_pool[pool][id].current;
    for (int id = 0; id < MO_STAT_OVERSIZE_COUNT; id++)
        allocator->stats.oversize[id].peak = allocator->stats.oversize[id].current;
    for (uint32_t tag = 0; tag < allocator->tag_count; tag++)
        allocator->tags[tag].peak = allocator->tags[tag].current;
    allocator->stats.raised = 1;
    allocator->tags_raised = ~UINT64_C(0);
    mo_unlock(&allocator->lock);
    return MEMOPT_OK;
}

/* --- counting what the closed gate serves; stripes count for themselves ------------------------ */

static void count_alloc(memopt_allocator *allocator, const mo_block *block, unsigned kind)
{
    mo_stats *stats = &allocator->stats;
    mo_stat_add(stats, kind, MO_STAT_ALLOCATION, 1);
    mo_stat_add(stats, kind, MO_STAT_ACTIVE, 1);
    mo_stat_add(stats, kind, MO_STAT_ALLOCATED_BYTES, block->size);
    mo_stat_add(stats, kind, MO_STAT_ACTIVE_BYTES, block->size);
    mo_stat_add(stats, kind, MO_STAT_REQUESTED_BYTES, block->requested);
    if (block->size >= allocator->max_split)
        mo_stat_add_one(&stats->oversize[MO_STAT_OVERSIZE_ALLOCATIONS], 1);
}

static void count_free(memopt_allocator *allocator, const mo_block *block, unsigned kind)
{
    mo_stats *stats = &allocator->stats;
    mo_stat_subtract(stats, kind, MO_STAT_ALLOCATION, 1);
    mo_stat_subtract(stats, kind, MO_STAT_ALLOCATED_BYTES, block->size);
    mo_stat_subtract(stats, kind, MO_STAT_REQUESTED_BYTES, block->requested);
    if (block->size >= allocator->max_split)
        stats->oversize[MO_STAT_OVERSIZE_ALLOCATIONS].current--;
}

static void count(memopt_allocator *allocator, mo_sink *sink, const mo_event *event)
{
    const mo_block *block = event->block;
    unsigned kind = block->segment->pool->kind;
    (void)sink;
    if (event->what == MO_ALLOC) {
        count_alloc(allocator, block, kind);
    } else if (event->what == MO_FREE) {
        count_free(allocator, block, kind);
    } else {
        mo_stat_subtract(&allocator->stats, kind, MO_STAT_ACTIVE, 1);
        mo_stat_subtract(&allocator->stats, kind, MO_STAT_ACTIVE_BYTES, block->size);
    }
}

void mo_stats_init(memopt_allocator *allocator)
{
    allocator->counting = (mo_sink){
        .wants = MO_WANTS(MO_ALLOC) | MO_WANTS(MO_FREE) | MO_WANTS(MO_END), .tell = count};
    mo_sink_add(allocator, &allocator->counting);
}
