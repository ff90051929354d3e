/* Parameters whose states the caller owns: the same bits as with the optimizer's own, and what is
 * refused. */
#include "fixture.h"

#include <math.h>

enum { N = 5001 };

static const struct kind {
    uint32_t kind, format;
} all_kinds[] = {
    {MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_F32},
    {MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT_DYNAMIC},
    {MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_4BIT},
    {MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT},
    {MEMOPT_OPTIMIZER_LION, MEMOPT_STATE_F32},
    {MEMOPT_OPTIMIZER_SCHEDULE_FREE, MEMOPT_STATE_F32},
    {MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_BF16},
    {MEMOPT_OPTIMIZER_ADAM, MEMOPT_STATE_8BIT_DYNAMIC},
    {MEMOPT_OPTIMIZER_LION, MEMOPT_STATE_8BIT_DYNAMIC},
    {MEMOPT_OPTIMIZER_RMSPROP, MEMOPT_STATE_8BIT},
    {MEMOPT_OPTIMIZER_ADAGRAD, MEMOPT_STATE_F32},
    {MEMOPT_OPTIMIZER_SGD, MEMOPT_STATE_F32},
    {MEMOPT_OPTIMIZER_SGD, MEMOPT_STATE_8BIT_DYNAMIC},
    {MEMOPT_OPTIMIZER_ADEMAMIX, MEMOPT_STATE_F32},
    {MEMOPT_OPTIMIZER_ADEMAMIX, MEMOPT_STATE_8BIT_DYNAMIC},
    {MEMOPT_OPTIMIZER_ADEMAMIX, MEMOPT_STATE_8BIT},
};
enum { KINDS = sizeof all_kinds / sizeof *all_kinds };

/* An optimizer with a large and a small parameter, of which the small one has 32-bit states. */
typedef struct setup {
    world w;
    memopt_optimizer *o;
    memopt_tensor p[2], g[2], states[2][6];
    uint64_t state_count[2];
    uint64_t *steps[2];
} setup;

static const uint64_t counts[2] = {N, 100};

static void make_tensors(setup *s)
{
    s->w = open_world(MEMOPT_STREAM_ORDER_EAGER, 1);
    for (uint64_t i = 0; i < 2; i++) {
        s->p[i] = new_tensor(&s->w, counts[i], MEMOPT_DTYPE_BF16, noise(i + 1, 0.5f));
        s->g[i] = new_tensor(&s->w, counts[i], MEMOPT_DTYPE_F32, NULL);
    }
}

static memopt_optimizer *create(setup *s, struct kind kind)
{
    const memopt_optimizer_options options = {.kind = kind.kind,
                                              .state_format = kind.format,
                                              .min_8bit_size = 101,
                                              .stochastic_rounding = 1};
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    group.momentum = 0.9;
    group.beta3 = 0.999;
    group.alpha = 5.0;
    return make_optimizer(&s->w, options, &group);
}

static setup make_owning(struct kind kind)
{
    setup s;
    memset(&s, 0, sizeof s);
    make_tensors(&s);
    s.o = create(&s, kind);
    for (int i = 0; i < 2; i++)
        (void)add_parameter(&s.w, s.o, &s.p[i]);
    return s;
}

