/* UMF's own library with our provider: directly, and below its disjoint pool. */
#include "adapters/memopt_umf.h"

#include "unit/allocator/support.h"

#include <umf/memory_pool.h>
#include <umf/memory_provider.h>
#include <umf/pools/pool_disjoint.h>

#define DONE(call) assert_int_equal(call, UMF_RESULT_SUCCESS)

static umf_memory_provider_handle_t provider_of(memopt_allocator *allocator)
{
    memopt_umf_params params = {allocator, MEMOPT_TAG_WEIGHTS, NULL};
    umf_memory_provider_handle_t provider;
    DONE(umfMemoryProviderCreate(memopt_umf_provider_ops(), &params, &provider));
    return provider;
}

static uint64_t live(memopt_allocator *allocator)
{
    return stat_of(allocator, "allocated_bytes.all.current");
}

ALLOCATOR_TEST(blocks_of_any_alignment, allocator, eager(CAPACITY), EXPANDABLE)
{
    umf_memory_provider_handle_t provider = provider_of(allocator);
    void *pointers[24];
    int count = 0;
    for (size_t alignment = 0; alignment <= 4 * MIB;
         alignment = alignment == 0 ? 1 : alignment * 2) {
        DONE(umfMemoryProviderAlloc(provider, 1000, alignment, &pointers[count]));
        assert_int_equal((uintptr_t)pointers[count] % (alignment == 0 ? 1 : alignment), 0);
        memset(pointers[count], count + 1, 1000);
        count++;
    }
    for (int i = 0; i < count; i++) {
        assert_int_equal(((unsigned char *)pointers[i])[999], i + 1);
        DONE(umfMemoryProviderFree(provider, pointers[i], 1000));
    }
    assert_int_equal(live(allocator), 0);
    DONE(umfMemoryProviderDestroy(provider));
}

ALLOCATOR_TEST(what_does_not_fit_is_told, allocator, eager(CAPACITY), EXPANDABLE)
{
    umf_memory_provider_handle_t provider = provider_of(allocator);
    void *pointer = NULL;
    const char *message = NULL;
    int32_t error;
    assert_int_equal(umfMemoryProviderAlloc(provider, 65 * MIB, 0, &pointer),
                     UMF_RESULT_ERROR_MEMORY_PROVIDER_SPECIFIC);
    umfMemoryProviderGetLastNativeError(provider, &message, &error);
    assert_non_null(strstr(message, "65.00 MiB asked for weights"));
    assert_int_equal(umfMemoryProviderAlloc(provider, 100, 3, &pointer),
                     UMF_RESULT_ERROR_INVALID_ALIGNMENT);
    assert_int_equal(umfMemoryProviderAlloc(provider, SIZE_MAX - 100, 4096, &pointer),
                     UMF_RESULT_ERROR_INVALID_ARGUMENT);
    assert_int_equal(live(allocator), 0);
    DONE(umfMemoryProviderDestroy(provider));
}

ALLOCATOR_TEST(a_pool_of_umf_on_it, allocator, eager(CAPACITY), EXPANDABLE)
{
    umf_memory_provider_handle_t provider = provider_of(allocator);
    umf_disjoint_pool_params_handle_t params;
    umf_memory_pool_handle_t pool;
    void *pointers[1000];
    DONE(umfDisjointPoolParamsCreate(&params));
    DONE(umfDisjointPoolParamsSetSlabMinSize(params, 64 << 10));
    DONE(umfDisjointPoolParamsSetMaxPoolableSize(params, MIB));
    DONE(umfDisjointPoolParamsSetCapacity(params, 4));
    DONE(umfDisjointPoolParamsSetMinBucketSize(params, 64));
    DONE(umfPoolCreate(umfDisjointPoolOps(), provider, params, 0, &pool));
    DONE(umfDisjointPoolParamsDestroy(params));
    for (size_t i = 0; i < 1000; i++) {
        pointers[i] = umfPoolMalloc(pool, 64 + i * 7);
        assert_non_null(pointers[i]);
        memset(pointers[i], (int)i, 64 + i * 7);
    }
    assert_in_range(live(allocator), 3500 * 1000, 8 * MIB);
    for (size_t i = 0; i < 1000; i++) {
        assert_int_equal(*(unsigned char *)pointers[i], i & 255);
        DONE(umfPoolFree(pool, pointers[i]));
    }
    DONE(umfPoolDestroy(pool));
    assert_int_equal(live(allocator), 0);
    DONE(umfMemoryProviderDestroy(provider));
}
