/* The optimizers' kernels: every rule, format of states, type of parameter and gradient, to nearest
 * and stochastic, with and without a model copy; the prologue. */
#include "machines/digest.h"

#include "optim/optim.h"

enum { COUNT = 8 * 128 + 3 * 256 + 77, ROOM = COUNT + 16, STEPS = 2, MOST = 16 };

/* One parameter and all that belongs to it; the first elements are not aligned to a vector. */
typedef struct buffers {
    float parameter[ROOM], copy[ROOM], gradient[ROOM], m[ROOM], v[ROOM];
    float slow[ROOM];
    float absmax1[COUNT / 128 + 1], absmax2[COUNT / 128 + 1], slow_absmax[COUNT / 128 + 1];
    uint64_t steps;
} buffers;

static buffers b;

typedef struct step_case {
    uint32_t rule, format, p, g, copy, stochastic;
} step_case;

static const mo_rule_group groups[] = {
    {1e-3,   0.9, 0.999,  1e-8,   1e-2, 0.9, 0.1, 0, 0, NULL, 0.0,
     0.9999, 5.0, 1500.0, 1200.0, 0,    0,   0,   0, 0, 0},
    /* Nesterov's, upwards */
    {0.3, 0.0, 0.5, 0.0, 0.0, 0.5, 0.0, 1, 1, NULL, 0.25, 0.99, 2.0, 0.0, 0.0, 0, 0, 0, 0, 0, 0},
    {1e-2, 0.9, 0.99, 1e-3, 0.1, 0.0, 0.0, 0, 0, NULL, 0.0, 0.999, 8.0, 2.0, 3.5, 0, 0, 0, 0, 0, 0},
};
enum { GROUPS = sizeof groups / sizeof *groups };

static mo_optim_tensor tensor_of(const step_case *c)
{
    int coded = mo_format_has_scales(c->format), second = mo_rule_has_second(c->rule);
    int third = mo_rule_has_slow(c->rule);
    uint64_t one = mo_format_bytes(c->format, 1);
    mo_optim_tensor t = {
        .parameter = mo_element_at(b.parameter, 1, (int32_t)c->p),
        .copy = c->copy ? mo_element_at(b.copy, 1, (int32_t)c->copy) : NULL,
        .m = (uint8_t *)b.m + one,
        .v = second ? (uint8_t *)b.v + one : NULL,
        .slow = third ? (uint8_t *)b.slow + one : NULL,
        .absmax1 = coded ? b.absmax1 : NULL,
        .absmax2 = coded && second ? b.absmax2 : NULL,
        .slow_absmax = coded && third ? b.slow_absmax : NULL,
        .steps = &b.steps,
        .parameter_dtype = (int32_t)c->p,
        .copy_dtype = (int32_t)c->copy,
        .format = c->format,
    };
    return t;
}

static void start(const step_case *c)
{
    uint32_t format = c->format;
    memset(&b, 0, sizeof b);
    digest_fill_runs(b.parameter, COUNT + 1, c->p, 17);
    if (format != MO_STATE_F32) {
        memset(b.m, (int)mo_format_zero(format, mo_rule_first_signed(c->rule)), sizeof b.m);
        memset(b.v, (int)mo_format_zero(format, 0), sizeof b.v);
        memset(b.slow, (int)mo_format_zero(format, 1), sizeof b.slow);
    }
}

static void add_states(uint64_t *digest, const step_case *c)
{
    uint64_t size = mo_format_bytes(c->format, 1);
    digest_add(digest, b.m, sizeof b.m / size, size);
    digest_add(digest, b.v, sizeof b.v / size, size);
    digest_add(digest, b.absmax1, sizeof b.absmax1 / 4, 4);
    digest_add(digest, b.absmax2, sizeof b.absmax2 / 4, 4);
    if (mo_rule_has_slow(c->rule)) {
        digest_add(digest, b.slow, sizeof b.slow / size, size);
        digest_add(digest, b.slow_absmax, sizeof b.slow_absmax / 4, 4);
    }
    digest_add(digest, b.parameter, COUNT + 1, mo_element_size(c->p));
    if (c->copy)
        digest_add(digest, b.copy, COUNT + 1, mo_element_size(c->copy));
    digest_add_u64(digest, b.steps);
}

