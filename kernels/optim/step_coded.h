/*
 * Any rule with coded states, over the vectors of one instruction set.
 *
 * A block is gone through twice. The first time decodes its moments, brings them up to date and
 * finds the largest; the second time writes codes and parameters. In between comes the first time
 * of the next block, so that the scales are there when they are needed. Meanwhile the moments are
 * fp32 in the first-level cache, and so are the new parameters unless they are late: then the
 * second time computes them. Nothing is written before the block is known to be finite; the scalar
 * form does a block that is not, and a shorter last one.
 *
 * Each time is a loop. Only on AVX-512 and with codes of tables (8-bit) they take turns, since the
 * one waits for loads and the other for arithmetic. Computed codes (companded) leave the parameters
 * of some rules to the second time, whose arithmetic their divisions hide behind.
 *
 * The first header has the words of tables: v_order, v_turns, V_PART, v_decode_part, v_coder,
 * v_coding.
 */
#include "kernels/core/prefetch.h"
#include "kernels/optim/step_simd.h"

enum { GROUP = 4 * MO_LANES_N };

/* What is constant in a form, at best. */
typedef struct mo_form {
    uint32_t rule, format;
    int g, p; /* what the loops read and write themselves: fp32 and bf16; others go through fp32 */
    int copies; /* there is a copy of bf16 */
    int scaled; /* gradients have a factor that is not 1 */
} mo_form;

/* A moment of a block. */
typedef struct mo_coded_moment {
    float *values; /* the new ones */
    mo_lane_moment was;
    mo_block_scale scale;
    v_coder coder;
    uint8_t *codes;
} mo_coded_moment;

typedef struct mo_coded_block {
    _Alignas(64) float m[LANE_BLOCK];
    float v[LANE_BLOCK];
    mo_coded_moment of[3];         /* m, v, slow */
    float *g_room, *p_room, *slow; /* elsewhere: two of these must not lie 4 KiB apart */
    const void *g;
    void *p, *copy;
    int tiny;
} mo_coded_block;

/* Where a block's times read and write. They take a copy of it: what `w` has would be loaded again behind
 * each store of a vector, which may be to anywhere. */
typedef struct mo_coded_view {
    const void *g;
    void *p, *copy;
    float *p_room, *slow;
    mo_lane_moment was[3];
    uint8_t *codes[3];
    float inverse[3];
} mo_coded_view;

/* What the first time finds. Of a rule that lane_is_late a NaN in m need not count: v or a scale is
 * then not finite either. */
typedef struct mo_coded_seen {
    VF late_largest;
    VI largest[3]; /* as unsigned integers */
} mo_coded_seen;

/* Constants of a span. */
typedef struct mo_coded_span {
    mo_lane_coef c;
    v_steps steps[2]; /* of unsigned and of signed codes */
} mo_coded_span;

MO_INLINE int has_tables(mo_form f)
{
    return f.format == MO_STATE_8BIT;
}

/* Whether the second time computes the parameters. */
MO_INLINE int is_late(mo_form f)
{
    return lane_is_late(f.rule) && !has_tables(f);
}

/* With tables through pointers: gcc moves loads of arrays that it knows over stores, and runs out
 * of registers (10 % slower). */
MO_INLINE float *values_of(mo_form f, mo_coded_block *w, int moment)
{
    return has_tables(f) ? w->of[moment].values : moment == 0 ? w->m : moment == 1 ? w->v : w->slow;
}

MO_INLINE int has(mo_form f, int moment)
{
    return moment == 0 || (moment == 1 ? mo_rule_has_second(f.rule) : mo_rule_has_slow(f.rule));
}

MO_INLINE mo_coded_view view_of(const mo_coded_block *w)
{
    mo_coded_view at = {
        .g = w->g, .p = w->p, .copy = w->copy, .p_room = w->p_room, .slow = w->slow};
    for (int k = 0; k < 3; k++) {
        at.was[k] = w->of[k].was;
        at.codes[k] = w->of[k].codes;
        at.inverse[k] = w->of[k].scale.inverse;
    }
    return at;
}

