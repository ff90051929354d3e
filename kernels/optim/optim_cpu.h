/*
 * What the CPU forms of the optimizer's kernels share: the step on a run of elements, scalar, which
 * is the specification that the SIMD forms equal (and use themselves where a block holds values
 * that are not finite), and the forms for each instruction set.
 */
#ifndef MO_KERNELS_OPTIM_OPTIM_CPU_H
#define MO_KERNELS_OPTIM_OPTIM_CPU_H

#include "kernels/core/element_io.h"
#include "kernels/optim/optim_step.h"
#include "kernels/optim/split_weights.h"

#include <stddef.h>

/* Not inlined into SIMD forms, which use these functions rarely and need the registers. */
#if !defined(MO_SCALAR)
#define MO_SCALAR static __attribute__((noinline, unused))
#endif

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

/* 32-bit states: elements [begin, end) of the span. */
MO_SCALAR void mo_step32_scalar(uint32_t rule, const mo_optim_span *s, uint64_t begin, uint64_t end)
{
    float *m = (float *)s->m, *v = (float *)s->v, *slow = (float *)s->slow, none = 0.0f;
    for (uint64_t i = begin; i < end; i++) {
        float zero = 0.0f, *first = m != 0 ? &m[i] : &zero;
        float g = mo_load_element(s->gradient, i, s->gradient_dtype);
        float p = mo_load_element(s->parameter, i, s->parameter_dtype);
        float *second = v != 0 ? &v[i] : &none, *third = slow != 0 ? &slow[i] : &none;
        mo_optim_store(s, i, mo_rule_update(rule, &s->coef, g, p, first, second, third));
        *first = mo_f32_one_nan(*first);
        *second = mo_f32_one_nan(*second);
        *third = mo_f32_one_nan(*third);
    }
}

/* bf16 states of a rule with two moments: elements [begin, end) of the span. */
MO_SCALAR void mo_step16_scalar(uint32_t rule, const mo_optim_span *s, uint64_t begin, uint64_t end)
{
    uint16_t *m = (uint16_t *)s->m, *v = (uint16_t *)s->v;
    uint32_t key = mo_moment_key(s->coef.step);
    for (uint64_t i = begin; i < end; i++) {
        float first = mo_bf16_to_f32(m[i]), second = mo_bf16_to_f32(v[i]), none = 0.0f;
        float g = mo_load_element(s->gradient, i, s->gradient_dtype);
        float p = mo_load_element(s->parameter, i, s->parameter_dtype);
        mo_optim_store(s, i, mo_rule_update(rule, &s->coef, g, p, &first, &second, &none));
        mo_moment_codes codes =
            mo_moment_codes_of(mo_f32_one_nan(first), mo_f32_one_nan(second), key);
        m[i] = codes.m;
        v[i] = codes.v;
    }
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
    mo_block_scale scale = mo_format_scale(format, is_signed, largest);
    for (uint32_t i = 0; i < n; i++)
        mo_format_write(format, is_signed, codes, begin + i,
                        mo_format_code(format, is_signed, values[i], &scale));
    *out_scale = scale.absmax;
}

/* Coded states: the block that starts at element `begin` of the span. */
MO_SCALAR void mo_step_block_scalar(uint32_t rule, uint32_t format, const mo_optim_span *s,
                                    uint64_t begin)
{
    float m[MO_BLOCK_MOST], v[MO_BLOCK_MOST], slow[MO_BLOCK_MOST], none = 0.0f;
    const uint32_t n = mo_block_length(s->block, s->count, begin);
    m[0] = 0.0f; /* for compilers: n is not 0 */
    uint64_t block = begin / s->block;
    int second = mo_rule_has_second(rule), third = mo_rule_has_slow(rule);
    mo_block_decode(format, mo_rule_first_signed(rule), (const uint8_t *)s->m, s->absmax1[block],
                    begin, n, m);
    if (second)
        mo_block_decode(format, 0, (const uint8_t *)s->v, s->absmax2[block], begin, n, v);
    if (third)
        mo_block_decode(format, 1, (const uint8_t *)s->slow, s->slow_absmax[block], begin, n, slow);
    for (uint32_t i = 0; i < n; i++) {
        float g = mo_load_element(s->gradient, begin + i, s->gradient_dtype);
        float p = mo_load_element(s->parameter, begin + i, s->parameter_dtype);
        mo_optim_store(s, begin + i,
                       mo_rule_update(rule, &s->coef, g, p, &m[i], second ? &v[i] : &none,
                                      third ? &slow[i] : &none));
    }
    mo_block_encode(format, mo_rule_first_signed(rule), m, begin, n, (uint8_t *)s->m,
                    &s->absmax1[block]);
    if (second)
        mo_block_encode(format, 0, v, begin, n, (uint8_t *)s->v, &s->absmax2[block]);
    if (third)
        mo_block_encode(format, 1, slow, begin, n, (uint8_t *)s->slow, &s->slow_absmax[block]);
}

