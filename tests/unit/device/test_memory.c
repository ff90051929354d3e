/* Device memory: capacity, virtual memory, strictness, and pages that go back to the system. */
#include "support.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static memopt_device *small(void)
{
    return open_cpu(64 * MIB + 5, MEMOPT_STREAM_ORDER_EAGER, 0);
}

DEVICE_TEST(capacity_is_counted_at_create, device, small())
{
    mo_vm_handle handles[33];
    memopt_memory_info info = info_of(device);
    assert_int_equal(info.total, 64 * MIB);
    for (int i = 0; i < 31; i++)
        OK(mo_vm_create(device, GRANULE, &handles[i]));
    FAILS_SAYING(MEMOPT_OUT_OF_DEVICE_MEMORY, "4.00 MiB asked, 2.00 MiB free of 64.00 MiB",
                 mo_vm_create(device, 2 * GRANULE, &handles[31]));
    void *plain;
    FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY, mo_mem_alloc(device, GRANULE + 1, &plain));
    OK(mo_mem_alloc(device, GRANULE, &plain));
    info = info_of(device);
    assert_int_equal(info.used, 64 * MIB);
    assert_int_equal(info.free, 0);
    FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY, mo_mem_alloc(device, 1, &plain));
    OK(mo_mem_free(device, plain, GRANULE));
    for (int i = 0; i < 31; i++)
        OK(mo_vm_release(device, handles[i], GRANULE));
    assert_int_equal(info_of(device).used_peak, 64 * MIB);
}

/* An allocator takes the lowest of equal blocks: a replay's result depends on this order. Those of
 * another device are in the way. */
DEVICE_TEST(plain_allocations_ascend, device, small())
{
    memopt_device *devices[2] = {device};
    char *blocks[2][8];
    OK(memopt_device_open("cpu", NULL, &devices[1]));
    for (uint64_t i = 0; i < 8; i++)
        for (int d = 0; d < 2; d++) {
            char **block = &blocks[d][i];
            OK(mo_mem_alloc(devices[d], (i + 1) * MIB, (void **)block));
            assert_true(i == 0 || *block >= block[-1] + i * MIB);
        }
    for (uint64_t i = 0; i < 8; i++)
        for (int d = 0; d < 2; d++)
            OK(mo_mem_free(devices[d], blocks[d][i], (i + 1) * MIB));
    OK(memopt_device_close(devices[1]));
}

/* Several mappings side by side are one range to programs, and one call gives access to all. */
DEVICE_TEST(mappings_join, device, small())
{
    mo_vm_handle handles[3];
    void *base;
    OK(mo_vm_reserve(device, 3 * GRANULE, &base));
    for (int i = 0; i < 3; i++) {
        OK(mo_vm_create(device, GRANULE, &handles[i]));
        OK(mo_vm_map(device, (char *)base + (uint64_t)i * GRANULE, GRANULE, handles[i]));
    }
    REFUSED(mo_vm_unmap(device, base, 2 * GRANULE));
    OK(mo_vm_set_access(device, base, 3 * GRANULE));
    OK(memopt_fill(device, (char *)base + GRANULE - 7, 3, GRANULE + 14, NULL));
    assert_true(all_bytes((char *)base + GRANULE - 7, 3, GRANULE + 14));
    uint64_t done;
    OK(mo_vm_unmap(device, (char *)base + GRANULE, GRANULE));
    REFUSED(mo_vm_unmap_run(device, base, 3 * GRANULE, GRANULE, &done));
    assert_int_equal(done, 0); /* one of the three is missing: all or none */
    OK(mo_vm_map(device, (char *)base + GRANULE, GRANULE, handles[1]));
    OK(mo_vm_unmap_run(device, base, 3 * GRANULE, GRANULE, &done));
    assert_int_equal(done, 3 * GRANULE);
    for (int i = 0; i < 3; i++)
        OK(mo_vm_release(device, handles[i], GRANULE));
    OK(mo_vm_unreserve(device, base, 3 * GRANULE));
}

/* What the device's file holds, found among the open files of this process. */
static uint64_t file_bytes(void)
{
    for (int fd = 0; fd < 256; fd++) {
        char path[64], target[256] = "";
        struct stat held;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, target, sizeof target - 1) > 0 &&
            strstr(target, "memopt-device-memory") != NULL && fstat(fd, &held) == 0)
            return (uint64_t)held.st_blocks * 512;
    }
    fail_msg("the device has no file");
    return 0;
}

