/* SGD without momentum keeps no buffer: the same bits as with one, on every instruction set; what
 * happens when a momentum is set later, and in exports. */
#include "fixture.h"

#include <math.h>
#include <stdlib.h>

enum { N = 20001 };

typedef struct setup {
    world w;
    memopt_optimizer *o;
    memopt_tensor p, g, buffer;
    uint64_t *steps;
} setup;

/* format: of the optimizer; buffered: the parameter has a buffer of the caller's, of zeros. */
static setup make(uint32_t format, memopt_dtype dtype, double momentum, int buffered)
{
    setup s = {.w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0)};
    const memopt_optimizer_options options = {.kind = MEMOPT_OPTIMIZER_SGD,
                                              .state_format = format,
                                              .min_8bit_size = 1,
                                              .stochastic_rounding = 1};
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_SGD_INIT;
    uint64_t index;
    group.lr = 0.05;
    group.weight_decay = 0.01;
    group.momentum = momentum;
    group.dampening = 0.3;
    s.o = make_optimizer(&s.w, options, &group);
    s.p = new_tensor(&s.w, N, dtype, noise(1, 0.5f));
    s.g = new_tensor(&s.w, N, MEMOPT_DTYPE_F32, NULL);
    if (buffered) {
        s.buffer = new_tensor(&s.w, N, MEMOPT_DTYPE_F32, NULL);
        s.steps = new_tensor(&s.w, 2, MEMOPT_DTYPE_F32, NULL).data;
        OK(memopt_optimizer_add_parameter(
            s.o, 0, &s.p,
            &(memopt_parameter_options){sizeof(memopt_parameter_options),
                                        {NULL, 0, 0},
                                        &s.buffer,
                                        1,
                                        s.steps,
                                        0,
                                        0,
                                        {0, 0}},
            NULL, &index));
    } else
        (void)add_parameter(&s.w, s.o, &s.p);
    return s;
}

static void step(setup *s, uint64_t seed)
{
    write_tensor(&s->w, &s->g, noise(seed, 1.0f));
    OK(memopt_optimizer_step(s->o, &s->g, 1, NULL, NULL));
}

static void set_momentum(setup *s, double momentum)
{
    memopt_optimizer_group group = {.struct_size = sizeof group};
    OK(memopt_optimizer_get_group(s->o, 0, &group));
    group.momentum = momentum;
    OK(memopt_optimizer_set_group(s->o, 0, &group));
}

static int has_state(const setup *s)
{
    memopt_state_view view = {sizeof view, NULL, {NULL, 0, 0}};
    memopt_status status = memopt_optimizer_get_state(s->o, 0, 0, &view);
    assert_true(status == MEMOPT_OK || status == MEMOPT_NOT_FOUND);
    return status == MEMOPT_OK;
}

static void same_parameters(setup *a, setup *b)
{
    void *x = read_bytes(&a->w, &a->p), *y = read_bytes(&b->w, &b->p);
    assert_memory_equal(x, y, N * memopt_dtype_size(a->p.dtype));
    free(x);
    free(y);
}

TEST(the_same_bits_without)
{
    static const char *const sets[] = {"scalar", "avx2", "avx512-base", "avx512"};
    static const memopt_dtype dtypes[] = {MEMOPT_DTYPE_F32, MEMOPT_DTYPE_BF16, MEMOPT_DTYPE_F16};
    for (int d = 0; d < 3; d++) {
        setup reference;
        for (int i = 0; i < 4; i++) {
            setenv("MEMOPT_ISA", sets[i], 1);
            setup none = make(MEMOPT_STATE_8BIT_DYNAMIC, dtypes[d], 0.0, 0);
            setup kept = make(MEMOPT_STATE_8BIT_DYNAMIC, dtypes[d], 0.0, 1);
            for (uint64_t t = 0; t < 3; t++) {
                step(&none, 10 + t);
                step(&kept, 10 + t);
            }
            assert_false(has_state(&none));
            assert_true(has_state(&kept));
            same_parameters(&none, &kept);
            close_world(&kept.w);
            if (i == 0) {
                reference = none;
                continue;
            }
            same_parameters(&none, &reference);
            close_world(&none.w);
        }
        close_world(&reference.w);
    }
    unsetenv("MEMOPT_ISA");
}

/* What it takes: the step count, not four bytes an element. */
TEST(no_bytes)
{
    for (int with = 0; with < 2; with++) {
        setup s = make(MEMOPT_STATE_F32, MEMOPT_DTYPE_F32, with ? 0.9 : 0.0, 0);
        uint64_t bytes;
        OK(memopt_optimizer_export_sync(s.o, 0, NULL, NULL, &bytes));
        assert_true(with ? bytes > N * 4 : bytes < 256);
        close_world(&s.w);
    }
}

