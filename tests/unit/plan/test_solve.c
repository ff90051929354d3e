/* What fits: the largest micro-batch, accumulation, and changes until it fits. Capacities are taken
 * from plans of the same case, so that no number here depends on what a model takes. */
#include "solve_support.h"

#include "base/memory.h"

#include <string.h>

static void test_the_largest_micro_batch(void **state)
{
    (void)state;
    for (uint64_t batch = 1; batch < 40; batch = 2 * batch + 1) {
        mo_case c = small_case();
        c.card.capacity = peak_at(c, batch + 1) - 1; /* one byte too little for the next */
        memopt_plan_solution *solution;
        memopt_plan_fit fit = solve(&c, NULL, &solution);
        assert_true(fit.fits && fit.fits_after);
        assert_int_equal(fit.largest_micro_batch, batch);
        assert_int_equal(fit.micro_batch, batch);
        assert_int_equal(fit.effective_batch, batch);
        assert_int_equal(fit.peak_bytes, peak_at(c, batch));
        assert_true(fit.peak_bytes <= fit.limit_bytes);
        assert_int_equal(fit.change_count, 0);
        OK(memopt_plan_solution_destroy(solution));
        /* Without a batch there is none to keep. */
        memopt_plan_target_options keep = MEMOPT_PLAN_TARGET_OPTIONS_INIT;
        keep.keep_batch = 1;
        assert_int_equal(solve(&c, &keep, &solution).micro_batch, batch);
        OK(memopt_plan_solution_destroy(solution));
    }
}

static void test_the_margin_counts(void **state)
{
    (void)state;
    mo_case c = small_case();
    c.card.capacity = peak_at(c, 8);
    c.card.margin = 0.5;
    memopt_plan_solution *solution;
    memopt_plan_fit fit = solve(&c, NULL, &solution);
    assert_true(fit.limit_bytes <= c.card.capacity / 2);
    assert_true(fit.micro_batch < 8);
    assert_true(peak_at(c, fit.micro_batch) <= fit.limit_bytes);
    assert_true(peak_at(c, fit.micro_batch + 1) > fit.limit_bytes);
    OK(memopt_plan_solution_destroy(solution));
}

/* The time of an alternative is that of its plan relative to the run's own. */
static void test_times_are_of_plans(void **state)
{
    (void)state;
    mo_case c = small_case(), full, host;
    mo_cost plain, again, copied;
    memopt_plan_target_options all = MEMOPT_PLAN_TARGET_OPTIONS_INIT;
    all.all_changes = 1;
    c.run.batch = 2;
    full = host = c;
    full.run.checkpointing = MEMOPT_PLAN_CHECKPOINT_FULL;
    host.run.offload = MEMOPT_PLAN_OFFLOAD_ACTIVATIONS;
    OK(mo_case_cost(&c, &plain));
    OK(mo_case_cost(&full, &again));
    OK(mo_case_cost(&host, &copied));
    memopt_plan_solution *solution;
    memopt_plan_fit fit = solve(&c, &all, &solution);
    int seen = 0;
    for (uint64_t i = 0; i < fit.change_count; i++) {
        memopt_plan_change change = change_of(solution, i);
        double wanted = strcmp(change.option, "--checkpointing full") == 0 ? again.time / plain.time
                        : strcmp(change.option, "--offload activations") == 0
                            ? copied.time / plain.time
                            : change.time_factor;
        seen += strcmp(change.option, "--checkpointing full") == 0 ||
                strcmp(change.option, "--offload activations") == 0;
        assert_true(wanted >= 1 && change.time_factor > wanted * 0.999999 &&
                    change.time_factor < wanted * 1.000001);
    }
    assert_true(seen == 2 && again.time / plain.time > 1.2 && copied.time / plain.time > 1.5);
    OK(memopt_plan_solution_destroy(solution));
}

/* One change of a tier that makes it fit alone is taken alone, and of several such the one that
 * saves most for its time. */
