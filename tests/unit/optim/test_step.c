/* What a step does beside the update: verdict, unscale, clip, groups, copies, counts; and what it
 * refuses. */
#include "fixture.h"

#include <math.h>

enum { N = 20000 };

typedef struct setup {
    world w;
    memopt_optimizer *o;
    memopt_tensor p[3], g[3];
} setup;

/* Three parameters: 8-bit bf16, 32-bit f32 (small), 8-bit f32 ragged. */
static setup make(uint32_t order, int own_stream)
{
    static const uint64_t counts[3] = {N, 100, 777};
    static const memopt_dtype types[3] = {MEMOPT_DTYPE_BF16, MEMOPT_DTYPE_F32, MEMOPT_DTYPE_F32};
    const memopt_optimizer_options options = {.state_format = MEMOPT_STATE_8BIT_DYNAMIC,
                                              .min_8bit_size = 101};
    setup s = {.w = open_world(order, own_stream)};
    s.o = make_optimizer(&s.w, options, NULL);
    for (uint64_t i = 0; i < 3; i++) {
        s.p[i] = new_tensor(&s.w, counts[i], types[i], noise(i + 1, 0.5f));
        s.g[i] = new_tensor(&s.w, counts[i], types[i], noise(i + 9, 0.01f));
        assert_int_equal(add_parameter(&s.w, s.o, &s.p[i]), i);
    }
    return s;
}

/* All that a step may change, in one buffer. */
static unsigned char *everything(setup *s, uint64_t *bytes)
{
    return everything_of(&s->w, s->o, s->p, 3, bytes);
}

static uint64_t steps_of(setup *s, uint64_t parameter)
{
    uint64_t steps = 99;
    OK(memopt_optimizer_get_steps_sync(s->o, parameter, s->w.stream, &steps));
    return steps;
}

static void poison(setup *s, int tensor, uint64_t at, float value)
{
    float host[4];
    uint64_t size = memopt_dtype_size(s->g[tensor].dtype);
    mo_store_element(host, 0, s->g[tensor].dtype, value);
    OK(memopt_copy(s->w.device, (char *)s->g[tensor].data + at * size, host, size, s->w.stream));
    OK(memopt_stream_sync(s->w.device, s->w.stream));
}

/* Inf and NaN in the first, a middle and the last element of each tensor: nothing changes. */
TEST(non_finite_changes_nothing)
{
    memopt_step_options check = MEMOPT_STEP_OPTIONS_INIT;
    check.skip_non_finite = 1;
    for (int tensor = 0; tensor < 3; tensor++) {
        for (int place = 0; place < 3; place++) {
            setup s = make(MEMOPT_STREAM_ORDER_EAGER, place == 1);
            uint64_t bytes, after, at = place == 0 ? 0 : s.g[tensor].count / (place == 1 ? 2 : 1);
            at -= place == 2;
            OK(memopt_optimizer_step(s.o, s.g, 3, &check, s.w.stream));
            assert_int_equal(steps_of(&s, 0), 1);
            unsigned char *was = everything(&s, &bytes);
            poison(&s, tensor, at, place == 0 ? -INFINITY : place == 1 ? NAN : INFINITY);
            OK(memopt_optimizer_step(s.o, s.g, 3, &check, s.w.stream));
            unsigned char *is = everything(&s, &after);
            assert_int_equal(bytes, after);
            assert_memory_equal(was, is, bytes);
            poison(&s, tensor, at, 0.0f);
            OK(memopt_optimizer_step(s.o, s.g, 3, &check, s.w.stream));
            assert_int_equal(steps_of(&s, 0), 2);
            free(was);
            free(is);
            close_world(&s.w);
        }
    }
}

