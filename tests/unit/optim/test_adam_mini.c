/* Adam-mini: the rule in double, the codes, the same bits with any number of threads, steps that
 * are skipped, bad input. (Each form's bits: tests/machines; the GPUs': tests/conformance.) */
#include "support.h"

#include "memopt/memopt.h"
#include "support/bench.h"

#include <math.h>

enum { MOST = 90000, STEPS = 5 };

/* Rows of a block, and blocks: elements, a vector, rows, heads; some larger than 16,384 elements.
 */
typedef struct layout {
    uint64_t blocks, rows, columns;
} layout;

static const layout layouts[] = {{300, 1, 1},  {1, 1, 5000}, {1, 1, 40000}, {70, 1, 700},
                                 {6, 10, 256}, {3, 7, 75},   {2, 60, 300},  {3, 1, 30000}};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

static uint64_t count_of(const layout *l)
{
    return l->blocks * l->rows * l->columns;
}

static uint64_t scales_of(const layout *l)
{
    return l->blocks * l->rows * ((l->columns + 255) / 256);
}

/* --- a parameter on the device ------------------------------------------------------------------
 */

typedef struct trained {
    memopt_device *device;
    memopt_adam_mini a;
    float p[MOST], g[MOST], m[MOST], scales[MOST], v[MOST], found_inf;
    uint8_t codes[MOST];
    void *scratch;
    uint64_t scratch_bytes;
} trained;

static trained *new_trained(const layout *l, memopt_dtype type, int coded, uint32_t threads)
{
    trained *t = calloc(1, sizeof *t);
    const bench_device wanted = {MEMOPT_STREAM_ORDER_EAGER, 1, 512 * MIB, threads};
    uint64_t seed = 11, count = count_of(l);
    t->device = bench_open_cpu(&wanted);
    t->a = (memopt_adam_mini)MEMOPT_ADAM_MINI_INIT;
    t->a.parameter = (memopt_tensor){t->p, count, type};
    t->a.gradient = (memopt_tensor){t->g, count, type};
    t->a.mean = (memopt_tensor){t->m, count, MEMOPT_DTYPE_F32};
    if (coded) {
        t->a.mean = (memopt_tensor){t->codes, count, MEMOPT_DTYPE_U8};
        t->a.scales = t->scales;
        memset(t->codes, MO_SIGNED_ZERO, sizeof t->codes);
    }
    t->a.square_mean = t->v;
    t->a.rows = l->rows;
    t->a.columns = l->columns;
    t->a.lr = 0.01;
    t->a.weight_decay = 0.1;
    OK(memopt_adam_mini_get_scratch(&t->a, &t->scratch_bytes));
    assert_true((t->scratch_bytes != 0) == (l->rows * l->columns > 16384));
    t->scratch = t->scratch_bytes ? malloc(t->scratch_bytes) : NULL;
    for (uint64_t i = 0; i < count; i++)
        mo_store_element(t->p, i, (int32_t)type, normal(&seed));
    return t;
}

static void free_trained(trained *t)
{
    OK(memopt_device_close(t->device));
    free(t->scratch);
    free(t);
}

/* A gradient whose blocks differ, and the step. */
static void train(trained *t, const layout *l, uint64_t step)
{
    uint64_t seed = 100 + step;
    for (uint64_t i = 0; i < count_of(l); i++)
        mo_store_element(t->g, i, (int32_t)t->a.gradient.dtype,
                         normal(&seed) * (float)(1 + i / l->columns % 7) * (i % 2 ? 0.03f : 1.0f));
    t->a.step = step;
    OK(memopt_adam_mini_step(t->device, &t->a, t->scratch, t->scratch_bytes, NULL));
    OK(memopt_stream_sync(t->device, NULL));
}

/* --- the rule, written anew in double ----------------------------------------------------------
 */

typedef struct model {
    double p[MOST], m[MOST], v[MOST], moved;
} model;

static void model_step(model *m, const layout *l, const memopt_adam_mini *a, const float *g)
{
    const uint64_t size = l->rows * l->columns;
    double correction1 = 1 - pow(a->beta1, (double)a->step);
    double correction2 = 1 - pow(a->beta2, (double)a->step);
    double sign = a->maximize ? -a->gradient_scale : a->gradient_scale;
    for (uint64_t b = 0; b < l->blocks; b++) {
        double sum = 0;
        for (uint64_t i = b * size; i < (b + 1) * size; i++)
            sum += sign * (double)g[i] * sign * (double)g[i];
        m->v[b] = a->beta2 * m->v[b] + (1 - a->beta2) * sum / (double)size;
        double rate = a->lr / correction1 / (sqrt(m->v[b] / correction2) + a->eps);
        for (uint64_t i = b * size; i < (b + 1) * size; i++) {
            m->m[i] = a->beta1 * m->m[i] + (1 - a->beta1) * sign * (double)g[i];
            m->p[i] = m->p[i] * (1 - a->lr * a->weight_decay) - rate * m->m[i];
            m->moved = fmax(m->moved, fabs(rate * m->m[i]));
        }
    }
}

