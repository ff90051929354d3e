/* Every host allocation and every device operation of the offloader's disk tier fails once. */
#include "offload_support.h"
#include "unit/offload/disk_support.h"

enum { OTHER = 0x41 };

/* One value on the host, which has room for no other, and one to pack. */
static void setup_block(memopt_device *device, void *context)
{
    fixture *f = context;
    setup_device(device, context);
    OK(run_create(device, context));
    f->other = packed(&f->w, BYTES, VALUE, f->w.s);
    f->block = filled_block(&f->w, BYTES, OTHER, f->w.s);
    f->into = filled_block(&f->w, BYTES, 0, f->w.t);
    OK(memopt_device_sync(device));
}

/* Wherever it is now, the first value is there, and the block is the caller's. */
static void not_packed(memopt_device *device, void *context)
{
    fixture *f = context;
    assert_int_equal(f->ticket, 0);
    assert_int_equal(stats_of(&f->w).tickets, 1);
    assert_null(broken_disk(f->w.offloader));
    assert_true(holds(&f->w, f->block, OTHER, BYTES, f->w.s));
}

static void check_and_release(fixture *f, memopt_ticket ticket, int value)
{
    OK(memopt_offloader_unpack(f->w.offloader, ticket, f->w.t, &f->data));
    assert_true(holds(&f->w, f->data, value, BYTES, f->w.t));
    OK(memopt_offloader_release(f->w.offloader, ticket, f->w.t));
}

static void both_there(memopt_device *device, void *context)
{
    fixture *f = context;
    assert_int_equal(stats_of(&f->w).disk_tickets, 1);
    check_and_release(f, f->ticket, OTHER);
    check_and_release(f, f->other, VALUE);
}

/* The first value is on the disk, and the ticket its; with `full` the host has no room. */
static void setup_spilled(memopt_device *device, void *context)
{
    fixture *f = context;
    setup_block(device, context);
    f->ticket = f->other;
    OK(memopt_offloader_pack(f->w.offloader, f->block, BYTES, f->w.s, &f->other));
    OK(memopt_device_sync(device));
    if (!f->full)
        OK(memopt_offloader_release(f->w.offloader, f->other, f->w.s));
    OK(memopt_device_sync(device));
    assert_int_equal(stats_of(&f->w).disk_tickets, 1);
}

static void still_on_disk(memopt_device *device, void *context)
{
    fixture *f = context;
    assert_int_equal(stats_of(&f->w).disk_tickets, 1);
    assert_null(broken_disk(f->w.offloader));
}

static void there(memopt_device *device, void *context)
{
    fixture *f = context;
    check_and_release(f, f->ticket, VALUE);
    if (f->full)
        check_and_release(f, f->other, OTHER);
}

static void into_there(memopt_device *device, void *context)
{
    fixture *f = context;
    assert_true(holds(&f->w, f->into, VALUE, BYTES, f->w.t));
    there(device, context);
}

static void setup_prefetched(memopt_device *device, void *context)
{
    fixture *f = context;
    setup_spilled(device, context);
    OK(memopt_offloader_prefetch_into(f->w.offloader, f->ticket, f->into, BYTES, f->w.t));
}

TORTURE_CALL(run_wait, memopt_offloader_wait_unpacked(f->w.offloader, f->ticket, f->w.t))

static fixture spilling_fixture(int full)
{
    fixture f = {.bytes = BYTES, .full = full};
    f.options = spilling(300 * KIB, full ? 300 * KIB : 0);
    return f;
}

/* On both orders, and on the NULL stream, where not every call has something that can fail. */
static void in_all_kinds(torture_scenario scenario, int full)
{
    int64_t struck = 0;
    scenario.open = open_device;
    for (int kind = 0; kind < 3; kind++) {
        fixture f = spilling_fixture(full);
        f.adversarial = kind == 1;
        f.options.flags = kind == 2 ? MEMOPT_OFFLOADER_NULL_STREAM : 0;
        struck += torture(&scenario, &f);
        assert_true(struck > 0);
    }
}

TEST_WITH(test_create, healthy_disk, NULL)
{
    in_all_kinds((torture_scenario){"offloader_create, spilling", NULL, setup_device, run_create,
                                    undo_create, NULL, teardown_device, 0, 0},
                 0);
}

TEST_WITH(test_pack, healthy_disk, NULL)
{
    in_all_kinds((torture_scenario){"offloader_pack that spills", NULL, setup_block, run_pack,
                                    both_there, not_packed, teardown_offloader, 1, 1},
                 0);
}

TEST_WITH(test_back, healthy_disk, NULL)
{
    torture_scenario scenario = {.name = "offloader_unpack from the disk",
                                 .setup = setup_spilled,
                                 .run = run_unpack,
                                 .undo = there,
                                 .check_unchanged = still_on_disk,
                                 .teardown = teardown_offloader,
                                 .absorbs = 1,
                                 .caches = 1};
    in_all_kinds(scenario, 0);
    scenario.name = "offloader_unpack from the disk, the host full";
    in_all_kinds(scenario, 1);
    scenario.name = "offloader_prefetch from the disk";
    scenario.run = run_prefetch;
    in_all_kinds(scenario, 0);
    scenario.name = "offloader_unpack_into from the disk";
    scenario.run = run_unpack_into;
    scenario.undo = into_there;
    in_all_kinds(scenario, 0);
    scenario.name = "offloader_unpack_into from the disk, the host full";
    in_all_kinds(scenario, 1);
    scenario.name = "offloader_wait_unpacked from the disk";
    scenario.setup = setup_prefetched;
    scenario.run = run_wait;
    in_all_kinds(scenario, 0);
}

TEST_WITH(test_ends, healthy_disk, NULL)
{
    torture_scenario scenario = {.name = "offload_release, on the disk",
                                 .setup = setup_prefetched,
                                 .run = run_release,
                                 .teardown = teardown_offloader,
                                 .absorbs = 1,
                                 .caches = 1};
    fixture f = spilling_fixture(0);
    scenario.open = open_device;
    (void)torture(&scenario, &f); /* there may be nothing that can fail */
    scenario.name = "offloader_destroy_force, spilled";
    scenario.run = run_force;
    in_all_kinds(scenario, 0);
}

int main(void)
{
    return run_all_tests(make_folder, remove_folder);
}
