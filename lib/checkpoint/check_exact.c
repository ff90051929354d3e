/*
 * The exact content check: the forward run copies every declared value to page-locked host memory;
 * the recompute run copies it again, waits, and compares byte by byte. To find the cause of a
 * mismatch; it costs time, and host memory of the size of the values.
 *
 * A difference does not stop the callback: the first one is recorded and reported at the end.
 */
#include "checkpoint/region.h"

#include <string.h>

/* Makes *buffer hold `bytes`; nothing may use the old one any more when it is freed. */
static memopt_status ensure_buffer(memopt_region *region, void **buffer, uint64_t *capacity,
                                   uint64_t bytes)
{
    if (*capacity >= bytes)
        return MEMOPT_OK;
    MO_TRY(mo_region_settle_wait(region));
    void *grown = NULL;
    MO_TRY(memopt_host_alloc(region->device, bytes, &grown));
    (void)memopt_host_free(region->device, *buffer);
    *buffer = grown;
    *capacity = bytes;
    return MEMOPT_OK;
}

memopt_status mo_check_exact_first(memopt_region *region, mo_check *check, const void *data)
{
    MO_TRY(ensure_buffer(region, &check->copy, &check->copy_bytes, check->bytes));
    return memopt_copy(region->device, check->copy, data, check->bytes, region->stream);
}

static void compare(memopt_region *region, const mo_check *check)
{
    const unsigned char *first = check->copy, *again = region->scratch;
    if (memcmp(first, again, check->bytes) == 0)
        return;
    uint64_t at = 0;
    while (first[at] == again[at])
        at++;
    (void)mo_region_mismatch(
        region,
        "checkpoint: region '%s': recomputed value '%s' differs from the first "
        "run at byte %llu of %llu: 0x%02x was 0x%02x; is a random state not "
        "restored, an input changed, or an operation not deterministic?",
        region->name, check->name, (unsigned long long)at, (unsigned long long)check->bytes,
        again[at], first[at]);
}

memopt_status mo_check_exact_again(memopt_region *region, mo_check *check, const void *data)
{
    MO_TRY(ensure_buffer(region, &region->scratch, &region->scratch_bytes, check->bytes));
    MO_TRY(memopt_copy(region->device, region->scratch, data, check->bytes, region->stream));
    MO_TRY(mo_region_settle_mark(region));
    MO_TRY(mo_region_settle_wait(region));
    compare(region, check);
    return MEMOPT_OK;
}
