#include "allocator/blocks/block.h"

#include "base/checked.h"
#include "base/memory.h"
#include "base/precondition.h"

#include <string.h>

enum { CHUNK_BLOCKS = 128, FIRST_SLOTS = 256 };

typedef struct mo_slab_chunk {
    struct mo_slab_chunk *next;
    mo_block blocks[CHUNK_BLOCKS];
} mo_slab_chunk;

int mo_slab_refill(mo_slab *slab, uint64_t count)
{
    while (slab->unused_count < count) {
        mo_slab_chunk *chunk = mo_malloc(sizeof *chunk);
        if (chunk == NULL)
            return 0;
        chunk->next = slab->chunks;
        slab->chunks = chunk;
        for (size_t i = CHUNK_BLOCKS; i > 0; i--)
            mo_slab_return(slab, &chunk->blocks[i - 1]);
    }
    return 1;
}

mo_block *mo_slab_take(mo_slab *slab)
{
    mo_block *block = slab->unused;
    MO_PRE(slab->unused_count > 0);
    slab->unused = block->right;
    slab->unused_count--;
    memset((void *)block, 0, sizeof *block);
    return block;
}

void mo_slab_return(mo_slab *slab, mo_block *block)
{
    block->state = MO_BLOCK_FREE; /* the table may still lead to it */
    block->right = slab->unused;
    slab->unused = block;
    slab->unused_count++;
}

void mo_slab_move(mo_slab *from, mo_slab *to, uint64_t count)
{
    for (; count > 0 && from->unused_count > 0; count--) {
        mo_block *block = from->unused;
        from->unused = block->right;
        from->unused_count--;
        mo_slab_return(to, block);
    }
}

void mo_slab_end(mo_slab *slab)
{
    while (slab->chunks != NULL) {
        mo_slab_chunk *next = slab->chunks->next;
        mo_free(slab->chunks);
        slab->chunks = next;
    }
    memset(slab, 0, sizeof *slab);
}

mo_block *mo_block_split(mo_slab *slab, mo_block *block, uint64_t size)
{
    MO_PRE(0 < size && size < block->size);
    mo_block *rest = mo_slab_take(slab);
    rest->address = block->address + size;
    rest->size = block->size - size;
    rest->segment = block->segment;
    rest->freed_at = block->freed_at;
    rest->state = block->state;
    rest->mapped = block->mapped;
    rest->prev = block;
    rest->next = block->next;
    if (block->next != NULL)
        block->next->prev = rest;
    block->next = rest;
    block->size = size;
    return rest;
}

void mo_block_absorb_next(mo_slab *slab, mo_block *block)
{
    mo_block *next = block->next;
    block->size += next->size;
    block->freed_at = mo_max_u64(block->freed_at, next->freed_at);
    block->next = next->next;
    if (next->next != NULL)
        next->next->prev = block;
    mo_slab_return(slab, next);
}

/* --- the table ------------------------------------------------------------------------------- */

typedef struct mo_block_slot {
    _Atomic(const void *) address; /* NULL: nothing was entered here */
    _Atomic(mo_block *) block;
} mo_block_slot;

struct mo_block_slots {
    mo_block_slots *older;
    uint64_t mask;  /* their number, a power of two, less 1 */
    unsigned shift; /* 64 - log2 of their number */
    mo_block_slot slot[];
};

static uint64_t home_of(const mo_block_slots *slots, const void *address)
{
    return ((uint64_t)(uintptr_t)address / MO_BLOCK_UNIT * UINT64_C(0x9E3779B97F4A7C15)) >>
           slots->shift;
}

/* Pre: a slot is empty. */
static uint64_t enter(mo_block_slots *slots, mo_block *block)
{
    for (uint64_t i = home_of(slots, block->address);; i = (i + 1) & slots->mask) {
        mo_block_slot *slot = &slots->slot[i];
        const void *found = atomic_load_explicit(&slot->address, memory_order_relaxed);
        int taken = found == NULL && atomic_compare_exchange_strong(&slot->address, &found,
                                                                    (const void *)block->address);
        if (!taken && found != block->address)
            continue;
        if (atomic_load_explicit(&slot->block, memory_order_relaxed) != block)
            atomic_store_explicit(&slot->block, block, memory_order_release);
        return taken ? 1 : 0;
    }
}

