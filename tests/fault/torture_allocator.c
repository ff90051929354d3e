/* The calls of the allocator that the oracle's language lacks, with the n-th host allocation, then the
 * n-th device operation failing: beginnings, a snapshot, and the end. Allocations, frees, recorded
 * streams, pools and steps: tests/oracle/faults.c. */
#include "support/checks.h"

#include "support/torture.h"

#include "base/memory.h"
#include "support/allocator_check.h"

typedef struct fixture {
    const char *config;
    uint32_t memory;
    memopt_allocator *allocator;
    memopt_stream other;
    void *block, *kept;
} fixture;

static memopt_status create_it(memopt_device *device, fixture *f)
{
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    options.memory = f->memory;
    return memopt_allocator_create(device, f->config, &options, &f->allocator);
}

TORTURE_CALL(run_create, create_it(device, f))
TORTURE_UNDO(undo_create, memopt_allocator_destroy(f->allocator))

static void make_block(memopt_device *device, void *context)
{
    fixture *f = context;
    OK(run_create(device, f));
    OK(memopt_allocator_alloc(f->allocator, 7 * MIB, 0, NULL, &f->block));
}

static void end(memopt_device *device, void *context)
{
    fixture *f = context;
    OK(mo_allocator_check(f->allocator));
    OK(memopt_allocator_free(f->allocator, f->block));
    OK(memopt_allocator_destroy(f->allocator));
}

TORTURE_CALL(run_start_history,
             memopt_allocator_set_history(f->allocator,
                                          &(memopt_history_options)MEMOPT_HISTORY_OPTIONS_INIT))
TORTURE_UNDO(undo_start_history, memopt_allocator_set_history(f->allocator, NULL))

static memopt_status visit(void *user, const memopt_block_info *block)
{
    ++*(int *)user;
    return MEMOPT_OK;
}

static memopt_status run_snapshot(memopt_device *device, void *context)
{
    fixture *f = context;
    int blocks = 0;
    memopt_status status = memopt_allocator_snapshot(f->allocator, visit, &blocks);
    assert_int_equal(blocks > 0, status == MEMOPT_OK);
    return status;
}

TEST(all)
{
    static const torture_scenario scenarios[] = {
        {.name = "create", .run = run_create, .undo = undo_create},
        {"start_history", NULL, make_block, run_start_history, undo_start_history, NULL, end, 0, 0},
        {"snapshot", NULL, make_block, run_snapshot, NULL, NULL, end, 0, 0},
    };
    static const char *const configs[] = {"", "expandable_segments:True", ""};
    for (int c = 0; c < 3; c++) {
        fixture f = {.config = configs[c],
                     .memory = c == 2 ? MEMOPT_MEMORY_PINNED : MEMOPT_MEMORY_DEVICE};
        for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++)
            assert_true(torture(&scenarios[i], &f) > 0);
    }
}

/* --- the end ---------------------------------------------------------------------------------- */

/* Destroy with a fault: the handle is gone, and nothing is left whatever failed. 1 if one struck.
 */
static int end_with_fault(const char *config, int by_force, int host, int64_t n)
{
    int64_t blocks = mo_memory_live_blocks();
    fixture f = {.config = config};
    memopt_device *device = NULL;
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    options.capacity = 64 * MIB;
    options.threads = 1;
    OK(memopt_device_open("cpu", &options, &device));
    make_block(device, &f);
    OK(memopt_stream_create(device, &f.other));
    OK(memopt_allocator_record_stream(f.allocator, f.block, f.other));
    OK(memopt_allocator_free(f.allocator, f.block));
    if (by_force)
        OK(memopt_allocator_alloc(f.allocator, 3 * MIB, 0, NULL, &f.kept));
    if (host)
        mo_memory_fail_at(n);
    else
        mo_device_fail_at(device, n);
    memopt_status status = by_force ? memopt_allocator_destroy_force(f.allocator)
                                    : memopt_allocator_destroy(f.allocator);
    int struck = host ? mo_memory_fault_struck() : mo_device_fault_struck(device);
    mo_memory_fail_at(0);
    mo_device_fail_at(device, 0);
    if (!struck)
        OK(status);
    OK(memopt_stream_destroy(device, f.other));
    OK(memopt_device_close(device)); /* nothing of it is left */
    assert_int_equal(mo_memory_live_blocks(), blocks);
    return struck;
}

TEST(test_end)
{
    static const char *const configs[] = {"", "expandable_segments:True"};
    for (int c = 0; c < 2; c++) {
        for (int by_force = 0; by_force < 2; by_force++) {
            int64_t struck = 0;
            for (int host = 0; host < 2; host++)
                for (int64_t n = 1; end_with_fault(configs[c], by_force, host, n); n++)
                    struck++;
            print_message("destroy%s, \"%s\": %lld faults\n", by_force ? " by force" : "",
                          configs[c], (long long)struck);
            assert_true(struck > 0);
        }
    }
}
