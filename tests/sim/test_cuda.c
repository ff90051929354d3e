/*
 * The simulated libcuda against its promises: it takes what the driver takes, refuses what the
 * driver refuses with the same code, and tells what the driver would let pass.
 */
#include "entry_points.h"
#include "test_kernels.h"

typedef uint64_t ptr;

/* Every entry point that is used here, and the control symbols. */
#define FUNCTIONS(F)                                                                               \
    F(int, cuInit, (unsigned))                                                                     \
    F(int, cuDevicePrimaryCtxRetain, (handle *, int))                                              \
    F(int, cuDevicePrimaryCtxRelease_v2, (int))                                                    \
    F(int, cuCtxSetCurrent, (handle))                                                              \
    F(int, cuDeviceCanAccessPeer, (int *, int, int))                                               \
    F(int, cuCtxSynchronize, (void))                                                               \
    F(int, cuMemAlloc_v2, (ptr *, size_t))                                                         \
    F(int, cuMemFree_v2, (ptr))                                                                    \
    F(int, cuMemGetAllocationGranularity, (size_t *, const allocation *, int))                     \
    F(int, cuMemAddressReserve, (ptr *, size_t, size_t, ptr, unsigned long long))                  \
    F(int, cuMemAddressFree, (ptr, size_t))                                                        \
    F(int, cuMemCreate, (ptr *, size_t, const allocation *, unsigned long long))                   \
    F(int, cuMemMap, (ptr, size_t, size_t, ptr, unsigned long long))                               \
    F(int, cuMemSetAccess, (ptr, size_t, const access *, size_t))                                  \
    F(int, cuMemUnmap, (ptr, size_t))                                                              \
    F(int, cuMemRelease, (ptr))                                                                    \
    F(int, cuMemHostAlloc, (void **, size_t, unsigned))                                            \
    F(int, cuMemFreeHost, (void *))                                                                \
    F(int, cuMemHostRegister_v2, (void *, size_t, unsigned))                                       \
    F(int, cuMemHostUnregister, (void *))                                                          \
    F(int, cuStreamCreate, (handle *, unsigned))                                                   \
    F(int, cuStreamDestroy_v2, (handle))                                                           \
    F(int, cuStreamSynchronize, (handle))                                                          \
    F(int, cuStreamWaitEvent, (handle, handle, unsigned))                                          \
    F(int, cuEventQuery, (handle))                                                                 \
    F(int, cuStreamQuery, (handle))                                                                \
    F(int, cuLaunchHostFunc, (handle, void (*)(void *), void *))                                   \
    F(int, cuEventCreate, (handle *, unsigned))                                                    \
    F(int, cuEventDestroy_v2, (handle))                                                            \
    F(int, cuEventRecord, (handle, handle))                                                        \
    F(int, cuMemcpyAsync, (ptr, ptr, size_t, handle))                                              \
    F(int, cuMemsetD8Async, (ptr, unsigned char, size_t, handle))                                  \
    F(int, cuModuleLoadData, (handle *, const void *))                                             \
    F(int, cuModuleGetFunction, (handle *, handle, const char *))                                  \
    F(int, cuLaunchKernel,                                                                         \
      (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle,       \
       void **, void **))                                                                          \
    F(int, cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *))                     \
    F(void, memopt_sim_lag, (uint64_t))                                                            \
    F(void, memopt_sim_advance, (uint64_t))                                                        \
    F(uint32_t, memopt_sim_violations, (void))                                                     \
    F(int, memopt_sim_take_violation, (char *, uint64_t))                                          \
    F(uint64_t, memopt_sim_used, (int32_t))

FUNCTIONS(DECLARE)

static handle context;
static const allocation device_memory = {1, 0, 1, 0, NULL, {0}};
static const access read_write = {1, 0, 3};

static void load(void)
{
    void *library = open_library("libcuda.so.1");
    FUNCTIONS(FIND)
}

static int setup(void **state)
{
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    return 0;
}

static int teardown(void **state)
{
    assert_int_equal(memopt_sim_violations(), 0);
    OK(cuCtxSetCurrent(NULL));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    assert_int_equal(memopt_sim_used(0), 0);
    return 0;
}

