/*
 * Ranges of a chain that are alike are solved once: the steps must be those of solvers that solve
 * every range on its own.
 */
#include "support.h"

#include "base/memory.h"
#include "checkpoint/schedule.h"
#include "support/random.h"

#include <string.h>

enum { MOST = 40, ROUNDS = 400 };

static uint64_t state = 0x9E3779B97F4A7C15u;

static memopt_chain_stage random_stage(void)
{
    uint64_t output = 1 + random_below(&state, 30);
    return (memopt_chain_stage){(double)random_below(&state, 4),
                                (double)random_below(&state, 4),
                                output,
                                output + random_below(&state, 30),
                                random_below(&state, 20),
                                random_below(&state, 20)};
}

/* A pattern of a few stages again and again, with strangers among them; at times the strangers
 * differ from their neighbours by one number alone. */
static void random_stages(memopt_chain_stage *stages, uint64_t count)
{
    memopt_chain_stage pattern[4];
    uint64_t period = 1 + random_below(&state, 4), strangers = random_below(&state, 4);
    for (uint64_t i = 0; i < period; i++)
        pattern[i] = random_stage();
    for (uint64_t i = 0; i < count; i++)
        stages[i] = pattern[i % period];
    for (uint64_t n = 0; n < strangers; n++) {
        memopt_chain_stage *s = &stages[random_below(&state, count)], other = random_stage();
        switch (random_below(&state, 7)) {
        case 0:
            s->forward_seconds += 1;
            break;
        case 1:
            s->backward_seconds += 1;
            break;
        case 2:
            s->saved_bytes += 1;
            break;
        case 3:
            s->forward_extra_bytes += 1 + random_below(&state, 40);
            break;
        case 4:
            s->backward_extra_bytes += 1 + random_below(&state, 40);
            break;
        case 5:
            s->output_bytes -= s->output_bytes > 1;
            break;
        default:
            *s = other;
        }
    }
}

/* A cell of its own for every range, in the order in which solvers go. */
static mo_chain apart(const mo_chain *c)
{
    mo_chain own = *c;
    own.cells = mo_malloc(c->count * (c->count + 1) / 2 * sizeof *own.cells);
    assert_non_null(own.cells);
    own.cell_count = 0;
    for (uint64_t i = c->count; i-- > 0;)
        for (uint64_t j = i; j < c->count; j++)
            own.cells[i * c->count - i * (i - 1) / 2 + j - i] = (uint32_t)own.cell_count++;
    return own;
}

static mo_schedule_steps least(const mo_chain *c, uint64_t *budget)
{
    mo_schedule_steps steps = {NULL, 0, 0};
    mo_cuts cuts;
    OK(mo_schedule_minimum(c, &cuts, budget));
    OK(mo_schedule_expand(&cuts, UINT64_MAX, &steps));
    mo_free(cuts.table);
    return steps;
}

static mo_schedule_steps fastest(const mo_chain *c, uint64_t budget, uint64_t slots, int *fits)
{
    mo_schedule_steps steps = {NULL, 0, 0};
    mo_cuts cuts;
    OK(mo_schedule_fastest(c, budget, slots, &cuts, fits));
    if (*fits) {
        OK(mo_schedule_expand(&cuts, cuts.slots, &steps));
        mo_free(cuts.table);
    }
    return steps;
}

static void same_steps(mo_schedule_steps a, mo_schedule_steps b)
{
    assert_int_equal(a.count, b.count);
    if (a.count > 0)
        assert_memory_equal(a.items, b.items, a.count * sizeof *a.items);
    mo_free(a.items);
    mo_free(b.items);
}

TEST(test_shared_cells_change_nothing)
{
    uint64_t shared = 0, fitting = 0;
    for (int round = 0; round < ROUNDS; round++) {
        memopt_chain_stage stages[MOST];
        mo_chain c = {.stages = stages, .count = 1 + random_below(&state, MOST)};
        random_stages(stages, c.count);
        c.input_gradient = (int)random_below(&state, 2);
        c.input_bytes = random_below(&state, 2) ? stages[0].output_bytes : random_below(&state, 40);
        OK(mo_chain_find_cells(&c));
        mo_chain own = apart(&c);
        uint64_t floor, own_floor;
        mo_schedule_steps steps = least(&c, &floor);
        same_steps(steps, least(&own, &own_floor));
        assert_int_equal(floor, own_floor);
        for (uint64_t budget = floor; budget < floor + 200;
             budget += 1 + random_below(&state, 90)) {
            int fits, own_fits;
            uint64_t slots = 20 + random_below(&state, 100);
            steps = fastest(&c, budget, slots, &fits);
            same_steps(steps, fastest(&own, budget, slots, &own_fits));
            assert_int_equal(fits, own_fits);
            fitting += (uint64_t)fits;
        }
        shared += own.cell_count - c.cell_count;
        mo_free(c.cells);
        mo_free(own.cells);
    }
    assert_true(shared > ROUNDS * 50 && fitting > ROUNDS);
}

/* Eighty equal layers are what takes long; ranges differ by their length, and by whether the
 * chain's first stage, whose input may have no gradient, is among them. */
TEST(test_equal_stages_share_all)
{
    memopt_chain_stage stages[80];
    mo_chain c = {.stages = stages, .count = 80, .input_bytes = 10, .input_gradient = 1};
    for (uint64_t i = 0; i < c.count; i++)
        stages[i] = (memopt_chain_stage){1, 2, 10, 30, 5, 5};
    OK(mo_chain_find_cells(&c));
    assert_int_equal(c.cell_count, 80);
    mo_free(c.cells);
    c.input_gradient = 0;
    OK(mo_chain_find_cells(&c));
    assert_int_equal(c.cell_count, 79 + 80);
    mo_free(c.cells);
    c.input_gradient = 1;
    stages[79].backward_extra_bytes = 6;
    OK(mo_chain_find_cells(&c));
    assert_int_equal(c.cell_count, 79 + 80);
    mo_free(c.cells);
}
