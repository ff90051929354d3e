/*
 * The free blocks of one pool, found by best fit, ties to the lowest address.
 *
 * Sizes fall into bins, 16 to an octave (one a size below 16 KiB); a bitmap tells which bins hold
 * blocks; in a bin a treap orders them by (fit, address), its priorities a hash of the block's
 * place. A block's fit counts the unmapped neighbour that it could grow into, so blocks that are
 * too small stand among those that fit: each node knows the largest size below it, and a search
 * passes the rest by. It walks one short tree, and thousands of blocks cost the logarithm.
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

/* block->fit is the key; it and block->size stay while the block is in. */
void mo_bins_insert(mo_bins *bins, mo_block *block);
void mo_bins_remove(mo_bins *bins, mo_block *block);

/* The best fit: the first in order of (fit, address) whose mapped size holds `size`; NULL if
 * none. */
mo_block *mo_bins_best_fit(const mo_bins *bins, uint64_t size);

#endif
