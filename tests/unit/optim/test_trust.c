/* Trust: LAMB and LARS against the rules in double, steps in halves, the same bits with any number of
 * threads and batches, copies, steps that are skipped, imports, bad input. (Each form's bits:
 * tests/machines; the GPUs': tests/conformance.) */
#include "support.h"

#include "memopt/memopt.h"
#include "support/bench.h"

#include <math.h>

/* Some tensors have several chunks. */
enum { TENSORS = 60, MOST = 96000, STEPS = 4 };

static uint64_t count_of(int tensor)
{
    static const uint64_t counts[] = {40000, 1, 2, 700, 33, 16384, 16385, 4096};
    return tensor < 8 ? counts[tensor] : 1 + (uint64_t)(tensor % 11) * 50;
}

/* What is trained, and how. */
typedef struct recipe {
    memopt_optimizer_group group;
    uint32_t kind, format;
    uint64_t min_8bit_size; /* 0: 1 */
    memopt_dtype type, copy;
    uint32_t stochastic, threads;
} recipe;

typedef struct trained {
    memopt_device *device;
    memopt_allocator *allocator;
    memopt_optimizer *o;
    memopt_step_options step;
    memopt_tensor parameters[TENSORS], gradients[TENSORS];
    float p[MOST], g[MOST];
    uint16_t copies[MOST];
    float found_inf;
    double squares[2 * TENSORS];
} trained;

static recipe lamb(uint32_t format)
{
    recipe r = {MEMOPT_OPTIMIZER_GROUP_LAMB_INIT,
                MEMOPT_OPTIMIZER_ADAMW,
                format,
                0,
                MEMOPT_DTYPE_F32,
                0,
                0,
                2};
    r.group.lr = 0.1;
    r.group.weight_decay = 0.1;
    return r;
}

static recipe lars(uint32_t format)
{
    recipe r = lamb(format);
    r.group = (memopt_optimizer_group)MEMOPT_OPTIMIZER_GROUP_LARS_INIT;
    r.kind = MEMOPT_OPTIMIZER_SGD;
    r.group.lr = 0.1;
    r.group.weight_decay = 0.1;
    return r;
}

static void add_optimizer(trained *t, const recipe *r)
{
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    uint32_t number;
    options.kind = r->kind;
    options.state_format = r->format;
    options.min_8bit_size = r->min_8bit_size ? r->min_8bit_size : 1;
    options.stochastic_rounding = r->stochastic;
    options.trust = 1;
    OK(memopt_optimizer_create(t->allocator, &options, &t->o));
    OK(memopt_optimizer_add_group(t->o, &r->group, &number));
}

/* Parameters of any size; tensor 3 is all zeros. */
static trained *new_trained(const recipe *r)
{
    trained *t = calloc(1, sizeof *t);
    const bench_device wanted = {MEMOPT_STREAM_ORDER_EAGER, 1, 512 * MIB, r->threads};
    const uint64_t size = memopt_dtype_size(r->type);
    uint64_t seed = 5, at = 0;
    bench_open_device(&wanted, &t->device, &t->allocator);
    t->step = (memopt_step_options)MEMOPT_STEP_OPTIONS_INIT;
    add_optimizer(t, r);
    for (int i = 0; i < TENSORS; i++) {
        const uint64_t count = count_of(i);
        const float scale = i == 3 ? 0.0f : ldexpf(1.0f, i % 9 - 6);
        memopt_parameter_options own = MEMOPT_PARAMETER_OPTIONS_INIT;
        unsigned char *place = (unsigned char *)t->p + at * size;
        uint64_t index;
        t->parameters[i] = (memopt_tensor){place, count, r->type};
        t->gradients[i] = (memopt_tensor){t->g + at, count, MEMOPT_DTYPE_F32};
        if (r->copy)
            own.model_copy = (memopt_tensor){t->copies + at, count, r->copy};
        for (uint64_t k = 0; k < count; k++)
            mo_store_element(place, k, (int32_t)r->type, scale * normal(&seed));
        OK(memopt_optimizer_add_parameter(t->o, 0, &t->parameters[i], &own, NULL, &index));
        at += count;
    }
    assert_true(at <= MOST);
    return t;
}

static void free_trained(trained *t)
{
    OK(memopt_optimizer_destroy(t->o));
    bench_close_device(t->device, t->allocator);
    free(t);
}

