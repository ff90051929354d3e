/*
 * Any rule with coded states, over the vectors of one instruction set: the formats whose codes are
 * computed (companded).
 *
 * A block goes through two loops. The first decodes its moments, brings them up to date and finds
 * the largest; the second writes codes and parameters. The first loop of the next block runs in
 * between, so that the scales are there when they are needed. Meanwhile the moments are fp32 in the
 * first-level cache, and so are the new parameters, unless they are a late rule's: the second loop
 * takes its quotients. Nothing is written before the block is known to be finite; the scalar form
 * does a block that is not, and a shorter last one.
 */
#include "kernels/optim/step_simd.h"

enum { GROUP = 4 * MO_LANES_N };

/* What the loops read and write themselves: fp32 and bf16. Others go through fp32. */
typedef struct mo_types {
    int g, p;
    int copies; /* there is a copy of bf16 */
} mo_types;

typedef struct mo_computed_block {
    _Alignas(64) float m[LANE_BLOCK];
    float v[LANE_BLOCK];                 /* of companded second moments the root */
    float *slow, *g_room, *p_room;       /* elsewhere; the rooms: where types are converted */
    float *new_p;                        /* unless the rule is late */
    mo_lane_moment first, second, third; /* as they were */
    mo_block_scale scale1, scale2, slow_scale;
    uint8_t *m_codes, *v_codes, *slow_codes;
    const void *g;
    void *p, *copy;
    int tiny;
} mo_computed_block;

/* What the first loop finds. Of a late rule a NaN in m need not count: v or a scale is then not
 * finite either. */
typedef struct mo_computed_seen {
    VF late_largest;
    VI largest1, largest2, slow_largest; /* as unsigned integers */
} mo_computed_seen;

/* --- the first loop -------------------------------------------------------------------------- */

MO_INLINE void load2(const void *data, uint64_t i, int dtype, VF x[2])
{
    if (dtype == MO_DTYPE_F32)
        v_load2_as(data, i, MO_DTYPE_F32, x);
    else
        v_load2_as(data, i, MO_DTYPE_BF16, x);
}

MO_INLINE void note(uint32_t rule, VF m, VF v, VF slow, mo_computed_seen *seen)
{
    const VI magnitude = v_seti(0x7fffffff);
    if (lane_is_late(rule))
        seen->late_largest = v_max_magnitude(seen->late_largest, m);
    else if (mo_rule_first_signed(rule))
        seen->largest1 = v_maxu(seen->largest1, v_and(v_ints(m), magnitude));
    else
        seen->largest1 = v_maxu(seen->largest1, v_ints(m));
    if (mo_rule_has_second(rule))
        seen->largest2 = v_maxu(seen->largest2, v_ints(v));
    if (mo_rule_has_slow(rule))
        seen->slow_largest = v_maxu(seen->slow_largest, v_and(v_ints(slow), magnitude));
}

/* MO_LANES_N elements from i on. */
MO_INLINE void update1(uint32_t rule, uint32_t format, const mo_lane_coef *c, mo_computed_block *w,
                       uint32_t i, VF g, VF p, mo_computed_seen *seen)
{
    VF m = lane_value(format, mo_rule_first_signed(rule), &w->first, i), v = m, slow = m, root;
    if (mo_rule_has_second(rule))
        v = lane_value(format, 0, &w->second, i);
    if (mo_rule_has_slow(rule))
        slow = lane_value(format, 1, &w->third, i);
    if (lane_is_late(rule)) {
        lane_moments(rule, c, g, p, &m, &v, &slow);
        root = format == MO_STATE_COMPANDED ? v_sqrt(v) : v;
    } else {
        v_store(w->new_p + i, lane_rule(rule, c, g, p, &m, &v, &slow, &root));
    }
    v_store(w->m + i, mo_rule_first_signed(rule) ? m : root);
    if (mo_rule_has_second(rule))
        v_store(w->v + i, root);
    if (mo_rule_has_slow(rule))
        v_store(w->slow + i, slow);
    note(rule, m, v, slow, seen);
}