/* After memopt_scaler_unscale() the step takes the flag's verdict and does not unscale again. */
TEST(test_already_unscaled)
{
    setup a = make(MEMOPT_STREAM_ORDER_EAGER, 0), b = make(MEMOPT_STREAM_ORDER_EAGER, 0);
    memopt_scaler *scaler;
    uint64_t bytes, bytes_b;
    OK(memopt_scaler_create(b.w.device, NULL, &scaler));
    memopt_step_options options = MEMOPT_STEP_OPTIONS_INIT;
    options.scaler = scaler;
    options.already_unscaled = 1;
    OK(memopt_optimizer_step(a.o, a.g, 3, NULL, a.w.stream));
    OK(memopt_optimizer_step(b.o, b.g, 3, &options, b.w.stream));
    unsigned char *x = everything(&a, &bytes), *y = everything(&b, &bytes_b);
    assert_memory_equal(x, y, bytes);
    free(y);
    *memopt_scaler_get_found_inf(scaler) = 1.0f;
    OK(memopt_optimizer_step(b.o, b.g, 3, &options, b.w.stream));
    y = everything(&b, &bytes_b);
    assert_memory_equal(x, y, bytes);
    options.scaler = NULL;
    GIVES(MEMOPT_INVALID_ARGUMENT, memopt_optimizer_step(b.o, b.g, 3, &options, b.w.stream));
    free(x);
    free(y);
    OK(memopt_scaler_destroy(scaler));
    close_world(&a.w);
    close_world(&b.w);
}

/* The norm is the scaler's norm; a clipped step is the step of the clipped gradients. */
TEST(norm_and_clip)
{
    setup a = make(MEMOPT_STREAM_ORDER_EAGER, 0);
    memopt_scaler *scaler;
    OK(memopt_scaler_create(a.w.device, NULL, &scaler));
    memopt_tensor norm = new_tensor(&a.w, 2, MEMOPT_DTYPE_F32, NULL);
    float *norms = norm.data;
    memopt_step_options options = MEMOPT_STEP_OPTIONS_INIT;
    options.out_norm = norms;
    OK(memopt_norm(a.w.device, norms + 1, a.g, 3, 0, a.w.stream));
    OK(memopt_optimizer_step(a.o, a.g, 3, &options, a.w.stream));
    assert_true(norms[0] > 1.0f);
    assert_int_equal(mo_f32_bits(norms[0]), mo_f32_bits(norms[1]));

    /* clip to half: the first moments of a fresh optimizer are half as large */
    setup b = make(MEMOPT_STREAM_ORDER_EAGER, 0), c = make(MEMOPT_STREAM_ORDER_EAGER, 0);
    memopt_state_view x = {.struct_size = sizeof x}, y = x;
    options.out_norm = NULL;
    OK(memopt_optimizer_step(b.o, b.g, 3, &options, b.w.stream));
    options.max_norm = (double)norms[0] / 2;
    OK(memopt_optimizer_step(c.o, c.g, 3, &options, c.w.stream));
    OK(memopt_optimizer_get_state(b.o, 1, 0, &x));
    OK(memopt_optimizer_get_state(c.o, 1, 0, &y));
    for (int i = 0; i < 100; i++)
        assert_true(fabsf(((float *)x.tensor.data)[i] / 2 - ((float *)y.tensor.data)[i]) <=
                    1e-6f * fabsf(((float *)x.tensor.data)[i]));
    options.max_norm = (double)norms[0] * 2; /* not reached: the same bits as without */
    setup d = make(MEMOPT_STREAM_ORDER_EAGER, 0);
    OK(memopt_optimizer_step(d.o, d.g, 3, &options, d.w.stream));
    uint64_t bytes;
    unsigned char *u = everything(&b, &bytes), *v = everything(&d, &bytes);
    assert_memory_equal(u, v, bytes);
    free(u);
    free(v);
    OK(memopt_scaler_destroy(scaler));
    close_world(&a.w);
    close_world(&b.w);
    close_world(&c.w);
    close_world(&d.w);
}

/* The same bits on an own stream, in adversarial order, and for every split over threads. */
TEST(streams_and_orders)
{
    static const struct {
        uint32_t order;
        int own;
    } ways[] = {{MEMOPT_STREAM_ORDER_EAGER, 0},
                {MEMOPT_STREAM_ORDER_EAGER, 1},
                {MEMOPT_STREAM_ORDER_ADVERSARIAL, 0},
                {MEMOPT_STREAM_ORDER_ADVERSARIAL, 1}};
    unsigned char *expected = NULL;
    uint64_t bytes = 0, now;
    for (size_t k = 0; k < 4; k++) {
        setup s = make(ways[k].order, ways[k].own);
        memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
        memopt_tensor g[3] = {s.g[0], s.g[1], s.g[2]};
        memopt_step_options check = MEMOPT_STEP_OPTIONS_INIT;
        check.max_norm = 0.5;
        for (int step = 0; step < 6; step++) { /* all enqueued before anything is waited for */
            group.lr = 1e-3 * (step + 1);
            OK(memopt_optimizer_set_group(s.o, 0, &group));
            g[1].data = step % 2 ? NULL : s.g[1].data; /* another table each time */
            OK(memopt_optimizer_step(s.o, g, 3, &check, s.w.stream));
        }
        unsigned char *all = everything(&s, &now);
        if (expected == NULL) {
            expected = all;
            bytes = now;
        } else {
            assert_int_equal(bytes, now);
            assert_memory_equal(expected, all, bytes);
            free(all);
        }
        assert_int_equal(steps_of(&s, 0), 6);
        assert_int_equal(steps_of(&s, 1), 3); /* it sat three steps out */
        close_world(&s.w);
    }
    free(expected);
}