MO_INLINE int is_signed(mo_form f, int moment)
{
    return moment == 0 ? mo_rule_first_signed(f.rule) : moment == 2 ? MO_SLOW : 0;
}

/* --- 2 * MO_LANES_N elements ------------------------------------------------------------------ */

MO_INLINE void load2(mo_form f, int dtype, const void *data, uint64_t i, VF x[2])
{
    lane_load2(v_order(f) == MO_EVEN_ODD, data, i,
               dtype == MO_DTYPE_F32 ? MO_DTYPE_F32 : MO_DTYPE_BF16, x);
}

MO_INLINE void put_halves(mo_form f, const mo_coded_view *to, uint32_t at, const VF x[4],
                          int careful)
{
    if (v_order(f) == MO_EVEN_ODD) {
        lane_store_pairs((uint16_t *)to->p + at, x);
        lane_store_pairs((uint16_t *)to->p + at + 2 * MO_LANES_N, x + 2);
    } else if (f.p == MO_DTYPE_BF16) {
        v_store_bf16x4((uint16_t *)to->p + at, x, careful);
    }
    if (f.copies)
        v_store_bf16x4((uint16_t *)to->copy + at, x, careful);
}

/* New parameters, GROUP elements. */
MO_INLINE void put(mo_form f, const mo_coded_view *to, uint32_t at, VF x[4])
{
    if (__builtin_expect(v_odd4(x), 0)) {
        for (int k = 0; k < 4; k++)
            x[k] = v_one_nan(x[k]);
        put_halves(f, to, at, x, 1);
    } else {
        put_halves(f, to, at, x, 0);
    }
    for (uint32_t k = 0; k < 4 && f.p == MO_DTYPE_F32; k++)
        v_store((float *)to->p + at + k * MO_LANES_N, x[k]);
}

/* --- the first time --------------------------------------------------------------------------- */

MO_INLINE void note(mo_form f, VF m, VF v, VF slow, mo_coded_seen *seen)
{
    const VI magnitude = v_seti(0x7fffffff);
    if (lane_is_late(f.rule))
        seen->late_largest = v_max_magnitude(seen->late_largest, m);
    else if (is_signed(f, 0))
        seen->largest[0] = v_maxu(seen->largest[0], v_and(v_ints(m), magnitude));
    else
        seen->largest[0] = v_maxu(seen->largest[0], v_ints(m));
    if (has(f, 1))
        seen->largest[1] = v_maxu(seen->largest[1], v_ints(v));
    if (has(f, 2))
        seen->largest[2] = v_maxu(seen->largest[2], v_and(v_ints(slow), magnitude));
}

/* MO_LANES_N elements from i on, of these moments; h: the scaled gradients. */
MO_INLINE void update1(mo_form f, const mo_lane_coef *c, mo_coded_block *w, const mo_coded_view *of,
                       uint32_t i, VF h, VF p, VF m, VF v, VF slow, mo_coded_seen *seen)
{
    if (lane_is_late(f.rule)) {
        lane_moments(f.rule, c, h, p, &m, &v, &slow);
        if (!is_late(f))
            v_store(of->p_room + i,
                    lane_moved(f.rule, c, p, lane_quotient(f.rule, c, m, slow, v_sqrt(v))));
    } else {
        v_store(of->p_room + i, lane_rule(f.rule, c, h, p, &m, &v, &slow));
    }
    v_store(w->m + i, m);
    if (has(f, 1))
        v_store(w->v + i, v);
    if (has(f, 2))
        v_store(of->slow + i, slow);
    note(f, m, v, slow, seen);
}

/* MO_LANES_N values of a moment from i on. */
MO_INLINE VF value1(mo_form f, int moment, const mo_coded_view *of, uint32_t i)
{
    return lane_value(f.format, is_signed(f, moment), &of->was[moment], i);
}

/* Decoded moments of V_PART elements. */
typedef struct mo_decoded {
    VF of[3][V_PART / MO_LANES_N];
} mo_decoded;

