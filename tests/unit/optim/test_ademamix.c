/* AdEMAMix beside what test_rules.c has for every rule: how its coefficients grow, that it is AdamW
 * without the slow mean, where a group's values are refused, and that they come back from an
 * export. */
#include "fixture.h"

#include <math.h>

enum { N = 5000, STEPS = 4 };

/* Logarithm and exponential against the C library's, over all that betas can be. */
TEST(logarithm_and_exponential)
{
    uint64_t seed = 9;
    double worst_log = 0.0, worst_exp = 0.0;
    for (int i = 0; i < 200000; i++) {
        double u = 0.5 * (1.0 + (double)uniform(&seed));
        double beta = i % 3 == 0 ? u : i % 3 == 1 ? 1.0 - ldexp(u, -i % 50) : ldexp(u, -i % 1000);
        if (!(beta > 0.0 && beta < 1.0))
            continue;
        double expected = -log(beta), y = u * (i % 2 ? 1.0 : 40.0);
        worst_log = fmax(worst_log, fabs(mo_minus_log(beta) / expected - 1.0));
        worst_exp = fmax(worst_exp, fabs(mo_exp_minus(y) / exp(-y) - 1.0));
    }
    print_message("  relative errors: logarithm %.1e, exponential %.1e\n", worst_log, worst_exp);
    assert_true(worst_log < 2e-15 && worst_exp < 1e-12);
    assert_true(mo_exp_minus(0.0) == 1.0 && mo_exp_minus(1e6) == 0.0);
    assert_true(mo_minus_log(0x1p-1074) > 744.0);
}

static double half_life(double beta)
{
    return log(0.5) / log(beta);
}

/* Half-lives grow linearly, and end at the last beta. */
TEST(growth)
{
    static const double lasts[] = {0.9999, 0.99, 0.95};
    for (int k = 0; k < 3; k++) {
        double from = half_life(0.9), to = half_life(lasts[k]), before = 0.9;
        for (uint64_t step = 1; step <= 1000; step++) {
            double beta = mo_beta_growing(0.9, lasts[k], 1000.0, step);
            double expected = from + (to - from) * (double)step / 1000.0;
            assert_true(fabs(half_life(beta) / expected - 1.0) < 1e-9);
            assert_true(beta > before && beta <= lasts[k]);
            before = beta;
        }
        assert_true(before == lasts[k]);
    }
    assert_true(mo_beta_growing(0.9, 0.9999, 0.0, 1) == 0.9999);
    assert_true(mo_beta_growing(0.9, 0.9999, 10.0, 11) == 0.9999);
    assert_true(mo_beta_growing(0.99, 0.9, 10.0, 1) == 0.9); /* not above the last */
    assert_true(mo_growth(4.0, 1) == 0.25 && mo_growth(4.0, 9) == 1.0 && mo_growth(0.0, 1) == 1.0);
}

static memopt_optimizer_group group_of(double alpha)
{
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_ADEMAMIX_INIT;
    group.alpha = alpha;
    return group;
}

/* Parameters after some steps. */
static void train(uint32_t kind, uint32_t format, const memopt_optimizer_group *group, float *out)
{
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
    memopt_optimizer *o = new_optimizer_of(&w, kind, format, group);
    uint64_t seed = 21;
    for (int i = 0; i < N; i++)
        out[i] = normal(&seed);
    memopt_tensor p = new_tensor(&w, N, MEMOPT_DTYPE_F32, out);
    memopt_tensor g = new_tensor(&w, N, MEMOPT_DTYPE_F32, NULL);
    (void)add_parameter(&w, o, &p);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < N; i++)
            out[i] = normal(&seed) * 0.1f;
        write_tensor(&w, &g, out);
        OK(memopt_optimizer_step(o, &g, 1, NULL, NULL));
    }
    read_floats(&w, &p, out);
    close_world(&w);
}

