/*
 * The steps with 8-bit states on AVX2: AdamW, Adam, Lion, SGD with a momentum, RMSprop and
 * AdEMAMix. A block of 256 elements is gone through twice. The first time decodes the moments,
 * brings them up to date and finds the largest; between the two they live as fp32 in the
 * first-level cache. The second time codes them and, of AdamW, Adam and AdEMAMix, updates the
 * parameters; it takes turns with the first time of the block behind it, since the one waits for
 * loads and the other for arithmetic. Nothing is written before both moments of the block are known
 * to be finite; the scalar form does a block that is not, and a shorter last one.
 *
 * Parameters and gradients of bf16 have a form of their own (MO_EVEN_ODD); others go through fp32,
 * where they are not fp32 already (MO_HALVES).
 */
#include "kernels/optim/step_simd.h"

enum { BLOCK = MO_BLOCK_SIZE };

/* A block between the two times; i below is relative to it. */
typedef struct block {
    _Alignas(32) float new_m[BLOCK];
    _Alignas(32) float new_v[BLOCK];
    _Alignas(32) float new_slow[BLOCK];
    _Alignas(32) float new_p[BLOCK]; /* unless updates_late */
    mo_coder first, second, third;   /* what codes m, v and slow */
    /* where it is read and written; p and g as fp32, or else bf16 */
    uint8_t *m, *v, *slow;
    void *p;
    const void *g;
    float scale1, scale2, slow_scale;
    uint64_t at;
} block;

typedef struct constants {
    mo_lane_coef coef;
    mo_steps first, second, third;
} constants;

/* How many groups of a block were in doubt: mo_encode32_store. */
typedef struct doubts {
    int first, second, third;
} doubts;

/* The parameter waits for the second time: it needs a root and a division of new moments only. */
MO_INLINE int updates_late(uint32_t rule)
{
    return rule == MO_RULE_ADAMW || rule == MO_RULE_ADAM || rule == MO_RULE_ADEMAMIX;
}

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

/* The moments of AdamW, Adam and AdEMAMix. A v beyond FLT_MAX is left to the scalar form. */
MO_INLINE void late_moments(uint32_t rule, const mo_lane_coef *c, __m256 g, __m256 p, __m256 *m,
                            __m256 *v, __m256 *slow)
{
    __m256 h = _mm256_mul_ps(g, c->factor);
    if (rule == MO_RULE_ADAM)
        h = _mm256_fmadd_ps(c->decay, p, h);
    *m = _mm256_fmadd_ps(c->beta1, *m, _mm256_mul_ps(c->one_minus_beta1, h));
    *v = _mm256_fmadd_ps(c->beta2, *v, _mm256_mul_ps(_mm256_mul_ps(c->one_minus_beta2, h), h));
    if (rule == MO_RULE_ADEMAMIX)
        *slow = _mm256_fmadd_ps(c->beta3, *slow, _mm256_mul_ps(c->one_minus_beta3, h));
}

MO_INLINE __m256 late_parameter(uint32_t rule, const mo_lane_coef *c, __m256 p, __m256 m, __m256 v,
                                __m256 slow)
{
    if (rule == MO_RULE_ADEMAMIX)
        m = _mm256_fmadd_ps(c->mix, slow, m);
    __m256 u = _mm256_div_ps(m, _mm256_add_ps(_mm256_sqrt_ps(v), c->eps));
    return _mm256_fmadd_ps(c->rate, u, rule == MO_RULE_ADAM ? p : _mm256_fmadd_ps(c->decay, p, p));
}

MO_INLINE __m256 lion(const mo_lane_coef *c, __m256 g, __m256 p, __m256 *m)
{
    const __m256 zero = _mm256_setzero_ps(), sign = _mm256_set1_ps(-0.0f);
    __m256 h = _mm256_mul_ps(g, c->factor);
    __m256 x = _mm256_fmadd_ps(c->beta1, *m, _mm256_mul_ps(c->one_minus_beta1, h));
    __m256 one = _mm256_or_ps(_mm256_and_ps(x, sign), _mm256_set1_ps(1.0f));
    __m256 u = _mm256_blendv_ps(x, one, _mm256_cmp_ps(x, zero, _CMP_NEQ_OQ));
    *m = _mm256_fmadd_ps(c->beta2, *m, _mm256_mul_ps(c->one_minus_beta2, h));
    return _mm256_fmadd_ps(c->rate, u, _mm256_fmadd_ps(c->decay, p, p));
}

