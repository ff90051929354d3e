/*
 * The simulated libamdhip64 against its promises: it takes what the runtime takes and refuses what
 * the runtime refuses with the same code. What both vendors share is tested through CUDA's
 * functions in test_cuda.c; here is what HIP has alone or decides otherwise.
 */
#include "entry_points.h"
#include "test_kernels.h"

#include <elf.h>

#define FUNCTIONS(F)                                                                               \
    F(int, hipInit, (unsigned))                                                                    \
    F(int, hipGetDeviceCount, (int *))                                                             \
    F(int, hipGetDevice, (int *))                                                                  \
    F(int, hipSetDevice, (int))                                                                    \
    F(int, hipDeviceGetAttribute, (int *, int, int))                                               \
    F(int, hipDeviceGetName, (char *, int, int))                                                   \
    F(int, hipGetDevicePropertiesR0600, (void *, int))                                             \
    F(int, hipGetDeviceProperties, (void *, int))                                                  \
    F(int, hipDeviceSynchronize, (void))                                                           \
    F(int, hipGetLastError, (void))                                                                \
    F(int, hipPeekAtLastError, (void))                                                             \
    F(const char *, hipGetErrorName, (int))                                                        \
    F(int, hipMemGetInfo, (size_t *, size_t *))                                                    \
    F(int, hipMalloc, (void **, size_t))                                                           \
    F(int, hipFree, (void *))                                                                      \
    F(int, hipHostMalloc, (void **, size_t, unsigned))                                             \
    F(int, hipHostFree, (void *))                                                                  \
    F(int, hipHostRegister, (void *, size_t, unsigned))                                            \
    F(int, hipHostUnregister, (void *))                                                            \
    F(int, hipMemGetAllocationGranularity, (size_t *, const allocation *, int))                    \
    F(int, hipMemAddressReserve, (void **, size_t, size_t, void *, unsigned long long))            \
    F(int, hipMemAddressFree, (void *, size_t))                                                    \
    F(int, hipMemCreate, (handle *, size_t, const allocation *, unsigned long long))               \
    F(int, hipMemMap, (void *, size_t, size_t, handle, unsigned long long))                        \
    F(int, hipMemSetAccess, (void *, size_t, const access *, size_t))                              \
    F(int, hipMemUnmap, (void *, size_t))                                                          \
    F(int, hipMemRelease, (handle))                                                                \
    F(int, hipStreamCreateWithFlags, (handle *, unsigned))                                         \
    F(int, hipStreamDestroy, (handle))                                                             \
    F(int, hipStreamSynchronize, (handle))                                                         \
    F(int, hipStreamQuery, (handle))                                                               \
    F(int, hipStreamWaitEvent, (handle, handle, unsigned))                                         \
    F(int, hipStreamGetDevice, (handle, int *))                                                    \
    F(int, hipStreamAddCallback, (handle, void (*)(handle, int, void *), void *, unsigned))        \
    F(int, hipEventCreateWithFlags, (handle *, unsigned))                                          \
    F(int, hipEventDestroy, (handle))                                                              \
    F(int, hipEventRecord, (handle, handle))                                                       \
    F(int, hipEventQuery, (handle))                                                                \
    F(int, hipEventElapsedTime, (float *, handle, handle))                                         \
    F(int, hipMemcpyAsync, (void *, const void *, size_t, int, handle))                            \
    F(int, hipMemsetD8Async, (void *, unsigned char, size_t, handle))                              \
    F(int, hipMemsetD32Async, (void *, unsigned, size_t, handle))                                  \
    F(int, hipModuleLoadData, (handle *, const void *))                                            \
    F(int, hipModuleUnload, (handle))                                                              \
    F(int, hipModuleGetFunction, (handle *, handle, const char *))                                 \
    F(int, hipModuleLaunchKernel,                                                                  \
      (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle,       \
       void **, void **))                                                                          \
    F(void, memopt_sim_fail_at, (const char *, int64_t, int32_t))                                  \
    F(void, memopt_sim_lose_device, (int32_t))                                                     \
    F(uint32_t, memopt_sim_violations, (void))                                                     \
    F(uint64_t, memopt_sim_used, (int32_t))

FUNCTIONS(DECLARE)

static const allocation device_memory = {1, 0, 1, 0, NULL, {0}};
static const access read_write = {1, 0, 3};

static void load(void)
{
    void *library = open_library("libamdhip64.so");
    FUNCTIONS(FIND)
}

