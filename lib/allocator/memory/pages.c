/* The pages of expandable segments; see segment_expandable.c for the rules. */
#include "allocator/memory/pages.h"

#include "allocator/blocks/pool.h"

#include "base/checked.h"
#include "base/precondition.h"

/* --- the list of unmapped blocks -------------------------------------------------------------- */

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

void mo_pages_unlink_unmapped(mo_block *block)
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

void mo_pages_put_unmapped(memopt_allocator *allocator, mo_block *block)
{
    block->state = MO_BLOCK_UNMAPPED;
    block->mapped = 0;
    if (has_state(block->next, MO_BLOCK_UNMAPPED)) {
        mo_pages_unlink_unmapped(block->next);
        mo_block_absorb_next(&allocator->slab, block);
    }
    if (has_state(block->prev, MO_BLOCK_UNMAPPED)) {
        block = block->prev;
        mo_pages_unlink_unmapped(block);
        mo_block_absorb_next(&allocator->slab, block);
    }
    unmapped_link(block);
}

/* --- single pages ----------------------------------------------------------------------------- */

uint64_t mo_page_of(const memopt_allocator *allocator, const mo_block *block)
{
    return (uint64_t)(block->address - block->segment->address) / allocator->granularity;
}

memopt_status mo_page_unmap(memopt_allocator *allocator, mo_segment *segment, uint64_t page)
{
    uint64_t bytes = allocator->granularity;
    return mo_vm_unmap(allocator->device, segment->address + page * bytes, bytes);
}

memopt_status mo_pages_unmap(memopt_allocator *allocator, const mo_block *block, uint64_t *out_done)
{
    return mo_vm_unmap_run(allocator->device, block->address, block->size, allocator->granularity,
                           out_done);
}

memopt_status mo_page_release(memopt_allocator *allocator, mo_segment *segment, uint64_t page)
{
    MO_TRY(mo_vm_release(allocator->device, segment->pages[page], allocator->granularity));
    segment->pages[page] = NULL;
    return MEMOPT_OK;
}

/* --- pages of free blocks --------------------------------------------------------------------- */

int mo_pages_whole(const memopt_allocator *allocator, const mo_block *block, uint64_t wanted,
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

mo_block *mo_pages_claim(memopt_allocator *allocator, mo_block *block, uint64_t from, uint64_t to)
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

void mo_pages_settle(memopt_allocator *allocator, mo_block *block, uint64_t done)
{
    mo_count_unmapped(allocator, block->segment, done, done / allocator->granularity);
    if (done == 0) {
        mo_pool_put(allocator, block);
        return;
    }
    mo_block *rest = NULL;
    if (done < block->size)
        rest = mo_block_split(&allocator->slab, block, done);
    mo_pages_put_unmapped(allocator, block);
    if (rest != NULL)
        mo_pool_put(allocator, rest);
}
