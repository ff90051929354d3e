/*
 * Expandable segments: a range of reserved addresses for one pool, given memory page by page.
 *
 * A page is the device's granule, one handle each, so any page can go back or move alone. The
 * segment's blocks cover the whole range; unmapped ones start and end at pages and are kept in a
 * list by address. Growth takes the lowest run of free and unmapped blocks that holds the request
 * and maps what is missing in it. pages[i] is the handle of page i; where the page is in an
 * unmapped block it is NULL, or a spare handle that the driver refused to release.
 */
#include "allocator/segment_kinds.h"

#include "allocator/pool.h"

#include "base/checked.h"
#include "base/lock.h"
#include "base/memory.h"

/* A run of blocks: `first` and the `count` - 1 behind it. */
typedef struct run {
    mo_block *first;
    uint64_t count;
    uint64_t missing; /* bytes to map */
} run;

/* --- the list of unmapped blocks ---------------------------------------------------------------
 */

static void unmapped_link(mo_block *block)
{
    mo_block *before = NULL, *after = block->segment->unmapped;
    while (after != NULL && after->address < block->address) {
        before = after;
        after = after->right;
    }
    block->left = before;
    block->right = after;
    if (before != NULL)
        before->right = block;
    else
        block->segment->unmapped = block;
    if (after != NULL)
        after->left = block;
}

static void unmapped_unlink(mo_block *block)
{
    if (block->left != NULL)
        block->left->right = block->right;
    else
        block->segment->unmapped = block->right;
    if (block->right != NULL)
        block->right->left = block->left;
    block->left = block->right = NULL;
}

static int has_state(const mo_block *block, mo_block_state state)
{
    return block != NULL && block->state == state;
}

/* A block in no structure becomes unmapped, joined with such neighbours. */
static void put_unmapped(memopt_allocator *allocator, mo_block *block)
{
    block->state = MO_BLOCK_UNMAPPED;
    block->mapped = 0;
    if (has_state(block->next, MO_BLOCK_UNMAPPED)) {
        unmapped_unlink(block->next);
        mo_block_absorb_next(&allocator->slab, block);
    }
    if (has_state(block->prev, MO_BLOCK_UNMAPPED)) {
        block = block->prev;
        unmapped_unlink(block);
        mo_block_absorb_next(&allocator->slab, block);
    }
    unmapped_link(block);
    if (has_state(block->prev, MO_BLOCK_FREE)) { /* its fit counts this block's size */
        mo_pool_remove(allocator, block->prev);
        mo_pool_insert(allocator, block->prev);
    }
}

/* --- segments ------------------------------------------------------------------------------------
 */

/* 9/8 of the device's memory, so that holes do not exhaust the addresses. */
static uint64_t reservation_size(const memopt_allocator *allocator, uint64_t size)
{
    uint64_t bytes = allocator->device_total + allocator->device_total / 8;
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
    put_unmapped(allocator, block);
    mo_segment_link(allocator, segment);
    *out_segment = segment;
    return MEMOPT_OK;
}

static memopt_status unmap_page(memopt_allocator *allocator, mo_segment *segment, uint64_t page)
{
    uint64_t bytes = allocator->granularity;
    return mo_vm_unmap(allocator->device, segment->address + page * bytes, bytes);
}

static memopt_status release_page(memopt_allocator *allocator, mo_segment *segment, uint64_t page)
{
    memopt_status status =
        mo_vm_release(allocator->device, segment->pages[page], allocator->granularity);
    if (status == MEMOPT_OK)
        segment->pages[page] = NULL;
    return status;
}

/* Gives a wholly unmapped segment's addresses back; spare handles first. */
static memopt_status end_segment(memopt_allocator *allocator, mo_segment *segment)
{
    memopt_status result = MEMOPT_OK;
    for (uint64_t page = 0; page < segment->size / allocator->granularity; page++) {
        if (segment->pages[page] == NULL)
            continue;
        mo_keep_first(&result, release_page(allocator, segment, page));
    }
    memopt_status status = mo_vm_unreserve(allocator->device, segment->address, segment->size);
    mo_segment_unlink(allocator, segment);
    for (mo_block *block = segment->first, *next; block != NULL; block = next) {
        next = block->next;
        mo_slab_return(&allocator->slab, block);
    }
    mo_free(segment->pages);
    mo_free(segment);
    return result != MEMOPT_OK ? result : status;
}

