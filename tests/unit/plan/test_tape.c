/*
 * The rules of the tape against cases counted by hand. Sizes are powers of ten, so that a total
 * says what is in it.
 */
#include "support.h"

#include "plan/tape/operations.h"

static void start(mo_plan_tape *t)
{
    assert_int_equal(mo_plan_tape_init(t, 4), MEMOPT_OK);
    t->phase = MO_PLAN_PHASE_FORWARD;
}

/* A tape with a value of 1000 bytes whose gradient is wanted. */
static mo_plan_value start_learning(mo_plan_tape *t)
{
    start(t);
    mo_plan_value leaf = mo_plan_value_new(t, 1000, 1, MO_PLAN_ACTIVATIONS);
    mo_plan_value_learns(t, leaf, 1000);
    return leaf;
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

/* y = f(x) whose backward needs x, loss = a scalar of y. */
static void saved_inputs_go_after_their_node(void **state)
{
    mo_plan_tape t;
    (void)state;
    mo_plan_value x = start_learning(&t);
    mo_plan_value y = mo_plan_op_of_input(&t, x, "f");
    assert_int_equal(t.total, 2000);
    mo_plan_drop(&t, x);
    assert_int_equal(t.total, 2000); /* the node holds x */
    mo_plan_value loss = mean_of(&t, y);
    assert_int_equal(t.total, 1001); /* x and the loss: nothing needs y */
    mo_plan_tape_backward(&t, loss);
    /* x, the loss, the gradient of y and that of x; the seed of one byte has gone. */
    assert_int_equal(peak(&t, MO_PLAN_PHASE_BACKWARD), 3001);
    mo_plan_drop(&t, loss);
    assert_int_equal(t.total, 1000); /* the gradient rests */
    mo_plan_tape_drop_gradient(&t, &t.leaves[0]);
    assert_int_equal(t.total, 0);
    assert_int_equal(t.status, MEMOPT_OK);
    mo_plan_tape_end(&t);
}

/* A function that saves its output keeps that and lets its input go. */
static void saved_outputs_hold_the_output_alone(void **state)
{
    mo_plan_tape t;
    (void)state;
    mo_plan_value x = start_learning(&t);
    mo_plan_value middle = mo_plan_op_scale(&t, x);
    mo_plan_value y = mo_plan_op_of_output(&t, middle, "f");
    mo_plan_drop(&t, middle);
    assert_int_equal(t.total, 2000);
    mo_plan_drop(&t, y);
    assert_int_equal(t.total, 2000);
    mo_plan_drop(&t, x);
    assert_int_equal(t.total, 1000);
    mo_plan_tape_end(&t);
}

/* x is used twice: the sum of its gradients is a third tensor beside both. */
static void fan_in_sums_into_a_new_tensor(void **state)
{
    mo_plan_tape t;
    (void)state;
    mo_plan_value leaf = start_learning(&t);
    mo_plan_value x = mo_plan_op_scale(&t, leaf);
    mo_plan_value a = mo_plan_op_scale(&t, x), b = mo_plan_op_scale(&t, x);
    mo_plan_value sum = mo_plan_op_add(&t, a, b);
    mo_plan_value loss = mean_of(&t, sum);
    mo_plan_drop(&t, x);
    mo_plan_drop(&t, a);
    mo_plan_drop(&t, b);
    assert_int_equal(t.total, 1001);
    mo_plan_tape_backward(&t, loss);
    /* Leaf and loss; both gradients of x and their sum. */
    assert_int_equal(peak(&t, MO_PLAN_PHASE_BACKWARD), 1001 + 3000);
    assert_int_equal(t.total, 2001);
    mo_plan_tape_end(&t);
}

/* Both operands of a sum get the same gradient: no copy until one of them is added to. */
static void sums_pass_their_gradient_on(void **state)
{
    mo_plan_tape t;
    (void)state;
    mo_plan_value leaf = start_learning(&t);
    mo_plan_value a = mo_plan_op_scale(&t, leaf);
    mo_plan_value sum = mo_plan_op_add(&t, a, leaf);
    mo_plan_value loss = mean_of(&t, sum);
    mo_plan_drop(&t, a);
    mo_plan_tape_backward(&t, loss);
    /* Leaf, loss; the gradient of the sum (of a and of leaf), the new one of leaf, their sum. */
    assert_int_equal(peak(&t, MO_PLAN_PHASE_BACKWARD), 1001 + 3000);
    mo_plan_tape_end(&t);
}

static void temporaries_come_on_top_of_all(void **state)
{
    mo_plan_tape t;
    (void)state;
    mo_plan_value leaf = start_learning(&t);
    mo_plan_value x = mo_plan_op_scale(&t, leaf);
    mo_plan_value y = mo_plan_op_power(&t, x);
    mo_plan_value loss = mean_of(&t, y);
    mo_plan_drop(&t, x);
    mo_plan_tape_backward(&t, loss);
    /* Leaf, loss; x, gradients of y and x, two temporaries. */
    assert_int_equal(peak(&t, MO_PLAN_PHASE_BACKWARD), 1001 + 5000);
    mo_plan_tape_end(&t);
}

/* A product of a leaf with what needs no gradient saves the other operand alone. */
static void products_save_what_gradients_need(void **state)
{
    mo_plan_tape t;
    (void)state;
    mo_plan_value leaf = start_learning(&t);
    mo_plan_value a = mo_plan_op_scale(&t, leaf);
    mo_plan_value other = mo_plan_value_new(&t, 1000, 2, MO_PLAN_ACTIVATIONS);
    mo_plan_value y = mo_plan_op_mul(&t, a, other);
    assert_int_equal(mo_plan_bytes_of(&t, y), 2000); /* the wider type */
    mo_plan_drop(&t, a);
    mo_plan_drop(&t, other);
    mo_plan_drop(&t, y);
    assert_int_equal(t.total, 1000 + 2000);
    mo_plan_tape_end(&t);
}

static void nothing_is_kept_where_nothing_learns(void **state)
{
    mo_plan_tape t;
    (void)state;
    start(&t);
    mo_plan_value x = mo_plan_value_new(&t, 1000, 1, MO_PLAN_ACTIVATIONS);
    mo_plan_value y = mo_plan_op_power(&t, x);
    mo_plan_drop(&t, x);
    assert_int_equal(t.total, 1000);
    mo_plan_drop(&t, y);
    assert_int_equal(t.total, 0);
    assert_int_equal(t.edge_count, 0);
    mo_plan_tape_end(&t);
}

/* A weight used in two places: its gradient rests when both have come. */
static void shared_weights_wait_for_all_gradients(void **state)
{
    mo_plan_tape t;
    mo_plan_linear l = MO_PLAN_NO_LINEAR;
    (void)state;
    start(&t);
    l.in = l.out = 100;
    l.weight = mo_plan_value_new(&t, 10000, 1, MO_PLAN_PARAMETERS);
    mo_plan_value_learns(&t, l.weight, 10000);
    mo_plan_value x = mo_plan_value_new(&t, 100, 1, MO_PLAN_ACTIVATIONS);
    mo_plan_value y = mo_plan_op_linear(&t, &l, x, 0, 0);
    mo_plan_value z = mo_plan_op_linear(&t, &l, y, 0, 0);
    mo_plan_value loss = mean_of(&t, z);
    mo_plan_drop(&t, y);
    mo_plan_tape_backward(&t, loss);
    /* Two gradients and their sum at once, x and the loss; y has gone with its node. */
    const mo_plan_moment *m = &t.phases[MO_PLAN_PHASE_BACKWARD];
    assert_int_equal(m->bytes[MO_PLAN_GRADIENTS], 30000);
    assert_int_equal(m->bytes[MO_PLAN_PARAMETERS], 10000);
    assert_int_equal(t.live[MO_PLAN_GRADIENTS], 10000);
    assert_true(t.flops == 2 * 2 * 10000.0);
    mo_plan_tape_end(&t);
}

/* A gradient that rests in another type is cast; what was there is added to in place. */
static void gradients_rest_in_their_own_type(void **state)
{
    mo_plan_tape t;
    (void)state;
    start(&t);
    for (int wide = 0; wide < 2; wide++) {
        mo_plan_value leaf = mo_plan_value_new(&t, 1000, 2, MO_PLAN_PARAMETERS);
        mo_plan_value_learns(&t, leaf, wide ? 4000 : 2000);
        for (int pass = 0; pass < 2; pass++) {
            mo_plan_value y = mo_plan_op_scale(&t, leaf);
            mo_plan_value loss = mean_of(&t, y);
            mo_plan_tape_backward(&t, loss);
            mo_plan_drop(&t, loss);
            assert_int_equal(t.live[MO_PLAN_GRADIENTS], wide ? 4000 : 2000);
        }
        mo_plan_tape_drop_gradient(&t, &t.leaves[wide]);
        assert_int_equal(t.live[MO_PLAN_GRADIENTS], 0);
        mo_plan_drop(&t, leaf);
    }
    assert_int_equal(t.total, 0);
    mo_plan_tape_end(&t);
}

/* Two squares with something large between that a region need not keep. */
static mo_plan_value two_squares(mo_plan_tape *t, void *context, const mo_plan_value *inputs)
{
    int *runs = context;
    *runs += !t->ghost; /* a ghost only shows what is recorded */
    mo_plan_value a = mo_plan_op_power(t, inputs[0]);
    mo_plan_value b = mo_plan_op_power(t, a);
    mo_plan_drop(t, a);
    return b;
}

static void regions_keep_their_inputs_and_run_again(void **state)
{
    (void)state;
    for (int again = 0; again < 2; again++) {
        mo_plan_tape t;
        int runs = 0;
        mo_plan_value leaf = start_learning(&t);
        mo_plan_value x = mo_plan_op_scale(&t, leaf);
        mo_plan_value y = mo_plan_tape_region_forward(&t, two_squares, &runs, &x, 1, again);
        mo_plan_value loss = mean_of(&t, y);
        mo_plan_drop(&t, x);
        /* Leaf, x, loss, and without running again the first square. */
        assert_int_equal(t.total, again ? 2001 : 3001);
        mo_plan_tape_backward(&t, loss);
        assert_int_equal(runs, 1 + again);
        /* Both are fullest in the last square's backward: leaf, x, the first square, gradients of
         * both squares, two temporaries. */
        assert_int_equal(peak(&t, MO_PLAN_PHASE_BACKWARD), 1001 + 6000);
        assert_int_equal(t.total, 2001);
        assert_int_equal(t.status, MEMOPT_OK);
        mo_plan_tape_end(&t);
    }
}

/* Ends with what saves nothing: a wide value made narrow again. */
static mo_plan_value wide_end(mo_plan_tape *t, void *context, const mo_plan_value *inputs)
{
    (void)context;
    mo_plan_value a = mo_plan_op_of_input(t, inputs[0], "f"), wide = mo_plan_op_cast(t, a, 8);
    mo_plan_value out = mo_plan_op_cast(t, wide, 1);
    mo_plan_drop(t, a);
    mo_plan_drop(t, wide);
    return out;
}

/* Passes by something wide on the way to what it saves. */
static mo_plan_value wide_start(mo_plan_tape *t, void *context, const mo_plan_value *inputs)
{
    (void)context;
    mo_plan_value wide = mo_plan_op_cast(t, inputs[0], 8), a = mo_plan_op_cast(t, wide, 4);
    mo_plan_drop(t, wide);
    mo_plan_value b = mo_plan_op_of_input(t, a, "f"), out = mo_plan_op_cast(t, b, 1);
    mo_plan_drop(t, a);
    mo_plan_drop(t, b);
    return out;
}

/* What a step with a region needs in backward, beyond leaf, region's input and loss. */
static uint64_t backward_of(mo_plan_region_run run)
{
    mo_plan_tape t;
    mo_plan_value leaf = start_learning(&t);
    mo_plan_value x = mo_plan_op_scale(&t, leaf);
    mo_plan_value y = mo_plan_tape_region_forward(&t, run, NULL, &x, 1, 1);
    mo_plan_value loss = mean_of(&t, y);
    mo_plan_drop(&t, x);
    mo_plan_tape_backward(&t, loss);
    assert_int_equal(t.total, 2001); /* the leaf, its gradient and the loss */
    assert_int_equal(t.status, MEMOPT_OK);
    uint64_t most = peak(&t, MO_PLAN_PHASE_BACKWARD);
    mo_plan_tape_end(&t);
    return most - 2001;
}

static void regions_run_again_as_far_as_they_save(void **state)
{
    (void)state;
    /* Gradients of the output and of what is wide, before; f's output is never there again. */
    assert_int_equal(backward_of(wide_end), 1000 + 8000);
    /* The gradient of f's output, made before, waits while the wide and the half wide are made. */
    assert_int_equal(backward_of(wide_start), 4000 + 8000 + 4000);
}

static void offloaded_values_are_held_by_the_host(void **state)
{
    mo_plan_tape t;
    (void)state;
    start(&t);
    mo_plan_value leaf = mo_plan_value_new(&t, 1024, 1, MO_PLAN_ACTIVATIONS);
    mo_plan_value_learns(&t, leaf, 1024);
    t.offload = 1;
    mo_plan_value x = mo_plan_op_scale(&t, leaf);
    mo_plan_value y = mo_plan_op_of_input(&t, x, "f"), z = mo_plan_op_of_input(&t, x, "g");
    mo_plan_value sum = mo_plan_op_add(&t, y, z);
    mo_plan_value loss = mean_of(&t, sum);
    mo_plan_drop(&t, x);
    mo_plan_drop(&t, y);
    mo_plan_drop(&t, z);
    assert_int_equal(t.total, 1025);
    assert_int_equal(t.host, 1024); /* x once, though two nodes need it */
    mo_plan_tape_backward(&t, loss);
    assert_int_equal(t.host, 0);
    assert_int_equal(t.host_peak, 1024);
    assert_int_equal(t.link, 3 * 1024); /* out once, in for each node */
    /* Leaf and loss; x back, gradients of the sum, of x by g and by f; not the sum of both, which
     * comes when x and the sum's have gone. */
    assert_int_equal(peak(&t, MO_PLAN_PHASE_BACKWARD), 1025 + 4 * 1024);
    mo_plan_tape_end(&t);
}

/* As save_on_cpu leaves them. */
static void small_values_are_not_offloaded(void **state)
{
    mo_plan_tape t;
    (void)state;
    start(&t);
    mo_plan_value leaf = mo_plan_value_new(&t, 1023, 1, MO_PLAN_ACTIVATIONS);
    mo_plan_value_learns(&t, leaf, 1023);
    t.offload = 1;
    mo_plan_value x = mo_plan_op_scale(&t, leaf), y = mo_plan_op_of_input(&t, x, "f"),
                  loss = mean_of(&t, y);
    mo_plan_drop(&t, x);
    assert_int_equal(t.total, 2 * 1023 + 1);
    assert_int_equal(t.host_peak, 0);
    mo_plan_tape_backward(&t, loss);
    assert_int_equal(t.link, 0);
    mo_plan_tape_end(&t);
}

static void sizes_that_do_not_fit_stick(void **state)
{
    mo_plan_tape t;
    (void)state;
    start(&t);
    assert_int_equal(mo_plan_tape_mul(&t, UINT64_MAX, 2), 0);
    assert_int_equal(t.status, MEMOPT_INVALID_ARGUMENT);
    assert_int_equal(mo_plan_value_new(&t, 1, 1, MO_PLAN_ACTIVATIONS), MO_PLAN_NONE);
    mo_plan_linear l = MO_PLAN_NO_LINEAR;
    mo_plan_norm n = {MO_PLAN_NONE, MO_PLAN_NONE, MO_PLAN_NORM_LAYER};
    mo_plan_value parts[MO_PLAN_RECORD_OUTPUTS];
    assert_int_equal(mo_plan_op_add(&t, MO_PLAN_NONE, MO_PLAN_NONE), MO_PLAN_NONE);
    assert_int_equal(mo_plan_op_linear(&t, &l, MO_PLAN_NONE, 0, 0), MO_PLAN_NONE);
    assert_int_equal(mo_plan_op_norm(&t, &n, MO_PLAN_NONE, 0), MO_PLAN_NONE);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saved_inputs_go_after_their_node),
        cmocka_unit_test(saved_outputs_hold_the_output_alone),
        cmocka_unit_test(fan_in_sums_into_a_new_tensor),
        cmocka_unit_test(sums_pass_their_gradient_on),
        cmocka_unit_test(temporaries_come_on_top_of_all),
        cmocka_unit_test(products_save_what_gradients_need),
        cmocka_unit_test(nothing_is_kept_where_nothing_learns),
        cmocka_unit_test(shared_weights_wait_for_all_gradients),
        cmocka_unit_test(gradients_rest_in_their_own_type),
        cmocka_unit_test(regions_keep_their_inputs_and_run_again),
        cmocka_unit_test(regions_run_again_as_far_as_they_save),
        cmocka_unit_test(offloaded_values_are_held_by_the_host),
        cmocka_unit_test(small_values_are_not_offloaded),
        cmocka_unit_test(sizes_that_do_not_fit_stick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
