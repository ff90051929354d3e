/* Adafactor: the rule in double, the same bits with any number of threads and of parameters in a
 * step, steps that are skipped, exports, bad input. (Each form's bits: tests/machines; the GPUs':
 * tests/conformance.) */
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
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

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

static void model_step(model *m, const layout *l, const memopt_optimizer_group *a, const double *g,
                       int step)
{
    const uint64_t count = count_of(l);
    const double eps[2] = {a->eps, a->eps2};
    double fresh = pow(step, a->beta2_decay), size = 0, length = 0;
    for (uint64_t s = 0; s < l->stack && l->rows; s++)
        model_matrix(m, l, g, s, fresh, eps);
    for (uint64_t i = 0; i < count && !l->rows; i++) {
        blend(&m->column[i], g[i] * g[i], fresh);
        m->u[i] = g[i] / fmax(sqrt(m->column[i]), eps[0]);
    }
    for (uint64_t i = 0; i < count; i++) {
        size += m->p[i] * m->p[i] / (double)count;
        length += m->u[i] * m->u[i] / (double)count;
    }
    double rate = fmax(sqrt(size), eps[1]) * fmin(a->lr, 1 / sqrt(step)) /
                  (a->d > 0 ? fmax(1.0, sqrt(length) / a->d) : 1.0);
    for (uint64_t i = 0; i < count; i++)
        m->p[i] = m->p[i] * (1 - a->lr * a->weight_decay) - (a->maximize ? -rate : rate) * m->u[i];
}

/* --- parameters on the device ----------------------------------------------------------------- */

typedef struct trained {
    float row[MOST], column[MOST], p[MOST], g[MOST];
    uint64_t steps;
    memopt_tensor parameter, gradient;
} trained;

typedef struct training {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_optimizer *optimizer;
    memopt_optimizer_group group;
    memopt_step_options options;
    float scale, found_inf;
    uint32_t count; /* of parameters */
    const layout *layouts;
    trained *of;
} training;

static memopt_optimizer *new_optimizer(memopt_allocator *allocator)
{
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer *o = NULL;
    options.kind = MEMOPT_OPTIMIZER_ADAFACTOR;
    OK(memopt_optimizer_create(allocator, &options, &o));
    return o;
}

/* Parameters of these layouts, whose states are the caller's. */
static training open_training(const layout *l, uint32_t count, memopt_dtype type, uint32_t threads)
{
    const bench_device wanted = {MEMOPT_STREAM_ORDER_EAGER, 1, 512 * MIB, threads};
    training t = {.device = bench_open_cpu(&wanted), .count = count, .layouts = l, .scale = 1};
    uint32_t group = 0;
    t.group = (memopt_optimizer_group)MEMOPT_OPTIMIZER_GROUP_ADAFACTOR_INIT;
    t.group.weight_decay = 0.1;
    t.options = (memopt_step_options)MEMOPT_STEP_OPTIONS_INIT;
    t.of = calloc(count, sizeof *t.of);
    OK(memopt_allocator_create(t.device, NULL, NULL, &t.allocator));
    t.optimizer = new_optimizer(t.allocator);
    OK(memopt_optimizer_add_group(t.optimizer, &t.group, &group));
    for (uint32_t k = 0; k < count; k++, l++) {
        trained *o = &t.of[k];
        uint64_t seed = 11, index;
        o->parameter = (memopt_tensor){o->p, count_of(l), type};
        o->gradient = (memopt_tensor){o->g, count_of(l), type};
        for (uint64_t i = 0; i < count_of(l); i++)
            mo_store_element(o->p, i, (int32_t)type, normal(&seed));
        const memopt_tensor states[] = {{o->row, l->stack * l->rows, MEMOPT_DTYPE_F32},
                                        {o->column, l->stack * l->columns, MEMOPT_DTYPE_F32}};
        memopt_parameter_options own = MEMOPT_PARAMETER_OPTIONS_INIT;
        own.states = l->rows ? states : states + 1;
        own.state_count = l->rows ? 2 : 1;
        own.steps = &o->steps;
        own.rows = l->rows;
        own.columns = l->rows ? l->columns : 0;
        OK(memopt_optimizer_add_parameter(t.optimizer, group, &o->parameter, &own, NULL, &index));
    }
    return t;
}