/* Parameters added later, tables that grow while steps are in flight. */
TEST(growing)
{
    setup s = make(MEMOPT_STREAM_ORDER_ADVERSARIAL, 1);
    memopt_tensor p[15], g[15];
    memcpy(p, s.p, sizeof s.p);
    memcpy(g, s.g, sizeof s.g);
    for (uint64_t n = 3; n < 15; n++) {
        OK(memopt_optimizer_step(s.o, g, n, NULL, s.w.stream));
        p[n] = new_tensor(&s.w, 500 * n, MEMOPT_DTYPE_F32, noise(n, 1.0f));
        g[n] = new_tensor(&s.w, 500 * n, MEMOPT_DTYPE_F16, noise(n + 50, 0.1f));
        (void)add_parameter(&s.w, s.o, &p[n]);
    }
    OK(memopt_optimizer_step(s.o, g, 15, NULL, s.w.stream));
    for (uint64_t n = 3; n < 15; n++)
        assert_int_equal(steps_of(&s, n), 15 - n);
    close_world(&s.w);
}

/* Groups have their own values; maximize climbs by what minimising falls. */
TEST(groups_and_copies)
{
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
    memopt_optimizer *o = new_optimizer(&w, MEMOPT_STATE_F32, NULL);
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    uint32_t number;
    uint64_t index;
    float zero[300] = {0}, out[3][300], copies[300];
    group.maximize = 1;
    group.weight_decay = 0.0;
    OK(memopt_optimizer_add_group(o, &group, &number));
    assert_int_equal(number, 1);
    memopt_tensor p[2], g[2], copy = new_tensor(&w, 301, MEMOPT_DTYPE_BF16, NULL);
    const memopt_tensor shifted = {(uint16_t *)copy.data + 1, 300, MEMOPT_DTYPE_BF16};
    copy.count = 300;
    for (int i = 0; i < 2; i++) {
        p[i] = new_tensor(&w, 300, MEMOPT_DTYPE_F32, zero);
        g[i] = new_tensor(&w, 300, MEMOPT_DTYPE_F32, noise(4, 1.0f));
        OK(memopt_optimizer_add_parameter(
            o, (uint32_t)i, &p[i],
            &(memopt_parameter_options){sizeof(memopt_parameter_options),
                                        i == 0 ? copy : (memopt_tensor){NULL, 0, 0},
                                        NULL,
                                        0,
                                        NULL,
                                        0,
                                        0,
                                        {0, 0}},
            NULL, &index));
    }
    const memopt_tensor over[2] = {shifted, g[1]};
    assert_int_equal(memopt_optimizer_step(o, over, 2, NULL, NULL), MEMOPT_INVALID_ARGUMENT);
    OK(memopt_optimizer_step(o, g, 2, NULL, NULL));
    read_floats(&w, &p[0], out[0]);
    read_floats(&w, &p[1], out[1]);
    read_floats(&w, &copy, copies);
    for (int i = 0; i < 300; i++) {
        assert_true(out[0][i] == -out[1][i] && out[0][i] != 0.0f);
        assert_true(copies[i] == mo_bf16_to_f32(mo_f32_to_bf16(out[0][i])));
    }
    group.lr = 0.0; /* from now on: the states move, the parameter does not */
    OK(memopt_optimizer_set_group(o, 1, &group));
    OK(memopt_optimizer_step(o, g, 2, NULL, NULL));
    read_floats(&w, &p[1], out[2]);
    assert_memory_equal(out[1], out[2], sizeof out[1]);
    group.lr = 1e-3;
    OK(memopt_optimizer_set_group(o, 1, &group));
    memopt_optimizer_group back = {.struct_size = sizeof back};
    OK(memopt_optimizer_get_group(o, 1, &back));
    assert_true(back.maximize == 1 && back.lr == 1e-3);
    close_world(&w);
}

