/* Whatever is asked of the solver, its answer fits, and every number in it goes with the others. */
#include "solve_support.h"

/* A case and a target of many kinds. */
typedef struct asked {
    mo_plan_case c;
    mo_plan_target target;
} asked;

static asked random_case(uint64_t *seed)
{
    asked a = {.c = small_case()};
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407;
    uint64_t r = *seed;
    mo_plan_run *run = &a.c.run;
    a.c.card.capacity = 8 * MIB + (r >> 33) % (256 * MIB);
    run->batch = (r >> 20) % 9;
    run->accumulation = (r >> 12) % 3;
    run->world_size = 1 + (r >> 16) % 3;
    a.target.effective_batch = (r >> 24) % 60;
    a.target.keep_batch = (r >> 30) % 3 == 0 ? MO_PLAN_YES : MO_PLAN_NO;
    a.target.all_changes = (r >> 29) % 2 ? MO_PLAN_YES : MO_PLAN_NO;
    if ((r >> 35) % 3 == 0)
        a.target.max_micro_batch = 1 + (r >> 37) % 4;
    if ((r >> 40) % 3 == 0)
        a.c.card.margin = 0.75;
    if ((r >> 42) % 4 == 0) {
        a.c.model.family = MO_PLAN_MIXTRAL;
        a.c.model.experts = 4;
        a.c.model.ffn = 256;
    }
    if ((r >> 50) % 4 == 0) {
        a.c.card.device = MO_PLAN_DEVICE_CUDA;
        a.c.card.capacity += 600 * MIB;
    }
    if ((r >> 44) % 4 == 0)
        a.c.model.lora_rank = 4;
    if ((r >> 46) % 4 == 0)
        run->attention = MO_PLAN_ATTENTION_EAGER;
    if ((r >> 48) % 4 == 0)
        run->optimizer = MO_PLAN_ADAMW_FOREACH;
    return a;
}

/* What is to be run: with the card that a change of the allocator makes. */
static mo_plan_case proposed(const asked *a, const mo_plan_solution *solution)
{
    mo_plan_case run = chosen(solution, &a->c);
    for (uint64_t i = 0; i < solution->found.count; i++) {
        mo_plan_change change = solution->found.changes[i];
        if (change.applied && change.kind == MO_PLAN_CHANGE_ALLOCATOR)
            run.card.allocator = MO_PLAN_ALLOCATOR_EXPANDABLE;
    }
    return run;
}

/* Changes that are applied lead, saving by saving, from the run as given to what is proposed; the
 * others start at the run as given. */
static void check_way(const asked *a, const mo_plan_solution *solution, const mo_plan_fit *fit)
{
    uint64_t peak = fit->start_peak_bytes;
    double time = 1;
    int alternatives = 0;
    uint32_t kinds = 0;
    char words[96];
    for (uint64_t i = 0; i < solution->found.count; i++) {
        mo_plan_change change = solution->found.changes[i];
        /* No batch was asked for that a smaller one would change. */
        assert_true(a->c.run.batch > 0 || change.kind != MO_PLAN_CHANGE_MICRO_BATCH);
        if (!change.applied) {
            alternatives = 1;
            assert_int_equal(kinds >> change.kind & 1, 0); /* one of the kind is applied */
            assert_int_equal(fit->start_peak_bytes - change.saves_bytes, change.peak_bytes);
            continue;
        }
        assert_false(alternatives);
        kinds |= 1u << change.kind;
        assert_true(change.saves_bytes > 0);
        peak -= change.saves_bytes;
        assert_int_equal(change.peak_bytes, peak);
        time *= change.time_factor;
        if (change.kind != MO_PLAN_CHANGE_MICRO_BATCH || !fit->fits_after)
            continue;
        (void)snprintf(words, sizeof words, "micro-batch %d → %d, accumulation %d → %d",
                       (int)fit->start_batch, (int)fit->micro_batch, (int)fit->start_accumulation,
                       (int)fit->accumulation);
        assert_string_equal(change.change, words);
        (void)snprintf(words, sizeof words, "--batch %d --accumulation %d", (int)fit->micro_batch,
                       (int)fit->accumulation);
        assert_string_equal(change.option, words);
    }
    if (!fit->fits)
        assert_int_equal(peak, fit->peak_bytes);
    assert_true(time > fit->time_factor - 1e-9 && time < fit->time_factor + 1e-9);
}

