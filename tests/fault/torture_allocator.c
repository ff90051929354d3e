/* Every call of the allocator with the n-th host allocation, then the n-th device operation
 * failing. What the allocator keeps for later (block structs, the table, events, pools) may grow in
 * a failing call; what its user sees may not, and at the end nothing is left. */
#include "support/checks.h"

#include "allocator/watch/stats.h"
#include "support/torture.h"

#include "allocator/blocks/state.h"

#include "base/memory.h"
#include "support/allocator_check.h"

enum { STATS = 128 };

typedef struct fixture {
    const char *config;
    uint32_t memory;
    memopt_allocator *allocator;
    memopt_pool *pool;
    memopt_stream other;
    void *block, *kept;
    uint64_t before[STATS];
} fixture;

static void read_stats(fixture *f, uint64_t values[STATS])
{
    uint64_t total = 0;
    memset(values, 0, STATS * sizeof *values);
    assert_int_equal(memopt_allocator_get_stats(f->allocator, STATS, NULL, values, &total),
                     MEMOPT_OK);
    assert_true(total <= STATS + 1);
}

/* --- create ---------------------------------------------------------------------------------- */

static memopt_status create_it(memopt_device *device, fixture *f)
{
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    options.memory = f->memory;
    return memopt_allocator_create(device, f->config, &options, &f->allocator);
}

TORTURE_CALL(run_create, create_it(device, f))
TORTURE_UNDO(undo_create, memopt_allocator_destroy(f->allocator))

static void make(memopt_device *device, void *context)
{
    fixture *f = context;
    OK(run_create(device, f));
    OK(memopt_stream_create(device, &f->other));
    f->block = NULL;
    read_stats(f, f->before);
}

static void end(memopt_device *device, void *context)
{
    fixture *f = context;
    OK(mo_allocator_check(f->allocator));
    OK(memopt_allocator_destroy(f->allocator));
    OK(memopt_stream_destroy(device, f->other));
}

/* A freed block of page-locked memory is active until a later call finds its stream's work over. */
static int is_late(const fixture *f, const char *name)
{
    return f->memory == MEMOPT_MEMORY_PINNED && strncmp(name, "active", 6) == 0;
}

/* What blocks there are is as before; cached memory may have gone back. */
static void check_unchanged(memopt_device *device, void *context)
{
    static const char *const same[] = {"allocation.all.current", "allocated_bytes.all.current",
                                       "requested_bytes.all.current", "active.all.current",
                                       "active_bytes.small_pool.current"};
    fixture *f = context;
    uint64_t now[STATS];
    OK(mo_allocator_check(f->allocator));
    read_stats(f, now);
    for (uint64_t i = 0; i < STATS && mo_stat_name(i) != NULL; i++)
        for (size_t s = 0; s < sizeof same / sizeof same[0]; s++)
            if (strcmp(mo_stat_name(i), same[s]) == 0 && !is_late(f, same[s]))
                assert_int_equal(now[i], f->before[i]);
}

/* --- the first allocation, and one that needs a page more than the cache has ------------------ */

TORTURE_CALL(run_alloc,
             memopt_allocator_alloc(f->allocator, 21 * MIB, MEMOPT_TAG_WEIGHTS, NULL, &f->block))

static void undo_alloc(memopt_device *device, void *context)
{
    fixture *f = context;
    assert_non_null(f->block);
    memset(f->block, 1, 7 * MIB);
    OK(memopt_allocator_free(f->allocator, f->block));
    f->block = NULL;
}

/* --- pools ------------------------------------------------------------------------------------ */

TORTURE_CALL(run_create_pool, memopt_pool_create(f->allocator, NULL, &f->pool))
TORTURE_UNDO(undo_create_pool, memopt_allocator_destroy(f->pool))

TORTURE_CALL(run_start_history,
             memopt_allocator_set_history(f->allocator,
                                          &(memopt_history_options)MEMOPT_HISTORY_OPTIONS_INIT))
TORTURE_UNDO(undo_start_history, memopt_allocator_set_history(f->allocator, NULL))

