/* Blocks of other sizes than a format's own: every form equals the scalar one; where the size is
 * the format's own, all equal the kernels made for it; against an oracle in double; sizes of
 * states, exports, pages, and what is refused. */
#include "fixture.h"
#include "support/forms.h"
#include "support/sweep.h"

#include <math.h>

enum { MOST = 2 * 4096 + 77, RULES = 12 };

static const uint32_t sizes[] = {32, 64, 128, 256, 512, 1024, 2048, 4096};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* The kernels for any size, and those for the format's own. */
static const struct form {
    uint32_t rule, format;
    const mo_kernel *sized, *own;
} forms[RULES] = {
    {MO_RULE_ADAMW, MO_STATE_8BIT, &mo_kernel_sized_step8, &mo_kernel_optim_step},
    {MO_RULE_LION, MO_STATE_8BIT, &mo_kernel_sized_step8, &mo_kernel_step_lion8},
    {MO_RULE_SGD, MO_STATE_8BIT, &mo_kernel_sized_step8, &mo_kernel_step_sgd8},
    {MO_RULE_ADAM, MO_STATE_8BIT, &mo_kernel_sized_step8, &mo_kernel_step_adam8},
    {MO_RULE_RMSPROP, MO_STATE_8BIT, &mo_kernel_sized_step8, &mo_kernel_step_rmsprop8},
    {MO_RULE_ADAGRAD, MO_STATE_8BIT, &mo_kernel_sized_step8, &mo_kernel_step_rmsprop8},
    {MO_RULE_RMSPROP_MOMENTUM, MO_STATE_8BIT, &mo_kernel_sized_step8, &mo_kernel_step_rmspropm8},
    {MO_RULE_ADEMAMIX, MO_STATE_8BIT, &mo_kernel_sized_step8, &mo_kernel_step_ademamix8},
    {MO_RULE_ADAMW, MO_STATE_4BIT, &mo_kernel_sized_step4, &mo_kernel_step_adamw4},
    {MO_RULE_ADAMW, MO_STATE_F8, &mo_kernel_sized_stepf8, &mo_kernel_step_adamwf8},
    {MO_RULE_ADAMW, MO_STATE_COMPANDED, &mo_kernel_sized_stepc8, &mo_kernel_step_adamwc8},
    {MO_RULE_ADAMW, MO_STATE_COMPANDED4, &mo_kernel_sized_stepc4, &mo_kernel_step_adamwc4},
};

/* 0 of 0. */
static uint32_t log_of(uint32_t size)
{
    uint32_t log = 0;
    while (size >> log > 1)
        log++;
    return log;
}

typedef struct buffers {
    float p[MOST], copy[MOST], g[MOST];
    uint8_t m[MOST], v[MOST], slow[MOST];
    uint16_t residual[MOST]; /* or of bytes */
    float absmax1[MOST / 32 + 1], absmax2[MOST / 32 + 1], slow_absmax[MOST / 32 + 1];
    uint64_t steps;
} buffers;

typedef struct step_case {
    const struct form *form;
    uint32_t size;
    uint64_t n, seed;
    int32_t p, g, copy;
    int stochastic, split,
        odd; /* split: bytes of a residual. odd: values that are not finite, tiny and huge blocks */
} step_case;

static float datum(int odd, uint64_t *state)
{
    float x = normal(state);
    uint64_t r = next_random(state);
    if (!odd)
        return x * 0.01f;
    return r % 3000 == 0 ? INFINITY : r % 3000 == 1 ? NAN : r % 2 ? x : x * 0x1p-100f;
}

static void prepare(const step_case *c, buffers *b)
{
    uint64_t state = c->seed * 2 + 1;
    memset(b, 0, sizeof *b);
    for (uint64_t i = 0; i < MOST; i++) {
        mo_store_element(b->p, i, c->p, normal(&state));
        mo_store_element(b->g, i, c->g, datum(c->odd, &state));
        uint64_t bytes = next_random(&state);
        b->m[i] = (uint8_t)bytes;
        b->v[i] = (uint8_t)(bytes >> 8);
        b->slow[i] = (uint8_t)(bytes >> 16);
        b->residual[i] = (uint16_t)(bytes >> 24);
    }
    for (uint64_t i = 0; i < MOST / 32 + 1; i++) {
        int odd = c->odd && i % 3 == 0;
        b->absmax1[i] = fabsf(datum(odd, &state));
        b->absmax2[i] = fabsf(datum(odd, &state));
        b->slow_absmax[i] = fabsf(datum(odd, &state));
    }
    b->steps = c->seed % 5;
}

