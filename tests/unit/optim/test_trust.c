/* Trust ratios: LAMB and LARS by an optimizer's step on zeros against the rules in double, shards,
 * the same bits with any number of threads, steps that are skipped, bad input. (Each form's bits:
 * tests/machines; the GPUs': tests/conformance.) */
#include "support.h"

#include "memopt/memopt.h"
#include "support/bench.h"

#include <math.h>

/* More tensors than a launch describes; some of several chunks, some empty. */
enum { TENSORS = 300, MOST = 400000, STEPS = 4 };

static uint64_t count_of(int tensor)
{
    static const uint64_t counts[] = {40000, 1, 0, 700, 33, 16384, 16385, 4096};
    return tensor < 8 ? counts[tensor] : (uint64_t)(tensor % 11) * 50;
}

typedef struct trained {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_optimizer *o;
    memopt_trust what;
    memopt_tensor parameters[TENSORS], updates[TENSORS], gradients[TENSORS];
    float p[MOST], u[MOST], g[MOST];
    float found_inf;
    double squares[2 * TENSORS];
} trained;

static void add_optimizer(trained *t, uint32_t kind, uint32_t format)
{
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    uint64_t index;
    uint32_t number;
    if (kind == MEMOPT_OPTIMIZER_SGD)
        group = (memopt_optimizer_group)MEMOPT_OPTIMIZER_GROUP_SGD_INIT;
    options.kind = kind;
    options.state_format = format;
    options.min_8bit_size = 1;
    group.lr = 1.0;
    group.weight_decay = 0.0;
    OK(memopt_optimizer_create(t->allocator, &options, &t->o));
    OK(memopt_optimizer_add_group(t->o, &group, &number));
    for (int i = 0; i < TENSORS; i++)
        if (t->updates[i].count != 0)
            OK(memopt_optimizer_add_parameter(t->o, 0, &t->updates[i], NULL, NULL, &index));
}

/* Parameters of any size; tensor 3 is all zeros. */
static trained *new_trained(uint32_t kind, uint32_t format, memopt_dtype type, uint32_t threads)
{
    trained *t = calloc(1, sizeof *t);
    const bench_device wanted = {MEMOPT_STREAM_ORDER_EAGER, 1, 512 * MIB, threads};
    uint64_t seed = 5, at = 0;
    bench_open_device(&wanted, &t->device, &t->allocator);
    t->what = (memopt_trust)MEMOPT_TRUST_INIT;
    t->what.lr = 0.1;
    t->what.negated = 1;
    for (int i = 0; i < TENSORS; i++) {
        const uint64_t count = count_of(i);
        const float size = i == 3 ? 0.0f : ldexpf(1.0f, i % 9 - 6);
        t->parameters[i] = (memopt_tensor){t->p + at, count, type};
        t->updates[i] = (memopt_tensor){t->u + at, count, MEMOPT_DTYPE_F32};
        t->gradients[i] = (memopt_tensor){t->g + at, count, MEMOPT_DTYPE_F32};
        for (uint64_t k = 0; k < count; k++)
            mo_store_element(t->p + at, k, (int32_t)type, size * normal(&seed));
        at += count;
    }
    assert_true(at <= MOST);
    add_optimizer(t, kind, format);
    return t;
}

static void free_trained(trained *t)
{
    OK(memopt_optimizer_destroy(t->o));
    bench_close_device(t->device, t->allocator);
    free(t);
}

static void find_updates(trained *t, uint64_t step)
{
    memopt_tensor given[TENSORS];
    memopt_step_options options = MEMOPT_STEP_OPTIONS_INIT;
    uint64_t seed = 50 + step, used = 0;
    options.found_inf = t->what.found_inf != NULL ? &t->found_inf : NULL;
    for (uint64_t i = 0; i < MOST; i++)
        t->g[i] = normal(&seed);
    for (int i = 0; i < TENSORS; i++)
        if (t->gradients[i].count != 0)
            given[used++] = t->gradients[i];
    OK(memopt_fill(t->device, t->u, 0, sizeof t->u, NULL));
    OK(memopt_optimizer_step(t->o, given, used, &options, NULL));
}

static void squares(trained *t)
{
    OK(memopt_trust_squares(t->device, &t->what, t->parameters, t->updates, TENSORS, t->squares,
                            NULL));
}

