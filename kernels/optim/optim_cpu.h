/*
 * What the CPU forms of the optimizer's kernels share: spans and their parts, split weights, and
 * the names of all forms.
 */
#ifndef MO_KERNELS_OPTIM_OPTIM_CPU_H
#define MO_KERNELS_OPTIM_OPTIM_CPU_H

#include "kernels/core/element_io.h"
#include "kernels/optim/optim_step.h"
#include "kernels/optim/split_weights.h"

#include <stddef.h>

/* Writes the new parameter: the one rounding of the step. i is relative to the span. */
static inline void mo_optim_store(const mo_optim_span *s, uint64_t i, float value)
{
    if (s->stochastic && s->parameter_dtype != MO_DTYPE_F32) {
        uint32_t random = mo_random_element(&s->random, s->start + i);
        ((uint16_t *)s->parameter)[i] = s->parameter_dtype == MO_DTYPE_BF16
                                            ? mo_f32_to_bf16_stochastic(value, random)
                                            : mo_f32_to_f16_stochastic(value, random);
    } else {
        mo_store_element(s->parameter, i, s->parameter_dtype, value);
    }
    if (s->copy != NULL)
        mo_store_element(s->copy, i, s->copy_dtype, value);
}

/* Elements of the block of `size` that starts at element `begin` of `count`. */
static inline uint32_t mo_block_length(uint32_t size, uint64_t count, uint64_t begin)
{
    return count - begin < size ? (uint32_t)(count - begin) : size;
}

/* Decodes the elements of a block from `begin` on. */
static inline void mo_block_decode(uint32_t format, int is_signed, const uint8_t *codes,
                                   float scale, uint64_t begin, uint32_t n, float *values)
{
    for (uint32_t i = 0; i < n; i++)
        values[i] =
            mo_format_value(format, is_signed, mo_format_read(format, codes, begin + i), scale);
}

static inline void mo_block_encode(uint32_t format, int is_signed, const float *values,
                                   uint64_t begin, uint32_t n, uint8_t *codes, float *out_scale)
{
    uint32_t largest = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = mo_f32_bits(values[i]) & 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    mo_block_scale scale = mo_block_scale_of(largest);
    for (uint32_t i = 0; i < n; i++)
        mo_format_write(format, is_signed, codes, begin + i,
                        mo_format_code(format, is_signed, values[i], &scale));
    *out_scale = scale.absmax;
}

/* Elements [at, at + n) of a span; `at` is the first of a block. */
static inline mo_optim_span mo_optim_part(const mo_optim_span *s, uint64_t at, uint64_t n)
{
    mo_optim_span part = *s;
    uint64_t state = mo_format_bytes(s->format, at), block = at / mo_format_block(s->format);
    part.parameter = mo_element_at(s->parameter, at, s->parameter_dtype);
    part.copy = mo_element_at(s->copy, at, s->copy_dtype);
    part.gradient = mo_element_at(s->gradient, at, s->gradient_dtype);
    part.m = s->m != NULL ? (unsigned char *)s->m + state : NULL;
    part.v = s->v != NULL ? (unsigned char *)s->v + state : NULL;
    part.slow = s->slow != NULL ? (unsigned char *)s->slow + state : NULL;
    part.absmax1 = s->absmax1 != NULL ? s->absmax1 + block : NULL;
    part.absmax2 = s->absmax2 != NULL ? s->absmax2 + block : NULL;
    part.slow_absmax = s->slow_absmax != NULL ? s->slow_absmax + block : NULL;
    if (s->residual != NULL)
        part.residual = (unsigned char *)s->residual + at * s->residual_bytes;
    part.start = s->start + at;
    part.count = n;
    return part;
}

/* --- what forms call in files of their own (optim_forms.h) ------------------------------------ */

/* step_spans.h; a launch: `step` for the span of each chunk. */
#define MO_DECLARE_SPAN_CALLS(isa)                                                                 \
    void mo_each_span_##isa(const mo_optim_step_args *a, uint64_t begin, uint64_t end,             \
                            void (*step)(const mo_optim_span *));
MO_DECLARE_SPAN_CALLS(neon)
MO_DECLARE_SPAN_CALLS(avx2)
MO_DECLARE_SPAN_CALLS(avx512)

/* step_scalar.h for SIMD forms. */
#define MO_DECLARE_SCALAR_CALLS(isa)                                                               \
    void mo_step32_scalar_##isa(uint32_t rule, const mo_optim_span *s, uint64_t begin,             \
                                uint64_t end);                                                     \
    void mo_step16_scalar_##isa(uint32_t rule, const mo_optim_span *s, uint64_t begin,             \
                                uint64_t end);                                                     \
    void mo_step_block_scalar_##isa(uint32_t rule, uint32_t format, const mo_optim_span *s,        \
                                    uint64_t begin);                                               \
    void mo_quantize_block_scalar_##isa(uint32_t format, const mo_blockcode_args *a,               \
                                        uint64_t first, uint32_t n);                               \
    void mo_dequantize_run_scalar_##isa(uint32_t format, const mo_blockcode_args *a,               \
                                        uint64_t first, uint64_t last);
MO_DECLARE_SCALAR_CALLS(neon)
MO_DECLARE_SCALAR_CALLS(avx2)

/* --- the forms ------------------------------------------------------------------------------- */

/* 32-bit states of the rules that have coded ones. */
void mo_span32_neon(uint32_t rule, const mo_optim_span *s);
void mo_span32_avx2(uint32_t rule, const mo_optim_span *s);
void mo_span32_avx512(uint32_t rule, const mo_optim_span *s);
/* Coded ones; forms of AVX-512 with BF16 leave some types to those of a lower set. */
#define MO_DECLARE_SPANS(kernel, rule, format)                                                     \
    void mo_##kernel##_span_neon(const mo_optim_span *s);                                          \
    void mo_##kernel##_span_avx2(const mo_optim_span *s);                                          \
    void mo_##kernel##_span_avx512(const mo_optim_span *s);                                        \
    void mo_##kernel##_span_avx512vbmi(const mo_optim_span *s);                                    \
    void mo_##kernel##_span_avx512bf16(const mo_optim_span *s);
MO_EACH_STEP_CODED(MO_DECLARE_SPANS)

#define MO_DECLARE_FORM(name) void name(const void *args, uint64_t begin, uint64_t end);
#define MO_DECLARE_FORMS(name)                                                                     \
    MO_DECLARE_FORM(name##_ref)                                                                    \
    MO_DECLARE_FORM(name##_neon)                                                                   \
    MO_DECLARE_FORM(name##_avx2)                                                                   \
    MO_DECLARE_FORM(name##_avx512)                                                                 \
    MO_DECLARE_FORM(name##_avx512vbmi)                                                             \
    MO_DECLARE_FORM(name##_avx512bf16)
#define MO_DECLARE_STEP(kernel, rule, format) MO_DECLARE_FORMS(mo_step_##kernel)
#define MO_DECLARE_CODE(suffix, format)                                                            \
    MO_DECLARE_FORMS(mo_quantize##suffix)                                                          \
    MO_DECLARE_FORMS(mo_dequantize##suffix)
MO_DECLARE_FORM(mo_upload_ref)
MO_DECLARE_FORM(mo_prologue_ref)
MO_EACH_STEP(MO_DECLARE_STEP)
MO_EACH_CODE(MO_DECLARE_CODE)

#endif
