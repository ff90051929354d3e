/*
 * One step on a run of elements, scalar: the specification that the SIMD forms equal, and what they
 * use themselves where a block holds values that are not finite.
 */
#ifndef MO_KERNELS_OPTIM_SCALAR_H
#define MO_KERNELS_OPTIM_SCALAR_H

#include "kernels/optim/optim_step.h"
#include "kernels/optim/rules.h"
#include "kernels/optim/stateformat.h"

/* A chunk of a tensor with all that a step needs; pointers are to its first element. */
typedef struct mo_optim_span {
    void *parameter;
    void *copy; /* or NULL */
    const void *gradient;
    void *m; /* NULL: nothing is kept here, nor in v */
    void *v;
    float *absmax1; /* NULL: 32-bit states */
    float *absmax2; /* and v: NULL where the rule has one moment */
    uint64_t start; /* index of the first element in its tensor, a multiple of a chunk */
    uint64_t count;
    int32_t parameter_dtype, copy_dtype, gradient_dtype;
    uint32_t stochastic;
    mo_rule_coef coef;
    mo_random_stream random;
} mo_optim_span;

MO_HD static inline float mo_load_element(const void *data, uint64_t i, int32_t dtype)
{
    if (dtype == MO_DTYPE_F32)
        return ((const float *)data)[i];
    uint16_t code = ((const uint16_t *)data)[i];
    return dtype == MO_DTYPE_BF16 ? mo_bf16_to_f32(code) : mo_f16_to_f32(code);
}

MO_HD static inline void mo_store_element(void *data, uint64_t i, int32_t dtype, float value)
{
    if (dtype == MO_DTYPE_F32)
        ((float *)data)[i] = value;
    else
        ((uint16_t *)data)[i] =
            dtype == MO_DTYPE_BF16 ? mo_f32_to_bf16(value) : mo_f32_to_f16(value);
}

MO_HD static inline void mo_store_element_stochastic(void *data, uint64_t i, int32_t dtype,
                                                     float value, uint32_t random)
{
    if (dtype == MO_DTYPE_F32)
        ((float *)data)[i] = value;
    else
        ((uint16_t *)data)[i] = dtype == MO_DTYPE_BF16 ? mo_f32_to_bf16_stochastic(value, random)
                                                       : mo_f32_to_f16_stochastic(value, random);
}

/* The prologue's verdict: unscale and clip in one factor; sets the control block and the norm. */
MO_HD static inline double mo_optim_verdict(const mo_optim_prologue_args *a)
{
    const uint64_t infinity = 0x7ff0000000000000u;
    double factor = a->scale != 0 ? (double)(float)(1.0 / (double)*a->scale) : 1.0;
    double norm = a->square_sum != 0 ? mo_sqrt(*a->square_sum) * factor : 0.0;
    int finite = a->square_sum == 0 || (mo_f64_bits(*a->square_sum) & infinity) != infinity;
    if (!finite && a->found_inf != 0)
        *a->found_inf = 1.0f;
    a->control->skip = (a->check && !finite) || (a->found_inf != 0 && *a->found_inf != 0.0f);
    if (a->out_norm != 0)
        *a->out_norm = norm != norm ? mo_f32_from_bits(MO_F32_NAN_BITS) : (float)norm;
    if (a->max_norm > 0.0 && a->max_norm < norm + 1e-6)
        factor *= a->max_norm / (norm + 1e-6);
    return factor;
}

/* ... and its coefficients of gradient i. */
MO_HD static inline void mo_optim_prepare(const mo_optim_prologue_args *a, uint32_t i,
                                          double factor)
{
    const mo_optim_tensor *t = &a->tensors[a->gradients[i].reserved];
    mo_rule_group group = a->groups[t->group];
    if (group.device_lr != 0)
        group.lr = (double)MO_AT(const float, group.device_lr);
    a->coefs[i] = mo_rule_coef_of(a->rule, &group, MO_AT(uint64_t, t->steps) + 1, factor);
}