static void close_training(training *t)
{
    OK(memopt_optimizer_destroy(t->optimizer));
    bench_close_device(t->device, t->allocator);
    free(t->of);
}

/* Gradients of rows and columns of different sizes, and the step. */
static void train(training *t, uint64_t step)
{
    memopt_tensor gradients[8];
    for (uint32_t k = 0; k < t->count; k++) {
        trained *o = &t->of[k];
        uint64_t seed = 100 + step;
        for (uint64_t i = 0; i < o->gradient.count; i++)
            mo_store_element(o->g, i, (int32_t)o->gradient.dtype,
                             normal(&seed) * (float)(1 + i % t->layouts[k].columns % 3) *
                                 (i % 2 ? 1e-3f : 1.0f));
        gradients[k] = o->gradient;
    }
    OK(memopt_optimizer_set_group(t->optimizer, 0, &t->group));
    OK(memopt_optimizer_step(t->optimizer, gradients, t->count, &t->options, NULL));
    OK(memopt_stream_sync(t->device, NULL));
}

TEST(rule)
{
    static double g[MOST];
    for (uint32_t k = 0; k < LAYOUTS; k++) {
        const layout *l = &layouts[k];
        training t = open_training(l, 1, MEMOPT_DTYPE_F32, 2);
        trained *o = t.of;
        model *m = calloc(1, sizeof *m);
        double apart = 0, moved = 0;
        for (uint64_t i = 0; i < count_of(l); i++)
            m->p[i] = (double)o->p[i];
        t.group.maximize = k % 2;
        t.group.d = k == 2 ? 1.0 : k == 4 ? 0.0 : 3.0;
        t.group.eps = k == 0 || k == 3 ? 0.65 : t.group.eps; /* in reach of roots and means */
        t.scale = 2;
        t.options.grad_scale = &t.scale;
        for (int step = 1; step <= STEPS; step++) {
            train(&t, (uint64_t)step);
            for (uint64_t i = 0; i < count_of(l); i++)
                g[i] = 0.5 * (double)o->g[i];
            model_step(m, l, &t.group, g, step);
        }
        for (uint64_t i = 0; i < count_of(l); i++) {
            apart = fmax(apart, fabs((double)o->p[i] - m->p[i]));
            moved = fmax(moved, fabs(m->u[i]));
        }
        for (uint64_t i = 0; i < l->stack * l->rows; i++)
            assert_true(fabs((double)o->row[i] / m->row[i] - 1) < 1e-5);
        for (uint64_t i = 0; i < l->stack * l->columns; i++)
            assert_true(fabs((double)o->column[i] / m->column[i] - 1) < 1e-5);
        print_message("  layout %u: %.1e of updates of %.1e\n", k, apart, moved);
        assert_true(moved > 0.1 && apart < 1e-6);
        assert_int_equal(o->steps, STEPS);
        free(m);
        close_training(&t);
    }
}

/* All parameters in one step of many threads, and each alone with one thread. */
TEST(test_threads)
{
    static const memopt_dtype types[] = {MEMOPT_DTYPE_F32, MEMOPT_DTYPE_BF16, MEMOPT_DTYPE_F16};
    for (int type = 0; type < 3; type++) {
        training all = open_training(layouts, LAYOUTS, types[type], 3);
        for (uint64_t step = 1; step <= STEPS; step++)
            train(&all, step);
        for (uint32_t k = 0; k < LAYOUTS; k++) {
            training one = open_training(&layouts[k], 1, types[type], 1);
            for (uint64_t step = 1; step <= STEPS; step++)
                train(&one, step);
            assert_memory_equal(one.of->p, all.of[k].p, sizeof one.of->p);
            assert_memory_equal(one.of->row, all.of[k].row, sizeof one.of->row);
            assert_memory_equal(one.of->column, all.of[k].column, sizeof one.of->column);
            close_training(&one);
        }
        close_training(&all);
    }
}

