/*
 * The step in blocks of 256 elements (128 with 4-bit states), for any rule and format, over the
 * vectors of one instruction set: step_simd_avx2.c and step_simd_avx512.h define the names below
 * and include this. A block is worked on as fp32 in the first-level cache: load and decode, update,
 * code, round and store. Nothing is written before the block is known to be finite; the scalar form
 * does a block that is not, and a shorter last one.
 *
 * They define MO_LANES_N; VF and VI, vectors of floats and of int32; VM, what compares give; and
 * the functions v_… as used here. Rules and formats are constants to the compiler.
 */
#include "kernels/optim/optim_cpu.h"

#include <string.h>

enum { LANE_BLOCK = MO_BLOCK_SIZE };

typedef struct mo_lane_coef {
    VF beta1, one_minus_beta1, beta2, one_minus_beta2, decay, rate, factor, eps;
    int nesterov;
} mo_lane_coef;

MO_INLINE mo_lane_coef mo_lane_coef_of(const mo_rule_coef *c)
{
    return (mo_lane_coef){v_set(c->beta1),  v_set(c->one_minus_beta1),
                          v_set(c->beta2),  v_set(c->one_minus_beta2),
                          v_set(c->decay),  v_set(c->rate),
                          v_set(c->factor), v_set(c->eps),
                          c->eps != 0.0f};
}

/* --- rules ----------------------------------------------------------------------------------- */

MO_INLINE VF lane_one_nan(VF x)
{
    return v_select(v_is_nan(x), v_bits(v_seti((int)MO_F32_NAN_BITS)), x);
}

MO_INLINE VF lane_adamw(const mo_lane_coef *c, VF g, VF p, VF *m, VF *v)
{
    VF h = v_mul(g, c->factor);
    *m = v_fma(c->beta1, *m, v_mul(c->one_minus_beta1, h));
    *v = v_fma(c->beta2, *v, v_mul(v_mul(c->one_minus_beta2, h), h));
    *v = v_min(v_set(0x1.fffffep127f), *v); /* the second operand where one is NaN */
    VF u = v_div(*m, v_add(v_sqrt(*v), c->eps));
    return v_fma(c->rate, u, v_fma(c->decay, p, p));
}

MO_INLINE VF lane_lion(const mo_lane_coef *c, VF g, VF p, VF *m)
{
    VF h = v_mul(g, c->factor);
    VF x = v_fma(c->beta1, *m, v_mul(c->one_minus_beta1, h));
    VF u = v_select(v_lt(v_set(0.0f), x), v_set(1.0f), x);
    u = v_select(v_lt(x, v_set(0.0f)), v_set(-1.0f), u);
    *m = v_fma(c->beta2, *m, v_mul(c->one_minus_beta2, h));
    return v_fma(c->rate, u, v_fma(c->decay, p, p));
}

MO_INLINE VF lane_sgd(const mo_lane_coef *c, VF g, VF p, VF *m)
{
    VF h = v_mul(g, c->factor);
    VF d = v_fma(c->decay, p, h);
    VF u = v_fma(c->beta1, *m, v_mul(c->one_minus_beta1, d));
    *m = u;
    if (c->nesterov)
        u = v_fma(c->beta1, u, d);
    return v_fma(c->rate, u, p);
}

/* mo_rule_update of n elements, a multiple of MO_LANES_N. */
MO_INLINE void lane_update(uint32_t rule, const mo_lane_coef *c, const float *g, float *p, float *m,
                           float *v, uint64_t n)
{
    for (uint64_t i = 0; i < n; i += MO_LANES_N) {
        VF gradient = v_load(g + i), parameter = v_load(p + i), first = v_load(m + i);
        if (rule == MO_RULE_ADAMW) {
            VF second = v_load(v + i);
            parameter = lane_adamw(c, gradient, parameter, &first, &second);
            v_store(v + i, lane_one_nan(second));
        } else if (rule == MO_RULE_LION) {
            parameter = lane_lion(c, gradient, parameter, &first);
        } else {
            parameter = lane_sgd(c, gradient, parameter, &first);
        }
        v_store(m + i, lane_one_nan(first));
        v_store(p + i, lane_one_nan(parameter));
    }
}