static void test_one_that_is_enough(void **state)
{
    (void)state;
    mo_case c = small_case(), changed;
    memopt_plan_target_options keep = MEMOPT_PLAN_TARGET_OPTIONS_INIT;
    memopt_plan_change change;
    c.run.loss = MEMOPT_PLAN_LOSS_FUSED;
    c.card.allocator = MEMOPT_PLAN_ALLOCATOR_EXPANDABLE;
    c.card.flops_per_second = 1e12;
    c.run.sequence = 1024;
    c.run.batch = c.run.accumulation = 1;
    keep.keep_dtype = keep.keep_optimizer = keep.keep_weights = keep.keep_batch = 1;
    keep.min_sequence = c.run.sequence;
    mo_cost plain;
    OK(mo_case_cost(&c, &plain));
    int single = 0;
    for (uint64_t percent = 99; percent > 40; percent -= 2) {
        double best = 0;
        char words[96] = "";
        c.card.capacity = plain.peak / 100 * percent;
        for (int i = 0; i < MO_CHANGES; i++) {
            mo_cost cost;
            if (!mo_change_make(i, &c, &keep, &changed, &change))
                continue;
            OK(mo_case_cost(&changed, &cost));
            double time = change.time_factor * cost.time / plain.time;
            double worth = ((double)plain.peak - (double)cost.peak) / (time - 1 + 0.01);
            if (cost.peak <= c.card.capacity && worth > best) {
                best = worth;
                (void)snprintf(words, sizeof words, "%s", change.change);
            }
        }
        if (best > 0) {
            memopt_plan_solution *solution;
            memopt_plan_fit fit = solve(&c, &keep, &solution);
            assert_int_equal(fit.change_count, 1);
            assert_string_equal(change_of(solution, 0).change, words);
            OK(memopt_plan_solution_destroy(solution));
            single++;
        }
    }
    assert_true(single > 5);
}

static void test_an_effective_batch(void **state)
{
    (void)state;
    mo_case c = small_case();
    c.run.world_size = 4;
    c.card.capacity = peak_at(c, 11) + MIB;
    memopt_plan_target_options target = MEMOPT_PLAN_TARGET_OPTIONS_INIT;
    target.effective_batch = 256;
    memopt_plan_solution *solution;
    memopt_plan_fit fit = solve(&c, &target, &solution);
    assert_int_equal(fit.micro_batch, 8);
    assert_int_equal(fit.accumulation, 8);
    assert_int_equal(fit.effective_batch, 256);
    assert_int_equal(fit.remainder, 0);
    mo_case run = chosen(solution, &c);
    assert_int_equal(run.run.batch, 8);
    assert_int_equal(run.run.accumulation, 8);
    assert_int_equal(peak_of(&run), fit.peak_bytes);
    OK(memopt_plan_solution_destroy(solution));
    target.effective_batch = 258; /* 4 does not divide it */
    fit = solve(&c, &target, &solution);
    assert_int_equal((int64_t)fit.effective_batch - 258, fit.remainder);
    assert_true(fit.remainder == 2 || fit.remainder == -2);
    OK(memopt_plan_solution_destroy(solution));
}

/* One micro-batch fits and two do not, for their gradients: the effective batch asks for changes.
 */
static void test_no_room_for_accumulation(void **state)
{
    (void)state;
    mo_case c = small_case();
    c.card.capacity = peak_at(c, 1);
    memopt_plan_target_options target = MEMOPT_PLAN_TARGET_OPTIONS_INIT;
    target.effective_batch = 8;
    memopt_plan_solution *solution;
    memopt_plan_fit fit = solve(&c, &target, &solution);
    assert_false(fit.fits);
    assert_true(fit.fits_after);
    assert_int_equal(fit.effective_batch, 8);
    assert_true(fit.change_count > 0 && fit.peak_bytes <= fit.limit_bytes);
    OK(memopt_plan_solution_destroy(solution));
    target.effective_batch = 1;
    fit = solve(&c, &target, &solution);
    assert_true(fit.fits);
    OK(memopt_plan_solution_destroy(solution));
    /* Two samples at once fit, and three are three micro-batches, or 2 or 4. */
    c.run.sequence = 96;
    c.run.optimizer = MEMOPT_PLAN_ADAMW_FUSED;
    c.run.batch = 2;
    c.card.capacity = peak_of(&c);
    target.effective_batch = 3;
    fit = solve(&c, &target, &solution);
    assert_false(fit.fits);
    assert_int_equal(fit.start_accumulation, 2);
    assert_true(fit.fits_after);
    assert_int_equal(fit.effective_batch, 3);
    OK(memopt_plan_solution_destroy(solution));
}