static void apply(trained *t)
{
    OK(memopt_trust_apply(t->device, &t->what, t->parameters, t->updates, TENSORS, t->squares,
                          NULL));
    OK(memopt_stream_sync(t->device, NULL));
}

static void train(trained *t, uint64_t step)
{
    find_updates(t, step);
    squares(t);
    apply(t);
}

/* --- the rules, written anew in double -------------------------------------------------------- */

typedef struct model {
    double p[MOST], m[MOST], v[MOST], moved;
    int bounded, free; /* updates that the ratio changed, and the others */
} model;

static double update_of(model *m, const trained *t, uint32_t kind, uint64_t i, uint64_t step)
{
    const double g = (double)t->g[i];
    if (kind == MEMOPT_OPTIMIZER_SGD)
        return m->m[i] = 0.9 * m->m[i] + g;
    m->m[i] = 0.9 * m->m[i] + 0.1 * g;
    m->v[i] = 0.999 * m->v[i] + 0.001 * g * g;
    return m->m[i] / (1 - pow(0.9, (double)step)) /
               (sqrt(m->v[i] / (1 - pow(0.999, (double)step))) + 1e-8) +
           t->what.weight_decay * m->p[i];
}

static void model_step(model *m, const trained *t, uint32_t kind, uint64_t step)
{
    static double updates[MOST];
    for (int tensor = 0; tensor < TENSORS; tensor++) {
        const uint64_t first = (uint64_t)((const float *)t->updates[tensor].data - t->u);
        const uint64_t end = first + t->updates[tensor].count;
        double size = 0, length = 0, ratio = 1;
        for (uint64_t i = first; i < end; i++) {
            updates[i] = update_of(m, t, kind, i, step);
            size += m->p[i] * m->p[i];
            length += updates[i] * updates[i];
        }
        if (t->what.max_ratio > 0 && size > 0 && length > 0)
            ratio = t->what.max_ratio * sqrt(size) / sqrt(length);
        if (t->what.clip)
            ratio = fmin(ratio, 1);
        m->bounded += ratio != 1;
        m->free += ratio == 1;
        for (uint64_t i = first; i < end; i++) {
            m->p[i] -= t->what.lr * ratio * updates[i];
            m->moved = fmax(m->moved, fabs(t->what.lr * ratio * updates[i]));
        }
    }
}

/* How far a run of steps ends from the rule's, as a share of the largest step. */
static double distance(uint32_t kind, uint32_t format, const memopt_trust *what, int *bounded)
{
    trained *t = new_trained(kind, format, MEMOPT_DTYPE_F32, 2);
    model *m = calloc(1, sizeof *m);
    double apart = 0;
    t->what = *what;
    for (uint64_t i = 0; i < MOST; i++)
        m->p[i] = (double)t->p[i];
    for (uint64_t step = 1; step <= STEPS; step++) {
        train(t, step);
        model_step(m, t, kind, step);
    }
    for (uint64_t i = 0; i < MOST; i++)
        apart = fmax(apart, fabs((double)t->p[i] - m->p[i]));
    apart /= m->moved;
    assert_true(m->free > 0);
    *bounded = m->bounded;
    free(m);
    free_trained(t);
    return apart;
}

TEST(rules)
{
    static const struct {
        double weight_decay, max_ratio;
        uint32_t clip;
    } cases[] = {{0.1, 1.0, 1}, {0.0, 1.0, 0}, {0.3, 0.02, 0}, {0.1, 0.0, 1}};
    for (int k = 0; k < 16; k++) {
        const uint32_t kind = k % 2 ? MEMOPT_OPTIMIZER_SGD : MEMOPT_OPTIMIZER_ADAMW;
        const uint32_t format = k / 2 % 2 ? MEMOPT_STATE_8BIT : MEMOPT_STATE_F32;
        memopt_trust what = MEMOPT_TRUST_INIT;
        int bounded = 0;
        what.lr = 0.1;
        what.negated = 1;
        what.weight_decay = kind == MEMOPT_OPTIMIZER_SGD ? 0.0 : cases[k / 4].weight_decay;
        what.max_ratio = cases[k / 4].max_ratio;
        what.clip = cases[k / 4].clip;
        double apart = distance(kind, format, &what, &bounded);
        print_message("  %s, %s, at most %g: %.1e of the largest step, %d bounded\n",
                      k % 2 ? "SGD" : "AdamW", k / 2 % 2 ? "8 bits" : "32 bits", what.max_ratio,
                      apart, bounded);
        assert_true((bounded > 0) == (what.max_ratio > 0));
        assert_true(apart < (format == MEMOPT_STATE_8BIT ? 0.1 : 2e-5));
    }
}

