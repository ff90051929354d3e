/* one_kernel CASE ISA ELEMENTS: runs one form of a kernel once, on up to MOST elements, so that its
 * instructions can be counted (count_instructions). ISA is the number of the set. */
#include "kernels/cast/accumulate.h"
#include "kernels/cast/cast.h"
#include "kernels/hash/hash.h"
#include "kernels/optim/optim_step.h"
#include "kernels/reduce/reduce.h"
#include "kernels/reduce/scale.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    N = MO_CHUNK_ELEMENTS,
    MOST = 2048,
    F32 = MO_DTYPE_F32,
    F16 = MO_DTYPE_F16,
    BF16 = MO_DTYPE_BF16
};

static _Alignas(64) float values[N], more[N], scales[2][N / MO_BLOCK4_SIZE];
static _Alignas(64) uint16_t parameters[N], gradients[N];
static _Alignas(64) uint8_t states[2][4 * N];
static int isa;
static uint64_t count;

/* Cheap, so that what is counted stays visible. */
static int draw(int below)
{
    static uint32_t state;
    state = state * 1664525u + 1013904223u;
    return (int)(state >> 8) % below;
}

static void fill(void)
{
    for (int i = 0; i < MOST; i++) {
        values[i] = (float)(draw(2001) - 1000) * 1e-5f;
        parameters[i] = (uint16_t)(0x3c00 + draw(512));
        gradients[i] = (uint16_t)(0x3a00 + draw(256) + draw(2) * 0x8000);
        states[0][i] = (uint8_t)(draw(0x7f));
        states[1][i] = (uint8_t)(draw(0x7f));
    }
    for (int i = 0; i < N / MO_BLOCK4_SIZE; i++) {
        scales[0][i] = 1e-2f;
        scales[1][i] = 1e-4f;
    }
}

static void step(const mo_kernel *kernel, uint32_t rule, uint32_t format, uint32_t stochastic)
{
    uint64_t steps = 1;
    int coded = mo_format_has_scales(format), second = mo_rule_has_second(rule);
    mo_optim_tensor tensor = {.parameter = parameters,
                              .m = states[0],
                              .v = second ? states[1] : NULL,
                              .absmax1 = coded ? scales[0] : NULL,
                              .absmax2 = coded && second ? scales[1] : NULL,
                              .steps = &steps,
                              .parameter_dtype = BF16,
                              .format = format};
    mo_tensor_segment segment = {gradients, count, 0, BF16, 0};
    mo_rule_group group = {.lr = 1e-3,
                           .beta1 = 0.9,
                           .beta2 = 0.999,
                           .eps = 1e-8,
                           .weight_decay = 0.01,
                           .momentum = 0.9};
    mo_rule_coef coef = mo_rule_coef_of(rule, &group, 2, 1.0);
    mo_optim_control control = {0, 0};
    mo_optim_step_args args = {&tensor, &segment, &coef, &control, 1, 1, stochastic};
    if (!coded)
        memset(states, 0, sizeof states);
    kernel->cpu[isa](&args, 0, 1);
}

static void code(const mo_kernel *kernel, int is_signed)
{
    mo_blockcode_args args = {values, states[0], scales[0], count, F32, (uint32_t)is_signed};
    for (int i = 0; i < MOST && !is_signed; i++)
        values[i] = values[i] < 0 ? -values[i] : values[i];
    kernel->cpu[isa](&args, 0, 1);
}

static void cast(uint32_t from, uint32_t to, uint32_t stochastic)
{
    mo_cast_args args = {.count = 1};
    mo_cast_segment *s = &args.segments[0];
    args.stochastic = stochastic;
    s->source = from == F32 ? (void *)values : (void *)gradients;
    s->destination = from == F32 ? (void *)states : (void *)more;
    s->count = count;
    s->source_dtype = from;
    s->destination_dtype = to;
    mo_kernel_cast.cpu[isa](&args, 0, 1);
}

