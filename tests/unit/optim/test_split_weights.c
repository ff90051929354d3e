/* Split weights: the 24 bits and how they are split, a step against the same step of fp32
 * parameters, states of the optimizer and of the caller, exports, and what is refused. */
#include "fixture.h"

#include <math.h>

static float joined(mo_split_weight split)
{
    return mo_weight_join(split.weight, split.residual);
}

/* The bits below those of 24: all kinds of them, one after the other. */
static const uint32_t low_bytes[] = {0x00, 0x01, 0x7f, 0x80, 0x81, 0xff};

/* Every value of 24 bits comes back, and its bf16 is the nearest: ties away from zero. One of 32 bits
 * comes back with the bf16 of a cast; a tie to an even one is the value before it. */
TEST(every_value)
{
    for (uint32_t kept = 0; kept < 1u << 24; kept++) {
        float x = mo_f32_from_bits(kept << 8);
        if (mo_f32_is_nan(x))
            continue;
        mo_split_weight split = mo_weight_split(x, 1);
        uint32_t low = kept & 0xff, weight = (kept >> 8) + (low >= 0x80);
        if (mo_f32_bits(joined(split)) != kept << 8 || split.weight != weight)
            fail_msg("%a: weight %04x, residual %04x", (double)x, split.weight, split.residual);
        assert_int_equal(split.residual & 0xff, 0);
        uint32_t bits = kept << 8 | low_bytes[kept % 6];
        x = mo_f32_from_bits(bits);
        if (mo_f32_is_nan(x))
            continue;
        split = mo_weight_split(x, 2);
        weight = mo_f32_to_bf16(x);
        if (mo_f32_bits(joined(split)) != bits - ((bits & 0x1ffff) == 0x8000) ||
            split.weight != weight)
            fail_msg("%08x: weight %04x, residual %04x", bits, split.weight, split.residual);
    }
    for (uint32_t bytes = 1; bytes <= 2; bytes++) {
        mo_split_weight nan = mo_weight_split(mo_f32_from_bits(MO_F32_NAN_BITS), bytes);
        assert_int_equal(mo_f32_bits(joined(nan)), MO_F32_NAN_BITS);
    }
    assert_int_equal(mo_f32_bits(mo_weight_join(0x8000, 0x8000)), 0x80000000u); /* no NaN */
}

/* The nearest number of 16 bits of significand, by arithmetic in double. */
static float rounded(float x)
{
    int exponent;
    if (!isfinite(x) || x == 0.0f)
        return x;
    frexp((double)x, &exponent);
    double unit = ldexp(1.0, exponent < -125 ? -149 + 8 : exponent - 16);
    return (float)(nearbyint((double)x / unit) * unit);
}

/* The number before it, of one in the middle of an even bf16 number and the next. */
static float without_tie(float x)
{
    uint32_t bits = mo_f32_bits(x);
    return mo_f32_from_bits(bits - ((bits & 0x1ffff) == 0x8000));
}

TEST(rounding)
{
    uint64_t seed = 3;
    for (int i = 0; i < 1000000; i++) {
        uint32_t bits = (uint32_t)next_random(&seed) & (i % 4 ? 0xffffffffu : 0x81ffffffu);
        bits = i % 3 ? bits : (bits & ~0xffu) | 0x80u; /* ties */
        float x = mo_f32_from_bits(bits);
        if (mo_f32_is_finite(x) && fabsf(x) < 0x1p127f)
            assert_int_equal(mo_f32_bits(joined(mo_weight_split(x, 1))), mo_f32_bits(rounded(x)));
    }
}

enum { N = 5003, STEPS = 6 };

typedef struct pair {
    memopt_optimizer *split, *whole;
    memopt_tensor weights, values, gradient;
} pair;

static memopt_optimizer *new_split(world *w, uint32_t kind, uint32_t format, uint32_t bytes)
{
    const memopt_optimizer_options options = {
        .kind = kind, .state_format = format, .min_8bit_size = 1, .split_weights = bytes};
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    group.momentum = 0.9;
    return make_optimizer(w, options, &group);
}

/* bf16 weights with a residual and the same values as fp32. */
static pair begin(world *w, uint32_t kind, uint32_t format, uint32_t bytes)
{
    static float x[N];
    uint64_t seed = 11;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    pair p;
    group.momentum = 0.9;
    for (int i = 0; i < N; i++)
        x[i] = mo_bf16_to_f32(mo_f32_to_bf16(normal(&seed)));
    p.weights = new_tensor(w, N, MEMOPT_DTYPE_BF16, x);
    p.values = new_tensor(w, N, MEMOPT_DTYPE_F32, x);
    p.gradient = new_tensor(w, N, MEMOPT_DTYPE_BF16, x);
    p.split = new_split(w, kind, format, bytes);
    p.whole = new_optimizer_of(w, kind, format, &group);
    (void)add_parameter(w, p.split, &p.weights);
    (void)add_parameter(w, p.whole, &p.values);
    return p;
}

