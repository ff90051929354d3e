#include "allocator/bins.h"

#include "base/checked.h"

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

static int below(const mo_block *a, const mo_block *b)
{
    return a->fit != b->fit ? a->fit < b->fit : a->address < b->address;
}

static uint64_t largest_of(const mo_block *tree)
{
    return tree == NULL ? 0 : tree->largest;
}

static mo_block *refreshed(mo_block *tree)
{
    uint64_t largest = mo_max_u64(largest_of(tree->left), largest_of(tree->right));
    tree->largest = mo_max_u64(largest, tree->size);
    return tree;
}

/* Into the nodes below `key`, itself in no tree, and the others. */
static void split(mo_block *tree, const mo_block *key, mo_block **low, mo_block **high)
{
    if (tree == NULL) {
        *low = *high = NULL;
    } else if (below(tree, key)) {
        *low = tree;
        split(tree->right, key, &tree->right, high);
        refreshed(tree);
    } else {
        *high = tree;
        split(tree->left, key, low, &tree->left);
        refreshed(tree);
    }
}

static mo_block *join(mo_block *low, mo_block *high)
{
    if (low == NULL || high == NULL)
        return low != NULL ? low : high;
    if (priority(low) >= priority(high)) {
        low->right = join(low->right, high);
        return refreshed(low);
    }
    high->left = join(low, high->left);
    return refreshed(high);
}

static mo_block *with(mo_block *tree, mo_block *block)
{
    if (tree == NULL || priority(tree) < priority(block)) {
        split(tree, block, &block->left, &block->right);
        return refreshed(block);
    }
    if (below(tree, block))
        tree->right = with(tree->right, block);
    else
        tree->left = with(tree->left, block);
    return refreshed(tree);
}

static mo_block *without(mo_block *tree, const mo_block *block)
{
    if (tree == block)
        return join(tree->left, tree->right);
    if (below(tree, block))
        tree->right = without(tree->right, block);
    else
        tree->left = without(tree->left, block);
    return refreshed(tree);
}

void mo_bins_insert(mo_bins *bins, mo_block *block)
{
    size_t bin = bin_of(block->fit);
    bins->root[bin] = with(bins->root[bin], block);
    bins->used[bin / 64] |= UINT64_C(1) << (bin % 64);
    bins->used_words |= UINT64_C(1) << (bin / 64);
}

void mo_bins_remove(mo_bins *bins, mo_block *block)
{
    size_t bin = bin_of(block->fit);
    bins->root[bin] = without(bins->root[bin], block);
    block->left = block->right = NULL;
    if (bins->root[bin] == NULL) {
        bins->used[bin / 64] &= ~(UINT64_C(1) << (bin % 64));
        if (bins->used[bin / 64] == 0)
            bins->used_words &= ~(UINT64_C(1) << (bin / 64));
    }
}

/* The first node that holds `size`, which one of them does. */
static mo_block *first_that_holds(mo_block *tree, uint64_t size)
{
    for (;;) {
        if (largest_of(tree->left) >= size)
            tree = tree->left;
        else if (tree->size >= size)
            return tree;
        else
            tree = tree->right;
    }
}

/* No fit is below its block's size, so a bin below that of `size` has none that holds it. */
mo_block *mo_bins_best_fit(const mo_bins *bins, uint64_t size)
{
    size_t first = bin_of(size), word = first / 64;
    uint64_t rest = bins->used[word] & (~UINT64_C(0) << (first % 64));
    uint64_t words = bins->used_words & (~UINT64_C(1) << word);
    for (;;) {
        for (; rest != 0; rest &= rest - 1) {
            mo_block *tree = bins->root[word * 64 + (size_t)__builtin_ctzll(rest)];
            if (tree->largest >= size)
                return first_that_holds(tree, size);
        }
        if (words == 0)
            return NULL;
        word = (size_t)__builtin_ctzll(words);
        words &= words - 1;
        rest = bins->used[word];
    }
}