/* own: with the kernel for the format's own size. */
static void run(const step_case *c, buffers *b, int isa, int own)
{
    const mo_rule_group group = {.lr = 1e-3,
                                 .beta1 = 0.9,
                                 .beta2 = 0.999,
                                 .eps = 1e-8,
                                 .weight_decay = 1e-2,
                                 .momentum = 0.9,
                                 .dampening = 0.1,
                                 .beta3 = 0.9999,
                                 .alpha = 5.0};
    mo_optim_control control = {0, 0};
    mo_rule_coef coef = mo_rule_coef_of(c->form->rule, &group, b->steps + 1, 0.75);
    int second = mo_rule_has_second(c->form->rule), third = mo_rule_has_slow(c->form->rule);
    mo_optim_tensor t = {
        .parameter = b->p,
        .copy = c->copy ? b->copy : NULL,
        .m = b->m,
        .v = second ? b->v : NULL,
        .slow = third ? b->slow : NULL,
        .absmax1 = b->absmax1,
        .absmax2 = second ? b->absmax2 : NULL,
        .slow_absmax = third ? b->slow_absmax : NULL,
        .residual = c->split ? b->residual : NULL,
        .steps = &b->steps,
        .parameter_dtype = c->p,
        .copy_dtype = c->copy,
        .format = c->form->format,
        .residual_bytes = (uint32_t)c->split,
    };
    mo_tensor_segment g = {b->g, c->n, 0, (uint32_t)c->g, 0};
    mo_sized_step_args args = {{.tensors = &t,
                                .gradients = &g,
                                .coefs = &coef,
                                .control = &control,
                                .count = 1,
                                .seed = c->seed,
                                .stochastic = (uint32_t)c->stochastic},
                               c->form->rule,
                               log_of(c->size)};
    const mo_kernel *kernel = own ? c->form->own : c->form->sized;
    kernel->cpu[isa](own ? (const void *)&args.step : &args, 0, mo_chunks_of(c->n));
}

static void check(const step_case *c)
{
    static buffers expected, actual;
    prepare(c, &expected);
    run(c, &expected, MO_ISA_SCALAR, 0);
    if (c->size == mo_format_block(c->form->format)) {
        prepare(c, &actual);
        run(c, &actual, MO_ISA_SCALAR, 1);
        assert_memory_equal(&expected, &actual, sizeof actual);
    }
    FOR_EACH_WIDE_FORM (isa, c->form->sized) {
        prepare(c, &actual);
        run(c, &actual, isa, 0);
        if (memcmp(&expected, &actual, sizeof actual) != 0)
            fail_msg("rule %u, format %u, isa %d, blocks of %u, n %d, p %d, g %d, copy %d, "
                     "stochastic %d, split %d, odd %d",
                     c->form->rule, c->form->format, isa, c->size, (int)c->n, c->p, c->g, c->copy,
                     c->stochastic, c->split, c->odd);
    }
}

/* Less than a block, whole blocks, a block and a piece; every type in turn. */
static void test_forms(void **state)
{
    (void)state;
    uint64_t seed = first_seed();
    for (int k = 0; k < SIZES; k++)
        for (int f = 0; f < RULES; f++)
            for (int odd = 0; odd < 2; odd++) {
                const uint64_t counts[] = {1,   sizes[k] - 1, sizes[k], sizes[k] + 33, 2 * sizes[k],
                                           MOST};
                for (int i = 0; i < 6; i++) {
                    seed++;
                    int32_t p = 1 + (int32_t)(seed % 3);
                    step_case c = {
                        &forms[f], sizes[k], counts[i], seed, p, 1 + (int32_t)(seed / 3 % 3),
                        0,         0,        0,         odd};
                    c.stochastic = p != MO_DTYPE_F32 && seed % 2;
                    c.split = p == MO_DTYPE_BF16 && !c.stochastic ? 1 + (int)(seed / 2 % 2) : 0;
                    c.copy = p == MO_DTYPE_F32 ? (int32_t)(seed % 4) : 0;
                    check(&c);
                }
            }
}