static void test_a_batch_that_does_not_fit_is_made_smaller(void **state)
{
    (void)state;
    mo_case c = small_case();
    c.run.batch = 8;
    c.run.accumulation = 2;
    c.card.capacity = peak_at(c, 6); /* with accumulation, whose gradients stay */
    memopt_plan_solution *solution;
    memopt_plan_fit fit = solve(&c, NULL, &solution);
    assert_false(fit.fits);
    assert_true(fit.fits_after);
    assert_int_equal(fit.effective_batch, 16);
    assert_int_equal(fit.micro_batch, 4);
    assert_int_equal(fit.accumulation, 4);
    assert_int_equal(fit.change_count, 1);
    memopt_plan_change change = change_of(solution, 0);
    assert_int_equal(change.kind, MEMOPT_PLAN_CHANGE_MICRO_BATCH);
    assert_true(change.applied);
    assert_int_equal(change.peak_bytes, fit.peak_bytes);
    assert_int_equal(change.saves_bytes, peak_of(&c) - fit.peak_bytes);
    OK(memopt_plan_solution_destroy(solution));
    memopt_plan_target_options keep = MEMOPT_PLAN_TARGET_OPTIONS_INIT;
    keep.keep_batch = 1;
    fit = solve(&c, &keep, &solution);
    assert_true(fit.fits_after);
    assert_int_equal(fit.micro_batch, 8);
    for (uint64_t i = 0; i < fit.change_count; i++)
        assert_int_not_equal(change_of(solution, i).kind, MEMOPT_PLAN_CHANGE_MICRO_BATCH);
    OK(memopt_plan_solution_destroy(solution));
}

/* The applied changes: each saves what it says on top of those before it, and together they fit. */
static void check_changes(const memopt_plan_solution *solution, const memopt_plan_fit *fit,
                          uint64_t before)
{
    double time = 1;
    uint64_t last = before;
    for (uint64_t i = 0; i < fit->change_count; i++) {
        memopt_plan_change change = change_of(solution, i);
        assert_true(change.change[0] != 0 && change.option[0] == '-');
        assert_true(change.time_factor >= 1);
        if (!change.applied)
            continue;
        assert_int_equal(last - change.peak_bytes, change.saves_bytes);
        assert_true(change.saves_bytes > 0);
        last = change.peak_bytes;
        time *= change.time_factor;
    }
    assert_true(last <= fit->limit_bytes);
    assert_true(time > fit->time_factor - 1e-9 && time < fit->time_factor + 1e-9);
}

static void test_changes_until_it_fits(void **state)
{
    (void)state;
    mo_case c = small_case();
    uint64_t plain = peak_at(c, 1);
    int dropped = 0;
    for (int percent = 95; percent > 20; percent -= 15) {
        c.card.capacity = plain / 100 * (uint64_t)percent;
        memopt_plan_solution *solution;
        memopt_plan_fit fit = solve(&c, NULL, &solution);
        assert_false(fit.fits);
        if (!fit.fits_after) {
            dropped++;
            OK(memopt_plan_solution_destroy(solution));
            continue;
        }
        check_changes(solution, &fit, plain);
        mo_case run = chosen(solution, &c);
        assert_int_equal(peak_of(&run), fit.peak_bytes);
        assert_true(fit.peak_bytes <= fit.limit_bytes);
        assert_int_equal(fit.floor_bytes, 0);
        OK(memopt_plan_solution_destroy(solution));
    }
    assert_true(dropped < 3);
}