/* Elements [at, at + n) of a span; `at` is the first of a block. */
static inline mo_optim_span mo_optim_part(const mo_optim_span *s, uint64_t at, uint64_t n)
{
    mo_optim_span part = *s;
    uint64_t state = mo_format_bytes(s->format, at), block = at / s->block;
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

/* Split weights: n of them to fp32 and back, in loops that compilers turn into vectors. */
static inline void mo_join_weights(const uint16_t *restrict weights, const void *restrict residuals,
                                   uint32_t bytes, uint64_t n, float *restrict values)
{
    const uint8_t *narrow = residuals;
    const uint16_t *wide = residuals;
    if (bytes == 1)
        for (uint64_t i = 0; i < n; i++)
            values[i] = mo_weight_join(weights[i], (uint32_t)narrow[i] << 8);
    else
        for (uint64_t i = 0; i < n; i++)
            values[i] = mo_weight_join(weights[i], wide[i]);
}

static inline void mo_split_weights(const float *restrict values, uint64_t n,
                                    uint16_t *restrict weights, void *restrict residuals,
                                    uint32_t bytes)
{
    uint8_t *narrow = residuals;
    uint16_t *wide = residuals;
    if (bytes == 1)
        for (uint64_t i = 0; i < n; i++) {
            mo_split_weight split = mo_weight_split(values[i], 1);
            weights[i] = split.weight;
            narrow[i] = (uint8_t)(split.residual >> 8);
        }
    else
        for (uint64_t i = 0; i < n; i++) {
            mo_split_weight split = mo_weight_split(values[i], 2);
            weights[i] = split.weight;
            wide[i] = split.residual;
        }
}

/* A span of split weights: some blocks at a time become fp32 in the first-level cache, are stepped
 * there as fp32 parameters, and are split again. */
MO_SCALAR void mo_step_split(const mo_optim_span *s, void (*step)(const mo_optim_span *))
{
    enum { RUN = MO_BLOCK_MOST };
    _Alignas(64) float values[RUN];
    for (uint64_t at = 0; at < s->count; at += RUN) {
        uint64_t n = s->count - at < RUN ? s->count - at : (uint64_t)RUN;
        mo_optim_span part = mo_optim_part(s, at, n);
        uint16_t *weights = part.parameter;
        mo_join_weights(weights, part.residual, s->residual_bytes, n, values);
        part.parameter = values;
        part.parameter_dtype = MO_DTYPE_F32;
        step(&part);
        mo_split_weights(values, n, weights, part.residual, s->residual_bytes);
    }
}

/* A launch: `step` for the span of each chunk, with 32-bit or coded states. shift: of blocks; 0:
 * the format's own. */
static inline void mo_each_sized_span(const mo_optim_step_args *a, uint32_t shift, uint64_t begin,
                                      uint64_t end, void (*step)(const mo_optim_span *))
{
    mo_optim_span span;
    for (uint64_t chunk = begin; chunk < end && !a->control->skip; chunk++) {
        mo_optim_sized_span(a, shift, chunk, &span);
        if (span.residual == NULL)
            step(&span);
        else
            mo_step_split(&span, step);
    }
}

static inline void mo_each_span(const mo_optim_step_args *a, uint64_t begin, uint64_t end,
                                void (*step)(const mo_optim_span *))
{
    mo_each_sized_span(a, 0, begin, end, step);
}

/* Elements [first, first + n), one block. */
MO_SCALAR void mo_quantize_block_scalar(uint32_t format, const mo_blockcode_args *a, uint64_t first,
                                        uint32_t n)
{
    float values[MO_BLOCK_MOST];
    for (uint32_t i = 0; i < n; i++)
        values[i] = mo_load_element(a->values, first + i, a->dtype);
    mo_block_encode(format, a->is_signed != 0, values, first, n, a->codes,
                    &a->absmax[first / mo_blockcode_block(format, a)]);
}

MO_SCALAR void mo_dequantize_run_scalar(uint32_t format, const mo_blockcode_args *a, uint64_t first,
                                        uint64_t last)
{
    const uint32_t block = mo_blockcode_block(format, a);
    for (uint64_t i = first; i < last;) {
        float scale = a->absmax[i / block];
        uint64_t end = i / block * block + block;
        for (end = end < last ? end : last; i < end; i++) {
            uint32_t code = mo_format_read(format, a->codes, i);
            float value = mo_format_value(format, a->is_signed != 0, code, scale);
            mo_store_element(a->values, i, a->dtype, mo_f32_one_nan(value));
        }
    }
}

/* --- the forms ------------------------------------------------------------------------------- */

void mo_adamw32_span_avx2(const mo_optim_span *span);
void mo_lion32_span_avx2(const mo_optim_span *span);
void mo_sgd32_span_avx2(const mo_optim_span *span);
void mo_adam32_span_avx2(const mo_optim_span *span);
void mo_rmsprop32_span_avx2(const mo_optim_span *span);
void mo_rmspropm32_span_avx2(const mo_optim_span *span);
void mo_ademamix32_span_avx2(const mo_optim_span *span);
void mo_adamw32_span_avx512(const mo_optim_span *span);

/* 8-bit states of any types, and 32-bit states. */
#define MO_DECLARE_SPAN(name)                                                                      \
    void name##_avx512(const mo_optim_span *span);                                                 \
    void name##_avx512vbmi(const mo_optim_span *span);

MO_DECLARE_SPAN(mo_adam8_span)
MO_DECLARE_SPAN(mo_lion8_span)
MO_DECLARE_SPAN(mo_sgd8_span)
MO_DECLARE_SPAN(mo_rmsprop8_span)
MO_DECLARE_SPAN(mo_rmspropm8_span)
MO_DECLARE_SPAN(mo_ademamix8_span)

#define MO_DECLARE_FORM(name) void name(const void *args, uint64_t begin, uint64_t end);
#define MO_DECLARE_FORMS(name)                                                                     \
    MO_DECLARE_FORM(name##_ref)                                                                    \
    MO_DECLARE_FORM(name##_neon)                                                                   \
    MO_DECLARE_FORM(name##_avx2)                                                                   \
    MO_DECLARE_FORM(name##_avx512)                                                                 \
    MO_DECLARE_FORM(name##_avx512vbmi)

MO_DECLARE_FORM(mo_upload_ref)
MO_DECLARE_FORM(mo_prologue_ref)
MO_DECLARE_FORMS(mo_optim_step)
MO_DECLARE_FORM(mo_optim_step_avx512bf16)
MO_DECLARE_FORM(mo_step_adam8_avx512bf16)
MO_DECLARE_FORM(mo_step_lion8_avx512bf16)
MO_DECLARE_FORM(mo_step_sgd8_avx512bf16)
MO_DECLARE_FORM(mo_step_rmsprop8_avx512bf16)
MO_DECLARE_FORM(mo_step_rmspropm8_avx512bf16)
MO_DECLARE_FORM(mo_step_ademamix8_avx512bf16)
MO_DECLARE_FORM(mo_step_adamw4_avx512bf16)
MO_DECLARE_FORM(mo_step_adamwf8_avx512bf16)
MO_DECLARE_FORM(mo_step_adamwc8_avx512bf16)
MO_DECLARE_FORM(mo_step_adamwc4_avx512bf16)
MO_DECLARE_FORMS(mo_step_adamw4)
MO_DECLARE_FORMS(mo_step_adamwf8)
MO_DECLARE_FORMS(mo_step_adamwc8)
MO_DECLARE_FORMS(mo_step_adamwc4)
MO_DECLARE_FORMS(mo_step_lion8)
MO_DECLARE_FORMS(mo_step_sgd8)
MO_DECLARE_FORMS(mo_step_adam8)
MO_DECLARE_FORMS(mo_step_adamw16)
MO_DECLARE_FORMS(mo_step_schedule_free)
MO_DECLARE_FORMS(mo_step_rmsprop8)
MO_DECLARE_FORMS(mo_step_rmspropm8)
MO_DECLARE_FORMS(mo_step_ademamix8)
MO_DECLARE_FORMS(mo_sized_step8)
MO_DECLARE_FORMS(mo_sized_step4)
MO_DECLARE_FORMS(mo_sized_stepf8)
MO_DECLARE_FORMS(mo_sized_stepc8)
MO_DECLARE_FORMS(mo_sized_stepc4)
MO_DECLARE_FORMS(mo_sized_quantize8)
MO_DECLARE_FORMS(mo_sized_dequantize8)
MO_DECLARE_FORMS(mo_sized_quantize4)
MO_DECLARE_FORMS(mo_sized_dequantize4)
MO_DECLARE_FORMS(mo_sized_quantizef8)
MO_DECLARE_FORMS(mo_sized_dequantizef8)
MO_DECLARE_FORMS(mo_sized_quantizec8)
MO_DECLARE_FORMS(mo_sized_quantizec4)
MO_DECLARE_FORMS(mo_sized_dequantizec8)
MO_DECLARE_FORMS(mo_sized_dequantizec4)
MO_DECLARE_FORMS(mo_quantize)
MO_DECLARE_FORMS(mo_dequantize)
MO_DECLARE_FORMS(mo_quantize4)
MO_DECLARE_FORMS(mo_dequantize4)
MO_DECLARE_FORMS(mo_quantizef8)
MO_DECLARE_FORMS(mo_dequantizef8)
MO_DECLARE_FORMS(mo_quantizec8)
MO_DECLARE_FORMS(mo_quantizec4)
MO_DECLARE_FORMS(mo_dequantizec8)
MO_DECLARE_FORMS(mo_dequantizec4)

#endif