static void expect_violation(const char *words)
{
    char text[4096];
    assert_int_equal(memopt_sim_take_violation(text, sizeof text), 1);
    if (strstr(text, words) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", words, text);
}

static handle new_stream(void)
{
    handle stream = NULL;
    OK(cuStreamCreate(&stream, 1));
    return stream;
}

static ptr allocate(size_t bytes)
{
    ptr p = 0;
    OK(cuMemAlloc_v2(&p, bytes));
    return p;
}

/* --- memory -------------------------------------------------------------------------------- */

TEST_WITH(virtual_memory_is_strict, setup, teardown)
{
    size_t granule = 0;
    ptr address = 0, first = 0, second = 0;
    char byte = 5;
    handle stream = new_stream();
    OK(cuMemGetAllocationGranularity(&granule, &device_memory, 0));
    assert_int_equal(cuMemAddressReserve(&address, granule + 1, 0, 0, 0), 1);
    OK(cuMemAddressReserve(&address, 4 * granule, 0, 0, 0));
    assert_int_equal(cuMemCreate(&first, granule / 2, &device_memory, 0), 1);
    OK(cuMemCreate(&first, granule, &device_memory, 0));
    OK(cuMemCreate(&second, granule, &device_memory, 0));
    assert_int_equal(cuMemMap(address + granule / 2, granule, 0, first, 0), 1);
    assert_int_equal(cuMemMap(address, 2 * granule, 0, first, 0), 1);
    assert_int_equal(cuMemMap(address + 4 * granule, granule, 0, first, 0), 1);
    assert_int_equal(cuMemSetAccess(address, granule, &read_write, 1), 1);
    OK(cuMemMap(address, granule, 0, first, 0));
    assert_int_equal(cuMemMap(address, granule, 0, second, 0), 1);
    assert_int_equal(cuMemcpyAsync(address, (ptr)(uintptr_t)&byte, 1, stream), 1);
    OK(cuMemMap(address + granule, granule, 0, second, 0));
    assert_int_equal(cuMemSetAccess(address, granule / 2, &read_write, 1), 1);
    OK(cuMemSetAccess(address, 2 * granule, &read_write, 1));
    OK(cuMemsetD8Async(address + granule - 8, 3, 16, stream));
    OK(cuStreamSynchronize(stream));
    assert_int_equal(cuMemUnmap(address, granule / 2), 1);
    assert_int_equal(cuMemUnmap(address, 3 * granule), 1);
    assert_int_equal(cuMemAddressFree(address, 4 * granule), 1);
    OK(cuMemRelease(first)); /* stays while mapped */
    assert_int_equal(cuMemRelease(first), 1);
    assert_int_equal(memopt_sim_used(0), 2 * granule);
    OK(cuMemUnmap(address, 2 * granule));
    assert_int_equal(memopt_sim_used(0), granule);
    assert_int_equal(cuMemUnmap(address, granule), 1);
    OK(cuMemRelease(second));
    assert_int_equal(cuMemAddressFree(address, granule), 1);
    OK(cuMemAddressFree(address, 4 * granule));
    OK(cuStreamDestroy_v2(stream));
}

TEST_WITH(host_memory_is_registered_once, setup, teardown)
{
    char *block = malloc(3 * MIB);
    void *pinned = NULL;
    OK(cuMemHostRegister_v2(block, MIB, 0));
    assert_int_equal(cuMemHostRegister_v2(block + 100, 10, 0), 712);
    assert_int_equal(cuMemHostUnregister(block + 8), 713);
    OK(cuMemHostUnregister(block));
    assert_int_equal(cuMemHostUnregister(block), 713);
    OK(cuMemHostAlloc(&pinned, 100, 0));
    memset(pinned, 1, 100);
    OK(cuMemFreeHost(pinned));
    assert_int_equal(cuMemFreeHost(pinned), 1);
    free(block);
}

/* --- order --------------------------------------------------------------------------------- */

TEST_WITH(hazards_are_told, setup, teardown)
{
    handle a = new_stream(), b = new_stream(), event = NULL;
    ptr p = allocate(4096), q = allocate(4096);
    OK(cuMemsetD8Async(p, 1, 4096, a));
    OK(cuMemcpyAsync(q, p, 4096, b));
    OK(cuCtxSynchronize());
    while (memopt_sim_violations() > 0) /* by the order of this run, also an uninitialised read */
        expect_violation("cuMemcpyAsync on stream");
    /* The same with the event is right. */
    OK(cuEventCreate(&event, 2));
    OK(cuMemsetD8Async(p, 2, 4096, a));
    OK(cuEventRecord(event, a));
    OK(cuStreamWaitEvent(b, event, 0));
    OK(cuMemcpyAsync(q, p, 4096, b));
    OK(cuCtxSynchronize());
    assert_int_equal(memopt_sim_violations(), 0);
    /* A stream that waits is not done, and who waits for it waits for that event. */
    OK(cuMemsetD8Async(p, 3, 4096, a));
    OK(cuEventRecord(event, a));
    OK(cuStreamWaitEvent(b, event, 0));
    OK(cuStreamSynchronize(b));
    OK(cuEventQuery(event));
    /* So is the host in between. */
    OK(cuMemsetD8Async(p, 3, 4096, a));
    OK(cuStreamSynchronize(a));
    OK(cuMemcpyAsync(q, p, 4096, b));
    OK(cuCtxSynchronize());
    OK(cuMemcpyAsync(q, p, 100, a));
    OK(cuMemsetD8Async(p, 4, 100, b));
    OK(cuCtxSynchronize());
    expect_violation("without an order between them");
    OK(cuEventDestroy_v2(event));
    OK(cuMemFree_v2(p));
    OK(cuMemFree_v2(q));
    OK(cuStreamDestroy_v2(a));
    OK(cuStreamDestroy_v2(b));
}

/* With a lag a query tells how far the program is ahead, and a wait ends it. */
TEST_WITH(the_device_lags, setup, teardown)
{
    handle a = new_stream(), event = NULL;
    ptr p = allocate(4096);
    memopt_sim_lag(3);
    OK(cuEventCreate(&event, 2));
    OK(cuMemsetD8Async(p, 1, 4096, a));
    OK(cuEventRecord(event, a));
    for (int i = 0; i < 20; i++)
        assert_int_equal(cuEventQuery(event), 600);
    OK(cuMemsetD8Async(p, 2, 4096, a));
    memopt_sim_advance(2);
    OK(cuEventQuery(event));
    assert_int_equal(cuStreamQuery(a), 600);
    OK(cuStreamSynchronize(a));
    OK(cuStreamQuery(a));
    memopt_sim_lag(0);
    OK(cuEventDestroy_v2(event));
    OK(cuMemFree_v2(p));
    OK(cuStreamDestroy_v2(a));
}

TEST_WITH(uninitialised_reads_are_told, setup, teardown)
{
    char out[64];
    ptr p = allocate(4096);
    OK(cuMemsetD8Async(p, 1, 60, NULL));
    OK(cuMemcpyAsync((ptr)(uintptr_t)out, p, 60, NULL));
    assert_int_equal(memopt_sim_violations(), 0);
    OK(cuMemcpyAsync((ptr)(uintptr_t)out, p, 64, NULL));
    expect_violation("never written");
    OK(cuMemFree_v2(p));
}

static void bump(void *user)
{
    ++*(int *)user;
}

static void call_back_into_the_driver(void *user)
{
    *(int *)user = cuCtxSynchronize();
}

TEST_WITH(host_functions_run_in_order, setup, teardown)
{
    handle stream = new_stream();
    int count = 0;
    OK(cuLaunchHostFunc(stream, bump, &count));
    assert_int_equal(count, 0);
    OK(cuLaunchHostFunc(stream, bump, &count));
    OK(cuStreamSynchronize(stream));
    assert_int_equal(count, 2);
    OK(cuLaunchHostFunc(stream, call_back_into_the_driver, &count));
    OK(cuStreamSynchronize(stream));
    assert_int_equal(count, 800);
    expect_violation("host function");
    OK(cuStreamDestroy_v2(stream));
}

/* --- kernels ------------------------------------------------------------------------------- */

static const char ptx[] =
    ".version 7.5\n.target sm_75\n.entry sim_test_add(\n.entry sim_test_sum(\n"
    ".entry sim_test_race_shared(\n.entry sim_test_race_global(\n"
    ".entry sim_test_diverge(\n.entry sim_test_move16(\n";

static int launch(const char *name, sim_test_args args, unsigned grid, unsigned block,
                  handle stream)
{
    handle module = NULL, function = NULL;
    uint64_t first = 0;
    void *parameters[] = {&args, &first};
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&function, module, name));
    return cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, parameters, NULL);
}

