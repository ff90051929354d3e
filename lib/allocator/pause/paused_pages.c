/*
 * The pages that a pause has taken: each is listed, with its place. A page stays where
 * the driver refuses to unmap it, and its handle where it refuses to release it; both are used
 * again at the resume. So unmapping is never undone, and mapping can always be.
 */
#include "allocator/pause/paused_pages.h"

#include "allocator/memory/family.h"
#include "allocator/memory/give_back.h"
#include "allocator/memory/observers.h"
#include "allocator/memory/pages.h"

#include "base/checked.h"
#include "base/lock.h"

static mo_vm_handle handle_of(const mo_paused_page *page)
{
    return page->segment->pages[page->page];
}

static char *address_of(const memopt_allocator *allocator, const mo_paused_page *page)
{
    return page->segment->address + page->page * allocator->granularity;
}

/* The pages that follow page i in its segment and look like it to observers and the driver. */
static uint64_t run_from(const mo_pause *pause, uint64_t i)
{
    const mo_paused_page *first = &pause->pages[i];
    uint64_t run = 1;
    while (i + run < pause->page_count) {
        const mo_paused_page *next = &pause->pages[i + run];
        if (next->segment != first->segment || next->page != first->page + run ||
            next->mapped != first->mapped || next->fresh != first->fresh ||
            next->told != first->told)
            break;
        run++;
    }
    return run;
}

static void set_told(mo_paused_page *pages, uint64_t count, int told)
{
    for (uint64_t i = 0; i < count; i++)
        pages[i].told = (uint8_t)told;
}

/* Pages that observers know as mapped are about to go: all of them if they agree or `anyway`. With
 * `fresh` only those that a resume has just mapped. */
static memopt_status tell_going(memopt_allocator *allocator, mo_pause *pause, int fresh, int anyway)
{
    memopt_status result = MEMOPT_OK;
    for (uint64_t i = 0, run; i < pause->page_count; i += run) {
        mo_paused_page *first = &pause->pages[i];
        run = run_from(pause, i);
        if (!first->mapped || !first->told || (fresh && !first->fresh))
            continue;
        uint64_t bytes = run * allocator->granularity;
        memopt_status status = MEMOPT_OK;
        if (anyway)
            mo_observe_gone(allocator, address_of(allocator, first), bytes);
        else
            status = mo_observe_unmapping(allocator, address_of(allocator, first), bytes);
        if (status == MEMOPT_OK)
            set_told(first, run, 0);
        mo_keep_first(&result, status);
    }
    return result;
}

/* Pages that have memory, which observers do not know. With `anyway` it stays whatever they say. */
static memopt_status tell_mapped(memopt_allocator *allocator, mo_pause *pause, int anyway)
{
    memopt_status status = MEMOPT_OK;
    for (uint64_t i = 0, run; i < pause->page_count && status == MEMOPT_OK; i += run) {
        mo_paused_page *first = &pause->pages[i];
        run = run_from(pause, i);
        if (!first->mapped || first->told || (anyway && first->fresh))
            continue;
        uint64_t bytes = run * allocator->granularity;
        if (anyway)
            mo_observe_stays(allocator, address_of(allocator, first), bytes);
        else
            status = mo_observe_mapped(allocator, address_of(allocator, first), bytes);
        if (status == MEMOPT_OK)
            set_told(first, run, 1);
    }
    return status;
}

static memopt_status unmap_page(memopt_allocator *allocator, mo_paused_page *page)
{
    memopt_status status = MEMOPT_OK;
    if (page->mapped)
        status = mo_page_unmap(allocator, page->segment, page->page);
    if (status != MEMOPT_OK)
        return status;
    page->mapped = page->fresh = 0;
    return handle_of(page) == NULL ? MEMOPT_OK
                                   : mo_page_release(allocator, page->segment, page->page);
}

memopt_status mo_paused_unmap(memopt_allocator *allocator, mo_pause *pause, int *out_any)
{
    memopt_status result = tell_going(allocator, pause, 0, 0);
    *out_any = 0;
    for (uint64_t i = 0; i < pause->page_count; i++) {
        mo_paused_page *page = &pause->pages[i];
        if (page->told)
            continue; /* an observer keeps it */
        mo_keep_first(&result, unmap_page(allocator, page));
        *out_any |= !page->mapped;
    }
    (void)tell_mapped(allocator, pause, 1);
    return result;
}

void mo_paused_unmap_fresh(memopt_allocator *allocator, mo_pause *pause)
{
    (void)tell_going(allocator, pause, 1, 1);
    for (uint64_t i = 0; i < pause->page_count; i++) {
        mo_paused_page *page = &pause->pages[i];
        if (page->fresh || !page->mapped) /* one that stays may lack access: it stays fresh */
            (void)unmap_page(allocator, page);
    }
}

/* --- mapping ---------------------------------------------------------------------------------- */

static uint64_t bytes_missing(const memopt_allocator *allocator, const mo_pause *pause)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < pause->page_count; i++)
        count += handle_of(&pause->pages[i]) == NULL;
    return count * allocator->granularity;
}

