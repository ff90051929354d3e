/* What fits: the largest micro-batch, accumulation, and changes until it fits. Capacities are taken
 * from plans of the same case, so that no number here depends on what a model takes. */
#include "solve_support.h"

#include "base/memory.h"

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

static void test_splits(void **state)
{
    (void)state;
    static const struct {
        uint64_t target, most, world, batch, accumulation;
    } cases[] = {
        {256, 45, 1, 32, 8}, /* exact with less than the largest */
        {256, 82, 1, 64, 4}, {256, 300, 1, 256, 1}, {256, 2, 4, 2, 32},
        {100, 45, 1, 25, 4}, {97, 45, 1, 32, 3}, /* a prime: the nearest */
        {7, 4, 1, 1, 7},                         /* small numbers: exact */
        {30, 7, 4, 7, 1},  /* 28 is nearer than 32, and larger than 2 × 4 × 4 */
        {1, 100, 8, 1, 1}, /* no fewer than a sample per device */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mo_split s = mo_split_batch(cases[i].target, cases[i].most, cases[i].world);
        assert_int_equal(s.effective, s.batch * s.accumulation * cases[i].world);
        assert_true(s.batch <= cases[i].most);
        if (s.batch != cases[i].batch || s.accumulation != cases[i].accumulation)
            fail_msg("target %d: micro-batch %d x %d", (int)cases[i].target, (int)s.batch,
                     (int)s.accumulation);
    }
}

static void test_split_batch(void **state)
{
    (void)state;
    uint64_t batch = 5, steps = 5;
    OK(memopt_plan_split_batch(256, 45, 2, &batch, &steps));
    assert_int_equal(batch, 32);
    assert_int_equal(steps, 4);
    assert_int_equal(memopt_plan_split_batch(0, 45, 2, &batch, &steps), MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(memopt_plan_split_batch(8, 65537, 2, &batch, &steps), MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(memopt_plan_split_batch(8, 1, 0, &batch, &steps), MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(memopt_plan_split_batch(8, 1, 1, NULL, &steps), MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(batch, 32);
}

/* A card's overhead beside bytes from elsewhere is that of a plan with the same bytes. */
static void test_overhead_of_other_bytes(void **state)
{
    (void)state;
    mo_case c = small_case();
    c.card.device = MEMOPT_PLAN_DEVICE_CUDA;
    c.card.margin = 0.5;
    memopt_plan *plan;
    OK(memopt_plan_create(&c.model, &c.run, &c.card, &plan));
    memopt_plan_report report = {.struct_size = sizeof report};
    OK(memopt_plan_get_report(plan, &report));
    OK(memopt_plan_destroy(plan));
    memopt_plan_bytes bytes = report.peak;
    uint64_t limit = 0;
    bytes.overhead = bytes.total = 0;
    OK(memopt_plan_add_overhead(&c.card, &bytes, &limit));
    assert_int_equal(bytes.overhead, report.peak.overhead);
    assert_int_equal(bytes.total, report.peak.total);
    assert_int_equal(limit, report.limit_bytes);
    OK(memopt_plan_add_overhead(NULL, &bytes, NULL));
    assert_int_equal(bytes.overhead, 0);
    c.card.margin = 2;
    assert_int_equal(memopt_plan_add_overhead(&c.card, &bytes, NULL), MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(memopt_plan_add_overhead(NULL, NULL, NULL), MEMOPT_INVALID_ARGUMENT);
}

static void test_splits_are_the_best(void **state)
{
    (void)state;
    for (uint64_t target = 1; target < 150; target++)
        for (uint64_t most = 1; most < 40; most += 3)
            for (uint64_t world = 1; world < 5; world++) {
                mo_split s = mo_split_batch(target, most, world);
                assert_true(s.batch >= 1 && s.batch <= most && s.accumulation >= 1);
                uint64_t off = s.effective > target ? s.effective - target : target - s.effective;
                /* Never further off than half a step of the largest micro-batch that may be. */
                uint64_t per_device = (target + world - 1) / world;
                uint64_t top = most < per_device ? most : per_device;
                assert_true(off <= top * world / 2 || s.accumulation == 1);
            }
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
    for (uint64_t i = 0; i < fit.change_count; i++) {
        memopt_plan_change change = change_of(solution, i);
        assert_false(change.applied);
        assert_int_equal(plain - change.peak_bytes, change.saves_bytes);
    }
    memopt_plan_change none = {.struct_size = sizeof none};
    assert_int_equal(memopt_plan_solution_get_change(solution, fit.change_count, &none),
                     MEMOPT_NOT_FOUND);
    OK(memopt_plan_solution_destroy(solution));
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
        cmocka_unit_test(test_splits),
        cmocka_unit_test(test_splits_are_the_best),
        cmocka_unit_test(test_split_batch),
        cmocka_unit_test(test_overhead_of_other_bytes),
        cmocka_unit_test(test_an_effective_batch),
        cmocka_unit_test(test_no_room_for_accumulation),
        cmocka_unit_test(test_a_batch_that_does_not_fit_is_made_smaller),
        cmocka_unit_test(test_changes_until_it_fits),
        cmocka_unit_test(test_no_more_than_is_needed),
        cmocka_unit_test(test_what_is_kept),
        cmocka_unit_test(test_the_floor),
        cmocka_unit_test(test_alternatives),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_without_host_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
