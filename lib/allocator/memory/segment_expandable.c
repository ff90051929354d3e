/*
 * Expandable segments: a range of reserved addresses for one pool, given memory page by page.
 *
 * A page is the device's granule, one handle each, so any page can go back or move alone. The
 * segment's blocks cover the whole range; unmapped ones start and end at pages and are kept in a
 * list by address. Growth chooses a place in a run of free and unmapped blocks (place.c) and maps
 * what is missing in it: new pages, or those of free blocks, which are moved with their handles.
 * pages[i] is the handle of page i; where the page is in an unmapped block it is NULL, or a spare
 * handle that the driver refused to release.
 */
#include "allocator/memory/segment_kinds.h"

#include "allocator/blocks/pool.h"
#include "allocator/memory/growth.h"
#include "allocator/memory/observers.h"
#include "allocator/memory/pages.h"
#include "allocator/memory/stale.h"

#include "base/address_space.h"
#include "base/checked.h"
#include "base/lock.h"
#include "base/memory.h"

/* --- segments --------------------------------------------------------------------------------- */

/* 9/8 of the device's memory, so that holes do not exhaust the addresses. Where these are limited,
 * at most an eighth of those left: the program and other segments need some too. */
static uint64_t reservation_size(const memopt_allocator *allocator, uint64_t size)
{
    uint64_t limit, bytes = allocator->device_total + allocator->device_total / 8;
    bytes = mo_min_u64(bytes, mo_address_space_left(&limit) / 8);
    if (!mo_round_up_u64(mo_max_u64(bytes, size), allocator->granularity, &bytes))
        return 0;
    return bytes;
}

/* A segment without memory. Releases the lock for the driver call. */
static memopt_status new_segment(memopt_allocator *allocator, const mo_request *request,
                                 mo_segment **out_segment)
{
    uint64_t bytes = reservation_size(allocator, request->size);
    mo_segment *segment = mo_calloc(1, sizeof *segment);
    mo_vm_handle *pages = mo_calloc(bytes / allocator->granularity, sizeof *pages);
    if (segment == NULL || pages == NULL || !mo_slab_reserve(&allocator->slab, 1)) {
        mo_free(segment);
        mo_free(pages);
        return MEMOPT_OUT_OF_HOST_MEMORY;
    }
    mo_block *block = mo_slab_take(&allocator->slab);
    mo_unlock(&allocator->lock);
    void *address;
    memopt_status status = mo_vm_reserve(allocator->device, bytes, &address);
    mo_lock(&allocator->lock);
    if (status != MEMOPT_OK) {
        mo_slab_return(&allocator->slab, block);
        mo_free(segment);
        mo_free(pages);
        return status;
    }
    segment->pool = request->pool;
    segment->address = block->address = address;
    segment->size = block->size = bytes;
    segment->first = block;
    segment->pages = pages;
    block->segment = segment;
    mo_pages_put_unmapped(allocator, block);
    mo_segment_link(allocator, segment);
    *out_segment = segment;
    return MEMOPT_OK;
}

/* Gives a wholly unmapped segment's addresses back; spare handles first. What the driver does not
 * take stays, with the segment, unless the allocator ends. */
static memopt_status end_segment(memopt_allocator *allocator, mo_segment *segment)
{
    memopt_status result = MEMOPT_OK;
    for (uint64_t page = 0; page < segment->size / allocator->granularity; page++) {
        if (segment->pages[page] == NULL)
            continue;
        mo_keep_first(&result, mo_page_release(allocator, segment, page));
    }
    if (result != MEMOPT_OK && !allocator->ending)
        return result;
    memopt_status status = mo_vm_unreserve(allocator->device, segment->address, segment->size);
    if (status != MEMOPT_OK && !allocator->ending)
        return status;
    mo_segment_unlink(allocator, segment);
    for (mo_block *block = segment->first, *next; block != NULL; block = next) {
        next = block->next;
        mo_slab_return(&allocator->slab, block);
    }
    mo_free(segment->pages);
    mo_free(segment);
    return result != MEMOPT_OK ? result : status;
}

/* Observers are told of the pages that have memory. A paused member's have been told already, but
 * for those that the driver did not unmap. Without lock where there are any. */
static void tell_end(memopt_allocator *allocator, mo_segment *segment)
{
    uint64_t bytes = allocator->granularity, pages = segment->size / bytes, run;
    if (segment->mapped == 0)
        return;
    for (uint64_t page = 0; page < pages; page += run + 1) {
        for (run = 0; page + run < pages && segment->pages[page + run] != NULL; run++)
            ;
        mo_observe_gone(allocator, segment->address + page * bytes, run * bytes);
    }
}

/* Pages that could not be unmapped before are tried once more. */
static memopt_status end(memopt_allocator *allocator, mo_segment *segment)
{
    tell_end(allocator, segment);
    uint64_t bytes = allocator->granularity;
    for (mo_block *block = segment->first; block != NULL; block = block->next) {
        uint64_t start = (uint64_t)(block->address - segment->address);
        if (block->state == MO_BLOCK_UNMAPPED)
            continue;
        if (block->state == MO_BLOCK_STALE) {
            uint64_t done;
            mo_observe_gone(allocator, block->address, block->size);
            (void)mo_pages_unmap(allocator, block, &done);
            continue;
        }
        /* A page that two blocks share is unmapped with the first of them. */
        for (uint64_t page = mo_ceil_div_u64(start, bytes);
             page < mo_ceil_div_u64(start + block->size, bytes); page++)
            if (segment->pages[page] != NULL) /* it is NULL while paused */
                (void)mo_page_unmap(allocator, segment, page);
    }
    return end_segment(allocator, segment);
}