/* Memory of the caller's with the bytes of the other's states. */
static void mirror_states(setup *s, const setup *like, int i)
{
    memopt_state_view view = {sizeof view, NULL, {NULL, 0, 0}};
    uint64_t k = 0, steps;
    for (; memopt_optimizer_get_state(like->o, (uint64_t)i, k, &view) == MEMOPT_OK; k++) {
        uint64_t size = view.tensor.count * memopt_dtype_size(view.tensor.dtype);
        memopt_tensor t = new_tensor(&s->w, (size + 3) / 4, MEMOPT_DTYPE_F32, NULL);
        void *bytes = read_bytes((world *)&like->w, &view.tensor);
        OK(memopt_copy(s->w.device, t.data, bytes, size, s->w.stream));
        OK(memopt_stream_sync(s->w.device, s->w.stream));
        free(bytes);
        s->states[i][k] = (memopt_tensor){t.data, view.tensor.count, view.tensor.dtype};
    }
    s->state_count[i] = k;
    OK(memopt_optimizer_get_steps_sync(like->o, (uint64_t)i, like->w.stream, &steps));
    s->steps[i] = new_tensor(&s->w, 2, MEMOPT_DTYPE_F32, NULL).data;
    OK(memopt_copy(s->w.device, s->steps[i], &steps, 8, s->w.stream));
    OK(memopt_stream_sync(s->w.device, s->w.stream));
}

static void bind(setup *s)
{
    for (uint64_t i = 0; i < 2; i++) {
        uint64_t index = 99;
        OK(memopt_optimizer_add_parameter(
            s->o, 0, &s->p[i],
            &(memopt_parameter_options){sizeof(memopt_parameter_options),
                                        {NULL, 0, 0},
                                        s->states[i],
                                        s->state_count[i],
                                        s->steps[i],
                                        0,
                                        0,
                                        {0, 0}},
            s->w.stream, &index));
        assert_int_equal(index, i);
    }
}

static setup make_borrowing(struct kind kind, const setup *like)
{
    setup s;
    memset(&s, 0, sizeof s);
    make_tensors(&s);
    s.o = create(&s, kind);
    for (int i = 0; i < 2; i++)
        mirror_states(&s, like, i);
    bind(&s);
    return s;
}

static void step(setup *s, uint64_t seed)
{
    for (uint64_t i = 0; i < 2; i++)
        write_tensor(&s->w, &s->g[i], noise(seed + i, 0.01f));
    OK(memopt_optimizer_step(s->o, s->g, 2, NULL, s->w.stream));
}

static void assert_same(setup *a, setup *b)
{
    uint64_t bytes, other;
    unsigned char *x = everything_of(&a->w, a->o, a->p, 2, &bytes);
    unsigned char *y = everything_of(&b->w, b->o, b->p, 2, &other);
    assert_int_equal(bytes, other);
    assert_memory_equal(x, y, bytes);
    free(x);
    free(y);
}

/* Step for step the optimizer with its own states, whatever the kind; also through an export. */
TEST(equal_bits)
{
    for (int k = 0; k < KINDS; k++) {
        setup a = make_owning(all_kinds[k]);
        setup b = make_borrowing(all_kinds[k], &a);
        for (uint64_t t = 0; t < 4; t++) {
            step(&a, 10 + t);
            step(&b, 10 + t);
            assert_same(&a, &b);
        }
        uint64_t bytes, steps;
        unsigned char *saved = export_all(&a.w, a.o, &bytes);
        step(&a, 50);
        step(&b, 60);
        OK(memopt_optimizer_import_sync(b.o, saved, bytes, 0, b.w.stream));
        OK(memopt_copy(b.w.device, &steps, b.steps[0], 8, b.w.stream));
        OK(memopt_stream_sync(b.w.device, b.w.stream));
        assert_int_equal(steps, 4);
        OK(memopt_optimizer_import_sync(a.o, saved, bytes, 0, a.w.stream));
        for (int i = 0; i < 2; i++) { /* an export holds no parameters */
            write_tensor(&a.w, &a.p[i], noise(7, 1.0f));
            write_tensor(&b.w, &b.p[i], noise(7, 1.0f));
        }
        step(&a, 70);
        step(&b, 70);
        assert_same(&a, &b);
        free(saved);
        close_world(&a.w);
        close_world(&b.w);
    }
}

