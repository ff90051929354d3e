/*
 * Which pages a pause takes, and the free blocks in them, which must not be given out: they are cut
 * at the edges of these pages and sleep, as do blocks that are freed later.
 */
#include "allocator/pause/sleep.h"

#include "allocator/blocks/block_life.h"
#include "allocator/blocks/pool.h"

#include "base/checked.h"
#include "base/memory.h"

/* What a page has. */
enum { OURS = 1, OTHERS = 2, UNUSED = 4 };

typedef struct marks {
    uint8_t *page; /* of one segment */
    int all;       /* every tag is paused */
} marks;

static uint8_t mark_of(const mo_block *block, uint64_t tags)
{
    int used = block->state == MO_BLOCK_LIVE || block->state == MO_BLOCK_PENDING;
    if (used && (tags >> block->tag & 1))
        return block->exports == 0 ? OURS : OURS | OTHERS; /* an exported block keeps its pages */
    return block->state == MO_BLOCK_FREE ? UNUSED : OTHERS;
}

static uint64_t first_page(const memopt_allocator *allocator, const mo_block *block)
{
    return (uint64_t)(block->address - block->segment->address) / allocator->granularity;
}

static uint64_t end_page(const memopt_allocator *allocator, const mo_block *block)
{
    uint64_t end = (uint64_t)(block->address - block->segment->address) + block->size;
    return mo_ceil_div_u64(end, allocator->granularity);
}

static int goes(const marks *m, uint64_t page)
{
    uint8_t mark = m->page[page];
    return (mark & OTHERS) == 0 && ((mark & OURS) != 0 || (m->all && (mark & UNUSED) != 0));
}

static void mark_pages(const memopt_allocator *allocator, const mo_segment *segment, uint64_t tags,
                       const marks *out)
{
    for (const mo_block *block = segment->first; block != NULL; block = block->next)
        for (uint64_t page = first_page(allocator, block);
             block->state != MO_BLOCK_UNMAPPED && page < end_page(allocator, block); page++)
            out->page[page] |= mark_of(block, tags);
}

static void list_pages(const memopt_allocator *allocator, mo_segment *segment, const marks *m,
                       mo_pause *pause, uint64_t *stay)
{
    for (uint64_t page = 0; page < segment->size / allocator->granularity; page++) {
        if (goes(m, page))
            pause->pages[pause->page_count++] = (mo_paused_page){segment, page, 1, 0, 1, 1};
        else if (m->page[page] & OURS)
            *stay += allocator->granularity;
    }
}

/* Its parts in pages that go sleep, the others stay free. Two block structs are reserved: the pages
 * between its first and its last one have nothing else, so they share their fate. */
static void cut(memopt_allocator *allocator, mo_block *block, const marks *m, mo_pause *pause)
{
    uint64_t unit = allocator->granularity;
    mo_pool_remove(allocator, block);
    while (block != NULL) {
        uint64_t start = (uint64_t)(block->address - block->segment->address);
        uint64_t end = end_page(allocator, block), page = start / unit + 1;
        int sleeps = goes(m, page - 1);
        while (page < end && goes(m, page) == sleeps)
            page++;
        mo_block *rest =
            page < end ? mo_block_split(&allocator->slab, block, page * unit - start) : NULL;
        if (sleeps)
            mo_block_put_to_sleep(pause, block);
        else
            mo_pool_insert(allocator, block);
        block = rest;
    }
}

static memopt_status cut_free_blocks(memopt_allocator *allocator, const mo_segment *segment,
                                     const marks *m, mo_pause *pause)
{
    for (mo_block *block = segment->first, *next; block != NULL; block = next) {
        next = block->next;
        if (block->state != MO_BLOCK_FREE)
            continue;
        if (!mo_slab_reserve(&allocator->slab, 2))
            return MEMOPT_OUT_OF_HOST_MEMORY;
        cut(allocator, block, m, pause);
    }
    return MEMOPT_OK;
}

static memopt_status take_segment(memopt_allocator *allocator, mo_segment *segment, mo_pause *pause,
                                  uint64_t *stay)
{
    marks m = {mo_calloc(segment->size / allocator->granularity, 1),
               allocator->paused_tags == UINT64_MAX};
    if (m.page == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    mark_pages(allocator, segment, pause->tags, &m);
    list_pages(allocator, segment, &m, pause, stay);
    memopt_status status = cut_free_blocks(allocator, segment, &m, pause);
    mo_free(m.page);
    return status;
}

memopt_status mo_sleep_begin(memopt_allocator *allocator, mo_pause *pause, uint64_t *out_stay)
{
    uint64_t most = 0;
    memopt_status status = MEMOPT_OK;
    for (const mo_segment *s = allocator->segments; s != NULL; s = s->next)
        most += s->mapped / allocator->granularity;
    *out_stay = 0;
    pause->pages = mo_calloc(most + 1, sizeof *pause->pages);
    if (pause->pages == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    for (mo_segment *s = allocator->segments; s != NULL && status == MEMOPT_OK; s = s->next)
        status = take_segment(allocator, s, pause, out_stay);
    return status;
}

void mo_sleep_end(memopt_allocator *allocator, mo_pause *pause)
{
    mo_block *next;
    for (mo_block *block = pause->asleep; block != NULL; block = next) {
        next = block->right;
        block->right = NULL;
        mo_pool_put(allocator, block);
    }
    pause->asleep = NULL;
    mo_free(pause->pages);
    pause->pages = NULL;
    pause->page_count = 0;
}