/* Writes the new parameter: the one rounding of the step. i is relative to the span. */
MO_HD static inline void mo_optim_store(const mo_optim_span *s, uint64_t i, float value)
{
    if (s->stochastic && s->parameter_dtype != MO_DTYPE_F32)
        mo_store_element_stochastic(s->parameter, i, s->parameter_dtype, value,
                                    mo_random_element(&s->random, s->start + i));
    else
        mo_store_element(s->parameter, i, s->parameter_dtype, value);
    if (s->copy != 0)
        mo_store_element(s->copy, i, s->copy_dtype, value);
}

MO_HD static inline void *mo_element_at(const void *data, uint64_t i, int32_t dtype)
{
    return data == 0 ? 0 : (unsigned char *)(uintptr_t)data + i * mo_element_size((uint32_t)dtype);
}

/* Fills the span of a chunk. */
MO_HD static inline void mo_optim_span_of(const mo_optim_step_args *a, uint64_t chunk,
                                          mo_optim_span *s)
{
    uint32_t index =
        mo_chunk_segment(&a->gradients->first_chunk, sizeof *a->gradients, a->count, chunk);
    const mo_segment *g = &a->gradients[index];
    const mo_optim_tensor *t = &a->tensors[g->reserved];
    uint64_t start = (chunk - g->first_chunk) * MO_CHUNK_ELEMENTS;
    uint32_t format = t->absmax1 != 0 ? t->format : (uint32_t)MO_STATE_F32;
    uint64_t state = mo_format_bytes(format, start), block = start / mo_format_block(format);
    s->parameter = mo_element_at(t->parameter, start, t->parameter_dtype);
    s->copy = mo_element_at(t->copy, start, t->copy_dtype);
    s->gradient = mo_element_at(g->data, start, (int32_t)g->dtype);
    s->m = t->m != 0 ? (unsigned char *)t->m + state : 0;
    s->v = t->v != 0 ? (unsigned char *)t->v + state : 0;
    s->absmax1 = t->absmax1 != 0 ? t->absmax1 + block : 0;
    s->absmax2 = t->absmax2 != 0 ? t->absmax2 + block : 0;
    s->start = start;
    s->count = mo_chunk_length(g->count, chunk - g->first_chunk);
    s->parameter_dtype = t->parameter_dtype;
    s->copy_dtype = t->copy_dtype;
    s->gradient_dtype = (int32_t)g->dtype;
    s->stochastic = a->stochastic;
    s->coef = a->coefs[index];
    s->random = mo_random_stream_of(a->seed, mo_steps_taken(s->coef.step), g->reserved);
    if (start == 0) /* one item of each tensor counts the step; without moments nothing can begin */
        MO_AT(uint64_t, t->steps) = t->m != 0 ? s->coef.step : mo_steps_taken(s->coef.step);
    if (s->coef.one_minus_beta2 == 0.0f) {
        s->m = s->v = 0;
        s->absmax1 = s->absmax2 = 0;
    }
}

/* 32-bit states: elements [begin, end) of the span. */
MO_HD static inline void mo_step32_scalar(uint32_t rule, const mo_optim_span *s, uint64_t begin,
                                          uint64_t end)
{
    float *m = (float *)s->m, *v = (float *)s->v, none = 0.0f;
    for (uint64_t i = begin; i < end; i++) {
        float zero = 0.0f, *first = m != 0 ? &m[i] : &zero;
        float g = mo_load_element(s->gradient, i, s->gradient_dtype);
        float p = mo_load_element(s->parameter, i, s->parameter_dtype);
        float *second = v != 0 ? &v[i] : &none;
        mo_optim_store(s, i, mo_rule_update(rule, &s->coef, g, p, first, second));
        *first = mo_f32_one_nan(*first);
        *second = mo_f32_one_nan(*second);
    }
}

/* Elements of the block that starts at element `begin` of `count`. */
MO_HD static inline uint32_t mo_block_length(uint32_t format, uint64_t count, uint64_t begin)
{
    uint32_t block = mo_format_block(format);
    return count - begin < block ? (uint32_t)(count - begin) : block;
}

