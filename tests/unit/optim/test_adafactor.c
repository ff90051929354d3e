/* Adafactor: the rule in double, the same bits with any number of threads, steps that are skipped,
 * bad input. (Each form's bits: tests/machines; the GPUs': tests/conformance.) */
#include "support.h"

#include "memopt/memopt.h"
#include "support/bench.h"

#include <math.h>

enum { MOST = 2 * 130 * 1100, STEPS = 4 };

/* Of one shape: rows 0 is a vector. */
typedef struct layout {
    uint64_t stack, rows, columns;
} layout;

static const layout layouts[] = {
    {1, 0, 5000}, {1, 1, 1}, {300, 3, 3}, {2, 130, 1100}, {1, 2000, 5}};

static uint64_t count_of(const layout *l)
{
    return l->stack * (l->rows ? l->rows : 1) * l->columns;
}

/* --- the rule, written anew in double --------------------------------------------------------- */

typedef struct model {
    double p[MOST], row[MOST], column[MOST], u[MOST];
} model;

static void blend(double *moment, double mean, double fresh)
{
    *moment += fresh * (mean - *moment);
}

/* Second moments of one matrix from its squares, and the updates. */
static void model_matrix(model *m, const layout *l, const double *g, uint64_t s, double fresh,
                         const double *eps)
{
    double *row = m->row + s * l->rows, *column = m->column + s * l->columns, mean = 0;
    const uint64_t first = s * l->rows * l->columns;
    for (uint64_t i = 0; i < l->rows; i++) {
        double sum = 0;
        for (uint64_t j = 0; j < l->columns; j++)
            sum += g[first + i * l->columns + j] * g[first + i * l->columns + j];
        blend(&row[i], sum / (double)l->columns, fresh);
        mean += row[i] / (double)l->rows;
    }
    for (uint64_t j = 0; j < l->columns; j++) {
        double sum = 0;
        for (uint64_t i = 0; i < l->rows; i++)
            sum += g[first + i * l->columns + j] * g[first + i * l->columns + j];
        blend(&column[j], sum / (double)l->rows, fresh);
    }
    for (uint64_t i = 0; i < l->rows; i++)
        for (uint64_t j = 0; j < l->columns; j++) {
            uint64_t at = first + i * l->columns + j;
            m->u[at] = g[at] / fmax(sqrt(row[i] * column[j] / fmax(mean, eps[0])), eps[0]);
        }
}

static void model_step(model *m, const layout *l, const memopt_adafactor *a, const double *g)
{
    const uint64_t count = count_of(l);
    double fresh = pow((double)a->step, a->beta2_decay), size = 0, length = 0;
    for (uint64_t s = 0; s < l->stack && l->rows; s++)
        model_matrix(m, l, g, s, fresh, a->eps);
    for (uint64_t i = 0; i < count && !l->rows; i++) {
        blend(&m->column[i], g[i] * g[i], fresh);
        m->u[i] = g[i] / fmax(sqrt(m->column[i]), a->eps[0]);
    }
    for (uint64_t i = 0; i < count; i++) {
        size += m->p[i] * m->p[i] / (double)count;
        length += m->u[i] * m->u[i] / (double)count;
    }
    double rate = fmax(sqrt(size), a->eps[1]) * fmin(a->lr, 1 / sqrt((double)a->step)) /
                  fmax(1.0, sqrt(length) / a->d);
    for (uint64_t i = 0; i < count; i++)
        m->p[i] = m->p[i] * (1 - a->lr * a->weight_decay) - (a->maximize ? -rate : rate) * m->u[i];
}

/* --- a parameter on the device ---------------------------------------------------------------- */

typedef struct trained {
    memopt_device *device;
    memopt_adafactor a;
    float row[MOST], column[MOST], p[MOST], g[MOST], found_inf;
} trained;