/* No change is applied that is not needed: the cheapest that does it alone is taken alone. */
static void test_no_more_than_is_needed(void **state)
{
    (void)state;
    mo_case c = small_case();
    c.card.capacity = peak_at(c, 1) - 1;
    memopt_plan_solution *solution;
    memopt_plan_fit fit = solve(&c, NULL, &solution);
    assert_true(fit.fits_after);
    assert_int_equal(fit.change_count, 1);
    OK(memopt_plan_solution_destroy(solution));
}

static void test_what_is_kept(void **state)
{
    (void)state;
    mo_case c = small_case();
    c.card.capacity = peak_at(c, 1) / 2;
    memopt_plan_target_options keep = MEMOPT_PLAN_TARGET_OPTIONS_INIT;
    keep.keep_dtype = keep.keep_optimizer = keep.keep_weights = 1;
    keep.min_sequence = c.run.sequence;
    keep.all_changes = 1;
    memopt_plan_solution *solution;
    memopt_plan_fit fit = solve(&c, &keep, &solution);
    assert_true(fit.change_count > 0);
    for (uint64_t i = 0; i < fit.change_count; i++) {
        uint32_t kind = change_of(solution, i).kind;
        assert_true(kind != MEMOPT_PLAN_CHANGE_DTYPE && kind != MEMOPT_PLAN_CHANGE_OPTIMIZER &&
                    kind != MEMOPT_PLAN_CHANGE_LORA && kind != MEMOPT_PLAN_CHANGE_SEQUENCE);
    }
    OK(memopt_plan_solution_destroy(solution));
}

static void test_the_floor(void **state)
{
    (void)state;
    mo_case c = small_case();
    c.card.capacity = 2 * MIB;
    memopt_plan_solution *solution;
    memopt_plan_fit fit = solve(&c, NULL, &solution);
    assert_false(fit.fits || fit.fits_after);
    assert_int_equal(fit.micro_batch, 0);
    assert_true(fit.floor_bytes > fit.limit_bytes);
    assert_true(fit.floor_bytes < peak_at(c, 1) / 2);
    mo_case run = chosen(solution, &c);
    assert_int_equal(peak_of(&run), fit.floor_bytes);
    OK(memopt_plan_solution_destroy(solution));
    /* A card of just the floor fits. */
    c.card.capacity = fit.floor_bytes;
    memopt_plan_fit again = solve(&c, NULL, &solution);
    assert_true(again.fits_after);
    OK(memopt_plan_solution_destroy(solution));
}

static void test_alternatives(void **state)
{
    (void)state;
    mo_case c = small_case();
    c.run.batch = 2;
    c.run.attention = MEMOPT_PLAN_ATTENTION_EAGER;
    memopt_plan_target_options all = MEMOPT_PLAN_TARGET_OPTIONS_INIT;
    all.all_changes = 1;
    memopt_plan_solution *solution;
    memopt_plan_fit fit = solve(&c, &all, &solution);
    assert_true(fit.fits);
    assert_true(fit.change_count > 5);
    uint64_t plain = peak_of(&c);
    uint32_t kinds = 0;
    for (uint64_t i = 0; i < fit.change_count; i++) {
        memopt_plan_change change = change_of(solution, i);
        kinds |= 1u << change.kind;
        assert_false(change.applied);
        assert_int_equal(plain - change.peak_bytes, change.saves_bytes);
    }
    /* All that save anything here: one device has no shards, the CPU no rounding. */
    assert_int_equal(kinds, 0x7ff & ~(1u << MEMOPT_PLAN_CHANGE_SHARDING) &
                                ~(1u << MEMOPT_PLAN_CHANGE_ALLOCATOR));
    memopt_plan_change none = {.struct_size = sizeof none};
    assert_int_equal(memopt_plan_solution_get_change(solution, fit.change_count, &none),
                     MEMOPT_NOT_FOUND);
    OK(memopt_plan_solution_destroy(solution));
}

/* A micro-batch whose layers do not fit the budget for checkpointing does not fit; the run as given
 * is refused for it. */
