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

/* vbmi, bf16: NULL where the set brings nothing. */
#define FORMS(symbol, vbmi, bf16)                                                                  \
    MO_CPU_FORMS(symbol##_ref, symbol##_neon, symbol##_avx2, symbol##_avx512, vbmi, bf16)
#define STEP(name, symbol, vbmi, bf16)                                                             \
    {                                                                                              \
        name, sizeof(mo_optim_step_args), MO_OPTIM_THREADS, FORMS(symbol, vbmi, bf16),             \
            step_elements                                                                          \
    }
/* 8-bit states. */
#define STEP8(name, symbol) STEP(name, symbol, symbol##_avx512vbmi, symbol##_avx512bf16)
#define CODE(name, symbol, vbmi)                                                                   \
    {                                                                                              \
        name, sizeof(mo_blockcode_args), MO_OPTIM_THREADS, FORMS(symbol, vbmi, NULL), NULL         \
    }

/* The steps with coded states also use the hardware's rounding to bf16, those with bytes of codes
 * its lookups. */
const mo_kernel mo_kernel_optim_step = STEP8("mo_optim_step", mo_optim_step);
const mo_kernel mo_kernel_step_adamwc8 = STEP8("mo_step_adamwc8", mo_step_adamwc8);
const mo_kernel mo_kernel_step_adamwc4 = STEP8("mo_step_adamwc4", mo_step_adamwc4);
const mo_kernel mo_kernel_step_lion8 = STEP8("mo_step_lion8", mo_step_lion8);
const mo_kernel mo_kernel_step_sgd8 = STEP8("mo_step_sgd8", mo_step_sgd8);
const mo_kernel mo_kernel_step_adam8 = STEP8("mo_step_adam8", mo_step_adam8);
const mo_kernel mo_kernel_step_adamw16 = STEP("mo_step_adamw16", mo_step_adamw16, NULL, NULL);
const mo_kernel mo_kernel_step_schedule_free =
    STEP("mo_step_schedule_free", mo_step_schedule_free, NULL, NULL);
const mo_kernel mo_kernel_step_rmsprop8 = STEP8("mo_step_rmsprop8", mo_step_rmsprop8);
const mo_kernel mo_kernel_step_rmspropm8 = STEP8("mo_step_rmspropm8", mo_step_rmspropm8);
const mo_kernel mo_kernel_step_ademamix8 = STEP8("mo_step_ademamix8", mo_step_ademamix8);
const mo_kernel mo_kernel_quantize = CODE("mo_quantize", mo_quantize, mo_quantize_avx512vbmi);
const mo_kernel mo_kernel_dequantize =
    CODE("mo_dequantize", mo_dequantize, mo_dequantize_avx512vbmi);
const mo_kernel mo_kernel_quantizec8 =
    CODE("mo_quantizec8", mo_quantizec8, mo_quantizec8_avx512vbmi);
const mo_kernel mo_kernel_dequantizec8 =
    CODE("mo_dequantizec8", mo_dequantizec8, mo_dequantizec8_avx512vbmi);
const mo_kernel mo_kernel_quantizec4 =
    CODE("mo_quantizec4", mo_quantizec4, mo_quantizec4_avx512vbmi);
const mo_kernel mo_kernel_dequantizec4 =
    CODE("mo_dequantizec4", mo_dequantizec4, mo_dequantizec4_avx512vbmi);