/* The memory outlives the optimizer, which another one takes up: a run in two halves is the run. */
TEST(outlives_the_optimizer)
{
    setup a = make_owning(all_kinds[1]);
    setup b = make_borrowing(all_kinds[1], &a);
    step(&a, 1);
    step(&b, 1);
    end_optimizer(&b.w, b.o);
    b.o = create(&b, all_kinds[1]);
    bind(&b);
    step(&a, 2);
    step(&b, 2);
    assert_same(&a, &b);
    memopt_state_view view = {sizeof view, NULL, {NULL, 0, 0}};
    OK(memopt_optimizer_get_state(b.o, 0, 3, &view));
    assert_ptr_equal(view.tensor.data, b.states[0][3].data);
    assert_string_equal(view.name, "absmax2");
    close_world(&a.w);
    close_world(&b.w);
}

/* 32-bit states for a large parameter, whatever min_8bit_size. */
TEST(the_states_say_the_format)
{
    uint64_t index;
    setup a = make_owning(all_kinds[0]);
    setup b = make_borrowing((struct kind){MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT_DYNAMIC}, &a);
    step(&a, 1);
    step(&b, 1);
    for (int i = 0; i < 2; i++) {
        void *p = read_bytes(&a.w, &a.p[i]), *q = read_bytes(&b.w, &b.p[i]);
        assert_memory_equal(p, q, counts[i] * 2);
        free(p);
        free(q);
    }
    /* and none of codes for an optimizer without */
    memopt_tensor codes[4] = {
        {b.states[0][0].data, N, MEMOPT_DTYPE_U8},
        {b.states[0][1].data, N, MEMOPT_DTYPE_U8},
        {b.g[0].data, (N + 255) / 256, MEMOPT_DTYPE_F32},
        {b.g[1].data, (N + 255) / 256, MEMOPT_DTYPE_F32},
    };
    memopt_optimizer *o = create(&a, all_kinds[0]);
    GIVES(
        MEMOPT_INVALID_ARGUMENT,
        memopt_optimizer_add_parameter(
            o, 0, &b.p[0],
            &(memopt_parameter_options){
                sizeof(memopt_parameter_options), {NULL, 0, 0}, codes, 4, b.steps[0], 0, 0, {0, 0}},
            a.w.stream, &index));
    close_world(&a.w);
    close_world(&b.w);
}

TEST(refusals)
{
    setup a = make_owning(all_kinds[1]);
    setup b;
    memset(&b, 0, sizeof b);
    make_tensors(&b);
    b.o = create(&b, all_kinds[1]);
    mirror_states(&b, &a, 0);
    for (int fault = 0; fault < 14; fault++) {
        memopt_tensor states[4], parameter = b.p[0];
        uint64_t *steps = b.steps[0], count = 4, index = 99;
        memopt_optimizer *o = b.o;
        memcpy(states, b.states[0], sizeof states);
        switch (fault) {
        case 0:
            states[0].count--;
            break;
        case 1:
            states[3].count++;
            break;
        case 2:
            states[1].dtype = MEMOPT_DTYPE_F8_E4M3;
            break;
        case 3:
            states[2].dtype = MEMOPT_DTYPE_BF16;
            break;
        case 4:
            states[1].data = NULL;
            break;
        case 5:
            states[2].data = (char *)states[2].data + 2;
            break;
        case 6:
            states[1].data = states[0].data;
            break;
        case 7:
            states[0].data = parameter.data;
            break;
        case 8:
            steps = (uint64_t *)(void *)((char *)steps + 4);
            break;
        case 9:
            steps = states[0].data;
            break;
        case 10:
            count = 3;
            break;
        case 11:
            steps = NULL;
            break;
        default:
            o = NULL;
            break;
        }
        memopt_status status = memopt_optimizer_add_parameter(
            o, 0, &parameter,
            &(memopt_parameter_options){
                sizeof(memopt_parameter_options), {NULL, 0, 0}, states, count, steps, 0, 0, {0, 0}},
            b.w.stream, &index);
        if (status != MEMOPT_INVALID_ARGUMENT)
            fail_msg("fault %d: %s", fault, memopt_status_name(status));
        assert_int_equal(index, 99);
    }
    uint64_t index;
    GIVES(
        MEMOPT_INVALID_ARGUMENT,
        memopt_optimizer_add_parameter(
            b.o, 0, &b.p[0],
            &(memopt_parameter_options){
                sizeof(memopt_parameter_options), {NULL, 0, 0}, NULL, 4, b.steps[0], 0, 0, {0, 0}},
            b.w.stream, &index));
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_optimizer_add_parameter(
                                       b.o, 1, &b.p[0],
                                       &(memopt_parameter_options){sizeof(memopt_parameter_options),
                                                                   {NULL, 0, 0},
                                                                   b.states[0],
                                                                   4,
                                                                   b.steps[0],
                                                                   0,
                                                                   0,
                                                                   {0, 0}},
                                       b.w.stream, &index));
    OK(memopt_optimizer_add_parameter(b.o, 0, &b.p[0],
                                      &(memopt_parameter_options){sizeof(memopt_parameter_options),
                                                                  {NULL, 0, 0},
                                                                  b.states[0],
                                                                  4,
                                                                  b.steps[0],
                                                                  0,
                                                                  0,
                                                                  {0, 0}},
                                      b.w.stream, &index));
    assert_int_equal(index, 0);
    close_world(&a.w);
    close_world(&b.w);
}

