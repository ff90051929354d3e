/*
 * Rules of the tape that measured steps (extras/planner/tests/truth) do not show, counted by hand. Sizes are powers
 * of ten, so that a total says what is in it.
 */
#include "support.h"

#include "tape/operations.h"

static void start(mo_plan_tape *t)
{
    assert_int_equal(mo_plan_tape_init(t, 4), MEMOPT_OK);
    t->phase = MO_PLAN_PHASE_FORWARD;
}

/* The loss, one byte; nothing else holds what it is of. */
static mo_plan_value mean_of(mo_plan_tape *t, mo_plan_value y)
{
    mo_plan_value loss = mo_plan_op_mean(t, y, 1);
    mo_plan_drop(t, y);
    return loss;
}

static uint64_t peak(const mo_plan_tape *t, uint32_t phase)
{
    return t->phases[phase].total;
}

/* A gradient is cast to its narrower value while the node still holds what it saved. */
TEST(saved_values_are_there_when_gradients_are_cast)
{
    mo_plan_tape t;
    start(&t);
    mo_plan_value wide = mo_plan_value_new(&t, 500, 2, MO_PLAN_ACTIVATIONS);
    mo_plan_value narrow = mo_plan_value_new(&t, 500, 1, MO_PLAN_ACTIVATIONS);
    mo_plan_value_learns(&t, wide, 1000);
    mo_plan_value_learns(&t, narrow, 500);
    mo_plan_value x = mo_plan_op_scale(&t, wide), y = mo_plan_op_scale(&t, narrow);
    mo_plan_value product = mo_plan_op_mul(&t, x, y);
    mo_plan_value loss = mean_of(&t, product);
    mo_plan_drop(&t, x);
    mo_plan_drop(&t, y);
    mo_plan_tape_backward(&t, loss);
    /* Both leaves, the loss and its gradient; x and y, saved; the product's gradient; both
     * gradients in the product's type and one of them cast. */
    assert_int_equal(peak(&t, MO_PLAN_PHASE_BACKWARD), 1502 + 1500 + 1000 + 2000 + 500);
    mo_plan_tape_end(&t);
}

TEST(offloaded_values_are_held_by_the_host)
{
    mo_plan_tape t;
    start(&t);
    mo_plan_value leaf = mo_plan_value_new(&t, 4096, 1, MO_PLAN_ACTIVATIONS);
    mo_plan_value_learns(&t, leaf, 4096);
    t.offload = 1;
    mo_plan_value x = mo_plan_op_scale(&t, leaf);
    mo_plan_value y = mo_plan_op_of_input(&t, x, "f"), z = mo_plan_op_of_input(&t, x, "g");
    mo_plan_value sum = mo_plan_op_add(&t, y, z);
    mo_plan_value loss = mean_of(&t, sum);
    mo_plan_drop(&t, x);
    mo_plan_drop(&t, y);
    mo_plan_drop(&t, z);
    assert_int_equal(t.total, 4097);
    assert_int_equal(t.host, 4096); /* x once, though two nodes need it */
    mo_plan_tape_backward(&t, loss);
    assert_int_equal(t.host, 0);
    assert_int_equal(t.host_peak, 4096);
    assert_int_equal(t.link, 3 * 4096); /* out once, in for each node */
    /* Leaf and loss; x back, gradients of the sum, of x by g and by f; not the sum of both, which
     * comes when x and the sum's have gone. */
    assert_int_equal(peak(&t, MO_PLAN_PHASE_BACKWARD), 4097 + 4 * 4096);
    mo_plan_tape_end(&t);
}

/* As save_on_cpu leaves them. */
TEST(small_values_are_not_offloaded)
{
    mo_plan_tape t;
    start(&t);
    mo_plan_value leaf = mo_plan_value_new(&t, 4095, 1, MO_PLAN_ACTIVATIONS);
    mo_plan_value_learns(&t, leaf, 4095);
    t.offload = 1;
    mo_plan_value x = mo_plan_op_scale(&t, leaf), y = mo_plan_op_of_input(&t, x, "f"),
                  loss = mean_of(&t, y);
    mo_plan_drop(&t, x);
    assert_int_equal(t.total, 2 * 4095 + 1);
    assert_int_equal(t.host_peak, 0);
    mo_plan_tape_backward(&t, loss);
    assert_int_equal(t.link, 0);
    mo_plan_tape_end(&t);
}

TEST(sizes_that_do_not_fit_stick)
{
    mo_plan_tape t;
    start(&t);
    assert_int_equal(mo_plan_tape_mul(&t, UINT64_MAX, 2), 0);
    assert_int_equal(t.status, MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(mo_plan_value_new(&t, 1, 1, MO_PLAN_ACTIVATIONS), MO_PLAN_NONE);
    mo_plan_linear l = {0};
    mo_plan_norm n = {MO_PLAN_NONE, MO_PLAN_NONE, MO_PLAN_NORM_LAYER};
    mo_plan_value parts[MO_PLAN_RECORD_OUTPUTS];
    assert_int_equal(mo_plan_op_add(&t, MO_PLAN_NONE, MO_PLAN_NONE), MO_PLAN_NONE);
    assert_int_equal(mo_plan_op_linear(&t, &l, MO_PLAN_NONE), MO_PLAN_NONE);
    assert_int_equal(mo_plan_op_norm(&t, &n, MO_PLAN_NONE), MO_PLAN_NONE);
    assert_int_equal(mo_plan_op_activation(&t, MO_PLAN_NONE, MO_PLAN_ACTIVATION_GELU_NEW),
                     MO_PLAN_NONE);
    mo_plan_op_split(&t, MO_PLAN_NONE, 3, parts);
    assert_int_equal(parts[2], MO_PLAN_NONE);
    mo_plan_tape_backward(&t, MO_PLAN_NONE);
    mo_plan_tape_end(&t);
    start(&t);
    (void)mo_plan_storage_new(&t, UINT64_MAX - 10, MO_PLAN_BATCH);
    assert_int_equal(t.status, MEMOPT_OK);
    (void)mo_plan_storage_new(&t, 11, MO_PLAN_BATCH);
    assert_int_equal(t.status, MEMOPT_INVALID_ARGUMENT);
    mo_plan_tape_end(&t);
}