static int setup(void **state)
{
    (void)state;
    OK(hipSetDevice(0));
    (void)hipGetLastError();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    OK(hipSetDevice(0));
    assert_int_equal(memopt_sim_violations(), 0);
    assert_int_equal(memopt_sim_used(0), 0);
    assert_int_equal(memopt_sim_used(1), 0);
    return 0;
}

static handle new_stream(void)
{
    handle stream = NULL;
    OK(hipStreamCreateWithFlags(&stream, 1));
    return stream;
}

static void *allocate(size_t bytes)
{
    void *p = NULL;
    OK(hipMalloc(&p, bytes));
    return p;
}

/* --- devices and errors -------------------------------------------------------------------- */

static void devices_are_current_for_a_thread(void **state)
{
    int device = -1, count = 0;
    (void)state;
    FAILS(1, hipInit(1));
    OK(hipInit(0));
    OK(hipGetDeviceCount(&count));
    assert_int_equal(count, 2);
    FAILS(101, hipSetDevice(2));
    FAILS(101, hipSetDevice(-1));
    OK(hipSetDevice(1));
    OK(hipGetDevice(&device));
    assert_int_equal(device, 1);
    FAILS(1, hipGetDevice(NULL));
    void *p = allocate(100);
    assert_true(memopt_sim_used(1) > 0);
    assert_int_equal(memopt_sim_used(0), 0);
    OK(hipFree(p));
}

/* The last error stays until it is asked for; success and NOT_READY leave it. */
static void the_last_error_is_kept(void **state)
{
    void *p = NULL;
    handle stream = new_stream();
    (void)state;
    OK(hipPeekAtLastError());
    FAILS(101, hipSetDevice(9));
    OK(hipMalloc(&p, 100));
    assert_int_equal(hipPeekAtLastError(), 101);
    assert_int_equal(hipGetLastError(), 101);
    OK(hipGetLastError());
    OK(hipMemsetD8Async(p, 1, 100, stream));
    FAILS(600, hipStreamQuery(stream));
    OK(hipPeekAtLastError());
    memopt_sim_fail_at("hipFree", 1, 999); /* an injected failure is an error like others */
    FAILS(999, hipFree(p));
    assert_int_equal(hipGetLastError(), 999);
    OK(hipFree(p));
    OK(hipStreamDestroy(stream));
}

static void errors_have_names(void **state)
{
    (void)state;
    assert_string_equal(hipGetErrorName(0), "hipSuccess");
    assert_string_equal(hipGetErrorName(2), "hipErrorOutOfMemory");
    assert_string_equal(hipGetErrorName(709), "hipErrorContextIsDestroyed");
    assert_string_equal(hipGetErrorName(904), "hipErrorStreamCaptureUnjoined");
    assert_string_equal(hipGetErrorName(12345), "hipErrorUnknown");
}

static int field(const char *properties, size_t offset)
{
    int value;
    memcpy(&value, properties + offset, sizeof value);
    return value;
}

/* The offsets are those of ROCm's headers, found by compiling them (5.0, 5.7, 6.0, 6.2: the two
 * layouts did not move within a major version). The library uses the ones of the name only. */
static void properties_lie_where_rocm_has_them(void **state)
{
    char bytes[4096];
    size_t total, all;
    (void)state;
    OK(hipMemGetInfo(&total, &all));
    memset(bytes, 0x77, sizeof bytes);
    OK(hipGetDevicePropertiesR0600(bytes, 0));
    memcpy(&total, bytes + 288, sizeof total);
    assert_int_equal(total, all);
    assert_int_equal(field(bytes, 308), 64);
    assert_int_equal(field(bytes, 388), 8);
    assert_string_equal(bytes + 1160, "gfx90a:sramecc+:xnack-");
    assert_int_equal(bytes[1472], 0x77); /* nothing beyond the struct */
    memset(bytes, 0x77, sizeof bytes);
    OK(hipGetDeviceProperties(bytes, 0));
    memcpy(&total, bytes + 256, sizeof total);
    assert_int_equal(total, all);
    assert_int_equal(field(bytes, 276), 64);
    assert_int_equal(field(bytes, 336), 8);
    assert_string_equal(bytes + 396, "gfx90a:sramecc+:xnack-");
    assert_int_equal(bytes[792], 0x77);
    FAILS(101, hipGetDevicePropertiesR0600(bytes, 2));
    FAILS(1, hipGetDeviceProperties(NULL, 0));
}

static int attribute(int number)
{
    int value = -1;
    OK(hipDeviceGetAttribute(&value, number, 0));
    return value;
}

