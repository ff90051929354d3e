/* The SIMD forms of the step equal the scalar form bit for bit: every pair of types, every kind of
 * data, every ragged size, unaligned, with and without model copy, stochastic rounding and split
 * weights; the same where the model copy is written over the gradient.
 *
 * optim_forms [N]: every N-th case only, for slow processors. Without N a fifth, which is another
 * one for every seed; all of it in the long run. */
#include "support.h"

#include "support/forms.h"
#include "support/sweep.h"

#include <math.h>

enum { MOST = 2048, KINDS = 11 };

static uint64_t every = 1, phase; /* the cases with this remainder */
static int in_place;              /* 1: the copy is written into the gradient's memory */

typedef struct buffers {
    float p[MOST + 64], copy[MOST + 64], g[MOST + 64], m[MOST + 64], v[MOST + 64];
    float slow[MOST + 64];
    float absmax1[MOST / 128 + 1], absmax2[MOST / 128 + 1], slow_absmax[MOST / 128 + 1];
    uint16_t residual[MOST + 64]; /* or of bytes */
    uint64_t steps;
} buffers;

typedef struct step_case {
    uint64_t n;
    unsigned offset;                         /* in elements, for all but the absmax */
    int kind, p, g, copy, eight, stochastic; /* eight: coded states */
    uint64_t seed;
    const struct form *form; /* NULL: AdamW, 8-bit */
} step_case;