/* GROUP elements. */
MO_INLINE void update4(uint32_t rule, uint32_t format, mo_types types, const mo_lane_coef *c,
                       mo_computed_block *w, uint32_t at, mo_computed_seen *seen)
{
    for (uint32_t i = at; i < at + GROUP; i += 2 * MO_LANES_N) {
        VF g[2], p[2];
        load2(w->g, i, types.g, g);
        if (lane_is_late(rule) && rule != MO_RULE_ADAM) /* it needs no parameter here */
            memcpy(p, g, sizeof p);
        else
            load2(w->p, i, types.p, p);
        update1(rule, format, c, w, i, g[0], p[0], seen);
        update1(rule, format, c, w, i + MO_LANES_N, g[1], p[1], seen);
    }
}

/* --- the second loop ------------------------------------------------------------------------- */

MO_INLINE void put_halves(mo_types types, const mo_computed_block *w, uint32_t at, const VF x[4],
                          int careful)
{
    if (types.p == MO_DTYPE_BF16)
        v_store_bf16x4((uint16_t *)w->p + at, x, careful);
    if (types.copies)
        v_store_bf16x4((uint16_t *)w->copy + at, x, careful);
}

MO_INLINE void put(mo_types types, const mo_computed_block *w, uint32_t at, VF x[4])
{
    if (__builtin_expect(v_odd4(x), 0)) {
        for (int k = 0; k < 4; k++)
            x[k] = v_one_nan(x[k]);
        put_halves(types, w, at, x, 1);
    } else {
        put_halves(types, w, at, x, 0);
    }
    for (uint32_t k = 0; k < 4 && types.p == MO_DTYPE_F32; k++)
        v_store((float *)w->p + at + k * MO_LANES_N, x[k]);
}

MO_INLINE void code4(uint32_t format, int is_signed, const float *values,
                     const mo_block_scale *scale, uint8_t *codes, uint32_t at)
{
    VI bytes = lane_codes(format, is_signed, values + at, v_set(scale->inverse));
    if (mo_format_is_4bit(format))
        v_store_bytes4(codes + at / 2, bytes);
    else
        v_put(codes + at, bytes, 0);
}

/* The quotients of GROUP elements. */
MO_INLINE void quotients4(uint32_t rule, uint32_t format, const mo_lane_coef *c,
                          const mo_computed_block *w, uint32_t at, VF u[4])
{
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t i = at + k * MO_LANES_N;
        VF m = v_load(w->m + i), root = v_load(w->v + i), slow = m;
        if (mo_rule_has_slow(rule))
            slow = v_load(w->slow + i);
        u[k] = lane_quotient(rule, c, m, slow, format == MO_STATE_COMPANDED ? root : v_sqrt(root));
    }
}

/* GROUP elements. The quotients come first: the coding does not wait for them. */
MO_INLINE void finish4(uint32_t rule, uint32_t format, mo_types types, const mo_lane_coef *c,
                       const mo_computed_block *w, uint32_t at)
{
    VF u[4], p[4];
    if (lane_is_late(rule))
        quotients4(rule, format, c, w, at, u);
    if (mo_rule_first_signed(rule))
        code4(format, 1, w->m, &w->scale1, w->m_codes, at);
    else
        code4(format, 0, w->m, &w->scale1, w->m_codes, at);
    if (mo_rule_has_second(rule))
        code4(format, 0, w->v, &w->scale2, w->v_codes, at);
    if (mo_rule_has_slow(rule))
        code4(format, 1, w->slow, &w->slow_scale, w->slow_codes, at);
    for (uint32_t k = 0; k < 4; k += 2)
        load2(lane_is_late(rule) ? w->p : w->new_p, at + k * MO_LANES_N,
              lane_is_late(rule) ? types.p : MO_DTYPE_F32, p + k);
    for (int k = 0; k < 4 && lane_is_late(rule); k++)
        p[k] = lane_moved(rule, c, p[k], u[k]);
    put(types, w, at, p);
}

/* --- blocks ---------------------------------------------------------------------------------- */