/* --- formats --------------------------------------------------------------------------------- */

/* Two codes a byte to one, the even element from the upper half, and back. */
MO_INLINE void lane_unpack4(const uint8_t *pairs, uint8_t *codes)
{
    for (int i = 0; i < MO_BLOCK4_SIZE / 2; i++) {
        codes[2 * i] = pairs[i] >> 4;
        codes[2 * i + 1] = pairs[i] & 15;
    }
}

MO_INLINE void lane_pack4(const uint8_t *codes, uint8_t *pairs)
{
    for (int i = 0; i < MO_BLOCK4_SIZE / 2; i++)
        pairs[i] = (uint8_t)(codes[2 * i] << 4 | codes[2 * i + 1]);
}

/* e4m3 by the exponents of fp32: the bits of the magnitude are those of value * 2^-120. */
MO_INLINE VF lane_value_f8(VI code)
{
    VI magnitude = v_and(code, v_seti(0x7f));
    VF x = v_mul(v_bits(v_sll(magnitude, 20)), v_set(0x1p120f));
    x = v_select(v_eqi(magnitude, v_seti(0x7f)), v_bits(v_seti((int)MO_F32_NAN_BITS)), x);
    return v_bits(v_or(v_ints(x), v_sll(v_and(code, v_seti(0x80)), 24)));
}

/* Of a finite value: mo_f32_to_e4m3 that saturates. Below 2^-6 adding 2^14 rounds to a multiple of
 * 2^-9, the quantum there. */
MO_INLINE VI lane_code_f8(VF y)
{
    VI bits = v_ints(y), a = v_and(bits, v_seti(0x7fffffff));
    VI low = v_subi(v_ints(v_add(v_bits(a), v_set(16384.0f))), v_ints(v_set(16384.0f)));
    VI odd = v_and(v_srl(a, 20), v_seti(1));
    VI high = v_srl(v_addi(v_addi(v_subi(a, v_seti(120 << 23)), v_seti((1 << 19) - 1)), odd), 20);
    VI code = v_selecti(v_gti(a, v_seti((121 << 23) - 1)), high, low);
    code = v_selecti(v_gti(a, v_seti(0x43e00000)), v_seti(0x7e), code); /* beyond 448 */
    return v_or(code, v_and(v_srl(bits, 24), v_seti(0x80)));
}

/* Negative values get 0. */
MO_INLINE VI lane_code_f8_unsigned(VF x, VF y)
{
    VI code = lane_code_f8(v_bits(v_maxi(v_ints(y), v_seti(0))));
    return v_maxi(code, v_mini(v_ints(x), v_seti(1)));
}

MO_INLINE VI lane_code4_signed(VF y)
{
    VI bits = v_ints(y), a = v_and(bits, v_seti(0x7fffffff)), sign = v_sra(bits, 31);
    VI code = v_seti(0);
    for (int k = 1; k <= MO_SIGNED4_TOP; k++)
        code = v_count(code, v_gti(a, v_seti((int)mo_threshold4_signed[k] - 1)));
    code = v_subi(v_xor(code, sign), sign);
    return v_maxi(v_addi(code, v_seti(MO_SIGNED4_ZERO)), v_seti(0));
}

MO_INLINE VI lane_code4_unsigned(VF y)
{
    VF t = v_sub(v_mul(y, v_set(16.0f)), v_set(0.5f));
    VI code = v_subi(v_ceil_int(t), v_seti(1));
    return v_mini(v_maxi(code, v_seti(0)), v_seti(MO_UNSIGNED4_TOP));
}