MO_INLINE void decode(mo_form f, const mo_coded_block *w, uint32_t at, mo_decoded *x)
{
    if (is_signed(f, 0))
        v_decode_part(1, w->of[0].was.codes + at, w->of[0].was.scale, v_order(f), x->of[0]);
    else
        v_decode_part(0, w->of[0].was.codes + at, w->of[0].was.scale, v_order(f), x->of[0]);
    if (has(f, 1))
        v_decode_part(0, w->of[1].was.codes + at, w->of[1].was.scale, v_order(f), x->of[1]);
    if (has(f, 2))
        v_decode_part(1, w->of[2].was.codes + at, w->of[2].was.scale, v_order(f), x->of[2]);
}

/* V_PART elements; x: decoded moments, where codes have tables. */
MO_INLINE void update(mo_form f, const mo_lane_coef *c, mo_coded_block *w, const mo_coded_view *of,
                      uint32_t at, const mo_decoded *x, mo_coded_seen *seen)
{
    for (uint32_t i = 0; i < V_PART; i += 2 * MO_LANES_N) {
        VF g[2], p[2];
        load2(f, f.g, of->g, at + i, g);
        if (is_late(f) && f.rule != MO_RULE_ADAM) /* it needs no parameter here */
            memcpy(p, g, sizeof p);
        else
            load2(f, f.p, of->p, at + i, p);
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t lane = i / MO_LANES_N + k, from = at + i + k * MO_LANES_N;
            VF m = has_tables(f) ? x->of[0][lane] : value1(f, 0, of, from), v = m, slow = m;
            if (has(f, 1))
                v = has_tables(f) ? x->of[1][lane] : value1(f, 1, of, from);
            if (has(f, 2))
                slow = has_tables(f) ? x->of[2][lane] : value1(f, 2, of, from);
            update1(f, c, w, of, from, f.scaled ? v_mul(g[k], c->factor) : g[k], p[k], m, v, slow,
                    seen);
        }
    }
}

/* --- the second time -------------------------------------------------------------------------- */

MO_INLINE void code4(mo_form f, int moment, mo_coded_block *w, const mo_coded_view *to, uint32_t at)
{
    VI bytes = lane_codes(f.format, is_signed(f, moment), values_of(f, w, moment) + at,
                          v_set(to->inverse[moment]));
    if (mo_format_is_4bit(f.format))
        v_store_bytes4(to->codes[moment] + at / 2, bytes);
    else
        v_put(to->codes[moment] + at, bytes, 0);
}

/* The late quotients of MO_LANES_N elements. */
MO_INLINE VF quotient1(mo_form f, const mo_lane_coef *c, const mo_coded_block *w, uint32_t i)
{
    VF m = v_load(w->m + i), slow = m;
    if (has(f, 2))
        slow = v_load(w->slow + i);
    return lane_quotient(f.rule, c, m, slow, v_sqrt(v_load(w->v + i)));
}

/* GROUP new parameters; u: their quotients, where they are late. */
MO_INLINE void parameters4(mo_form f, const mo_lane_coef *c, const mo_coded_view *to, uint32_t at,
                           const VF u[4])
{
    VF p[4];
    for (uint32_t k = 0; k < 4; k += 2)
        if (is_late(f))
            load2(f, f.p, to->p, at + k * MO_LANES_N, p + k);
        else
            v_load2_as(to->p_room, at + k * MO_LANES_N, MO_DTYPE_F32, p + k);
    for (uint32_t k = 0; k < 4 && is_late(f); k++)
        p[k] = lane_moved(f.rule, c, p[k], u[k]);
    put(f, to, at, p);
}

/* GROUP elements of computed codes. The quotients come first: the coding does not wait for them. */
MO_INLINE void finish_computed(mo_form f, const mo_lane_coef *c, mo_coded_block *w,
                               const mo_coded_view *to, uint32_t at)
{
    VF u[4];
    for (uint32_t k = 0; k < 4 && is_late(f); k++)
        u[k] = quotient1(f, c, w, at + k * MO_LANES_N);
    code4(f, 0, w, to, at);
    if (has(f, 1))
        code4(f, 1, w, to, at);
    if (has(f, 2))
        code4(f, 2, w, to, at);
    parameters4(f, c, to, at, u);
}

/* --- both, in turn ---------------------------------------------------------------------------- */