/* Handles for the pages without one. Without lock. */
static memopt_status create_all(memopt_allocator *allocator, const mo_pause *pause)
{
    memopt_status status = MEMOPT_OK;
    for (uint64_t i = 0; i < pause->page_count && status == MEMOPT_OK; i++) {
        mo_paused_page *page = &pause->pages[i];
        if (handle_of(page) == NULL)
            status = mo_vm_create(allocator->device, allocator->granularity,
                                  &page->segment->pages[page->page]);
    }
    return status;
}

static memopt_status fail_to_create(const memopt_allocator *allocator, uint64_t missing)
{
    memopt_memory_info info = MEMOPT_MEMORY_INFO_INIT;
    (void)memopt_device_get_memory_info(allocator->device, &info);
    return mo_fail(MEMOPT_OUT_OF_DEVICE_MEMORY,
                   "pool_resume: \"%s\" lacks %s, of which %s are free on the device and %s may be "
                   "held by limits; free or pause something else",
                   allocator->name, MO_SIZE(missing), MO_SIZE(info.free),
                   MO_SIZE(mo_room(allocator)));
}

/* Lock held, released meanwhile. */
static memopt_status try_to_create(memopt_allocator *allocator, const mo_pause *pause,
                                   uint64_t missing)
{
    if (missing > mo_room(allocator))
        return MEMOPT_OUT_OF_DEVICE_MEMORY;
    mo_unlock(&allocator->lock);
    memopt_status status = create_all(allocator, pause);
    mo_lock(&allocator->lock);
    return status;
}

/* What the member itself, unless it retains it, and then the others have free goes back. Lock held,
 * released meanwhile. */
static memopt_status make_room(memopt_allocator *allocator, uint64_t wanted, uint64_t *released)
{
    uint64_t held = mo_stat_current(&allocator->stats, MO_STAT_RESERVED_BYTES);
    memopt_status status = MEMOPT_OK;
    if (!allocator->retain && held > 0)
        status = mo_give_back(allocator, held > wanted ? held - wanted : 0, released);
    if (status != MEMOPT_OK || *released >= wanted)
        return status;
    return mo_family_release(allocator, wanted, released);
}

/* A handle for each page: where the device or a limit has too little, from what is free. Lock held.
 */
static memopt_status find_handles(memopt_allocator *allocator, const mo_pause *pause)
{
    uint64_t missing = bytes_missing(allocator, pause);
    for (;;) {
        memopt_status status = try_to_create(allocator, pause, missing);
        if (status != MEMOPT_OUT_OF_DEVICE_MEMORY)
            return status;
        uint64_t room = mo_room(allocator), released = 0;
        uint64_t lacking = missing > room ? missing - room : bytes_missing(allocator, pause);
        status = make_room(allocator, lacking, &released);
        if (status != MEMOPT_OK)
            return status;
        if (released == 0)
            return fail_to_create(allocator, missing);
    }
}

/* Gives access to the pages just mapped, a call for each run of them. */
static memopt_status set_access(memopt_allocator *allocator, const mo_pause *pause)
{
    uint64_t bytes = allocator->granularity, run;
    memopt_status status = MEMOPT_OK;
    for (uint64_t i = 0; i < pause->page_count && status == MEMOPT_OK; i += run) {
        const mo_paused_page *first = &pause->pages[i];
        run = 1;
        if (!first->fresh)
            continue;
        while (i + run < pause->page_count && pause->pages[i + run].fresh &&
               pause->pages[i + run].segment == first->segment &&
               pause->pages[i + run].page == first->page + run)
            run++;
        status = mo_vm_set_access(allocator->device, address_of(allocator, first), run * bytes);
    }
    return status;
}

static memopt_status map_all(memopt_allocator *allocator, mo_pause *pause)
{
    memopt_status status = MEMOPT_OK;
    for (uint64_t i = 0; i < pause->page_count && status == MEMOPT_OK; i++) {
        mo_paused_page *page = &pause->pages[i];
        if (page->mapped)
            continue;
        status = mo_vm_map(allocator->device, address_of(allocator, page), allocator->granularity,
                           handle_of(page));
        page->mapped = page->fresh = status == MEMOPT_OK;
    }
    if (status == MEMOPT_OK)
        status = set_access(allocator, pause);
    return status == MEMOPT_OK ? tell_mapped(allocator, pause, 0) : status;
}

memopt_status mo_paused_map(memopt_allocator *allocator, mo_pause *pause)
{
    memopt_status status = find_handles(allocator, pause);
    mo_unlock(&allocator->lock);
    if (status == MEMOPT_OK)
        status = map_all(allocator, pause);
    if (status != MEMOPT_OK)
        mo_paused_unmap_fresh(allocator, pause);
    mo_lock(&allocator->lock);
    return status;
}

uint64_t mo_paused_count(memopt_allocator *allocator, mo_pause *pause)
{
    uint64_t bytes = allocator->granularity, gone = 0;
    for (uint64_t i = 0; i < pause->page_count; i++) {
        mo_paused_page *page = &pause->pages[i];
        int held = handle_of(page) != NULL;
        if (held && !page->counted)
            mo_count_mapped(allocator, page->segment, bytes, 1);
        if (!held && page->counted) {
            mo_count_unmapped(allocator, page->segment, bytes, 1);
            gone += bytes;
        }
        page->counted = (uint8_t)held;
    }
    return gone;
}
