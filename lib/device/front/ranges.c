#include "device/front/ranges.h"

#include "base/memory.h"
#include "base/precondition.h"

enum { FIRST_ROOM = 16, NONE = 0 };

int mo_ranges_init(mo_ranges *set)
{
    *set = (mo_ranges){.fresh = 1, .random = 1};
    return mo_ranges_reserve(set, FIRST_ROOM);
}

void mo_ranges_fini(mo_ranges *set)
{
    mo_free(set->nodes);
    *set = (mo_ranges){0};
}

int mo_ranges_reserve(mo_ranges *set, uint64_t count)
{
    return count < UINT32_MAX &&
           mo_grow((void **)&set->nodes, &set->capacity, count + 1, sizeof *set->nodes);
}

/* --- the tree ------------------------------------------------------------------------------ */

/* xorshift32: the same tree in every run. */
static uint32_t next_priority(mo_ranges *set)
{
    uint32_t x = set->random;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return set->random = x;
}

/* Pre: there is room. */
static uint32_t take_node(mo_ranges *set)
{
    uint32_t node = set->unused;
    if (node != NONE)
        set->unused = set->nodes[node].upper;
    else
        node = set->fresh++;
    MO_PRE(node < set->capacity);
    return node;
}

/* Parts a tree into the nodes that start below `start` and the others. */
static void split(mo_ranges *set, uint32_t tree, uintptr_t start, uint32_t *out_below,
                  uint32_t *out_above)
{
    while (tree != NONE) {
        mo_range_node *node = set->nodes + tree;
        if (node->range.start < start) {
            *out_below = tree;
            out_below = &node->upper;
            tree = node->upper;
        } else {
            *out_above = tree;
            out_above = &node->lower;
            tree = node->lower;
        }
    }
    *out_below = *out_above = NONE;
}

/* Joins two trees, all of `below` before all of `above`. */
static void join(mo_ranges *set, uint32_t below, uint32_t above, uint32_t *out)
{
    while (below != NONE && above != NONE) {
        if (set->nodes[below].priority > set->nodes[above].priority) {
            *out = below;
            out = &set->nodes[below].upper;
            below = *out;
        } else {
            *out = above;
            out = &set->nodes[above].lower;
            above = *out;
        }
    }
    *out = below != NONE ? below : above;
}

int mo_ranges_insert(mo_ranges *set, uintptr_t start, uint64_t size, void *value)
{
    MO_PRE(size > 0 && mo_ranges_overlapping(set, start, size) == NULL);
    if (!mo_ranges_reserve(set, set->count + 1))
        return 0;
    uint32_t at = take_node(set), *link = &set->root;
    mo_range_node *node = set->nodes + at;
    *node = (mo_range_node){.range = {start, size, value}, .priority = next_priority(set)};
    while (*link != NONE && set->nodes[*link].priority > node->priority)
        link = set->nodes[*link].range.start < start ? &set->nodes[*link].upper
                                                     : &set->nodes[*link].lower;
    split(set, *link, start, &node->lower, &node->upper);
    *link = at;
    set->count++;
    return 1;
}

void mo_ranges_remove(mo_ranges *set, const mo_range *range)
{
    uint32_t *link = &set->root;
    while (&set->nodes[*link].range != range) {
        MO_PRE(*link != NONE);
        link = set->nodes[*link].range.start < range->start ? &set->nodes[*link].upper
                                                            : &set->nodes[*link].lower;
    }
    uint32_t at = *link;
    join(set, set->nodes[at].lower, set->nodes[at].upper, link);
    set->nodes[at].upper = set->unused;
    set->unused = at;
    set->count--;
}

/* --- questions ----------------------------------------------------------------------------- */

mo_range *mo_ranges_after(const mo_ranges *set, uintptr_t address)
{
    mo_range *found = NULL;
    for (uint32_t at = set->root; at != NONE;) {
        mo_range_node *node = set->nodes + at;
        if (node->range.start + node->range.size > address) {
            found = &node->range;
            at = node->lower;
        } else {
            at = node->upper;
        }
    }
    return found;
}

mo_range *mo_ranges_find(const mo_ranges *set, uintptr_t start)
{
    mo_range *range = mo_ranges_after(set, start);
    return range != NULL && range->start == start ? range : NULL;
}

mo_range *mo_ranges_overlapping(const mo_ranges *set, uintptr_t start, uint64_t size)
{
    mo_range *range = mo_ranges_after(set, start);
    if (range == NULL)
        return NULL;
    return range->start <= start || range->start - start < size ? range : NULL;
}

int mo_ranges_cover(const mo_ranges *set, uintptr_t start, uint64_t size)
{
    uintptr_t end = start + size;
    while (start < end) {
        const mo_range *range = mo_ranges_after(set, start);
        if (range == NULL || range->start > start)
            return 0;
        start = range->start + range->size;
    }
    return 1;
}

void mo_ranges_subtract(mo_ranges *set, uintptr_t start, uint64_t size)
{
    uintptr_t end = start + size;
    mo_range *range;
    while ((range = mo_ranges_overlapping(set, start, size)) != NULL) {
        uintptr_t range_end = range->start + range->size;
        if (range->start < start) {
            void *value = range->value;
            range->size = start - range->start;
            if (range_end > end)
                (void)mo_ranges_insert(set, end, range_end - end, value);
        } else if (range_end > end) {
            range->size = range_end - end;
            range->start = end;
        } else {
            mo_ranges_remove(set, range);
        }
    }
}
