/* The AdamW step with 32-bit states, AVX-512: bound by memory, so kept plain. */
#include "kernels/optim/optim_avx512.h"
#include "kernels/optim/optim_cpu.h"

MO_INLINE void step64(const mo_optim_span *s, const mo_coef16 *c, uint64_t i, int p_dtype,
                      int g_dtype)
{
    float *m = (float *)s->m + i, *v = (float *)s->v + i;
    mo_f32x64 p;
    for (int k = 0; k < 4; k++) {
        __m512 first = _mm512_loadu_ps(m + 16 * k), second = _mm512_loadu_ps(v + 16 * k);
        __m512 g = mo_load16(s->gradient, i + 16 * (uint64_t)k, g_dtype);
        __m512 old = mo_load16(s->parameter, i + 16 * (uint64_t)k, p_dtype);
        p.part[k] = mo_update16(c, g, old, &first, &second, 1);
        _mm512_storeu_ps(m + 16 * k, first);
        _mm512_storeu_ps(v + 16 * k, second);
    }
    if (p_dtype != MO_DTYPE_F32 && s->stochastic)
        mo_store64_stochastic(s->parameter, i, p_dtype, &p, &s->random, s->start + i);
    else
        mo_store64(s->parameter, i, p_dtype, &p);
    if (s->copy != NULL)
        mo_store64(s->copy, i, s->copy_dtype, &p);
}

MO_INLINE void step_all(const mo_optim_span *s, int p_dtype, int g_dtype)
{
    mo_coef16 c = mo_coef16_of(&s->coef);
    uint64_t whole = s->count / 64 * 64;
    for (uint64_t i = 0; i < whole; i += 64)
        step64(s, &c, i, p_dtype, g_dtype);
    mo_step32_scalar(MO_RULE_ADAMW, s, whole, s->count);
}

MO_INLINE void step_by_gradient(const mo_optim_span *s, int p_dtype)
{
    if (s->gradient_dtype == MO_DTYPE_F32)
        step_all(s, p_dtype, MO_DTYPE_F32);
    else if (s->gradient_dtype == MO_DTYPE_BF16)
        step_all(s, p_dtype, MO_DTYPE_BF16);
    else
        step_all(s, p_dtype, MO_DTYPE_F16);
}

void mo_adamw32_span_avx512(const mo_optim_span *s)
{
    if (s->parameter_dtype == MO_DTYPE_F32)
        step_by_gradient(s, MO_DTYPE_F32);
    else if (s->parameter_dtype == MO_DTYPE_BF16)
        step_by_gradient(s, MO_DTYPE_BF16);
    else
        step_by_gradient(s, MO_DTYPE_F16);
}
