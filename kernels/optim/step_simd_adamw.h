/*
 * AdamW with coded states, over the vectors of one instruction set: the formats whose codes are
 * computed (companded).
 *
 * A block goes through two loops. The first decodes its moments, brings them up to date and finds
 * the largest; the second takes the quotients and writes codes and parameters. The first loop of
 * the next block runs in between, so that the scales are there when they are needed. Meanwhile the
 * moments are fp32 in the first-level cache. Nothing is written before the block is known to be
 * finite; the scalar form does a block that is not, and a shorter last one.
 */
#include "kernels/optim/step_simd.h"

/* What the loops read and write themselves: fp32, bf16, or an fp32 parameter with a bf16 gradient
 * and perhaps a bf16 copy. Other types go through fp32. */
enum { ADAMW_F32, ADAMW_BF16, ADAMW_MASTER };

enum { ADAMW_GROUP = 4 * MO_LANES_N };

typedef struct mo_adamw_block {
    _Alignas(64) float m[LANE_BLOCK];
    float v[LANE_BLOCK];          /* of companded states the root */
    float *g_room, *p_room;       /* where they are converted */
    mo_lane_moment first, second; /* as they were */
    mo_block_scale scale1, scale2;
    uint8_t *m_codes, *v_codes;
    const void *g;
    void *p, *copy;
    int tiny;
} mo_adamw_block;

/* What the first loop finds. A NaN in m need not count: v or a scale is then not finite either. */
typedef struct mo_adamw_seen {
    VF largest1;
    VI largest2; /* as unsigned integers */
    uint64_t odd;
} mo_adamw_seen;

/* --- the first loop -------------------------------------------------------------------------- */

MO_INLINE void adamw_moments(const mo_lane_coef *c, mo_adamw_block *w, uint32_t format, uint32_t i,
                             VF g, VF m, VF v, mo_adamw_seen *seen)
{
    VF h = v_mul(g, c->factor);
    m = v_fma(c->beta1, m, v_mul(c->one_minus_beta1, h));
    v = v_fma(c->beta2, v, v_mul(v_mul(c->one_minus_beta2, h), h));
    v_store(w->m + i, m);
    v_store(w->v + i, format == MO_STATE_COMPANDED ? v_sqrt(v) : v);
    seen->largest1 = v_max_magnitude(seen->largest1, m);
    seen->largest2 = v_maxu(seen->largest2, v_ints(v));
}

/* ADAMW_GROUP elements. */
MO_INLINE void adamw_first(uint32_t format, int way, const mo_lane_coef *c,
                           const mo_lane_table *table, mo_adamw_block *w, uint32_t at,
                           mo_adamw_seen *seen)
{
    VF m[4], g[4];
    int known = v_look_companded(format, table, &w->first.codes[at], w->first.scale, m, &seen->odd);
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t i = at + k * MO_LANES_N;
        if (k % 2 == 0)
            v_load2_as(w->g, i, way == ADAMW_F32 ? MO_DTYPE_F32 : MO_DTYPE_BF16, g + k);
        adamw_moments(c, w, format, i, g[k], known ? m[k] : lane_value(format, 1, &w->first, i),
                      lane_value(format, 0, &w->second, i), seen);
    }
}

/* --- the second loop ------------------------------------------------------------------------- */

MO_INLINE void adamw_put_halves(int way, const mo_adamw_block *w, uint32_t at, const VF x[4],
                                int careful)
{
    if (way == ADAMW_BF16)
        v_store_bf16x4((uint16_t *)w->p + at, x, careful);
    if (way == ADAMW_MASTER && w->copy != NULL)
        v_store_bf16x4((uint16_t *)w->copy + at, x, careful);
}

MO_INLINE void adamw_put(int way, const mo_adamw_block *w, uint32_t at, VF x[4])
{
    if (__builtin_expect(v_odd4(x), 0)) {
        for (int k = 0; k < 4; k++)
            x[k] = v_one_nan(x[k]);
        adamw_put_halves(way, w, at, x, 1);
    } else {
        adamw_put_halves(way, w, at, x, 0);
    }
    for (uint32_t k = 0; k < 4 && way != ADAMW_BF16; k++)
        v_store((float *)w->p + at + k * MO_LANES_N, x[k]);
}