/* --- block-wise codes on their own ----------------------------------------------------------- */

static const struct code {
    uint32_t format;
    const mo_kernel *sized[2], *own[2];
} codes[] = {
    {MO_STATE_8BIT,
     {&mo_kernel_sized_quantize8, &mo_kernel_sized_dequantize8},
     {&mo_kernel_quantize, &mo_kernel_dequantize}},
    {MO_STATE_4BIT,
     {&mo_kernel_sized_quantize4, &mo_kernel_sized_dequantize4},
     {&mo_kernel_quantize4, &mo_kernel_dequantize4}},
    {MO_STATE_F8,
     {&mo_kernel_sized_quantizef8, &mo_kernel_sized_dequantizef8},
     {&mo_kernel_quantizef8, &mo_kernel_dequantizef8}},
    {MO_STATE_COMPANDED,
     {&mo_kernel_sized_quantizec8, &mo_kernel_sized_dequantizec8},
     {&mo_kernel_quantizec8, &mo_kernel_dequantizec8}},
    {MO_STATE_COMPANDED4,
     {&mo_kernel_sized_quantizec4, &mo_kernel_sized_dequantizec4},
     {&mo_kernel_quantizec4, &mo_kernel_dequantizec4}},
};

typedef struct coded {
    uint8_t codes[MOST];
    float scales[MOST / 32 + 1], back[MOST];
} coded;

static void there_and_back(const mo_kernel *const kernels[2], int isa, float *x, uint64_t n,
                           uint32_t is_signed, uint32_t size, coded *out)
{
    memset(out, 0, sizeof *out);
    mo_blockcode_args args = {x, out->codes, out->scales, n, MO_DTYPE_F32, is_signed, log_of(size),
                              0};
    kernels[0]->cpu[isa](&args, 0, mo_chunks_of(n));
    args.values = out->back;
    kernels[1]->cpu[isa](&args, 0, mo_chunks_of(n));
}

/* A block's scale in double's arithmetic, and the largest error of its values: half the widest gap
 * of the map, and for a root what rounding up adds. */
static void check_values(uint32_t format, uint32_t is_signed, const float *x, uint64_t n,
                         uint32_t size, const coded *c)
{
    static const double gaps[] = {[MO_STATE_8BIT] = 0.0071,
                                  [MO_STATE_4BIT] = 0.1151,
                                  [MO_STATE_F8] = 0.0358,
                                  [MO_STATE_COMPANDED] = 0.0084,
                                  [MO_STATE_COMPANDED4] = 0.135};
    for (uint64_t first = 0; first < n; first += size) {
        uint64_t last = first + size < n ? first + size : n;
        double largest = 0.0;
        for (uint64_t i = first; i < last; i++)
            largest = fmax(largest, fabs((double)x[i]));
        double wanted = format == MO_STATE_F8 ? largest / 448.0 : largest;
        assert_true(fabs((double)c->scales[first / size] - wanted) <= 1e-7 * wanted);
        for (uint64_t i = first; i < last; i++)
            if (fabs((double)x[i] - (double)c->back[i]) > gaps[format] * largest)
                fail_msg("format %u, blocks of %u, %s: %g becomes %g in a block up to %g", format,
                         size, is_signed ? "signed" : "unsigned", (double)x[i], (double)c->back[i],
                         largest);
    }
}

static void test_codes(void **state)
{
    static float x[MOST];
    static coded expected, actual;
    uint64_t seed = 3;
    (void)state;
    for (size_t f = 0; f < sizeof codes / sizeof *codes; f++)
        for (int k = 0; k < SIZES; k++)
            for (uint32_t is_signed = 0; is_signed < 2; is_signed++) {
                uint64_t n = k % 2 ? MOST : sizes[k] + 5;
                for (uint64_t i = 0; i < n; i++)
                    x[i] = is_signed ? normal(&seed) : fabsf(normal(&seed));
                there_and_back(codes[f].sized, MO_ISA_SCALAR, x, n, is_signed, sizes[k], &expected);
                check_values(codes[f].format, is_signed, x, n, sizes[k], &expected);
                FOR_EACH_WIDE_FORM (isa, codes[f].sized[0]) {
                    there_and_back(codes[f].sized, isa, x, n, is_signed, sizes[k], &actual);
                    assert_memory_equal(&expected, &actual, sizeof actual);
                }
                if (sizes[k] != mo_format_block(codes[f].format))
                    continue;
                there_and_back(codes[f].own, MO_ISA_SCALAR, x, n, is_signed, 0, &actual);
                assert_memory_equal(&expected, &actual, sizeof actual);
            }
}