static memopt_state_view residual_of(memopt_optimizer *o, uint64_t states)
{
    memopt_state_view view = MEMOPT_STATE_VIEW_INIT;
    OK(memopt_optimizer_get_state(o, 0, states, &view));
    assert_string_equal(view.name, "weight_residual");
    assert_int_equal(view.tensor.count, N);
    assert_int_equal(memopt_optimizer_get_state(o, 0, states + 1, &view), MEMOPT_NOT_FOUND);
    return view;
}

/* After each step the weights are those of the step in fp32, with 8 bits rounded to 24. */
TEST(the_step_of_fp32)
{
    static const struct {
        uint32_t kind, format, states;
    } cases[] = {{MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_F32, 2},
                 {MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT_DYNAMIC, 4},
                 {MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_4BIT, 4},
                 {MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT, 4},
                 {MEMOPT_OPTIMIZER_ADAM, MEMOPT_STATE_8BIT_DYNAMIC, 4},
                 {MEMOPT_OPTIMIZER_ADAM, MEMOPT_STATE_8BIT, 4},
                 {MEMOPT_OPTIMIZER_LION, MEMOPT_STATE_8BIT_DYNAMIC, 2},
                 {MEMOPT_OPTIMIZER_LION, MEMOPT_STATE_8BIT, 2},
                 {MEMOPT_OPTIMIZER_SGD, MEMOPT_STATE_F32, 1},
                 {MEMOPT_OPTIMIZER_SGD, MEMOPT_STATE_8BIT_DYNAMIC, 2}};
    for (size_t k = 0; k < 2 * (sizeof cases / sizeof *cases); k++) {
        world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
        uint32_t bytes = 1 + k % 2;
        pair p = begin(&w, cases[k / 2].kind, cases[k / 2].format, bytes);
        memopt_state_view residual = residual_of(p.split, cases[k / 2].states);
        assert_int_equal(residual.tensor.dtype, bytes == 1 ? MEMOPT_DTYPE_U8 : MEMOPT_DTYPE_I16);
        const uint16_t *weights = p.weights.data, *wide = residual.tensor.data;
        const uint8_t *narrow = residual.tensor.data;
        float *values = p.values.data;
        int kept = 0;
        for (int step = 0; step < STEPS; step++) {
            OK(memopt_optimizer_step(p.split, &p.gradient, 1, NULL, w.stream));
            OK(memopt_optimizer_step(p.whole, &p.gradient, 1, NULL, w.stream));
            for (int i = 0; i < N; i++) {
                uint32_t residual_ = bytes == 1 ? (uint32_t)narrow[i] << 8 : wide[i];
                values[i] = bytes == 1 ? rounded(values[i]) : without_tie(values[i]);
                float is = mo_weight_join(weights[i], residual_);
                assert_int_equal(mo_f32_bits(is), mo_f32_bits(values[i]));
                kept += residual_ != 0;
            }
        }
        assert_true(kept > N);
        close_world(&w);
    }
}

/* A run that is exported, imported into a new optimizer over states of the caller and goes on there
 * has the bits of one that was not. */
