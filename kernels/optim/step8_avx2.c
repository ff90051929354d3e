/*
 * The steps with 8-bit states on AVX2: AdamW, Adam, Lion and SGD with a momentum. A block of 256
 * elements is gone through twice. The first time decodes the moments, brings them up to date and
 * finds the largest; between the two they live as fp32 in the first-level cache. The second time
 * codes them and, of AdamW and Adam, updates the parameters; it takes turns with the first time of
 * the block behind it, since the one waits for loads and the other for arithmetic. Nothing is
 * written before both moments of the block are known to be finite; the scalar form does a block
 * that is not, and a shorter last one.
 *
 * Parameters and gradients of bf16 have a form of their own (MO_EVEN_ODD); others go through fp32,
 * where they are not fp32 already (MO_HALVES).
 */
#include "kernels/optim/optim_avx2.h"
#include "kernels/optim/optim_cpu.h"
#include "kernels/optim/state_codes_avx2.h"

enum { BLOCK = MO_BLOCK_SIZE };

/* A block between the two times; i below is relative to it. */
typedef struct block {
    _Alignas(32) float new_m[BLOCK];
    _Alignas(32) float new_v[BLOCK];
    _Alignas(32) float new_p[BLOCK]; /* of Lion and SGD */
    mo_coder first, second;          /* what codes m and v */
    /* where it is read and written; p and g as fp32, or else bf16 */
    uint8_t *m, *v;
    void *p;
    const void *g;
    float scale1, scale2;
    uint64_t at;
} block;

typedef struct constants {
    mo_coef8 coef;
    int nesterov;
    mo_steps first, second;
} constants;

/* How many groups of a block were in doubt: mo_encode32_store. */
typedef struct doubts {
    int first, second;
} doubts;

/* --- 16 elements ----------------------------------------------------------------------------- */

MO_INLINE mo_f32x16 load16(const void *data, int i, int order)
{
    if (order == MO_HALVES)
        return mo_read16((const float *)data + i);
    __m256i pairs = _mm256_loadu_si256((const __m256i *)(const void *)((const uint16_t *)data + i));
    return (mo_f32x16){
        _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)),
        _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000u)))};
}

/* To nearest even in the upper halves; not of NaN. */
MO_INLINE __m256i round_bf16(__m256 x)
{
    __m256i u = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
}

MO_INLINE void store16(void *data, int i, int order, mo_f32x16 x)
{
    if (order == MO_HALVES) {
        _mm256_storeu_ps((float *)data + i, mo_one_nan8(x.a));
        _mm256_storeu_ps((float *)data + i + 8, mo_one_nan8(x.b));
        return;
    }
    /* a NaN of bf16 arithmetic has zeros below, so it is still one after rounding */
    __m256i pairs = mo_upper16(round_bf16(x.a), round_bf16(x.b));
    __m256i magnitude = _mm256_and_si256(pairs, _mm256_set1_epi16(0x7fff));
    __m256i nan = _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(0x7f80));
    pairs = _mm256_blendv_epi8(pairs, _mm256_set1_epi16(0x7fc0), nan);
    _mm256_storeu_si256((__m256i *)(void *)((uint16_t *)data + i), pairs);
}

/* --- the rules, eight elements --------------------------------------------------------------- */

/* The moments of AdamW and Adam. A v beyond FLT_MAX is left to the scalar form. */
MO_INLINE void adam_moments(uint32_t rule, const mo_coef8 *c, __m256 g, __m256 p, __m256 *m,
                            __m256 *v)
{
    __m256 h = _mm256_mul_ps(g, c->factor);
    if (rule == MO_RULE_ADAM)
        h = _mm256_fmadd_ps(c->decay, p, h);
    *m = _mm256_fmadd_ps(c->beta1, *m, _mm256_mul_ps(c->one_minus_beta1, h));
    *v = _mm256_fmadd_ps(c->beta2, *v, _mm256_mul_ps(_mm256_mul_ps(c->one_minus_beta2, h), h));
}

MO_INLINE __m256 adam_parameter(uint32_t rule, const mo_coef8 *c, __m256 p, __m256 m, __m256 v)
{
    __m256 u = _mm256_div_ps(m, _mm256_add_ps(_mm256_sqrt_ps(v), c->eps));
    return _mm256_fmadd_ps(c->rate, u, rule == MO_RULE_ADAM ? p : _mm256_fmadd_ps(c->decay, p, p));
}