/* --- optimizers ------------------------------------------------------------------------------ */

static memopt_optimizer *new_sized(world *w, uint32_t kind, uint32_t format, uint32_t size,
                                   uint64_t page_bytes)
{
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    memopt_optimizer *o = NULL;
    uint32_t number;
    options.kind = kind;
    options.state_format = format;
    options.block_size = size;
    options.min_8bit_size = 1;
    options.page_bytes = page_bytes;
    group.weight_decay = 0.0;
    OK(memopt_optimizer_create(w->allocator, &options, &o));
    OK(memopt_optimizer_add_group(o, &group, &number));
    return o;
}

enum { N = 5000 };

/* AdamW's first step from zeros, in double: the parameters, and the scales of both moments. The
 * same with states in host memory. */
static void test_first_step(void **state)
{
    (void)state;
    static float g[N], p[N];
    uint64_t seed = 5, index;
    for (int i = 0; i < N; i++)
        g[i] = normal(&seed) * (i % 7 ? 1.0f : 1e-3f);
    for (uint32_t format = MO_STATE_8BIT; format < MO_STATE_FORMATS; format++)
        for (int k = 0; k < 2 * SIZES && mo_format_has_scales(format); k++) {
            world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
            uint32_t size = sizes[k / 2];
            memopt_optimizer *o = new_sized(&w, MO_RULE_ADAMW, format, size, k % 2 ? 1000 : 0);
            memopt_tensor parameter = new_tensor(&w, N, MEMOPT_DTYPE_F32, NULL);
            memopt_tensor gradient = new_tensor(&w, N, MEMOPT_DTYPE_F32, g);
            OK(memopt_optimizer_add_parameter(o, 0, &parameter, NULL, NULL, &index));
            OK(memopt_optimizer_step(o, &gradient, 1, NULL, NULL));
            read_floats(&w, &parameter, p);
            for (int i = 0; i < N; i++) {
                double u = (double)g[i] / (fabs((double)g[i]) + 1e-8);
                assert_true(fabs((double)p[i] + 1e-3 * u) <= 1e-9);
            }
            for (uint64_t m = 0; m < 2; m++) {
                memopt_state_view view = {.struct_size = sizeof view};
                OK(memopt_optimizer_get_state(o, 0, 2 + m, &view));
                assert_int_equal(view.tensor.count, (N + size - 1) / size);
                for (uint64_t block = 0; block < view.tensor.count; block++) {
                    double largest = 0.0;
                    for (uint64_t i = block * size; i < N && i < (block + 1) * size; i++)
                        largest = fmax(largest, fabs((double)g[i]));
                    largest = m == 0 ? 0.1 * largest : 0.001 * largest * largest;
                    largest = format == MO_STATE_F8 ? largest / 448.0 : largest;
                    double scale = (double)((const float *)view.tensor.data)[block];
                    assert_true(fabs(scale - largest) <= 1e-5 * largest);
                }
            }
            OK(memopt_optimizer_destroy(o));
            close_world(&w);
        }
}