static void attributes_have_the_numbers_since_rocm_5(void **state)
{
    int value = 0;
    char name[64];
    (void)state;
    assert_int_equal(attribute(56), 1024);
    assert_int_equal(attribute(63), 8);
    assert_int_equal(attribute(67), 1);
    assert_int_equal(attribute(74), 65536);
    assert_int_equal(attribute(87), 64);
    assert_int_equal(attribute(89), 1);
    FAILS(1, hipDeviceGetAttribute(NULL, 87, 0));
    FAILS(1, hipDeviceGetAttribute(&value, -1, 0));
    FAILS(101, hipDeviceGetAttribute(&value, 87, 2));
    FAILS(101, hipDeviceGetName(name, 64, 2));
    FAILS(1, hipDeviceGetName(name, 0, 0));
}

/* --- memory -------------------------------------------------------------------------------- */

static void plain_memory(void **state)
{
    void *p = (void *)1, *q = NULL, *pinned = NULL;
    char *block = malloc(MIB);
    (void)state;
    OK(hipMalloc(&p, 0)); /* CUDA refuses this */
    assert_null(p);
    FAILS(1, hipMalloc(NULL, 100));
    FAILS(2, hipMalloc(&q, 128 * MIB));
    assert_null(q);
    OK(hipFree(NULL));
    p = allocate(1000);
    FAILS(1, hipFree((char *)p + 8));
    OK(hipFree(p));
    FAILS(1, hipFree(p));
    OK(hipHostMalloc(&pinned, 100, 1));
    FAILS(1, hipHostMalloc(&pinned, 100, 0x100));
    OK(hipHostFree(pinned));
    FAILS(1, hipHostFree(pinned));
    OK(hipHostFree(NULL)); /* CUDA's refuses this too */
    OK(hipHostRegister(block, MIB, 1));
    FAILS(712, hipHostRegister(block + 5, 10, 0));
    OK(hipHostUnregister(block));
    FAILS(713, hipHostUnregister(block));
    free(block);
}

static void virtual_memory(void **state)
{
    enum { GRANULE = 4096 };
    size_t granule = 0;
    void *address = NULL;
    handle first = NULL, second = NULL, third = NULL;
    allocation wrong = device_memory;
    (void)state;
    OK(hipMemGetAllocationGranularity(&granule, &device_memory, 0));
    assert_int_equal(granule, GRANULE);
    FAILS(1, hipMemGetAllocationGranularity(&granule, &device_memory, 2));
    FAILS(1, hipMemGetAllocationGranularity(&granule, NULL, 0));
    FAILS(1, hipMemAddressReserve(&address, GRANULE + 1, 0, NULL, 0));
    OK(hipMemAddressReserve(&address, 4 * GRANULE, 0, NULL, 0));
    char *at = address;
    wrong.id = 2;
    FAILS(101, hipMemCreate(&first, GRANULE, &wrong, 0));
    wrong = device_memory;
    wrong.flags[1] = 1; /* remote access, which HIP has no flag for */
    FAILS(1, hipMemCreate(&first, GRANULE, &wrong, 0));
    FAILS(1, hipMemCreate(&first, GRANULE / 2, &device_memory, 0));
    FAILS(2, hipMemCreate(&first, 128 * MIB, &device_memory, 0));
    OK(hipMemCreate(&first, GRANULE, &device_memory, 0));
    OK(hipMemCreate(&second, GRANULE, &device_memory, 0));
    FAILS(1, hipMemMap(at + GRANULE / 2, GRANULE, 0, first, 0));
    FAILS(1, hipMemMap(at + 4 * GRANULE, GRANULE, 0, first, 0));
    FAILS(1, hipMemMap(at, GRANULE, 0, NULL, 0));
    OK(hipMemMap(at, GRANULE, 0, first, 0));
    FAILS(1, hipMemMap(at, GRANULE, 0, second, 0));
    FAILS(1, hipMemsetD8Async(at, 1, 10, NULL)); /* no access yet */
    OK(hipMemMap(at + GRANULE, GRANULE, 0, second, 0));
    FAILS(1, hipMemSetAccess(at, GRANULE, NULL, 1));
    FAILS(1, hipMemSetAccess(at, GRANULE, &(access){1, 0, 2}, 1)); /* write only */
    FAILS(1, hipMemSetAccess(at, GRANULE, &(access){2, 0, 3}, 1)); /* no device */
    FAILS(1, hipMemSetAccess(at, GRANULE, &(access){1, 2, 3}, 1)); /* no such device */
    FAILS(1, hipMemSetAccess(at, 3 * GRANULE, &read_write, 1));
    OK(hipMemSetAccess(at, 2 * GRANULE, &read_write, 1));
    OK(hipMemsetD8Async(at + GRANULE - 4, 1, 8, NULL));
    OK(hipDeviceSynchronize());
    FAILS(1, hipMemUnmap(at, 2 * GRANULE)); /* HIP: each mapping by itself */
    FAILS(1, hipMemAddressFree(at, 4 * GRANULE));
    OK(hipMemUnmap(at, GRANULE));
    FAILS(1, hipMemUnmap(at, GRANULE));
    OK(hipMemUnmap(at + GRANULE, GRANULE));
    OK(hipMemRelease(first));
    FAILS(1, hipMemRelease(first));
    OK(hipMemRelease(second));
    OK(hipMemAddressFree(at, 4 * GRANULE));
    FAILS(1, hipMemRelease(third));
}