MO_INLINE __m256 lion(const mo_coef8 *c, __m256 g, __m256 p, __m256 *m)
{
    const __m256 zero = _mm256_setzero_ps(), sign = _mm256_set1_ps(-0.0f);
    __m256 h = _mm256_mul_ps(g, c->factor);
    __m256 x = _mm256_fmadd_ps(c->beta1, *m, _mm256_mul_ps(c->one_minus_beta1, h));
    __m256 one = _mm256_or_ps(_mm256_and_ps(x, sign), _mm256_set1_ps(1.0f));
    __m256 u = _mm256_blendv_ps(x, one, _mm256_cmp_ps(x, zero, _CMP_NEQ_OQ));
    *m = _mm256_fmadd_ps(c->beta2, *m, _mm256_mul_ps(c->one_minus_beta2, h));
    return _mm256_fmadd_ps(c->rate, u, _mm256_fmadd_ps(c->decay, p, p));
}

MO_INLINE __m256 sgd(const mo_coef8 *c, int nesterov, __m256 g, __m256 p, __m256 *m)
{
    __m256 h = _mm256_mul_ps(g, c->factor);
    __m256 d = _mm256_fmadd_ps(c->decay, p, h);
    *m = _mm256_fmadd_ps(c->beta1, *m, _mm256_mul_ps(c->one_minus_beta1, d));
    __m256 u = nesterov ? _mm256_fmadd_ps(c->beta1, *m, d) : *m;
    return _mm256_fmadd_ps(c->rate, u, p);
}

/* --- a block --------------------------------------------------------------------------------- */

typedef struct largest {
    __m256i m, v; /* of the magnitudes' bits */
} largest;

MO_INLINE void note_largest(largest *top, mo_f32x16 m)
{
    top->m = _mm256_max_epu32(top->m, mo_magnitude_ints8(m.a));
    top->m = _mm256_max_epu32(top->m, mo_magnitude_ints8(m.b));
}

/* The first time: elements i to i + 15. */
MO_INLINE void update16(uint32_t rule, int order, const constants *k, block *b, int i, largest *top)
{
    const mo_coef8 *c = &k->coef;
    mo_f32x16 g = load16(b->g, i, order);
    mo_f32x16 m = mo_decode16(mo_padded_map_signed, b->m + i, _mm256_set1_ps(b->scale1), order);
    if (mo_rule_has_second(rule)) {
        mo_f32x16 p = {_mm256_setzero_ps(), _mm256_setzero_ps()}; /* AdamW does not need it here */
        if (rule == MO_RULE_ADAM)
            p = load16(b->p, i, order);
        __m256 scale = _mm256_set1_ps(b->scale2);
        mo_f32x16 v = mo_decode16(mo_padded_map_unsigned, b->v + i, scale, order);
        adam_moments(rule, c, g.a, p.a, &m.a, &v.a);
        adam_moments(rule, c, g.b, p.b, &m.b, &v.b);
        top->v = _mm256_max_epu32(top->v, _mm256_castps_si256(v.a));
        top->v = _mm256_max_epu32(top->v, _mm256_castps_si256(v.b));
        mo_write16(b->new_v + i, v);
    } else {
        mo_f32x16 p = load16(b->p, i, order);
        if (rule == MO_RULE_LION) {
            p.a = lion(c, g.a, p.a, &m.a);
            p.b = lion(c, g.b, p.b, &m.b);
        } else {
            p.a = sgd(c, k->nesterov, g.a, p.a, &m.a);
            p.b = sgd(c, k->nesterov, g.b, p.b, &m.b);
        }
        mo_write16(b->new_p + i, p);
    }
    note_largest(top, m);
    mo_write16(b->new_m + i, m);
}