/* The pages themselves, not only this process's view of them. */
DEVICE_TEST(the_file_shrinks, device, small())
{
    enum { BYTES = 16 << 20 };
    assert_int_equal(file_bytes(), 0);
    mapped kept = map_new(device, GRANULE);
    memset(kept.address, 1, GRANULE);
    for (int round = 0; round < 4; round++) {
        mapped m = map_new(device, BYTES);
        memset(m.address, round, BYTES);
        assert_int_equal(file_bytes(), GRANULE + BYTES);
        OK(mo_vm_unmap(device, m.address, BYTES));
        assert_int_equal(file_bytes(), GRANULE + BYTES);
        OK(mo_vm_release(device, m.handle, BYTES));
        assert_int_equal(file_bytes(), GRANULE);
        OK(mo_vm_unreserve(device, m.address, BYTES));
    }
    assert_true(all_bytes(kept.address, 1, GRANULE));
    unmap(device, &kept);
}

DEVICE_TEST(misuse_is_refused, device, small())
{
    mapped m = map_new(device, 2 * GRANULE);
    void *address = (void *)1;
    mo_vm_handle other, handle = (mo_vm_handle)1;
    memopt_memory_info before = info_of(device);
    REFUSED(mo_vm_reserve(device, 0, &address));
    REFUSED_SAYING("not a multiple of 2097152", mo_vm_reserve(device, GRANULE + 4096, &address));
    FAILS(MEMOPT_OUT_OF_HOST_MEMORY, mo_vm_reserve(device, (uint64_t)1 << 62, &address));
    assert_true(address == (void *)1);
    REFUSED(mo_vm_create(device, 4096, &handle));
    FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY, mo_vm_create(device, UINT64_MAX - GRANULE + 1, &handle));
    assert_true(handle == (mo_vm_handle)1);
    REFUSED_SAYING("is mapped already", mo_vm_map(device, m.address, m.size, m.handle));
    OK(mo_vm_create(device, GRANULE, &other));
    REFUSED_SAYING("does not lie in one reservation",
                   mo_vm_map(device, m.address + m.size, GRANULE, other));
    REFUSED_SAYING("the handle has 2097152", mo_vm_map(device, m.address, 2 * GRANULE, other));
    REFUSED_SAYING("not a live handle", mo_vm_map(device, m.address, GRANULE, (mo_vm_handle)&m));
    REFUSED(mo_vm_map(device, m.address + 1, GRANULE, other));
    REFUSED_SAYING("not a run of whole mappings", mo_vm_set_access(device, m.address, GRANULE));
    REFUSED(mo_vm_set_access(device, m.address + m.size, GRANULE));
    REFUSED(mo_vm_unmap(device, m.address, GRANULE));
    REFUSED_SAYING("not exactly one mapping", mo_vm_unmap(device, m.address + GRANULE, GRANULE));
    FAILS_SAYING(MEMOPT_BUSY, "still mapped at 1 places", mo_vm_release(device, m.handle, m.size));
    FAILS(MEMOPT_BUSY, mo_vm_unreserve(device, m.address, m.size));
    REFUSED(mo_vm_unreserve(device, m.address, GRANULE));
    REFUSED(mo_vm_release(device, other, 2 * GRANULE));
    OK(mo_vm_release(device, other, GRANULE));
    REFUSED(mo_vm_release(device, other, GRANULE));
    memopt_memory_info after = info_of(device);
    before.used_peak = after.used_peak;
    assert_memory_equal(&before, &after, sizeof after);
    memset(m.address, 1, m.size);
    unmap(device, &m);
}

DEVICE_TEST(plain_allocations, device, small())
{
    void *one = NULL, *two = NULL;
    OK(mo_mem_alloc(device, 1, &one));
    OK(mo_mem_alloc(device, 5 * MIB + 1, &two));
    assert_int_equal((uintptr_t)one % 512, 0);
    assert_int_equal((uintptr_t)two % 512, 0);
    assert_int_equal(info_of(device).used, 512 + 5 * MIB + 512);
    memset(two, 1, 5 * MIB + 1);
    REFUSED(mo_mem_alloc(device, 0, &two));
    REFUSED(mo_mem_alloc(device, UINT64_MAX, &two));
    REFUSED(mo_mem_free(device, (char *)two + 4096, 4096));
    REFUSED(mo_mem_free(device, two, 1));
    OK(mo_mem_free(device, two, 5 * MIB + 1));
    REFUSED(mo_mem_free(device, two, 5 * MIB + 1));
    OK(mo_mem_free(device, one, 1));
    OK(mo_mem_free(device, NULL, 1));
}

TEST(other_granularities)
{
    static const uint64_t sizes[] = {4096, 65536, 1 << 20, 32 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
        memopt_device *device;
        options.capacity = 64 * MIB;
        options.granularity = sizes[i];
        OK(memopt_device_open("cpu", &options, &device));
        assert_int_equal(mo_device_granularity(device), sizes[i]);
        mapped m = map_new(device, sizes[i]), n = map_new(device, sizes[i]);
        memset(m.address, 1, sizes[i]);
        memset(n.address, 2, sizes[i]);
        assert_true(all_bytes(m.address, 1, sizes[i]));
        unmap(device, &m);
        unmap(device, &n);
        OK(memopt_device_close(device));
    }
}
