/*
 * The 8-bit AdamW step, AVX-512 VBMI. Coding block b - 1 is interleaved with updating block b: the
 * two share no data, so that the long latencies of one hide behind the other. Between the two a
 * block lives as fp32 in a work buffer of the first-level cache, and nothing is written to memory
 * before the whole block is known to be finite; one that is not is done by the scalar form.
 */
#include "kernels/optim_avx512.h"
#include "kernels/optim_forms.h"

#include <string.h>

enum { BLOCK = MO_BLOCK_SIZE };

typedef struct work {
    _Alignas(64) float m[BLOCK];
    float v[BLOCK];
    float p[BLOCK];
    mo_block_scale scale1, scale2;
    int special1, special2;
    /* where the block goes */
    uint8_t *m_codes, *v_codes;
    void *parameter, *copy;
    uint64_t first; /* index of its first element in the tensor */
} work;

/* Where a block goes that the scalar form has written already. */
typedef struct spill {
    uint8_t m_codes[BLOCK], v_codes[BLOCK];
    float parameter[BLOCK], copy[BLOCK];
} spill;

typedef struct largest {
    __m512 m;
    __m512i v;
} largest;

MO_INLINE void update64(const mo_optim_span *s, const mo_coef16 *c, uint64_t at, work *w, int part,
                        int p_dtype, int g_dtype, largest *top)
{
    uint64_t i = at + 64 * (uint64_t)part, block = at / BLOCK;
    float *wm = w->m + 64 * part, *wv = w->v + 64 * part, *wp = w->p + 64 * part;
    mo_f32x64 m =
        mo_decode64_signed((const uint8_t *)s->m + i, _mm512_set1_ps(s->absmax1[block]));
    mo_f32x64 v =
        mo_decode64_unsigned((const uint8_t *)s->v + i, _mm512_set1_ps(s->absmax2[block]));
    for (int k = 0; k < 4; k++) {
        __m512 g = mo_load16(s->gradient, i + 16 * (uint64_t)k, g_dtype);
        __m512 p = mo_load16(s->parameter, i + 16 * (uint64_t)k, p_dtype);
        p = mo_update16(c, g, p, &m.part[k], &v.part[k], 0);
        _mm512_store_ps(wm + 16 * k, m.part[k]);
        _mm512_store_ps(wv + 16 * k, v.part[k]);
        _mm512_store_ps(wp + 16 * k, p);
        top->m = _mm512_range_ps(top->m, m.part[k], 0x0b); /* the larger magnitude */
        top->v = _mm512_max_epu32(top->v, _mm512_castps_si512(v.part[k]));
    }
}

MO_INLINE void finish64(const mo_optim_span *s, const work *w, int part, int p_dtype)
{
    int i = 64 * part;
    mo_quantize64(w->m + i, &w->scale1, w->special1, 1, w->m_codes + i);
    mo_quantize64(w->v + i, &w->scale2, w->special2, 0, w->v_codes + i);
    mo_f32x64 p;
    for (int k = 0; k < 4; k++)
        p.part[k] = _mm512_load_ps(w->p + i + 16 * k);
    if (p_dtype != MO_DTYPE_F32 && s->stochastic)
        mo_store64_stochastic(w->parameter, (uint64_t)i, p_dtype, &p, &s->random,
                              w->first + (uint64_t)i);
    else
        mo_store64(w->parameter, (uint64_t)i, p_dtype, &p);
    if (w->copy != NULL)
        mo_store64(w->copy, (uint64_t)i, s->copy_dtype, &p);
}