TEST_WITH(kernel_mistakes_are_told, setup, teardown)
{
    handle stream = new_stream();
    ptr p = allocate(65536);
    OK(launch("sim_test_race_shared", (sim_test_args){p, 0, 0}, 1, 64, stream));
    OK(cuStreamSynchronize(stream));
    expect_violation("a race in shared memory");
    OK(launch("sim_test_race_global", (sim_test_args){p, 0, 0}, 2, 64, stream));
    OK(cuStreamSynchronize(stream));
    expect_violation("a race in global memory");
    OK(cuMemFree_v2(p));
    OK(cuStreamDestroy_v2(stream));
}

/* Each of these stops the device: the context is gone afterwards. */
TEST_WITH(divergence_is_told, setup, teardown)
{
    OK(launch("sim_test_diverge", (sim_test_args){0, 0, 0}, 1, 64, NULL));
    assert_int_not_equal(cuCtxSynchronize(), 0);
    expect_violation("diverges");
}

TEST_WITH(wild_kernels_stop_the_device, setup, teardown)
{
    ptr p = allocate(4096), q = allocate(4096);
    OK(cuMemsetD8Async(p, 0, 4096, NULL));
    OK(cuMemsetD8Async(q, 0, 4096, NULL));
    OK(cuCtxSynchronize());
    OK(launch("sim_test_add", (sim_test_args){p, q, 2000}, 8, 256, NULL));
    assert_int_equal(cuCtxSynchronize(), 700);
    expect_violation("nothing is allocated there");
    assert_int_equal(cuMemAlloc_v2(&p, 100), 700);
}

