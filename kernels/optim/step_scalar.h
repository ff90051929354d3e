/*
 * The step on a run of elements and a block's coding, scalar: the specification, which the SIMD
 * forms equal (and use themselves where a block holds values that are not finite or is shorter).
 */
#include "kernels/optim/optim_forms.h"

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

/* Coded states: the block that starts at element `begin` of the span. */
MO_SCALAR void mo_step_block_scalar(uint32_t rule, uint32_t format, const mo_optim_span *s,
                                    uint64_t begin)
{
    float m[MO_BLOCK_SIZE], v[MO_BLOCK_SIZE], slow[MO_BLOCK_SIZE], none = 0.0f;
    const uint32_t n = mo_block_length(mo_format_block(format), s->count, begin);
    m[0] = 0.0f; /* for compilers: n is not 0 */
    uint64_t block = begin / mo_format_block(format);
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
        mo_block_encode(format, MO_SLOW, slow, begin, n, (uint8_t *)s->slow,
                        &s->slow_absmax[block]);
}

/* Elements [first, first + n), one block. */
MO_SCALAR void mo_quantize_block_scalar(uint32_t format, const mo_blockcode_args *a, uint64_t first,
                                        uint32_t n)
{
    float values[MO_BLOCK_SIZE];
    for (uint32_t i = 0; i < n; i++)
        values[i] = mo_load_element(a->values, first + i, a->dtype);
    mo_block_encode(format, a->is_signed != 0, values, first, n, a->codes,
                    &a->absmax[first / mo_format_block(format)]);
}

MO_SCALAR void mo_dequantize_run_scalar(uint32_t format, const mo_blockcode_args *a, uint64_t first,
                                        uint64_t last)
{
    const uint32_t block = mo_format_block(format);
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