TEST(momentum_later)
{
    uint64_t steps;
    setup none = make(MEMOPT_STATE_F32, MEMOPT_DTYPE_F32, 0.0, 0);
    setup kept = make(MEMOPT_STATE_F32, MEMOPT_DTYPE_F32, 0.0, 1);
    for (uint64_t t = 0; t < 8; t++) {
        if (t == 3) {
            set_momentum(&none, 0.9);
            set_momentum(&kept, 0.9);
            assert_false(has_state(&none));
        }
        if (t == 6) {
            set_momentum(&none, 0.0);
            set_momentum(&kept, 0.0);
        }
        step(&none, 10 + t);
        step(&kept, 10 + t);
        assert_int_equal(has_state(&none), t >= 3);
        same_parameters(&none, &kept);
    }
    OK(memopt_optimizer_get_steps_sync(none.o, 0, NULL, &steps));
    assert_int_equal(steps, 8);
    close_world(&none.w);
    close_world(&kept.w);
    none = make(MEMOPT_STATE_8BIT_DYNAMIC, MEMOPT_DTYPE_F32, 0.0, 0);
    set_momentum(&none, 0.5);
    step(&none, 1);
    memopt_state_view view = {sizeof view, NULL, {NULL, 0, 0}};
    OK(memopt_optimizer_get_state(none.o, 0, 0, &view));
    assert_int_equal(view.tensor.dtype, MEMOPT_DTYPE_U8);
    close_world(&none.w);
}

/* What torch.optim.SGD does to parameter and buffer, with the roundings of
 * kernels/optim/optim_step.h. */
typedef struct model {
    float p[N], m[N];
    int begun;
} model;

static void model_step(model *r, const float *gradients, float momentum)
{
    for (int i = 0; i < N; i++) {
        float d = fmaf(0.01f, r->p[i], gradients[i]);
        if (momentum != 0.0f) {
            r->m[i] = r->begun ? fmaf(momentum, r->m[i], (float)(1.0 - 0.3) * d) : d;
            d = r->m[i];
        }
        r->p[i] = fmaf(-0.05f, d, r->p[i]);
    }
    r->begun |= momentum != 0.0f;
}

/* Returns the gradients. */
static const float *step_unless(setup *s, uint64_t seed, float found)
{
    const float *gradients = noise(seed, 1.0f);
    float *found_inf = new_tensor(&s->w, 1, MEMOPT_DTYPE_F32, &found).data;
    memopt_step_options options = MEMOPT_STEP_OPTIONS_INIT;
    options.found_inf = found_inf;
    write_tensor(&s->w, &s->g, gradients);
    OK(memopt_optimizer_step(s->o, &s->g, 1, &options, NULL));
    return gradients;
}

static void goes_on_elsewhere(setup *s)
{
    uint64_t bytes;
    unsigned char *data = export_all(&s->w, s->o, &bytes);
    OK(memopt_optimizer_set_steps_sync(s->o, 0, 99, NULL));
    OK(memopt_optimizer_import_sync(s->o, data, bytes, 0, NULL));
    free(data);
}

/* Momenta come and go, steps are skipped, and the first that has a momentum is not damped. */
TEST(dampening_begins_with_the_first_momentum)
{
    static const float momenta[] = {0, 0, 0.9f, 0.5f, 0.5f, 0, 0.25f, 0, 0, 0.75f};
    enum { STEPS = sizeof momenta / sizeof *momenta };
    static const char *const sets[] = {"scalar", "avx2", "avx512"};
    static model r;
    for (int skipped = -1; skipped < STEPS; skipped++)
        for (int buffered = 0; buffered < 2; buffered++) {
            setenv("MEMOPT_ISA", sets[(skipped + 1) % 3], 1);
            setup s = make(MEMOPT_STATE_F32, MEMOPT_DTYPE_F32, 0.0, buffered);
            uint64_t steps;
            memset(&r, 0, sizeof r);
            memcpy(r.p, s.p.data, sizeof r.p);
            for (int t = 0; t < STEPS; t++) {
                /* with the first that is skipped, so is what follows: the next has none */
                int skip = t == skipped || (skipped == 2 && t == 3);
                float momentum = skipped == 2 && t == 4 ? 0.0f : momenta[t];
                set_momentum(&s, momentum);
                const float *gradients = step_unless(&s, 10 + (uint64_t)t, skip ? 1.0f : 0.0f);
                goes_on_elsewhere(&s);
                if (!skip)
                    model_step(&r, gradients, momentum);
                assert_memory_equal(r.p, s.p.data, sizeof r.p);
            }
            OK(memopt_optimizer_get_steps_sync(s.o, 0, NULL, &steps));
            assert_int_equal(steps, STEPS - (skipped >= 0) - (skipped == 2));
            close_world(&s.w);
        }
    unsetenv("MEMOPT_ISA");
}

