/*
 * What a trace knows by a 64-bit key: its blocks by id, its streams by number. Open addressing with
 * linear probing; nothing is removed, because a freed block must differ from an unknown one. At
 * most half of the slots are in use.
 */
#ifndef MO_ALLOCATOR_TRACE_TABLE_H
#define MO_ALLOCATOR_TRACE_TABLE_H

#include <stdint.h>

typedef enum mo_trace_state {
    MO_TRACE_UNUSED, /* the slot of a key that is not in the table */
    MO_TRACE_LIVE,
    MO_TRACE_EMPTY, /* allocated with no bytes */
    MO_TRACE_FREED
} mo_trace_state;

typedef struct mo_trace_entry {
    uint64_t key;
    uint64_t bytes;
    uint32_t number; /* of the block, or of the stream */
    uint32_t stream; /* number of the block's stream */
    mo_trace_state state;
} mo_trace_entry;

typedef struct mo_trace_table {
    mo_trace_entry *entries;
    uint64_t room; /* a power of two; 0 before the first reservation */
    uint64_t count;
} mo_trace_table;

/* Makes room for `more` new keys. 1 on success, else 0 with the error set and nothing changed. */
int mo_trace_table_reserve(mo_trace_table *table, uint64_t more);
/* The key's entry, or the unused one where it would be. Room for one new key was reserved. */
mo_trace_entry *mo_trace_table_find(const mo_trace_table *table, uint64_t key);
/* Takes the unused entry that find gave for its key. */
void mo_trace_table_take(mo_trace_table *table, mo_trace_entry *entry, uint64_t key);

#endif
