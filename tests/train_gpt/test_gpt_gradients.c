/*
 * The model's gradients: right by finite differences, and the same bits whatever becomes of the
 * activations between forward and backward.
 */
#include "support.h"

#include "ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static corpus text;

/* Moves the weights away from their start, where some gradients are next to nothing. */
static void shake(trainer *t)
{
    for (uint64_t i = 0; i < t->model.parameters.count; i++) {
        parameter *p = &t->model.parameters.list[i];
        float *noise = malloc(p->weight.count * sizeof *noise);
        assert_non_null(noise);
        random_normal(random_draw(99, i), 0.1F, noise, p->weight.count);
        for (uint64_t j = 0; j < p->weight.count; j++)
            ((float *)p->weight.data)[j] += noise[j];
        free(noise);
    }
}

/* The loss at the weights as they are, always with the same dropout masks. */
static double loss_now(trainer *t)
{
    step_result r;
    t->random.draws = 0;
    assert_ok(trainer_gradients(t, &r));
    return r.loss;
}

/* (L(w + e v) - L(w - e v)) / 2e against g · v for one parameter; v is the gradient's direction
 * plus as much of a random one. Returns the relative difference. */
static double directional_error(trainer *t, parameter *p, uint64_t key)
{
    uint64_t count = p->weight.count;
    float *w = p->weight.data, *g = p->gradient.data;
    float *start = malloc(count * sizeof *start), *v = malloc(count * sizeof *v);
    assert_true(start && v);
    double g_norm = 0, v_norm = 0, slope = 0;
    random_normal(key, 1, v, count);
    for (uint64_t i = 0; i < count; i++) {
        g_norm += (double)g[i] * (double)g[i];
        v_norm += (double)v[i] * (double)v[i];
    }
    assert_true(g_norm > 0);
    for (uint64_t i = 0; i < count; i++) {
        v[i] = (float)((double)g[i] / sqrt(g_norm) + (double)v[i] / sqrt(v_norm));
        slope += (double)v[i] * (double)g[i];
    }

    double e = 4e-3 / fabs(slope) < 0.02 ? 4e-3 / fabs(slope) : 0.02, side[2];
    memcpy(start, w, count * sizeof *w);
    for (int s = 0; s < 2; s++) {
        for (uint64_t i = 0; i < count; i++)
            w[i] = start[i] + (float)((s ? -e : e) * (double)v[i]);
        side[s] = loss_now(t);
    }
    memcpy(w, start, count * sizeof *w);
    loss_now(t); /* the gradient at the start again */
    free(start);
    free(v);
    return fabs((side[0] - side[1]) / (2 * e) - slope) / fabs(slope);
}

static void check_all_parameters(uint32_t tied)
{
    trainer t;
    options o = tiny_options();
    o.tied = tied;
    o.accumulation = 2;
    assert_ok(trainer_create(&t, &o, &text));
    shake(&t);
    loss_now(&t);
    for (uint64_t i = 0; i < t.model.parameters.count; i++) {
        parameter *p = &t.model.parameters.list[i];
        double error = directional_error(&t, p, random_draw(5, i));
        if (error > 0.002)
            fail_msg("%s: the gradient is off by %.2f %%", p->name, 100 * error);
    }
    assert_ok(trainer_destroy(&t));
}

TEST(gradients_match_finite_differences)
{
    check_all_parameters(1);
    check_all_parameters(0);
}

/* --- the same bits ------------------------------------------------------------------------- */

/* Gradients after two steps and another backward. */
static bytes gradients_of(const options *o)
{
    trainer t;
    step_result r;
    assert_ok(trainer_create(&t, o, &text));
    for (int i = 0; i < 2; i++)
        assert_ok(trainer_step(&t, &r));
    assert_ok(trainer_gradients(&t, &r));
    bytes all = gradient_bytes(&t);
    assert_ok(trainer_destroy(&t));
    return all;
}

static options with_dtype(memopt_dtype dtype)
{
    options o = tiny_options();
    o.layers = 4;
    o.dtype = dtype;
    o.init_scale = 256;
    return o;
}

/* Every way of treating the activations, on this device, against the plain run on the eager one. */
static void check_savers(memopt_dtype dtype, uint32_t adversarial)
{
    options o = with_dtype(dtype);
    bytes plain = gradients_of(&o);
    for (uint32_t way = 0; way < 6; way++) {
        o = with_dtype(dtype);
        o.adversarial = adversarial;
        o.checkpoint = way & 1;
        o.offload = way >= 2;
        o.host_limit = way >= 4 ? 8192 : 0; /* most values stay on the device */
        o.check = o.checkpoint ? MEMOPT_CHECK_EXACT : MEMOPT_CHECK_NONE;
        bytes other = gradients_of(&o);
        assert_same_bytes(&plain, &other);
        free(other.data);
    }
    free(plain.data);
}

TEST(savers_change_no_bit)
{
    check_savers(MEMOPT_DTYPE_F32, 0);
    check_savers(MEMOPT_DTYPE_BF16, 0);
    check_savers(MEMOPT_DTYPE_F16, 0);
}

TEST(savers_change_no_bit_in_adversarial_order)
{
    check_savers(MEMOPT_DTYPE_F32, 1);
    check_savers(MEMOPT_DTYPE_BF16, 1);
}

/* The comparison above can fail: other dropout masks give other gradients. */
TEST(another_seed_changes_gradients)
{
    options o = tiny_options();
    bytes one = gradients_of(&o);
    o.dropout = 0.2;
    bytes two = gradients_of(&o);
    assert_false(same_bytes(&one, &two));
    free(one.data);
    free(two.data);
}

int main(void)
{
    tiny_text(&text);
    int failed = run_all_tests(NULL, NULL);
    text_free(&text);
    return failed;
}
