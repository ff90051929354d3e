/*
 * Block-wise codes, and the step with states that have no scales, over the vectors of one
 * instruction set (core/vector_avx2.h has the words v_…); step_coded.h has the other states.
 *
 * The first header defines v_decode_8bit, v_encode_8bit and v_write_stochastic. Rules and formats
 * are constants to the compiler.
 */
#if defined(__aarch64__)
#include "kernels/optim/optim_neon.h"
#elif defined(__AVX512F__)
#include "kernels/optim/optim_avx512.h"
#else
#include "kernels/optim/optim_avx2.h"
#endif
#include "kernels/optim/optim_forms.h"

#include "kernels/core/prefetch.h"
#include "kernels/optim/step_simd_rules.h"

#include <string.h>

enum { LANE_BLOCK = MO_BLOCK_SIZE };

#include "kernels/optim/step_simd_codes.h"

/* --- parameters and gradients ---------------------------------------------------------------- */

#define LANE_CALL static __attribute__((noinline, unused))

/* n elements from `at` on, a multiple of 2 * MO_LANES_N. */
LANE_CALL void lane_read(const void *data, uint64_t at, int32_t dtype, uint64_t n, float *values)
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

/* n elements as fp32, in `room` where they are of another type. */
MO_INLINE const float *lane_floats(const void *data, uint64_t at, int32_t dtype, uint64_t n,
                                   float *room)
{
    if (dtype == MO_DTYPE_F32)
        return (const float *)data + at;
    lane_read(data, at, dtype, n, room);
    return room;
}