TEST(without_the_slow_mean_it_is_adamw)
{
    static float expected[N], actual[N], mixed[N];
    static const uint32_t formats[] = {MEMOPT_STATE_F32, MEMOPT_STATE_8BIT_DYNAMIC,
                                       MEMOPT_STATE_8BIT};
    for (int i = 0; i < 3; i++) {
        const uint32_t format = formats[i];
        memopt_optimizer_group none = group_of(0.0), some = group_of(5.0);
        train(MEMOPT_OPTIMIZER_ADAMW, format, &none, expected);
        train(MEMOPT_OPTIMIZER_ADEMAMIX, format, &none, actual);
        train(MEMOPT_OPTIMIZER_ADEMAMIX, format, &some, mixed);
        assert_memory_equal(expected, actual, sizeof actual);
        assert_memory_not_equal(expected, mixed, sizeof mixed);
    }
}

TEST(refused_values)
{
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
    memopt_optimizer_group good = group_of(5.0);
    memopt_optimizer *o = new_optimizer_of(&w, MEMOPT_OPTIMIZER_ADEMAMIX, MEMOPT_STATE_F32, &good);
    static const struct {
        double beta1, beta3, alpha, t_alpha, t_beta3;
        int accepted;
    } rows[] = {
        {0.9, 0.9999, 5, 10, 10, 1},    {0, 0, 0, 10, 0, 1},        {0.9, 1, 5, 0, 0, 0},
        {0.9, -0.1, 5, 0, 0, 0},        {0.9, NAN, 5, 0, 0, 0},     {0.9, 0.99, -1, 0, 0, 0},
        {0.9, 0.99, INFINITY, 0, 0, 0}, {0.9, 0.99, 5, -1, 0, 0},   {0.9, 0.99, 5, NAN, 0, 0},
        {0.9, 0.99, 5, 0, -1, 0},       {0.9, 0.99, 5, 0, NAN, 0},  {0, 0.99, 5, 0, 1, 0},
        {0.9, 0, 5, 0, 1, 0},           {0.9, 0.99, 5, 0.5, 0.5, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        memopt_optimizer_group g = good;
        g.beta1 = rows[i].beta1;
        g.beta3 = rows[i].beta3;
        g.alpha = rows[i].alpha;
        g.t_alpha = rows[i].t_alpha;
        g.t_beta3 = rows[i].t_beta3;
        assert_int_equal(memopt_optimizer_set_group(o, 0, &g),
                         rows[i].accepted ? MEMOPT_OK : MEMOPT_INVALID_ARGUMENT);
    }
    /* a caller that does not know these values has no growth and no slow mean */
    memopt_optimizer_group short_one = good, back = {.struct_size = sizeof back};
    short_one.struct_size = offsetof(memopt_optimizer_group, beta3);
    OK(memopt_optimizer_set_group(o, 0, &short_one));
    OK(memopt_optimizer_get_group(o, 0, &back));
    assert_true(back.beta3 == 0.0 && back.alpha == 0.0 && back.t_alpha == 0.0);
    close_world(&w);
}

/* All values of a group come back; AdamW's exports keep their older version. */
TEST(export)
{
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
    memopt_optimizer_group group = group_of(3.0), plain = group_of(1.0);
    memopt_optimizer_group back = {.struct_size = sizeof back};
    group.beta3 = 0.999;
    group.t_alpha = 12.0;
    group.t_beta3 = 34.0;
    memopt_optimizer *from = new_optimizer_of(&w, MEMOPT_OPTIMIZER_ADEMAMIX, 2, &group);
    memopt_optimizer *to = new_optimizer_of(&w, MEMOPT_OPTIMIZER_ADEMAMIX, 2, &plain);
    memopt_optimizer *other = new_optimizer_of(&w, MEMOPT_OPTIMIZER_ADAMW, 2, &plain);
    uint64_t bytes;
    unsigned char *data = export_all(&w, from, &bytes);
    assert_int_equal(data[8], 4);
    assert_int_equal(bytes, 64 + 104 + 8);
    OK(memopt_optimizer_import_sync(to, data, bytes, 0, NULL));
    OK(memopt_optimizer_get_group(to, 0, &back));
    assert_true(back.beta3 == 0.999 && back.alpha == 3.0);
    assert_true(back.t_alpha == 12.0 && back.t_beta3 == 34.0);
    assert_int_equal(memopt_optimizer_import_sync(other, data, bytes, 0, NULL),
                     MEMOPT_INVALID_ARGUMENT);
    free(data);
    data = export_all(&w, other, &bytes);
    assert_int_equal(data[8], 1);
    free(data);
    close_world(&w);
}