static void fill_gradients(trained *t, uint64_t step)
{
    uint64_t seed = 50 + step;
    for (uint64_t i = 0; i < MOST; i++)
        t->g[i] = normal(&seed);
}

static void train(trained *t, uint64_t step)
{
    fill_gradients(t, step);
    OK(memopt_optimizer_step(t->o, t->gradients, TENSORS, &t->step, NULL));
}

static uint64_t stat_of(const trained *t, const char *name)
{
    uint64_t value;
    OK(memopt_allocator_get_stat(t->allocator, name, &value));
    return value;
}

static void half(trained *t, uint32_t which)
{
    t->step.squares = t->squares;
    t->step.half = which;
    OK(memopt_optimizer_step(t->o, t->gradients, TENSORS, &t->step, NULL));
    t->step.squares = NULL;
    t->step.half = 0;
}

/* --- the rules, written anew in double -------------------------------------------------------- */

typedef struct model {
    double p[MOST], m[MOST], v[MOST], moved;
    int bounded, free; /* updates that the ratio changed, and the others */
} model;

static double corrected(const memopt_optimizer_group *g, double beta, uint64_t step)
{
    return g->uncorrected ? 1 : 1 - pow(beta, (double)step);
}

static double update_of(model *m, const recipe *r, double g, uint64_t i, uint64_t step)
{
    const memopt_optimizer_group *o = &r->group;
    g = o->maximize ? -g : g;
    if (r->kind == MEMOPT_OPTIMIZER_SGD) {
        g += o->weight_decay * m->p[i];
        m->m[i] = o->momentum * m->m[i] + (step == 1 ? 1 : 1 - o->dampening) * g;
        return o->nesterov ? g + o->momentum * m->m[i] : m->m[i];
    }
    m->m[i] = o->beta1 * m->m[i] + (1 - o->beta1) * g;
    m->v[i] = o->beta2 * m->v[i] + (1 - o->beta2) * g * g;
    return m->m[i] / corrected(o, o->beta1, step) /
               (sqrt(m->v[i] / corrected(o, o->beta2, step)) + o->eps) +
           o->weight_decay * m->p[i];
}

static void model_step(model *m, const trained *t, const recipe *r, uint64_t step)
{
    static double updates[MOST];
    for (int tensor = 0; tensor < TENSORS; tensor++) {
        const uint64_t first = (uint64_t)((const float *)t->gradients[tensor].data - t->g);
        const uint64_t end = first + t->gradients[tensor].count;
        double size = 0, length = 0, ratio = 1;
        for (uint64_t i = first; i < end; i++) {
            updates[i] = update_of(m, r, (double)t->g[i], i, step);
            size += m->p[i] * m->p[i];
            length += updates[i] * updates[i];
        }
        if (r->group.max_ratio > 0 && size > 0 && length > 0)
            ratio = r->group.max_ratio * sqrt(size) / sqrt(length);
        if (r->group.trust_clip)
            ratio = fmin(ratio, 1);
        m->bounded += ratio != 1;
        m->free += ratio == 1;
        for (uint64_t i = first; i < end; i++) {
            m->p[i] -= r->group.lr * ratio * updates[i];
            m->moved = fmax(m->moved, fabs(r->group.lr * ratio * updates[i]));
        }
    }
}

