/*
 * The steps with 8-bit states, AVX-512: compiled once for each set of instructions. Coding block b - 1 is interleaved with
 * updating block b: the two share no data, so each hides the long latencies of the other. Between
 * the two a block lives as fp32 in a work buffer of the first-level cache, and nothing is written
 * to memory before the whole block is known to be finite; the scalar form does a block that is not.
 */
#include "kernels/optim/step_simd.h"

#include <string.h>

enum { BLOCK = MO_BLOCK_SIZE, MOST_WIDTH = 2 };

typedef struct work {
    _Alignas(64) float m[BLOCK];
    float v[BLOCK];
    float p[BLOCK];
    float *slow;                            /* elsewhere: two of these must not lie 4 KiB apart */
    float inverse1, inverse2, slow_inverse; /* what normalises m, v and slow */
    /* where the block goes */
    uint8_t *m_codes, *v_codes, *slow_codes;
    void *parameter, *copy;
} work;

/* The place of a block that the scalar form has written already. */
typedef struct spill {
    uint8_t m_codes[BLOCK], v_codes[BLOCK], slow_codes[BLOCK];
    float parameter[BLOCK];
    uint16_t copy[BLOCK];
} spill;

typedef struct largest {
    __m512 adam_m; /* where NaN shows in v */
    __m512i m, v, slow;
    __mmask16 odd; /* NaN, and what the hardware does not round to bf16 as specified */
} largest;

/* Constants of a form. */
typedef struct form {
    uint32_t rule;
    int p_dtype, g_dtype;
    int copies;   /* the copy is bf16 and written with the parameters */
    int nesterov; /* of SGD */
} form;

MO_INLINE int is_adam(form f)
{
    return f.rule == MO_RULE_ADAMW || f.rule == MO_RULE_ADAM;
}

/* Runs of 64 elements that go through the stages together. One moment has half as many chains of
 * dependent instructions; two runs pay where a root and a division are among them. */
MO_INLINE int width_of(form f)
{
    return f.rule == MO_RULE_RMSPROP ? MOST_WIDTH : 1;
}

/* Decoded states of 64 elements. */
typedef struct moments {
    mo_f32x64 m, v, slow;
} moments;

/* The coding of 64 elements: of m and v, or of the one moment that the rule has; of slow. */
typedef struct coding {
    mo_encode64 e, slow;
} coding;

MO_INLINE moments decode64(form f, const mo_optim_span *s, uint64_t at, int part)
{
    uint64_t i = at + 64 * (uint64_t)part, block = at / BLOCK;
    __m512 absmax1 = _mm512_set1_ps(s->absmax1[block]);
    moments x;
    x.m = mo_rule_first_signed(f.rule) ? mo_decode64_signed((const uint8_t *)s->m + i, absmax1)
                                       : mo_decode64_unsigned((const uint8_t *)s->m + i, absmax1);
    x.v = x.slow = x.m;
    if (mo_rule_has_second(f.rule))
        x.v = mo_decode64_unsigned((const uint8_t *)s->v + i, _mm512_set1_ps(s->absmax2[block]));
    if (mo_rule_has_slow(f.rule))
        x.slow =
            mo_decode64_signed((const uint8_t *)s->slow + i, _mm512_set1_ps(s->slow_absmax[block]));
    return x;
}

