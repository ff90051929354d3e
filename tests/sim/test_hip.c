/*
 * The simulated libamdhip64 against its promises: it takes what the runtime takes and refuses what
 * the runtime refuses with the same code. What both vendors share is tested through CUDA's
 * functions in test_cuda.c; here is what HIP has alone or decides otherwise.
 */
#include "entry_points.h"
#include "test_kernels.h"

#include <elf.h>

#define FUNCTIONS(F)                                                                               \
    F(int, hipSetDevice, (int))                                                                    \
    F(int, hipGetDevicePropertiesR0600, (void *, int))                                             \
    F(int, hipGetDeviceProperties, (void *, int))                                                  \
    F(int, hipDeviceSynchronize, (void))                                                           \
    F(int, hipGetLastError, (void))                                                                \
    F(int, hipMemGetInfo, (size_t *, size_t *))                                                    \
    F(int, hipMemGetAllocationGranularity, (size_t *, const allocation *, int))                    \
    F(int, hipMemAddressReserve, (void **, size_t, size_t, void *, unsigned long long))            \
    F(int, hipMemAddressFree, (void *, size_t))                                                    \
    F(int, hipMemCreate, (handle *, size_t, const allocation *, unsigned long long))               \
    F(int, hipMemMap, (void *, size_t, size_t, handle, unsigned long long))                        \
    F(int, hipMemSetAccess, (void *, size_t, const access *, size_t))                              \
    F(int, hipMemUnmap, (void *, size_t))                                                          \
    F(int, hipMemRelease, (handle))                                                                \
    F(int, hipMemsetD8Async, (void *, unsigned char, size_t, handle))                              \
    F(int, hipModuleLoadData, (handle *, const void *))                                            \
    F(int, hipModuleUnload, (handle))                                                              \
    F(int, hipModuleGetFunction, (handle *, handle, const char *))                                 \
    F(int, hipModuleLaunchKernel,                                                                  \
      (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle,       \
       void **, void **))                                                                          \
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
    OK(hipSetDevice(0));
    (void)hipGetLastError();
    return 0;
}

static int teardown(void **state)
{
    OK(hipSetDevice(0));
    assert_int_equal(memopt_sim_violations(), 0);
    assert_int_equal(memopt_sim_used(0), 0);
    assert_int_equal(memopt_sim_used(1), 0);
    return 0;
}

static int field(const char *properties, size_t offset)
{
    int value;
    memcpy(&value, properties + offset, sizeof value);
    return value;
}

/* The offsets are those of ROCm's headers, found by compiling them (5.0, 5.7, 6.0, 6.2: the two
 * layouts did not move within a major version). The library uses the ones of the name only. */
TEST_WITH(properties_lie_where_rocm_has_them, setup, teardown)
{
    char bytes[4096];
    size_t total, all;
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

/* --- memory -------------------------------------------------------------------------------- */

TEST_WITH(virtual_memory, setup, teardown)
{
    enum { GRANULE = 4096 };
    size_t granule = 0;
    void *address = NULL;
    handle first = NULL, second = NULL, third = NULL;
    allocation wrong = device_memory;
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

TEST_WITH(code_objects_are_for_one_target, setup, teardown)
{
    enum { GFX90A = 0x3F, GFX1030 = 0x36 };
    handle module = NULL, function = NULL;
    code_object good = object_for(GFX90A), wrong = object_for(GFX1030);
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

int main(void)
{
    load();
    return run_all_tests(NULL, NULL);
}