/* The block that starts at element `at` of a moment, to fp32. */
MO_INLINE void lane_decode(uint32_t format, int is_signed, const void *data, const float *scales,
                           uint64_t at, float *values)
{
    const uint8_t *codes = (const uint8_t *)data + mo_format_bytes(format, at);
    uint32_t n = mo_format_block(format);
    float scale = scales[at / n];
    uint8_t wide[MO_BLOCK4_SIZE];
    if (format == MO_STATE_8BIT) {
        v_decode_8bit(is_signed, codes, scale, values);
        return;
    }
    if (format == MO_STATE_4BIT) {
        lane_unpack4(codes, wide);
        codes = wide;
    }
    for (uint32_t i = 0; i < n; i += MO_LANES_N) {
        VI code = v_load_codes(codes + i);
        VF x = format == MO_STATE_F8 ? lane_value_f8(code)
               : is_signed           ? v_table16(mo_map4_signed, code)
                                     : v_mul(v_float(v_addi(code, v_seti(1))), v_set(0.0625f));
        v_store(values + i, v_mul(x, v_set(scale)));
    }
}

/* A finite block, its largest magnitude as bits. Values of an unsigned one are not negative. */
MO_INLINE void lane_encode(uint32_t format, int is_signed, const float *values, uint32_t largest,
                           uint64_t at, void *data, float *scales)
{
    uint8_t *codes = (uint8_t *)data + mo_format_bytes(format, at);
    uint32_t n = mo_format_block(format);
    mo_block_scale scale = mo_format_scale(format, largest);
    uint8_t wide[MO_BLOCK4_SIZE], *out = format == MO_STATE_4BIT ? wide : codes;
    scales[at / n] = scale.absmax;
    if (format == MO_STATE_8BIT) {
        v_encode_8bit(is_signed, values, &scale, codes);
        return;
    }
    for (uint32_t i = 0; i < n; i += MO_LANES_N) {
        VF x = v_load(values + i), y = v_mul(v_mul(x, v_set(scale.prescale)), v_set(scale.inverse));
        VI code;
        if (format == MO_STATE_4BIT)
            code = is_signed ? lane_code4_signed(y) : lane_code4_unsigned(y);
        else if (is_signed)
            code = lane_code_f8(y);
        else
            code = lane_code_f8_unsigned(x, y);
        v_store_codes(out + i, code);
    }
    if (format == MO_STATE_4BIT)
        lane_pack4(wide, codes);
}

MO_INLINE uint32_t lane_largest(const float *values, uint32_t n)
{
    VI largest = v_seti(0);
    for (uint32_t i = 0; i < n; i += MO_LANES_N)
        largest = v_maxi(largest, v_and(v_ints(v_load(values + i)), v_seti(0x7fffffff)));
    return v_largest(largest);
}

/* --- parameters and gradients ---------------------------------------------------------------- */

/* n elements from `at` on, a multiple of MO_LANES_N. */
static __attribute__((noinline)) void lane_read(const void *data, uint64_t at, int32_t dtype,
                                                uint64_t n, float *values)
{
    if (dtype == MO_DTYPE_F32)
        for (uint64_t i = 0; i < n; i += MO_LANES_N)
            v_store(values + i, v_load_as(data, at + i, MO_DTYPE_F32));
    else if (dtype == MO_DTYPE_BF16)
        for (uint64_t i = 0; i < n; i += MO_LANES_N)
            v_store(values + i, v_load_as(data, at + i, MO_DTYPE_BF16));
    else
        for (uint64_t i = 0; i < n; i += MO_LANES_N)
            v_store(values + i, v_load_as(data, at + i, MO_DTYPE_F16));
}

static __attribute__((noinline)) void lane_write(void *data, uint64_t at, int32_t dtype, uint64_t n,
                                                 const float *values)
{
    if (dtype == MO_DTYPE_F32)
        for (uint64_t i = 0; i < n; i += MO_LANES_N)
            v_store_as(data, at + i, MO_DTYPE_F32, v_load(values + i));
    else if (dtype == MO_DTYPE_BF16)
        for (uint64_t i = 0; i < n; i += MO_LANES_N)
            v_store_as(data, at + i, MO_DTYPE_BF16, v_load(values + i));
    else
        for (uint64_t i = 0; i < n; i += MO_LANES_N)
            v_store_as(data, at + i, MO_DTYPE_F16, v_load(values + i));
}