MO_INLINE void code_begin(mo_form f, const mo_coded_block *w, uint32_t at, v_coding x[2])
{
    const mo_coded_moment *m = &w->of[0], *v = has(f, 1) ? &w->of[1] : m, *slow = &w->of[2];
    v_code_begin(m->values + at, &m->coder, v->values + at, &v->coder, &x[0]);
    if (has(f, 2))
        v_code_begin(slow->values + at, &slow->coder, slow->values + at, &slow->coder, &x[1]);
}

MO_INLINE void code_compare(mo_form f, v_coding x[2])
{
    v_code_compare(&x[0]);
    if (has(f, 2))
        v_code_compare(&x[1]);
}

MO_INLINE void code_end(mo_form f, const mo_coded_span *k, mo_coded_block *w, uint32_t at,
                        const v_coding x[2])
{
    mo_coded_moment *m = &w->of[0], *v = &w->of[1], *slow = &w->of[2];
    if (is_signed(f, 0))
        v_code_end(&k->steps[1], 1, m->values + at, &m->coder, v_order(f), &x[0], m->codes + at);
    else
        v_code_end(&k->steps[0], 0, m->values + at, &m->coder, v_order(f), &x[0], m->codes + at);
    if (has(f, 1))
        v_code_end(&k->steps[0], 0, v->values + at, &v->coder, v_order(f), &x[0], v->codes + at);
    if (has(f, 2))
        v_code_end(&k->steps[1], 1, slow->values + at, &slow->coder, v_order(f), &x[1],
                   slow->codes + at);
}

/* GROUP elements, the first time and the second. */
MO_INLINE void first(mo_form f, const mo_coded_span *k, mo_coded_block *w, const mo_coded_view *of,
                     uint32_t at, mo_coded_seen *seen)
{
    for (uint32_t i = at; i < at + GROUP; i += V_PART) {
        mo_decoded x;
        if (has_tables(f))
            decode(f, w, i, &x);
        update(f, &k->c, w, of, i, &x, seen);
    }
}

MO_INLINE void second(mo_form f, const mo_coded_span *k, mo_coded_block *w, const mo_coded_view *to,
                      uint32_t at)
{
    v_coding coding[2];
    if (!has_tables(f)) {
        finish_computed(f, &k->c, w, to, at);
        return;
    }
    code_begin(f, w, at, coding);
    code_compare(f, coding);
    code_end(f, k, w, at, coding);
    parameters4(f, &k->c, to, at, NULL);
}

/* The first time of one block, the second time of the one before it; V_PART is GROUP. */
MO_INLINE void turn(mo_form f, const mo_coded_span *k, mo_coded_block *now, mo_coded_block *before,
                    uint32_t at, mo_coded_seen *seen)
{
    const mo_coded_view of = view_of(now), to = view_of(before);
    v_coding coding[2];
    mo_decoded x;
    code_begin(f, before, at, coding);
    decode(f, now, at, &x);
    code_compare(f, coding);
    update(f, &k->c, now, &of, at, &x, seen);
    code_end(f, k, before, at, coding);
    parameters4(f, &k->c, &to, at, NULL);
}

/* --- blocks ----------------------------------------------------------------------------------- */

MO_INLINE void begin_moment(mo_form f, const void *codes, const float *scales, uint64_t at,
                            mo_coded_moment *x)
{
    x->was = lane_moment(f.format, codes, scales[at / mo_format_block(f.format)], at);
    x->codes = (uint8_t *)(uintptr_t)codes + mo_format_bytes(f.format, at);
}

MO_INLINE void begin_block(mo_form f, const mo_optim_span *s, uint64_t at, mo_coded_block *w)
{
    const uint32_t n = mo_format_block(f.format);
    begin_moment(f, s->m, s->absmax1, at, &w->of[0]);
    if (has(f, 1))
        begin_moment(f, s->v, s->absmax2, at, &w->of[1]);
    if (has(f, 2))
        begin_moment(f, s->slow, s->slow_absmax, at, &w->of[2]);
    w->g = mo_element_at(s->gradient, at, s->gradient_dtype);
    w->p = mo_element_at(s->parameter, at, s->parameter_dtype);
    w->copy = f.copies ? mo_element_at(s->copy, at, s->copy_dtype) : NULL;
    if (f.g != s->gradient_dtype)
        w->g = lane_floats(s->gradient, at, s->gradient_dtype, n, w->g_room);
    if (f.p != s->parameter_dtype) {
        lane_read(s->parameter, at, s->parameter_dtype, n, w->p_room);
        w->p = w->p_room;
    }
}