/* What is said of the run as given: its batch, with the accumulation that the target asks for. */
static void check_start(const asked *a, const mo_plan_fit *fit)
{
    mo_plan_case start = a->c;
    uint64_t world = a->c.run.world_size, target = a->target.effective_batch;
    start.run.batch = fit->start_batch;
    start.run.accumulation = fit->start_accumulation;
    assert_int_equal(peak_of(&start), fit->start_peak_bytes);
    assert_int_equal(fit->fits, fit->start_peak_bytes <= fit->limit_bytes);
    if (fit->fits || (a->c.run.batch == 0 && fit->fits_after)) {
        assert_int_equal(fit->start_batch, fit->micro_batch);
        assert_int_equal(fit->start_accumulation, fit->accumulation);
        return;
    }
    assert_int_equal(fit->start_batch, a->c.run.batch ? a->c.run.batch : 1);
    if (target == 0)
        assert_int_equal(fit->start_accumulation,
                         a->c.run.accumulation ? a->c.run.accumulation : 1);
    else {
        uint64_t step = fit->start_batch * world, samples = step * fit->start_accumulation;
        assert_true(samples <= target
                        ? 2 * (target - samples) <= step
                        : 2 * (samples - target) < step || fit->start_accumulation <= 2);
    }
}

/* Neither the largest micro-batch nor the proposed one is told wrongly. */
static void check_batches(const asked *a, const mo_plan_solution *solution, const mo_plan_fit *fit)
{
    mo_plan_case run = proposed(a, solution);
    uint64_t world = a->c.run.world_size;
    int kept = a->target.keep_batch == MO_PLAN_YES && a->c.run.batch != 0;
    assert_int_equal(run.run.batch, fit->micro_batch);
    assert_int_equal(run.run.accumulation, fit->accumulation);
    assert_true(fit->peak_bytes <= fit->limit_bytes);
    assert_int_equal(fit->effective_batch, fit->micro_batch * fit->accumulation * world);
    assert_int_equal((int64_t)(fit->effective_batch - fit->target_batch), fit->remainder);
    assert_true(a->c.run.batch == 0 || fit->micro_batch <= a->c.run.batch);
    assert_true(a->target.max_micro_batch == 0 || kept ||
                fit->micro_batch <= a->target.max_micro_batch);
    assert_true(!kept || fit->micro_batch == a->c.run.batch);
    assert_true(fit->micro_batch <= fit->largest_micro_batch);
    assert_true(peak_at(run, fit->largest_micro_batch) <= fit->limit_bytes);
    assert_true(peak_at(run, fit->largest_micro_batch + 1) > fit->limit_bytes);
    uint64_t given = a->c.run.batch * (a->c.run.accumulation ? a->c.run.accumulation : 1) * world;
    uint64_t target = a->target.effective_batch ? a->target.effective_batch : given;
    assert_int_equal(fit->target_batch, target ? target : fit->effective_batch);
    if (a->target.effective_batch > world * (a->c.run.batch ? a->c.run.batch : 1) && !fit->fits &&
        !kept) /* accumulation was made room for */
        assert_true(fit->effective_batch + world * fit->micro_batch / 2 >= fit->target_batch);
}

/* Whatever the card and what is asked for, what is proposed fits, and is told rightly. */
TEST(test_what_is_proposed_fits)
{
    uint64_t seed = 7, fitting = 0, changed = 0;
    for (int i = 0; i < 1000; i++) {
        asked a = random_case(&seed);
        mo_plan_solution solution;
        mo_plan_fit fit = solve(&a.c, &a.target, &solution);
        mo_plan_case run = proposed(&a, &solution);
        assert_int_equal(peak_of(&run), fit.peak_bytes);
        check_start(&a, &fit);
        check_way(&a, &solution, &fit);
        if (fit.fits_after)
            check_batches(&a, &solution, &fit);
        else
            assert_true(fit.floor_bytes > fit.limit_bytes && fit.micro_batch == 0);
        fitting += fit.fits_after;
        changed += fit.fits_after && !fit.fits;
    }
    assert_true(fitting > 400 && fitting < 1000 && changed > 120);
}

/* A card of exactly the floor fits, and one of a byte less does not. */
TEST(test_floors_are_exact)
{
    uint64_t seed = 11;
    for (int i = 0; i < 20; i++) {
        asked a = random_case(&seed);
        mo_plan_solution solution;
        a.c.card.margin = 1;
        a.c.card.capacity = MIB;
        mo_plan_fit fit = solve(&a.c, &a.target, &solution);
        assert_false(fit.fits_after);
        /* Each change is made once: a half and a quarter. */
        assert_true(chosen(&solution, &a.c).run.sequence >= a.c.run.sequence / 8);
        uint64_t floor = fit.floor_bytes;
        a.c.card.capacity = floor - 1;
        fit = solve(&a.c, &a.target, &solution);
        assert_false(fit.fits_after);
        assert_int_equal(fit.floor_bytes, floor);
        a.c.card.capacity = floor;
        fit = solve(&a.c, &a.target, &solution);
        assert_true(fit.fits_after);
        assert_true(fit.peak_bytes <= floor);
    }
}