/* A flag that is set keeps all bits, and so does a gradient that is not finite; a flag that is not
 * set changes nothing. */
TEST(flag)
{
    training t = open_training(layouts, LAYOUTS, MEMOPT_DTYPE_F32, 2);
    trained *before = malloc(LAYOUTS * sizeof *before);
    t.options.found_inf = &t.found_inf;
    train(&t, 1);
    for (int k = 0; k < 2; k++) {
        for (uint32_t i = 0; i < LAYOUTS; i++)
            before[i] = t.of[i];
        t.found_inf = (float)(k == 0);
        t.scale = k == 0 ? 1.0f : 0.0f; /* divided by it */
        t.options.grad_scale = &t.scale;
        t.options.square_sum = k == 0 ? NULL : &(double){INFINITY};
        t.options.skip_non_finite = k == 1;
        train(&t, 2);
        for (uint32_t i = 0; i < LAYOUTS; i++) {
            assert_memory_equal(t.of[i].p, before[i].p, sizeof before->p);
            assert_memory_equal(t.of[i].row, before[i].row, sizeof before->row);
            assert_memory_equal(t.of[i].column, before[i].column, sizeof before->column);
            assert_int_equal(t.of[i].steps, 1);
        }
    }
    assert_true(t.found_inf == 1.0f);
    t.found_inf = 0.0f;
    t.options.square_sum = NULL;
    t.options.grad_scale = NULL;
    train(&t, 2);
    for (uint32_t i = 0; i < LAYOUTS; i++)
        assert_memory_not_equal(t.of[i].p, before[i].p, sizeof before->p);
    free(before);
    close_training(&t);
}

/* An export goes on as the optimizer did, with states of the library's; one of other matrices does
 * not. */
TEST(exports)
{
    training t = open_training(&layouts[3], 1, MEMOPT_DTYPE_F32, 2);
    trained *o = t.of;
    unsigned char *bytes;
    uint64_t size = 0, index, steps = 0;
    uint32_t group;
    t.group.d = 2.0;
    train(&t, 1);
    OK(memopt_optimizer_export_sync(t.optimizer, 0, NULL, NULL, &size));
    bytes = malloc(size);
    OK(memopt_optimizer_export_sync(t.optimizer, size, NULL, bytes, NULL));
    for (uint64_t rows = 130; rows < 300; rows += 130) {
        memopt_optimizer *other = new_optimizer(t.allocator);
        memopt_optimizer_group own = MEMOPT_OPTIMIZER_GROUP_ADAFACTOR_INIT;
        memopt_parameter_options options = MEMOPT_PARAMETER_OPTIONS_INIT;
        memopt_state_view view = MEMOPT_STATE_VIEW_INIT;
        options.rows = rows;
        options.columns = 1100;
        OK(memopt_optimizer_add_group(other, &own, &group));
        OK(memopt_optimizer_add_parameter(other, group, &o->parameter, &options, NULL, &index));
        if (rows != 130) {
            REFUSED_SAYING("matrices of 130 x 1100; here they are of 260 x 1100",
                           memopt_optimizer_import_sync(other, bytes, size, 1, NULL));
        } else {
            OK(memopt_optimizer_import_sync(other, bytes, size, 0, NULL));
            OK(memopt_optimizer_get_group(other, 0, &own));
            assert_true(own.d == 2.0 && own.beta2_decay == -0.8 && own.eps2 == 1e-3);
            OK(memopt_optimizer_get_state(other, 0, 0, &view));
            assert_string_equal(view.name, "row_var");
            assert_int_equal(view.tensor.count, 2 * 130);
            assert_memory_equal(view.tensor.data, o->row, 2 * 130 * 4);
            OK(memopt_optimizer_get_state(other, 0, 1, &view));
            assert_string_equal(view.name, "col_var");
            assert_memory_equal(view.tensor.data, o->column, 2 * 1100 * 4);
            OK(memopt_optimizer_get_steps_sync(other, 0, NULL, &steps));
            assert_int_equal(steps, 1);
        }
        OK(memopt_optimizer_destroy(other));
    }
    free(bytes);
    close_training(&t);
}