/* The values' only NaN is MO_F32_NAN_BITS. */
LANE_CALL void lane_write(void *data, uint64_t at, int32_t dtype, uint64_t n, const float *values)
{
    if (dtype == MO_DTYPE_F32)
        for (uint64_t i = 0; i < n; i += MO_LANES_N)
            v_store_as(data, at + i, MO_DTYPE_F32, v_load(values + i));
    else if (dtype == MO_DTYPE_BF16)
        for (uint64_t i = 0; i < n; i += 2 * MO_LANES_N)
            v_store_bf16_pair((uint16_t *)data + at + i, v_load(values + i),
                              v_load(values + i + MO_LANES_N));
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

/* What a step on fp32 has not written to its place: parameters of 16 bits, and the copy. */
MO_INLINE void lane_write_narrow(const mo_optim_span *s, uint64_t at, uint64_t n,
                                 const float *values)
{
    if (s->parameter_dtype != MO_DTYPE_F32)
        lane_write_parameters(s, at, n, values);
    else if (s->copy != NULL)
        lane_write(s->copy, at, s->copy_dtype, n, values);
}

/* --- the step -------------------------------------------------------------------------------- */

/* Room for a block as fp32. */
typedef struct mo_lane_work {
    _Alignas(64) float g[LANE_BLOCK], p[LANE_BLOCK], m[LANE_BLOCK], v[LANE_BLOCK], slow[LANE_BLOCK];
} mo_lane_work;

/* Any NaN of n vectors becomes the one that is stored; there is seldom one. If there is one, there is
 * one among the first `few`. */
MO_INLINE void lane_one_nan(VF *x, int few, int n)
{
    VF sum = x[0];
    for (int k = 1; k < few; k++)
        sum = v_add(sum, x[k]);
    if (__builtin_expect(v_any_nan(sum), 0))
        for (int k = 0; k < n; k++)
            x[k] = v_one_nan(x[k]);
}

/* --- bf16 in pairs: vectors of even and of odd elements, which take no shuffles --------------- */

MO_INLINE void lane_load_pairs(const uint16_t *halves, VF x[2])
{
    VI pairs = v_loadi(halves);
    x[0] = v_bits(v_sll(pairs, 16));
    x[1] = v_bits(v_and(pairs, v_seti((int)0xffff0000u)));
}

/* To nearest even, in the upper halves of the lanes; the only NaN is MO_F32_NAN_BITS. */
MO_INLINE VI lane_round_bf16(VF x)
{
    VI u = v_ints(x), odd = v_and(v_srl(u, 16), v_seti(1));
    return v_addi(v_addi(u, v_seti(0x7fff)), odd);
}

MO_INLINE void lane_store_pairs(uint16_t *halves, const VF x[2])
{
    v_put(halves, v_pair_up(lane_round_bf16(x[0]), lane_round_bf16(x[1])), 0);
}

MO_INLINE void lane_load2(int pairs, const void *data, uint64_t i, int32_t dtype, VF x[2])
{
    if (pairs)
        lane_load_pairs((const uint16_t *)data + i, x);
    else
        v_load2_as(data, i, dtype, x);
}

/* --- bf16 states ------------------------------------------------------------------------------ */

MO_INLINE VI lane_moment_random(VI m, VI v, VI key)
{
    VI x = v_muli(v_xor(m, key), v_seti((int)MO_MOMENT_MIX_1));
    x = v_muli(v_xor3(x, v_srl(x, 15), v), v_seti((int)MO_MOMENT_MIX_2));
    x = v_muli(v_xor(x, v_srl(x, 16)), v_seti((int)MO_MOMENT_MIX_0));
    return v_xor(x, v_srl(x, 15));
}

/* Whether all first moments are far from the largest bf16, and all second ones from it and from the
 * least: then random bits are added and that is all. Zeros need care too. */
MO_INLINE int lane_need_care(const VF m[2], const VF v[2])
{
    const VI magnitude = v_seti(0x7fffffff), least = v_seti(1 << 16), limit = v_seti(0x7f7dffff);
    VI first = v_maxu(v_and(v_ints(m[0]), magnitude), v_and(v_ints(m[1]), magnitude));
    VI second = v_maxu(v_subi(v_ints(v[0]), least), v_subi(v_ints(v[1]), least));
    return v_any(v_xor(v_maxu(v_maxu(first, second), limit), limit));
}

/* mo_moment_codes_of, in the upper halves of the lanes. */
MO_INLINE void lane_moment_codes(int care, VF m, VF v, VI key, VI *m_codes, VI *v_codes)
{
    VI a = v_ints(m), b = v_ints(v), random = lane_moment_random(a, b, key);
    VI low = v_and(random, v_seti(0xffff)), high = v_srl(random, 16);
    *m_codes = care ? mo_bf16_stochastic_quiet(a, low) : v_addi(a, low);
    *v_codes = care ? mo_bf16_stochastic_quiet(b, high) : v_addi(b, high);
    if (care)
        *v_codes = v_maxu(*v_codes, v_only(v_gti(b, v_seti(0)), v_seti(1 << 16)));
}

/* Two vectors of moments from their values; the only NaN is MO_F32_NAN_BITS. */
MO_INLINE void lane_store_moments16(int care, int pairs, uint16_t *m, uint16_t *v,
                                    const VF first[2], const VF second[2], VI key)
{
    VI a[2], b[2];
    for (int k = 0; k < 2; k++)
        lane_moment_codes(care, first[k], second[k], key, &a[k], &b[k]);
    v_put(m, pairs ? v_pair_up(a[0], a[1]) : v_high_halves(a[0], a[1]), 0);
    v_put(v, pairs ? v_pair_up(b[0], b[1]) : v_high_halves(b[0], b[1]), 0);
}

/* --- states without scales -------------------------------------------------------------------- */

MO_INLINE void lane_store2(float *at, const VF x[2])
{
    v_store(at, x[0]);
    v_store(at + MO_LANES_N, x[1]);
}

/* Asks for the lines of bf16 a page further on. 32-bit tensors are read no faster for it. */
MO_INLINE void lane_ask_ahead(const void *data, uint64_t i)
{
    if (i * sizeof(uint16_t) % 64 == 0)
        mo_prefetch_page_ahead((const uint16_t *)data + i, 64);
}

/* mo_rule_update of a block of states without scales, in place. New parameters go to `out`, or as
 * bf16 to where the old ones are if that is NULL. */
MO_INLINE void lane_update_plain(uint32_t rule, uint32_t format, const mo_lane_coef *c,
                                 int32_t dtype, const void *g, void *p, float *out, void *m,
                                 void *v, void *slow, VI key)
{
    const int32_t state = format == MO_STATE_BF16 ? MO_DTYPE_BF16 : MO_DTYPE_F32;
    const int moments = 1 + mo_rule_has_second(rule) + mo_rule_has_slow(rule);
    const int pairs = dtype == MO_DTYPE_BF16 && state == MO_DTYPE_BF16;
    for (uint64_t i = 0; i < LANE_BLOCK; i += 2 * MO_LANES_N) {
        VF h[2], x[4][2]; /* parameters, moments */
        if (pairs) {
            lane_ask_ahead(g, i);
            lane_ask_ahead(p, i);
            lane_ask_ahead(m, i);
            lane_ask_ahead(v, i);
        }
        lane_load2(pairs, g, i, dtype, h);
        lane_load2(pairs, p, i, dtype, x[0]);
        lane_load2(pairs, m, i, state, x[1]);
        if (moments > 1)
            lane_load2(pairs, v, i, state, x[2]);
        if (moments > 2)
            lane_load2(pairs, slow, i, state, x[3]);
        for (int k = 0; k < 2; k++)
            x[0][k] =
                lane_rule(rule, c, v_mul(h[k], c->factor), x[0][k], &x[1][k], &x[2][k], &x[3][k]);
        lane_one_nan(x[0], lane_tells_nan(rule) ? 2 : 2 * (1 + moments), 2 * (1 + moments));
        if (out != NULL)
            lane_store2(out + i, x[0]);
        else if (pairs)
            lane_store_pairs((uint16_t *)p + i, x[0]);
        else
            v_store_bf16_pair((uint16_t *)p + i, x[0][0], x[0][1]);
        if (format == MO_STATE_BF16) {
            uint16_t *m16 = (uint16_t *)m + i, *v16 = (uint16_t *)v + i;
            if (__builtin_expect(lane_need_care(x[1], x[2]), 0))
                lane_store_moments16(1, pairs, m16, v16, x[1], x[2], key);
            else
                lane_store_moments16(0, pairs, m16, v16, x[1], x[2], key);
            continue;
        }
        lane_store2((float *)m + i, x[1]);
        if (moments > 1)
            lane_store2((float *)v + i, x[2]);
        if (moments > 2)
            lane_store2((float *)slow + i, x[3]);
    }
}

/* States, and parameters of f32, are updated in place. */
MO_INLINE void lane_step_plain(uint32_t rule, uint32_t format, const mo_optim_span *s,
                               const mo_lane_coef *c, mo_lane_work *w)
{
    const VI key = v_seti((int)mo_moment_key(s->coef.step));
    const uint64_t size = format == MO_STATE_BF16 ? sizeof(uint16_t) : sizeof(float);
    const int bf16 = s->gradient_dtype == MO_DTYPE_BF16 && s->parameter_dtype == MO_DTYPE_BF16 &&
                     !s->stochastic && s->copy == NULL;
    uint64_t at = 0;
    for (; at + LANE_BLOCK <= s->count; at += LANE_BLOCK) {
        void *m = s->m == NULL ? memset(w->m, 0, sizeof w->m) : (void *)((char *)s->m + at * size);
        void *v = s->v == NULL ? (void *)w->v : (char *)s->v + at * size;
        void *slow = s->slow == NULL ? (void *)w->slow : (char *)s->slow + at * size;
        if (bf16) {
            lane_update_plain(rule, format, c, MO_DTYPE_BF16, (const uint16_t *)s->gradient + at,
                              (uint16_t *)s->parameter + at, NULL, m, v, slow, key);
            continue;
        }
        float *p = s->parameter_dtype == MO_DTYPE_F32 ? (float *)s->parameter + at : w->p;
        if (p == w->p)
            lane_read(s->parameter, at, s->parameter_dtype, LANE_BLOCK, p);
        lane_update_plain(rule, format, c, MO_DTYPE_F32,
                          lane_floats(s->gradient, at, s->gradient_dtype, LANE_BLOCK, w->g), p, p,
                          m, v, slow, key);
        lane_write_narrow(s, at, LANE_BLOCK, p);
    }
    if (format == MO_STATE_BF16)
        mo_step16_scalar(rule, s, at, s->count);
    else
        mo_step32_scalar(rule, s, at, s->count);
}

/* Of a format without scales, or of 32-bit states. */
MO_INLINE void lane_step(uint32_t rule, uint32_t format, const mo_optim_span *s)
{
    mo_lane_work w;
    mo_lane_coef c = mo_lane_coef_of(&s->coef);
    if (format == MO_STATE_BF16 && s->format == MO_STATE_BF16)
        lane_step_plain(rule, MO_STATE_BF16, s, &c, &w);
    else
        lane_step_plain(rule, MO_STATE_F32, s, &c, &w);
}

/* --- block-wise codes on their own ----------------------------------------------------------- */

MO_INLINE void lane_quantize(uint32_t format, const mo_blockcode_args *a, uint64_t begin,
                             uint64_t end)
{
    _Alignas(64) float values[LANE_BLOCK];
    const uint32_t n = mo_format_block(format);
    uint64_t at = begin * MO_CHUNK_ELEMENTS, last = end * MO_CHUNK_ELEMENTS;
    last = last < a->count ? last : a->count;
    for (; at + n <= last; at += n) {
        lane_read(a->values, at, a->dtype, n, values);
        uint32_t largest = lane_largest(values, n);
        if (largest >= MO_F32_INF_BITS) {
            mo_quantize_block_scalar(format, a, at, n);
            continue;
        }
        mo_block_scale scale = mo_block_scale_of(largest);
        for (uint32_t i = 0; i < n && !a->is_signed; i += MO_LANES_N) {
            VF x = v_bits(v_maxi(v_ints(v_load(values + i)), v_seti(0))); /* negatives are 0 */
            v_store(values + i, x);
        }
        lane_prescale(format, values, n, &scale);
        a->absmax[at / n] = scale.absmax;
        uint8_t *codes = a->codes + mo_format_bytes(format, at);
        if (a->is_signed)
            lane_encode(format, 1, values, n, &scale, codes);
        else
            lane_encode(format, 0, values, n, &scale, codes);
    }
    if (at < last)
        mo_quantize_block_scalar(format, a, at, (uint32_t)(last - at));
}

MO_INLINE void lane_dequantize(uint32_t format, const mo_blockcode_args *a, uint64_t begin,
                               uint64_t end)
{
    _Alignas(64) float values[LANE_BLOCK];
    const uint32_t n = mo_format_block(format);
    uint64_t at = begin * MO_CHUNK_ELEMENTS, last = end * MO_CHUNK_ELEMENTS;
    last = last < a->count ? last : a->count;
    for (; at + n <= last; at += n) {
        if (a->is_signed)
            lane_decode(format, 1, a->codes, a->absmax[at / n], at, n, values);
        else
            lane_decode(format, 0, a->codes, a->absmax[at / n], at, n, values);
        for (uint32_t i = 0; i < n && !mo_f32_is_finite(a->absmax[at / n]); i += MO_LANES_N)
            v_store(values + i, v_one_nan(v_load(values + i)));
        lane_write(a->values, at, a->dtype, n, values);
    }
    mo_dequantize_run_scalar(format, a, at, last);
}
