/*
 * Which device steps which weight; and the tape's hooks, by which engines see a backward. What the
 * engines themselves keep is measured on real steps (tests/plan).
 */
#include "support.h"

#include "plan/parallel/parallel.h"

/* The largest first, each to the device that has the least; of equal ones to the first. */
static void whole_weights_are_given_away(void **state)
{
    const mo_plan_weight w[] = {
        {.count = 30, .learns = 1}, {.count = 50, .learns = 1}, {.count = 99},
        {.count = 30, .learns = 1}, {.count = 10, .learns = 1}, {.count = 40, .learns = 1}};
    const uint64_t counts[] = {50, 30, 40, 30, 10}, device[] = {0, 0, 1, 1, 1};
    const uint32_t index[] = {1, 3, 5, 0, 4};
    mo_plan_weight out[6];
    uint64_t count = 0, states = 0, step = 0;
    mo_plan_tape t = {0};
    (void)state;
    OK(mo_plan_partition(w, 6, 2, out, &count));
    assert_int_equal(count, 5);
    for (uint64_t i = 0; i < count; i++) {
        assert_int_equal(out[i].count, counts[i]);
        assert_int_equal(out[i].chunks, device[i]);
        assert_int_equal(out[i].layer, index[i]);
    }
    mo_plan_run r = {.optimizer = MO_PLAN_ADAMW, .state_dtype = MEMOPT_DTYPE_F32};
    mo_plan_partition_largest(&t, &r, out, count, &states, &step);
    assert_int_equal(states, 8 * 80 + 3 * 4);
    assert_int_equal(step, 4 * (50 + 30 + 30)); /* of 50 one is left while 30 make two */
    r.optimizer = MO_PLAN_ADAMW_FOREACH;
    mo_plan_partition_largest(&t, &r, out, count, &states, &step);
    assert_int_equal(step, 4 * 80);
}

/* Beside a search for the device with the least, over random weights. */
static void the_least_is_found(void **state)
{
    enum { WEIGHTS = 500, DEVICES = 37 };
    mo_plan_weight w[WEIGHTS], out[WEIGHTS];
    uint64_t count = 0, random = 9, has[DEVICES];
    (void)state;
    for (uint64_t world = 1; world <= DEVICES; world += 4) {
        memset(has, 0, sizeof has);
        for (uint64_t i = 0; i < WEIGHTS; i++) {
            random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
            w[i] = (mo_plan_weight){.count = 1 + (random >> 33) % 9, .learns = 1};
        }
        OK(mo_plan_partition(w, WEIGHTS, world, out, &count));
        assert_int_equal(count, WEIGHTS);
        for (uint64_t size = 9; size > 0; size--)
            for (uint64_t i = 0; i < WEIGHTS; i++) {
                uint64_t least = 0, at = 0;
                if (w[i].count != size)
                    continue;
                for (uint64_t d = 1; d < world; d++)
                    least = has[d] < has[least] ? d : least;
                has[least] += size;
                while (out[at].layer != i)
                    at++;
                assert_int_equal(out[at].chunks, least);
            }
    }
}

typedef struct seen {
    mo_plan_tape *t;
    uint64_t total[4];
    uint32_t number[4], count;
} seen;

static void look(void *context, uint32_t number)
{
    seen *s = context;
    s->total[s->count] = s->t->total;
    s->number[s->count++] = number;
}

/* A hook sees the whole gradient of its value, before what made the value has run. */
static void hooks_run_in_backward(void **state)
{
    mo_plan_tape t;
    seen s = {.t = &t};
    (void)state;
    OK(mo_plan_tape_init(&t, 1));
    mo_plan_value x = mo_plan_value_new(&t, 1000, 1, MO_PLAN_ACTIVATIONS);
    mo_plan_value_hook(&t, x, look, &s, 9); /* needs no gradient: never */
    mo_plan_value_learns(&t, x, 1000);
    mo_plan_value y = mo_plan_op_of_input(&t, x, "f");
    mo_plan_value_hook(&t, y, look, &s, 1);
    mo_plan_value loss = mo_plan_op_mean(&t, y, 1);
    mo_plan_value_hook(&t, loss, look, &s, 2);
    mo_plan_drop(&t, y);
    assert_int_equal(s.count, 0);
    mo_plan_tape_backward(&t, loss);
    assert_int_equal(s.count, 2);
    assert_int_equal(s.number[0], 2);
    assert_int_equal(s.total[0], 1002); /* x, the loss and its gradient */
    assert_int_equal(s.number[1], 1);
    assert_int_equal(s.total[1], 2001); /* x, the loss, the gradient of y */
    assert_int_equal(t.total, 2001);    /* x, the loss, the gradient of x */
    OK(t.status);
    mo_plan_tape_end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_weights_are_given_away),
        cmocka_unit_test(the_least_is_found),
        cmocka_unit_test(hooks_run_in_backward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
