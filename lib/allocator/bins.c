#include "allocator/bins.h"

#include "base/checked.h"

enum { EXACT = 32, SUB_BITS = 4, SUBS = 1 << SUB_BITS };

static size_t bin_of(uint64_t size)
{
    uint64_t units = size / MO_BLOCK_UNIT;
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
    return a->size != b->size ? a->size < b->size : a->address < b->address;
}

/* Into the nodes below `key`, itself in no tree, and the others. */
static void split(mo_block *tree, const mo_block *key, mo_block **low, mo_block **high)
{
    if (tree == NULL) {
        *low = *high = NULL;
    } else if (below(tree, key)) {
        *low = tree;
        split(tree->right, key, &tree->right, high);
    } else {
        *high = tree;
        split(tree->left, key, low, &tree->left);
    }
}

static mo_block *join(mo_block *low, mo_block *high)
{
    if (low == NULL || high == NULL)
        return low != NULL ? low : high;
    if (priority(low) >= priority(high)) {
        low->right = join(low->right, high);
        return low;
    }
    high->left = join(low, high->left);
    return high;
}

static mo_block *with(mo_block *tree, mo_block *block)
{
    if (tree == NULL || priority(tree) < priority(block)) {
        split(tree, block, &block->left, &block->right);
        return block;
    }
    if (below(tree, block))
        tree->right = with(tree->right, block);
    else
        tree->left = with(tree->left, block);
    return tree;
}

static mo_block *without(mo_block *tree, const mo_block *block)
{
    if (tree == block)
        return join(tree->left, tree->right);
    if (below(tree, block))
        tree->right = without(tree->right, block);
    else
        tree->left = without(tree->left, block);
    return tree;
}

void mo_bins_insert(mo_bins *bins, mo_block *block)
{
    size_t bin = bin_of(block->size);
    bins->root[bin] = with(bins->root[bin], block);
    bins->used[bin / 64] |= UINT64_C(1) << (bin % 64);
    bins->used_words |= UINT64_C(1) << (bin / 64);
}

void mo_bins_remove(mo_bins *bins, mo_block *block)
{
    size_t bin = bin_of(block->size);
    bins->root[bin] = without(bins->root[bin], block);
    block->left = block->right = NULL;
    if (bins->root[bin] == NULL) {
        bins->used[bin / 64] &= ~(UINT64_C(1) << (bin % 64));
        if (bins->used[bin / 64] == 0)
            bins->used_words &= ~(UINT64_C(1) << (bin / 64));
    }
}

static void visit_tree(mo_block *tree, void (*visit)(void *user, mo_block *block), void *user)
{
    if (tree == NULL)
        return;
    visit_tree(tree->left, visit, user);
    visit(user, tree);
    visit_tree(tree->right, visit, user);
}

void mo_bins_visit(const mo_bins *bins, uint64_t least, void (*visit)(void *user, mo_block *block),
                   void *user)
{
    for (size_t bin = bin_of(least); bin < MO_BIN_COUNT; bin++)
        visit_tree(bins->root[bin], visit, user);
}

/* The first node of at least `size`; NULL if none. */
static mo_block *first_of(mo_block *tree, uint64_t size)
{
    mo_block *found = NULL;
    while (tree != NULL) {
        if (tree->size >= size) {
            found = tree;
            tree = tree->left;
        } else {
            tree = tree->right;
        }
    }
    return found;
}

/* Only the bin of `size` itself has smaller ones, too. */
mo_block *mo_bins_best_fit(const mo_bins *bins, uint64_t size)
{
    size_t first = bin_of(size), word = first / 64;
    mo_block *found = first_of(bins->root[first], size);
    if (found != NULL)
        return found;
    uint64_t rest = first % 64 == 63 ? 0 : bins->used[word] & (~UINT64_C(0) << (first % 64 + 1));
    if (rest == 0) {
        uint64_t words = word == 63 ? 0 : bins->used_words & (~UINT64_C(0) << (word + 1));
        if (words == 0)
            return NULL;
        word = (size_t)__builtin_ctzll(words);
        rest = bins->used[word];
    }
    return first_of(bins->root[word * 64 + (size_t)__builtin_ctzll(rest)], size);
}