/* The rules that are done the first time. */
MO_INLINE __m256 update8(uint32_t rule, const mo_lane_coef *c, __m256 g, __m256 p, __m256 *m,
                         __m256 *v)
{
    __m256 slow = p, root;
    return rule == MO_RULE_LION ? lion(c, g, p, m) : lane_rule(rule, c, g, p, m, v, &slow, &root);
}

/* --- a block --------------------------------------------------------------------------------- */

typedef struct largest {
    __m256i m, v, slow; /* of the magnitudes' bits */
} largest;

MO_INLINE __m256i larger(__m256i top, mo_f32x16 m)
{
    top = _mm256_max_epu32(top, mo_magnitude_ints8(m.a));
    return _mm256_max_epu32(top, mo_magnitude_ints8(m.b));
}

/* Of what is not negative unless the state was. */
MO_INLINE __m256i larger_bits(__m256i top, mo_f32x16 v)
{
    top = _mm256_max_epu32(top, _mm256_castps_si256(v.a));
    return _mm256_max_epu32(top, _mm256_castps_si256(v.b));
}

/* The first time: elements i to i + 15. */
MO_INLINE void update16(uint32_t rule, int order, const constants *k, block *b, int i, largest *top)
{
    const mo_lane_coef *c = &k->coef;
    const int is_signed = mo_rule_first_signed(rule);
    mo_f32x16 g = load16(b->g, i, order), p = g;
    mo_f32x16 m = mo_decode16(is_signed ? mo_map_signed : mo_map_unsigned, b->m + i,
                              _mm256_set1_ps(b->scale1), order);
    mo_f32x16 v = m, slow = m;
    if (mo_rule_has_second(rule))
        v = mo_decode16(mo_map_unsigned, b->v + i, _mm256_set1_ps(b->scale2), order);
    if (mo_rule_has_slow(rule))
        slow = mo_decode16(mo_map_signed, b->slow + i, _mm256_set1_ps(b->slow_scale), order);
    if (!updates_late(rule) || rule == MO_RULE_ADAM)
        p = load16(b->p, i, order);
    if (updates_late(rule)) {
        late_moments(rule, c, g.a, p.a, &m.a, &v.a, &slow.a);
        late_moments(rule, c, g.b, p.b, &m.b, &v.b, &slow.b);
    } else {
        p.a = update8(rule, c, g.a, p.a, &m.a, &v.a);
        p.b = update8(rule, c, g.b, p.b, &m.b, &v.b);
        mo_write16(b->new_p + i, p);
    }
    top->m = is_signed ? larger(top->m, m) : larger_bits(top->m, m);
    mo_write16(b->new_m + i, m);
    if (mo_rule_has_second(rule)) {
        top->v = larger_bits(top->v, v);
        mo_write16(b->new_v + i, v);
    }
    if (mo_rule_has_slow(rule)) {
        top->slow = larger(top->slow, slow);
        mo_write16(b->new_slow + i, slow);
    }
}

/* The second time: elements i to i + 31. */
MO_INLINE void finish32(uint32_t rule, int order, const constants *k, const block *b, int i,
                        doubts *d)
{
    for (int j = i; j < i + 32; j += 16) {
        if (updates_late(rule)) {
            mo_f32x16 m = mo_read16(b->new_m + j), v = mo_read16(b->new_v + j), slow = m;
            mo_f32x16 p = load16(b->p, j, order);
            if (mo_rule_has_slow(rule))
                slow = mo_read16(b->new_slow + j);
            p.a = late_parameter(rule, &k->coef, p.a, m.a, v.a, slow.a);
            p.b = late_parameter(rule, &k->coef, p.b, m.b, v.b, slow.b);
            store16(b->p, j, order, p);
        } else {
            store16(b->p, j, order, mo_read16(b->new_p + j));
        }
    }
    if (mo_rule_first_signed(rule))
        mo_encode32_store(&k->first, &b->first, b->new_m + i, order, 1, b->m + i, &d->first);
    else
        mo_encode32_store(&k->first, &b->first, b->new_m + i, order, 0, b->m + i, &d->first);
    if (mo_rule_has_second(rule))
        mo_encode32_store(&k->second, &b->second, b->new_v + i, order, 0, b->v + i, &d->second);
    if (mo_rule_has_slow(rule))
        mo_encode32_store(&k->third, &b->third, b->new_slow + i, order, 1, b->slow + i, &d->third);
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
    if (mo_rule_has_slow(rule)) {
        b->slow = (uint8_t *)s->slow + at;
        b->slow_scale = s->slow_absmax[at / BLOCK];
    }
}

MO_INLINE mo_coder settle_moment(uint32_t top, int is_signed, float *absmax)
{
    mo_block_scale scale = mo_block_scale_of(top);
    *absmax = scale.absmax;
    return mo_coder_of(&scale, is_signed ? &mo_lines_signed : &mo_lines_unsigned);
}

