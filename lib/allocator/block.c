#include "allocator/block.h"

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
    memset(block, 0, sizeof *block);
    return block;
}

void mo_slab_return(mo_slab *slab, mo_block *block)
{
    block->right = slab->unused;
    slab->unused = block;
    slab->unused_count++;
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

static uint64_t home_slot(const mo_block_table *table, const void *address)
{
    return ((uint64_t)(uintptr_t)address / MO_BLOCK_UNIT * UINT64_C(0x9E3779B97F4A7C15)) >>
           table->shift;
}

int mo_block_table_grow(mo_block_table *table)
{
    uint64_t capacity = table->capacity ? table->capacity * 2 : FIRST_SLOTS;
    struct mo_block_table_slot *slots = mo_calloc(capacity, sizeof *slots);
    if (slots == NULL)
        return 0;
    mo_block_table grown = {slots, capacity, 0, 0};
    grown.shift = (unsigned)(64 - __builtin_ctzll(capacity));
    for (uint64_t i = 0; i < table->capacity; i++)
        if (table->slots[i].address != NULL)
            mo_block_table_insert(&grown, table->slots[i].block);
    mo_free(table->slots);
    *table = grown;
    return 1;
}

void mo_block_table_insert(mo_block_table *table, mo_block *block)
{
    uint64_t mask = table->capacity - 1;
    uint64_t i = home_slot(table, block->address);
    MO_PRE(table->count * 2 < table->capacity);
    while (table->slots[i].address != NULL)
        i = (i + 1) & mask;
    table->slots[i].address = block->address;
    table->slots[i].block = block;
    table->count++;
}

static uint64_t slot_of(const mo_block_table *table, const void *address)
{
    uint64_t mask = table->capacity - 1;
    uint64_t i = home_slot(table, address);
    while (table->slots[i].address != NULL && table->slots[i].address != address)
        i = (i + 1) & mask;
    return i;
}

mo_block *mo_block_table_find(const mo_block_table *table, const void *address)
{
    if (table->capacity == 0 || address == NULL)
        return NULL;
    return table->slots[slot_of(table, address)].block;
}

void mo_block_table_remove(mo_block_table *table, const void *address)
{
    uint64_t mask = table->capacity - 1;
    uint64_t hole = slot_of(table, address);
    /* Entries behind the hole whose home is not between the hole and themselves move into it. */
    for (uint64_t i = (hole + 1) & mask; table->slots[i].address != NULL; i = (i + 1) & mask) {
        uint64_t home = home_slot(table, table->slots[i].address);
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            table->slots[hole] = table->slots[i];
            hole = i;
        }
    }
    table->slots[hole].address = NULL;
    table->slots[hole].block = NULL;
    table->count--;
}

void mo_block_table_end(mo_block_table *table)
{
    mo_free(table->slots);
    memset(table, 0, sizeof *table);
}
