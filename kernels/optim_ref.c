/*
 * The optimizer's kernels, scalar forms: the specification; and the kernels' table entries.
 */
#include "kernels/optim_forms.h"

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

static void step_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_optim_step_args *a = args;
    mo_optim_span span;
    for (uint64_t chunk = begin; chunk < end && !a->control->skip; chunk++) {
        mo_optim_span_of(a, chunk, &span);
        if (span.absmax1 == NULL) {
            mo_adamw32_scalar(&span, 0, span.count);
            continue;
        }
        for (uint64_t i = 0; i < span.count; i += MO_BLOCK_SIZE)
            mo_adamw8_scalar(&span, i);
    }
}

static void quantize_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_blockcode_args *a = args;
    uint64_t first = begin * MO_CHUNK_ELEMENTS;
    uint64_t last = end * MO_CHUNK_ELEMENTS < a->count ? end * MO_CHUNK_ELEMENTS : a->count;
    for (uint64_t i = first; i < last; i += MO_BLOCK_SIZE)
        mo_quantize_scalar(a, i, last - i < MO_BLOCK_SIZE ? (uint32_t)(last - i) : MO_BLOCK_SIZE);
}

static void dequantize_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_blockcode_args *a = args;
    uint64_t first = begin * MO_CHUNK_ELEMENTS;
    uint64_t last = end * MO_CHUNK_ELEMENTS < a->count ? end * MO_CHUNK_ELEMENTS : a->count;
    mo_dequantize_scalar(a, first, last);
}

#if defined(__x86_64__)
#define FORMS(scalar, name)                                                                        \
    {                                                                                              \
        scalar, name##_avx2, name##_avx512                                                         \
    }
#else
#define FORMS(scalar, name)                                                                        \
    {                                                                                              \
        scalar, NULL, NULL                                                                         \
    }
#endif

const mo_kernel mo_kernel_optim_upload = {
    "mo_optim_upload", sizeof(mo_optim_upload_args), MO_OPTIM_THREADS, {upload_ref, NULL, NULL}};
const mo_kernel mo_kernel_optim_prologue = {"mo_optim_prologue",
                                            sizeof(mo_optim_prologue_args),
                                            MO_OPTIM_THREADS,
                                            {prologue_ref, NULL, NULL}};
const mo_kernel mo_kernel_optim_step = {"mo_optim_step", sizeof(mo_optim_step_args),
                                        MO_OPTIM_THREADS, FORMS(step_ref, mo_optim_step)};
const mo_kernel mo_kernel_quantize = {"mo_quantize", sizeof(mo_blockcode_args), MO_OPTIM_THREADS,
                                      FORMS(quantize_ref, mo_quantize)};
const mo_kernel mo_kernel_dequantize = {"mo_dequantize", sizeof(mo_blockcode_args),
                                        MO_OPTIM_THREADS, FORMS(dequantize_ref, mo_dequantize)};