/* One f32 master of N elements whose bf16 gradient is overwritten by the copy, as one parameter or
 * as two shards with one norm; `apart`: the copy is elsewhere. Writes the master, the copy and both
 * moments' codes after three steps. */
enum { CUT = 16 * 256, PIECE = N * (4 + 2 + 1 + 1) };

static void train_pieces(int pieces, int apart, double max_norm, unsigned char *out)
{
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 1);
    memopt_optimizer *o = new_optimizer(&w, MEMOPT_STATE_8BIT_DYNAMIC, NULL);
    const uint64_t from[3] = {0, pieces == 1 ? N : CUT, N};
    memopt_tensor p = new_tensor(&w, N, MEMOPT_DTYPE_F32, noise(1, 0.5f));
    memopt_tensor g = new_tensor(&w, N, MEMOPT_DTYPE_BF16, NULL);
    memopt_tensor copy = apart ? new_tensor(&w, N, MEMOPT_DTYPE_BF16, NULL) : g, parts[2];
    memopt_tensor sum = new_tensor(&w, 2, MEMOPT_DTYPE_F32, NULL);
    for (int i = 0; i < pieces; i++) {
        uint64_t n = from[i + 1] - from[i], index;
        memopt_tensor pi = {(float *)p.data + from[i], n, p.dtype};
        memopt_tensor ci = {(uint16_t *)copy.data + from[i], n, copy.dtype};
        parts[i] = (memopt_tensor){(uint16_t *)g.data + from[i], n, g.dtype};
        OK(memopt_optimizer_add_parameter(
            o, 0, &pi,
            &(memopt_parameter_options){
                sizeof(memopt_parameter_options), ci, NULL, 0, NULL, 0, 0, {0, 0}},
            w.stream, &index));
    }
    for (uint64_t step = 0; step < 3; step++) {
        memopt_step_options options = MEMOPT_STEP_OPTIONS_INIT;
        options.max_norm = max_norm;
        write_tensor(&w, &g, noise(9 + step, 0.1f));
        if (pieces > 1) {
            options.square_sum = sum.data;
            OK(memopt_square_sum(w.device, sum.data, &g, 1, w.stream));
        }
        for (int i = 0; i < pieces; i++) { /* a call for each */
            memopt_tensor given[2] = {{NULL, 0, 0}, {NULL, 0, 0}};
            given[i] = parts[i];
            OK(memopt_optimizer_step(o, given, (uint64_t)pieces, &options, w.stream));
        }
    }
    OK(memopt_stream_sync(w.device, w.stream));
    memcpy(out, p.data, N * 4);
    memcpy(out + N * 4, copy.data, N * 2);
    for (int i = 0; i < pieces; i++)
        for (uint64_t k = 0; k < 2; k++) {
            memopt_state_view view = MEMOPT_STATE_VIEW_INIT;
            OK(memopt_optimizer_get_state(o, (uint64_t)i, k, &view));
            memcpy(out + N * (6 + k) + from[i], view.tensor.data, view.tensor.count);
        }
    close_world(&w);
}

/* A copy in the gradient's memory, and shards cut between blocks, have the bits of the whole. */
TEST(in_place_and_in_parts)
{
    static unsigned char whole[PIECE], other[PIECE], unclipped[PIECE];
    train_pieces(1, 1, 0.5, whole);
    train_pieces(1, 0, 0.5, other);
    assert_memory_equal(whole, other, PIECE);
    train_pieces(2, 0, 0.5, other);
    assert_memory_equal(whole, other, PIECE);
    train_pieces(2, 0, 0.0, unclipped);
    assert_memory_not_equal(whole, unclipped, PIECE);
}

