/*
 * The steps of AdamW and Adam with 8-bit states, AVX-512, and the kernels that choose between them
 * and those with 32-bit states: included by a file for each set of instructions, which defines
 * MO_FORM(name), the name with the set's suffix. Coding block b - 1 is interleaved with updating
 * block b: the two share no data, so each hides the long latencies of the other. Between the two a
 * block lives as fp32 in a work buffer of the first-level cache, and nothing is written to memory
 * before the whole block is known to be finite; the scalar form does a block that is not.
 */
#include "kernels/optim/optim_avx512.h"
#include "kernels/optim/optim_cpu.h"

#include <string.h>

enum { BLOCK = MO_BLOCK_SIZE };

typedef struct work {
    _Alignas(64) float m[BLOCK];
    float v[BLOCK];
    float p[BLOCK];
    float inverse1, inverse2; /* what normalises m and v */
    /* where the block goes */
    uint8_t *m_codes, *v_codes;
    void *parameter, *copy;
} work;

/* The place of a block that the scalar form has written already. */
typedef struct spill {
    uint8_t m_codes[BLOCK], v_codes[BLOCK];
    float parameter[BLOCK];
    uint16_t copy[BLOCK];
} spill;

typedef struct largest {
    __m512 m;
    __m512i v;
    __mmask16 odd; /* NaN, and what the hardware does not round to bf16 as specified */
} largest;

/* Constants of a form. */
typedef struct form {
    uint32_t rule;
    int p_dtype, g_dtype;
    int copies; /* the copy is bf16 and written with the parameters */
} form;

/* Decoded states of 64 elements. */
typedef struct moments {
    mo_f32x64 m, v;
} moments;

MO_INLINE moments decode64(const mo_optim_span *s, uint64_t at, int part)
{
    uint64_t i = at + 64 * (uint64_t)part, block = at / BLOCK;
    moments x;
    x.m = mo_decode64_signed((const uint8_t *)s->m + i, _mm512_set1_ps(s->absmax1[block]));
    x.v = mo_decode64_unsigned((const uint8_t *)s->v + i, _mm512_set1_ps(s->absmax2[block]));
    return x;
}

MO_INLINE void update64(form f, const mo_optim_span *s, const mo_coef16 *c, uint64_t at, work *w,
                        int part, moments *x, largest *top)
{
    uint64_t i = at + 64 * (uint64_t)part;
    float *wm = w->m + 64 * part, *wv = w->v + 64 * part, *wp = w->p + 64 * part;
    for (int k = 0; k < 4; k++) {
        __m512 g = mo_load16(s->gradient, i + 16 * (uint64_t)k, f.g_dtype);
        __m512 p = mo_load16(s->parameter, i + 16 * (uint64_t)k, f.p_dtype);
        p = mo_update16(f.rule, c, g, p, &x->m.part[k], &x->v.part[k]);
        _mm512_store_ps(wm + 16 * k, x->m.part[k]);
        _mm512_store_ps(wv + 16 * k, x->v.part[k]);
        _mm512_store_ps(wp + 16 * k, p);
        top->m = _mm512_range_ps(top->m, x->m.part[k], 0x0b); /* the larger magnitude */
        top->v = _mm512_max_epu32(top->v, _mm512_castps_si512(x->v.part[k]));
        if (f.p_dtype == MO_DTYPE_BF16 || f.copies)
            top->odd = _kor_mask16(top->odd, mo_bf16_odd(p));
        else
            top->odd = _kor_mask16(top->odd, _mm512_cmp_ps_mask(p, p, _CMP_UNORD_Q));
    }
}

