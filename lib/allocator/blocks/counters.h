/*
 * Statistics with the field's keys. The name of every value and the place it is read from come from
 * the lists below; "freed" is the sum ever added less the current value.
 */
#ifndef MO_ALLOCATOR_COUNTERS_H
#define MO_ALLOCATOR_COUNTERS_H

#include "base/checked.h"

/* X(ENUMERATOR, key): kept in all and by pool, each with current, peak, allocated and freed. */
#define MO_STAT_LIST(X)                                                                            \
    X(ALLOCATION, allocation)                                                                      \
    X(SEGMENT, segment)                                                                            \
    X(ACTIVE, active)                                                                              \
    X(INACTIVE_SPLIT, inactive_split)                                                              \
    X(ALLOCATED_BYTES, allocated_bytes)                                                            \
    X(RESERVED_BYTES, reserved_bytes)                                                              \
    X(ACTIVE_BYTES, active_bytes)                                                                  \
    X(INACTIVE_SPLIT_BYTES, inactive_split_bytes)                                                  \
    X(REQUESTED_BYTES, requested_bytes)

/* Kept in all only. */
#define MO_STAT_OVERSIZE_LIST(X)                                                                   \
    X(OVERSIZE_ALLOCATIONS, oversize_allocations)                                                  \
    X(OVERSIZE_SEGMENTS, oversize_segments)

/* Plain counters. */
#define MO_STAT_COUNTER_LIST(X)                                                                    \
    X(MAX_SPLIT_SIZE, max_split_size)                                                              \
    X(NUM_ALLOC_RETRIES, num_alloc_retries)                                                        \
    X(NUM_OOMS, num_ooms)                                                                          \
    X(NUM_SYNC_ALL_STREAMS, num_sync_all_streams)                                                  \
    X(NUM_DEVICE_ALLOC, num_device_alloc)                                                          \
    X(NUM_DEVICE_FREE, num_device_free)                                                            \
    X(NUM_OOM_REJECTIONS, num_oom_rejections)

#define MO_STAT_ENUMERATOR(name, key) MO_STAT_##name,
enum mo_stat_id { MO_STAT_LIST(MO_STAT_ENUMERATOR) MO_STAT_COUNT };
enum mo_stat_oversize_id { MO_STAT_OVERSIZE_LIST(MO_STAT_ENUMERATOR) MO_STAT_OVERSIZE_COUNT };
enum mo_stat_counter_id { MO_STAT_COUNTER_LIST(MO_STAT_ENUMERATOR) MO_STAT_COUNTER_COUNT };
#undef MO_STAT_ENUMERATOR

enum { MO_POOL_ALL = 0, MO_POOL_SMALL = 1, MO_POOL_LARGE = 2, MO_POOL_KINDS = 3 };

typedef struct mo_stat {
    uint64_t current;
    uint64_t peak;
    uint64_t added; /* ever */
} mo_stat;

typedef struct mo_stats {
    mo_stat by_pool[MO_POOL_KINDS][MO_STAT_COUNT];
    mo_stat oversize[MO_STAT_OVERSIZE_COUNT];
    uint64_t counter[MO_STAT_COUNTER_COUNT];
    int raised; /* a value may have come closer to its peak */
} mo_stats;

static inline void mo_stat_add_one(mo_stat *stat, uint64_t amount)
{
    stat->current += amount;
    stat->added += amount;
    stat->peak = mo_max_u64(stat->peak, stat->current);
}

/* kind is MO_POOL_SMALL or MO_POOL_LARGE; the sum of both is kept too. */
static inline void mo_stat_add(mo_stats *stats, unsigned kind, enum mo_stat_id id, uint64_t amount)
{
    mo_stat_add_one(&stats->by_pool[MO_POOL_ALL][id], amount);
    mo_stat_add_one(&stats->by_pool[kind][id], amount);
    stats->raised = 1;
}

static inline void mo_stat_subtract(mo_stats *stats, unsigned kind, enum mo_stat_id id,
                                    uint64_t amount)
{
    stats->by_pool[MO_POOL_ALL][id].current -= amount;
    stats->by_pool[kind][id].current -= amount;
}

static inline uint64_t mo_stat_current(const mo_stats *stats, enum mo_stat_id id)
{
    return stats->by_pool[MO_POOL_ALL][id].current;
}

#endif