uint64_t mo_block_table_enter(mo_block_table *table, mo_block *block)
{
    return enter(atomic_load_explicit(&table->slots, memory_order_relaxed), block);
}

mo_block *mo_block_table_look(const mo_block_table *table, const void *address)
{
    const mo_block_slots *slots = atomic_load_explicit(&table->slots, memory_order_acquire);
    if (slots == NULL || address == NULL)
        return NULL;
    uint64_t i = home_of(slots, address);
    for (uint64_t n = 0; n <= slots->mask; n++, i = (i + 1) & slots->mask) {
        const mo_block_slot *slot = &slots->slot[i];
        const void *found = atomic_load_explicit(&slot->address, memory_order_relaxed);
        if (found == address)
            return atomic_load_explicit(&slot->block, memory_order_acquire);
        if (found == NULL)
            return NULL;
    }
    return NULL;
}

static mo_block_slots *make_slots(uint64_t number)
{
    mo_block_slots *slots = mo_calloc(1, sizeof *slots + number * sizeof slots->slot[0]);
    if (slots == NULL)
        return NULL;
    slots->mask = number - 1;
    slots->shift = (unsigned)(64 - __builtin_ctzll(number));
    return slots;
}

static void clear(mo_block_slots *slots)
{
    for (uint64_t i = 0; i <= slots->mask; i++) {
        atomic_store_explicit(&slots->slot[i].address, NULL, memory_order_relaxed);
        atomic_store_explicit(&slots->slot[i].block, NULL, memory_order_relaxed);
    }
}

static void copy_live(const mo_block_slots *from, mo_block_slots *to)
{
    for (uint64_t i = 0; i <= from->mask; i++) {
        const void *address = atomic_load_explicit(&from->slot[i].address, memory_order_relaxed);
        mo_block *block = atomic_load_explicit(&from->slot[i].block, memory_order_relaxed);
        if (address != NULL && block->address == address && block->state == MO_BLOCK_LIVE)
            (void)enter(to, block);
    }
}

/* Slots that are all empty, in number at least 8/3 of the live blocks. */
static mo_block_slots *next_slots(mo_block_table *table, const mo_block_slots *now)
{
    uint64_t number = now == NULL ? FIRST_SLOTS : now->mask + 1;
    while (table->count >= number / 8 * 3)
        number *= 2;
    mo_block_slots *spare = table->spare;
    if (spare == NULL || spare->mask + 1 != number)
        return make_slots(number);
    table->spare = NULL;
    clear(spare);
    return spare;
}

/* Keeps slots that are not used any more: as the spare, if they are as many as those in use. */
static void put_aside(mo_block_table *table, mo_block_slots *slots, uint64_t mask)
{
    if (slots == NULL)
        return;
    if (slots->mask == mask) {
        table->spare = slots;
        return;
    }
    slots->older = table->older;
    table->older = slots;
}

int mo_block_table_make_room(mo_block_table *table)
{
    mo_block_slots *now = atomic_load_explicit(&table->slots, memory_order_relaxed);
    mo_block_slots *next = next_slots(table, now);
    if (next == NULL)
        return 0;
    if (now != NULL)
        copy_live(now, next);
    table->room = (next->mask + 1) / 4 * 3 - table->count;
    atomic_store_explicit(&table->slots, next, memory_order_release);
    if (table->spare != NULL) {
        mo_block_slots *spare = table->spare;
        table->spare = NULL;
        put_aside(table, spare, next->mask);
    }
    put_aside(table, now, next->mask);
    return 1;
}

static void discard(mo_block_slots *slots)
{
    while (slots != NULL) {
        mo_block_slots *older = slots->older;
        mo_free(slots);
        slots = older;
    }
}

void mo_block_table_end(mo_block_table *table)
{
    discard(table->older);
    discard(table->spare);
    discard(atomic_load_explicit(&table->slots, memory_order_relaxed));
    memset(table, 0, sizeof *table);
}
