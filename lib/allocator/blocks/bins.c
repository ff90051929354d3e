#include "allocator/blocks/bins.h"

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

/* Where a node of this priority belongs on the way to the block. */
static mo_block **place_of(mo_block **root, const mo_block *block, uint32_t least)
{
    mo_block **place = root;
    while (*place != NULL && *place != block && priority(*place) >= least)
        place = below(*place, block) ? &(*place)->right : &(*place)->left;
    return place;
}

/* The nodes of a tree below the block become its left children, the others its right ones. */
static void split(mo_block *tree, mo_block *block)
{
    mo_block **low = &block->left, **high = &block->right;
    while (tree != NULL) {
        if (below(tree, block)) {
            *low = tree;
            low = &tree->right;
            tree = *low;
        } else {
            *high = tree;
            high = &tree->left;
            tree = *high;
        }
    }
    *low = *high = NULL;
}

/* Two trees become one at `place`; the nodes of `low` come first. */
static void join(mo_block **place, mo_block *low, mo_block *high)
{
    while (low != NULL && high != NULL) {
        if (priority(low) >= priority(high)) {
            *place = low;
            place = &low->right;
            low = *place;
        } else {
            *place = high;
            place = &high->left;
            high = *place;
        }
    }
    *place = low != NULL ? low : high;
}

void mo_bins_insert(mo_bins *bins, mo_block *block)
{
    size_t bin = bin_of(block->size);
    mo_block **place = place_of(&bins->root[bin], block, priority(block));
    mo_block *tree = *place;
    *place = block;
    split(tree, block);
    bins->used[bin / 64] |= UINT64_C(1) << (bin % 64);
    bins->used_words |= UINT64_C(1) << (bin / 64);
}

void mo_bins_remove(mo_bins *bins, mo_block *block)
{
    size_t bin = bin_of(block->size);
    join(place_of(&bins->root[bin], block, 0), block->left, block->right);
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
