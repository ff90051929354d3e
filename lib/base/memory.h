/*
 * Host bookkeeping memory: the only place of the library that calls malloc and free.
 *
 * Every allocation is a fault point: tests make the n-th one fail. mo_malloc and friends set the
 * last error themselves (OUT_OF_HOST_MEMORY with the size asked), so a caller that gets NULL only
 * returns MEMOPT_OUT_OF_HOST_MEMORY.
 */
#ifndef MO_BASE_MEMORY_H
#define MO_BASE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

void *mo_malloc(uint64_t size);
void *mo_calloc(uint64_t count, uint64_t size);
/* On failure the old block is unchanged. */
void *mo_realloc(void *block, uint64_t size);
void mo_free(void *block);
char *mo_strdup(const char *text);

/* Grows *array to hold at least `needed` elements; *capacity is updated. 1 on success, else 0. */
int mo_grow(void **array, uint64_t *capacity, uint64_t needed, uint64_t element_size);

/* --- for tests --------------------------------------------------------------------------- */

/* Makes the n-th allocation from now fail once (n = 1 is the next); 0 turns faults off. With
 * MEMOPT_TEST_HOOKS only. */
void mo_memory_fail_at(int64_t n);
/* True once the armed fault has occurred (and is off again). With MEMOPT_TEST_HOOKS only. */
int mo_memory_fault_struck(void);
/* Blocks that are allocated and not yet freed. */
int64_t mo_memory_live_blocks(void);

#endif