/* --- streams ------------------------------------------------------------------------------- */

static void copies_name_their_kind(void **state)
{
    enum { TO_DEVICE = 1, FROM_DEVICE, WITHIN, BY_ADDRESS };
    char in[100], out[100];
    char *p = allocate(sizeof in), *q = allocate(sizeof in);
    handle stream = new_stream();
    (void)state;
    memset(in, 3, sizeof in);
    FAILS(1, hipMemcpyAsync(p, in, sizeof in, FROM_DEVICE, stream));
    FAILS(1, hipMemcpyAsync(p, in, sizeof in, 5, stream));
    OK(hipMemcpyAsync(p, in, sizeof in, TO_DEVICE, stream));
    OK(hipMemcpyAsync(q, p, sizeof in, WITHIN, stream));
    OK(hipMemcpyAsync(out, q, sizeof in, BY_ADDRESS, stream));
    OK(hipStreamSynchronize(stream));
    assert_memory_equal(in, out, sizeof in);
    FAILS(1, hipMemcpyAsync(out, q, 2 * MIB, BY_ADDRESS, stream));
    FAILS(1, hipMemsetD32Async(p + 1, 7, 4, stream)); /* misaligned */
    OK(hipMemsetD32Async(p, 7, 4, stream));
    OK(hipFree(p));
    OK(hipFree(q));
    OK(hipStreamDestroy(stream));
}

static void streams_and_events_are_known(void **state)
{
    handle stream = new_stream(), far = NULL, event = NULL, far_event = NULL;
    int device = -1;
    float time = 0;
    (void)state;
    FAILS(1, hipStreamCreateWithFlags(NULL, 0));
    FAILS(1, hipStreamCreateWithFlags(&far, 2));
    OK(hipSetDevice(1));
    OK(hipStreamCreateWithFlags(&far, 1));
    OK(hipEventCreateWithFlags(&far_event, 2));
    OK(hipStreamGetDevice(far, &device));
    assert_int_equal(device, 1);
    OK(hipSetDevice(0));
    FAILS(400, hipStreamSynchronize(far)); /* of the other device */
    FAILS(400, hipEventRecord(far_event, stream));
    FAILS(1, hipEventCreateWithFlags(&event, 8));
    OK(hipEventCreateWithFlags(&event, 2));
    OK(hipEventQuery(event));
    OK(hipEventRecord(event, stream));
    FAILS(1, hipStreamWaitEvent(stream, event, 2));
    FAILS(400, hipEventElapsedTime(&time, event, event)); /* no timing */
    OK(hipStreamSynchronize(stream));
    OK(hipEventDestroy(event));
    FAILS(400, hipEventDestroy(event));
    FAILS(400, hipEventRecord(event, stream));
    FAILS(400, hipStreamDestroy(NULL));
    OK(hipStreamDestroy(stream));
    FAILS(709, hipStreamSynchronize(stream)); /* dead; real drivers may say 400 */
    FAILS(709, hipMemsetD8Async((void *)16, 1, 1, stream));
    OK(hipSetDevice(1));
    OK(hipEventDestroy(far_event));
    OK(hipStreamDestroy(far));
}

static void note_stream(handle stream, int code, void *user)
{
    *(handle *)user = code == 0 ? stream : NULL;
}

static void callbacks_are_told_their_stream(void **state)
{
    handle stream = new_stream(), told = NULL;
    (void)state;
    FAILS(1, hipStreamAddCallback(stream, note_stream, &told, 1));
    FAILS(1, hipStreamAddCallback(stream, NULL, &told, 0));
    OK(hipStreamAddCallback(stream, note_stream, &told, 0));
    assert_null(told);
    OK(hipStreamSynchronize(stream));
    assert_ptr_equal(told, stream);
    OK(hipStreamDestroy(stream));
}

/* --- kernels ------------------------------------------------------------------------------- */

/* As much of a code object as the runtime looks at before it runs something: a header with the
 * machine's number, and the kernel's name. */
