/*
 * Pausing and resuming: the physical pages of some tags' blocks go and come back, their addresses
 * stay.
 *
 * The order makes every failure harmless. A pause first does all that can fail: it waits for the
 * device, gives the cache back and copies the contents out. Then it unmaps, and what the driver
 * refuses to unmap merely stays. A resume maps, then copies back, and until both are done the
 * contents stay where they are kept and what was mapped can be unmapped again.
 *
 * Blocks may be freed all along. Those of a paused tag sleep until the resume, since their pages
 * are not there, or move just then. Blocks of other tags come, go and grow as ever.
 */
#include "allocator/pause/pause.h"

#include "allocator/blocks/block_life.h"
#include "allocator/memory/family.h"
#include "allocator/memory/give_back.h"
#include "allocator/memory/observers.h"
#include "allocator/memory/stale.h"
#include "allocator/pause/kept.h"
#include "allocator/pause/paused_pages.h"
#include "allocator/pause/sleep.h"
#include "allocator/streams/events.h"

#include "base/lock.h"
#include "base/memory.h"
#include "base/options.h"

#include <inttypes.h>
#include <string.h>

/* --- records ---------------------------------------------------------------------------------- */

/* NULL: no host memory. */
static mo_pause *new_pause(uint64_t tags)
{
    mo_pause *pause = mo_calloc(1, sizeof *pause);
    if (pause != NULL)
        *pause = (mo_pause){.tags = tags, .kept = {.file = -1}};
    return pause;
}

/* Lock held. */
static void link_pause(memopt_allocator *allocator, mo_pause *pause)
{
    pause->next = allocator->pauses;
    allocator->pauses = pause;
    allocator->paused_tags |= pause->tags;
}

/* Lock held. What sleeps is free. The record stays while copies may use its
 * memory. */
static void end_pause(memopt_allocator *allocator, mo_pause *pause)
{
    allocator->paused_tags &= ~pause->tags;
    pause->tags = 0;
    mo_sleep_end(allocator, pause);
    if (pause->kept.in_flight)
        return;
    mo_pause **place = &allocator->pauses;
    while (*place != pause)
        place = &(*place)->next;
    *place = pause->next;
    mo_free(pause);
}

/* Lock held, released meanwhile. What pauses that have failed have left goes, if it can. */
static memopt_status drop_failed(memopt_allocator *allocator)
{
    memopt_status status = MEMOPT_OK;
    for (mo_pause *pause = allocator->pauses, *next; pause != NULL; pause = next) {
        next = pause->next;
        if (pause->tags != 0)
            continue;
        mo_unlock(&allocator->lock);
        status = mo_kept_drop(allocator, &pause->kept, 0);
        mo_lock(&allocator->lock);
        if (status != MEMOPT_OK)
            return status;
        end_pause(allocator, pause);
    }
    return status;
}

/* --- the two ways ----------------------------------------------------------------------------- */

static uint64_t classic_bytes(const memopt_allocator *allocator)
{
    uint64_t bytes = 0;
    for (const mo_segment *s = allocator->segments; s != NULL; s = s->next)
        bytes += mo_segment_is_expandable(s) ? 0 : s->mapped;
    return bytes;
}

static memopt_status fail_classic(const memopt_allocator *allocator)
{
    return mo_fail(MEMOPT_UNSUPPORTED,
                   "pool_pause: \"%s\" holds %s in classic segments, whose addresses go with their "
                   "memory; create it with expandable_segments:True",
                   allocator->name, MO_SIZE(classic_bytes(allocator)));
}

/* Makes the file, waits for all work, then gives back what no block uses, unless the member retains
 * it. Lock held, released meanwhile. */
static memopt_status quiesce(memopt_allocator *allocator, mo_pause *pause, const char *path,
                             uint64_t *released)
{
    mo_unlock(&allocator->lock);
    memopt_status status = path != NULL ? mo_kept_open(&pause->kept, path) : MEMOPT_OK;
    if (status == MEMOPT_OK)
        status = memopt_device_sync(allocator->device);
    mo_lock(&allocator->lock);
    if (status == MEMOPT_OK)
        status = drop_failed(allocator);
    if (status != MEMOPT_OK)
        return status;
    mo_events_process(allocator); /* all is complete: what was freed keeps no page */
    if (!allocator->retain)
        status = mo_give_back(allocator, 0, released);
    return status;
}

