/* The AdamW step with 8-bit states on AVX2. */
#include "kernels/optim/optim_avx2.h"
#include "kernels/optim/optim_cpu.h"

enum { BLOCK = MO_BLOCK_SIZE };

/* One whole block with 8-bit states, as fp32 before anything is written. */
typedef struct work {
    float m[BLOCK], v[BLOCK], p[BLOCK];
    uint32_t largest1, largest2; /* of the magnitudes' bits */
} work;

MO_INLINE void update_block(const mo_optim_span *s, const mo_coef8 *c, uint64_t at, work *w,
                            int p_dtype, int g_dtype)
{
    uint64_t block = at / BLOCK;
    __m256 absmax1 = _mm256_set1_ps(s->absmax1[block]);
    __m256 absmax2 = _mm256_set1_ps(s->absmax2[block]);
    __m256i largest1 = _mm256_setzero_si256(), largest2 = largest1;
    for (uint64_t i = 0; i < BLOCK; i += 8) {
        __m256 m = mo_decode8(mo_map_signed, (const uint8_t *)s->m + at + i, absmax1);
        __m256 v = mo_decode8(mo_map_unsigned, (const uint8_t *)s->v + at + i, absmax2);
        __m256 g = mo_load8(s->gradient, at + i, g_dtype);
        __m256 p = mo_load8(s->parameter, at + i, p_dtype);
        _mm256_storeu_ps(w->p + i, mo_update8(c, g, p, &m, &v));
        _mm256_storeu_ps(w->m + i, m);
        _mm256_storeu_ps(w->v + i, v);
        __m256i bits = _mm256_and_si256(_mm256_castps_si256(m), _mm256_set1_epi32(0x7fffffff));
        largest1 = _mm256_max_epu32(largest1, bits);
        largest2 = _mm256_max_epu32(largest2, _mm256_castps_si256(v));
    }
    w->largest1 = mo_largest8(largest1);
    w->largest2 = mo_largest8(largest2);
}

/* Not inlined: measured, inlining it makes the loops above a third slower. */
static __attribute__((noinline)) void store_parameters(const mo_optim_span *s, uint64_t at,
                                                       int p_dtype, const work *w)
{
    if (p_dtype == MO_DTYPE_F32 || !s->stochastic) {
        for (uint64_t i = 0; i < BLOCK; i += 8)
            mo_optim_store8(s, at + i, p_dtype, _mm256_loadu_ps(w->p + i));
        return;
    }
    mo_write_stochastic(s, at, BLOCK, w->p);
    for (uint64_t i = 0; i < BLOCK && s->copy != NULL; i += 8)
        mo_store8(s->copy, at + i, s->copy_dtype, _mm256_loadu_ps(w->p + i));
}

MO_INLINE void step_blocks(const mo_optim_span *s, int p_dtype, int g_dtype)
{
    work w;
    mo_coef8 c = mo_coef8_of(&s->coef);
    uint64_t at = 0;
    for (; at + BLOCK <= s->count; at += BLOCK) {
        update_block(s, &c, at, &w, p_dtype, g_dtype);
        if (w.largest1 >= MO_F32_INF_BITS || w.largest2 >= MO_F32_INF_BITS) {
            mo_step_block_scalar(MO_RULE_ADAMW, MO_STATE_8BIT, s, at);
            continue;
        }
        mo_block_scale scale1 = mo_block_scale_of(w.largest1);
        mo_block_scale scale2 = mo_block_scale_of(w.largest2);
        mo_quantize_block8(w.m, &scale1, 1, (uint8_t *)s->m + at);
        mo_quantize_block8(w.v, &scale2, 0, (uint8_t *)s->v + at);
        s->absmax1[at / BLOCK] = scale1.absmax;
        s->absmax2[at / BLOCK] = scale2.absmax;
        store_parameters(s, at, p_dtype, &w);
    }
    if (at < s->count)
        mo_step_block_scalar(MO_RULE_ADAMW, MO_STATE_8BIT, s, at);
}

/* One function per type of the parameter keeps the code of each small. */
#define BLOCKS_FOR(name, p_dtype)                                                                  \
    static __attribute__((noinline)) void name(const mo_optim_span *s)                             \
    {                                                                                              \
        if (s->gradient_dtype == MO_DTYPE_F32)                                                     \
            step_blocks(s, p_dtype, MO_DTYPE_F32);                                                 \
        else if (s->gradient_dtype == MO_DTYPE_BF16)                                               \
            step_blocks(s, p_dtype, MO_DTYPE_BF16);                                                \
        else                                                                                       \
            step_blocks(s, p_dtype, MO_DTYPE_F16);                                                 \
    }

BLOCKS_FOR(blocks_f32, MO_DTYPE_F32)
BLOCKS_FOR(blocks_bf16, MO_DTYPE_BF16)
BLOCKS_FOR(blocks_f16, MO_DTYPE_F16)

void mo_optim_step_avx2(const void *args, uint64_t begin, uint64_t end)
{
    const mo_optim_step_args *a = args;
    mo_optim_span span;
    for (uint64_t chunk = begin; chunk < end && !a->control->skip; chunk++) {
        mo_optim_span_of(a, chunk, &span);
        if (span.absmax1 == NULL)
            mo_adamw32_span_avx2(&span);
        else if (span.parameter_dtype == MO_DTYPE_F32)
            blocks_f32(&span);
        else if (span.parameter_dtype == MO_DTYPE_BF16)
            blocks_bf16(&span);
        else
            blocks_f16(&span);
    }
}
