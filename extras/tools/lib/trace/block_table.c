#include "trace/block_table.h"

#include "base/checked.h"
#include "base/memory.h"
#include "base/precondition.h"

enum { LEAST_ROOM = 256 };

static uint64_t place(uint64_t key, uint64_t room)
{
    key *= UINT64_C(0x9E3779B97F4A7C15);
    return (key ^ key >> 32) & (room - 1);
}

mo_trace_entry *mo_trace_table_find(const mo_trace_table *table, uint64_t key)
{
    uint64_t i = place(key, table->room);
    MO_PRE(table->count < table->room);
    while (table->entries[i].state != MO_TRACE_UNUSED && table->entries[i].key != key)
        i = (i + 1) & (table->room - 1);
    return &table->entries[i];
}

void mo_trace_table_take(mo_trace_table *table, mo_trace_entry *entry, uint64_t key)
{
    entry->key = key;
    table->count++;
}

int mo_trace_table_reserve(mo_trace_table *table, uint64_t more)
{
    mo_trace_table grown = {.count = table->count};
    uint64_t needed, room = mo_max_u64(table->room, LEAST_ROOM);
    if (!mo_add_u64(table->count, more, &needed))
        needed = UINT64_MAX;
    while (room / 2 < needed && room <= UINT64_MAX / 2)
        room *= 2;
    if (room == table->room)
        return 1;
    grown.room = room;
    grown.entries = mo_calloc(room, sizeof *grown.entries);
    if (grown.entries == NULL)
        return 0;
    for (uint64_t i = 0; i < table->room; i++)
        if (table->entries[i].state != MO_TRACE_UNUSED)
            *mo_trace_table_find(&grown, table->entries[i].key) = table->entries[i];
    mo_free(table->entries);
    *table = grown;
    return 1;
}
