/* The optimizer's kernels, scalar forms: the specification. */
#define MO_SCALAR static inline
#include "kernels/optim/step_scalar.h"

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

#define STEP_REF(name, rule, format)                                                               \
    static void name##_span(const mo_optim_span *s)                                                \
    {                                                                                              \
        step_span(rule, format, s);                                                                \
    }                                                                                              \
    void name(const void *args, uint64_t begin, uint64_t end)                                      \
    {                                                                                              \
        mo_each_span(args, begin, end, name##_span);                                               \
    }
#define CODE_REF(suffix, format)                                                                   \
    void mo_quantize##suffix(const void *args, uint64_t begin, uint64_t end)                       \
    {                                                                                              \
        quantize_chunks(format, args, begin, end);                                                 \
    }                                                                                              \
    void mo_dequantize##suffix(const void *args, uint64_t begin, uint64_t end)                     \
    {                                                                                              \
        dequantize_chunks(format, args, begin, end);                                               \
    }

STEP_REF(mo_optim_step_ref, MO_RULE_ADAMW, MO_STATE_8BIT)
STEP_REF(mo_step_adamwc8_ref, MO_RULE_ADAMW, MO_STATE_COMPANDED)
STEP_REF(mo_step_adamwc4_ref, MO_RULE_ADAMW, MO_STATE_COMPANDED4)
STEP_REF(mo_step_lion8_ref, MO_RULE_LION, MO_STATE_8BIT)
STEP_REF(mo_step_sgd8_ref, MO_RULE_SGD, MO_STATE_8BIT)
STEP_REF(mo_step_adam8_ref, MO_RULE_ADAM, MO_STATE_8BIT)
STEP_REF(mo_step_adamw16_ref, MO_RULE_ADAMW, MO_STATE_BF16)
STEP_REF(mo_step_schedule_free_ref, MO_RULE_SCHEDULE_FREE, MO_STATE_F32)
STEP_REF(mo_step_rmsprop8_ref, MO_RULE_RMSPROP, MO_STATE_8BIT)
STEP_REF(mo_step_rmspropm8_ref, MO_RULE_RMSPROP_MOMENTUM, MO_STATE_8BIT)
STEP_REF(mo_step_ademamix8_ref, MO_RULE_ADEMAMIX, MO_STATE_8BIT)
CODE_REF(_ref, MO_STATE_8BIT)
CODE_REF(c8_ref, MO_STATE_COMPANDED)
CODE_REF(c4_ref, MO_STATE_COMPANDED4)