/* After the update: the block's scales, or the scalar form where it is not finite. */
MO_INLINE void settle(const mo_optim_span *s, uint64_t at, work *w, const largest *top, spill *away,
                      int p_dtype)
{
    uint64_t block = at / BLOCK;
    uint32_t top2 = _mm512_reduce_max_epu32(top->v);
    uint32_t top1 = mo_f32_bits(_mm512_reduce_max_ps(top->m));
    int finite = mo_f32_is_finite(s->absmax1[block]) && top2 < MO_F32_INF_BITS &&
                 top1 < MO_F32_INF_BITS;
    w->scale1 = mo_block_scale_of(finite ? top1 : 0);
    w->scale2 = mo_block_scale_of(finite ? top2 : 0);
    w->special1 = mo_scale_special(&w->scale1);
    w->special2 = mo_scale_special(&w->scale2);
    if (__builtin_expect(!finite, 0)) {
        mo_adamw8_scalar(s, at);
        w->m_codes = away->m_codes;
        w->v_codes = away->v_codes;
        w->parameter = away->parameter;
        w->copy = NULL;
        memset(w->m, 0, sizeof w->m);
        memset(w->v, 0, sizeof w->v);
        memset(w->p, 0, sizeof w->p);
        return;
    }
    s->absmax1[block] = w->scale1.absmax;
    s->absmax2[block] = w->scale2.absmax;
    w->m_codes = (uint8_t *)s->m + at;
    w->v_codes = (uint8_t *)s->v + at;
    w->parameter = mo_element_at(s->parameter, at, p_dtype);
    w->copy = mo_element_at(s->copy, at, s->copy_dtype);
    w->first = s->start + at;
}

/* Whole blocks of a span. */
MO_INLINE void step_blocks(const mo_optim_span *s, uint64_t blocks, int p_dtype, int g_dtype)
{
    work works[2];
    spill away;
    mo_coef16 c = mo_coef16_of(&s->coef);
    for (uint64_t b = 0; b < blocks; b++) {
        work *now = &works[b & 1], *before = &works[~b & 1];
        largest top = {_mm512_setzero_ps(), _mm512_setzero_si512()};
        for (int part = 0; part < 4; part++) {
            if (b != 0)
                finish64(s, before, part, p_dtype);
            update64(s, &c, b * BLOCK, now, part, p_dtype, g_dtype, &top);
        }
        settle(s, b * BLOCK, now, &top, &away, p_dtype);
    }
    for (int part = 0; part < 4; part++)
        finish64(s, &works[~blocks & 1], part, p_dtype);
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

#define BLOCKS_FOR(name, p_dtype, g_dtype)                                                         \
    static __attribute__((noinline)) void name(const mo_optim_span *s, uint64_t blocks)            \
    {                                                                                              \
        step_blocks(s, blocks, p_dtype, g_dtype);                                                  \
    }

BLOCKS_FOR(blocks_f32_f32, MO_DTYPE_F32, MO_DTYPE_F32)
BLOCKS_FOR(blocks_f32_f16, MO_DTYPE_F32, MO_DTYPE_F16)
BLOCKS_FOR(blocks_f32_bf16, MO_DTYPE_F32, MO_DTYPE_BF16)
BLOCKS_FOR(blocks_f16_f32, MO_DTYPE_F16, MO_DTYPE_F32)
BLOCKS_FOR(blocks_f16_f16, MO_DTYPE_F16, MO_DTYPE_F16)
BLOCKS_FOR(blocks_f16_bf16, MO_DTYPE_F16, MO_DTYPE_BF16)
BLOCKS_FOR(blocks_bf16_f32, MO_DTYPE_BF16, MO_DTYPE_F32)
BLOCKS_FOR(blocks_bf16_f16, MO_DTYPE_BF16, MO_DTYPE_F16)
BLOCKS_FOR(blocks_bf16_bf16, MO_DTYPE_BF16, MO_DTYPE_BF16)

void mo_adamw8_span_avx512(const mo_optim_span *s)
{
    static void (*const forms[3][3])(const mo_optim_span *, uint64_t) = {
        {blocks_f32_f32, blocks_f32_f16, blocks_f32_bf16},
        {blocks_f16_f32, blocks_f16_f16, blocks_f16_bf16},
        {blocks_bf16_f32, blocks_bf16_f16, blocks_bf16_bf16},
    };
    void (*blocks)(const mo_optim_span *, uint64_t) =
        forms[s->parameter_dtype - MO_DTYPE_F32][s->gradient_dtype - MO_DTYPE_F32];
    uint64_t whole = s->count / BLOCK;
    if (whole != 0)
        blocks(s, whole);
    if (s->count % BLOCK != 0)
        step_tail(s, whole * BLOCK, blocks);
}
