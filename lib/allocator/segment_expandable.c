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
#include "allocator/segment_kinds.h"

#include "allocator/events.h"
#include "allocator/place.h"
#include "allocator/pool.h"

#include "base/checked.h"
#include "base/lock.h"
#include "base/memory.h"

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

/* --- the place of a growth
 * ------------------------------------------------------------------------
 */

/* A place in the pool, or in a segment of a stream that has ended, which becomes the pool's. */
static int find_place(memopt_allocator *allocator, mo_pool *pool, uint64_t size, int tight,
                      mo_place *out)
{
    int (*find)(const memopt_allocator *, const mo_pool *, uint64_t, mo_place *) =
        tight ? mo_place_tightest : mo_place_lowest;
    if (find(allocator, pool, size, out))
        return 1;
    const mo_pool *ended = mo_pool_ended(allocator, pool->kind);
    if (ended->segments == 0 || !find(allocator, ended, size, out))
        return 0;
    mo_pool_move_segment(allocator, out->first->segment, pool);
    return 1;
}

/* Cuts a block of the place that is in no structure to the pages that [start, end) touches, or,
 * where it has memory, to the units. What is left goes back; returns the part. */
static mo_block *trim_to(memopt_allocator *allocator, mo_block *block, char *start, char *end)
{
    uint64_t unit = allocator->granularity;
    uint64_t from = 0, to = block->size;
    if (end < block->address + block->size)
        to = mo_min_u64(to, mo_ceil_div_u64((uint64_t)(end - block->address), unit) * unit);
    if (block->mapped && end < block->address + block->size)
        to = (uint64_t)(end - block->address);
    if (start > block->address)
        from = block->mapped ? (uint64_t)(start - block->address)
                             : (uint64_t)(start - block->address) / unit * unit;
    block->state = MO_BLOCK_CLAIMED;
    if (to < block->size) {
        mo_block *rest = mo_block_split(&allocator->slab, block, to);
        if (block->mapped)
            mo_pool_insert(allocator, rest);
        else
            put_unmapped(allocator, rest);
    }
    if (from == 0)
        return block;
    mo_block *part = mo_block_split(&allocator->slab, block, from);
    if (block->mapped)
        mo_pool_insert(allocator, block);
    else
        put_unmapped(allocator, block);
    return part;
}

/* Takes the place's blocks out of all structures, cut to what it needs. */
static void claim_place(memopt_allocator *allocator, mo_place *place, uint64_t size)
{
    char *end = place->start + size;
    mo_block *block = place->first;
    for (uint64_t i = 0; i < place->count; i++) {
        block->mapped = block->state == MO_BLOCK_FREE;
        if (block->mapped)
            mo_pool_remove(allocator, block);
        else
            unmapped_unlink(block);
        block = trim_to(allocator, block, place->start, end);
        if (i == 0)
            place->first = block;
        block = block->next;
    }
}

/* The place's mapped blocks become one, which starts where it should. */
static mo_block *finish_place(memopt_allocator *allocator, const mo_place *place)
{
    mo_block *first = place->first;
    mo_count_mapped(allocator, first->segment, place->missing,
                    place->missing / allocator->granularity);
    for (uint64_t i = 1; i < place->count; i++)
        mo_block_absorb_next(&allocator->slab, first);
    first->mapped = 1;
    if (place->start == first->address)
        return first;
    mo_block *block =
        mo_block_split(&allocator->slab, first, (uint64_t)(place->start - first->address));
    mo_pool_put(allocator, first);
    return block;
}

/* Restores the place; neighbours may have been freed meanwhile. */
static void restore_place(memopt_allocator *allocator, const mo_place *place)
{
    mo_block *block = place->first;
    for (uint64_t left = place->count; left > 0; left--) {
        mo_block *next = block->next;
        if (block->mapped)
            mo_pool_put(allocator, block);
        else
            put_unmapped(allocator, block);
        block = next;
    }
}

/* --- the pages of a growth -----------------------------------------------------------------------
 *
 * First every missing page of the place gets a handle, new or taken from a free page elsewhere;
 * then they are mapped. Handles are in pages[] from the moment they are had.
 */