/* --- bits ------------------------------------------------------------------------------------- */

TEST(test_threads)
{
    static const memopt_dtype types[] = {MEMOPT_DTYPE_F32, MEMOPT_DTYPE_BF16, MEMOPT_DTYPE_F16};
    for (int k = 0; k < 3; k++) {
        trained *one = new_trained(MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT, types[k], 1);
        trained *many = new_trained(MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT, types[k], 3);
        one->what.weight_decay = many->what.weight_decay = 0.1;
        for (uint64_t step = 1; step <= STEPS; step++) {
            train(one, step);
            train(many, step);
        }
        assert_memory_equal(one->p, many->p, sizeof one->p);
        assert_memory_equal(one->squares, many->squares, sizeof one->squares);
        free_trained(one);
        free_trained(many);
    }
}

/* The squares of shards, added up, are the whole's, and with those each shard steps as the whole.
 */
TEST(shards)
{
    trained *whole = new_trained(MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_F32, MEMOPT_DTYPE_F32, 1);
    trained *cut = new_trained(MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_F32, MEMOPT_DTYPE_F32, 1);
    whole->what.weight_decay = cut->what.weight_decay = 0.1;
    find_updates(whole, 1);
    squares(whole);
    find_updates(cut, 1);
    const uint64_t half = 30000, count = cut->parameters[0].count;
    memopt_tensor p[] = {{cut->p, half, MEMOPT_DTYPE_F32},
                         {cut->p + half, count - half, MEMOPT_DTYPE_F32}};
    memopt_tensor u[] = {{cut->u, half, MEMOPT_DTYPE_F32},
                         {cut->u + half, count - half, MEMOPT_DTYPE_F32}};
    OK(memopt_trust_squares(cut->device, &cut->what, p, u, 2, cut->squares, NULL));
    for (int i = 0; i < 2; i++) {
        const double sum = cut->squares[2 * i] + cut->squares[2 * i + 1];
        assert_true(fabs(sum / whole->squares[i * TENSORS] - 1) < 1e-14);
        cut->squares[2 * i] = cut->squares[2 * i + 1] = whole->squares[i * TENSORS];
    }
    OK(memopt_trust_apply(cut->device, &cut->what, p, u, 2, cut->squares, NULL));
    apply(whole);
    OK(memopt_stream_sync(cut->device, NULL));
    assert_memory_equal(whole->p, cut->p, 4 * count);
    free_trained(whole);
    free_trained(cut);
}

/* The momentum itself as the update, with its own sign: the step on zeros gives the same. */
TEST(sign)
{
    trained *t = new_trained(MEMOPT_OPTIMIZER_SGD, MEMOPT_STATE_F32, MEMOPT_DTYPE_BF16, 2);
    trained *other = new_trained(MEMOPT_OPTIMIZER_SGD, MEMOPT_STATE_F32, MEMOPT_DTYPE_BF16, 2);
    t->what.max_ratio = other->what.max_ratio = 0.02;
    t->what.weight_decay = other->what.weight_decay = 0.2;
    find_updates(t, 1);
    for (uint64_t i = 0; i < MOST; i++)
        other->u[i] = -t->u[i];
    other->what.negated = 0;
    squares(t);
    apply(t);
    squares(other);
    apply(other);
    assert_memory_equal(t->p, other->p, sizeof t->p);
    assert_memory_equal(t->squares, other->squares, sizeof t->squares);
    free_trained(t);
    free_trained(other);
}

/* A flag that is set keeps all bits, those of a negative zero too; one that is not changes nothing.
 */