/* A pool gets a history, too. */
static void make_watched(memopt_device *device, void *context)
{
    make(device, context);
    OK(run_start_history(device, context));
}

/* --- record_stream, free, trim, snapshot ------------------------------------------------------ */

static void make_block(memopt_device *device, void *context)
{
    fixture *f = context;
    make(device, context);
    OK(memopt_allocator_alloc(f->allocator, 7 * MIB, 0, NULL, &f->block));
    read_stats(f, f->before);
}

TORTURE_CALL(run_record, memopt_allocator_record_stream(f->allocator, f->block, f->other))

static void make_recorded(memopt_device *device, void *context)
{
    fixture *f = context;
    make_block(device, context);
    OK(memopt_allocator_record_stream(f->allocator, f->block, f->other));
}

TORTURE_CALL(run_free, memopt_allocator_free(f->allocator, f->block))

static void make_pending(memopt_device *device, void *context)
{
    make_recorded(device, context);
    OK(run_free(device, context));
}

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

/* --- the matrix ------------------------------------------------------------------------------- */

static const torture_scenario create = {.name = "create", .run = run_create, .undo = undo_create};
static const torture_scenario scenarios[] = {
    {"alloc", NULL, make, run_alloc, undo_alloc, check_unchanged, end, 1, 1},
    {"pool_create", NULL, make, run_create_pool, undo_create_pool, check_unchanged, end, 0, 0},
    {"start_history", NULL, make, run_start_history, undo_start_history, check_unchanged, end, 0,
     0},
    {"pool_create with a history", NULL, make_watched, run_create_pool, undo_create_pool,
     check_unchanged, end, 0, 0},
    {"record_stream", NULL, make_block, run_record, undo_alloc, check_unchanged, end, 0, 1},
    {"free", NULL, make_recorded, run_free, NULL, check_unchanged, end, 0, 1},
    {"snapshot", NULL, make_block, run_snapshot, undo_alloc, check_unchanged, end, 0, 0},
};

static void end_kept(memopt_device *device, void *context)
{
    fixture *f = context;
    OK(memopt_allocator_free(f->allocator, f->kept));
    end(device, context);
}

/* --- pages that move while their stream is at work -------------------------------------------- */

static memopt_device *open_busy(void *context)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    memopt_device *device = NULL;
    options.capacity = 64 * MIB;
    options.threads = 1;
    options.lag = UINT64_MAX;
    OK(memopt_device_open("cpu", &options, &device));
    return device;
}

static void make_busy(memopt_device *device, void *context)
{
    fixture *f = context;
    void *first, *last;
    make(device, context);
    OK(memopt_allocator_alloc(f->allocator, 20 * MIB, 0, NULL, &first));
    OK(memopt_allocator_alloc(f->allocator, 16 * MIB, 0, NULL, &f->kept));
    OK(memopt_allocator_alloc(f->allocator, 24 * MIB, 0, NULL, &last));
    OK(memopt_fill(device, first, 1, 20 * MIB, NULL));
    OK(memopt_fill(device, f->kept, 2, 16 * MIB, NULL));
    OK(memopt_fill(device, last, 3, 24 * MIB, NULL));
    OK(memopt_allocator_free(f->allocator, first));
    OK(memopt_allocator_free(f->allocator, last));
    read_stats(f, f->before);
}

TORTURE_CALL(run_move, memopt_allocator_alloc(f->allocator, 40 * MIB, 0, NULL, &f->block))

static void end_busy(memopt_device *device, void *context)
{
    fixture *f = context;
    const unsigned char *kept = f->kept;
    OK(memopt_device_sync(device)); /* nothing was unmapped too early */
    for (uint64_t i = 0; i < 16 * MIB; i += 4096)
        assert_int_equal(kept[i], 2);
    end_kept(device, context);
}

