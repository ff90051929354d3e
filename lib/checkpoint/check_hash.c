/*
 * The content check by hash: one 64-bit hash per 4 KiB (kernels/hash/hash.h), in device memory,
 * computed and compared in stream order. The host reads the result once, at the end of a recompute
 * run.
 *
 * The hashes of the forward run stay until the next forward run takes their place, since a region
 * may be recomputed more than once.
 */
#include "checkpoint/region.h"

#include "base/checked.h"
#include "device/device.h"
#include "kernels/hash/hash.h"

enum { VERDICT_WORDS = 2 };

memopt_status mo_check_hash_drop(memopt_region *region, mo_check *check)
{
    MO_TRY(memopt_allocator_free(region->allocator, check->hashes));
    check->hashes = NULL;
    check->granules = 0;
    return MEMOPT_OK;
}

memopt_status mo_check_hash_drop_verdict(memopt_region *region)
{
    MO_TRY(memopt_allocator_free(region->allocator, region->verdict));
    region->verdict = NULL;
    return MEMOPT_OK;
}

static memopt_status alloc_words(memopt_region *region, uint64_t words, uint64_t **out_words)
{
    void *pointer = NULL;
    MO_TRY(memopt_allocator_alloc(region->allocator, words * sizeof(uint64_t),
                                  MEMOPT_TAG_ACTIVATIONS, region->stream, &pointer));
    *out_words = pointer;
    return MEMOPT_OK;
}

static memopt_status hash(memopt_region *region, const void *data, uint64_t bytes, uint64_t *hashes)
{
    mo_hash_granules_args args = {data, hashes, bytes};
    mo_reads(region->device, region->stream, "region check", data, bytes);
    mo_writes(region->device, region->stream, "region check", hashes,
              mo_ceil_div_u64(bytes, MO_HASH_GRANULE) * sizeof *hashes);
    return mo_launch(region->device, region->stream, &mo_kernel_hash_granules, &args,
                     mo_ceil_div_u64(bytes, MO_HASH_GRANULE));
}

memopt_status mo_check_hash_first(memopt_region *region, mo_check *check, const void *data)
{
    uint64_t granules = mo_ceil_div_u64(check->bytes, MO_HASH_GRANULE);
    if (check->granules != granules || check->stream != region->stream) {
        MO_TRY(mo_check_hash_drop(region, check));
        MO_TRY(alloc_words(region, granules, &check->hashes));
        check->granules = granules;
        check->stream = region->stream;
    }
    /* The handle may belong to a new stream; the allocator knows which one it recorded. */
    MO_TRY(memopt_allocator_record_stream(region->allocator, check->hashes, region->stream));
    return hash(region, data, check->bytes, check->hashes);
}

/* The verdict begins as "no difference": all bits set. */
static memopt_status ensure_verdict(memopt_region *region)
{
    if (region->verdict != NULL)
        return MEMOPT_OK;
    uint64_t *verdict = NULL;
    MO_TRY(alloc_words(region, VERDICT_WORDS, &verdict));
    region->verdict = verdict;
    memopt_status status =
        memopt_fill(region->device, verdict, 0xFF, sizeof region->found, region->stream);
    if (status != MEMOPT_OK)
        (void)mo_check_hash_drop_verdict(region);
    return status;
}

memopt_status mo_check_hash_again(memopt_region *region, mo_check *check, const void *data)
{
    uint64_t *again = NULL;
    MO_TRY(ensure_verdict(region));
    MO_TRY(memopt_allocator_record_stream(region->allocator, check->hashes, region->stream));
    MO_TRY(alloc_words(region, check->granules, &again));
    memopt_status status = hash(region, data, check->bytes, again);
    if (status == MEMOPT_OK) {
        mo_hash_compare_args args = {check->hashes, again, region->verdict, check->granules,
                                     region->check_next};
        mo_reads(region->device, region->stream, "region check", check->hashes,
                 check->granules * sizeof *again);
        mo_writes(region->device, region->stream, "region check", region->verdict,
                  VERDICT_WORDS * sizeof *region->verdict);
        status = mo_launch(region->device, region->stream, &mo_kernel_hash_compare, &args, 1);
    }
    mo_keep_first(&status, memopt_allocator_free(region->allocator, again));
    return status;
}

static memopt_status tell_difference(memopt_region *region)
{
    const mo_check *check = &region->checks[region->found[0]];
    uint64_t begin = region->found[1] * MO_HASH_GRANULE;
    uint64_t end = mo_min_u64(begin + MO_HASH_GRANULE, check->bytes);
    return mo_region_mismatch(region,
                              "checkpoint: region '%s': recomputed value '%s' differs from the "
                              "first run in bytes %llu to %llu of %llu; is a random state not "
                              "restored, an input changed, or an operation not deterministic? "
                              "MEMOPT_CHECK_EXACT names the byte",
                              region->name, check->name, (unsigned long long)begin,
                              (unsigned long long)end - 1, (unsigned long long)check->bytes);
}

memopt_status mo_check_hash_verdict(memopt_region *region)
{
    if (region->verdict == NULL) /* only empty values were declared */
        return MEMOPT_OK;
    MO_TRY(memopt_copy(region->device, region->found, region->verdict, sizeof region->found,
                       region->stream));
    MO_TRY(mo_region_settle_mark(region));
    MO_TRY(mo_region_settle_wait(region));
    return region->found[0] == UINT64_MAX ? MEMOPT_OK : tell_difference(region);
}
