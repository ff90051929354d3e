/* The optimizer's kernels, scalar forms: the specification. */
#define MO_SCALAR static inline
#define MO_SPANS static __attribute__((noinline)) /* 17 kernels call it */
#include "kernels/optim/step_scalar.h"
#include "kernels/optim/step_spans.h"

#include <string.h>

void mo_upload_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_optim_upload_args *a = args;
    if (begin < end)
        memcpy(a->destination, a->payload, (size_t)a->bytes);
}

void mo_prologue_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_optim_prologue_args *a = args;
    if (begin >= end)
        return;
    double factor = mo_optim_verdict(a);
    for (uint32_t i = 0; i < a->count; i++)
        mo_optim_prepare(a, i, factor);
}

/* The choice of rule and format is made when this is inlined. */
static inline void step_span(uint32_t rule, uint32_t format, const mo_optim_span *s)
{
    if (format == MO_STATE_BF16 && s->format == MO_STATE_BF16)
        mo_step16_scalar(rule, s, 0, s->count);
    else if (!mo_format_has_scales(format) || s->absmax1 == NULL)
        mo_step32_scalar(rule, s, 0, s->count);
    else
        for (uint64_t i = 0; i < s->count; i += mo_format_block(format))
            mo_step_block_scalar(rule, format, s, i);
}

static inline void quantize_chunks(uint32_t format, const mo_blockcode_args *a, uint64_t begin,
                                   uint64_t end)
{
    uint64_t first = begin * MO_CHUNK_ELEMENTS;
    uint64_t last = end * MO_CHUNK_ELEMENTS < a->count ? end * MO_CHUNK_ELEMENTS : a->count;
    const uint32_t block = mo_format_block(format);
    for (uint64_t i = first; i < last; i += block)
        mo_quantize_block_scalar(format, a, i, mo_block_length(block, last, i));
}

static inline void dequantize_chunks(uint32_t format, const mo_blockcode_args *a, uint64_t begin,
                                     uint64_t end)
{
    uint64_t first = begin * MO_CHUNK_ELEMENTS;
    uint64_t last = end * MO_CHUNK_ELEMENTS < a->count ? end * MO_CHUNK_ELEMENTS : a->count;
    mo_dequantize_run_scalar(format, a, first, last);
}

#define STEP(kernel, rule, format)                                                                 \
    static void kernel##_span(const mo_optim_span *s)                                              \
    {                                                                                              \
        step_span(MO_RULE_##rule, MO_STATE_##format, s);                                           \
    }                                                                                              \
    void mo_step_##kernel##_ref(const void *args, uint64_t begin, uint64_t end)                    \
    {                                                                                              \
        mo_each_span(args, begin, end, kernel##_span);                                             \
    }
#define CODES(suffix, format)                                                                      \
    void mo_quantize##suffix##_ref(const void *args, uint64_t begin, uint64_t end)                 \
    {                                                                                              \
        quantize_chunks(MO_STATE_##format, args, begin, end);                                      \
    }                                                                                              \
    void mo_dequantize##suffix##_ref(const void *args, uint64_t begin, uint64_t end)               \
    {                                                                                              \
        dequantize_chunks(MO_STATE_##format, args, begin, end);                                    \
    }
MO_EACH_STEP(STEP)
MO_EACH_CODE(CODES)
