/*
 * The step and the codes in blocks of any size that is possible, in vectors: a part of step_simd.h.
 * A block is decoded into buffers, updated there, coded and written before the next one begins.
 * Blocks of a format's own size have faster forms; this one has the size as a variable.
 */

enum { SIZED_ROOM = 5 * MO_BLOCK_MOST };

/* Arrays side by side, so that small blocks need few lines of cache. */
MO_INLINE mo_lane_block sized_work_of(float *room, uint32_t n)
{
    return (mo_lane_block){room, room + n, room + 2 * n, room + 3 * n, room + 4 * n};
}

/* mo_rule_update of n elements in place; the new parameters to w->p. */
MO_INLINE mo_lane_seen sized_update(uint32_t rule, uint32_t format, const mo_lane_coef *c,
                                    const mo_lane_block *w, uint32_t n, const float *g,
                                    const float *p)
{
    int second = mo_rule_has_second(rule), third = mo_rule_has_slow(rule);
    mo_lane_seen seen = {v_seti(0), v_seti(0), v_seti(0), v_set(0.0f)};
    for (uint32_t i = 0; i < n; i += MO_LANES_N) {
        VF m = v_load(w->m + i), v = m, slow = m;
        if (second)
            v = v_load(w->v + i);
        if (third)
            slow = v_load(w->slow + i);
        lane_apply(rule, format, c, v_load(g + i), v_load(p + i), m, v, slow, w, i, &seen);
    }
    return seen;
}

/* Codes a finite moment from element `at` on. largest: of its magnitudes, as bits. */
MO_INLINE void sized_encode(uint32_t format, int is_signed, float *values, uint32_t n,
                            uint32_t largest, void *data, uint64_t at, float *out_scale)
{
    mo_block_scale scale = mo_format_scale(format, is_signed, largest);
    *out_scale = scale.absmax;
    lane_prescale(format, values, n, &scale);
    lane_encode(format, is_signed, values, n, &scale,
                (uint8_t *)data + mo_format_bytes(format, at));
}

/* Random bits are made for 64 elements at a time. */
static __attribute__((noinline)) void sized_write(const mo_optim_span *s, uint64_t at, uint32_t n,
                                                  const float *values)
{
    if (s->stochastic && n % 64 != 0)
        for (uint32_t i = 0; i < n; i++)
            mo_optim_store(s, at + i, values[i]);
    else
        lane_write_parameters(s, at, n, values);
}

/* A whole block. Nothing is written before it is known to be finite. */
MO_INLINE void sized_step_block(uint32_t rule, uint32_t format, const mo_optim_span *s,
                                const mo_lane_coef *c, const mo_lane_block *w, uint64_t at)
{
    const uint32_t n = s->block;
    const uint64_t block = at / n;
    int is_signed = mo_rule_first_signed(rule);
    int second = mo_rule_has_second(rule), third = mo_rule_has_slow(rule);
    lane_decode(format, is_signed, s->m, s->absmax1[block], at, n, w->m);
    if (second)
        lane_decode(format, 0, s->v, s->absmax2[block], at, n, w->v);
    if (third)
        lane_decode(format, 1, s->slow, s->slow_absmax[block], at, n, w->slow);
    const float *g = lane_floats(s->gradient, at, s->gradient_dtype, n, w->g);
    const float *p = lane_floats(s->parameter, at, s->parameter_dtype, n, w->p);
    mo_lane_seen seen = sized_update(rule, format, c, w, n, g, p);
    uint32_t largest1 = v_largest(seen.largest1), largest2 = v_largest(seen.largest2);
    uint32_t slow_largest = third ? v_largest(seen.slow_largest) : 0;
    if (__builtin_expect(largest1 >= MO_F32_INF_BITS || largest2 >= MO_F32_INF_BITS ||
                             slow_largest >= MO_F32_INF_BITS || lane_has_nan(format, s->m, at, n) ||
                             (second && (lane_has_nan(format, s->v, at, n) ||
                                         lane_odd_scale(format, s->absmax2[block]))),
                         0)) {
        mo_step_block_scalar(rule, format, s, at);
        return;
    }
    sized_encode(format, is_signed, w->m, n, largest1, s->m, at, &s->absmax1[block]);
    if (second)
        sized_encode(format, 0, w->v, n, largest2, s->v, at, &s->absmax2[block]);
    if (third)
        sized_encode(format, 1, w->slow, n, slow_largest, s->slow, at, &s->slow_absmax[block]);
    if (v_largest(v_and(v_ints(seen.not_finite), v_seti(0x7fffffff))) != 0)
        lane_one_nan_all(w->p, n);
    sized_write(s, at, n, w->p);
}

MO_INLINE void sized_step(uint32_t rule, uint32_t format, const mo_optim_span *s)
{
    _Alignas(64) float room[SIZED_ROOM];
    mo_lane_coef c = mo_lane_coef_of(&s->coef);
    mo_lane_block w = sized_work_of(room, s->block);
    uint64_t at = 0;
    for (; at + s->block <= s->count; at += s->block)
        sized_step_block(rule, format, s, &c, &w, at);
    if (at < s->count)
        mo_step_block_scalar(rule, format, s, at);
}