TEST(bad_input)
{
    setup s = make(MEMOPT_STREAM_ORDER_EAGER, 0);
    memopt_optimizer *none;
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    memopt_state_view view = {.struct_size = sizeof view};
    memopt_step_options step = MEMOPT_STEP_OPTIONS_INIT;
    uint32_t number;
    uint64_t index, bytes, after;
    unsigned char *was = everything(&s, &bytes);
#define REFUSED_AS(status, call) assert_int_equal(call, MEMOPT_##status)
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_create(NULL, NULL, &none));
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_create(s.w.allocator, NULL, NULL));
    options.kind = 11;
    REFUSED_AS(UNSUPPORTED, memopt_optimizer_create(s.w.allocator, &options, &none));
    options.kind = 0;
    options.struct_size = 4;
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_create(s.w.allocator, &options, &none));
    group.lr = NAN;
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_add_group(s.o, &group, &number));
    group.lr = 0.1;
    group.beta2 = 1.0;
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_set_group(s.o, 0, &group));
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_get_group(s.o, 1, &group));

    memopt_tensor p = s.g[0];
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_add_parameter(s.o, 7, &p, NULL, NULL, &index));
    REFUSED_AS(INVALID_ARGUMENT,
               memopt_optimizer_add_parameter(s.o, 0, &s.p[0], NULL, NULL, &index));
    REFUSED_AS(INVALID_ARGUMENT,
               memopt_optimizer_add_parameter(
                   s.o, 0, &p,
                   &(memopt_parameter_options){
                       sizeof(memopt_parameter_options), s.p[0], NULL, 0, NULL, 0, 0, {0, 0}},
                   NULL, &index));
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_add_parameter(s.o, 0, NULL, NULL, NULL, &index));
    p.data = (char *)p.data + 1;
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_add_parameter(s.o, 0, &p, NULL, NULL, &index));
    p = s.g[0];
    p.dtype = MEMOPT_DTYPE_I32;
    REFUSED_AS(UNSUPPORTED, memopt_optimizer_add_parameter(s.o, 0, &p, NULL, NULL, &index));
    p.dtype = 77;
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_add_parameter(s.o, 0, &p, NULL, NULL, &index));
    p = s.g[0];
    p.count = UINT64_MAX / 2;
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_add_parameter(s.o, 0, &p, NULL, NULL, &index));
    p.count = 0;
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_add_parameter(s.o, 0, &p, NULL, NULL, &index));

    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_step(NULL, s.g, 3, NULL, NULL));
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_step(s.o, s.g, 2, NULL, NULL));
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_step(s.o, s.p, 3, NULL, NULL)); /* overlap */
    memopt_tensor g[3] = {s.g[0], s.g[1], s.g[2]};
    g[2].count--;
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_step(s.o, g, 3, NULL, NULL));
    assert_non_null(strstr(memopt_last_error(), "gradient 2"));
    g[2] = s.g[2];
    g[1].dtype = MEMOPT_DTYPE_U8;
    REFUSED_AS(UNSUPPORTED, memopt_optimizer_step(s.o, g, 3, NULL, NULL));
    double sum[2] = {0, 0};
    step.square_sum = (const double *)(const void *)((const char *)sum + 4);
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_step(s.o, s.g, 3, &step, NULL));
    step.square_sum = NULL;
    step.max_norm = -1;
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_step(s.o, s.g, 3, &step, NULL));

    REFUSED_AS(NOT_FOUND, memopt_optimizer_get_state(s.o, 0, 4, &view));
    REFUSED_AS(NOT_FOUND, memopt_optimizer_get_state(s.o, 1, 2, &view)); /* 32-bit: it is small */
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_get_state(s.o, 3, 0, &view));
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_set_steps_sync(s.o, 0, UINT64_C(1) << 53, NULL));
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_get_steps_sync(s.o, 3, NULL, &index));
#undef REFUSED_AS
    OK(memopt_optimizer_get_state(s.o, 0, 2, &view));
    assert_string_equal(view.name, "absmax1");
    assert_int_equal(view.tensor.count, (N + 255) / 256);
    unsigned char *is = everything(&s, &after);
    assert_int_equal(bytes, after);
    assert_memory_equal(was, is, bytes);
    OK(memopt_optimizer_set_steps_sync(s.o, 2, 41, NULL));
    OK(memopt_optimizer_step(s.o, s.g, 3, NULL, NULL));
    assert_int_equal(steps_of(&s, 2), 42);
    free(was);
    free(is);
    close_world(&s.w);
}