static void test_rule(void **state)
{
    (void)state;
    for (int k = 0; k < 2 * LAYOUTS; k++) {
        const layout *l = &layouts[k / 2];
        trained *t = new_trained(l, MEMOPT_DTYPE_F32, k % 2, 2);
        model *m = calloc(1, sizeof *m);
        double apart = 0;
        for (uint64_t i = 0; i < count_of(l); i++)
            m->p[i] = (double)t->p[i];
        t->a.maximize = k / 2 % 2;
        t->a.gradient_scale = 0.5;
        t->a.eps = k % 4 < 2 ? 0.2 : 1e-8; /* the first is in reach of roots */
        for (uint64_t step = 1; step <= STEPS; step++) {
            train(t, l, step);
            model_step(m, l, &t->a, t->g);
        }
        for (uint64_t i = 0; i < count_of(l); i++)
            apart = fmax(apart, fabs((double)t->p[i] - m->p[i]));
        for (uint64_t b = 0; b < l->blocks; b++)
            assert_true(fabs((double)t->v[b] / m->v[b] - 1) < 1e-5);
        print_message("  layout %d: %.1e of steps of %.1e\n", k, apart, m->moved);
        assert_true(m->moved > 1e-3 && apart < (k % 2 ? 0.1 * m->moved : 2e-6));
        free(m);
        free_trained(t);
    }
}

/* The codes and scales of a step are memopt_quantize()'s of each row of the fp32 mean. */
static void test_codes(void **state)
{
    (void)state;
    for (int k = 0; k < LAYOUTS; k++) {
        const layout *l = &layouts[k];
        const uint64_t rows = l->blocks * l->rows, scales = scales_of(l) / rows;
        trained *coded = new_trained(l, MEMOPT_DTYPE_BF16, 1, 1);
        trained *plain = new_trained(l, MEMOPT_DTYPE_BF16, 0, 1);
        uint8_t *codes = malloc(l->columns);
        float *absmax = malloc(4 * scales);
        train(coded, l, 1);
        train(plain, l, 1);
        assert_memory_equal(coded->p, plain->p, sizeof plain->p);
        for (uint64_t i = 0; i < rows; i++) {
            const memopt_tensor to = {codes, l->columns, MEMOPT_DTYPE_U8};
            const memopt_tensor by = {absmax, scales, MEMOPT_DTYPE_F32};
            const memopt_tensor from = {plain->m + i * l->columns, l->columns, MEMOPT_DTYPE_F32};
            OK(memopt_quantize(plain->device, MEMOPT_STATE_8BIT, &to, &by, &from, 1, NULL));
            assert_memory_equal(coded->codes + i * l->columns, codes, l->columns);
            assert_memory_equal(coded->scales + i * scales, absmax, 4 * scales);
        }
        free(codes);
        free(absmax);
        free_trained(coded);
        free_trained(plain);
    }
}

static void same(const trained *a, const trained *b)
{
    assert_memory_equal(a->p, b->p, sizeof a->p);
    assert_memory_equal(a->m, b->m, sizeof a->m);
    assert_memory_equal(a->codes, b->codes, sizeof a->codes);
    assert_memory_equal(a->scales, b->scales, sizeof a->scales);
    assert_memory_equal(a->v, b->v, sizeof a->v);
}

static void test_threads(void **state)
{
    static const memopt_dtype types[] = {MEMOPT_DTYPE_F32, MEMOPT_DTYPE_BF16, MEMOPT_DTYPE_F16};
    (void)state;
    for (int k = 0; k < 6 * LAYOUTS; k++) {
        const layout *l = &layouts[k / 6];
        trained *one = new_trained(l, types[k % 3], k / 3 % 2, 1);
        trained *many = new_trained(l, types[k % 3], k / 3 % 2, 3);
        for (uint64_t step = 1; step <= STEPS; step++) {
            train(one, l, step);
            train(many, l, step);
        }
        same(one, many);
        free_trained(one);
        free_trained(many);
    }
}

