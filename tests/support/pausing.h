/* Pauses of whole pools. */
#ifndef TEST_SUPPORT_PAUSING_H
#define TEST_SUPPORT_PAUSING_H

#include "memopt/allocator.h"

static inline memopt_status pause_pool(memopt_pool *pool, memopt_pause how, uint64_t *out_released)
{
    memopt_pause_options options = MEMOPT_PAUSE_OPTIONS_INIT;
    memopt_pause_report report = MEMOPT_PAUSE_REPORT_INIT;
    options.how = how;
    memopt_status status = memopt_pool_pause_sync(pool, &options, &report);
    if (status == MEMOPT_OK && out_released != NULL)
        *out_released = report.released_bytes;
    return status;
}

/* 0 in a child process. */
static inline uint64_t paused_tags_of(memopt_pool *pool)
{
    memopt_allocator_info info = MEMOPT_ALLOCATOR_INFO_INIT;
    return memopt_allocator_get_info(pool, &info) == MEMOPT_OK ? info.paused_tags : 0;
}

static inline int pool_is_paused(memopt_pool *pool)
{
    return paused_tags_of(pool) == UINT64_MAX;
}

#endif