/* Decodes the elements of a block from `begin` on. */
MO_HD static inline void mo_block_decode(uint32_t format, int is_signed, const uint8_t *codes,
                                         const float *scales, uint64_t begin, uint32_t n,
                                         float *values)
{
    float scale = scales[begin / mo_format_block(format)];
    for (uint32_t i = 0; i < n; i++)
        values[i] =
            mo_format_value(format, is_signed, mo_format_read(format, codes, begin + i), scale);
}

MO_HD static inline void mo_block_encode(uint32_t format, int is_signed, const float *values,
                                         uint64_t begin, uint32_t n, uint8_t *codes, float *scales)
{
    uint32_t largest = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = mo_f32_bits(values[i]) & 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    mo_block_scale scale = mo_format_scale(format, largest);
    for (uint32_t i = 0; i < n; i++)
        mo_format_write(format, is_signed, codes, begin + i,
                        mo_format_code(format, is_signed, values[i], &scale));
    scales[begin / mo_format_block(format)] = scale.absmax;
}

/* Coded states: the block that starts at element `begin` of the span. */
MO_HD static inline void mo_step_block_scalar(uint32_t rule, uint32_t format,
                                              const mo_optim_span *s, uint64_t begin)
{
    float m[MO_BLOCK_SIZE] = {0}, v[MO_BLOCK_SIZE] = {0};
    uint32_t n = mo_block_length(format, s->count, begin);
    int second = mo_rule_has_second(rule);
    mo_block_decode(format, 1, (const uint8_t *)s->m, s->absmax1, begin, n, m);
    if (second)
        mo_block_decode(format, 0, (const uint8_t *)s->v, s->absmax2, begin, n, v);
    for (uint32_t i = 0; i < n; i++) {
        float g = mo_load_element(s->gradient, begin + i, s->gradient_dtype);
        float p = mo_load_element(s->parameter, begin + i, s->parameter_dtype);
        mo_optim_store(s, begin + i, mo_rule_update(rule, &s->coef, g, p, &m[i], &v[i]));
    }
    mo_block_encode(format, 1, m, begin, n, (uint8_t *)s->m, s->absmax1);
    if (second)
        mo_block_encode(format, 0, v, begin, n, (uint8_t *)s->v, s->absmax2);
}

MO_HD static inline void mo_adamw32_scalar(const mo_optim_span *s, uint64_t begin, uint64_t end)
{
    mo_step32_scalar(MO_RULE_ADAMW, s, begin, end);
}

MO_HD static inline void mo_adamw8_scalar(const mo_optim_span *s, uint64_t begin)
{
    mo_step_block_scalar(MO_RULE_ADAMW, MO_STATE_8BIT, s, begin);
}

/* Elements [first, first + n), one block. */
MO_HD static inline void mo_quantize_block_scalar(uint32_t format, const mo_blockcode_args *a,
                                                  uint64_t first, uint32_t n)
{
    float values[MO_BLOCK_SIZE] = {0};
    for (uint32_t i = 0; i < n; i++)
        values[i] = mo_load_element(a->values, first + i, a->dtype);
    mo_block_encode(format, a->is_signed != 0, values, first, n, a->codes, a->absmax);
}

MO_HD static inline void mo_quantize_scalar(const mo_blockcode_args *a, uint64_t first, uint32_t n)
{
    mo_quantize_block_scalar(MO_STATE_8BIT, a, first, n);
}

MO_HD static inline void mo_dequantize_run_scalar(uint32_t format, const mo_blockcode_args *a,
                                                  uint64_t first, uint64_t last)
{
    for (uint64_t i = first; i < last; i++) {
        uint32_t code = mo_format_read(format, a->codes, i);
        float value = mo_format_value(format, a->is_signed != 0, code,
                                      a->absmax[i / mo_format_block(format)]);
        mo_store_element(a->values, i, a->dtype, mo_f32_one_nan(value));
    }
}

MO_HD static inline void mo_dequantize_scalar(const mo_blockcode_args *a, uint64_t first,
                                              uint64_t last)
{
    mo_dequantize_run_scalar(MO_STATE_8BIT, a, first, last);
}

#endif