/* Where the place's pages stand that still lack a handle. */
typedef struct cursor {
    mo_block *block;
    uint64_t left; /* blocks, block included */
    uint64_t page; /* of the segment */
} cursor;

static uint64_t page_of(const memopt_allocator *allocator, const mo_block *block)
{
    return (uint64_t)(block->address - block->segment->address) / allocator->granularity;
}

/* Moves to a page without a handle; false at the end. */
static int seek(const memopt_allocator *allocator, cursor *at)
{
    for (; at->left > 0; at->block = at->block->next, at->left--, at->page = 0) {
        if (at->block->mapped)
            continue;
        uint64_t first = page_of(allocator, at->block);
        uint64_t end = first + at->block->size / allocator->granularity;
        for (at->page = mo_max_u64(at->page, first); at->page < end; at->page++)
            if (at->block->segment->pages[at->page] == NULL)
                return 1;
    }
    return 0;
}

static uint64_t lacking(const memopt_allocator *allocator, const mo_place *place)
{
    cursor at = {place->first, place->count, 0};
    uint64_t count = 0;
    for (; seek(allocator, &at); at.page++)
        count++;
    return count;
}

/* At most `most` new handles. OUT_OF_DEVICE_MEMORY where the device has none left. */
static memopt_status create_pages(memopt_allocator *allocator, const mo_place *place, uint64_t most)
{
    cursor at = {place->first, place->count, 0};
    memopt_status status = MEMOPT_OK;
    mo_unlock(&allocator->lock);
    for (; status == MEMOPT_OK && most > 0 && seek(allocator, &at); most--)
        status = mo_vm_create(allocator->device, allocator->granularity,
                              &at.block->segment->pages[at.page]);
    mo_lock(&allocator->lock);
    return status;
}

/* Handles of pages that are not mapped go back. Without lock. */
static void drop_pages(memopt_allocator *allocator, mo_segment *segment, uint64_t page,
                       uint64_t end)
{
    for (; page < end; page++)
        if (segment->pages[page] != NULL)
            (void)release_page(allocator, segment, page);
}

/* The same for pages that are mapped; those that cannot be unmapped stay. Without lock. */
static void unwind_pages(memopt_allocator *allocator, mo_segment *segment, uint64_t page,
                         uint64_t end)
{
    for (; page < end; page++)
        if (unmap_page(allocator, segment, page) == MEMOPT_OK)
            (void)release_page(allocator, segment, page);
}

/* Undoes a growth of which the first `done` blocks were mapped. Without lock. */
static void unwind_place(memopt_allocator *allocator, const mo_place *place, uint64_t done)
{
    mo_block *block = place->first;
    for (uint64_t i = 0; i < place->count; i++, block = block->next) {
        uint64_t page = page_of(allocator, block);
        uint64_t end = page + block->size / allocator->granularity;
        if (block->mapped)
            continue;
        if (i < done)
            unwind_pages(allocator, block->segment, page, end);
        else
            drop_pages(allocator, block->segment, page, end);
    }
}

/* Whatever fails, none of the block's pages is mapped. Without lock. */
static memopt_status map_block(memopt_allocator *allocator, const mo_block *block)
{
    mo_segment *segment = block->segment;
    uint64_t bytes = allocator->granularity, first = page_of(allocator, block), page = first;
    memopt_status status = MEMOPT_OK;
    for (; page < first + block->size / bytes; page++) {
        status = mo_vm_map(allocator->device, segment->address + page * bytes, bytes,
                           segment->pages[page]);
        if (status != MEMOPT_OK)
            break;
    }
    if (status == MEMOPT_OK)
        status = mo_vm_set_access(allocator->device, block->address, block->size);
    if (status != MEMOPT_OK)
        unwind_pages(allocator, segment, first, page);
    return status;
}