/* Pages that could not be unmapped before are tried once more. */
static memopt_status end(memopt_allocator *allocator, mo_segment *segment)
{
    uint64_t bytes = allocator->granularity;
    for (mo_block *block = segment->first; block != NULL; block = block->next) {
        uint64_t start = (uint64_t)(block->address - segment->address);
        if (block->state == MO_BLOCK_UNMAPPED)
            continue;
        /* A page that two blocks share is unmapped with the first of them. */
        for (uint64_t page = mo_ceil_div_u64(start, bytes);
             page < mo_ceil_div_u64(start + block->size, bytes); page++)
            (void)unmap_page(allocator, segment, page);
    }
    return end_segment(allocator, segment);
}

/* --- growth --------------------------------------------------------------------------------------
 */

/* Measures the run that starts at `first`; true if it holds `size`. */
static int measure(const memopt_allocator *allocator, mo_block *first, uint64_t size, run *out)
{
    uint64_t total = 0;
    *out = (run){first, 0, 0};
    for (mo_block *block = first; total < size; block = block->next) {
        if (!has_state(block, MO_BLOCK_FREE) && !has_state(block, MO_BLOCK_UNMAPPED))
            return 0;
        out->count++;
        if (block->state == MO_BLOCK_UNMAPPED) {
            uint64_t part = mo_min_u64(size - total, block->size);
            out->missing += mo_ceil_div_u64(part, allocator->granularity) * allocator->granularity;
        }
        total += block->size;
    }
    return 1;
}

static mo_block *run_start(mo_block *unmapped)
{
    return has_state(unmapped->prev, MO_BLOCK_FREE) ? unmapped->prev : unmapped;
}

/* The lowest run of a pool's segment that holds `size`. */
static int find_run(const memopt_allocator *allocator, const mo_pool *pool, uint64_t size, run *out)
{
    for (mo_segment *segment = allocator->segments; segment != NULL; segment = segment->next) {
        if (segment->pool != pool || !mo_segment_is_expandable(segment))
            continue;
        for (mo_block *block = segment->unmapped; block != NULL; block = block->right)
            if (measure(allocator, run_start(block), size, out))
                return 1;
    }
    return 0;
}

/* The same in a segment of a stream that has ended, which becomes the pool's. */
static int inherit_run(memopt_allocator *allocator, mo_pool *pool, uint64_t size, run *out)
{
    const mo_pool *ended = mo_pool_ended(allocator, pool->kind);
    if (ended->segments == 0 || !find_run(allocator, ended, size, out))
        return 0;
    mo_pool_move_segment(allocator, out->first->segment, pool);
    return 1;
}

/* Takes the run's blocks out of all structures; the last is cut at a page if it is unmapped. */
static void claim_run(memopt_allocator *allocator, const run *wanted, uint64_t size)
{
    mo_block *block = wanted->first;
    for (uint64_t i = 0; i < wanted->count; i++, block = block->next) {
        block->mapped = block->state == MO_BLOCK_FREE;
        if (block->mapped) {
            mo_pool_remove(allocator, block);
        } else {
            uint64_t part = mo_ceil_div_u64(mo_min_u64(size, block->size), allocator->granularity) *
                            allocator->granularity;
            unmapped_unlink(block);
            block->state = MO_BLOCK_CLAIMED;
            if (part < block->size)
                put_unmapped(allocator, mo_block_split(&allocator->slab, block, part));
        }
        block->state = MO_BLOCK_CLAIMED;
        size -= mo_min_u64(size, block->size);
    }
}

/* Memory at [page, end) that was mapped by a growth that failed goes back. */
static void unwind_pages(memopt_allocator *allocator, mo_segment *segment, uint64_t page,
                         uint64_t end)
{
    for (; page < end; page++)
        if (unmap_page(allocator, segment, page) == MEMOPT_OK)
            (void)release_page(allocator, segment, page);
}

