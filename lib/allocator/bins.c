#include "allocator/bins.h"

enum { EXACT = 32, SUB_BITS = 4, SUBS = 1 << SUB_BITS };

static size_t bin_of(uint64_t fit)
{
    uint64_t units = fit / MO_BLOCK_UNIT;
    if (units < EXACT)
        return (size_t)units;
    unsigned octave = 63u - (unsigned)__builtin_clzll(units);
    return EXACT + (octave - 5) * SUBS + ((units >> (octave - SUB_BITS)) & (SUBS - 1));
}

static uint32_t priority(const mo_block *block)
{
    return (uint32_t)(((uint64_t)(uintptr_t)block * UINT64_C(0x9E3779B97F4A7C15)) >> 32);
}

static int below(const mo_block *block, uint64_t fit, uintptr_t address)
{
    return block->fit != fit ? block->fit < fit : (uintptr_t)block->address < address;
}

void mo_bins_insert(mo_bins *bins, mo_block *block)
{
    uintptr_t address = (uintptr_t)block->address;
    size_t bin = bin_of(block->fit);
    mo_block **place = &bins->root[bin];
    while (*place != NULL && priority(*place) >= priority(block))
        place = below(*place, block->fit, address) ? &(*place)->right : &(*place)->left;
    /* What was there is split around the new node. */
    mo_block *tree = *place, **low = &block->left, **high = &block->right;
    while (tree != NULL) {
        if (below(tree, block->fit, address)) {
            *low = tree;
            low = &tree->right;
            tree = tree->right;
        } else {
            *high = tree;
            high = &tree->left;
            tree = tree->left;
        }
    }
    *low = *high = NULL;
    *place = block;
    bins->used[bin / 64] |= UINT64_C(1) << (bin % 64);
    bins->used_words |= UINT64_C(1) << (bin / 64);
}

void mo_bins_remove(mo_bins *bins, mo_block *block)
{
    uintptr_t address = (uintptr_t)block->address;
    size_t bin = bin_of(block->fit);
    mo_block **place = &bins->root[bin];
    while (*place != block)
        place = below(*place, block->fit, address) ? &(*place)->right : &(*place)->left;
    mo_block *a = block->left, *b = block->right;
    while (a != NULL && b != NULL) {
        if (priority(a) >= priority(b)) {
            *place = a;
            place = &a->right;
            a = a->right;
        } else {
            *place = b;
            place = &b->left;
            b = b->left;
        }
    }
    *place = a != NULL ? a : b;
    block->left = block->right = NULL;
    if (bins->root[bin] == NULL) {
        bins->used[bin / 64] &= ~(UINT64_C(1) << (bin % 64));
        if (bins->used[bin / 64] == 0)
            bins->used_words &= ~(UINT64_C(1) << (bin / 64));
    }
}

static mo_block *lower_bound(mo_block *tree, uint64_t fit, uintptr_t address)
{
    mo_block *found = NULL;
    while (tree != NULL) {
        if (below(tree, fit, address)) {
            tree = tree->right;
        } else {
            found = tree;
            tree = tree->left;
        }
    }
    return found;
}

mo_block *mo_bins_at_least(const mo_bins *bins, uint64_t fit, uintptr_t address)
{
    size_t bin = bin_of(fit), word = bin / 64;
    mo_block *block = lower_bound(bins->root[bin], fit, address);
    if (block != NULL)
        return block;
    uint64_t rest = bins->used[word] & (~UINT64_C(1) << (bin % 64));
    if (rest == 0) {
        uint64_t words = bins->used_words & (~UINT64_C(1) << word);
        if (words == 0)
            return NULL;
        word = (size_t)__builtin_ctzll(words);
        rest = bins->used[word];
    }
    return lower_bound(bins->root[word * 64 + (size_t)__builtin_ctzll(rest)], 0, 0);
}