TEST(busy)
{
    static const torture_scenario scenario = {"alloc with pages of a busy stream",
                                              open_busy,
                                              make_busy,
                                              run_move,
                                              undo_alloc,
                                              check_unchanged,
                                              end_busy,
                                              1,
                                              1};
    fixture f = {.config = "expandable_segments:True"};
    int64_t struck = torture(&scenario, &f);
    print_message("%s: %lld faults\n", scenario.name, (long long)struck);
    assert_true(struck > 20);
}

/* --- steps ------------------------------------------------------------------------------------ */

/* On two streams, with a block that stays between. */
static void do_step(fixture *f)
{
    void *a, *b, *c, *d;
    OK(memopt_allocator_alloc(f->allocator, 7 * MIB, 0, NULL, &a));
    OK(memopt_allocator_alloc(f->allocator, 9 * MIB, 0, NULL, &b));
    OK(memopt_allocator_alloc(f->allocator, 3 * MIB, 0, f->other, &c));
    if (f->kept == NULL)
        OK(memopt_allocator_alloc(f->allocator, MIB / 2, 0, NULL, &f->kept));
    OK(memopt_allocator_free(f->allocator, a));
    OK(memopt_allocator_alloc(f->allocator, 5 * MIB, 0, NULL, &d));
    OK(memopt_allocator_free(f->allocator, b));
    OK(memopt_allocator_free(f->allocator, c));
    OK(memopt_allocator_free(f->allocator, d));
}

TORTURE_CALL(run_mark, memopt_allocator_mark_step(f->allocator, MEMOPT_STEP_LEARN))
TORTURE_UNDO(undo_mark, memopt_allocator_mark_step(f->allocator, MEMOPT_STEP_END))

static void make_step(memopt_device *device, void *context)
{
    fixture *f = context;
    make(device, context);
    f->kept = NULL;
    do_step(f);
    OK(memopt_allocator_mark_step(f->allocator, MEMOPT_STEP_NEXT));
    do_step(f);
    read_stats(f, f->before);
}

TORTURE_CALL(run_first, memopt_allocator_alloc(f->allocator, 7 * MIB, 0, NULL, &f->block))

/* A plan whose places have lost their memory. */
static void make_plan(memopt_device *device, void *context)
{
    fixture *f = context;
    make_step(device, context);
    OK(run_mark(device, context));
    do_step(f);
    OK(memopt_allocator_trim_sync(f->allocator, 0, NULL));
    OK(memopt_allocator_mark_step(f->allocator, MEMOPT_STEP_NEXT));
    memopt_step_plan plan = MEMOPT_STEP_PLAN_INIT;
    OK(memopt_allocator_get_step_plan(f->allocator, &plan));
    assert_int_equal(plan.active, 1);
    read_stats(f, f->before);
}

TEST(steps)
{
    static const torture_scenario scenario[] = {
        {"mark_step", NULL, make_step, run_mark, undo_mark, check_unchanged, end_kept, 1, 1},
        {"mark_step", NULL, make_step, run_mark, undo_mark, check_unchanged, end_kept, 1, 1},
        {"alloc at a place without memory", NULL, make_plan, run_first, undo_alloc, check_unchanged,
         end_kept, 1, 1},
    };
    for (int i = 0; i < 3; i++) {
        fixture f = {.config = i == 0 ? "" : "expandable_segments:True"};
        int64_t struck = torture(&scenario[i], &f);
        print_message("%s, \"%s\": %lld faults\n", scenario[i].name, f.config, (long long)struck);
        assert_true(struck > 5);
    }
}

TEST(all)
{
    static const char *const configs[] = {"", "expandable_segments:True", ""};
    for (int c = 0; c < 3; c++) {
        fixture f = {.config = configs[c],
                     .memory = c == 2 ? MEMOPT_MEMORY_PINNED : MEMOPT_MEMORY_DEVICE};
        assert_true(torture(&create, &f) > 0);
        for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
            int64_t struck = torture(&scenarios[i], &f);
            print_message("%s, \"%s\", memory %u: %lld faults\n", scenarios[i].name, f.config,
                          f.memory, (long long)struck);
            assert_true(struck > 0);
        }
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
    make_pending(device, &f);
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