/* Maps every claimed block of the place that lacks memory; all or nothing. Without lock. */
static memopt_status map_place(memopt_allocator *allocator, const mo_place *place)
{
    mo_block *block = place->first;
    memopt_status status = MEMOPT_OK;
    uint64_t done = 0;
    for (; done < place->count; done++, block = block->next) {
        status = block->mapped ? MEMOPT_OK : map_block(allocator, block);
        if (status != MEMOPT_OK)
            break;
    }
    if (status != MEMOPT_OK)
        unwind_place(allocator, place, done);
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

/* --- taking pages from free blocks ---------------------------------------------------------------
 */

typedef struct oldest {
    const memopt_allocator *allocator;
    mo_block *block;
} oldest;

static void look_at(void *user, mo_block *block)
{
    oldest *found = user;
    uint64_t from, to;
    if (!mo_segment_is_expandable(block->segment) ||
        (found->block != NULL &&
         (block->freed_at > found->block->freed_at ||
          (block->freed_at == found->block->freed_at && block->address < found->block->address))) ||
        !whole_pages(found->allocator, block, UINT64_MAX, &from, &to))
        return;
    found->block = block;
}

/* True if the pool's pages can be taken without a wait, which mo_drain_pool then knows, too. */
static int is_idle(memopt_allocator *allocator, mo_pool *pool)
{
    if (memopt_stream_query(allocator->device, pool->stream) != MEMOPT_OK)
        return 0;
    pool->drained = allocator->release_pass;
    return 1;
}

/* The free block with whole pages that was freed first; NULL if none. */
static mo_block *oldest_free(memopt_allocator *allocator, int wait)
{
    oldest found = {allocator, NULL};
    for (mo_pool *pool = allocator->pools; pool != NULL; pool = pool->next)
        if (pool->life == MO_STREAM_LIVE && pool->segments > 0 &&
            (wait || is_idle(allocator, pool)))
            mo_bins_visit(&pool->bins, allocator->granularity, look_at, &found);
    for (unsigned i = 0; i < 2; i++)
        mo_bins_visit(&allocator->ended[i].bins, allocator->granularity, look_at, &found);
    return found.block;
}

/* Unmaps a claimed block's pages and gives their handles to the place; *out_done counts the bytes.
 * Without lock. */
static memopt_status move_claim(memopt_allocator *allocator, const mo_block *block, cursor *at,
                                uint64_t *out_done)
{
    mo_segment *segment = block->segment;
    uint64_t bytes = allocator->granularity, page = page_of(allocator, block);
    for (*out_done = 0; *out_done < block->size && seek(allocator, at); page++) {
        memopt_status status = unmap_page(allocator, segment, page);
        if (status != MEMOPT_OK)
            return status;
        at->block->segment->pages[at->page] = segment->pages[page];
        segment->pages[page] = NULL;
        *out_done += bytes;
    }
    return MEMOPT_OK;
}

/* Gives the place's missing pages handles of free pages, least recently freed first, while there
 * are any; without `wait` only those of streams that have nothing to do. */
static memopt_status take_pages(memopt_allocator *allocator, const mo_place *place, int wait)
{
    cursor at = {place->first, place->count, 0};
    memopt_status status = MEMOPT_OK;
    while (status == MEMOPT_OK) {
        uint64_t from, to, done = 0, left = lacking(allocator, place);
        allocator->release_pass++; /* more may have been freed since the last wait */
        mo_block *block = left > 0 ? oldest_free(allocator, wait) : NULL;
        if (block == NULL)
            return MEMOPT_OK;
        if (!mo_slab_reserve(&allocator->slab, 6))
            return MEMOPT_OUT_OF_HOST_MEMORY;
        (void)whole_pages(allocator, block, left * allocator->granularity, &from, &to);
        block = claim_pages(allocator, block, from, to);
        status = mo_drain_pool(allocator, block->segment->pool);
        if (status == MEMOPT_OK) {
            mo_unlock(&allocator->lock);
            status = move_claim(allocator, block, &at, &done);
            mo_lock(&allocator->lock);
        }
        settle_claim(allocator, block, done);
    }
    return status;
}

/* --- growth --------------------------------------------------------------------------------------
 */

/* The memory held may exceed the most that was ever in use by this part of it before free pages are
 * moved instead of new ones made. */
enum { SLACK_PART = 50 };

static uint64_t room_before_moves(const memopt_allocator *allocator, uint64_t size)
{
    const mo_stat *active = &allocator->stats.by_pool[MO_POOL_ALL][MO_STAT_ACTIVE_BYTES];
    uint64_t held = mo_stat_current(&allocator->stats, MO_STAT_RESERVED_BYTES);
    uint64_t peak = mo_max_u64(active->peak, active->current + size);
    peak = mo_max_u64(peak, allocator->most_active);
    uint64_t most = peak + mo_max_u64(peak / SLACK_PART, allocator->granularity);
    return most > held ? most - held : 0;
}

static uint64_t room(const memopt_allocator *allocator)
{
    uint64_t held = mo_stat_current(&allocator->stats, MO_STAT_RESERVED_BYTES);
    uint64_t allowed = mo_allowed(allocator);
    return allowed > held ? allowed - held : 0;
}

/* A handle for every missing page of the claimed place: new ones while there is room, then those of
 * free pages, which cannot be had during a capture, then new ones up to the limit. Streams are
 * waited for only at the limit. */
static memopt_status find_pages(memopt_allocator *allocator, const mo_place *place, uint64_t size)
{
    uint64_t page = allocator->granularity;
    uint64_t some = mo_min_u64(room(allocator), room_before_moves(allocator, size));
    memopt_status status = MEMOPT_OK;
    some = mo_min_u64(some / page, lacking(allocator, place));
    if (some > 0)
        status = mo_may_grow(allocator, some * page);
    if (some > 0 && status == MEMOPT_OK)
        status = create_pages(allocator, place, some);
    if (status == MEMOPT_OUT_OF_DEVICE_MEMORY)
        status = MEMOPT_OK;
    int take = !mo_capturing(allocator);
    for (int wait = 0; wait < 2 && status == MEMOPT_OK; wait++) {
        if (take)
            status = take_pages(allocator, place, wait);
        uint64_t left = lacking(allocator, place);
        if (status != MEMOPT_OK || left == 0)
            return status;
        /* Pages that were just made are not counted yet. */
        int fits = room(allocator) >= place->missing;
        status = mo_may_grow(allocator, fits ? left * page : place->missing);
        if (status == MEMOPT_OK)
            status = create_pages(allocator, place, left);
        if (status == MEMOPT_OK)
            return MEMOPT_OK;
        if (status == MEMOPT_OUT_OF_DEVICE_MEMORY && take && wait == 0)
            status = MEMOPT_OK; /* once more, with a wait */
    }
    return status;
}

static memopt_status grow_place(memopt_allocator *allocator, const mo_request *request,
                                mo_place *place, mo_block **out_block)
{
    if (!mo_slab_reserve(&allocator->slab, 6))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    claim_place(allocator, place, request->size);
    memopt_status status = find_pages(allocator, place, request->size);
    mo_unlock(&allocator->lock);
    if (status == MEMOPT_OK)
        status = map_place(allocator, place);
    else
        unwind_place(allocator, place, 0);
    mo_lock(&allocator->lock);
    if (status == MEMOPT_OK)
        *out_block = finish_place(allocator, place);
    else
        restore_place(allocator, place);
    return status;
}

static memopt_status grow(memopt_allocator *allocator, const mo_request *request,
                          mo_block **out_block)
{
    mo_segment *fresh = NULL;
    mo_place place;
    uint64_t size = request->size;
    if (size > allocator->device_total)
        return MEMOPT_OUT_OF_DEVICE_MEMORY;
    if (!find_place(allocator, request->pool, size, 0, &place)) {
        memopt_status status = new_segment(allocator, request, &fresh);
        if (status != MEMOPT_OK)
            return status;
        (void)mo_place_lowest(allocator, request->pool, size, &place);
    } else if (place.missing > mo_min_u64(room(allocator), room_before_moves(allocator, size))) {
        (void)find_place(allocator, request->pool, size, 1, &place);
    }
    memopt_status status = grow_place(allocator, request, &place, out_block);
    if (status != MEMOPT_OK && fresh != NULL)
        (void)end_segment(allocator, fresh);
    return status;
}

/* --- giving back, continued */

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
