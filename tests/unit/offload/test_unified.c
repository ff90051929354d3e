/*
 * One memory for host and device: packed values stay where they are, page-locked memory is part of the
 * device's capacity, and nothing takes more than that.
 */
#include "disk_support.h"
#include "support/simulated.h"

enum { VALUES = 4 };

static const char *name = "cpu";

static world open_unified(uint64_t capacity, const memopt_offloader_options *options)
{
    memopt_device *opened = NULL;
    memopt_device_options device = MEMOPT_DEVICE_OPTIONS_INIT;
    device.unified = 1;
    if (strcmp(name, "cpu") == 0) {
        device.capacity = capacity;
        device.granularity = 4096;
    }
    OK(memopt_device_open(name, &device, &opened));
    return world_on(opened, options);
}

static memopt_memory_info memory_of(const world *w)
{
    memopt_memory_info info = MEMOPT_MEMORY_INFO_INIT;
    OK(memopt_device_get_memory_info(w->device, &info));
    return info;
}

TEST(test_values_stay)
{
    for (uint32_t policy = 0; policy < MEMOPT_OVERFLOW_SPILL; policy++) {
        memopt_ticket tickets[VALUES];
        void *blocks[VALUES], *data = NULL;
        memopt_offloader_options options = MEMOPT_OFFLOADER_OPTIONS_INIT;
        options.overflow = policy;
        options.host_limit = MIB;
        world w = open_unified(16 * MIB, &options);
        for (int i = 0; i < VALUES; i++)
            blocks[i] = filled_block(&w, MIB, i + 1, w.s);
        OK(memopt_device_sync(w.device));
        uint64_t free = memory_of(&w).free;
        for (int i = 0; i < VALUES; i++)
            OK(memopt_offloader_pack(w.offloader, blocks[i], MIB, w.s, &tickets[i]));
        assert_int_equal(memory_of(&w).free, free);
        assert_int_equal(memory_of(&w).pinned, 0);
        assert_int_equal(stats_of(&w).kept_overflow, VALUES);
        assert_int_equal(stats_of(&w).copied_out_bytes, 0);
        for (int i = VALUES; i-- > 0;) {
            OK(memopt_offloader_unpack(w.offloader, tickets[i], w.t, &data));
            assert_ptr_equal(data, blocks[i]);
            assert_true(holds(&w, data, i + 1, MIB, w.t));
        }
        release_all(&w, tickets, VALUES);
        world_close(&w);
    }
}

TEST(test_one_budget)
{
    void *host = NULL, *device = NULL;
    if (strcmp(name, "cpu") != 0)
        return; /* a driver counts for itself */
    world w = open_unified(8 * MIB, NULL);
    assert_int_equal(memory_of(&w).free, 8 * MIB);
    OK(memopt_host_alloc(w.device, 3 * MIB, &host));
    assert_int_equal(memory_of(&w).free, 5 * MIB);
    FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY,
          memopt_allocator_alloc(w.allocator, 6 * MIB, MEMOPT_TAG_OTHER, NULL, &device));
    device = device_block(&w, 4 * MIB, NULL);
    void *more = NULL;
    FAILS_SAYING(MEMOPT_OUT_OF_HOST_MEMORY, "2.00 MiB to page-lock",
                 memopt_host_alloc(w.device, 2 * MIB, &more));
    SAYS("of the 8.00 MiB that host and device share");
    OK(memopt_allocator_free(w.allocator, device));
    OK(memopt_host_free(w.device, host));
    OK(memopt_allocator_trim_sync(w.allocator, 0, NULL));
    assert_int_equal(memory_of(&w).free, 8 * MIB);
    world_close(&w);
}

/* Values of twice the memory, by way of the disk; values of the host's own are counted, too. */
TEST_WITH(test_the_disk_makes_room, healthy_disk, NULL)
{
    memopt_ticket tickets[16], fixed = 0, none = 0;
    void *host = NULL;
    if (strcmp(name, "cpu") != 0)
        return;
    memopt_offloader_options options = spilling(3 * MIB, 0);
    world w = open_unified(8 * MIB, &options);
    fixed = reserved(&w, MIB, 99);
    for (int i = 0; i < 16; i++) {
        tickets[i] = packed(&w, MIB, i + 1, w.s);
        OK(memopt_device_sync(w.device));
        memopt_memory_info info = memory_of(&w);
        assert_true(info.used + info.pinned <= 8 * MIB);
        assert_int_equal(info.free, 8 * MIB - info.used - info.pinned);
    }
    assert_int_equal(stats_of(&w).pageable_bytes, 0);
    assert_true(stats_of(&w).disk_tickets >= 12);
    FAILS(MEMOPT_LIMIT_REACHED, memopt_offloader_reserve(w.offloader, 6 * MIB, &none, &host));
    for (int i = 0; i < 16; i++) {
        assert_true(is_value(&w, tickets[i], i + 1, MIB));
        OK(memopt_offloader_release(w.offloader, tickets[i], w.s));
    }
    OK(memopt_offloader_release(w.offloader, fixed, w.s));
    world_close(&w);
}

TEST(test_what_is_refused)
{
    memopt_device *device = NULL;
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    options.unified = 2;
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "unified is 2",
                 memopt_device_open(name, &options, &device));
    assert_null(device);
}

int main(int argc, char **argv)
{
    name = argc > 1 ? argv[1] : name;
    return run_all_tests(make_folder, remove_folder);
}