/* How far a run of steps ends from the rule's, as a share of the largest step. */
static double distance(const recipe *r, int *bounded)
{
    trained *t = new_trained(r);
    model *m = calloc(1, sizeof *m);
    double apart = 0;
    for (uint64_t i = 0; i < MOST; i++)
        m->p[i] = (double)t->p[i];
    for (uint64_t step = 1; step <= STEPS; step++) {
        train(t, step);
        model_step(m, t, r, step);
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
        uint32_t clip, further; /* 1: Nesterov's, uncorrected; 2: dampening, maximize */
    } cases[] = {{0.1, 1.0, 1, 0}, {0.0, 1.0, 0, 1}, {0.3, 0.02, 0, 2}, {0.1, 0.0, 1, 0}};
    for (int k = 0; k < 16; k++) {
        const uint32_t format = k / 2 % 2 ? MEMOPT_STATE_8BIT_DYNAMIC : MEMOPT_STATE_F32;
        recipe r = k % 2 ? lars(format) : lamb(format);
        int bounded = 0;
        r.group.weight_decay = cases[k / 4].weight_decay;
        r.group.max_ratio = cases[k / 4].max_ratio;
        r.group.trust_clip = cases[k / 4].clip;
        r.group.nesterov = k % 2 && cases[k / 4].further == 1;
        r.group.uncorrected = cases[k / 4].further == 1;
        r.group.dampening = cases[k / 4].further == 2 ? 0.25 : 0;
        r.group.maximize = cases[k / 4].further == 2;
        double apart = distance(&r, &bounded);
        print_message("  %s, %s, at most %g: %.1e of the largest step, %d bounded\n",
                      k % 2 ? "LARS" : "LAMB", k / 2 % 2 ? "8 bits" : "32 bits", r.group.max_ratio,
                      apart, bounded);
        assert_true((bounded > 0) == (r.group.max_ratio > 0));
        assert_true(apart < (format == MEMOPT_STATE_8BIT_DYNAMIC ? 0.1 : 2e-5));
    }
}

/* --- bits ------------------------------------------------------------------------------------- */

TEST(test_threads)
{
    static const memopt_dtype types[] = {MEMOPT_DTYPE_F32, MEMOPT_DTYPE_BF16, MEMOPT_DTYPE_F16};
    for (int k = 0; k < 3; k++) {
        recipe r = k == 1 ? lars(MEMOPT_STATE_F32) : lamb(MEMOPT_STATE_4BIT);
        r.type = types[k];
        r.stochastic = k != 0;
        r.threads = 1;
        trained *one = new_trained(&r);
        r.threads = 3;
        trained *many = new_trained(&r);
        for (uint64_t step = 1; step <= STEPS; step++) {
            train(one, step);
            train(many, step);
        }
        assert_memory_equal(one->p, many->p, sizeof one->p);
        free_trained(one);
        free_trained(many);
    }
}

/* A moment that is the update itself, and the same in an optimizer that brings scratch for all. */
TEST(moments_as_updates)
{
    recipe r = lars(MEMOPT_STATE_F32);
    trained *direct = new_trained(&r);
    r.format = MEMOPT_STATE_8BIT_DYNAMIC;
    r.min_8bit_size = UINT64_MAX;
    trained *other = new_trained(&r);
    for (uint64_t step = 1; step <= STEPS; step++) {
        train(direct, step);
        train(other, step);
    }
    assert_memory_equal(direct->p, other->p, sizeof direct->p);
    free_trained(direct);
    free_trained(other);
}

TEST(halves)
{
    for (int k = 0; k < 3; k++) {
        recipe r = k == 0 ? lamb(MEMOPT_STATE_8BIT_DYNAMIC)
                          : lars(k == 1 ? MEMOPT_STATE_F32 : MEMOPT_STATE_8BIT_DYNAMIC);
        trained *whole = new_trained(&r), *cut = new_trained(&r);
        for (uint64_t step = 1; step <= STEPS; step++) {
            train(whole, step);
            fill_gradients(cut, step);
            half(cut, 1);
            half(cut, 2);
        }
        assert_memory_equal(whole->p, cut->p, sizeof whole->p);
        uint64_t allocations = stat_of(whole, "allocation.all.allocated");
        train(whole, STEPS + 1); /* little scratch stays */
        assert_int_equal(stat_of(whole, "allocation.all.allocated"), allocations);
        free_trained(whole);
        free_trained(cut);
    }
}

