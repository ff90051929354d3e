#include "device/front/ranges.h"

#include "base/memory.h"
#include "base/precondition.h"

#include <string.h>

enum { FIRST_ROOM = 16 };

int mo_ranges_init(mo_ranges *set)
{
    *set = (mo_ranges){0};
    return mo_grow((void **)&set->items, &set->capacity, FIRST_ROOM, sizeof(mo_range));
}

void mo_ranges_fini(mo_ranges *set)
{
    mo_free(set->items);
    *set = (mo_ranges){0};
}

int mo_ranges_reserve(mo_ranges *set, uint64_t count)
{
    return mo_grow((void **)&set->items, &set->capacity, count, sizeof(mo_range));
}

/* Index of the first range that ends after `address`. */
static uint64_t first_after(const mo_ranges *set, uintptr_t address)
{
    uint64_t low = 0, high = set->count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (set->items[middle].start + set->items[middle].size > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

int mo_ranges_insert(mo_ranges *set, uintptr_t start, uint64_t size, void *value)
{
    uint64_t at = first_after(set, start);
    MO_PRE(size > 0 && mo_ranges_overlapping(set, start, size) == NULL);
    if (!mo_grow((void **)&set->items, &set->capacity, set->count + 1, sizeof(mo_range)))
        return 0;
    memmove(set->items + at + 1, set->items + at, (set->count - at) * sizeof(mo_range));
    set->items[at] = (mo_range){start, size, value};
    set->count++;
    return 1;
}

void mo_ranges_remove(mo_ranges *set, mo_range *range)
{
    uint64_t at = (uint64_t)(range - set->items);
    memmove(range, range + 1, (set->count - at - 1) * sizeof(mo_range));
    set->count--;
}

mo_range *mo_ranges_find(const mo_ranges *set, uintptr_t start)
{
    uint64_t at = first_after(set, start);
    return at < set->count && set->items[at].start == start ? set->items + at : NULL;
}

mo_range *mo_ranges_overlapping(const mo_ranges *set, uintptr_t start, uint64_t size)
{
    uint64_t at = first_after(set, start);
    if (at == set->count)
        return NULL;
    mo_range *range = set->items + at;
    return range->start <= start || range->start - start < size ? range : NULL;
}

int mo_ranges_cover(const mo_ranges *set, uintptr_t start, uint64_t size)
{
    uintptr_t end = start + size;
    for (uint64_t at = first_after(set, start); start < end; at++) {
        if (at == set->count || set->items[at].start > start)
            return 0;
        start = set->items[at].start + set->items[at].size;
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