TEST(flag)
{
    trained *t = new_trained(MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT, MEMOPT_DTYPE_F32, 2);
    float *before = malloc(sizeof t->p);
    t->what.weight_decay = 0.1;
    t->what.found_inf = &t->found_inf;
    train(t, 1);
    t->p[7] = -0.0f;
    memcpy(before, t->p, sizeof t->p);
    t->found_inf = 1.0f;
    train(t, 2);
    assert_memory_equal(t->p, before, sizeof t->p);
    for (uint64_t i = 0; i < MOST; i++)
        assert_true(t->u[i] == 0.0f);
    t->found_inf = 0.0f;
    train(t, 2);
    assert_memory_not_equal(t->p, before, sizeof t->p);
    free(before);
    free_trained(t);
}

/* An infinite update leaves NaN where it is and nothing elsewhere, as lr · 0 · ∞ says. */
TEST(infinity)
{
    trained *t = new_trained(MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_F32, MEMOPT_DTYPE_F32, 1);
    float *before = malloc(sizeof t->p);
    find_updates(t, 1);
    t->u[5] = INFINITY;
    memcpy(before, t->p, sizeof t->p);
    squares(t);
    apply(t);
    assert_true(isnan(t->p[5]) && isinf(t->squares[TENSORS]));
    assert_memory_equal(t->p, before, 4 * 5);
    assert_memory_equal(t->p + 6, before + 6, 4 * (t->parameters[0].count - 6));
    free(before);
    free_trained(t);
}

/* --- bad input -------------------------------------------------------------------------------- */

TEST(refusals)
{
    trained *t = new_trained(MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_F32, MEMOPT_DTYPE_F32, 1);
    const memopt_trust good = t->what;
    float *before = malloc(sizeof t->p);
    find_updates(t, 1);
    memcpy(before, t->p, sizeof t->p);
#define REFUSED_AS(status, saying, parameters, updates, squares)                                   \
    do {                                                                                           \
        FAILS_SAYING(status, saying,                                                               \
                     memopt_trust_squares(t->device, &t->what, parameters, updates, TENSORS,       \
                                          squares, NULL));                                         \
        FAILS_SAYING(                                                                              \
            status, saying,                                                                        \
            memopt_trust_apply(t->device, &t->what, parameters, updates, TENSORS, squares, NULL)); \
    } while (0)
#define REFUSED_VALUE(saying, field, value)                                                        \
    do {                                                                                           \
        t->what.field = value;                                                                     \
        REFUSED_AS(MEMOPT_INVALID_ARGUMENT, saying, t->parameters, t->updates, t->squares);        \
        t->what = good;                                                                            \
    } while (0)
    REFUSED_VALUE("lr is -1", lr, -1.0);
    REFUSED_VALUE("weight_decay is inf", weight_decay, (double)INFINITY);
    REFUSED_VALUE("max_ratio is nan", max_ratio, (double)NAN);
    REFUSED_VALUE("memopt_trust", struct_size, 3);
    REFUSED_VALUE("not aligned to an f32", found_inf, (const float *)((uintptr_t)t->p + 1));
    REFUSED_AS(MEMOPT_INVALID_ARGUMENT, "is NULL", NULL, t->updates, t->squares);
    REFUSED_AS(MEMOPT_INVALID_ARGUMENT, "is NULL", t->parameters, NULL, t->squares);
    REFUSED_AS(MEMOPT_INVALID_ARGUMENT, "squares", t->parameters, t->updates, NULL);
    REFUSED_AS(MEMOPT_INVALID_ARGUMENT, "overlap", t->parameters, t->parameters, t->squares);
    memopt_tensor updates[TENSORS];
    memcpy(updates, t->updates, sizeof updates);
    updates[4].count = 32;
    REFUSED_AS(MEMOPT_INVALID_ARGUMENT, " 4 has 3", t->parameters, updates, t->squares);
    updates[4].count = 33;
    updates[5].dtype = MEMOPT_DTYPE_BF16;
    REFUSED_AS(MEMOPT_UNSUPPORTED, "update 5 is bf16", t->parameters, updates, t->squares);
    REFUSED_SAYING("device is NULL", memopt_trust_apply(NULL, &t->what, t->parameters, t->updates,
                                                        TENSORS, t->squares, NULL));
    assert_memory_equal(t->p, before, sizeof t->p);
    OK(memopt_trust_squares(t->device, &t->what, NULL, NULL, 0, NULL, NULL));
    OK(memopt_trust_apply(t->device, &t->what, NULL, NULL, 0, NULL, NULL));
    free(before);
    free_trained(t);
}