static memopt_status grow_once(memopt_allocator *allocator, const mo_request *request,
                               mo_block **out_block)
{
    mo_segment *fresh = NULL;
    mo_place place;
    uint64_t size = request->size;
    if (size > allocator->device_total)
        return MEMOPT_OUT_OF_DEVICE_MEMORY;
    if (!mo_growth_find(allocator, request->pool, size, &place)) {
        MO_TRY(new_segment(allocator, request, &fresh));
        (void)mo_growth_find(allocator, request->pool, size, &place);
    }
    memopt_status status = mo_growth_make(allocator, request, &place, out_block);
    if (status != MEMOPT_OK && fresh != NULL)
        (void)end_segment(allocator, fresh);
    return status;
}

/* Once more where pages cannot be at two addresses. */
static memopt_status grow(memopt_allocator *allocator, const mo_request *request,
                          mo_block **out_block)
{
    int aliases = allocator->aliases;
    memopt_status status = grow_once(allocator, request, out_block);
    if (status != MEMOPT_OK && aliases && !allocator->aliases)
        status = grow_once(allocator, request, out_block);
    return status;
}

/* --- giving back ------------------------------------------------------------------------------ */

static uint64_t spare(const memopt_allocator *allocator, const mo_block *block)
{
    uint64_t from, to;
    return mo_pages_whole(allocator, block, UINT64_MAX, &from, &to) ? to - from : 0;
}

/* Claims the pages to give back, chained by right; *claimed counts bytes. */
static memopt_status claim_free_pages(memopt_allocator *allocator, const mo_release *what,
                                      mo_release_turn turn, uint64_t *claimed, mo_block **claims)
{
    uint64_t from, to;
    for (mo_segment *segment = allocator->segments; segment != NULL; segment = segment->next) {
        if (!mo_segment_is_expandable(segment))
            continue;
        for (mo_block *block = segment->first; block != NULL; block = block->next) {
            if (*claimed >= what->wanted)
                return MEMOPT_OK;
            if (!mo_release_matches(what, turn, block) ||
                !mo_pages_whole(allocator, block, what->wanted - *claimed, &from, &to))
                continue;
            if (!mo_slab_reserve(&allocator->slab, 2))
                return MEMOPT_OUT_OF_HOST_MEMORY;
            block = mo_pages_claim(allocator, block, from, to);
            block->right = *claims;
            *claims = block;
            *claimed += block->size;
        }
    }
    return MEMOPT_OK;
}

/* Unmaps a claimed block's pages from its start, with the observers' consent, and releases them;
 * *out_done counts the bytes. A handle that the driver keeps is a spare one. Without lock. */
static memopt_status unmap_claim(memopt_allocator *allocator, const mo_block *block,
                                 uint64_t *out_done)
{
    mo_segment *segment = block->segment;
    uint64_t page = mo_page_of(allocator, block);
    memopt_status status = mo_observe_unmapping(allocator, block->address, block->size);
    *out_done = 0;
    if (status != MEMOPT_OK)
        return status;
    status = mo_pages_unmap(allocator, block, out_done);
    for (uint64_t end = page + *out_done / allocator->granularity; page < end; page++)
        mo_keep_first(&status, mo_page_release(allocator, segment, page));
    mo_observe_stays(allocator, block->address + *out_done, block->size - *out_done);
    return status;
}

static memopt_status release(memopt_allocator *allocator, const mo_release *what,
                             uint64_t *released)
{
    mo_block *claims = NULL, *next;
    memopt_status collected = mo_stale_collect(allocator, 1);
    if (allocator->stale != NULL)
        return collected; /* a handle that is mapped elsewhere cannot be released */
    if (!mo_slab_reserve(&allocator->slab, 1))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    /* For a claim that is unmapped in part; there is at most one. */
    mo_block *reserve = mo_slab_take(&allocator->slab);
    memopt_status claiming = MEMOPT_OK, status = MEMOPT_OK;
    uint64_t claimed = 0;
    for (mo_release_turn turn = MO_RELEASE_FIRST; claiming == MEMOPT_OK && turn < MO_RELEASE_TURNS;
         turn++)
        claiming = claim_free_pages(allocator, what, turn, &claimed, &claims);
    for (mo_block *block = claims; block != NULL; block = next) {
        uint64_t done = 0;
        next = block->right;
        if (status == MEMOPT_OK)
            status = mo_drain_pool(allocator, block->segment->pool);
        if (status == MEMOPT_OK) {
            mo_unlock(&allocator->lock);
            status = unmap_claim(allocator, block, &done);
            mo_lock(&allocator->lock);
        }
        if (done > 0 && done < block->size) {
            mo_slab_return(&allocator->slab, reserve);
            reserve = NULL;
        }
        mo_pages_settle(allocator, block, done);
        *released += done;
    }
    if (reserve != NULL)
        mo_slab_return(&allocator->slab, reserve);
    return status != MEMOPT_OK ? status : claiming;
}

const mo_segment_kind mo_segment_expandable = {grow, spare, release, end};
