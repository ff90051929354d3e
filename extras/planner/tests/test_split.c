/* Micro-batch and accumulation for an effective batch. */
#include "solve_support.h"

static uint64_t off(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

/* As the header says it, tried one by one: exact with a micro-batch of at least a quarter of the
 * largest, else the nearest with one of its larger half; of equal ones the largest micro-batch, and
 * the fewest micro-batches. */
static mo_plan_split naive_split(uint64_t target, uint64_t most, uint64_t world)
{
    uint64_t per_device = (target + world - 1) / world, top = most < per_device ? most : per_device;
    mo_plan_split best = {0, 0, UINT64_MAX / 2};
    for (int exact = 1; exact >= 0 && best.batch == 0; exact--)
        for (uint64_t batch = top; batch > 0 && batch >= top / (exact ? 4 : 2); batch--)
            for (uint64_t steps = 1; steps <= target + 1; steps++) {
                uint64_t all = batch * steps * world;
                if (exact ? all == target && best.batch == 0
                          : off(all, target) < off(best.effective, target))
                    best = (mo_plan_split){batch, steps, all};
            }
    return best;
}

TEST(test_splits_are_the_best)
{
    for (uint64_t target = 1; target < 110; target += 1 + target / 20)
        for (uint64_t most = 1; most < 40; most += 1 + most / 8)
            for (uint64_t world = 1; world < 6; world++) {
                mo_plan_split s = mo_plan_split_batch(target, most, world);
                mo_plan_split wanted = naive_split(target, most, world);
                assert_int_equal(s.batch, wanted.batch);
                assert_int_equal(s.accumulation, wanted.accumulation);
                assert_int_equal(s.effective, wanted.effective);
            }
}