MO_INLINE void adamw_code(uint32_t format, int is_signed, const float *values, float inverse,
                          uint8_t *codes, uint32_t at)
{
    VI bytes = lane_codes(format, is_signed, values + at, v_set(inverse));
    if (mo_format_is_4bit(format))
        v_store_bytes4(codes + at / 2, bytes);
    else
        v_put(codes + at, bytes, 0);
}

/* ADAMW_GROUP elements. The quotients come first: the coding does not wait for them. */
MO_INLINE void adamw_second(uint32_t format, int way, const mo_lane_coef *c,
                            const mo_adamw_block *w, uint32_t at)
{
    VF u[4], p[4];
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t i = at + k * MO_LANES_N;
        VF root = v_load(w->v + i);
        if (format != MO_STATE_COMPANDED)
            root = v_sqrt(root);
        u[k] = v_div(v_load(w->m + i), v_add(root, c->eps));
    }
    adamw_code(format, 1, w->m, w->scale1.inverse, w->m_codes, at);
    adamw_code(format, 0, w->v, w->scale2.inverse, w->v_codes, at);
    v_load2_as(w->p, at, way == ADAMW_BF16 ? MO_DTYPE_BF16 : MO_DTYPE_F32, p);
    v_load2_as(w->p, at + 2 * MO_LANES_N, way == ADAMW_BF16 ? MO_DTYPE_BF16 : MO_DTYPE_F32, p + 2);
    for (int k = 0; k < 4; k++)
        p[k] = v_fma(c->rate, u[k], v_fma(c->decay, p[k], p[k]));
    adamw_put(way, w, at, p);
}

/* --- blocks ---------------------------------------------------------------------------------- */

MO_INLINE void adamw_begin(uint32_t format, int way, const mo_optim_span *s, uint64_t at,
                           mo_adamw_block *w)
{
    uint32_t n = mo_format_block(format);
    w->first = lane_moment(format, s->m, s->absmax1[at / n], at);
    w->second = lane_moment(format, s->v, s->absmax2[at / n], at);
    w->m_codes = (uint8_t *)s->m + mo_format_bytes(format, at);
    w->v_codes = (uint8_t *)s->v + mo_format_bytes(format, at);
    w->g = mo_element_at(s->gradient, at, s->gradient_dtype);
    w->p = mo_element_at(s->parameter, at, s->parameter_dtype);
    w->copy = mo_element_at(s->copy, at, s->copy_dtype);
    if (way != ADAMW_F32)
        return;
    w->g = lane_floats(s->gradient, at, s->gradient_dtype, n, w->g_room);
    if (s->parameter_dtype != MO_DTYPE_F32) {
        lane_read(s->parameter, at, s->parameter_dtype, n, w->p_room);
        w->p = w->p_room;
    }
}

/* Not zero, and so small that the values need a prescale. */
MO_INLINE int adamw_tiny(const mo_block_scale *scale)
{
    return scale->prescale != 1.0f && scale->absmax != 0.0f;
}

/* Codes such a block again. */
static __attribute__((noinline)) void adamw_code_tiny(uint32_t format, mo_adamw_block *w)
{
    const uint32_t n = mo_format_block(format);
    lane_prescale(format, w->m, n, &w->scale1);
    lane_prescale(format, w->v, n, &w->scale2);
    lane_encode(format, 1, w->m, n, &w->scale1, w->m_codes);
    lane_encode(format, 0, w->v, n, &w->scale2, w->v_codes);
}

/* Between the loops. 0: the scalar form has done the block. */
MO_INLINE int adamw_settle(uint32_t format, const mo_optim_span *s, uint64_t at,
                           const mo_adamw_seen *seen, mo_adamw_block *w)
{
    const uint32_t n = mo_format_block(format);
    uint64_t block = at / n;
    uint32_t largest1 = v_largest(v_ints(seen->largest1)), largest2 = v_largestu(seen->largest2);
    if (__builtin_expect(largest1 >= MO_F32_INF_BITS || largest2 >= MO_F32_INF_BITS ||
                             !mo_f32_is_finite(s->absmax1[block]) || seen->odd != 0 ||
                             lane_odd_scale(format, s->absmax2[block]),
                         0)) {
        mo_step_block_scalar(MO_RULE_ADAMW, format, s, at);
        return 0;
    }
    w->scale1 = mo_format_scale(format, 1, largest1);
    w->scale2 = mo_format_scale(format, 0, largest2);
    s->absmax1[block] = w->scale1.absmax;
    s->absmax2[block] = w->scale2.absmax;
    w->tiny = adamw_tiny(&w->scale1) || adamw_tiny(&w->scale2);
    return 1;
}