/* Pages go; lock held, released meanwhile. */
static memopt_status unmap(memopt_allocator *allocator, mo_pause *pause, uint64_t *released)
{
    mo_unlock(&allocator->lock);
    int any;
    memopt_status status = mo_paused_unmap(allocator, pause, &any);
    mo_lock(&allocator->lock);
    *released += mo_paused_count(allocator, pause);
    return any ? MEMOPT_OK : status; /* a page that stays does no harm */
}

/* Lock held, released meanwhile. */
static memopt_status take(memopt_allocator *allocator, mo_pause *pause,
                          const memopt_pause_options *options, memopt_pause_report *report)
{
    memopt_status status = quiesce(allocator, pause, options->path, &report->released_bytes);
    if (status == MEMOPT_OK && classic_bytes(allocator) != 0)
        status = fail_classic(allocator); /* the driver has refused to map more */
    if (status == MEMOPT_OK)
        status = mo_sleep_begin(allocator, pause, &report->shared_bytes);
    if (status == MEMOPT_OK && options->how != MEMOPT_PAUSE_DISCARD)
        status = mo_kept_save(allocator, pause, &report->kept_bytes);
    if (status == MEMOPT_OK)
        status = unmap(allocator, pause, &report->released_bytes);
    return status;
}

/* Lock held, released meanwhile. */
static memopt_status pause_member(memopt_allocator *allocator, uint64_t tags,
                                  const memopt_pause_options *options, memopt_pause_report *report)
{
    if (!allocator->config.expandable_segments)
        return fail_classic(allocator);
    mo_pause *pause = new_pause(tags);
    if (pause == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memopt_status status = mo_stale_collect(allocator, 1);
    if (status != MEMOPT_OK) {
        mo_free(pause);
        return status;
    }
    link_pause(allocator, pause);
    (void)mo_plan_leave(allocator, UINT64_MAX); /* what is held for a plan may go with its pages */
    status = take(allocator, pause, options, report);
    if (status == MEMOPT_OK)
        return status;
    mo_unlock(&allocator->lock);
    (void)mo_kept_drop(allocator, &pause->kept, 0);
    mo_lock(&allocator->lock);
    end_pause(allocator, pause);
    return status;
}

/* Lock held, released meanwhile. */
static memopt_status resume_pause(memopt_allocator *allocator, mo_pause *pause)
{
    memopt_status status = mo_paused_map(allocator, pause);
    if (status == MEMOPT_OK)
        status = mo_kept_load(allocator, pause);
    mo_unlock(&allocator->lock);
    if (status == MEMOPT_OK)
        (void)mo_kept_drop(allocator, &pause->kept, 0);
    else if (!pause->kept.in_flight)
        mo_paused_unmap_fresh(allocator, pause);
    mo_lock(&allocator->lock);
    (void)mo_paused_count(allocator, pause);
    if (status == MEMOPT_OK)
        end_pause(allocator, pause);
    return status;
}

/* Lock held, released meanwhile. */
static memopt_status resume_tags(memopt_allocator *allocator, uint64_t tags)
{
    memopt_status status = MEMOPT_OK;
    while (status == MEMOPT_OK && (tags & allocator->paused_tags) != 0) {
        mo_pause *pause = allocator->pauses;
        while ((pause->tags & tags) == 0)
            pause = pause->next;
        status = resume_pause(allocator, pause);
    }
    return status;
}

memopt_status mo_pause_end(memopt_allocator *allocator)
{
    memopt_status result = MEMOPT_OK;
    while (allocator->pauses != NULL) {
        mo_pause *pause = allocator->pauses;
        allocator->pauses = pause->next;
        mo_paused_unmap_fresh(allocator, pause); /* handles that the driver did not take */
        mo_free(pause->pages);
        mo_keep_first(&result, mo_kept_drop(allocator, &pause->kept, 1)); /* there is no later */
        mo_free(pause);
    }
    return result;
}

/* --- calls ------------------------------------------------------------------------------------ */

static uint32_t lowest(uint64_t tags)
{
    return (uint32_t)__builtin_ctzll(tags);
}

/* `wrong`: tags that are not as the call wants them. Slow held. */
static memopt_status check(memopt_pool *pool, const char *function, uint64_t wrong, int all,
                           const char *what)
{
    if (wrong != 0 && all)
        return mo_fail(MEMOPT_BUSY, "%s: \"%s\" is %s", function, pool->name, what);
    if (wrong != 0)
        return mo_fail(MEMOPT_BUSY, "%s: tag %" PRIu32 " (%s) of \"%s\" is %s", function,
                       lowest(wrong), pool->tags[lowest(wrong)].name, pool->name, what);
    if (mo_family_capturing(pool->family))
        return mo_fail(MEMOPT_BUSY, "%s: a stream records a graph; call it after the capture",
                       function);
    return MEMOPT_OK;
}

/* Takes `slow`; a failure leaves it free. */
static memopt_status enter(memopt_pool *pool, const char *function)
{
    MO_NOT_NULL(function, pool);
    MO_TRY(mo_check_process(pool->device, function));
    return mo_family_enter(pool->family, function);
}

static memopt_status check_registered(const memopt_pool *pool, uint64_t tags)
{
    uint64_t unknown = pool->tag_count < MO_TAGS ? tags >> pool->tag_count : 0;
    if (unknown == 0)
        return MEMOPT_OK;
    return mo_fail(MEMOPT_INVALID_ARGUMENT,
                   "pool_pause: tag %" PRIu32 " is not registered; there are %" PRIu32,
                   pool->tag_count + lowest(unknown), pool->tag_count);
}

/* tags = 0: all that are not paused. */
static memopt_status pause_tags(memopt_pool *pool, const memopt_pause_options *options,
                                memopt_pause_report *report)
{
    MO_TRY(enter(pool, "pool_pause"));
    uint64_t paused = pool->paused_tags, tags = options->tags;
    memopt_status status = check_registered(pool, tags);
    if (status == MEMOPT_OK && tags == 0)
        status = check(pool, "pool_pause", paused == UINT64_MAX, 1, "paused already");
    else if (status == MEMOPT_OK)
        status = check(pool, "pool_pause", tags & paused, 0, "paused already");
    if (status == MEMOPT_OK) {
        mo_lock(&pool->lock);
        status = pause_member(pool, tags == 0 ? ~paused : tags, options, report);
        mo_unlock(&pool->lock);
    }
    mo_family_leave(pool->family);
    return status;
}

memopt_status memopt_pool_pause_sync(memopt_pool *pool, const memopt_pause_options *options,
                                     memopt_pause_report *out_report)
{
    memopt_pause_options copy;
    memopt_pause_report report = MEMOPT_PAUSE_REPORT_INIT;
    memopt_status status = mo_options_read(&copy, sizeof copy, options, "memopt_pause_options");
    if (status != MEMOPT_OK)
        return status;
    if (copy.how > MEMOPT_PAUSE_FILE)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "pool_pause: how is %" PRIu32 "; it is 0 (discard), 1 (keep) or 2 (file)",
                       copy.how);
    if ((copy.how == MEMOPT_PAUSE_FILE) != (copy.path != NULL))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "pool_pause: path is %s; MEMOPT_PAUSE_FILE needs one, and nothing else does",
                       copy.path == NULL ? "NULL" : copy.path);
    if (out_report != NULL) /* before anything is done */
        status = mo_result_write(out_report, out_report, sizeof report, "memopt_pause_report");
    if (status == MEMOPT_OK)
        status = pause_tags(pool, &copy, &report);
    if (status == MEMOPT_OK && out_report != NULL)
        (void)mo_result_write(out_report, &report, sizeof report, "memopt_pause_report");
    return status;
}

memopt_status memopt_pool_resume_sync(memopt_pool *pool, uint64_t tags)
{
    memopt_status status = enter(pool, "pool_resume");
    if (status != MEMOPT_OK)
        return status;
    uint64_t paused = pool->paused_tags;
    if (tags == 0)
        status = check(pool, "pool_resume", paused == 0, 1, "not paused");
    else
        status = check(pool, "pool_resume", tags & ~paused, 0, "not paused");
    if (status == MEMOPT_OK) {
        mo_lock(&pool->lock);
        status = resume_tags(pool, tags == 0 ? paused : tags);
        mo_unlock(&pool->lock);
    }
    mo_family_leave(pool->family);
    return status;
}