MO_INLINE void begin_block(uint32_t rule, uint32_t format, mo_types types, const mo_optim_span *s,
                           uint64_t at, mo_computed_block *w)
{
    const uint32_t n = mo_format_block(format);
    const uint64_t codes = mo_format_bytes(format, at);
    w->first = lane_moment(format, s->m, s->absmax1[at / n], at);
    w->m_codes = (uint8_t *)s->m + codes;
    if (mo_rule_has_second(rule)) {
        w->second = lane_moment(format, s->v, s->absmax2[at / n], at);
        w->v_codes = (uint8_t *)s->v + codes;
    }
    if (mo_rule_has_slow(rule)) {
        w->third = lane_moment(format, s->slow, s->slow_absmax[at / n], at);
        w->slow_codes = (uint8_t *)s->slow + codes;
    }
    w->g = mo_element_at(s->gradient, at, s->gradient_dtype);
    w->p = mo_element_at(s->parameter, at, s->parameter_dtype);
    w->copy = types.copies ? mo_element_at(s->copy, at, s->copy_dtype) : NULL;
    if (types.g != s->gradient_dtype)
        w->g = lane_floats(s->gradient, at, s->gradient_dtype, n, w->g_room);
    if (types.p != s->parameter_dtype) {
        lane_read(s->parameter, at, s->parameter_dtype, n, w->p_room);
        w->p = w->p_room;
    }
}

/* Not zero, and so small that the values need a prescale. */
MO_INLINE int is_tiny(const mo_block_scale *scale)
{
    return scale->prescale != 1.0f && scale->absmax != 0.0f;
}

/* Codes such a block again. */
static __attribute__((noinline)) void code_tiny(uint32_t rule, uint32_t format,
                                                mo_computed_block *w)
{
    const uint32_t n = mo_format_block(format);
    lane_prescale(format, w->m, n, &w->scale1);
    if (mo_rule_first_signed(rule))
        lane_encode(format, 1, w->m, n, &w->scale1, w->m_codes);
    if (mo_rule_has_second(rule)) {
        lane_prescale(format, w->v, n, &w->scale2);
        lane_encode(format, 0, w->v, n, &w->scale2, w->v_codes);
    }
    if (mo_rule_has_slow(rule)) {
        lane_prescale(format, w->slow, n, &w->slow_scale);
        lane_encode(format, 1, w->slow, n, &w->slow_scale, w->slow_codes);
    }
}

/* Whether the scalar form has to do the block: it is not finite, or its scale is no step's. */
MO_INLINE int is_odd(uint32_t rule, uint32_t format, const mo_optim_span *s, uint64_t block,
                     uint32_t largest)
{
    int odd = largest >= MO_F32_INF_BITS;
    if (lane_is_late(rule))
        odd |= !mo_f32_is_finite(s->absmax1[block]);
    if (!mo_rule_first_signed(rule))
        odd |= lane_odd_scale(format, s->absmax1[block]);
    if (mo_rule_has_second(rule))
        odd |= lane_odd_scale(format, s->absmax2[block]);
    return odd;
}

MO_INLINE uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Between the loops. 0: the scalar form has done the block. */
MO_INLINE int settle(uint32_t rule, uint32_t format, const mo_optim_span *s, uint64_t at,
                     const mo_computed_seen *seen, mo_computed_block *w)
{
    const uint64_t block = at / mo_format_block(format);
    const uint32_t largest1 =
        lane_is_late(rule) ? v_largest(v_ints(seen->late_largest)) : v_largestu(seen->largest1);
    const uint32_t largest2 = mo_rule_has_second(rule) ? v_largestu(seen->largest2) : 0;
    const uint32_t slow_largest = mo_rule_has_slow(rule) ? v_largestu(seen->slow_largest) : 0;
    if (__builtin_expect(
            is_odd(rule, format, s, block, larger(largest1, larger(largest2, slow_largest))), 0)) {
        mo_step_block_scalar(rule, format, s, at);
        return 0;
    }
    w->scale1 = mo_format_scale(format, mo_rule_first_signed(rule), largest1);
    s->absmax1[block] = w->scale1.absmax;
    w->tiny = is_tiny(&w->scale1);
    if (mo_rule_has_second(rule)) {
        w->scale2 = mo_format_scale(format, 0, largest2);
        s->absmax2[block] = w->scale2.absmax;
        w->tiny |= is_tiny(&w->scale2);
    }
    if (mo_rule_has_slow(rule)) {
        w->slow_scale = mo_format_scale(format, 1, slow_largest);
        s->slow_absmax[block] = w->slow_scale.absmax;
        w->tiny |= is_tiny(&w->slow_scale);
    }
    return 1;
}