/* The second time: elements i to i + 31. */
MO_INLINE void finish32(uint32_t rule, int order, const constants *k, const block *b, int i,
                        doubts *d)
{
    for (int j = i; j < i + 32; j += 16) {
        if (mo_rule_has_second(rule)) {
            mo_f32x16 m = mo_read16(b->new_m + j), v = mo_read16(b->new_v + j);
            mo_f32x16 p = load16(b->p, j, order);
            p.a = adam_parameter(rule, &k->coef, p.a, m.a, v.a);
            p.b = adam_parameter(rule, &k->coef, p.b, m.b, v.b);
            store16(b->p, j, order, p);
        } else {
            store16(b->p, j, order, mo_read16(b->new_p + j));
        }
    }
    mo_encode32_store(&k->first, &b->first, b->new_m + i, order, 1, b->m + i, &d->first);
    if (mo_rule_has_second(rule))
        mo_encode32_store(&k->second, &b->second, b->new_v + i, order, 0, b->v + i, &d->second);
}

MO_INLINE void begin_block(uint32_t rule, const mo_optim_span *s, uint64_t at, block *b)
{
    b->at = at;
    b->m = (uint8_t *)s->m + at;
    b->p = mo_element_at(s->parameter, at, s->parameter_dtype);
    b->g = mo_element_at(s->gradient, at, s->gradient_dtype);
    b->scale1 = s->absmax1[at / BLOCK];
    if (mo_rule_has_second(rule)) {
        b->v = (uint8_t *)s->v + at;
        b->scale2 = s->absmax2[at / BLOCK];
    }
}

/* Between the two times. 0: the block is not finite; the scalar form has done it. */
MO_INLINE int settle_block(uint32_t rule, const mo_optim_span *s, block *b, const largest *top)
{
    uint32_t top1 = mo_largest8(top->m), top2 = mo_largest8(top->v);
    if (__builtin_expect(top1 >= MO_F32_INF_BITS || top2 >= MO_F32_INF_BITS, 0)) {
        mo_step_block_scalar(rule, MO_STATE_8BIT, s, b->at);
        return 0;
    }
    mo_block_scale scale1 = mo_block_scale_of(top1), scale2 = mo_block_scale_of(top2);
    b->first = mo_coder_of(&scale1, &mo_lines_signed);
    s->absmax1[b->at / BLOCK] = scale1.absmax;
    if (mo_rule_has_second(rule)) {
        b->second = mo_coder_of(&scale2, &mo_lines_unsigned);
        s->absmax2[b->at / BLOCK] = scale2.absmax;
    }
    return 1;
}

/* The first time of one block and the second time of the one before it, or NULL. */
MO_INLINE int step_pair(uint32_t rule, int order, const mo_optim_span *s, const constants *k,
                        block *now, const block *before)
{
    largest top = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    doubts d = {0, 0};
    for (int i = 0; i < BLOCK; i += 32) {
        if (before != NULL)
            finish32(rule, order, k, before, i, &d);
        update16(rule, order, k, now, i, &top);
        update16(rule, order, k, now, i + 16, &top);
    }
    return settle_block(rule, s, now, &top);
}

MO_INLINE void finish_block(uint32_t rule, int order, const constants *k, const block *b)
{
    doubts d = {0, 0};
    for (int i = 0; i < BLOCK; i += 32)
        finish32(rule, order, k, b, i, &d);
}

/* Whole blocks of bf16; gives where the last ends. */
MO_INLINE uint64_t step_bf16(uint32_t rule, const mo_optim_span *s, const constants *k)
{
    block blocks[2];
    const block *before = NULL;
    uint64_t at = 0;
    for (; at + BLOCK <= s->count; at += BLOCK) {
        block *now = &blocks[at / BLOCK & 1];
        begin_block(rule, s, at, now);
        int ready = before != NULL ? step_pair(rule, MO_EVEN_ODD, s, k, now, before)
                                   : step_pair(rule, MO_EVEN_ODD, s, k, now, NULL);
        before = ready ? now : NULL;
    }
    if (before != NULL)
        finish_block(rule, MO_EVEN_ODD, k, before);
    return at;
}

/* --- other types than bf16, through fp32 ----------------------------------------------------- */

static __attribute__((noinline)) const float *read_block(const void *data, int32_t dtype,
                                                         float *values)
{
    if (dtype == MO_DTYPE_F32)
        return data;
    for (uint64_t i = 0; i < BLOCK; i += 8)
        _mm256_storeu_ps(values + i, dtype == MO_DTYPE_BF16 ? mo_load8(data, i, MO_DTYPE_BF16)
                                                            : mo_load8(data, i, MO_DTYPE_F16));
    return values;
}

