/*
 * What tools of a framework ask for: the memory around a block, the id of a pool, and who is told
 * when memory runs out.
 */
#include "pluggable/pluggable.h"

#include "base/error.h"
#include "base/lock.h"

static _Atomic(memopt_pluggable_observer) observer_function;

/* --- the memory around a block ---------------------------------------------------------------- */

static memopt_allocator *owner_in(mo_plug_slot *slot, const void *pointer)
{
    memopt_allocator *found = atomic_load_explicit(&slot->first, memory_order_acquire);
    if (found == NULL || mo_allocator_owns(found, pointer))
        return found;
    mo_lock(&mo_plug_lock);
    mo_graph_pool *pool = slot->pools;
    while (pool != NULL && !mo_allocator_owns(pool->allocator, pointer))
        pool = pool->next;
    found = pool == NULL ? NULL : pool->allocator;
    mo_unlock(&mo_plug_lock);
    return found;
}

/* A contiguous range of mapped memory of one segment; `pointer` is in it, or it is not there yet.
 */
typedef struct range {
    const char *pointer;
    const void *segment;
    char *first, *end;
    int holds;
} range;

static memopt_status visit(void *user, const memopt_block_info *block)
{
    range *seen = user;
    int mapped = block->state != MEMOPT_BLOCK_UNMAPPED;
    if (mapped && block->segment_address == seen->segment && block->address == seen->end) {
        seen->end += block->bytes;
    } else if (seen->holds) {
        return MEMOPT_STATUS_USER; /* the range has ended */
    } else {
        seen->segment = mapped ? block->segment_address : NULL;
        seen->first = block->address;
        seen->end = seen->first + block->bytes;
    }
    if (block->address == seen->pointer)
        seen->holds = 1;
    return MEMOPT_OK;
}

void *memopt_pluggable_base_alloc(void *pointer, uint64_t *out_bytes)
{
    for (int i = 0; i < MO_PLUG_DEVICES; i++) {
        range seen = {pointer, NULL, NULL, NULL, 0};
        memopt_allocator *owner = owner_in(&mo_plug_slots[i], pointer);
        if (owner == NULL)
            continue;
        memopt_allocator_snapshot(owner, visit, &seen);
        if (!seen.holds)
            continue;
        if (out_bytes != NULL)
            *out_bytes = (uint64_t)(seen.end - seen.first);
        return seen.first;
    }
    mo_fail(MEMOPT_INVALID_ARGUMENT, "pluggable_base_alloc: %p is not a live block", pointer);
    return NULL;
}

/* --- pools ------------------------------------------------------------------------------------ */

memopt_status memopt_pluggable_get_pool(int32_t device, uint64_t index, uint64_t *out_high,
                                        uint64_t *out_low)
{
    if (device < 0 || device >= MO_PLUG_DEVICES || out_high == NULL || out_low == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "pluggable_get_pool: device is %d of 0 to %d, out_high is %s, out_low is %s",
                       device, MO_PLUG_DEVICES - 1, out_high == NULL ? "NULL" : "given",
                       out_low == NULL ? "NULL" : "given");
    mo_lock(&mo_plug_lock);
    mo_graph_pool *pool = index == 0 ? NULL : mo_plug_slots[device].pools;
    for (uint64_t i = 1; i < index && pool != NULL; i++)
        pool = pool->next;
    int found = pool != NULL || index == 0;
    if (found) {
        *out_high = pool == NULL ? 0 : pool->id[0];
        *out_low = pool == NULL ? 0 : pool->id[1];
    }
    mo_unlock(&mo_plug_lock);
    return found ? MEMOPT_OK
                 : mo_fail(MEMOPT_NOT_FOUND,
                           "pluggable_get_pool: device %d has no allocator with index %llu", device,
                           (unsigned long long)index);
}

/* --- out of memory ---------------------------------------------------------------------------- */

void memopt_pluggable_observe(memopt_pluggable_observer observer)
{
    atomic_store(&observer_function, observer);
}

void mo_plug_observed(int32_t device, uint64_t asked)
{
    memopt_pluggable_observer observer = atomic_load(&observer_function);
    memopt_memory_info memory = MEMOPT_MEMORY_INFO_INIT;
    mo_plug_slot *slot;
    uint64_t allocated = 0;
    if (observer == NULL || mo_plug_enter(device, &slot) != MEMOPT_OK)
        return;
    memopt_allocator_get_stat(slot->first, "allocated_bytes.all.current", &allocated);
    memopt_device_get_memory_info(mo_allocator_device(slot->first), &memory);
    observer(device, asked, allocated, memory.free);
}