/* What the loops have not written. */
MO_INLINE void end_block(mo_form f, const mo_optim_span *s, uint64_t at, const mo_coded_block *w)
{
    if (f.p != s->parameter_dtype || (s->copy != NULL && !f.copies))
        lane_write_narrow(s, at, mo_format_block(f.format), w->p);
}

/* Whether the scalar form has to do the block: it is not finite. */
MO_INLINE int is_odd(mo_form f, const mo_optim_span *s, uint64_t block, const uint32_t largest[3])
{
    int odd = lane_is_late(f.rule) && !mo_f32_is_finite(s->absmax1[block]);
    for (int k = 0; k < 3; k++)
        odd |= largest[k] >= MO_F32_INF_BITS;
    return odd;
}

MO_INLINE void settle_moment(mo_form f, int moment, uint32_t largest, float *out_scale,
                             mo_coded_block *w)
{
    mo_coded_moment *x = &w->of[moment];
    x->scale = mo_block_scale_of(largest);
    *out_scale = x->scale.absmax;
    if (has_tables(f))
        v_coder_of(is_signed(f, moment), &x->scale, values_of(f, w, moment), &x->coder);
    else /* so small that the values need a prescale */
        w->tiny |= x->scale.prescale != 1.0f && largest != 0;
}

/* Between the two times. 0: the scalar form has done the block. */
MO_INLINE int settle(mo_form f, const mo_optim_span *s, uint64_t at, const mo_coded_seen *seen,
                     mo_coded_block *w)
{
    const uint64_t block = at / mo_format_block(f.format);
    const uint32_t largest[3] = {
        lane_is_late(f.rule) ? v_largest(v_ints(seen->late_largest)) : v_largestu(seen->largest[0]),
        has(f, 1) ? v_largestu(seen->largest[1]) : 0, has(f, 2) ? v_largestu(seen->largest[2]) : 0};
    if (__builtin_expect(is_odd(f, s, block, largest), 0)) {
        mo_step_block_scalar(f.rule, f.format, s, at);
        return 0;
    }
    w->tiny = 0;
    settle_moment(f, 0, largest[0], &s->absmax1[block], w);
    if (has(f, 1))
        settle_moment(f, 1, largest[1], &s->absmax2[block], w);
    if (has(f, 2))
        settle_moment(f, 2, largest[2], &s->slow_absmax[block], w);
    return 1;
}

/* Codes a block again whose values need a prescale. */
static __attribute__((noinline)) void code_tiny(uint32_t rule, uint32_t format, mo_coded_block *w)
{
    const mo_form f = {rule, format, 0, 0, 0, 0};
    const uint32_t n = mo_format_block(format);
    for (int k = 0; k < 3; k++) {
        mo_coded_moment *x = &w->of[k];
        if (!has(f, k))
            continue;
        float *values = values_of(f, w, k);
        lane_prescale(format, values, n, &x->scale);
        lane_encode(format, is_signed(f, k), values, n, &x->scale, x->codes);
    }
}

static mo_coded_seen nothing_seen(void)
{
    return (mo_coded_seen){v_set(0.0f), {v_seti(0), v_seti(0), v_seti(0)}};
}

/* Asks for a page further on of what GROUP elements have: a few lines at a time, since a core has
 * few requests under way. */
MO_INLINE void ask_ahead(int dtype, const void *data, uint32_t at)
{
    if (dtype == MO_DTYPE_F32)
        mo_prefetch_page_ahead((const float *)data + at, GROUP * sizeof(float));
    else
        mo_prefetch_page_ahead((const uint16_t *)data + at, GROUP * sizeof(uint16_t));
}