MO_INLINE __m512i magnitude16(__m512 x)
{
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

MO_INLINE void note16(form f, const moments *x, int k, __m512 p, largest *top)
{
    if (is_adam(f))
        top->adam_m = _mm512_range_ps(top->adam_m, x->m.part[k], 0x0b); /* the larger magnitude */
    else if (mo_rule_first_signed(f.rule))
        top->m = _mm512_max_epu32(top->m, magnitude16(x->m.part[k]));
    else
        top->m = _mm512_max_epu32(top->m, _mm512_castps_si512(x->m.part[k]));
    if (mo_rule_has_second(f.rule))
        top->v = _mm512_max_epu32(top->v, _mm512_castps_si512(x->v.part[k]));
    if (mo_rule_has_slow(f.rule))
        top->slow = _mm512_max_epu32(top->slow, magnitude16(x->slow.part[k]));
    if (f.p_dtype == MO_DTYPE_BF16 || f.copies)
        top->odd = _kor_mask16(top->odd, mo_bf16_odd(p));
    else
        top->odd = _kor_mask16(top->odd, _mm512_cmp_ps_mask(p, p, _CMP_UNORD_Q));
}

MO_INLINE void update64(form f, const mo_optim_span *s, const mo_lane_coef *c, uint64_t at, work *w,
                        int part, moments *x, largest *top)
{
    uint64_t i = at + 64 * (uint64_t)part;
    for (int k = 0; k < 4; k++) {
        int to = 64 * part + 16 * k;
        __m512 g = mo_load16(s->gradient, i + 16 * (uint64_t)k, f.g_dtype), root;
        __m512 p = mo_load16(s->parameter, i + 16 * (uint64_t)k, f.p_dtype);
        if (is_adam(f))
            p = mo_update16(f.rule, c, g, p, &x->m.part[k], &x->v.part[k]);
        else
            p = lane_rule(f.rule, c, g, p, &x->m.part[k], &x->v.part[k], &x->slow.part[k], &root);
        _mm512_store_ps(w->m + to, x->m.part[k]);
        if (mo_rule_has_second(f.rule))
            _mm512_store_ps(w->v + to, x->v.part[k]);
        if (mo_rule_has_slow(f.rule))
            _mm512_store_ps(w->slow + to, x->slow.part[k]);
        _mm512_store_ps(w->p + to, p);
        note16(f, x, k, p, top);
    }
}

MO_INLINE void begin64(form f, const work *w, int part, coding *c)
{
    c->e.y[0] = c->e.y[1] = mo_normalize64(w->m + 64 * part, w->inverse1);
    if (mo_rule_has_second(f.rule))
        c->e.y[1] = mo_normalize64(w->v + 64 * part, w->inverse2);
    mo_encode64_lines(&c->e);
    if (mo_rule_has_slow(f.rule)) {
        c->slow.y[0] = c->slow.y[1] = mo_normalize64(w->slow + 64 * part, w->slow_inverse);
        mo_encode64_lines(&c->slow);
    }
}

MO_INLINE void compare64(form f, coding *c)
{
    mo_encode64_compare(&c->e);
    if (mo_rule_has_slow(f.rule))
        mo_encode64_compare(&c->slow);
}

MO_INLINE mo_f32x64 load64(const float *x)
{
    mo_f32x64 out;
    for (int k = 0; k < 4; k++)
        out.part[k] = _mm512_load_ps(x + 16 * k);
    return out;
}

MO_INLINE mo_f32x64 load64_one_nan(const float *x)
{
    mo_f32x64 out = load64(x);
    for (int k = 0; k < 4; k++)
        out.part[k] = mo_one_nan16(out.part[k]);
    return out;
}

MO_INLINE void finish64(form f, const work *w, int part, const coding *c)
{
    int i = 64 * part, first_signed = mo_rule_first_signed(f.rule);
    mo_f32x64 p = load64(w->p + i);
    _mm512_storeu_si512(w->m_codes + i,
                        first_signed ? mo_encode64_signed(&c->e) : mo_encode64_unsigned(&c->e));
    if (mo_rule_has_second(f.rule))
        _mm512_storeu_si512(w->v_codes + i, mo_encode64_unsigned(&c->e));
    if (mo_rule_has_slow(f.rule))
        _mm512_storeu_si512(w->slow_codes + i, mo_encode64_signed(&c->slow));
    mo_store64_plain(w->parameter, (uint64_t)i, f.p_dtype, &p);
    if (f.copies)
        mo_store64_plain(w->copy, (uint64_t)i, MO_DTYPE_BF16, &p);
}

/* The block's parameters in the cases that finish64 does not handle: stochastic, odd values,
 * NaN. */
static __attribute__((noinline)) void store_parameters(const mo_optim_span *s, uint64_t at,
                                                       const float *values)
{
    for (uint64_t i = 0; i < BLOCK; i += 64) {
        mo_f32x64 p = load64_one_nan(values + i);
        if (s->parameter_dtype != MO_DTYPE_F32 && s->stochastic)
            mo_store64_stochastic(s->parameter, at + i, s->parameter_dtype, &p, &s->random,
                                  s->start + at + i);
        else
            mo_store64(s->parameter, at + i, s->parameter_dtype, &p);
    }
}

static __attribute__((noinline)) void store_copy(const mo_optim_span *s, uint64_t at, const work *w)
{
    for (uint64_t i = 0; i < BLOCK; i += 64) {
        mo_f32x64 p = load64_one_nan(w->p + i);
        mo_store64(s->copy, at + i, s->copy_dtype, &p);
    }
}

/* The scalar form does the block; the output of the coding stages is discarded. */
static __attribute__((noinline)) void settle_not_finite(uint32_t rule, const mo_optim_span *s,
                                                        uint64_t at, work *w, spill *away)
{
    mo_step_block_scalar(rule, MO_STATE_8BIT, s, at);
    memset(w->m, 0, sizeof w->m);
    memset(w->v, 0, sizeof w->v);
    if (mo_rule_has_slow(rule))
        memset(w->slow, 0, BLOCK * sizeof(float));
    memset(w->p, 0, sizeof w->p);
    w->inverse1 = w->inverse2 = w->slow_inverse = 1.0f;
    w->m_codes = away->m_codes;
    w->v_codes = away->v_codes;
    w->slow_codes = away->slow_codes;
    w->parameter = away->parameter;
    w->copy = away->copy;
}

/* The scale of a moment, and what remains for coding to normalise it with. */
MO_INLINE float settle_moment(float *values, uint32_t top, int is_signed, float *absmax)
{
    mo_block_scale scale = mo_block_scale_of(top);
    *absmax = scale.absmax;
    return mo_normalize_block(values, &scale, is_signed);
}

/* After the update: the block's scales and where it goes. */
MO_INLINE void settle(form f, const mo_optim_span *s, uint64_t at, work *w, const largest *top,
                      spill *away)
{
    uint64_t block = at / BLOCK;
    uint32_t top1 = is_adam(f) ? mo_f32_bits(_mm512_reduce_max_ps(top->adam_m))
                               : _mm512_reduce_max_epu32(top->m);
    uint32_t top2 = mo_rule_has_second(f.rule) ? _mm512_reduce_max_epu32(top->v) : 0;
    uint32_t top_slow = mo_rule_has_slow(f.rule) ? _mm512_reduce_max_epu32(top->slow) : 0;
    if (__builtin_expect((is_adam(f) && !mo_f32_is_finite(s->absmax1[block])) ||
                             top1 >= MO_F32_INF_BITS || top2 >= MO_F32_INF_BITS ||
                             top_slow >= MO_F32_INF_BITS,
                         0)) {
        settle_not_finite(f.rule, s, at, w, away);
        return;
    }
    w->inverse1 = settle_moment(w->m, top1, mo_rule_first_signed(f.rule), &s->absmax1[block]);
    w->m_codes = (uint8_t *)s->m + at;
    if (mo_rule_has_second(f.rule)) {
        w->inverse2 = settle_moment(w->v, top2, 0, &s->absmax2[block]);
        w->v_codes = (uint8_t *)s->v + at;
    }
    if (mo_rule_has_slow(f.rule)) {
        w->slow_inverse = settle_moment(w->slow, top_slow, 1, &s->slow_absmax[block]);
        w->slow_codes = (uint8_t *)s->slow + at;
    }
    w->parameter = mo_element_at(s->parameter, at, f.p_dtype);
    w->copy = mo_element_at(s->copy, at, s->copy_dtype);
    if (__builtin_expect(top->odd || (f.p_dtype != MO_DTYPE_F32 && s->stochastic), 0)) {
        store_parameters(s, at, w->p);
        w->parameter = away->parameter;
        if (f.copies)
            store_copy(s, at, w);
        w->copy = away->copy;
    }
    if (!f.copies && s->copy != NULL)
        store_copy(s, at, w);
}

/* One block's update, with the coding of the block before it in between; either may be absent. The
 * two share no data, and their stages take turns. */
MO_INLINE void step_pair(form f, const mo_optim_span *s, const mo_lane_coef *c, uint64_t at,
                         work *now, const work *before, largest *top)
{
    const int width = width_of(f);
    for (int part = 0; part < 4; part += width) {
        coding e[MOST_WIDTH];
        moments x[MOST_WIDTH];
        for (int i = 0; i < width && before != NULL; i++)
            begin64(f, before, part + i, &e[i]);
        for (int i = 0; i < width && now != NULL; i++)
            x[i] = decode64(f, s, at, part + i);
        for (int i = 0; i < width && before != NULL; i++)
            compare64(f, &e[i]);
        for (int i = 0; i < width && now != NULL; i++)
            update64(f, s, c, at, now, part + i, &x[i], top);
        for (int i = 0; i < width && before != NULL; i++)
            finish64(f, before, part + i, &e[i]);
    }
}

static const largest none; /* zeros */

/* A span's first update and last coding, for all types: they are rare. */
MO_INLINE largest first_update(uint32_t rule, const mo_optim_span *s, work *now)
{
    largest top = none;
    mo_lane_coef c = mo_lane_coef_of(&s->coef);
    form any = {rule, s->parameter_dtype, s->gradient_dtype, 1, c.nesterov};
    step_pair(any, s, &c, 0, now, NULL, &top);
    return top;
}

MO_INLINE void last_coding(uint32_t rule, int p_dtype, int copies, const work *before)
{
    step_pair((form){rule, p_dtype, 0, copies, 0}, NULL, NULL, 0, NULL, before, NULL);
}

typedef largest (*first_form)(const mo_optim_span *, work *);
typedef void (*last_form)(int, int, const work *);

/* Whole blocks of a span, at least one. */
MO_INLINE void step_blocks(form f, const mo_optim_span *s, uint64_t blocks, first_form first,
                           last_form last)
{
    _Alignas(64) float slow[2][BLOCK];
    work works[2];
    spill away;
    mo_lane_coef c = mo_lane_coef_of(&s->coef);
    c.nesterov = f.nesterov;
    works[0].slow = slow[0];
    works[1].slow = slow[1];
    /* gcc is not to move these rules' loads over their stores: it would run out of registers */
    if (f.rule == MO_RULE_RMSPROP || f.rule == MO_RULE_SGD)
        __asm__ volatile("" : : "r"(works) : "memory");
    const largest found = first(s, &works[0]);
    largest top; /* stays in registers, its address unknown to others */
    settle(f, s, 0, &works[0], &found, &away);
    for (uint64_t b = 1; b < blocks; b++) {
        work *now = &works[b & 1];
        top = none;
        step_pair(f, s, &c, b * BLOCK, now, &works[~b & 1], &top);
        settle(f, s, b * BLOCK, now, &top, &away);
    }
    last(f.p_dtype, f.copies, &works[~blocks & 1]);
}

/* The last, shorter block: padded with elements that stay zero. */
static __attribute__((noinline)) void step_tail(uint32_t rule, const mo_optim_span *s, uint64_t at,
                                                void (*blocks)(const mo_optim_span *, uint64_t))
{
    float p[BLOCK] = {0}, g[BLOCK] = {0}, copy[BLOCK];
    uint8_t m[BLOCK], v[BLOCK] = {0}, slow[BLOCK];
    uint64_t n = s->count - at, p_bytes = n * mo_element_size((uint32_t)s->parameter_dtype);
    mo_optim_span tail = mo_optim_part(s, at, n), part = tail;
    memset(m, mo_rule_first_signed(rule) ? MO_SIGNED_ZERO : 0, sizeof m);
    memset(slow, MO_SIGNED_ZERO, sizeof slow);
    memcpy(m, part.m, n);
    if (mo_rule_has_second(rule))
        memcpy(v, part.v, n);
    if (mo_rule_has_slow(rule))
        memcpy(slow, part.slow, n);
    memcpy(p, part.parameter, p_bytes);
    memcpy(g, part.gradient, n * mo_element_size((uint32_t)s->gradient_dtype));
    tail.parameter = p;
    tail.gradient = g;
    tail.copy = s->copy != NULL ? copy : NULL;
    tail.m = m;
    tail.v = v;
    tail.slow = slow;
    blocks(&tail, 1);
    memcpy(part.m, m, n);
    if (mo_rule_has_second(rule))
        memcpy(part.v, v, n);
    if (mo_rule_has_slow(rule))
        memcpy(part.slow, slow, n);
    memcpy(part.parameter, p, p_bytes);
    if (s->copy != NULL)
        memcpy(part.copy, copy, n * mo_element_size((uint32_t)s->copy_dtype));
}

typedef void (*blocks_form)(const mo_optim_span *, uint64_t);

MO_ONE_COPY void step_span(uint32_t rule, const mo_optim_span *s, blocks_form blocks)
{
    uint64_t whole = s->count / BLOCK;
    if (whole != 0)
        blocks(s, whole);
    if (s->count % BLOCK != 0)
        step_tail(rule, s, whole * BLOCK, blocks);
}

/* --- the forms: RULE has what all types of a rule share --------------------------------------- */

#define RULE(name, rule)                                                                           \
    static __attribute__((noinline)) largest name##_first(const mo_optim_span *s, work *now)       \
    {                                                                                              \
        return first_update(rule, s, now);                                                         \
    }                                                                                              \
    static __attribute__((noinline)) void name##_last(int p_dtype, int copies, const work *before) \
    {                                                                                              \
        last_coding(rule, p_dtype, copies, before);                                                \
    }                                                                                              \
    BLOCKS(name, bf16, rule, MO_DTYPE_BF16, MO_DTYPE_BF16, 0, 0)
#define BLOCKS(name, types, rule, p_dtype, g_dtype, copies, nesterov)                              \
    static __attribute__((noinline)) void name##_##types(const mo_optim_span *s, uint64_t blocks)  \
    {                                                                                              \
        step_blocks((form){rule, p_dtype, g_dtype, copies, nesterov}, s, blocks, name##_first,     \
                    name##_last);                                                                  \
    }

RULE(adamw, MO_RULE_ADAMW)
RULE(adam, MO_RULE_ADAM)
RULE(lion, MO_RULE_LION)
RULE(sgd, MO_RULE_SGD)
RULE(rmsprop, MO_RULE_RMSPROP)
RULE(rmspropm, MO_RULE_RMSPROP_MOMENTUM)
RULE(ademamix, MO_RULE_ADEMAMIX)
BLOCKS(sgd, nesterov_bf16, MO_RULE_SGD, MO_DTYPE_BF16, MO_DTYPE_BF16, 0, 1)
BLOCKS(adamw, copies, MO_RULE_ADAMW, MO_DTYPE_F32, MO_DTYPE_BF16, 1, 0)

MO_INLINE int types_are(const mo_optim_span *s, int32_t parameter, int32_t gradient)
{
    return s->parameter_dtype == parameter && s->gradient_dtype == gradient;
}

#if defined(__AVX512BF16__)

/* What is not rounded to bf16 is the same as with VBMI alone. */
#define OTHERS(name, rule, f32, mixed, f16)
#define OTHERS_OF(name) mo_##name##8_span_avx512vbmi

#else

BLOCKS(adamw, f32, MO_RULE_ADAMW, MO_DTYPE_F32, MO_DTYPE_F32, 0, 0)
BLOCKS(adamw, mixed, MO_RULE_ADAMW, MO_DTYPE_F32, MO_DTYPE_BF16, 0, 0)
BLOCKS(adamw, f16, MO_RULE_ADAMW, MO_DTYPE_F16, MO_DTYPE_F16, 0, 0)
BLOCKS(adam, f32, MO_RULE_ADAM, MO_DTYPE_F32, MO_DTYPE_F32, 0, 0)
BLOCKS(adam, mixed, MO_RULE_ADAM, MO_DTYPE_F32, MO_DTYPE_BF16, 0, 0)
BLOCKS(lion, mixed, MO_RULE_LION, MO_DTYPE_F32, MO_DTYPE_BF16, 0, 0)
BLOCKS(lion, f32, MO_RULE_LION, MO_DTYPE_F32, MO_DTYPE_F32, 0, 0)
BLOCKS(sgd, mixed, MO_RULE_SGD, MO_DTYPE_F32, MO_DTYPE_BF16, 0, 0)
BLOCKS(sgd, f32, MO_RULE_SGD, MO_DTYPE_F32, MO_DTYPE_F32, 0, 0)
BLOCKS(sgd, nesterov_f32, MO_RULE_SGD, MO_DTYPE_F32, MO_DTYPE_F32, 0, 1)
BLOCKS(rmsprop, f32, MO_RULE_RMSPROP, MO_DTYPE_F32, MO_DTYPE_F32, 0, 0)
BLOCKS(rmspropm, f32, MO_RULE_RMSPROP_MOMENTUM, MO_DTYPE_F32, MO_DTYPE_F32, 0, 0)
BLOCKS(ademamix, f32, MO_RULE_ADEMAMIX, MO_DTYPE_F32, MO_DTYPE_F32, 0, 0)

/* Whole blocks of any types: some at a time become fp32 in the first-level cache. */
MO_ONE_COPY void step_any(const mo_optim_span *s, uint64_t blocks, blocks_form f32)
{
    enum { RUN = 16 };
    _Alignas(64) float p[RUN * BLOCK + 512], g[RUN * BLOCK];
    for (uint64_t b = 0; b < blocks; b += RUN) {
        uint64_t n = blocks - b < RUN ? blocks - b : (uint64_t)RUN;
        const mo_optim_span from = mo_optim_part(s, b * BLOCK, n * BLOCK);
        mo_optim_span run = from;
        run.gradient = lane_floats(from.gradient, 0, from.gradient_dtype, n * BLOCK, g);
        run.parameter =
            (void *)(uintptr_t)lane_floats(from.parameter, 0, from.parameter_dtype, n * BLOCK, p);
        run.gradient_dtype = run.parameter_dtype = MO_DTYPE_F32;
        f32(&run, n);
        for (uint64_t i = 0; i < n * BLOCK && run.parameter == p; i += BLOCK)
            store_parameters(&from, i, p + i);
    }
}

#define OTHERS(name, rule, f32, mixed, f16)                                                        \
    static void name##_any(const mo_optim_span *s, uint64_t blocks)                                \
    {                                                                                              \
        step_any(s, blocks, f32);                                                                  \
    }                                                                                              \
    static void name##_others(const mo_optim_span *s)                                              \
    {                                                                                              \
        if (s->absmax1 == NULL)                                                                    \
            mo_span32_avx512(rule, s);                                                             \
        else if (types_are(s, MO_DTYPE_F32, MO_DTYPE_F32))                                         \
            step_span(rule, s, f32);                                                               \
        else if (types_are(s, MO_DTYPE_F32, MO_DTYPE_BF16))                                        \
            step_span(rule, s, mixed);                                                             \
        else if (types_are(s, MO_DTYPE_F16, MO_DTYPE_F16))                                         \
            step_span(rule, s, f16);                                                               \
        else                                                                                       \
            step_span(rule, s, name##_any);                                                        \
    }
#define OTHERS_OF(name) name##_others

#endif

/* `copies`: with a bf16 copy of f32 parameters; NULL: as without. */
#define STEP(name, rule, bf16, copies, f32, mixed, f16)                                            \
    OTHERS(name, rule, f32, mixed, f16)                                                            \
    void MO_FORM(mo_##name##8_span)(const mo_optim_span *s)                                        \
    {                                                                                              \
        const blocks_form copying = copies;                                                        \
        if (s->absmax1 != NULL && types_are(s, MO_DTYPE_BF16, MO_DTYPE_BF16))                      \
            step_span(rule, s, bf16);                                                              \
        else if (s->absmax1 != NULL && copying != NULL && s->copy != NULL &&                       \
                 s->copy_dtype == MO_DTYPE_BF16 && types_are(s, MO_DTYPE_F32, MO_DTYPE_BF16))      \
            step_span(rule, s, copying);                                                           \
        else                                                                                       \
            OTHERS_OF(name)(s);                                                                    \
    }                                                                                              \
    void MO_FORM(mo_step_##name##8)(const void *args, uint64_t begin, uint64_t end)                \
    {                                                                                              \
        mo_each_span(args, begin, end, MO_FORM(mo_##name##8_span));                                \
    }

STEP(adamw, MO_RULE_ADAMW, adamw_bf16, adamw_copies, adamw_f32, adamw_mixed, adamw_f16)
STEP(adam, MO_RULE_ADAM, adam_bf16, NULL, adam_f32, adam_mixed, adam_any)
STEP(lion, MO_RULE_LION, lion_bf16, NULL, lion_f32, lion_mixed, lion_any)
STEP(sgd, MO_RULE_SGD, s->coef.eps != 0.0f ? sgd_nesterov_bf16 : sgd_bf16, NULL,
     s->coef.eps != 0.0f ? sgd_nesterov_f32 : sgd_f32, s->coef.eps != 0.0f ? sgd_any : sgd_mixed,
     sgd_any)
STEP(rmsprop, MO_RULE_RMSPROP, rmsprop_bf16, NULL, rmsprop_f32, rmsprop_any, rmsprop_any)
STEP(rmspropm, MO_RULE_RMSPROP_MOMENTUM, rmspropm_bf16, NULL, rmspropm_f32, rmspropm_any,
     rmspropm_any)
STEP(ademamix, MO_RULE_ADEMAMIX, ademamix_bf16, NULL, ademamix_f32, ademamix_any, ademamix_any)
