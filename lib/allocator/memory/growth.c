/*
 * The growth of expandable segments: first every missing page of the place gets a handle, new or
 * taken from a free page elsewhere; then they are mapped. Handles are in pages[] from the moment
 * they are had. After a failure new ones go back to the device and taken ones to where they were.
 */
#include "allocator/memory/growth.h"

#include "allocator/blocks/pool.h"
#include "allocator/memory/observers.h"
#include "allocator/memory/pages.h"
#include "allocator/memory/stale.h"
#include "allocator/streams/events.h"
#include "allocator/streams/stream_state.h"

#include "base/checked.h"
#include "base/lock.h"
#include "base/memory.h"

/* --- the place -------------------------------------------------------------------------------- */

/* The memory held may exceed the most that was ever in use before free pages are moved instead of
 * new ones made: by this part of it, and where pages keep moving by more, up to the larger part. */
enum { SLACK_PART = 128, MOST_SLACK_PART = 20 };

/* So many pages may move without more slack: one for as many allocations, one for each new page. A
 * store of them pays for a start or a change of shapes. */
enum { ALLOCATIONS_A_MOVE = 256, MOST_CREDIT = 64, MOVES_A_PAGE_OF_SLACK = 4 };

static uint64_t room_before_moves(const memopt_allocator *allocator, uint64_t size)
{
    const mo_stat *active = &allocator->stats.by_pool[MO_POOL_ALL][MO_STAT_ACTIVE_BYTES];
    uint64_t held = mo_stat_current(&allocator->stats, MO_STAT_RESERVED_BYTES);
    uint64_t page = allocator->granularity;
    uint64_t peak = mo_max_u64(active->peak, active->current + size);
    peak = mo_max_u64(peak, allocator->most_active);
    uint64_t least = mo_max_u64(peak / SLACK_PART, page);
    uint64_t slack = mo_min_u64(least + allocator->slack_pages * page, peak / MOST_SLACK_PART);
    uint64_t most = peak + mo_max_u64(least, slack);
    return most > held ? most - held : 0;
}

/* Pages were made and others moved, though the device had more. */
static void pay_for_moves(memopt_allocator *allocator, uint64_t made, uint64_t moved)
{
    uint64_t credit = allocator->move_credit + made * ALLOCATIONS_A_MOVE +
                      (allocator->clock - allocator->credit_clock);
    uint64_t price = moved * ALLOCATIONS_A_MOVE;
    credit = mo_min_u64(credit, (uint64_t)MOST_CREDIT * ALLOCATIONS_A_MOVE);
    if (credit < price)
        allocator->slack_pages +=
            mo_ceil_div_u64(price - credit, (uint64_t)MOVES_A_PAGE_OF_SLACK * ALLOCATIONS_A_MOVE);
    allocator->move_credit = credit > price ? credit - price : 0;
    allocator->credit_clock = allocator->clock;
}

/* A place in the pool, or in a segment of a stream that has ended, which becomes the pool's. */
static int find_place(memopt_allocator *allocator, mo_pool *pool, uint64_t size, int tight,
                      mo_place *out)
{
    int (*find)(const memopt_allocator *, const mo_pool *, uint64_t, mo_place *) =
        tight ? mo_place_tightest : mo_place_lowest;
    if (find(allocator, pool, size, out))
        return 1;
    const mo_pool *ended = mo_pool_ended(allocator, pool->sizes);
    if (ended->segments == 0 || !find(allocator, ended, size, out))
        return 0;
    mo_pool_move_segment(allocator, out->first->segment, pool);
    return 1;
}

int mo_growth_find(memopt_allocator *allocator, mo_pool *pool, uint64_t size, mo_place *out_place)
{
    if (!find_place(allocator, pool, size, 0, out_place))
        return 0;
    if (out_place->missing > mo_min_u64(mo_room(allocator), room_before_moves(allocator, size)))
        (void)find_place(allocator, pool, size, 1, out_place);
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
            mo_pages_put_unmapped(allocator, rest);
    }
    if (from == 0)
        return block;
    mo_block *part = mo_block_split(&allocator->slab, block, from);
    if (block->mapped)
        mo_pool_insert(allocator, block);
    else
        mo_pages_put_unmapped(allocator, block);
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
            mo_pages_unlink_unmapped(block);
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
            mo_pages_put_unmapped(allocator, block);
        block = next;
    }
}

