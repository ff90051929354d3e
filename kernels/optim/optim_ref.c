/*
 * The optimizer's kernels, scalar forms: the specification; and the kernels' table entries.
 */
#include "kernels/optim/optim_forms.h"

#include <string.h>

static void upload_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_optim_upload_args *a = args;
    if (begin < end)
        memcpy(a->destination, a->payload, (size_t)a->bytes);
}

static void prologue_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_optim_prologue_args *a = args;
    if (begin >= end)
        return;
    double factor = mo_optim_verdict(a);
    for (uint32_t i = 0; i < a->count; i++)
        mo_optim_prepare(a, i, factor);
}

/* The choice of rule and format is made when this is inlined. */
static inline void step_chunks(uint32_t rule, uint32_t format, const mo_optim_step_args *a,
                               uint64_t begin, uint64_t end)
{
    mo_optim_span span;
    for (uint64_t chunk = begin; chunk < end && !a->control->skip; chunk++) {
        mo_optim_span_of(a, chunk, &span);
        if (span.absmax1 == NULL) {
            mo_step32_scalar(rule, &span, 0, span.count);
            continue;
        }
        for (uint64_t i = 0; i < span.count; i += mo_format_block(format))
            mo_step_block_scalar(rule, format, &span, i);
    }
}

static inline void quantize_chunks(uint32_t format, const mo_blockcode_args *a, uint64_t begin,
                                   uint64_t end)
{
    uint64_t first = begin * MO_CHUNK_ELEMENTS;
    uint64_t last = end * MO_CHUNK_ELEMENTS < a->count ? end * MO_CHUNK_ELEMENTS : a->count;
    for (uint64_t i = first; i < last; i += mo_format_block(format))
        mo_quantize_block_scalar(format, a, i, mo_block_length(format, last, i));
}

static inline void dequantize_chunks(uint32_t format, const mo_blockcode_args *a, uint64_t begin,
                                     uint64_t end)
{
    uint64_t first = begin * MO_CHUNK_ELEMENTS;
    uint64_t last = end * MO_CHUNK_ELEMENTS < a->count ? end * MO_CHUNK_ELEMENTS : a->count;
    mo_dequantize_run_scalar(format, a, first, last);
}

#define STEP_REF(name, rule, format)                                                               \
    static void name(const void *args, uint64_t begin, uint64_t end)                               \
    {                                                                                              \
        step_chunks(rule, format, args, begin, end);                                               \
    }
#define CODE_REF(suffix, format)                                                                   \
    static void quantize##suffix(const void *args, uint64_t begin, uint64_t end)                   \
    {                                                                                              \
        quantize_chunks(format, args, begin, end);                                                 \
    }                                                                                              \
    static void dequantize##suffix(const void *args, uint64_t begin, uint64_t end)                 \
    {                                                                                              \
        dequantize_chunks(format, args, begin, end);                                               \
    }

STEP_REF(step_ref, MO_RULE_ADAMW, MO_STATE_8BIT)
STEP_REF(step_adamw4_ref, MO_RULE_ADAMW, MO_STATE_4BIT)
STEP_REF(step_adamwf8_ref, MO_RULE_ADAMW, MO_STATE_F8)
STEP_REF(step_lion8_ref, MO_RULE_LION, MO_STATE_8BIT)
STEP_REF(step_sgd8_ref, MO_RULE_SGD, MO_STATE_8BIT)
CODE_REF(_ref, MO_STATE_8BIT)
CODE_REF(4_ref, MO_STATE_4BIT)
CODE_REF(f8_ref, MO_STATE_F8)

static uint64_t step_elements(const void *args)
{
    const mo_optim_step_args *a = args;
    return mo_segments_elements(a->gradients, a->count);
}

const mo_kernel mo_kernel_optim_upload = {
    .name = "mo_optim_upload",
    .args_size = sizeof(mo_optim_upload_args),
    .threads = MO_OPTIM_THREADS,
    .cpu = {upload_ref},
};
const mo_kernel mo_kernel_optim_prologue = {
    .name = "mo_optim_prologue",
    .args_size = sizeof(mo_optim_prologue_args),
    .threads = MO_OPTIM_THREADS,
    .cpu = {prologue_ref},
};

#define FORMS(scalar, symbol, ...)                                                                 \
    MO_CPU_FORMS(scalar, symbol##_avx2, symbol##_avx512, symbol##_avx512vbmi, __VA_ARGS__)
#define STEP(name, symbol, scalar, ...)                                                            \
    {                                                                                              \
        name, sizeof(mo_optim_step_args), MO_OPTIM_THREADS, FORMS(scalar, symbol, __VA_ARGS__),    \
            step_elements                                                                          \
    }
#define CODE(name, symbol, scalar)                                                                 \
    {                                                                                              \
        name, sizeof(mo_blockcode_args), MO_OPTIM_THREADS, FORMS(scalar, symbol, NULL), NULL       \
    }

/* Only 8-bit AdamW is fast enough to gain from the hardware's rounding to bf16. */
const mo_kernel mo_kernel_optim_step =
    STEP("mo_optim_step", mo_optim_step, step_ref, mo_optim_step_avx512bf16);
const mo_kernel mo_kernel_step_adamw4 =
    STEP("mo_step_adamw4", mo_step_adamw4, step_adamw4_ref, NULL);
const mo_kernel mo_kernel_step_adamwf8 =
    STEP("mo_step_adamwf8", mo_step_adamwf8, step_adamwf8_ref, NULL);
const mo_kernel mo_kernel_step_lion8 = STEP("mo_step_lion8", mo_step_lion8, step_lion8_ref, NULL);
const mo_kernel mo_kernel_step_sgd8 = STEP("mo_step_sgd8", mo_step_sgd8, step_sgd8_ref, NULL);
const mo_kernel mo_kernel_quantize = CODE("mo_quantize", mo_quantize, quantize_ref);
const mo_kernel mo_kernel_dequantize = CODE("mo_dequantize", mo_dequantize, dequantize_ref);
const mo_kernel mo_kernel_quantize4 = CODE("mo_quantize4", mo_quantize4, quantize4_ref);
const mo_kernel mo_kernel_dequantize4 = CODE("mo_dequantize4", mo_dequantize4, dequantize4_ref);
const mo_kernel mo_kernel_quantizef8 = CODE("mo_quantizef8", mo_quantizef8, quantizef8_ref);
const mo_kernel mo_kernel_dequantizef8 = CODE("mo_dequantizef8", mo_dequantizef8, dequantizef8_ref);