/* Mapped memory of device 1, used by device 0: once it has access, and not any more without. */
TEST_WITH(peers_need_access, setup, teardown)
{
    static const allocation elsewhere = {1, 0, 1, 1, NULL, {0}};
    static const access both[] = {{1, 0, 3}, {1, 1, 3}}, none = {1, 0, 0};
    const size_t granule = 2 << 20;
    handle other = NULL;
    ptr address = 0, memory = 0, p = allocate(4096);
    int can = 0;
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    assert_int_equal(can, 1);
    OK(cuDevicePrimaryCtxRetain(&other, 1));
    OK(cuCtxSetCurrent(other));
    OK(cuMemAddressReserve(&address, granule, 0, 0, 0));
    OK(cuMemCreate(&memory, granule, &elsewhere, 0));
    OK(cuMemMap(address, granule, 0, memory, 0));
    OK(cuMemSetAccess(address, granule, &both[1], 1));
    OK(cuMemsetD8Async(address, 0, granule, NULL));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(context));
    assert_int_equal(cuMemsetD8Async(address, 0, 4096, NULL), 1);
    assert_int_equal(cuMemcpyAsync(p, address, 4096, NULL), 1);
    OK(cuMemSetAccess(address, granule, both, 2));
    OK(cuMemcpyAsync(p, address, 4096, NULL));
    OK(launch("sim_test_add", (sim_test_args){p, address, 1000}, 4, 256, NULL));
    OK(cuCtxSynchronize());
    OK(cuMemSetAccess(address, granule, &none, 1));
    assert_int_equal(cuMemcpyAsync(p, address, 4096, NULL), 1);
    OK(launch("sim_test_add", (sim_test_args){p, address, 1000}, 4, 256, NULL));
    assert_int_equal(cuCtxSynchronize(), 700);
    expect_violation("memory of another device");
    OK(cuCtxSetCurrent(other));
    OK(cuMemUnmap(address, granule));
    OK(cuMemRelease(memory));
    OK(cuMemAddressFree(address, granule));
    OK(cuCtxSetCurrent(context));
    OK(cuDevicePrimaryCtxRelease_v2(1));
}

/* --- faults -------------------------------------------------------------------------------- */

TEST_WITH(symbols_have_versions, setup, teardown)
{
    void *function = NULL;
    int found = 0;
    OK(cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, &found));
    assert_int_equal(found, 0);
    assert_ptr_equal(function, *(void **)&cuMemAlloc_v2);
    OK(cuGetProcAddress_v2("cuMemCreate", &function, 10000, 0, &found));
    assert_int_equal(found, 2);
    assert_null(function);
    OK(cuGetProcAddress_v2("cuNoSuchThing", &function, 12000, 0, &found));
    assert_int_equal(found, 1);
    setenv("MEMOPT_SIM_MISSING", "cuMemMap,cuMemCreate", 1);
    OK(cuGetProcAddress_v2("cuMemCreate", &function, 12000, 0, &found));
    assert_int_equal(found, 1);
    OK(cuGetProcAddress_v2("cuMemUnmap", &function, 12000, 0, &found));
    assert_int_equal(found, 0);
    unsetenv("MEMOPT_SIM_MISSING");
}

TEST_WITH(the_context_is_asked_for, setup, teardown)
{
    ptr p = 0;
    OK(cuCtxSetCurrent(NULL));
    assert_int_equal(cuMemAlloc_v2(&p, 100), 201);
    OK(cuCtxSetCurrent(context));
}

int main(void)
{
    load();
    return run_all_tests(NULL, NULL);
}