/* The caller's scale and verdict do what a scaler's do. */
TEST(scale_and_verdict_of_the_caller)
{
    setup a = make_owning(all_kinds[1]), b = make_owning(all_kinds[1]);
    float scale = 1024.0f, zero = 0.0f, one = 1.0f, flag;
    memopt_tensor facts = new_tensor(&b.w, 2, MEMOPT_DTYPE_F32, NULL);
    memopt_step_options options = MEMOPT_STEP_OPTIONS_INIT;
    OK(memopt_copy(b.w.device, facts.data, &scale, 4, b.w.stream));
    OK(memopt_stream_sync(b.w.device, b.w.stream));
    options.grad_scale = facts.data;
    options.found_inf = (float *)facts.data + 1;
    step(&a, 5);
    for (uint64_t i = 0; i < 2; i++) {
        float *x = noise(5 + i, 0.01f);
        for (int k = 0; k < N; k++)
            x[k] *= scale;
        write_tensor(&b.w, &b.g[i], x);
    }
    OK(memopt_optimizer_step(b.o, b.g, 2, &options, b.w.stream));
    assert_same(&a, &b);

    OK(memopt_copy(b.w.device, options.found_inf, &one, 4, b.w.stream));
    OK(memopt_stream_sync(b.w.device, b.w.stream));
    OK(memopt_optimizer_step(b.o, b.g, 2, &options, b.w.stream));
    assert_same(&a, &b);

    OK(memopt_copy(b.w.device, options.found_inf, &zero, 4, b.w.stream));
    OK(memopt_stream_sync(b.w.device, b.w.stream));
    float *values = noise(7, 0.01f);
    values[0] = INFINITY;
    write_tensor(&b.w, &b.g[1], values);
    options.skip_non_finite = 1;
    OK(memopt_optimizer_step(b.o, b.g, 2, &options, b.w.stream));
    OK(memopt_copy(b.w.device, &flag, options.found_inf, 4, b.w.stream));
    OK(memopt_stream_sync(b.w.device, b.w.stream));
    assert_true(flag == 1.0f);
    assert_same(&a, &b);

    memopt_scaler *scaler;
    OK(memopt_scaler_create(b.w.device, NULL, &scaler));
    options.scaler = scaler;
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_optimizer_step(b.o, b.g, 2, &options, b.w.stream));
    options.scaler = NULL;
    options.found_inf = (float *)(void *)((char *)facts.data + 2);
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_optimizer_step(b.o, b.g, 2, &options, b.w.stream));
    OK(memopt_scaler_destroy(scaler));
    close_world(&a.w);
    close_world(&b.w);
}