typedef struct code_object {
    Elf64_Ehdr header;
    char names[64];
} code_object;

static code_object object_for(unsigned machine)
{
    code_object object = {0};
    memcpy(object.header.e_ident, ELFMAG, SELFMAG);
    object.header.e_machine = 224;
    object.header.e_flags = machine;
    object.header.e_shoff = sizeof object;
    memcpy(object.names + 1, "sim_test_sum", sizeof "sim_test_sum");
    return object;
}

static void code_objects_are_for_one_target(void **state)
{
    enum { GFX90A = 0x3F, GFX1030 = 0x36 };
    handle module = NULL, function = NULL;
    code_object good = object_for(GFX90A), wrong = object_for(GFX1030);
    (void)state;
    FAILS(200, hipModuleLoadData(&module, "no code object"));
    FAILS(200, hipModuleLoadData(&module, ".version 7.5\n.target sm_75\n"));
    FAILS(209, hipModuleLoadData(&module, &wrong));
    FAILS(1, hipModuleLoadData(&module, NULL));
    OK(hipModuleLoadData(&module, &good));
    FAILS(500, hipModuleGetFunction(&function, module, "sim_test_add"));
    OK(hipModuleGetFunction(&function, module, "sim_test_sum"));
    OK(hipModuleUnload(module));
    FAILS(400, hipModuleUnload(module));
    FAILS(400, hipModuleLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL));
}

/* A launch has fewer than 2^32 threads, and takes its arguments one by one or as a buffer. */
static void launches_are_checked(void **state)
{
    enum { N = 1000 };
    uint64_t values[N], sums[4], wanted = 0;
    handle module = NULL, function = NULL;
    code_object object = object_for(0x3F);
    char *from = allocate(sizeof values), *to = allocate(sizeof sums);
    struct {
        sim_test_args args;
        uint64_t first;
    } buffer = {{(uintptr_t)to, (uintptr_t)from, N}, 0};
    size_t bytes = sizeof buffer;
    void *parameters[] = {&buffer.args, &buffer.first};
    void *extra[] = {(void *)1, &buffer, (void *)2, &bytes, (void *)3};
    (void)state;
    for (uint64_t i = 0; i < N; i++)
        wanted += values[i] = i * i;
    OK(hipMemcpyAsync(from, values, sizeof values, 1, NULL));
    OK(hipModuleLoadData(&module, &object));
    OK(hipModuleGetFunction(&function, module, "sim_test_sum"));
#define LAUNCH(grid, block, list, packed)                                                          \
    hipModuleLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, NULL, list, packed)
    FAILS(1, LAUNCH(0, 64, parameters, NULL));
    FAILS(1, LAUNCH(1, 1025, parameters, NULL));
    FAILS(1, LAUNCH(1u << 22, 1024, parameters, NULL));
    FAILS(1, LAUNCH(1, 64, parameters, extra));
    FAILS(1, LAUNCH(1, 64, NULL, NULL));
    for (int packed = 0; packed < 2; packed++) {
        uint64_t sum = 0;
        OK(LAUNCH(4, 256, packed ? NULL : parameters, packed ? extra : NULL));
        OK(hipMemcpyAsync(sums, to, sizeof sums, 2, NULL));
        OK(hipDeviceSynchronize());
        for (int i = 0; i < 4; i++)
            sum += sums[i];
        assert_int_equal(sum, wanted);
    }
    bytes -= 8;
    FAILS(1, LAUNCH(4, 256, NULL, extra));
    OK(hipModuleUnload(module));
    OK(hipFree(from));
    OK(hipFree(to));
}

static void a_lost_device_stays_lost(void **state)
{
    void *p = NULL;
    int device = -1;
    (void)state;
    memopt_sim_lose_device(719);
    FAILS(719, hipMalloc(&p, 100));
    FAILS(719, hipGetDevice(&device));
    FAILS(719, hipDeviceSynchronize());
    assert_int_equal(hipGetLastError(), 719);
    memopt_sim_lose_device(0);
    OK(hipDeviceSynchronize());
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(devices_are_current_for_a_thread),
        T(the_last_error_is_kept),
        T(errors_have_names),
        T(properties_lie_where_rocm_has_them),
        T(attributes_have_the_numbers_since_rocm_5),
        T(plain_memory),
        T(virtual_memory),
        T(copies_name_their_kind),
        T(streams_and_events_are_known),
        T(callbacks_are_told_their_stream),
        T(code_objects_are_for_one_target),
        T(launches_are_checked),
        T(a_lost_device_stays_lost),
    };
    load();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