static trained *new_trained(const layout *l, memopt_dtype type, uint32_t threads)
{
    trained *t = calloc(1, sizeof *t);
    const bench_device wanted = {MEMOPT_STREAM_ORDER_EAGER, 1, 512 * MIB, threads};
    uint64_t seed = 11;
    t->device = bench_open_cpu(&wanted);
    t->a = (memopt_adafactor)MEMOPT_ADAFACTOR_INIT;
    t->a.parameter = (memopt_tensor){t->p, count_of(l), type};
    t->a.gradient = (memopt_tensor){t->g, count_of(l), type};
    t->a.rows = l->rows ? l->rows : 1;
    t->a.columns = l->columns;
    t->a.row_var = l->rows ? t->row : NULL;
    t->a.column_var = t->column;
    t->a.weight_decay = 0.1;
    for (uint64_t i = 0; i < count_of(l); i++)
        mo_store_element(t->p, i, (int32_t)type, normal(&seed));
    return t;
}

static void free_trained(trained *t)
{
    OK(memopt_device_close(t->device));
    free(t);
}

/* A gradient of rows and columns of different sizes, and the step. */
static void train(trained *t, const layout *l, uint64_t step)
{
    uint64_t seed = 100 + step;
    for (uint64_t i = 0; i < count_of(l); i++)
        mo_store_element(t->g, i, (int32_t)t->a.gradient.dtype,
                         normal(&seed) * (float)(1 + i % l->columns % 3) * (i % 2 ? 1e-3f : 1.0f));
    t->a.step = step;
    OK(memopt_adafactor_step(t->device, &t->a, NULL));
    OK(memopt_stream_sync(t->device, NULL));
}

TEST(rule)
{
    static double g[MOST];
    for (size_t k = 0; k < sizeof layouts / sizeof layouts[0]; k++) {
        const layout *l = &layouts[k];
        trained *t = new_trained(l, MEMOPT_DTYPE_F32, 2);
        model *m = calloc(1, sizeof *m);
        double apart = 0, moved = 0;
        for (uint64_t i = 0; i < count_of(l); i++)
            m->p[i] = (double)t->p[i];
        t->a.maximize = k % 2;
        t->a.d = k == 2 ? 1.0 : 3.0;
        t->a.eps[0] = k == 0 || k == 3 ? 0.65 : t->a.eps[0]; /* in reach of roots and means */
        t->a.gradient_scale = 0.5;
        for (uint64_t step = 1; step <= STEPS; step++) {
            train(t, l, step);
            for (uint64_t i = 0; i < count_of(l); i++)
                g[i] = 0.5 * (double)t->g[i];
            model_step(m, l, &t->a, g);
        }
        for (uint64_t i = 0; i < count_of(l); i++) {
            apart = fmax(apart, fabs((double)t->p[i] - m->p[i]));
            moved = fmax(moved, fabs(m->u[i]));
        }
        for (uint64_t i = 0; i < l->stack * l->rows; i++)
            assert_true(fabs((double)t->row[i] / m->row[i] - 1) < 1e-5);
        for (uint64_t i = 0; i < l->stack * l->columns; i++)
            assert_true(fabs((double)t->column[i] / m->column[i] - 1) < 1e-5);
        print_message("  layout %zu: %.1e of updates of %.1e\n", k, apart, moved);
        assert_true(moved > 0.1 && apart < 1e-6);
        free(m);
        free_trained(t);
    }
}

TEST(test_threads)
{
    static const memopt_dtype types[] = {MEMOPT_DTYPE_F32, MEMOPT_DTYPE_BF16, MEMOPT_DTYPE_F16};
    for (size_t k = 0; k < sizeof layouts / sizeof layouts[0]; k++)
        for (int type = 0; type < 3; type++) {
            trained *one = new_trained(&layouts[k], types[type], 1);
            trained *many = new_trained(&layouts[k], types[type], 3);
            for (uint64_t step = 1; step <= STEPS; step++) {
                train(one, &layouts[k], step);
                train(many, &layouts[k], step);
            }
            assert_memory_equal(one->p, many->p, sizeof one->p);
            assert_memory_equal(one->row, many->row, sizeof one->row);
            assert_memory_equal(one->column, many->column, sizeof one->column);
            free_trained(one);
            free_trained(many);
        }
}