/* A buffer that is not finite plays no part without momentum. */
TEST(a_buffer_is_left_alone_without_momentum)
{
    for (uint32_t format = MEMOPT_STATE_F32; format <= MEMOPT_STATE_8BIT_DYNAMIC; format++) {
        setup s = make(format, MEMOPT_DTYPE_F32, 0.9, 0);
        setup none = make(format, MEMOPT_DTYPE_F32, 0.0, 0);
        memopt_state_view view = {sizeof view, NULL, {NULL, 0, 0}};
        step(&s, 1);
        OK(memopt_optimizer_get_state(s.o, 0, format == MEMOPT_STATE_8BIT_DYNAMIC, &view));
        ((float *)view.tensor.data)[5] = NAN;
        void *before = read_bytes(&s.w, &view.tensor);
        memcpy(s.p.data, none.p.data, N * 4);
        set_momentum(&s, 0.0);
        step(&s, 2);
        step(&none, 2);
        same_parameters(&s, &none);
        assert_memory_equal(before, view.tensor.data, view.tensor.count * 4);
        free(before);
        close_world(&s.w);
        close_world(&none.w);
    }
}

/* A parameter of the caller's without a state cannot grow one. */
TEST(the_callers_own)
{
    uint64_t index, *steps;
    setup s = make(MEMOPT_STATE_F32, MEMOPT_DTYPE_F32, 0.0, 0);
    memopt_tensor p = new_tensor(&s.w, N, MEMOPT_DTYPE_F32, noise(1, 0.5f)), both[2] = {s.g, s.g};
    steps = new_tensor(&s.w, 2, MEMOPT_DTYPE_F32, NULL).data;
    OK(memopt_optimizer_add_parameter(
        s.o, 0, &p,
        &(memopt_parameter_options){
            sizeof(memopt_parameter_options), {NULL, 0, 0}, NULL, 0, steps, 0, 0, {0, 0}},
        NULL, &index));
    write_tensor(&s.w, &s.g, noise(3, 1.0f));
    OK(memopt_optimizer_step(s.o, both, 2, NULL, NULL));
    assert_int_equal(*steps, 1);
    assert_memory_equal(p.data, s.p.data, N * 4);
    set_momentum(&s, 0.9);
    void *before = read_bytes(&s.w, &p), *other = read_bytes(&s.w, &s.p);
    assert_int_equal(memopt_optimizer_step(s.o, both, 2, NULL, NULL), MEMOPT_INVALID_ARGUMENT);
    assert_non_null(strstr(memopt_last_error(), "parameter 1 was added without"));
    assert_memory_equal(before, p.data, N * 4);
    assert_memory_equal(other, s.p.data, N * 4);
    assert_int_equal(*steps, 1);
    assert_int_equal(
        memopt_optimizer_add_parameter(
            s.o, 0, &s.g,
            &(memopt_parameter_options){
                sizeof(memopt_parameter_options), {NULL, 0, 0}, NULL, 0, steps, 0, 0, {0, 0}},
            NULL, &index),
        MEMOPT_INVALID_ARGUMENT); /* the group has a momentum */
    both[1].data = NULL;          /* without a gradient it does not matter */
    OK(memopt_optimizer_step(s.o, both, 2, NULL, NULL));
    free(before);
    free(other);
    close_world(&s.w);
}

TEST(exports)
{
    uint64_t bytes, steps;
    setup a = make(MEMOPT_STATE_8BIT_DYNAMIC, MEMOPT_DTYPE_BF16, 0.0, 0);
    setup b = make(MEMOPT_STATE_8BIT_DYNAMIC, MEMOPT_DTYPE_BF16, 0.0, 0);
    setup with = make(MEMOPT_STATE_8BIT_DYNAMIC, MEMOPT_DTYPE_BF16, 0.9, 0);
    step(&a, 5);
    unsigned char *data = export_all(&a.w, a.o, &bytes);
    OK(memopt_optimizer_import_sync(b.o, data, bytes, 0, NULL));
    OK(memopt_optimizer_get_steps_sync(b.o, 0, NULL, &steps));
    assert_int_equal(steps, 1);
    memcpy(b.p.data, a.p.data, N * 2);
    step(&a, 6);
    step(&b, 6);
    same_parameters(&a, &b);
    assert_int_equal(memopt_optimizer_import_sync(with.o, data, bytes, 0, NULL),
                     MEMOPT_INVALID_ARGUMENT);
    assert_non_null(strstr(memopt_last_error(), "SGD without momentum"));
    free(data);
    data = export_all(&with.w, with.o, &bytes);
    assert_int_equal(memopt_optimizer_import_sync(a.o, data, bytes, 0, NULL),
                     MEMOPT_INVALID_ARGUMENT);
    free(data);
    close_world(&a.w);
    close_world(&b.w);
    close_world(&with.w);
}
