/* The free space of a file; see extents.h. */
#include "offload/extents.h"

#include "base/checked.h"
#include "base/memory.h"

#include <string.h>

/* The smallest free extent of at least `bytes`, the first of equal ones; count if there is none. */
static uint64_t best_fit(const mo_extents *extents, uint64_t bytes)
{
    uint64_t best = extents->count;
    for (uint64_t i = 0; i < extents->count; i++) {
        uint64_t size = extents->items[i].bytes;
        if (size < bytes || (best < extents->count && size >= extents->items[best].bytes))
            continue;
        best = i;
        if (size == bytes)
            break;
    }
    return best;
}

static void remove_at(mo_extents *extents, uint64_t at)
{
    extents->count--;
    memmove(extents->items + at, extents->items + at + 1,
            (extents->count - at) * sizeof *extents->items);
}

memopt_status mo_extents_take(mo_extents *extents, uint64_t bytes, uint64_t *out_offset)
{
    if (!mo_grow((void **)&extents->items, &extents->capacity, extents->in_use + 2,
                 sizeof *extents->items))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    uint64_t at = best_fit(extents, bytes);
    if (at < extents->count) {
        mo_extent *extent = &extents->items[at];
        *out_offset = extent->offset;
        extent->offset += bytes;
        extent->bytes -= bytes;
        if (extent->bytes == 0)
            remove_at(extents, at);
    } else {
        if (bytes > extents->limit || extents->end > extents->limit - bytes)
            return MEMOPT_LIMIT_REACHED;
        *out_offset = extents->end;
        extents->end += bytes;
    }
    extents->in_use++;
    extents->used += bytes;
    extents->used_peak = mo_max_u64(extents->used_peak, extents->used);
    return MEMOPT_OK;
}

void mo_extents_give(mo_extents *extents, uint64_t offset, uint64_t bytes)
{
    uint64_t at = 0, high = extents->count;
    while (at < high) {
        uint64_t middle = at + (high - at) / 2;
        if (extents->items[middle].offset < offset)
            at = middle + 1;
        else
            high = middle;
    }
    extents->in_use--;
    extents->used -= bytes;
    mo_extent whole = {offset, bytes};
    if (at < extents->count && extents->items[at].offset == offset + bytes) {
        whole.bytes += extents->items[at].bytes;
        remove_at(extents, at);
    }
    if (at > 0 && extents->items[at - 1].offset + extents->items[at - 1].bytes == offset) {
        at--;
        whole.offset = extents->items[at].offset;
        whole.bytes += extents->items[at].bytes;
        remove_at(extents, at);
    }
    if (whole.offset + whole.bytes == extents->end) {
        extents->end = whole.offset;
        return;
    }
    memmove(extents->items + at + 1, extents->items + at,
            (extents->count - at) * sizeof *extents->items);
    extents->items[at] = whole;
    extents->count++;
}

void mo_extents_close(mo_extents *extents)
{
    mo_free(extents->items);
    memset(extents, 0, sizeof *extents);
}