MO_INLINE void begin64(const work *w, int part, mo_encode64 *e)
{
    e->y[0] = mo_normalize64(w->m + 64 * part, w->inverse1);
    e->y[1] = mo_normalize64(w->v + 64 * part, w->inverse2);
    mo_encode64_lines(e);
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

MO_INLINE void finish64(form f, const work *w, int part, const mo_encode64 *e)
{
    int i = 64 * part;
    mo_f32x64 p = load64(w->p + i);
    _mm512_storeu_si512(w->m_codes + i, mo_encode64_signed(e));
    _mm512_storeu_si512(w->v_codes + i, mo_encode64_unsigned(e));
    mo_store64_plain(w->parameter, (uint64_t)i, f.p_dtype, &p);
    if (f.copies)
        mo_store64_plain(w->copy, (uint64_t)i, MO_DTYPE_BF16, &p);
}

/* The block's parameters in the cases that finish64 does not handle: stochastic, odd values,
 * NaN. */
static __attribute__((noinline)) void store_parameters(const mo_optim_span *s, uint64_t at,
                                                       const work *w)
{
    for (uint64_t i = 0; i < BLOCK; i += 64) {
        mo_f32x64 p = load64_one_nan(w->p + i);
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
    memset(w->p, 0, sizeof w->p);
    w->inverse1 = w->inverse2 = 1.0f;
    w->m_codes = away->m_codes;
    w->v_codes = away->v_codes;
    w->parameter = away->parameter;
    w->copy = away->copy;
}

/* After the update: the block's scales and where it goes. */
MO_INLINE void settle(form f, const mo_optim_span *s, uint64_t at, work *w, const largest *top,
                      spill *away)
{
    uint64_t block = at / BLOCK;
    uint32_t top1 = mo_f32_bits(_mm512_reduce_max_ps(top->m));
    uint32_t top2 = _mm512_reduce_max_epu32(top->v);
    if (__builtin_expect(!mo_f32_is_finite(s->absmax1[block]) || top1 >= MO_F32_INF_BITS ||
                             top2 >= MO_F32_INF_BITS,
                         0)) {
        settle_not_finite(f.rule, s, at, w, away);
        return;
    }
    mo_block_scale scale1 = mo_block_scale_of(top1), scale2 = mo_block_scale_of(top2);
    w->inverse1 = mo_normalize_block(w->m, &scale1, 1);
    w->inverse2 = mo_normalize_block(w->v, &scale2, 0);
    s->absmax1[block] = scale1.absmax;
    s->absmax2[block] = scale2.absmax;
    w->m_codes = (uint8_t *)s->m + at;
    w->v_codes = (uint8_t *)s->v + at;
    w->parameter = mo_element_at(s->parameter, at, f.p_dtype);
    w->copy = mo_element_at(s->copy, at, s->copy_dtype);
    if (__builtin_expect(top->odd || (f.p_dtype != MO_DTYPE_F32 && s->stochastic), 0)) {
        store_parameters(s, at, w);
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
MO_INLINE void step_pair(form f, const mo_optim_span *s, const mo_coef16 *c, uint64_t at, work *now,
                         const work *before, largest *top)
{
    for (int part = 0; part < 4; part++) {
        mo_encode64 e;
        moments x;
        if (before != NULL)
            begin64(before, part, &e);
        if (now != NULL)
            x = decode64(s, at, part);
        if (before != NULL)
            mo_encode64_compare(&e);
        if (now != NULL)
            update64(f, s, c, at, now, part, &x, top);
        if (before != NULL)
            finish64(f, before, part, &e);
    }
}

/* Whole blocks of a span, at least one. */
MO_INLINE void step_blocks(form f, const mo_optim_span *s, uint64_t blocks)
{
    work works[2];
    spill away;
    mo_coef16 c = mo_coef16_of(&s->coef);
    largest top = {_mm512_setzero_ps(), _mm512_setzero_si512(), 0};
    step_pair(f, s, &c, 0, &works[0], NULL, &top);
    settle(f, s, 0, &works[0], &top, &away);
    for (uint64_t b = 1; b < blocks; b++) {
        work *now = &works[b & 1];
        top = (largest){_mm512_setzero_ps(), _mm512_setzero_si512(), 0};
        step_pair(f, s, &c, b * BLOCK, now, &works[~b & 1], &top);
        settle(f, s, b * BLOCK, now, &top, &away);
    }
    step_pair(f, s, &c, 0, NULL, &works[~blocks & 1], &top);
}

/* The last, shorter block: padded with elements that stay zero. */
static __attribute__((noinline)) void step_tail(const mo_optim_span *s, uint64_t at,
                                                void (*blocks)(const mo_optim_span *, uint64_t))
{
    float p[BLOCK] = {0}, g[BLOCK] = {0}, copy[BLOCK];
    uint8_t m[BLOCK], v[BLOCK] = {0};
    uint64_t n = s->count - at, p_bytes = n * mo_element_size((uint32_t)s->parameter_dtype);
    void *p_at = mo_element_at(s->parameter, at, s->parameter_dtype);
    mo_optim_span tail = *s;
    memset(m, MO_SIGNED_ZERO, sizeof m);
    memcpy(m, (uint8_t *)s->m + at, n);
    memcpy(v, (uint8_t *)s->v + at, n);
    memcpy(p, p_at, p_bytes);
    memcpy(g, mo_element_at(s->gradient, at, s->gradient_dtype),
           n * mo_element_size((uint32_t)s->gradient_dtype));
    tail.parameter = p;
    tail.gradient = g;
    tail.copy = s->copy != NULL ? copy : NULL;
    tail.m = m;
    tail.v = v;
    tail.absmax1 += at / BLOCK;
    tail.absmax2 += at / BLOCK;
    tail.start += at;
    tail.count = n;
    blocks(&tail, 1);
    memcpy((uint8_t *)s->m + at, m, n);
    memcpy((uint8_t *)s->v + at, v, n);
    memcpy(p_at, p, p_bytes);
    if (s->copy != NULL)
        memcpy(mo_element_at(s->copy, at, s->copy_dtype), copy,
               n * mo_element_size((uint32_t)s->copy_dtype));
}

#define BLOCKS_FOR(name, rule, p_dtype, g_dtype) BLOCKS_AS(name, rule, p_dtype, g_dtype, 0)
#define BLOCKS_AS(name, rule, p_dtype, g_dtype, copies)                                            \
    static __attribute__((noinline)) void name(const mo_optim_span *s, uint64_t blocks)            \
    {                                                                                              \
        step_blocks((form){rule, p_dtype, g_dtype, copies}, s, blocks);                            \
    }

BLOCKS_FOR(adamw_f32_f32, MO_RULE_ADAMW, MO_DTYPE_F32, MO_DTYPE_F32)
BLOCKS_FOR(adamw_f32_f16, MO_RULE_ADAMW, MO_DTYPE_F32, MO_DTYPE_F16)
BLOCKS_FOR(adamw_f32_bf16, MO_RULE_ADAMW, MO_DTYPE_F32, MO_DTYPE_BF16)
BLOCKS_FOR(adamw_f16_f32, MO_RULE_ADAMW, MO_DTYPE_F16, MO_DTYPE_F32)
BLOCKS_FOR(adamw_f16_f16, MO_RULE_ADAMW, MO_DTYPE_F16, MO_DTYPE_F16)
BLOCKS_FOR(adamw_f16_bf16, MO_RULE_ADAMW, MO_DTYPE_F16, MO_DTYPE_BF16)
BLOCKS_FOR(adamw_bf16_f32, MO_RULE_ADAMW, MO_DTYPE_BF16, MO_DTYPE_F32)
BLOCKS_FOR(adamw_bf16_f16, MO_RULE_ADAMW, MO_DTYPE_BF16, MO_DTYPE_F16)
BLOCKS_FOR(adamw_bf16_bf16, MO_RULE_ADAMW, MO_DTYPE_BF16, MO_DTYPE_BF16)
BLOCKS_AS(adamw_master, MO_RULE_ADAMW, MO_DTYPE_F32, MO_DTYPE_BF16, 1)
BLOCKS_FOR(adam_f32_f32, MO_RULE_ADAM, MO_DTYPE_F32, MO_DTYPE_F32)
BLOCKS_FOR(adam_f32_bf16, MO_RULE_ADAM, MO_DTYPE_F32, MO_DTYPE_BF16)
BLOCKS_FOR(adam_bf16_bf16, MO_RULE_ADAM, MO_DTYPE_BF16, MO_DTYPE_BF16)

static void step_span(const mo_optim_span *s, void (*blocks)(const mo_optim_span *, uint64_t))
{
    uint64_t whole = s->count / BLOCK;
    if (whole != 0)
        blocks(s, whole);
    if (s->count % BLOCK != 0)
        step_tail(s, whole * BLOCK, blocks);
}

static void adamw_span(const mo_optim_span *s)
{
    static void (*const forms[3][3])(const mo_optim_span *, uint64_t) = {
        {adamw_f32_f32, adamw_f32_f16, adamw_f32_bf16},
        {adamw_f16_f32, adamw_f16_f16, adamw_f16_bf16},
        {adamw_bf16_f32, adamw_bf16_f16, adamw_bf16_bf16},
    };
    if (s->absmax1 == NULL)
        mo_adamw32_span_avx512(s);
    else if (s->copy != NULL && s->copy_dtype == MO_DTYPE_BF16 &&
             s->parameter_dtype == MO_DTYPE_F32 && s->gradient_dtype == MO_DTYPE_BF16)
        step_span(s, adamw_master);
    else
        step_span(s, forms[s->parameter_dtype - MO_DTYPE_F32][s->gradient_dtype - MO_DTYPE_F32]);
}

/* The usual types; the form of step_simd.h does the others. */
static void adam_span(const mo_optim_span *s)
{
    static void (*const forms[3][3])(const mo_optim_span *, uint64_t) = {
        {adam_f32_f32, NULL, adam_f32_bf16},
        {NULL, NULL, NULL},
        {NULL, NULL, adam_bf16_bf16},
    };
    void (*blocks)(const mo_optim_span *, uint64_t) =
        forms[s->parameter_dtype - MO_DTYPE_F32][s->gradient_dtype - MO_DTYPE_F32];
    if (s->absmax1 == NULL || blocks == NULL)
        mo_adam8_span_avx512(s);
    else
        step_span(s, blocks);
}

void MO_FORM(mo_optim_step)(const void *args, uint64_t begin, uint64_t end)
{
    mo_each_span(args, begin, end, adamw_span);
}

void MO_FORM(mo_step_adam8)(const void *args, uint64_t begin, uint64_t end)
{
    mo_each_span(args, begin, end, adam_span);
}