/* All or nothing. Without lock. */
static memopt_status map_block(memopt_allocator *allocator, const mo_block *block)
{
    mo_segment *segment = block->segment;
    uint64_t bytes = allocator->granularity;
    uint64_t first = (uint64_t)(block->address - segment->address) / bytes;
    uint64_t page = first, end = first + block->size / bytes;
    memopt_status status = MEMOPT_OK;
    for (; page < end; page++) {
        if (segment->pages[page] == NULL) {
            mo_vm_handle handle;
            status = mo_vm_create(allocator->device, bytes, &handle);
            if (status != MEMOPT_OK)
                break;
            segment->pages[page] = handle;
        }
        status = mo_vm_map(allocator->device, segment->address + page * bytes, bytes,
                           segment->pages[page]);
        if (status != MEMOPT_OK) {
            (void)release_page(allocator, segment, page);
            break;
        }
    }
    if (status == MEMOPT_OK)
        status = mo_vm_set_access(allocator->device, block->address, block->size);
    if (status != MEMOPT_OK)
        unwind_pages(allocator, segment, first, page);
    return status;
}

/* Maps every claimed block of the run that lacks memory; all or nothing. Without lock. */
static memopt_status map_run(memopt_allocator *allocator, const run *wanted)
{
    mo_block *block = wanted->first;
    memopt_status status = MEMOPT_OK;
    uint64_t done = 0;
    for (; done < wanted->count; done++, block = block->next) {
        status = block->mapped ? MEMOPT_OK : map_block(allocator, block);
        if (status != MEMOPT_OK)
            break;
    }
    if (status == MEMOPT_OK)
        return MEMOPT_OK;
    for (block = wanted->first; done > 0; done--, block = block->next) {
        uint64_t page =
            (uint64_t)(block->address - block->segment->address) / allocator->granularity;
        if (!block->mapped)
            unwind_pages(allocator, block->segment, page,
                         page + block->size / allocator->granularity);
    }
    return status;
}

/* The mapped run becomes one block. */
static mo_block *finish_run(memopt_allocator *allocator, const run *wanted)
{
    mo_block *first = wanted->first;
    mo_count_mapped(allocator, first->segment, wanted->missing,
                    wanted->missing / allocator->granularity);
    for (uint64_t i = 1; i < wanted->count; i++)
        mo_block_absorb_next(&allocator->slab, first);
    first->freed_at = allocator->clock;
    first->mapped = 1;
    return first;
}

/* Restores the run; neighbours may have been freed meanwhile. */
static void restore_run(memopt_allocator *allocator, const run *wanted)
{
    mo_block *block = wanted->first;
    for (uint64_t left = wanted->count; left > 0; left--) {
        mo_block *next = block->next;
        if (block->mapped)
            mo_pool_put(allocator, block);
        else
            put_unmapped(allocator, block);
        block = next;
    }
}

static memopt_status grow_run(memopt_allocator *allocator, const mo_request *request,
                              const run *wanted, mo_block **out_block)
{
    memopt_status status = mo_may_grow(allocator, wanted->missing);
    if (status != MEMOPT_OK)
        return status;
    if (!mo_slab_reserve(&allocator->slab, 1))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    claim_run(allocator, wanted, request->size);
    mo_unlock(&allocator->lock);
    status = map_run(allocator, wanted);
    mo_lock(&allocator->lock);
    if (status == MEMOPT_OK)
        *out_block = finish_run(allocator, wanted);
    else
        restore_run(allocator, wanted);
    return status;
}

static memopt_status grow(memopt_allocator *allocator, const mo_request *request,
                          mo_block **out_block)
{
    mo_segment *fresh = NULL;
    run wanted;
    if (request->size > allocator->device_total)
        return MEMOPT_OUT_OF_DEVICE_MEMORY;
    if (!find_run(allocator, request->pool, request->size, &wanted) &&
        !inherit_run(allocator, request->pool, request->size, &wanted)) {
        memopt_status status = new_segment(allocator, request, &fresh);
        if (status != MEMOPT_OK)
            return status;
        (void)measure(allocator, fresh->first, request->size, &wanted);
    }
    memopt_status status = grow_run(allocator, request, &wanted, out_block);
    if (status != MEMOPT_OK && fresh != NULL)
        (void)end_segment(allocator, fresh);
    return status;
}

/* --- giving back
 * ----------------------------------------------------------------------------------- */