/* Halves are one batch, of more scratch than stays; a whole step of this size is two. */
TEST(batches)
{
    enum { SIZE = 11 << 19 };
    float *values = calloc(8 * SIZE, sizeof *values);
    recipe r = lamb(MEMOPT_STATE_8BIT_DYNAMIC);
    trained *t = new_trained(&r);
    memopt_step_options step = MEMOPT_STEP_OPTIONS_INIT;
    memopt_tensor g[2];
    uint64_t seed = 3, index;
    for (uint64_t i = 0; i < 4 * SIZE; i++)
        values[i] = values[4 * SIZE + i] = uniform(&seed);
    for (int k = 0; k < 2; k++) { /* p, p, g, g; the same again */
        OK(memopt_optimizer_destroy(t->o));
        add_optimizer(t, &r);
        for (int i = 0; i < 2; i++) {
            memopt_tensor p = {values + (4 * k + i) * SIZE, SIZE, MEMOPT_DTYPE_F32};
            g[i] = (memopt_tensor){values + (4 * k + i + 2) * SIZE, SIZE, MEMOPT_DTYPE_F32};
            OK(memopt_optimizer_add_parameter(t->o, 0, &p, NULL, NULL, &index));
        }
        step.squares = k ? t->squares : NULL;
        step.half = (uint32_t)k;
        OK(memopt_optimizer_step(t->o, g, 2, &step, NULL));
        step.half = 2;
        if (k) {
            uint64_t live = stat_of(t, "requested_bytes.all.current");
            OK(memopt_optimizer_step(t->o, g, 2, &step, NULL));
            assert_true(stat_of(t, "requested_bytes.all.current") <= live - 8 * SIZE);
        }
    }
    assert_memory_equal(values, values + 4 * SIZE, 8 * SIZE);
    free_trained(t);
    free(values);
}

/* The squares of two shards, added up, are the whole's, and with those they step as the whole. */
TEST(shards)
{
    recipe r = lamb(MEMOPT_STATE_F32);
    trained *whole = new_trained(&r), *cut = new_trained(&r);
    const uint64_t part = 30000, count = cut->parameters[0].count;
    memopt_tensor p[] = {{cut->p, part, MEMOPT_DTYPE_F32},
                         {cut->p + part, count - part, MEMOPT_DTYPE_F32}};
    memopt_tensor g[] = {{cut->g, part, MEMOPT_DTYPE_F32},
                         {cut->g + part, count - part, MEMOPT_DTYPE_F32}};
    memopt_step_options step = MEMOPT_STEP_OPTIONS_INIT;
    uint64_t index;
    fill_gradients(whole, 1);
    fill_gradients(cut, 1);
    OK(memopt_optimizer_destroy(cut->o));
    add_optimizer(cut, &r);
    for (int i = 0; i < 2; i++)
        OK(memopt_optimizer_add_parameter(cut->o, 0, &p[i], NULL, NULL, &index));
    step.squares = cut->squares;
    step.half = 1;
    OK(memopt_optimizer_step(cut->o, g, 2, &step, NULL));
    half(whole, 1);
    for (int i = 0; i < 2; i++) {
        const double sum = cut->squares[2 * i] + cut->squares[2 * i + 1];
        assert_true(fabs(sum / whole->squares[i * TENSORS] - 1) < 1e-14);
        cut->squares[2 * i] = cut->squares[2 * i + 1] = whole->squares[i * TENSORS];
    }
    step.half = 2;
    OK(memopt_optimizer_step(cut->o, g, 2, &step, NULL));
    half(whole, 2);
    assert_memory_equal(whole->p, cut->p, 4 * count);
    free_trained(whole);
    free_trained(cut);
}

/* A model copy has the parameters, rounded. */
TEST(copies)
{
    for (int k = 0; k < 2; k++) {
        recipe r = k ? lars(MEMOPT_STATE_F32) : lamb(MEMOPT_STATE_8BIT);
        r.copy = MEMOPT_DTYPE_BF16;
        trained *t = new_trained(&r);
        train(t, 1);
        for (uint64_t i = 0; i < t->parameters[0].count; i++)
            assert_int_equal(t->copies[i], mo_f32_to_bf16(t->p[i]));
        free_trained(t);
    }
}

/* A flag that is set keeps all bits, those of a negative zero too; one that is not changes nothing.
 */
TEST(flag)
{
    for (int k = 0; k < 2; k++) {
        recipe r = k ? lars(MEMOPT_STATE_F32) : lamb(MEMOPT_STATE_8BIT_DYNAMIC);
        trained *t = new_trained(&r);
        float *before = malloc(sizeof t->p);
        uint64_t steps;
        t->step.found_inf = &t->found_inf;
        train(t, 1);
        t->p[7] = -0.0f;
        memcpy(before, t->p, sizeof t->p);
        t->found_inf = 1.0f;
        train(t, 2);
        assert_memory_equal(t->p, before, sizeof t->p);
        OK(memopt_optimizer_get_steps_sync(t->o, 0, NULL, &steps));
        assert_int_equal(steps, 1);
        t->found_inf = 0.0f;
        train(t, 2);
        assert_memory_not_equal(t->p, before, sizeof t->p);
        free(before);
        free_trained(t);
    }
}

