#include "base/memory.h"

#include "base/checked.h"
#include "base/error.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_int_fast64_t live_blocks;

#ifdef MEMOPT_TEST_HOOKS
static atomic_int_fast64_t fault_countdown; /* 0: no fault armed */
static atomic_int fault_struck;

/* True if this allocation is the one that a test wants to fail. */
static int fault_now(void)
{
    if (atomic_load_explicit(&fault_countdown, memory_order_relaxed) == 0)
        return 0;
    if (atomic_fetch_sub(&fault_countdown, 1) != 1)
        return 0;
    atomic_store(&fault_struck, 1);
    return 1;
}

void mo_memory_fail_at(int64_t n)
{
    atomic_store(&fault_struck, 0);
    atomic_store(&fault_countdown, n);
}

int mo_memory_fault_struck(void)
{
    return atomic_load(&fault_struck);
}
#else
static int fault_now(void)
{
    return 0;
}
#endif

static void *account(void *block, uint64_t size)
{
    if (block == NULL) {
        mo_fail(MEMOPT_OUT_OF_HOST_MEMORY, "host: %" PRIu64 " bytes of bookkeeping memory refused",
                size);
        return NULL;
    }
    atomic_fetch_add_explicit(&live_blocks, 1, memory_order_relaxed);
    return block;
}

void *mo_malloc(uint64_t size)
{
    int fits = size <= PTRDIFF_MAX && !fault_now();
    return account(fits ? malloc(size ? (size_t)size : 1) : NULL, size);
}

void *mo_calloc(uint64_t count, uint64_t size)
{
    uint64_t total;
    if (!mo_mul_u64(count, size, &total))
        total = UINT64_MAX;
    int fits = total <= PTRDIFF_MAX && !fault_now();
    return account(fits ? calloc(1, total ? (size_t)total : 1) : NULL, total);
}

void *mo_realloc(void *block, uint64_t size)
{
    if (block == NULL)
        return mo_malloc(size);
    void *grown =
        size <= PTRDIFF_MAX && !fault_now() ? realloc(block, size ? (size_t)size : 1) : NULL;
    if (grown == NULL)
        mo_fail(MEMOPT_OUT_OF_HOST_MEMORY, "host: %" PRIu64 " bytes of bookkeeping memory refused",
                size);
    return grown;
}

void mo_free(void *block)
{
    if (block == NULL)
        return;
    atomic_fetch_sub_explicit(&live_blocks, 1, memory_order_relaxed);
    free(block);
}

char *mo_strdup(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = mo_malloc(size);
    if (copy != NULL)
        memcpy(copy, text, size);
    return copy;
}

int mo_grow(void **array, uint64_t *capacity, uint64_t needed, uint64_t element_size)
{
    uint64_t wanted, bytes;
    if (needed <= *capacity)
        return 1;
    wanted = mo_max_u64(needed, *capacity + *capacity / 2);
    if (!mo_mul_u64(mo_max_u64(wanted, 8), element_size, &bytes))
        bytes = UINT64_MAX;
    void *grown = mo_realloc(*array, bytes);
    if (grown == NULL)
        return 0;
    *array = grown;
    *capacity = mo_max_u64(wanted, 8);
    return 1;
}

int64_t mo_memory_live_blocks(void)
{
    return atomic_load(&live_blocks);
}