static __attribute__((noinline)) void write_block(void *data, int32_t dtype, const float *values)
{
    for (uint64_t i = 0; i < BLOCK; i += 8) {
        __m256 x = _mm256_loadu_ps(values + i);
        if (dtype == MO_DTYPE_F32)
            mo_store8(data, i, MO_DTYPE_F32, x);
        else if (dtype == MO_DTYPE_BF16)
            mo_store8(data, i, MO_DTYPE_BF16, x);
        else
            mo_store8(data, i, MO_DTYPE_F16, x);
    }
}

/* The new parameters to where they belong, and their copy. */
static __attribute__((noinline)) void write_parameters(const mo_optim_span *s, uint64_t at,
                                                       const float *values)
{
    if (s->parameter_dtype != MO_DTYPE_F32 && s->stochastic)
        mo_write_stochastic(s, at, BLOCK, values);
    else if (s->parameter_dtype != MO_DTYPE_F32)
        write_block(mo_element_at(s->parameter, at, s->parameter_dtype), s->parameter_dtype,
                    values);
    if (s->copy != NULL)
        write_block(mo_element_at(s->copy, at, s->copy_dtype), s->copy_dtype, values);
}

/* Whole blocks; gives where the last ends. */
MO_INLINE uint64_t step_f32(uint32_t rule, const mo_optim_span *s, const constants *k)
{
    block b;
    float p[BLOCK], g[BLOCK];
    uint64_t at = 0;
    for (; at + BLOCK <= s->count; at += BLOCK) {
        begin_block(rule, s, at, &b);
        b.g = read_block(b.g, s->gradient_dtype, g);
        b.p = (void *)(uintptr_t)read_block(b.p, s->parameter_dtype, p);
        if (!step_pair(rule, MO_HALVES, s, k, &b, NULL))
            continue;
        finish_block(rule, MO_HALVES, k, &b);
        write_parameters(s, at, b.p);
    }
    return at;
}

/* --- spans ----------------------------------------------------------------------------------- */

MO_INLINE void step_span(uint32_t rule, int order, const mo_optim_span *s)
{
    constants k = {.coef = mo_coef8_of(&s->coef),
                   .nesterov = s->coef.eps != 0.0f,
                   .first = mo_steps_of(&mo_lines_signed, 1),
                   .second = mo_steps_of(&mo_lines_unsigned, 0)};
    uint64_t at = order == MO_EVEN_ODD ? step_bf16(rule, s, &k) : step_f32(rule, s, &k);
    if (at < s->count)
        mo_step_block_scalar(rule, MO_STATE_8BIT, s, at);
}

#define STEP(name, rule, span32)                                                                   \
    static __attribute__((noinline)) void name##_bf16(const mo_optim_span *s)                      \
    {                                                                                              \
        step_span(rule, MO_EVEN_ODD, s);                                                           \
    }                                                                                              \
    static __attribute__((noinline)) void name##_f32(const mo_optim_span *s)                       \
    {                                                                                              \
        step_span(rule, MO_HALVES, s);                                                             \
    }                                                                                              \
    static void name##_span(const mo_optim_span *s)                                                \
    {                                                                                              \
        if (s->absmax1 == NULL)                                                                    \
            span32(s);                                                                             \
        else if (s->parameter_dtype == MO_DTYPE_BF16 && s->gradient_dtype == MO_DTYPE_BF16 &&      \
                 !s->stochastic && s->copy == NULL)                                                \
            name##_bf16(s);                                                                        \
        else                                                                                       \
            name##_f32(s);                                                                         \
    }                                                                                              \
    void name(const void *args, uint64_t begin, uint64_t end)                                      \
    {                                                                                              \
        mo_each_span(args, begin, end, name##_span);                                               \
    }

STEP(mo_optim_step_avx2, MO_RULE_ADAMW, mo_adamw32_span_avx2)
STEP(mo_step_adam8_avx2, MO_RULE_ADAM, mo_adam32_span_avx2)
STEP(mo_step_lion8_avx2, MO_RULE_LION, mo_lion32_span_avx2)
STEP(mo_step_sgd8_avx2, MO_RULE_SGD, mo_sgd32_span_avx2)