/* The new parameters and their copy. */
MO_INLINE void lane_write_parameters(const mo_optim_span *s, uint64_t at, uint64_t n,
                                     const float *values)
{
    if (s->stochastic && s->parameter_dtype != MO_DTYPE_F32)
        v_write_stochastic(s, at, n, values);
    else
        lane_write(s->parameter, at, s->parameter_dtype, n, values);
    if (s->copy != NULL)
        lane_write(s->copy, at, s->copy_dtype, n, values);
}

/* --- the step -------------------------------------------------------------------------------- */

typedef struct mo_lane_work {
    _Alignas(64) float g[LANE_BLOCK];
    _Alignas(64) float p[LANE_BLOCK];
    _Alignas(64) float m[LANE_BLOCK];
    _Alignas(64) float v[LANE_BLOCK];
} mo_lane_work;

MO_INLINE void lane_step_coded(uint32_t rule, uint32_t format, const mo_optim_span *s,
                               const mo_lane_coef *c, mo_lane_work *w, uint64_t at)
{
    uint32_t n = mo_format_block(format), largest1, largest2 = 0;
    int second = mo_rule_has_second(rule);
    lane_read(s->gradient, at, s->gradient_dtype, n, w->g);
    lane_read(s->parameter, at, s->parameter_dtype, n, w->p);
    lane_decode(format, 1, s->m, s->absmax1, at, w->m);
    if (second)
        lane_decode(format, 0, s->v, s->absmax2, at, w->v);
    lane_update(rule, c, w->g, w->p, w->m, w->v, n);
    largest1 = lane_largest(w->m, n);
    if (second)
        largest2 = lane_largest(w->v, n);
    if (__builtin_expect(largest1 >= MO_F32_INF_BITS || largest2 >= MO_F32_INF_BITS, 0)) {
        mo_step_block_scalar(rule, format, s, at);
        return;
    }
    lane_encode(format, 1, w->m, largest1, at, s->m, s->absmax1);
    if (second)
        lane_encode(format, 0, w->v, largest2, at, s->v, s->absmax2);
    lane_write_parameters(s, at, n, w->p);
}

/* States, and parameters of f32, are updated in place. */
MO_INLINE void lane_step32(uint32_t rule, const mo_optim_span *s, const mo_lane_coef *c,
                           mo_lane_work *w)
{
    float *m = s->m, *v = s->v;
    float *p = s->parameter_dtype == MO_DTYPE_F32 ? s->parameter : NULL;
    const float *g = s->gradient_dtype == MO_DTYPE_F32 ? s->gradient : NULL;
    uint64_t at = 0;
    for (; at + LANE_BLOCK <= s->count; at += LANE_BLOCK) {
        if (g == NULL)
            lane_read(s->gradient, at, s->gradient_dtype, LANE_BLOCK, w->g);
        if (p == NULL)
            lane_read(s->parameter, at, s->parameter_dtype, LANE_BLOCK, w->p);
        if (m == NULL)
            memset(w->m, 0, sizeof w->m);
        lane_update(rule, c, g == NULL ? w->g : g + at, p == NULL ? w->p : p + at,
                    m == NULL ? w->m : m + at, v == NULL ? w->v : v + at, LANE_BLOCK);
        if (p == NULL)
            lane_write_parameters(s, at, LANE_BLOCK, w->p);
        else if (s->copy != NULL)
            lane_write(s->copy, at, s->copy_dtype, LANE_BLOCK, p + at);
    }
    mo_step32_scalar(rule, s, at, s->count);
}

