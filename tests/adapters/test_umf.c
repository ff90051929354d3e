/* UMF's own library with our provider: directly, and below its disjoint pool. */
#include "adapters/memopt_umf.h"

#include "memopt/memopt.h"
#include "support/checks.h"
#include "support/unit.h"

#include <umf/memory_pool.h>
#include <umf/memory_provider.h>
#include <umf/pools/pool_disjoint.h>

#define DONE(call) assert_int_equal(call, UMF_RESULT_SUCCESS)

typedef struct world {
    memopt_device *device;
    memopt_allocator *allocator;
    umf_memory_provider_handle_t provider;
} world;

static uint64_t live(const world *w)
{
    uint64_t bytes;
    OK(memopt_allocator_get_stat(w->allocator, "allocated_bytes.all.current", &bytes));
    return bytes;
}

static int begin(void **state)
{
    static world w;
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    options.capacity = 64 * MIB;
    OK(memopt_device_open("cpu", &options, &w.device));
    OK(memopt_allocator_create(w.device, "expandable_segments:True", NULL, &w.allocator));
    memopt_umf_params params = {w.allocator, MEMOPT_TAG_WEIGHTS, NULL};
    DONE(umfMemoryProviderCreate(memopt_umf_provider_ops(), &params, &w.provider));
    *state = &w;
    return 0;
}

static int end(void **state)
{
    world *w = *state;
    DONE(umfMemoryProviderDestroy(w->provider));
    OK(memopt_allocator_destroy(w->allocator)); /* nothing is left in it */
    OK(memopt_device_close(w->device));
    return 0;
}

TEST_WITH(blocks_of_any_alignment, begin, end)
{
    world *w = *state;
    void *pointers[24];
    int count = 0;
    for (size_t alignment = 0; alignment <= 4 * MIB;
         alignment = alignment == 0 ? 1 : alignment * 2) {
        DONE(umfMemoryProviderAlloc(w->provider, 1000, alignment, &pointers[count]));
        assert_int_equal((uintptr_t)pointers[count] % (alignment == 0 ? 1 : alignment), 0);
        memset(pointers[count], count + 1, 1000);
        count++;
    }
    for (int i = 0; i < count; i++) {
        assert_int_equal(((unsigned char *)pointers[i])[999], i + 1);
        DONE(umfMemoryProviderFree(w->provider, pointers[i], 1000));
    }
    assert_int_equal(live(w), 0);
}

TEST_WITH(what_does_not_fit_is_told, begin, end)
{
    world *w = *state;
    void *pointer = NULL;
    const char *message = NULL;
    int32_t error;
    assert_int_equal(umfMemoryProviderAlloc(w->provider, 65 * MIB, 0, &pointer),
                     UMF_RESULT_ERROR_MEMORY_PROVIDER_SPECIFIC);
    umfMemoryProviderGetLastNativeError(w->provider, &message, &error);
    assert_non_null(strstr(message, "65.00 MiB asked for weights"));
    assert_int_equal(umfMemoryProviderAlloc(w->provider, 100, 3, &pointer),
                     UMF_RESULT_ERROR_INVALID_ALIGNMENT);
    assert_int_equal(umfMemoryProviderAlloc(w->provider, SIZE_MAX - 100, 4096, &pointer),
                     UMF_RESULT_ERROR_INVALID_ARGUMENT);
    assert_int_equal(live(w), 0);
}

TEST_WITH(a_pool_of_umf_on_it, begin, end)
{
    world *w = *state;
    umf_disjoint_pool_params_handle_t params;
    umf_memory_pool_handle_t pool;
    void *pointers[1000];
    DONE(umfDisjointPoolParamsCreate(&params));
    DONE(umfDisjointPoolParamsSetSlabMinSize(params, 64 << 10));
    DONE(umfDisjointPoolParamsSetMaxPoolableSize(params, MIB));
    DONE(umfDisjointPoolParamsSetCapacity(params, 4));
    DONE(umfDisjointPoolParamsSetMinBucketSize(params, 64));
    DONE(umfPoolCreate(umfDisjointPoolOps(), w->provider, params, 0, &pool));
    DONE(umfDisjointPoolParamsDestroy(params));
    for (size_t i = 0; i < 1000; i++) {
        pointers[i] = umfPoolMalloc(pool, 64 + i * 7);
        assert_non_null(pointers[i]);
        memset(pointers[i], (int)i, 64 + i * 7);
    }
    assert_in_range(live(w), 3500 * 1000, 8 * MIB);
    for (size_t i = 0; i < 1000; i++) {
        assert_int_equal(*(unsigned char *)pointers[i], i & 255);
        DONE(umfPoolFree(pool, pointers[i]));
    }
    DONE(umfPoolDestroy(pool));
    assert_int_equal(live(w), 0);
}