/* The first time of a block with computed codes. */
MO_INLINE void first_loop(mo_form f, const mo_coded_span *k, mo_coded_block *w, mo_coded_seen *seen)
{
    const mo_coded_view of = view_of(w);
    for (uint32_t i = 0; i < mo_format_block(f.format); i += GROUP) {
        ask_ahead(f.g, of.g, i);
        ask_ahead(f.p, of.p, i);
        first(f, k, w, &of, i, seen);
    }
}

/* Computed codes. */
MO_INLINE void step_in_loops(mo_form f, const mo_coded_span *k, const mo_optim_span *s,
                             mo_coded_block blocks[2], uint64_t whole)
{
    const uint32_t n = mo_format_block(f.format);
    mo_form scaled = f;
    mo_coded_block *before = NULL;
    scaled.scaled = 1;
    for (uint64_t at = 0; at < whole || before != NULL; at += n) {
        mo_coded_block *now = &blocks[at / n % 2];
        mo_coded_seen seen = nothing_seen();
        if (at < whole) {
            begin_block(f, s, at, now);
            if (s->coef.factor == 1.0f)
                first_loop(f, k, now, &seen);
            else
                first_loop(scaled, k, now, &seen);
        }
        if (before != NULL) {
            const mo_coded_view to = view_of(before);
            for (uint32_t i = 0; i < n; i += GROUP)
                second(f, k, before, &to, i);
            if (__builtin_expect(before->tiny, 0))
                code_tiny(f.rule, f.format, before);
            end_block(f, s, at - n, before);
        }
        before = at < whole && settle(f, s, at, &seen, now) ? now : NULL;
    }
}

/* A block of zeros that is nowhere in the span: before the first, behind the last, and in place of
 * one that the scalar form has done. */
MO_INLINE void begin_spare(mo_form f, mo_coded_block *w, uint8_t codes[LANE_BLOCK])
{
    const mo_block_scale zero = mo_block_scale_of(0);
    memset(codes, 0, LANE_BLOCK);
    w->g = memset(w->g_room, 0, sizeof w->m);
    w->p = w->copy = memset(w->p_room, 0, sizeof w->m);
    for (int k = 0; k < 3; k++)
        if (has(f, k)) {
            w->of[k].was = lane_moment(f.format, codes, 0.0f, 0);
            w->of[k].codes = codes;
            w->of[k].scale = zero;
            memset(values_of(f, w, k), 0, sizeof w->m);
            v_coder_of(is_signed(f, k), &zero, values_of(f, w, k), &w->of[k].coder);
        }
}

MO_INLINE void step_in_turns(mo_form f, const mo_coded_span *k, const mo_optim_span *s,
                             mo_coded_block blocks[3], uint64_t whole)
{
    const uint32_t n = LANE_BLOCK;
    uint8_t codes[LANE_BLOCK];
    mo_coded_block *spare = &blocks[2], *before = spare;
    begin_spare(f, spare, codes);
    for (uint64_t at = 0; at < whole || before != spare; at += n) {
        mo_coded_block *now = at < whole ? &blocks[at / n % 2] : spare;
        mo_coded_seen seen = nothing_seen();
        if (at < whole)
            begin_block(f, s, at, now);
        for (uint32_t i = 0; i < n; i += GROUP)
            turn(f, k, now, before, i, &seen);
        if (before != spare)
            end_block(f, s, at - n, before);
        before = at < whole && settle(f, s, at, &seen, now) ? now : spare;
    }
}

MO_INLINE void step_blocks(mo_form f, const mo_optim_span *s)
{
    const uint64_t whole = s->count - s->count % mo_format_block(f.format);
    const mo_coded_span k = {mo_lane_coef_of(&s->coef), {v_steps_of(0), v_steps_of(1)}};
    _Alignas(64) float room[3][3][LANE_BLOCK];
    mo_coded_block blocks[3];
    for (int i = 0; i < 3; i++) {
        mo_coded_block *w = &blocks[i];
        w->g_room = room[i][0];
        w->p_room = room[i][1];
        w->slow = room[i][2];
        w->of[0].values = w->m;
        w->of[1].values = w->v;
        w->of[2].values = w->slow;
    }
    if (v_turns(f))
        step_in_turns(f, &k, s, blocks, whole);
    else
        step_in_loops(f, &k, s, blocks, whole);
    if (whole < s->count)
        mo_step_block_scalar(f.rule, f.format, s, whole);
}