MO_INLINE void lane_step(uint32_t rule, uint32_t format, const void *args, uint64_t begin,
                         uint64_t end)
{
    const mo_optim_step_args *a = args;
    uint32_t block = mo_format_block(format);
    mo_optim_span span;
    mo_lane_work w;
    for (uint64_t chunk = begin; chunk < end && !a->control->skip; chunk++) {
        mo_optim_span_of(a, chunk, &span);
        mo_lane_coef c = mo_lane_coef_of(&span.coef);
        if (span.absmax1 == NULL) {
            lane_step32(rule, &span, &c, &w);
            continue;
        }
        uint64_t at = 0;
        for (; at + block <= span.count; at += block)
            lane_step_coded(rule, format, &span, &c, &w, at);
        if (at < span.count)
            mo_step_block_scalar(rule, format, &span, at);
    }
}

/* --- block-wise codes on their own ----------------------------------------------------------- */

MO_INLINE void lane_quantize(uint32_t format, const void *args, uint64_t begin, uint64_t end)
{
    const mo_blockcode_args *a = args;
    uint64_t at = begin * MO_CHUNK_ELEMENTS, last = end * MO_CHUNK_ELEMENTS;
    uint32_t n = mo_format_block(format);
    _Alignas(64) float values[LANE_BLOCK];
    last = last < a->count ? last : a->count;
    for (; at + n <= last; at += n) {
        lane_read(a->values, at, a->dtype, n, values);
        uint32_t largest = lane_largest(values, n);
        if (largest >= MO_F32_INF_BITS) {
            mo_quantize_block_scalar(format, a, at, n);
            continue;
        }
        for (uint32_t i = 0; i < n && !a->is_signed; i += MO_LANES_N) /* negatives count as 0 */
            v_store(values + i, v_bits(v_maxi(v_ints(v_load(values + i)), v_seti(0))));
        if (a->is_signed)
            lane_encode(format, 1, values, largest, at, a->codes, a->absmax);
        else
            lane_encode(format, 0, values, largest, at, a->codes, a->absmax);
    }
    if (at < last)
        mo_quantize_block_scalar(format, a, at, (uint32_t)(last - at));
}

MO_INLINE void lane_dequantize(uint32_t format, const void *args, uint64_t begin, uint64_t end)
{
    const mo_blockcode_args *a = args;
    uint64_t at = begin * MO_CHUNK_ELEMENTS, last = end * MO_CHUNK_ELEMENTS;
    uint32_t n = mo_format_block(format);
    _Alignas(64) float values[LANE_BLOCK];
    last = last < a->count ? last : a->count;
    for (; at + n <= last; at += n) {
        if (a->is_signed)
            lane_decode(format, 1, a->codes, a->absmax, at, values);
        else
            lane_decode(format, 0, a->codes, a->absmax, at, values);
        int any_nan = format == MO_STATE_F8 || !mo_f32_is_finite(a->absmax[at / n]);
        for (uint32_t i = 0; i < n && any_nan; i += MO_LANES_N)
            v_store(values + i, lane_one_nan(v_load(values + i)));
        lane_write(a->values, at, a->dtype, n, values);
    }
    mo_dequantize_run_scalar(format, a, at, last);
}

/* 32-bit states of AdamW, for the forms that have a step of their own with 8-bit states. */
#define MO_LANE_ADAMW32(name)                                                                      \
    void name(const mo_optim_span *span)                                                           \
    {                                                                                              \
        mo_lane_coef coef = mo_lane_coef_of(&span->coef);                                          \
        mo_lane_work work;                                                                         \
        lane_step32(MO_RULE_ADAMW, span, &coef, &work);                                            \
    }
#define MO_LANE_STEP(name, rule, format)                                                           \
    void name(const void *args, uint64_t begin, uint64_t end)                                      \
    {                                                                                              \
        lane_step(rule, format, args, begin, end);                                                 \
    }
#define MO_LANE_CODE(quantize, dequantize, format)                                                 \
    void quantize(const void *args, uint64_t begin, uint64_t end)                                  \
    {                                                                                              \
        lane_quantize(format, args, begin, end);                                                   \
    }                                                                                              \
    void dequantize(const void *args, uint64_t begin, uint64_t end)                                \
    {                                                                                              \
        lane_dequantize(format, args, begin, end);                                                 \
    }