static mo_tensor_segment f32_segment(void)
{
    return (mo_tensor_segment){values, count, 0, F32, 0};
}

static void reduce(const mo_kernel *kernel)
{
    double partial;
    float found = 0;
    mo_reduce_args args = {.partials = &partial, .found_inf = &found, .count = 1};
    args.segments[0] = f32_segment();
    kernel->cpu[isa](&args, 0, 1);
}

static void scale(void)
{
    const float factor = 0.5f;
    mo_scale_args args = {.factor = &factor, .count = 1};
    args.segments[0] = f32_segment();
    mo_kernel_scale.cpu[isa](&args, 0, 1);
}

static void accumulate(void)
{
    mo_accumulate_args args = {.count = 1, .scale = 1.0f};
    args.segments[0] = (mo_cast_segment){gradients, values, count, 0, 0, BF16, F32};
    mo_kernel_accumulate.cpu[isa](&args, 0, 1);
}

static void hash(void)
{
    uint64_t hashes[4 * N / MO_HASH_GRANULE];
    mo_hash_granules_args args = {.data = (void *)values, .hashes = hashes, .bytes = 4 * count};
    mo_kernel_hash_granules.cpu[isa](&args, 0, 4 * count / MO_HASH_GRANULE);
}

#define CASES(X)                                                                                   \
    X(adamw8, step(&mo_kernel_step_adamw8, MO_RULE_ADAMW, MO_STATE_8BIT, 0))                       \
    X(adamw8_stochastic, step(&mo_kernel_step_adamw8, MO_RULE_ADAMW, MO_STATE_8BIT, 1))            \
    X(adamwc8, step(&mo_kernel_step_adamwc8, MO_RULE_ADAMW, MO_STATE_COMPANDED, 0))                \
    X(adamw16, step(&mo_kernel_step_adamw16, MO_RULE_ADAMW, MO_STATE_BF16, 0))                     \
    X(adamw32, step(&mo_kernel_step_adamw8, MO_RULE_ADAMW, MO_STATE_F32, 0))                       \
    X(lion8, step(&mo_kernel_step_lion8, MO_RULE_LION, MO_STATE_8BIT, 0))                          \
    X(sgd8, step(&mo_kernel_step_sgd8, MO_RULE_SGD, MO_STATE_8BIT, 0))                             \
    X(quantize_signed, code(&mo_kernel_quantize8, 1))                                              \
    X(quantize_unsigned, code(&mo_kernel_quantize8, 0))                                            \
    X(dequantize, code(&mo_kernel_dequantize8, 1))                                                 \
    X(cast_f32_bf16, cast(F32, BF16, 0))                                                           \
    X(cast_f32_bf16_stochastic, cast(F32, BF16, 1))                                                \
    X(cast_f32_f16, cast(F32, F16, 0))                                                             \
    X(cast_f32_e4m3, cast(F32, MO_DTYPE_F8_E4M3, 0))                                               \
    X(cast_bf16_f32, cast(BF16, F32, 0))                                                           \
    X(cast_e4m3_f32, cast(MO_DTYPE_F8_E4M3, F32, 0))                                               \
    X(accumulate_bf16, accumulate())                                                               \
    X(norm_f32, reduce(&mo_kernel_square_sum))                                                     \
    X(check_f32, reduce(&mo_kernel_check))                                                         \
    X(scale_f32, scale())                                                                          \
    X(hash, hash())

int main(int argc, char **argv)
{
#define PRINT(name, call) printf("%s\n", #name);
#define RUN(name, call)                                                                            \
    if (strcmp(argv[1], #name) == 0)                                                               \
        call;
    if (argc < 4) {
        CASES(PRINT)
        return 0;
    }
    isa = atoi(argv[2]);
    count = strtoull(argv[3], NULL, 10);
    fill();
    CASES(RUN)
    return 0;
}