/* A flag that is set keeps all bits; one that is not changes nothing. */
TEST(flag)
{
    for (int k = 0; k < 4; k += 3) {
        trained *t = new_trained(&layouts[k], MEMOPT_DTYPE_F32, 2),
                *before = malloc(sizeof *before);
        t->a.found_inf = &t->found_inf;
        train(t, &layouts[k], 1);
        *before = *t;
        t->found_inf = 1.0f;
        train(t, &layouts[k], 2);
        assert_memory_equal(t->p, before->p, sizeof t->p);
        assert_memory_equal(t->row, before->row, sizeof t->row);
        assert_memory_equal(t->column, before->column, sizeof t->column);
        t->found_inf = 0.0f;
        train(t, &layouts[k], 2);
        assert_memory_not_equal(t->p, before->p, sizeof t->p);
        free(before);
        free_trained(t);
    }
}

TEST(refusals)
{
    const layout *l = &layouts[3];
    trained *t = new_trained(l, MEMOPT_DTYPE_F32, 1), *before = malloc(sizeof *before);
    const memopt_adafactor good = t->a;
    t->a.step = 1;
    *before = *t;
#define REFUSED_AS(status, saying, field, value)                                                   \
    do {                                                                                           \
        t->a = good;                                                                               \
        t->a.step = 1;                                                                             \
        t->a.field = value;                                                                        \
        FAILS_SAYING(status, saying, memopt_adafactor_step(t->device, &t->a, NULL));               \
    } while (0)
    REFUSED_AS(MEMOPT_INVALID_ARGUMENT, "step is 0", step, 0);
    REFUSED_AS(MEMOPT_INVALID_ARGUMENT, "lr is -1", lr, -1.0);
    REFUSED_AS(MEMOPT_INVALID_ARGUMENT, "lr is nan", lr, (double)NAN);
    REFUSED_AS(MEMOPT_INVALID_ARGUMENT, "beta2_decay is 0.5", beta2_decay, 0.5);
    REFUSED_AS(MEMOPT_INVALID_ARGUMENT, "d is 0.5", d, 0.5);
    REFUSED_AS(MEMOPT_INVALID_ARGUMENT, "eps[1] is -1", eps[1], -1.0);
    REFUSED_AS(MEMOPT_INVALID_ARGUMENT, "not whole matrices of 131 x 1100", rows, 131);
    REFUSED_AS(MEMOPT_INVALID_ARGUMENT, "not whole matrices of 0 x 1100", rows, 0);
    REFUSED_AS(MEMOPT_INVALID_ARGUMENT, "130 rows; vectors have 1", row_var, NULL);
    REFUSED_AS(MEMOPT_INVALID_ARGUMENT, "column_var", column_var, NULL);
    REFUSED_AS(MEMOPT_INVALID_ARGUMENT, "gradient has 5 elements", gradient.count, 5);
    REFUSED_AS(MEMOPT_UNSUPPORTED, "f8_e4m3", gradient.dtype, MEMOPT_DTYPE_F8_E4M3);
    REFUSED_AS(MEMOPT_INVALID_ARGUMENT, "parameter and gradient overlap", gradient.data, t->p);
    REFUSED_AS(MEMOPT_INVALID_ARGUMENT, "row_var and column_var overlap", column_var, t->row + 1);
    t->a = good;
    t->a.step = 1;
    REFUSED_SAYING("device is NULL", memopt_adafactor_step(NULL, &t->a, NULL));
    REFUSED_SAYING("what is NULL", memopt_adafactor_step(t->device, NULL, NULL));
    t->a.parameter.count = (uint64_t)1 << 62;
    t->a.rows = (uint64_t)1 << 31;
    t->a.columns = (uint64_t)1 << 31;
    REFUSED_SAYING("2^60", memopt_adafactor_step(t->device, &t->a, NULL));
    assert_memory_equal(t->p, before->p, sizeof t->p);
    assert_memory_equal(t->row, before->row, sizeof t->row);
    t->a = good;
    t->a.parameter.count = t->a.gradient.count = 0; /* nothing to do */
    OK(memopt_adafactor_step(t->device, &t->a, NULL));
    free(before);
    free_trained(t);
}