/* The second step's gradients have their runs elsewhere. */
static void steps(uint64_t *digest, const step_case *c, uint32_t group)
{
    const mo_kernel *kernel = mo_optimizer_kernel(c->rule, c->format);
    mo_optim_control control = {0, 0};
    mo_optim_tensor t = tensor_of(c);
    start(c);
    for (uint64_t step = 0; step < STEPS; step++) {
        mo_rule_coef coef = mo_rule_coef_of(c->rule, &groups[group], b.steps + 1, 0.75);
        mo_tensor_segment g = {mo_element_at(b.gradient, 1, (int32_t)c->g), COUNT, 0, c->g, 0};
        mo_optim_step_args args = {&t, &g, &coef, &control, 99, 1, c->stochastic};
        digest_fill_runs(b.gradient, COUNT + 1, c->g, 29 + step);
        if (step == 1)
            memmove(b.gradient, (char *)b.gradient + 256 * mo_element_size(c->g),
                    COUNT / 2 * mo_element_size(c->g));
        digest_launch(kernel, &args, 1);
    }
    add_states(digest, c);
}

static void step_types(uint32_t rule, uint32_t format)
{
    uint64_t digest = DIGEST_START;
    for (uint32_t p = MO_DTYPE_F32; p <= MO_DTYPE_BF16; p++)
        for (uint32_t g = MO_DTYPE_F32; g <= MO_DTYPE_BF16; g++)
            for (uint32_t copy = 0; copy <= MO_DTYPE_BF16; copy += 1 + (p + g) % 2)
                for (uint32_t stochastic = 0; stochastic <= (p > 1); stochastic++)
                    steps(&digest, &(step_case){rule, format, p, g, copy, stochastic},
                          (copy + stochastic + p) % GROUPS);
    digest_report(digest, "%s.%u.%u", mo_optimizer_kernel(rule, format)->name, rule, format);
}

/* Every combination of verdicts: scaler, clip, check; sums that are finite and that are not. */
static void prologue(uint32_t rule)
{
    const double infinity = mo_f64_from_bits(0x7ff0000000000000u);
    const double sums[] = {0.0, 123.456, 1e-30, infinity, infinity - infinity};
    const float scale = 3.0f;
    uint64_t digest = DIGEST_START, taken[] = {0, 1, 1000, MO_STEPS_NOT_BEGUN | 3};
    for (uint32_t k = 0; k < 40; k++) {
        float found = 0.0f, norm = 0.0f;
        mo_optim_control control = {0, 0};
        mo_rule_coef coefs[4];
        mo_optim_tensor tensors[4] = {{0}};
        mo_tensor_segment gradients[4] = {{0}};
        mo_optim_prologue_args args = {tensors,
                                       gradients,
                                       groups,
                                       coefs,
                                       &control,
                                       &sums[k / 8],
                                       k & 1 ? &scale : NULL,
                                       k & 2 ? &found : NULL,
                                       &norm,
                                       k & 4 ? 0.5 : 0.0,
                                       4,
                                       k >> 1 & 1,
                                       rule,
                                       0};
        for (uint32_t i = 0; i < 4; i++) {
            tensors[i].steps = &taken[i];
            tensors[i].group = i % GROUPS;
            gradients[i].number = 3 - i;
        }
        digest_launch(&mo_kernel_optim_prologue, &args, 1);
        digest_add_u64(&digest, control.skip);
        digest_add_f32(&digest, found);
        digest_add_f32(&digest, norm);
        for (uint32_t i = 0; i < 4; i++) {
            const mo_rule_coef *c = &coefs[i];
            const float all[] = {
                c->beta1, c->one_minus_beta1, c->beta2, c->one_minus_beta2, c->decay, c->rate,
                c->eps,   c->factor};
            for (int f = 0; f < 8; f++)
                digest_add_f32(&digest, all[f]);
            const float slow[] = {c->beta3, c->one_minus_beta3, c->mix};
            for (int f = 0; f < 3 && mo_rule_has_slow(rule); f++)
                digest_add_f32(&digest, slow[f]);
            digest_add_u64(&digest, c->step);
        }
    }
    digest_report(digest, "mo_optim_prologue.%u", rule);
}

void digest_optimizers(void)
{
    for (uint32_t rule = 1; rule < MOST; rule++)
        if (mo_optimizer_kernel(rule, MO_STATE_F32) != NULL)
            prologue(rule);
    for (uint32_t rule = 1; rule < MOST; rule++)
        for (uint32_t format = 1; format < MOST; format++)
            if (mo_optimizer_kernel(rule, format) != NULL && rule != MO_RULE_ADAFACTOR)
                step_types(rule, format);
}