/* The kernels and what they are of. */
static const struct form {
    const char *name;
    const mo_kernel *kernel;
    uint32_t rule, format;
    int nesterov;
} forms[] = {
#define FORM(kernel, rule, format)                                                                 \
    {#kernel, &mo_kernel_step_##kernel, MO_RULE_##rule, MO_STATE_##format, 0},
    MO_EACH_STEP(FORM){"adagrad8", &mo_kernel_step_rmsprop8, MO_RULE_ADAGRAD, MO_STATE_8BIT, 0},
    {"adagradc8", &mo_kernel_step_rmspropc8, MO_RULE_ADAGRAD, MO_STATE_COMPANDED, 0},
    {"sgd8 nesterov", &mo_kernel_step_sgd8, MO_RULE_SGD, MO_STATE_8BIT, 1},
    {"sgdc8 nesterov", &mo_kernel_step_sgdc8, MO_RULE_SGD, MO_STATE_COMPANDED, 1},
};
enum { FORMS = sizeof forms / sizeof *forms, LEAST_BLOCK = MO_BLOCK4_SIZE };

static const struct form *form_of(const step_case *c)
{
    return c->form != NULL ? c->form : &forms[0];
}

/* Bytes of a residual: 1 or 2 in half of those that can be split, else 0. */
static uint32_t split_of(const step_case *c)
{
    int can = c->p == MO_DTYPE_BF16 && !c->stochastic;
    return can && c->seed / 3 % 2 ? 1 + (uint32_t)(c->seed / 6 % 2) : 0;
}

static const char *const kind_names[KINDS] = {
    "normal", "2^20 wide",  "sparse",     "subnormal",   "tiny",      "huge",
    "zero",   "not finite", "minus zero", "overflowing", "top of f16"};

static float datum(int kind, uint64_t *state)
{
    float x = normal(state);
    uint64_t r = next_random(state);
    switch (kind) {
    case 0:
        return x * 0.01f;
    case 1:
        return x * ldexpf(1.0f, -(int)(r % 21));
    case 2:
        return r % 50 == 0 ? x : 0.0f;
    case 3:
        return x * 0x1p-128f;
    case 4:
        return x * 0x1p-115f;
    case 5:
        return x * 0x1p40f;
    case 6:
        return 0.0f;
    case 7:
        return r % 300 == 0 ? INFINITY : r % 300 == 1 ? -INFINITY : r % 300 == 2 ? NAN : x;
    case 8:
        return r % 2 ? -0.0f : x * 0x1p-100f;
    case 9:
        return x * 0x1p68f * (r % 7 == 0 ? 0x1p20f : 1.0f);
    default: /* with SGD, steps of 65520 and a little more or less */
        return (r % 2 ? 4.16e7f : -4.16e7f) * (1.0f + 5e-4f * uniform(state));
    }
}

static void prepare(const step_case *c, buffers *b)
{
    uint64_t state = c->seed * 2 + 1;
    memset(b, 0, sizeof *b);
    for (uint64_t i = 0; i < MOST + 64; i++) {
        int p_kind = c->kind == 3 || c->kind == 7 ? c->kind : 0;
        if (i < MOST) {
            float p = datum(p_kind, &state);
            if (c->kind == 4) /* subnormals of f16 */
                p *= ldexpf(1.0f, -(int)(next_random(&state) % 24));
            mo_store_element(b->p, i, c->p, p);
            mo_store_element(b->g, i, c->g, datum(c->kind, &state));
        }
        b->residual[i] = (uint16_t)next_random(&state);
        if (!c->eight && i < MOST) {
            b->m[i] = datum(c->kind, &state);
            b->v[i] = fabsf(datum(c->kind, &state));
            b->slow[i] = datum(c->kind, &state);
        } else {
            uint64_t bytes = next_random(&state); /* of codes, or any bf16 numbers */
            uint32_t width = (uint32_t)mo_format_bytes(form_of(c)->format, 1);
            memcpy((uint8_t *)b->m + i * width, &bytes, width);
            memcpy((uint8_t *)b->v + i * width, (uint8_t *)&bytes + 4, width);
            memcpy((uint8_t *)b->slow + i * width, (uint8_t *)&bytes + 2, width);
        }
    }
    for (uint64_t i = 0; i < MOST / LEAST_BLOCK + 1; i++) {
        b->absmax1[i] = fabsf(datum(c->kind == 7 && i % 2 ? 0 : c->kind, &state));
        b->absmax2[i] = fabsf(datum(c->kind == 7 && i % 3 ? 0 : c->kind, &state));
        b->slow_absmax[i] = fabsf(datum(c->kind == 7 && i % 5 ? 0 : c->kind, &state));
    }
    b->steps = c->seed % 5;
}

static void run(const step_case *c, buffers *b, int isa)
{
    const struct form *f = form_of(c);
    const mo_rule_group group = {.lr = 1e-3,
                                 .beta1 = 0.9,
                                 .beta2 = 0.999,
                                 .eps = 1e-8,
                                 .weight_decay = 1e-2,
                                 .momentum = 0.9,
                                 .dampening = f->nesterov ? 0.0 : 0.1,
                                 .nesterov = (uint32_t)f->nesterov,
                                 .average = c->seed % 2 ? 0.3 : 0.0,
                                 .beta3 = 0.9999,
                                 .alpha = 5.0,
                                 .t_beta3 = 4.0};
    mo_optim_control control = {0, 0};
    mo_rule_coef coef = mo_rule_coef_of(f->rule, &group, b->steps + 1, 0.75);
    uint32_t format = c->eight ? f->format : (uint32_t)MO_STATE_F32;
    uint64_t skipped = c->offset * mo_format_bytes(format, 1);
    int scales = mo_format_has_scales(format);
    mo_optim_tensor t = {
        .parameter = mo_element_at(b->p, c->offset, c->p),
        .copy = c->copy ? mo_element_at(in_place ? b->g : b->copy, c->offset, c->copy) : NULL,
        .m = (uint8_t *)b->m + skipped,
        .v = (uint8_t *)b->v + skipped,
        .slow = mo_rule_has_slow(f->rule) ? (uint8_t *)b->slow + skipped : NULL,
        .absmax1 = scales ? b->absmax1 : NULL,
        .absmax2 = scales ? b->absmax2 : NULL,
        .slow_absmax = scales && mo_rule_has_slow(f->rule) ? b->slow_absmax : NULL,
        .residual = split_of(c) ? (uint8_t *)b->residual + c->offset * split_of(c) : NULL,
        .steps = &b->steps,
        .parameter_dtype = c->p,
        .copy_dtype = c->copy,
        .format = format,
        .residual_bytes = split_of(c),
    };
    mo_tensor_segment g = {mo_element_at(b->g, c->offset, c->g), c->n, 0, (uint32_t)c->g, 0};
    mo_optim_step_args args = {.tensors = &t,
                               .gradients = &g,
                               .coefs = &coef,
                               .control = &control,
                               .count = 1,
                               .seed = c->seed,
                               .stochastic = (uint32_t)c->stochastic};
    if (!mo_rule_has_second(f->rule)) {
        t.v = NULL;
        t.absmax2 = NULL;
    }
    f->kernel->cpu[isa](&args, 0, mo_chunks_of(c->n));
}

static void check(const step_case *c)
{
    static buffers expected, actual;
    prepare(c, &expected);
    run(c, &expected, MO_ISA_SCALAR);
    FOR_EACH_WIDE_FORM (isa, form_of(c)->kernel) {
        prepare(c, &actual);
        run(c, &actual, isa);
        if (memcmp(&expected, &actual, sizeof actual) != 0) /* NaNs too */
            fail_msg(
                "%s, isa %d, n %d, offset %u, %s, p %d, g %d, copy %d, 8-bit %d, stochastic %d, "
                "split %d",
                form_of(c)->name, isa, (int)c->n, c->offset, kind_names[c->kind], c->p, c->g,
                c->copy, c->eight, c->stochastic, (int)split_of(c));
    }
}

/* A copy written over the gradient: everything as with a copy elsewhere. */
static void check_in_place(const step_case *c)
{
    static buffers expected, actual;
    prepare(c, &expected);
    run(c, &expected, MO_ISA_SCALAR);
    memcpy(mo_element_at(expected.g, c->offset, c->g),
           mo_element_at(expected.copy, c->offset, c->copy), c->n * 2);
    memset(expected.copy, 0, sizeof expected.copy);
    in_place = 1;
    FOR_EACH_FORM (isa, form_of(c)->kernel) {
        prepare(c, &actual);
        run(c, &actual, isa);
        if (memcmp(&expected, &actual, sizeof actual) != 0)
            fail_msg("%s in place, isa %d, n %d, offset %u, %s, p %d, g %d, copy %d, 8-bit %d",
                     form_of(c)->name, isa, (int)c->n, c->offset, kind_names[c->kind], c->p, c->g,
                     c->copy, c->eight);
    }
    in_place = 0;
}

TEST(copy_over_gradient)
{
    uint64_t seed = 5000;
    for (int kind = 0; kind < KINDS; kind++)
        for (int types = 0; types < 3 * 4; types++) /* p is any; g and copy are f16 or bf16 */
            for (int mode = 0; mode < 2 * FORMS; mode++)
                if (seed++ % every == phase)
                    check_in_place(&(step_case){1801, (unsigned)(seed % 4), kind, 1 + types % 3,
                                                2 + types / 3 % 2, 2 + types / 6, mode & 1, 0, seed,
                                                &forms[mode >> 1]});
}

TEST(every_size)
{
    for (uint64_t n = 1 + phase; n <= 600; n += every)
        for (int k = 0; k < 2 * FORMS; k++)
            check(&(step_case){n, (unsigned)(n % 5), (int)(n % KINDS), 1 + (int)(n % 3),
                               1 + (int)(n / 3 % 3), (int)(n / 9 % 4), k % 2, (int)(n / 2 % 2), n,
                               &forms[k / 2]});
}

TEST(every_kind_and_type)
{
    uint64_t seed = 1000;
    for (int kind = 0; kind < KINDS; kind++)
        for (int p = 1; p <= 3; p++)
            for (int g = 1; g <= 3; g++)
                for (int copy = 0; copy <= 3; copy++)
                    for (int mode = 0; mode < 4 * FORMS; mode++)
                        if (seed++ % every == phase)
                            check(&(step_case){1800, 3, kind, p, g, copy, mode & 1, mode >> 1 & 1,
                                               seed, &forms[mode >> 2]});
}

/* Many steps in a row from zero states: what one form leaves, the next takes up. */
TEST(many_steps)
{
    static buffers expected, actual;
    for (int k = (int)phase; k < KINDS * FORMS; k += (int)every) {
        step_case c = {1111, 0, k % KINDS, MO_DTYPE_BF16,    MO_DTYPE_F32, MO_DTYPE_F16,
                       1,    0, 77,        &forms[k / KINDS]};
        uint32_t format = c.form->format;
        FOR_EACH_WIDE_FORM (isa, c.form->kernel) {
            prepare(&c, &expected);
            memset(expected.m, (int)mo_format_zero(format, 1), sizeof expected.m);
            memset(expected.v, 0, sizeof expected.v);
            memset(expected.slow, (int)mo_format_zero(format, 1), sizeof expected.slow);
            memset(expected.slow_absmax, 0, sizeof expected.slow_absmax);
            memset(expected.absmax1, 0, sizeof expected.absmax1);
            memset(expected.absmax2, 0, sizeof expected.absmax2);
            actual = expected;
            for (int step = 0; step < 40; step++) {
                run(&c, &expected, MO_ISA_SCALAR);
                run(&c, &actual, isa);
            }
            assert_memory_equal(&expected, &actual, sizeof actual);
        }
    }
}

/* A skipped step touches nothing. */
TEST(skips)
{
    static buffers before, after;
    step_case c = {1500, 0, 0, MO_DTYPE_F32, MO_DTYPE_F32, 0, 1, 0, 5, NULL};
    prepare(&c, &before);
    FOR_EACH_FORM (isa, &mo_kernel_step_adamw8) {
        mo_optim_control control = {1, 0};
        mo_rule_coef coef = {0};
        mo_optim_tensor t = {.parameter = after.p,
                             .m = after.m,
                             .v = after.v,
                             .absmax1 = after.absmax1,
                             .absmax2 = after.absmax2,
                             .steps = &after.steps,
                             .parameter_dtype = c.p};
        mo_tensor_segment g = {after.g, c.n, 0, (uint32_t)c.g, 0};
        mo_optim_step_args args = {
            .tensors = &t, .gradients = &g, .coefs = &coef, .control = &control, .count = 1};
        after = before;
        mo_kernel_step_adamw8.cpu[isa](&args, 0, 1);
        assert_memory_equal(&before, &after, sizeof before);
    }
}

int main(int argc, char **argv)
{
    every = argc > 1 ? strtoull(argv[1], NULL, 10) : is_long() ? 1 : 5;
    phase = first_seed() % every;
    return run_all_tests(NULL, NULL);
}