/* A flag that is set keeps all bits; one that is not changes nothing. */
static void test_flag(void **state)
{
    (void)state;
    for (int k = 1; k < LAYOUTS; k++) {
        trained *t = new_trained(&layouts[k], MEMOPT_DTYPE_F32, k % 2, 2);
        trained *before = malloc(sizeof *before);
        t->a.found_inf = &t->found_inf;
        train(t, &layouts[k], 1);
        *before = *t;
        t->found_inf = 1.0f;
        train(t, &layouts[k], 2);
        same(t, before);
        t->found_inf = 0.0f;
        train(t, &layouts[k], 2);
        assert_memory_not_equal(t->p, before->p, sizeof t->p);
        assert_memory_not_equal(t->v, before->v, sizeof t->v);
        free(before);
        free_trained(t);
    }
}

static void test_refusals(void **state)
{
    const layout *l = &layouts[6];
    trained *t = new_trained(l, MEMOPT_DTYPE_F32, 1, 1), *before = malloc(sizeof *before);
    const memopt_adam_mini good = t->a;
    uint64_t bytes = 77;
    (void)state;
    *before = *t;
#define REFUSED(status, saying, field, value)                                                      \
    do {                                                                                           \
        t->a = good;                                                                               \
        t->a.step = 1;                                                                             \
        t->a.field = value;                                                                        \
        FAILS_SAYING(status, saying,                                                               \
                     memopt_adam_mini_step(t->device, &t->a, t->scratch, t->scratch_bytes, NULL)); \
    } while (0)
    REFUSED(MEMOPT_INVALID_ARGUMENT, "step is 0", step, 0);
    REFUSED(MEMOPT_INVALID_ARGUMENT, "lr is -1", lr, -1.0);
    REFUSED(MEMOPT_INVALID_ARGUMENT, "lr is nan", lr, (double)NAN);
    REFUSED(MEMOPT_INVALID_ARGUMENT, "beta1 is -0.5", beta1, -0.5);
    REFUSED(MEMOPT_INVALID_ARGUMENT, "beta2 is 1; it must be below", beta2, 1.0);
    REFUSED(MEMOPT_INVALID_ARGUMENT, "eps is -1", eps, -1.0);
    REFUSED(MEMOPT_INVALID_ARGUMENT, "weight_decay is inf", weight_decay, (double)INFINITY);
    REFUSED(MEMOPT_INVALID_ARGUMENT, "not whole matrices of 61 x 300", rows, 61);
    REFUSED(MEMOPT_INVALID_ARGUMENT, "not whole matrices of 60 x 0", columns, 0);
    REFUSED(MEMOPT_INVALID_ARGUMENT, "square_mean", square_mean, NULL);
    REFUSED(MEMOPT_INVALID_ARGUMENT, "scales 0: data", scales, NULL);
    REFUSED(MEMOPT_INVALID_ARGUMENT, "gradient has 5 elements", gradient.count, 5);
    REFUSED(MEMOPT_INVALID_ARGUMENT, "the mean 5", mean.count, 5);
    REFUSED(MEMOPT_UNSUPPORTED, "f8_e4m3", gradient.dtype, MEMOPT_DTYPE_F8_E4M3);
    REFUSED(MEMOPT_UNSUPPORTED, "a mean of bf16", mean.dtype, MEMOPT_DTYPE_BF16);
    REFUSED(MEMOPT_INVALID_ARGUMENT, "mean of f32 has no scales", mean.dtype, MEMOPT_DTYPE_F32);
    REFUSED(MEMOPT_INVALID_ARGUMENT, "parameter and gradient overlap", gradient.data, t->p);
    REFUSED(MEMOPT_INVALID_ARGUMENT, "scales and square_mean overlap", square_mean, t->scales + 1);
    t->a = good;
    t->a.step = 1;
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "are needed",
                 memopt_adam_mini_step(t->device, &t->a, t->scratch, t->scratch_bytes - 1, NULL));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "device is NULL",
                 memopt_adam_mini_step(NULL, &t->a, t->scratch, t->scratch_bytes, NULL));
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "what is NULL",
                 memopt_adam_mini_get_scratch(NULL, &bytes));
    t->a.parameter.count = (uint64_t)1 << 62;
    t->a.rows = (uint64_t)1 << 31;
    t->a.columns = (uint64_t)1 << 31;
    FAILS_SAYING(MEMOPT_INVALID_ARGUMENT, "2^60", memopt_adam_mini_get_scratch(&t->a, &bytes));
    assert_true(bytes == 77);
    same(t, before);
    t->a = good;
    t->a.parameter.count = t->a.gradient.count = 0; /* nothing to do */
    OK(memopt_adam_mini_step(t->device, &t->a, NULL, 0, NULL));
    free(before);
    free_trained(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rule),     cmocka_unit_test(test_codes),
        cmocka_unit_test(test_threads),  cmocka_unit_test(test_flag),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