MO_INLINE void step_blocks(uint32_t rule, uint32_t format, mo_types types, const mo_optim_span *s)
{
    const uint32_t n = mo_format_block(format);
    const mo_lane_coef c = mo_lane_coef_of(&s->coef);
    _Alignas(64) float room[6][LANE_BLOCK];
    mo_computed_block blocks[2];
    mo_computed_block *before = NULL;
    uint64_t whole = s->count / n * n;
    for (int k = 0; k < 2; k++) {
        blocks[k].g_room = room[3 * k];
        blocks[k].p_room = blocks[k].new_p = room[3 * k + 1];
        blocks[k].slow = room[3 * k + 2];
    }
    for (uint64_t at = 0; at < whole || before != NULL; at += n) {
        mo_computed_block *now = &blocks[at / n % 2];
        mo_computed_seen seen = {v_set(0.0f), v_seti(0), v_seti(0), v_seti(0)};
        if (at < whole) {
            begin_block(rule, format, types, s, at, now);
            for (uint32_t i = 0; i < n; i += GROUP)
                update4(rule, format, types, &c, now, i, &seen);
        }
        if (before != NULL) {
            for (uint32_t i = 0; i < n; i += GROUP)
                finish4(rule, format, types, &c, before, i);
            if (__builtin_expect(before->tiny, 0))
                code_tiny(rule, format, before);
            if (types.p != s->parameter_dtype || (s->copy != NULL && !types.copies))
                lane_write_narrow(s, at - n, n, before->p);
        }
        before = at < whole && settle(rule, format, s, at, &seen, now) ? now : NULL;
    }
    if (whole < s->count)
        mo_step_block_scalar(rule, format, s, whole);
}

/* --- the forms ------------------------------------------------------------------------------- */

static mo_types types_of(const mo_optim_span *s)
{
    mo_types types = {MO_DTYPE_F32, MO_DTYPE_F32, 0};
    int copies = s->copy != NULL && s->copy_dtype == MO_DTYPE_BF16;
    if (s->gradient_dtype == MO_DTYPE_BF16)
        types.g = MO_DTYPE_BF16;
    if (s->parameter_dtype == MO_DTYPE_BF16 && !s->stochastic && (s->copy == NULL || copies))
        types.p = MO_DTYPE_BF16;
    if (s->parameter_dtype == types.p)
        types.copies = copies;
    return types;
}

/* Whether the rule has forms of known types: bf16, fp32 parameters with bf16 gradients, all else by
 * fp32. They are up to 7 % faster. */
MO_INLINE int knows_types(uint32_t rule)
{
    return rule == MO_RULE_ADAMW;
}

#if defined(__AVX512F__)
#define SPAN32 mo_span32_avx512
#else
#define SPAN32 mo_span32_avx2
#endif

#define FORM(name, rule, format, g, p, copies)                                                     \
    static __attribute__((noinline)) void name(const mo_optim_span *s, mo_types types)             \
    {                                                                                              \
        (void)types;                                                                               \
        step_blocks(MO_RULE_##rule, MO_STATE_##format, (mo_types){g, p, copies}, s);               \
    }
#define STEP(kernel, rule, format)                                                                 \
    FORM(kernel##_any, rule, format, types.g, types.p, types.copies)                               \
    FORM(kernel##_bf16, rule, format, MO_DTYPE_BF16, MO_DTYPE_BF16, 0)                             \
    FORM(kernel##_master, rule, format, MO_DTYPE_BF16, MO_DTYPE_F32, types.copies)                 \
    FORM(kernel##_f32, rule, format, MO_DTYPE_F32, MO_DTYPE_F32, 0)                                \
    static void kernel##_span(const mo_optim_span *s)                                              \
    {                                                                                              \
        const mo_types types = types_of(s);                                                        \
        if (s->absmax1 == NULL)                                                                    \
            SPAN32(MO_RULE_##rule, s);                                                             \
        else if (!knows_types(MO_RULE_##rule))                                                     \
            kernel##_any(s, types);                                                                \
        else if (types.g == MO_DTYPE_BF16 && types.p == MO_DTYPE_BF16 && !types.copies)            \
            kernel##_bf16(s, types);                                                               \
        else if (types.g == MO_DTYPE_BF16 && s->parameter_dtype == MO_DTYPE_F32 &&                 \
                 (s->copy == NULL || types.copies))                                                \
            kernel##_master(s, types);                                                             \
        else                                                                                       \
            kernel##_f32(s, types);                                                                \
    }                                                                                              \
    void MO_FORM(mo_step_##kernel)(const void *args, uint64_t begin, uint64_t end)                 \
    {                                                                                              \
        mo_each_span(args, begin, end, kernel##_span);                                             \
    }
MO_EACH_STEP_COMPUTED(STEP)