static void export_and_states_of_the_caller(uint32_t residual)
{
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
    pair p = begin(&w, MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT_DYNAMIC, residual);
    memopt_optimizer *o =
        new_split(&w, MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT_DYNAMIC, residual);
    /* one without a residual, one with another */
    memopt_optimizer *plain = new_optimizer(&w, MEMOPT_STATE_8BIT_DYNAMIC, NULL);
    memopt_optimizer *unlike =
        new_split(&w, MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT_DYNAMIC, 3 - residual);
    memopt_tensor weights = new_tensor(&w, N, MEMOPT_DTYPE_BF16, NULL);
    memopt_tensor other = new_tensor(&w, N, MEMOPT_DTYPE_BF16, NULL);
    memopt_tensor states[5], steps = new_tensor(&w, 2, MEMOPT_DTYPE_F32, NULL);
    uint64_t bytes, index;
    for (int i = 0; i < 5; i++) {
        int coded = i < 2 || i == 4;
        states[i] = new_tensor(&w, coded ? N : (N + 255) / 256, MEMOPT_DTYPE_F32, NULL);
        states[i].dtype = coded ? MEMOPT_DTYPE_U8 : MEMOPT_DTYPE_F32;
    }
    states[4].dtype = residual == 1 ? MEMOPT_DTYPE_U8 : MEMOPT_DTYPE_I16;
    assert_int_equal(
        memopt_optimizer_add_parameter(o, 0, &weights,
                                       &(memopt_parameter_options){sizeof(memopt_parameter_options),
                                                                   {NULL, 0, 0},
                                                                   states,
                                                                   4,
                                                                   (uint64_t *)steps.data,
                                                                   0,
                                                                   0,
                                                                   {0, 0}},
                                       w.stream, &index),
        MEMOPT_INVALID_ARGUMENT);
    OK(memopt_optimizer_add_parameter(o, 0, &weights,
                                      &(memopt_parameter_options){sizeof(memopt_parameter_options),
                                                                  {NULL, 0, 0},
                                                                  states,
                                                                  5,
                                                                  (uint64_t *)steps.data,
                                                                  0,
                                                                  0,
                                                                  {0, 0}},
                                      w.stream, &index));
    assert_int_equal(
        memopt_optimizer_add_parameter(unlike, 0, &other,
                                       &(memopt_parameter_options){sizeof(memopt_parameter_options),
                                                                   {NULL, 0, 0},
                                                                   states,
                                                                   5,
                                                                   (uint64_t *)steps.data,
                                                                   0,
                                                                   0,
                                                                   {0, 0}},
                                       w.stream, &index),
        MEMOPT_INVALID_ARGUMENT);
    OK(memopt_optimizer_add_parameter(plain, 0, &other, NULL, w.stream, &index));
    OK(memopt_optimizer_add_parameter(unlike, 0, &other, NULL, w.stream, &index));
    for (int step = 0; step < 2; step++)
        OK(memopt_optimizer_step(p.split, &p.gradient, 1, NULL, w.stream));
    unsigned char *export = export_all(&w, p.split, &bytes);
    assert_int_not_equal(memopt_optimizer_import_sync(plain, export, bytes, 0, w.stream),
                         MEMOPT_OK);
    assert_int_not_equal(memopt_optimizer_import_sync(unlike, export, bytes, 0, w.stream),
                         MEMOPT_OK);
    OK(memopt_optimizer_import_sync(o, export, bytes, 0, w.stream));
    OK(memopt_copy(w.device, weights.data, p.weights.data, N * 2, w.stream));
    OK(memopt_optimizer_step(p.split, &p.gradient, 1, NULL, w.stream));
    OK(memopt_optimizer_step(o, &p.gradient, 1, NULL, w.stream));
    assert_memory_equal(weights.data, p.weights.data, N * 2);
    assert_memory_equal(states[4].data, residual_of(p.split, 4).tensor.data, N * residual);
    free(export);
    close_world(&w);
}

TEST(test_export_and_states_of_the_caller)
{
    export_and_states_of_the_caller(1);
    export_and_states_of_the_caller(2);
}

/* SGD's first momentum makes a new state; the residual moves into it. */
TEST(the_residual_outlives_a_new_momentum)
{
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
    pair p = begin(&w, MEMOPT_OPTIMIZER_SGD, MEMOPT_STATE_F32, 2);
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    memopt_optimizer *o = new_split(&w, MEMOPT_OPTIMIZER_SGD, MEMOPT_STATE_8BIT_DYNAMIC, 2);
    memopt_tensor weights = new_tensor(&w, N, MEMOPT_DTYPE_BF16, NULL);
    memopt_state_view view = MEMOPT_STATE_VIEW_INIT;
    OK(memopt_optimizer_set_group(o, 0, &group));
    (void)add_parameter(&w, o, &weights);
    OK(memopt_optimizer_step(o, &p.gradient, 1, NULL, w.stream));
    view = residual_of(o, 0);
    unsigned char *was = read_bytes(&w, &view.tensor);
    group.momentum = 0.9;
    group.lr = 0.0;
    OK(memopt_optimizer_set_group(o, 0, &group));
    OK(memopt_optimizer_step(o, &p.gradient, 1, NULL, w.stream));
    view = residual_of(o, 2);
    assert_memory_equal(view.tensor.data, was, N * 2);
    free(was);
    close_world(&w);
}

TEST(refusals)
{
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer *o = NULL;
    uint64_t index;
    options.split_weights = 3;
    assert_int_equal(memopt_optimizer_create(w.allocator, &options, &o), MEMOPT_INVALID_ARGUMENT);
    options.split_weights = options.stochastic_rounding = 1;
    assert_int_equal(memopt_optimizer_create(w.allocator, &options, &o), MEMOPT_INVALID_ARGUMENT);
    o = new_split(&w, MEMOPT_OPTIMIZER_ADAMW, MEMOPT_STATE_8BIT_DYNAMIC, 1);
    memopt_tensor half = new_tensor(&w, N, MEMOPT_DTYPE_F16, NULL);
    memopt_tensor full = new_tensor(&w, N, MEMOPT_DTYPE_F32, NULL);
    memopt_state_view view = MEMOPT_STATE_VIEW_INIT;
    GIVES(MEMOPT_UNSUPPORTED, memopt_optimizer_add_parameter(o, 0, &half, NULL, w.stream, &index));
    (void)add_parameter(&w, o, &full);
    assert_int_equal(memopt_optimizer_get_state(o, 0, 4, &view), MEMOPT_NOT_FOUND);
    close_world(&w);
}