TEST(refusals)
{
    training t = open_training(layouts, 1, MEMOPT_DTYPE_F32, 1);
    const memopt_tensor p = {t.of->g, MOST, MEMOPT_DTYPE_F32};
    memopt_optimizer *o = NULL;
    uint64_t index;
    uint32_t group;
    static const struct {
        const char *saying;
        memopt_optimizer_options options;
    } bad_options[] = {
        {"state_format 2", {.state_format = MEMOPT_STATE_8BIT_DYNAMIC}},
        {"Adafactor with stochastic_rounding 1", {.stochastic_rounding = 1}},
        {"split_weights 2", {.split_weights = 2}},
        {"page_bytes 4096", {.page_bytes = 4096}},
    };
    for (size_t i = 0; i < sizeof bad_options / sizeof *bad_options; i++) {
        memopt_optimizer_options options = bad_options[i].options;
        options.struct_size = sizeof options;
        options.kind = MEMOPT_OPTIMIZER_ADAFACTOR;
        FAILS_SAYING(MEMOPT_UNSUPPORTED, bad_options[i].saying,
                     memopt_optimizer_create(t.allocator, &options, &o));
    }
#define GROUP_REFUSED(saying, field, value)                                                        \
    do {                                                                                           \
        memopt_optimizer_group values = t.group;                                                   \
        values.field = value;                                                                      \
        REFUSED_SAYING(saying, memopt_optimizer_set_group(t.optimizer, 0, &values));               \
    } while (0)
    GROUP_REFUSED("beta2_decay 0.5", beta2_decay, 0.5);
    GROUP_REFUSED("d 0.5", d, 0.5);
    GROUP_REFUSED("eps2 -1", eps2, -1.0);
#define PARAMETER_REFUSED(status, saying, to, ...)                                                 \
    do {                                                                                           \
        const memopt_parameter_options own = {.struct_size = sizeof own, __VA_ARGS__};             \
        FAILS_SAYING(status, saying,                                                               \
                     memopt_optimizer_add_parameter(to, 0, &p, &own, NULL, &index));               \
    } while (0)
    PARAMETER_REFUSED(MEMOPT_INVALID_ARGUMENT, "not whole matrices of 131 x 1100", t.optimizer,
                      .rows = 131, .columns = 1100);
    PARAMETER_REFUSED(MEMOPT_INVALID_ARGUMENT, "of 130 x 0", t.optimizer, .rows = 130);
    PARAMETER_REFUSED(MEMOPT_INVALID_ARGUMENT, "of 4294967296 x 1", t.optimizer,
                      .rows = (uint64_t)1 << 32, .columns = 1);
    PARAMETER_REFUSED(MEMOPT_UNSUPPORTED, "no model copy", t.optimizer,
                      .model_copy = {t.of->row, MOST, MEMOPT_DTYPE_BF16});
    PARAMETER_REFUSED(MEMOPT_INVALID_ARGUMENT, "it has 2", t.optimizer, .rows = 130,
                      .columns = 1100, .states = &p, .state_count = 1, .steps = &t.of->steps);
    OK(memopt_optimizer_create(t.allocator, NULL, &o));
    OK(memopt_optimizer_add_group(o, &t.group, &group));
    PARAMETER_REFUSED(MEMOPT_INVALID_ARGUMENT, "130 rows and 1100 columns are for Adafactor", o,
                      .rows = 130, .columns = 1100);
    OK(memopt_optimizer_destroy(o));
    close_training(&t);
}
