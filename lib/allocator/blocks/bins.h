/*
 * The free blocks of one pool, found by best fit, ties to the lowest address.
 *
 * Sizes fall into bins, 16 to an octave (one a size below 16 KiB); a bitmap tells which bins hold
 * blocks; in a bin a treap orders them by (size, address), its priorities a hash of the block's
 * place. A search walks one short tree or two, and thousands of blocks cost the logarithm.
 */
#ifndef MO_ALLOCATOR_BINS_H
#define MO_ALLOCATOR_BINS_H

#include "allocator/blocks/block.h"

enum { MO_BIN_COUNT = 832, MO_BIN_WORDS = MO_BIN_COUNT / 64 };

typedef struct mo_bins {
    uint64_t used_words;
    uint64_t used[MO_BIN_WORDS];
    mo_block *root[MO_BIN_COUNT];
} mo_bins;

/* block->size stays while the block is in. */
void mo_bins_insert(mo_bins *bins, mo_block *block);
void mo_bins_remove(mo_bins *bins, mo_block *block);

/* The best fit: the first in order of (size, address) that holds `size`; NULL if none. */
mo_block *mo_bins_best_fit(const mo_bins *bins, uint64_t size);
/* Calls `visit`, which leaves the bins as they are, with every block of at least `least` bytes, and
 * perhaps some that are a little smaller. */
void mo_bins_visit(const mo_bins *bins, uint64_t least, void (*visit)(void *user, mo_block *block),
                   void *user);

#endif