/* --- handles and their mapping ---------------------------------------------------------------- */

/* Where the place's pages stand that still lack a handle. */
typedef struct cursor {
    mo_block *block;
    uint64_t left; /* blocks, block included */
    uint64_t page; /* of the segment */
} cursor;

/* Moves to a page without a handle; false at the end. */
static int seek(const memopt_allocator *allocator, cursor *at)
{
    for (; at->left > 0; at->block = at->block->next, at->left--, at->page = 0) {
        if (at->block->mapped)
            continue;
        uint64_t first = mo_page_of(allocator, at->block);
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

/* A page of the place whose handle was taken from a free page. */
typedef struct move {
    mo_segment *from; /* NULL: it cannot go back */
    uint64_t page;    /* of `from` */
    uint64_t to;      /* the page of the place's segment */
    uint64_t freed_at;
} move;

typedef struct moves {
    move *list;
    uint64_t count;
} moves;

static move *find_move(const moves *taken, uint64_t page)
{
    for (uint64_t i = 0; i < taken->count; i++)
        if (taken->list[i].to == page)
            return &taken->list[i];
    return NULL;
}

/* Handles of pages that are not mapped go back, but for taken ones. Without lock. */
static void drop_pages(memopt_allocator *allocator, mo_segment *segment, const moves *taken,
                       uint64_t page, uint64_t end)
{
    for (; page < end; page++)
        if (segment->pages[page] != NULL && find_move(taken, page) == NULL)
            (void)mo_page_release(allocator, segment, page);
}

/* The same for pages that are mapped; those that cannot be unmapped stay. Without lock. */
static void unwind_pages(memopt_allocator *allocator, mo_segment *segment, const moves *taken,
                         uint64_t page, uint64_t end)
{
    for (; page < end; page++) {
        move *moved = find_move(taken, page);
        memopt_status status = mo_page_unmap(allocator, segment, page);
        if (status == MEMOPT_OK && moved == NULL)
            (void)mo_page_release(allocator, segment, page);
        if (status != MEMOPT_OK && moved != NULL)
            moved->from = NULL;
    }
}

/* Undoes a growth of which the first `done` blocks were mapped. Without lock. */
static void unwind_place(memopt_allocator *allocator, const mo_place *place, const moves *taken,
                         uint64_t done)
{
    mo_block *block = place->first;
    for (uint64_t i = 0; i < place->count; i++, block = block->next) {
        uint64_t page = mo_page_of(allocator, block);
        uint64_t end = page + block->size / allocator->granularity;
        if (block->mapped)
            continue;
        if (i < done) {
            mo_observe_gone(allocator, block->address, block->size);
            unwind_pages(allocator, block->segment, taken, page, end);
        } else
            drop_pages(allocator, block->segment, taken, page, end);
    }
}

/* Whatever fails, none of the block's pages is mapped, and no observer thinks so. Without lock. */
static memopt_status map_block(memopt_allocator *allocator, const mo_block *block,
                               const moves *taken)
{
    mo_segment *segment = block->segment;
    uint64_t bytes = allocator->granularity, first = mo_page_of(allocator, block), page = first;
    memopt_status status = MEMOPT_OK;
    for (; page < first + block->size / bytes; page++) {
        status = mo_vm_map(allocator->device, segment->address + page * bytes, bytes,
                           segment->pages[page]);
        if (status != MEMOPT_OK)
            break;
    }
    if (status == MEMOPT_OK)
        status = mo_vm_set_access(allocator->device, block->address, block->size);
    if (status == MEMOPT_OK)
        status = mo_observe_mapped(allocator, block->address, block->size);
    if (status != MEMOPT_OK)
        unwind_pages(allocator, segment, taken, first, page);
    return status;
}

/* Maps every claimed block of the place that lacks memory; all or nothing. Without lock. */
static memopt_status map_place(memopt_allocator *allocator, const mo_place *place,
                               const moves *taken)
{
    mo_block *block = place->first;
    memopt_status status = MEMOPT_OK;
    uint64_t done = 0;
    for (; done < place->count; done++, block = block->next) {
        status = block->mapped ? MEMOPT_OK : map_block(allocator, block, taken);
        if (status != MEMOPT_OK)
            break;
    }
    if (status != MEMOPT_OK)
        unwind_place(allocator, place, taken, done);
    return status;
}

/* --- taking pages from free blocks ------------------------------------------------------------ */

typedef struct spared {
    const memopt_allocator *allocator;
    mo_block *block;
} spared;

/* Pages of the smallest blocks, which serve the fewest requests; then those that were freed first.
 */
static int spares_better(const mo_block *a, const mo_block *b)
{
    if (a->size != b->size)
        return a->size < b->size;
    return a->freed_at != b->freed_at ? a->freed_at < b->freed_at : a->address > b->address;
}

static void look_at(void *user, mo_block *block)
{
    spared *found = user;
    uint64_t from, to;
    if (mo_segment_is_expandable(block->segment) &&
        (found->block == NULL || spares_better(block, found->block)) &&
        mo_pages_whole(found->allocator, block, UINT64_MAX, &from, &to))
        found->block = block;
}

/* Visits the free blocks whose pages can be taken for a block of `stream`; without `wait` only its
 * own, and those of streams that have nothing to do. */
static void visit_free(memopt_allocator *allocator, memopt_stream stream, int wait,
                       void (*visit)(void *user, mo_block *block), void *user)
{
    allocator->release_pass++; /* more may have been freed since the last wait */
    for (mo_pool *pool = allocator->pools; pool != NULL; pool = pool->next)
        if (pool->life == MO_STREAM_LIVE && pool->segments > 0 &&
            (wait || mo_pool_idle(allocator, pool) ||
             (pool->stream == stream && mo_stale_may(allocator, pool))))
            mo_bins_visit(&pool->bins, allocator->granularity, visit, user);
    for (unsigned i = 0; i < MO_SIZES_CLASSES; i++)
        mo_bins_visit(&allocator->ended[i].bins, allocator->granularity, visit, user);
}

/* The free block whose pages are taken next; NULL if none has whole pages. */
static mo_block *next_spared(memopt_allocator *allocator, memopt_stream stream, int wait)
{
    spared found = {allocator, NULL};
    visit_free(allocator, stream, wait, look_at, &found);
    return found.block;
}

typedef struct page_count {
    const memopt_allocator *allocator;
    uint64_t pages;
} page_count;

static void count_pages(void *user, mo_block *block)
{
    page_count *count = user;
    uint64_t from, to;
    if (mo_segment_is_expandable(block->segment) &&
        mo_pages_whole(count->allocator, block, UINT64_MAX, &from, &to))
        count->pages += (to - from) / count->allocator->granularity;
}

/* How many pages take_pages would find. */
static uint64_t free_pages(memopt_allocator *allocator, memopt_stream stream, int wait)
{
    page_count count = {allocator, 0};
    visit_free(allocator, stream, wait, count_pages, &count);
    return count.pages;
}

int mo_growth_moves(memopt_allocator *allocator, mo_pool *pool, uint64_t size)
{
    mo_place place;
    if (mo_capturing(allocator) ||
        room_before_moves(allocator, size) >= size + allocator->granularity)
        return 0; /* a place lacks no more */
    return find_place(allocator, pool, size, 0, &place) &&
           place.missing > room_before_moves(allocator, size);
}

/* Unmaps the pages of a claimed block, which are no more than the place lacks, with the observers'
 * consent, unless they stay mapped as stale ones, and gives their handles to it; *out_done counts
 * the bytes. Without lock. */
static memopt_status move_claim(memopt_allocator *allocator, const mo_block *block, int stale,
                                cursor *at, moves *taken, uint64_t *out_done)
{
    mo_segment *segment = block->segment;
    uint64_t page = mo_page_of(allocator, block);
    *out_done = stale ? block->size : 0;
    memopt_status status =
        stale ? MEMOPT_OK : mo_observe_unmapping(allocator, block->address, block->size);
    if (status != MEMOPT_OK)
        return status;
    if (!stale)
        status = mo_pages_unmap(allocator, block, out_done);
    uint64_t end = page + *out_done / allocator->granularity;
    for (; page < end && seek(allocator, at); page++) {
        at->block->segment->pages[at->page] = segment->pages[page];
        segment->pages[page] = NULL;
        taken->list[taken->count++] = (move){segment, page, at->page, block->freed_at};
    }
    if (!stale)
        mo_observe_stays(allocator, block->address + *out_done, block->size - *out_done);
    return status;
}

/* Gives the place's missing pages handles of free pages while there are any; without `wait` only
 * those of streams that have nothing to do. */
static memopt_status take_pages(memopt_allocator *allocator, const mo_place *place, int wait,
                                moves *taken)
{
    cursor at = {place->first, place->count, 0};
    memopt_stream stream = place->first->segment->pool->stream;
    memopt_status status = MEMOPT_OK;
    while (status == MEMOPT_OK) {
        uint64_t from, to, done = 0, left = lacking(allocator, place);
        mo_block *block = left > 0 ? next_spared(allocator, stream, wait) : NULL;
        mo_stream_use *use = NULL;
        if (block == NULL)
            return MEMOPT_OK;
        if (taken->list == NULL)
            taken->list = mo_calloc(left, sizeof *taken->list);
        if (taken->list == NULL || !mo_slab_reserve(&allocator->slab, 6))
            return MEMOPT_OUT_OF_HOST_MEMORY;
        (void)mo_pages_whole(allocator, block, left * allocator->granularity, &from, &to);
        block = mo_pages_claim(allocator, block, from, to);
        mo_pool *pool = block->segment->pool;
        if (pool->drained == allocator->release_pass || !mo_stale_may(allocator, pool) ||
            mo_stale_mark(allocator, pool, stream, &use) != MEMOPT_OK)
            status = mo_drain_pool(allocator, pool);
        if (status == MEMOPT_OK) {
            mo_unlock(&allocator->lock);
            status = move_claim(allocator, block, use != NULL, &at, taken, &done);
            mo_lock(&allocator->lock);
        }
        if (use != NULL)
            mo_stale_add(allocator, block, use);
        else
            mo_pages_settle(allocator, block, done);
    }
    return status;
}

/* Maps a page's handle where it was taken; the page is free again. If that fails, too, the handle
 * goes back to the device. A stale page is mapped there still. */
static void put_page_back(memopt_allocator *allocator, mo_segment *segment, const move *moved)
{
    const moves none = {NULL, 0};
    uint64_t bytes = allocator->granularity;
    mo_segment *from = moved->from;
    char *start = from->address + moved->page * bytes;
    if (mo_block_at(allocator, start)->state == MO_BLOCK_STALE) {
        from->pages[moved->page] = segment->pages[moved->to];
        segment->pages[moved->to] = NULL;
        return;
    }
    if (!mo_slab_reserve(&allocator->slab, 2)) {
        mo_unlock(&allocator->lock);
        (void)mo_page_release(allocator, segment, moved->to);
        mo_lock(&allocator->lock);
        return;
    }
    mo_block *block = mo_block_at(allocator, start);
    mo_pages_unlink_unmapped(block);
    block->mapped = 0;
    block = trim_to(allocator, block, start, start + bytes);
    from->pages[moved->page] = segment->pages[moved->to];
    segment->pages[moved->to] = NULL;
    mo_unlock(&allocator->lock);
    memopt_status status = map_block(allocator, block, &none);
    if (status != MEMOPT_OK)
        drop_pages(allocator, from, &none, moved->page, moved->page + 1);
    mo_lock(&allocator->lock);
    if (status != MEMOPT_OK) {
        mo_pages_put_unmapped(allocator, block);
        return;
    }
    mo_count_mapped(allocator, from, bytes, 1);
    block->freed_at = moved->freed_at;
    mo_pool_put(allocator, block);
}

static void put_pages_back(memopt_allocator *allocator, const mo_place *place, const moves *taken)
{
    for (uint64_t i = 0; i < taken->count; i++)
        if (taken->list[i].from != NULL)
            put_page_back(allocator, place->first->segment, &taken->list[i]);
    mo_stale_restore(allocator);
}

/* --- all of it -------------------------------------------------------------------------------- */

/* `count` new pages of the place, of which `taken` will be those of free blocks. */
static memopt_status add_pages(memopt_allocator *allocator, const mo_place *place, uint64_t count,
                               uint64_t taken)
{
    uint64_t page = allocator->granularity;
    /* Pages that were just made are not counted yet. */
    uint64_t more = place->missing - taken * page;
    int fits = mo_room(allocator) >= more;
    MO_TRY(mo_may_grow(allocator, fits ? count * page : more));
    return create_pages(allocator, place, count);
}

/* A handle for every missing page of the claimed place: new ones while there is room, then those of
 * free pages, which cannot be had during a capture, and new ones up to the limit. Streams are
 * waited for only at the limit. New ones come first, so that a request that cannot be served leaves
 * the free pages where they are. */
static memopt_status find_pages(memopt_allocator *allocator, const mo_place *place, uint64_t size,
                                moves *moved)
{
    uint64_t page = allocator->granularity, left = lacking(allocator, place);
    uint64_t some = mo_min_u64(mo_room(allocator), room_before_moves(allocator, size));
    memopt_status status = MEMOPT_OK;
    some = mo_min_u64(some / page, left);
    if (some > 0)
        status = mo_may_grow(allocator, some * page);
    if (some > 0 && status == MEMOPT_OK)
        status = create_pages(allocator, place, some);
    if (status == MEMOPT_OUT_OF_DEVICE_MEMORY)
        status = MEMOPT_OK;
    int last = mo_capturing(allocator) ? 0 : 1;
    for (int wait = 0; status == MEMOPT_OK && (left = lacking(allocator, place)) > 0; wait++) {
        if (wait > last)
            return MEMOPT_OUT_OF_DEVICE_MEMORY; /* another thread was faster */
        memopt_stream stream = place->first->segment->pool->stream;
        uint64_t taken = last > 0 ? mo_min_u64(free_pages(allocator, stream, wait), left) : 0;
        if (wait == 0 && mo_room(allocator) >= place->missing)
            pay_for_moves(allocator, some, taken);
        if (taken < left)
            status = add_pages(allocator, place, left - taken, taken);
        if (status == MEMOPT_OK && taken > 0)
            status = take_pages(allocator, place, wait, moved);
        if (status == MEMOPT_OUT_OF_DEVICE_MEMORY && wait < last)
            status = MEMOPT_OK; /* once more, with a wait */
    }
    return status;
}

memopt_status mo_growth_make(memopt_allocator *allocator, const mo_request *request,
                             mo_place *place, mo_block **out_block)
{
    if (!mo_slab_reserve(&allocator->slab, 6))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    moves taken = {NULL, 0};
    claim_place(allocator, place, request->size);
    memopt_status status = find_pages(allocator, place, request->size, &taken);
    mo_unlock(&allocator->lock);
    if (status == MEMOPT_OK)
        status = map_place(allocator, place, &taken);
    else
        unwind_place(allocator, place, &taken, 0);
    mo_lock(&allocator->lock);
    if (status == MEMOPT_OK) {
        *out_block = finish_place(allocator, place);
    } else {
        if (allocator->stale != NULL && status == MEMOPT_DRIVER_ERROR)
            allocator->aliases = 0; /* perhaps it is that which the driver does not take */
        put_pages_back(allocator, place, &taken);
        restore_place(allocator, place);
    }
    mo_free(taken.list);
    return status;
}
