/*
 * The free blocks of one pool, found by best fit, ties to the lowest address.
 *
 * Sizes fall into bins, 16 to an octave (one a size below 16 KiB); a bitmap tells which bins hold
 * blocks; in a bin a treap orders them by (fit, address), its priorities a hash of the block's
 * place. So a search looks at two words of bitmap and walks one short tree, and a bin with
 * thousands of blocks costs the logarithm.
 */
#ifndef MO_ALLOCATOR_BINS_H
#define MO_ALLOCATOR_BINS_H

#include "allocator/block.h"

enum { MO_BIN_COUNT = 832, MO_BIN_WORDS = MO_BIN_COUNT / 64 };

typedef struct mo_bins {
    uint64_t used_words;
    uint64_t used[MO_BIN_WORDS];
    mo_block *root[MO_BIN_COUNT];
} mo_bins;

/* block->fit is the key and stays while the block is in. */
void mo_bins_insert(mo_bins *bins, mo_block *block);
void mo_bins_remove(mo_bins *bins, mo_block *block);

/* The first block in order of (fit, address) that is not below the given pair; NULL if none. */
mo_block *mo_bins_at_least(const mo_bins *bins, uint64_t fit, uintptr_t address);

/* The best fit: the first in that order whose mapped size holds `size`. */
static inline mo_block *mo_bins_best_fit(const mo_bins *bins, uint64_t size)
{
    mo_block *block = mo_bins_at_least(bins, size, 0);
    while (block != NULL && block->size < size)
        block = mo_bins_at_least(bins, block->fit, (uintptr_t)block->address + 1);
    return block;
}

#endif