/* Tensors with 32-bit states too. */
#define MO_SIZED_SPAN(name, rule, format, span32)                                                  \
    static __attribute__((noinline)) void name##_coded(const mo_optim_span *s)                     \
    {                                                                                              \
        sized_step(rule, format, s);                                                               \
    }                                                                                              \
    static void name(const mo_optim_span *s)                                                       \
    {                                                                                              \
        if (s->absmax1 == NULL)                                                                    \
            span32(s);                                                                             \
        else                                                                                       \
            name##_coded(s);                                                                       \
    }
#define MO_SIZED_SPANS(isa)                                                                        \
    MO_SIZED_SPAN(sized_adamw8, MO_RULE_ADAMW, MO_STATE_8BIT, mo_adamw32_span_##isa)               \
    MO_SIZED_SPAN(sized_lion8, MO_RULE_LION, MO_STATE_8BIT, mo_lion32_span_##isa)                  \
    MO_SIZED_SPAN(sized_sgd8, MO_RULE_SGD, MO_STATE_8BIT, mo_sgd32_span_##isa)                     \
    MO_SIZED_SPAN(sized_adam8, MO_RULE_ADAM, MO_STATE_8BIT, mo_adam32_span_##isa)                  \
    MO_SIZED_SPAN(sized_rmsprop8, MO_RULE_RMSPROP, MO_STATE_8BIT, mo_rmsprop32_span_##isa)         \
    MO_SIZED_SPAN(sized_rmspropm8, MO_RULE_RMSPROP_MOMENTUM, MO_STATE_8BIT,                        \
                  mo_rmspropm32_span_##isa)                                                        \
    MO_SIZED_SPAN(sized_ademamix8, MO_RULE_ADEMAMIX, MO_STATE_8BIT, mo_ademamix32_span_##isa)      \
    MO_SIZED_SPAN(sized_adamw4, MO_RULE_ADAMW, MO_STATE_4BIT, mo_adamw32_span_##isa)               \
    MO_SIZED_SPAN(sized_adamwf8, MO_RULE_ADAMW, MO_STATE_F8, mo_adamw32_span_##isa)                \
    MO_SIZED_SPAN(sized_adamwc8, MO_RULE_ADAMW, MO_STATE_COMPANDED, mo_adamw32_span_##isa)         \
    MO_SIZED_SPAN(sized_adamwc4, MO_RULE_ADAMW, MO_STATE_COMPANDED4, mo_adamw32_span_##isa)        \
                                                                                                   \
    static void (*const sized_spans8[])(const mo_optim_span *) = {                                 \
        [MO_RULE_ADAMW] = sized_adamw8,                                                            \
        [MO_RULE_LION] = sized_lion8,                                                              \
        [MO_RULE_SGD] = sized_sgd8,                                                                \
        [MO_RULE_ADAM] = sized_adam8,                                                              \
        [MO_RULE_RMSPROP] = sized_rmsprop8,                                                        \
        [MO_RULE_ADAGRAD] = sized_rmsprop8,                                                        \
        [MO_RULE_RMSPROP_MOMENTUM] = sized_rmspropm8,                                              \
        [MO_RULE_ADEMAMIX] = sized_ademamix8,                                                      \
    };

#define MO_SIZED_STEP(name, of_rule)                                                               \
    void name(const void *args, uint64_t begin, uint64_t end)                                      \
    {                                                                                              \
        const mo_sized_step_args *a = args;                                                        \
        mo_each_sized_span(&a->step, a->shift, begin, end, of_rule);                               \
    }
#define MO_SIZED_CODE(quantize, dequantize, format)                                                \
    void quantize(const void *args, uint64_t begin, uint64_t end)                                  \
    {                                                                                              \
        _Alignas(64) float room[MO_BLOCK_MOST];                                                    \
        const mo_blockcode_args *a = args;                                                         \
        lane_quantize(format, mo_blockcode_block(format, a), room, a, begin, end);                 \
    }                                                                                              \
    void dequantize(const void *args, uint64_t begin, uint64_t end)                                \
    {                                                                                              \
        _Alignas(64) float room[MO_BLOCK_MOST];                                                    \
        const mo_blockcode_args *a = args;                                                         \
        lane_dequantize(format, mo_blockcode_block(format, a), room, a, begin, end);               \
    }
/* All of an instruction set's. */
#define MO_SIZED_FORMS(isa)                                                                        \
    MO_SIZED_SPANS(isa)                                                                            \
    MO_SIZED_STEP(mo_sized_step8_##isa, sized_spans8[a->rule])                                     \
    MO_SIZED_STEP(mo_sized_step4_##isa, sized_adamw4)                                              \
    MO_SIZED_STEP(mo_sized_stepf8_##isa, sized_adamwf8)                                            \
    MO_SIZED_STEP(mo_sized_stepc8_##isa, sized_adamwc8)                                            \
    MO_SIZED_STEP(mo_sized_stepc4_##isa, sized_adamwc4)                                            \
    MO_SIZED_CODE(mo_sized_quantize8_##isa, mo_sized_dequantize8_##isa, MO_STATE_8BIT)             \
    MO_SIZED_CODE(mo_sized_quantize4_##isa, mo_sized_dequantize4_##isa, MO_STATE_4BIT)             \
    MO_SIZED_CODE(mo_sized_quantizef8_##isa, mo_sized_dequantizef8_##isa, MO_STATE_F8)             \
    MO_SIZED_CODE(mo_sized_quantizec8_##isa, mo_sized_dequantizec8_##isa, MO_STATE_COMPANDED)      \
    MO_SIZED_CODE(mo_sized_quantizec4_##isa, mo_sized_dequantizec4_##isa, MO_STATE_COMPANDED4)