/* States of AdamW without trust go on here, and the bound stays. */
TEST(import)
{
    recipe r = lamb(MEMOPT_STATE_8BIT_DYNAMIC);
    trained *t = new_trained(&r);
    memopt_optimizer_group group = {.struct_size = sizeof group};
    uint64_t bytes;
    train(t, 1);
    OK(memopt_optimizer_export_sync(t->o, 0, NULL, NULL, &bytes));
    unsigned char *saved = malloc(bytes);
    OK(memopt_optimizer_export_sync(t->o, bytes, NULL, saved, NULL));
    r.group.max_ratio = 0.5;
    r.group.uncorrected = 1;
    r.group.lr = 7;
    trained *other = new_trained(&r);
    OK(memopt_optimizer_import_sync(other->o, saved, bytes, 0, NULL));
    OK(memopt_optimizer_get_group(other->o, 0, &group));
    assert_true(group.max_ratio == 0.5 && group.trust_clip == 1 && group.uncorrected == 1);
    assert_true(group.lr == 0.1);
    free(saved);
    free_trained(t);
    free_trained(other);
}

/* --- bad input -------------------------------------------------------------------------------- */

static memopt_status try_options(trained *t, uint32_t kind, uint32_t trust, uint32_t split,
                                 uint64_t page_bytes)
{
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer *none;
    options.kind = kind;
    options.trust = trust;
    options.split_weights = split;
    options.page_bytes = page_bytes;
    return memopt_optimizer_create(t->allocator, &options, &none);
}

static memopt_status try_half(trained *t, uint32_t which, double *squares)
{
    memopt_step_options step = MEMOPT_STEP_OPTIONS_INIT;
    step.half = which;
    step.squares = squares;
    return memopt_optimizer_step(t->o, t->gradients, TENSORS, &step, NULL);
}

TEST(refusals)
{
    recipe r = lamb(MEMOPT_STATE_F32);
    trained *t = new_trained(&r);
    memopt_optimizer_group group = r.group;
    float *before = malloc(sizeof t->p);
    fill_gradients(t, 1);
    memcpy(before, t->p, sizeof t->p);
    REFUSED_SAYING("trust is 2", try_options(t, MEMOPT_OPTIMIZER_ADAMW, 2, 0, 0));
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "Lion with trust",
                 try_options(t, MEMOPT_OPTIMIZER_LION, 1, 0, 0));
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "Adafactor with trust",
                 try_options(t, MEMOPT_OPTIMIZER_ADAFACTOR, 1, 0, 0));
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "split_weights 2",
                 try_options(t, MEMOPT_OPTIMIZER_ADAMW, 1, 2, 0));
    FAILS_SAYING(MEMOPT_UNSUPPORTED, "page_bytes 7", try_options(t, MEMOPT_OPTIMIZER_SGD, 1, 0, 7));
    group.max_ratio = (double)NAN;
    REFUSED_SAYING("max_ratio", memopt_optimizer_set_group(t->o, 0, &group));
    group = r.group;
    group.trust_clip = 2;
    REFUSED_SAYING("trust_clip 2", memopt_optimizer_set_group(t->o, 0, &group));
    group = r.group;
    group.uncorrected = 3;
    REFUSED_SAYING("uncorrected 3", memopt_optimizer_set_group(t->o, 0, &group));
    REFUSED_SAYING("half is 1, squares", try_half(t, 1, NULL));
    REFUSED_SAYING("half is 0, squares", try_half(t, 0, t->squares));
    REFUSED_SAYING("half is 3", try_half(t, 3, t->squares));
    REFUSED_SAYING("aligned to an f64", try_half(t, 1, (double *)(void *)(t->g + 1)));
    REFUSED_SAYING("no first half", try_half(t, 2, t->squares));
    assert_memory_equal(t->p, before, sizeof t->p);
    half(t, 1);
    t->gradients[2].data = NULL;
    REFUSED_SAYING("not the 60 ", try_half(t, 2, t->squares));
    assert_memory_equal(t->p, before, sizeof t->p);
    free(before);
    free_trained(t);
}
