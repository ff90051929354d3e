/* What fits: the largest micro-batch, accumulation, and changes until it fits. Capacities are taken
 * from plans of the same case, so that no number here depends on what a model takes. */
#include "solve_support.h"

#include "base/memory.h"

#include <string.h>

/* The time of an alternative is that of its plan relative to the run's own. */
TEST(test_times_are_of_plans)
{
    mo_plan_case c = small_case(), full, host;
    mo_plan_cost plain, again, copied;
    mo_plan_target all = {0};
    all.all_changes = MO_PLAN_YES;
    c.run.batch = 2;
    full = host = c;
    full.run.checkpointing = MO_PLAN_CHECKPOINT_FULL;
    host.run.offload = MO_PLAN_OFFLOAD_ACTIVATIONS;
    OK(mo_plan_case_cost(&c, &plain));
    OK(mo_plan_case_cost(&full, &again));
    OK(mo_plan_case_cost(&host, &copied));
    mo_plan_solution solution;
    (void)solve(&c, &all, &solution);
    int seen = 0;
    for (uint64_t i = 0; i < solution.found.count; i++) {
        mo_plan_change change = solution.found.changes[i];
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
}

/* One change of a tier that makes it fit alone is taken alone, and of several such the one that
 * saves most for its time. */
TEST(test_one_that_is_enough)
{
    mo_plan_case c = small_case(), changed;
    mo_plan_target keep = {0};
    mo_plan_change change;
    c.run.loss = MO_PLAN_LOSS_FUSED;
    c.card.allocator = MO_PLAN_ALLOCATOR_EXPANDABLE;
    c.card.flops_per_second = 1e12;
    c.run.sequence = 1024;
    c.run.batch = c.run.accumulation = 1;
    keep.keep_dtype = keep.keep_optimizer = keep.keep_training = keep.keep_batch = MO_PLAN_YES;
    keep.min_sequence = c.run.sequence;
    mo_plan_cost plain;
    OK(mo_plan_case_cost(&c, &plain));
    int single = 0;
    for (uint64_t percent = 99; percent > 40; percent -= 2) {
        double best = 0;
        char words[96] = "";
        c.card.capacity = plain.peak / 100 * percent;
        for (int i = 0; i < MO_PLAN_CHANGES; i++) {
            mo_plan_cost cost;
            if (!mo_plan_change_make(i, &c, &keep, &changed, &change))
                continue;
            OK(mo_plan_case_cost(&changed, &cost));
            double time = change.time_factor * cost.time / plain.time;
            double worth = ((double)plain.peak - (double)cost.peak) / (time - 1 + 0.01);
            if (cost.peak <= c.card.capacity && worth > best) {
                best = worth;
                (void)snprintf(words, sizeof words, "%s", change.change);
            }
        }
        if (best > 0) {
            mo_plan_solution solution;
            (void)solve(&c, &keep, &solution);
            assert_int_equal(solution.found.count, 1);
            assert_string_equal(solution.found.changes[0].change, words);
            single++;
        }
    }
    assert_true(single > 5);
}

TEST(test_alternatives)
{
    mo_plan_case c = small_case();
    c.run.batch = 2;
    c.run.attention = MO_PLAN_ATTENTION_EAGER;
    mo_plan_target all = {0};
    all.all_changes = MO_PLAN_YES;
    mo_plan_solution solution;
    mo_plan_fit fit = solve(&c, &all, &solution);
    assert_true(fit.fits);
    assert_true(solution.found.count > 5);
    uint64_t plain = peak_of(&c);
    uint32_t kinds = 0;
    for (uint64_t i = 0; i < solution.found.count; i++) {
        mo_plan_change change = solution.found.changes[i];
        kinds |= 1u << change.kind;
        assert_false(change.applied);
        assert_int_equal(plain - change.peak_bytes, change.saves_bytes);
    }
    /* All that save anything here: one device has no shards, the CPU no rounding. */
    assert_int_equal(kinds,
                     0x7ff & ~(1u << MO_PLAN_CHANGE_SHARDING) & ~(1u << MO_PLAN_CHANGE_ALLOCATOR));
}