MO_INLINE void adamw_blocks(uint32_t format, int way, const mo_optim_span *s)
{
    const uint32_t n = mo_format_block(format);
    const mo_lane_coef c = mo_lane_coef_of(&s->coef);
    const mo_lane_table table = mo_lane_table_of(format);
    _Alignas(64) float room[4][LANE_BLOCK];
    mo_adamw_block blocks[2] = {{.g_room = room[0], .p_room = room[1]},
                                {.g_room = room[2], .p_room = room[3]}};
    mo_adamw_block *before = NULL;
    uint64_t whole = s->count / n * n;
    for (uint64_t at = 0; at < whole || before != NULL; at += n) {
        mo_adamw_block *now = &blocks[at / n % 2];
        mo_adamw_seen seen = {v_set(0.0f), v_seti(0), 0};
        if (at < whole) {
            adamw_begin(format, way, s, at, now);
            for (uint32_t i = 0; i < n; i += ADAMW_GROUP)
                adamw_first(format, way, &c, &table, now, i, &seen);
        }
        if (before != NULL) {
            for (uint32_t i = 0; i < n; i += ADAMW_GROUP)
                adamw_second(format, way, &c, before, i);
            if (__builtin_expect(before->tiny, 0))
                adamw_code_tiny(format, before);
            if (way == ADAMW_F32)
                lane_write_narrow(s, at - n, n, before->p);
        }
        before = at < whole && adamw_settle(format, s, at, &seen, now) ? now : NULL;
    }
    if (whole < s->count)
        mo_step_block_scalar(MO_RULE_ADAMW, format, s, whole);
}

/* --- the forms ------------------------------------------------------------------------------- */

#define WAY(name, format, way)                                                                     \
    static __attribute__((noinline)) void name(const mo_optim_span *s)                             \
    {                                                                                              \
        adamw_blocks(MO_STATE_##format, way, s);                                                   \
    }

/* What is not rounded to bf16: on AVX-512 with BF16 as with VBMI. Of 32-bit states AdamW's form. */
#if defined(__AVX512BF16__)
#define OTHERS(kernel, format)
#define OTHERS_OF(kernel) mo_##kernel##_span_avx512vbmi
#else
#if defined(__AVX512F__)
#define SPAN32 mo_adamw8_span32_avx512
#else
#define SPAN32 mo_adamw8_span32_avx2
#endif
#define OTHERS(kernel, format)                                                                     \
    WAY(kernel##_f32, format, ADAMW_F32)                                                           \
    static void kernel##_others(const mo_optim_span *s)                                            \
    {                                                                                              \
        if (s->absmax1 == NULL)                                                                    \
            SPAN32(s);                                                                             \
        else                                                                                       \
            kernel##_f32(s);                                                                       \
    }
#define OTHERS_OF(kernel) kernel##_others
#endif

#define STEP(kernel, rule, format)                                                                 \
    OTHERS(kernel, format)                                                                         \
    WAY(kernel##_bf16, format, ADAMW_BF16)                                                         \
    WAY(kernel##_master, format, ADAMW_MASTER)                                                     \
    void MO_FORM(mo_##kernel##_span)(const mo_optim_span *s)                                       \
    {                                                                                              \
        int bf16 = s->absmax1 != NULL && s->gradient_dtype == MO_DTYPE_BF16;                       \
        if (bf16 && s->parameter_dtype == MO_DTYPE_BF16 && !s->stochastic && s->copy == NULL)      \
            kernel##_bf16(s);                                                                      \
        else if (bf16 && s->parameter_dtype == MO_DTYPE_F32 &&                                     \
                 (s->copy == NULL || s->copy_dtype == MO_DTYPE_BF16))                              \
            kernel##_master(s);                                                                    \
        else                                                                                       \
            OTHERS_OF(kernel)(s);                                                                  \
    }                                                                                              \
    void MO_FORM(mo_step_##kernel)(const void *args, uint64_t begin, uint64_t end)                 \
    {                                                                                              \
        mo_each_span(args, begin, end, MO_FORM(mo_##kernel##_span));                               \
    }
MO_EACH_STEP_COMPUTED(STEP)