static void test_budgets_for_checkpointing(void **state)
{
    (void)state;
    mo_case c = small_case();
    memopt_plan *plan = NULL;
    memopt_plan_solution *solution = NULL;
    c.run.checkpointing = MEMOPT_PLAN_CHECKPOINT_BUDGET;
    c.run.checkpoint_budget = 40 * MIB;
    memopt_plan_fit fit = solve(&c, NULL, &solution);
    assert_true(fit.fits && fit.micro_batch > 1);
    OK(memopt_plan_solution_destroy(solution));
    c.run.batch = fit.micro_batch;
    OK(memopt_plan_create(&c.model, &c.run, &c.card, &plan));
    OK(memopt_plan_destroy(plan));
    c.run.batch++;
    assert_int_equal(memopt_plan_create(&c.model, &c.run, &c.card, &plan), MEMOPT_LIMIT_REACHED);
    assert_int_equal(memopt_plan_solve(&c.model, &c.run, &c.card, NULL, &solution),
                     MEMOPT_LIMIT_REACHED);
}

static void test_refusals(void **state)
{
    (void)state;
    mo_case c = small_case();
    memopt_plan_solution *solution = NULL;
    memopt_plan_target_options bad = MEMOPT_PLAN_TARGET_OPTIONS_INIT;
    assert_int_equal(memopt_plan_solve(NULL, &c.run, &c.card, NULL, &solution),
                     MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(memopt_plan_solve(&c.model, &c.run, &c.card, NULL, NULL),
                     MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(memopt_plan_solve(&c.model, &c.run, NULL, NULL, &solution),
                     MEMOPT_INVALID_ARGUMENT); /* no capacity */
    bad.keep_batch = 2;
    assert_int_equal(memopt_plan_solve(&c.model, &c.run, &c.card, &bad, &solution),
                     MEMOPT_INVALID_ARGUMENT);
    bad.keep_batch = 0;
    bad.effective_batch = UINT64_MAX;
    assert_int_equal(memopt_plan_solve(&c.model, &c.run, &c.card, &bad, &solution),
                     MEMOPT_INVALID_ARGUMENT);
    c.model.heads = 7;
    assert_int_equal(memopt_plan_solve(&c.model, &c.run, &c.card, NULL, &solution),
                     MEMOPT_INVALID_ARGUMENT);
    assert_null(solution);
    OK(memopt_plan_solution_destroy(NULL));
}

static void test_without_host_memory(void **state)
{
    (void)state;
    mo_case c = small_case();
    c.model.layers = 1;
    c.card.capacity = peak_at(c, 1) / 2;
    int64_t blocks = mo_memory_live_blocks();
    memopt_status status = MEMOPT_OUT_OF_HOST_MEMORY;
    for (int64_t n = 1; status != MEMOPT_OK; n = n < 200 ? n + 1 : n + n / 3) {
        memopt_plan_solution *solution = NULL;
        mo_memory_fail_at(n);
        status = memopt_plan_solve(&c.model, &c.run, &c.card, NULL, &solution);
        int struck = mo_memory_fault_struck();
        mo_memory_fail_at(0);
        if (struck)
            assert_int_equal(status, MEMOPT_OUT_OF_HOST_MEMORY);
        else
            OK(status);
        OK(memopt_plan_solution_destroy(solution));
        assert_int_equal(mo_memory_live_blocks(), blocks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_largest_micro_batch),
        cmocka_unit_test(test_the_margin_counts),
        cmocka_unit_test(test_times_are_of_plans),
        cmocka_unit_test(test_one_that_is_enough),
        cmocka_unit_test(test_an_effective_batch),
        cmocka_unit_test(test_no_room_for_accumulation),
        cmocka_unit_test(test_a_batch_that_does_not_fit_is_made_smaller),
        cmocka_unit_test(test_changes_until_it_fits),
        cmocka_unit_test(test_no_more_than_is_needed),
        cmocka_unit_test(test_what_is_kept),
        cmocka_unit_test(test_the_floor),
        cmocka_unit_test(test_alternatives),
        cmocka_unit_test(test_budgets_for_checkpointing),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_without_host_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