/* An export goes to an optimizer with blocks of its size alone; bytes are as documented. */
static void test_export(void **state)
{
    (void)state;
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
    memopt_optimizer *o[3] = {new_sized(&w, MO_RULE_ADAMW, MO_STATE_8BIT, 64, 0),
                              new_sized(&w, MO_RULE_ADAMW, MO_STATE_8BIT, 64, 0),
                              new_sized(&w, MO_RULE_ADAMW, MO_STATE_8BIT, 2048, 0)};
    memopt_tensor parameters[3], gradient = new_tensor(&w, N, MEMOPT_DTYPE_F32, NULL);
    uint64_t bytes[3], index;
    static float g[N], p[2][N];
    for (int i = 0; i < N; i++)
        g[i] = (float)(i % 100) - 50.0f;
    write_tensor(&w, &gradient, g);
    for (int k = 0; k < 3; k++) {
        parameters[k] = new_tensor(&w, N, MEMOPT_DTYPE_F32, NULL);
        OK(memopt_optimizer_add_parameter(o[k], 0, &parameters[k], NULL, NULL, &index));
        OK(memopt_optimizer_get_export_size(o[k], &bytes[k]));
    }
    OK(memopt_optimizer_step(o[0], &gradient, 1, NULL, NULL));
    void *buffer = malloc(bytes[0]);
    OK(memopt_optimizer_export_sync(o[0], bytes[0], NULL, buffer));
    assert_int_equal(memopt_optimizer_import_sync(o[2], buffer, bytes[0], NULL),
                     MEMOPT_INVALID_ARGUMENT);
    assert_non_null(strstr(memopt_last_error(), "blocks of 64"));
    assert_non_null(strstr(memopt_last_error(), "blocks of 2048"));
    OK(memopt_optimizer_import_sync(o[1], buffer, bytes[0], NULL));
    read_floats(&w, &parameters[0], p[0]);
    write_tensor(&w, &parameters[1], p[0]);
    for (int k = 0; k < 2; k++) {
        OK(memopt_optimizer_step(o[k], &gradient, 1, NULL, NULL));
        read_floats(&w, &parameters[k], p[k]);
    }
    assert_memory_equal(p[0], p[1], sizeof p[0]);
    assert_int_equal(bytes[0] - bytes[2], 2 * ((79 * 4 + 4) - (3 * 4 + 4))); /* padded to 8 */
    free(buffer);
    for (int k = 0; k < 3; k++)
        OK(memopt_optimizer_destroy(o[k]));
    close_world(&w);
}

/* The number of scales tells the size of the blocks. */
static void test_quantize(void **state)
{
    (void)state;
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
    static float x[N], y[N];
    uint64_t seed = 8;
    for (int i = 0; i < N; i++)
        x[i] = normal(&seed);
    memopt_tensor values = new_tensor(&w, N, MEMOPT_DTYPE_F32, x);
    memopt_tensor back = new_tensor(&w, N, MEMOPT_DTYPE_F32, NULL);
    memopt_tensor room = new_tensor(&w, N, MEMOPT_DTYPE_F32, NULL);
    memopt_tensor scales = new_tensor(&w, N, MEMOPT_DTYPE_F32, NULL);
    memopt_tensor bytes = {room.data, N, MEMOPT_DTYPE_U8};
    for (int k = 0; k < SIZES; k++) {
        scales.count = (N + sizes[k] - 1) / sizes[k];
        OK(memopt_quantize(w.device, MO_STATE_8BIT, &bytes, &scales, &values, 1, NULL));
        OK(memopt_dequantize(w.device, MO_STATE_8BIT, &back, &bytes, &scales, 1, NULL));
        read_floats(&w, &back, y);
        for (int i = 0; i < N; i++) {
            float absmax = ((const float *)scales.data)[(uint32_t)i / sizes[k]];
            assert_true(fabsf(x[i]) <= absmax && fabsf(x[i] - y[i]) <= 0.0071f * absmax);
        }
    }
    scales.count = 21; /* 20 in blocks of 256 */
    assert_int_equal(memopt_quantize(w.device, MO_STATE_8BIT, &bytes, &scales, &values, 1, NULL),
                     MEMOPT_INVALID_ARGUMENT);
    close_world(&w);
}

static void test_refusals(void **state)
{
    (void)state;
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
    static const uint32_t bad[] = {1, 16, 31, 33, 96, 4095, 8192, 0x80000000u};
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer *o;
    options.state_format = MO_STATE_8BIT;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        options.block_size = bad[i];
        assert_int_equal(memopt_optimizer_create(w.allocator, &options, &o), MEMOPT_UNSUPPORTED);
        assert_non_null(strstr(memopt_last_error(), "from 32 to 4096"));
    }
    options.block_size = 64; /* formats without scales */
    options.state_format = MO_STATE_F32;
    assert_int_equal(memopt_optimizer_create(w.allocator, &options, &o), MEMOPT_UNSUPPORTED);
    options.state_format = MO_STATE_BF16;
    assert_int_equal(memopt_optimizer_create(w.allocator, &options, &o), MEMOPT_UNSUPPORTED);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),      cmocka_unit_test(test_codes),
        cmocka_unit_test(test_first_step), cmocka_unit_test(test_export),
        cmocka_unit_test(test_quantize),   cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("blocks of other sizes", tests, NULL, NULL);
}
