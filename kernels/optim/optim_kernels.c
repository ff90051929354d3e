/* The optimizer's kernels: their names, arguments and forms. */
#include "kernels/optim/optim_cpu.h"

static uint64_t step_elements(const void *args)
{
    const mo_optim_step_args *a = args;
    return mo_tensor_segments_elements(a->gradients, a->count);
}

const mo_kernel mo_kernel_optim_upload = {
    .name = "mo_optim_upload",
    .args_size = sizeof(mo_optim_upload_args),
    .threads = MO_OPTIM_THREADS,
    .cpu = {mo_upload_ref},
};
const mo_kernel mo_kernel_optim_prologue = {
    .name = "mo_optim_prologue",
    .args_size = sizeof(mo_optim_prologue_args),
    .threads = MO_OPTIM_THREADS,
    .cpu = {mo_prologue_ref},
};

/* NULL where a set brings nothing. */
#define FORMS(symbol, avx512, vbmi, bf16)                                                          \
    MO_CPU_FORMS(symbol##_ref, symbol##_neon, symbol##_avx2, avx512, vbmi, bf16)
#define STEP_OF(kernel, typed, types, avx512, vbmi, bf16)                                          \
    {                                                                                              \
        "mo_step_" #kernel, sizeof(mo_optim_step_args), MO_OPTIM_THREADS,                          \
            FORMS(mo_step_##kernel, avx512, vbmi, bf16), step_elements, typed, types               \
    }
#define STEP(kernel, ...)                                                                          \
    static const mo_kernel typed_##kernel[MO_TYPED] = {                                            \
        STEP_OF(kernel, NULL, "-DMO_TYPES=1", __VA_ARGS__),                                        \
        STEP_OF(kernel, NULL, "-DMO_TYPES=2", __VA_ARGS__),                                        \
        STEP_OF(kernel, NULL, "-DMO_TYPES=3", __VA_ARGS__)};                                       \
    const mo_kernel mo_kernel_step_##kernel = STEP_OF(kernel, typed_##kernel, NULL, __VA_ARGS__);
/* Coded states also use the hardware's rounding to bf16, codes of tables its look-ups of bytes. */
#define TABLES(kernel, rule, format)                                                               \
    STEP(kernel, MO_MORE(mo_step_##kernel##_avx512), mo_step_##kernel##_avx512vbmi,                \
         MO_MORE(mo_step_##kernel##_avx512bf16))
#define COMPUTED(kernel, rule, format)                                                             \
    STEP(kernel, mo_step_##kernel##_avx512, NULL, MO_MORE(mo_step_##kernel##_avx512bf16))
#define PLAIN(kernel, rule, format) STEP(kernel, mo_step_##kernel##_avx512, NULL, NULL)
MO_EACH_STEP_8BIT(TABLES)
MO_EACH_STEP_COMPUTED(COMPUTED)
MO_EACH_STEP_PLAIN(PLAIN)

#define CODE(symbol)                                                                               \
    const mo_kernel mo_kernel_##symbol = {                                                         \
        "mo_" #symbol,                                                                             \
        sizeof(mo_blockcode_args),                                                                 \
        MO_OPTIM_THREADS,                                                                          \
        FORMS(mo_##symbol, mo_##symbol##_avx512, mo_##symbol##_avx512vbmi, NULL),                  \
        NULL,                                                                                      \
        NULL,                                                                                      \
        NULL};
#define CODES(suffix, format)                                                                      \
    CODE(quantize##suffix)                                                                         \
    CODE(dequantize##suffix)
MO_EACH_CODE(CODES)