/* Whole pages inside a free block, at most `wanted` bytes of them, from its end. */
static int whole_pages(const memopt_allocator *allocator, const mo_block *block, uint64_t wanted,
                       uint64_t *out_from, uint64_t *out_to)
{
    uint64_t page = allocator->granularity;
    uint64_t start = (uint64_t)(block->address - block->segment->address);
    uint64_t from = mo_ceil_div_u64(start, page) * page;
    uint64_t to = (start + block->size) / page * page;
    if (to <= from)
        return 0;
    if (wanted < to - from)
        from = to - mo_ceil_div_u64(wanted, page) * page;
    *out_from = from - start;
    *out_to = to - start;
    return 1;
}

/* Cuts [from, to) out of a free block; its ends stay free. */
static mo_block *claim_pages(memopt_allocator *allocator, mo_block *block, uint64_t from,
                             uint64_t to)
{
    MO_PRE(allocator->slab.unused_count >= 2);
    mo_pool_remove(allocator, block);
    mo_block *middle = block, *tail = NULL;
    if (to < block->size)
        tail = mo_block_split(&allocator->slab, block, to);
    if (from > 0)
        middle = mo_block_split(&allocator->slab, block, from);
    middle->state = MO_BLOCK_CLAIMED;
    middle->mapped = 1;
    if (tail != NULL)
        mo_pool_insert(allocator, tail);
    if (middle != block)
        mo_pool_insert(allocator, block);
    return middle;
}

/* Claims the pages to give back, chained by right. */
static memopt_status claim_free_pages(memopt_allocator *allocator, const mo_release *what,
                                      mo_block **out_claims)
{
    uint64_t claimed = 0, from, to;
    for (mo_segment *segment = allocator->segments; segment != NULL; segment = segment->next) {
        if (!mo_segment_is_expandable(segment))
            continue;
        for (mo_block *block = segment->first; block != NULL; block = block->next) {
            if (claimed >= what->wanted)
                return MEMOPT_OK;
            if (!mo_release_matches(what, block) ||
                !whole_pages(allocator, block, what->wanted - claimed, &from, &to))
                continue;
            if (!mo_slab_reserve(&allocator->slab, 2))
                return MEMOPT_OUT_OF_HOST_MEMORY;
            block = claim_pages(allocator, block, from, to);
            block->right = *out_claims;
            *out_claims = block;
            claimed += block->size;
        }
    }
    return MEMOPT_OK;
}

/* Unmaps a claimed block's pages from its start; *out_done counts the bytes. Without lock. */
static memopt_status unmap_claim(memopt_allocator *allocator, const mo_block *block,
                                 uint64_t *out_done)
{
    mo_segment *segment = block->segment;
    uint64_t bytes = allocator->granularity;
    uint64_t page = (uint64_t)(block->address - segment->address) / bytes;
    memopt_status status = MEMOPT_OK;
    for (*out_done = 0; status == MEMOPT_OK && *out_done < block->size; page++) {
        status = unmap_page(allocator, segment, page);
        if (status != MEMOPT_OK)
            break;
        *out_done += bytes;
        status = release_page(allocator, segment, page);
    }
    return status;
}

/* Marks the unmapped part; the rest is free again. */
static void settle_claim(memopt_allocator *allocator, mo_block *block, uint64_t done)
{
    mo_count_unmapped(allocator, block->segment, done, done / allocator->granularity);
    if (done == 0) {
        mo_pool_put(allocator, block);
        return;
    }
    mo_block *rest = NULL;
    if (done < block->size)
        rest = mo_block_split(&allocator->slab, block, done);
    put_unmapped(allocator, block);
    if (rest != NULL)
        mo_pool_put(allocator, rest);
}

static memopt_status release(memopt_allocator *allocator, const mo_release *what,
                             uint64_t *released)
{
    mo_block *claims = NULL, *next;
    if (!mo_slab_reserve(&allocator->slab, 1))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    /* For a claim that is unmapped in part; there is at most one. */
    mo_block *spare = mo_slab_take(&allocator->slab);
    memopt_status claiming = claim_free_pages(allocator, what, &claims);
    memopt_status status = MEMOPT_OK;
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
            mo_slab_return(&allocator->slab, spare);
            spare = NULL;
        }
        settle_claim(allocator, block, done);
        *released += done;
    }
    if (spare != NULL)
        mo_slab_return(&allocator->slab, spare);
    return status != MEMOPT_OK ? status : claiming;
}

const mo_segment_kind mo_segment_expandable = {grow, release, end};
