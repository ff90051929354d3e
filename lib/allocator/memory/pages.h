/* The pages of expandable segments. Called with slow held, and with lock if not said otherwise. */
#ifndef MO_ALLOCATOR_PAGES_H
#define MO_ALLOCATOR_PAGES_H

#include "allocator/memory/segment_common.h"

/* A block in no structure becomes unmapped, joined with such neighbours. */
void mo_pages_put_unmapped(memopt_allocator *allocator, mo_block *block);
/* Takes a block out of its segment's unmapped ones. */
void mo_pages_unlink_unmapped(mo_block *block);

/* The number in its segment of the page that the block starts in. */
uint64_t mo_page_of(const memopt_allocator *allocator, const mo_block *block);
/* These three without lock. */
memopt_status mo_page_unmap(memopt_allocator *allocator, mo_segment *segment, uint64_t page);
/* All pages of a claimed block, which stay in pages[]; *out_done: bytes from its start. */
memopt_status mo_pages_unmap(memopt_allocator *allocator, const mo_block *block,
                             uint64_t *out_done);
memopt_status mo_page_release(memopt_allocator *allocator, mo_segment *segment, uint64_t page);

/* Whole pages inside a free block, at most `wanted` bytes of them, from its end; offsets in the
 * block. 0 if there are none. */
int mo_pages_whole(const memopt_allocator *allocator, const mo_block *block, uint64_t wanted,
                   uint64_t *out_from, uint64_t *out_to);
/* Cuts [from, to) out of a free block; its ends stay free. Two block structs are reserved. */
mo_block *mo_pages_claim(memopt_allocator *allocator, mo_block *block, uint64_t from, uint64_t to);
/* Marks the first `done` bytes of a claimed block as unmapped; the rest is free again. */
void mo_pages_settle(memopt_allocator *allocator, mo_block *block, uint64_t done);

#endif