/* Between the two times. 0: the block is not finite; the scalar form has done it. */
MO_INLINE int settle_block(uint32_t rule, const mo_optim_span *s, block *b, const largest *top)
{
    uint32_t top1 = v_largestu(top->m), top2 = v_largestu(top->v);
    uint32_t top3 = mo_rule_has_slow(rule) ? v_largestu(top->slow) : 0;
    if (__builtin_expect(
            top1 >= MO_F32_INF_BITS || top2 >= MO_F32_INF_BITS || top3 >= MO_F32_INF_BITS, 0)) {
        mo_step_block_scalar(rule, MO_STATE_8BIT, s, b->at);
        return 0;
    }
    b->first = settle_moment(top1, mo_rule_first_signed(rule), &s->absmax1[b->at / BLOCK]);
    if (mo_rule_has_second(rule))
        b->second = settle_moment(top2, 0, &s->absmax2[b->at / BLOCK]);
    if (mo_rule_has_slow(rule))
        b->third = settle_moment(top3, 1, &s->slow_absmax[b->at / BLOCK]);
    return 1;
}

/* The first time of one block and the second time of the one before it, or NULL. */
MO_INLINE int step_pair(uint32_t rule, int order, const mo_optim_span *s, const constants *k,
                        block *now, const block *before)
{
    const __m256i zero = _mm256_setzero_si256();
    largest top = {zero, zero, zero};
    doubts d = {0, 0, 0};
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
    doubts d = {0, 0, 0};
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

MO_ONE_COPY void write_narrow(const mo_optim_span *s, uint64_t at, const float *values)
{
    lane_write_narrow(s, at, BLOCK, values);
}

/* Whole blocks; gives where the last ends. */
MO_INLINE uint64_t step_f32(uint32_t rule, const mo_optim_span *s, const constants *k)
{
    block b;
    float p[BLOCK], g[BLOCK];
    uint64_t at = 0;
    for (; at + BLOCK <= s->count; at += BLOCK) {
        begin_block(rule, s, at, &b);
        b.g = lane_floats(s->gradient, at, s->gradient_dtype, BLOCK, g);
        b.p = (void *)(uintptr_t)lane_floats(s->parameter, at, s->parameter_dtype, BLOCK, p);
        if (!step_pair(rule, MO_HALVES, s, k, &b, NULL))
            continue;
        finish_block(rule, MO_HALVES, k, &b);
        write_narrow(s, at, b.p);
    }
    return at;
}

/* --- spans ----------------------------------------------------------------------------------- */

MO_INLINE void step_span(uint32_t rule, int order, const mo_optim_span *s)
{
    const int is_signed = mo_rule_first_signed(rule);
    constants k = {.coef = mo_lane_coef_of(&s->coef),
                   .first =
                       mo_steps_of(is_signed ? &mo_lines_signed : &mo_lines_unsigned, is_signed),
                   .second = mo_steps_of(&mo_lines_unsigned, 0),
                   .third = mo_steps_of(&mo_lines_signed, 1)};
    uint64_t at = order == MO_EVEN_ODD ? step_bf16(rule, s, &k) : step_f32(rule, s, &k);
    if (at < s->count)
        mo_step_block_scalar(rule, MO_STATE_8BIT, s, at);
}

#define STEP(kernel, rule, format)                                                                 \
    static __attribute__((noinline)) void kernel##_bf16(const mo_optim_span *s)                    \
    {                                                                                              \
        step_span(MO_RULE_##rule, MO_EVEN_ODD, s);                                                 \
    }                                                                                              \
    static __attribute__((noinline)) void kernel##_f32(const mo_optim_span *s)                     \
    {                                                                                              \
        step_span(MO_RULE_##rule, MO_HALVES, s);                                                   \
    }                                                                                              \
    static void kernel##_span(const mo_optim_span *s)                                              \
    {                                                                                              \
        if (s->absmax1 == NULL)                                                                    \
            mo_span32_avx2(MO_RULE_##rule, s);                                                     \
        else if (s->parameter_dtype == MO_DTYPE_BF16 && s->gradient_dtype == MO_DTYPE_BF16 &&      \
                 !s->stochastic && s->copy == NULL)                                                \
            kernel##_bf16(s);                                                                      \
        else                                                                                       \
            kernel##_f32(s);                                                                       \
    }                                                                                              \
    void mo_step_##kernel##_avx2(const void *args, uint64_t begin, uint64_t end)                   \
    {                                                                                              \
        mo_each_span(args, begin, end, kernel##_span);                                             \
    }
MO_EACH_STEP_8BIT(STEP)