/* --- the forms -------------------------------------------------------------------------------- */

/* The types of a span, as far as the loops know them. */
static mo_form types_of(const mo_optim_span *s)
{
    mo_form f = {0, 0, MO_DTYPE_F32, MO_DTYPE_F32, 0, 0};
    int copies = s->copy != NULL && s->copy_dtype == MO_DTYPE_BF16;
    if (s->gradient_dtype == MO_DTYPE_BF16)
        f.g = MO_DTYPE_BF16;
    if (s->parameter_dtype == MO_DTYPE_BF16 && !s->stochastic && (s->copy == NULL || copies))
        f.p = MO_DTYPE_BF16;
    if (s->parameter_dtype == f.p)
        f.copies = copies;
    return f;
}

/* Whether there are forms of known types: up to 7 % faster with computed codes, 30 % with tables.
 * AVX-512 without VBMI has them of AdamW alone, for the size of the library. */
MO_INLINE int knows_types(uint32_t rule, uint32_t format)
{
    return rule == MO_RULE_ADAMW || (format == MO_STATE_8BIT && V_TYPES);
}

#if defined(__aarch64__)
#define SPAN32 mo_span32_neon
#elif defined(__AVX512F__)
#define SPAN32 mo_span32_avx512
#else
#define SPAN32 mo_span32_avx2
#endif

/* What is not rounded to bf16 is no faster with AVX-512's BF16: LOWER has its form. */
#if defined(__AVX512BF16__)
#define OTHERS(kernel, rule, format)
#define OTHERS_OF(kernel) LOWER(mo_##kernel##_span)(s)
#else
#define OTHERS(kernel, rule, format)                                                               \
    TYPED(kernel##_f32, rule, format, MO_DTYPE_F32, MO_DTYPE_F32, 0)
#define OTHERS_OF(kernel) kernel##_f32(s, types)
#endif

#define TYPED(name, rule, format, g, p, copies)                                                    \
    static __attribute__((noinline)) void name(const mo_optim_span *s, mo_form types)              \
    {                                                                                              \
        (void)types;                                                                               \
        step_blocks((mo_form){MO_RULE_##rule, MO_STATE_##format, g, p, copies,                     \
                              MO_STATE_##format == MO_STATE_8BIT},                                 \
                    s);                                                                            \
    }
#define STEP(kernel, rule, format)                                                                 \
    TYPED(kernel##_any, rule, format, types.g, types.p, types.copies)                              \
    TYPED(kernel##_bf16, rule, format, MO_DTYPE_BF16, MO_DTYPE_BF16, 0)                            \
    TYPED(kernel##_master, rule, format, MO_DTYPE_BF16, MO_DTYPE_F32, types.copies)                \
    OTHERS(kernel, rule, format)                                                                   \
    void MO_FORM(mo_##kernel##_span)(const mo_optim_span *s)                                       \
    {                                                                                              \
        const mo_form types = types_of(s);                                                         \
        if (s->absmax1 == NULL)                                                                    \
            SPAN32(MO_RULE_##rule, s);                                                             \
        else if (!knows_types(MO_RULE_##rule, MO_STATE_##format))                                  \
            kernel##_any(s, types);                                                                \
        else if (types.g == MO_DTYPE_BF16 && types.p == MO_DTYPE_BF16 && !types.copies)            \
            kernel##_bf16(s, types);                                                               \
        else if (V_MASTER(MO_STATE_##format) && types.g == MO_DTYPE_BF16 &&                        \
                 s->parameter_dtype == MO_DTYPE_F32 && (s->copy == NULL || types.copies))          \
            kernel##_master(s, types);                                                             \
        else                                                                                       \
            OTHERS_OF(kernel);                                                                     \
    }                                                                                              \
    void MO_FORM(mo_step_##kernel)(const void *args, uint64_t begin, uint64_t end)                 \
    {                                                                                              \
        mo_each_span(args, begin, end, MO_FORM(mo_##kernel##_span));                               \
    }