/* A learning rate in device memory is what each step reads; an import leaves it in place. */
TEST(learning_rate_in_device_memory)
{
    for (int k = 0; k < KINDS; k++) {
        setup a = make_owning(all_kinds[k]), b = make_owning(all_kinds[k]);
        memopt_tensor rate = new_tensor(&b.w, 1, MEMOPT_DTYPE_F32, NULL);
        memopt_optimizer_group group = {.struct_size = sizeof group};
        OK(memopt_optimizer_get_group(a.o, 0, &group));
        for (uint64_t t = 0; t < 3; t++) {
            float lr = 0.5f / (float)(t + 1);
            memopt_optimizer_group with = group;
            group.lr = (double)lr;
            with.device_lr = rate.data;
            with.lr = 77.0;
            write_tensor(&b.w, &rate, &lr);
            OK(memopt_optimizer_set_group(a.o, 0, &group));
            if (t < 2)
                OK(memopt_optimizer_set_group(b.o, 0, &with));
            step(&a, 10 + t);
            step(&b, 10 + t);
            uint64_t bytes;
            unsigned char *saved = export_all(&a.w, a.o, &bytes);
            OK(memopt_optimizer_import_sync(b.o, saved, bytes, 0, b.w.stream));
            free(saved);
            assert_same(&a, &b);
        }
        group.device_lr = (const float *)(const void *)((const char *)rate.data + 2);
        assert_int_equal(memopt_optimizer_set_group(b.o, 0, &group), MEMOPT_INVALID_ARGUMENT);
        close_world(&a.w);
        close_world(&b.w);
    }
}

/* On "cpu", memory of malloc is stepped in place like that of the device. */
TEST(memory_of_malloc)
{
    for (uint32_t order = MEMOPT_STREAM_ORDER_EAGER; order <= MEMOPT_STREAM_ORDER_ADVERSARIAL;
         order++) {
        world w = open_world(order, 1);
        memopt_step_options step = MEMOPT_STEP_OPTIONS_INIT;
        memopt_tensor p[2], g[2], copy[2];
        uint64_t index;
        step.max_norm = 1.0;
        for (int i = 0; i < 2; i++) {
            p[i] = new_tensor(&w, N, MEMOPT_DTYPE_F32, noise(1, 0.5f));
            g[i] = new_tensor(&w, N, MEMOPT_DTYPE_F32, noise(2, 1.0f));
            copy[i] = new_tensor(&w, N, MEMOPT_DTYPE_BF16, NULL);
        }
        p[1].data = read_bytes(&w, &p[0]);
        g[1].data = read_bytes(&w, &g[0]);
        copy[1].data = malloc(N * 2);
        memopt_optimizer *o[2];
        for (int i = 0; i < 2; i++) {
            o[i] = new_optimizer(&w, MEMOPT_STATE_8BIT_DYNAMIC, NULL);
            OK(memopt_optimizer_add_parameter(
                o[i], 0, &p[i],
                &(memopt_parameter_options){
                    sizeof(memopt_parameter_options), copy[i], NULL, 0, NULL, 0, 0, {0, 0}},
                w.stream, &index));
            for (int t = 0; t < 3; t++)
                OK(memopt_optimizer_step(o[i], &g[i], 1, &step, w.stream));
        }
        float *is = read_bytes(&w, &p[0]);
        uint16_t *short_is = read_bytes(&w, &copy[0]);
        assert_memory_equal(p[1].data, is, N * 4);
        assert_memory_equal(copy[1].data, short_is, N * 2);
        assert_memory_not_equal(p[1].data, noise(1, 0.5f), N * 4);
        free(is);
        free(short_is);
        free(p[1].data);
        free(g[1].data);
        free(copy[1].data);
        close_world(&w);
    }
}
