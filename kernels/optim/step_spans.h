/*
 * A launch of the step: the span of each chunk, and split weights on their way through fp32. The
 * same for all rules and formats.
 */
#include "kernels/optim/optim_forms.h"

/* Split weights: n of them to fp32 and back, in loops that compilers turn into vectors. */
static inline void mo_join_weights(const uint16_t *restrict weights, const void *restrict residuals,
                                   uint32_t bytes, uint64_t n, float *restrict values)
{
    const uint8_t *narrow = residuals;
    const uint16_t *wide = residuals;
    if (bytes == 1)
        for (uint64_t i = 0; i < n; i++)
            values[i] = mo_weight_join(weights[i], (uint32_t)narrow[i] << 8);
    else
        for (uint64_t i = 0; i < n; i++)
            values[i] = mo_weight_join(weights[i], wide[i]);
}

static inline void mo_split_weights(const float *restrict values, uint64_t n,
                                    uint16_t *restrict weights, void *restrict residuals,
                                    uint32_t bytes)
{
    uint8_t *narrow = residuals;
    uint16_t *wide = residuals;
    if (bytes == 1)
        for (uint64_t i = 0; i < n; i++) {
            mo_split_weight split = mo_weight_split(values[i], 1);
            weights[i] = split.weight;
            narrow[i] = (uint8_t)(split.residual >> 8);
        }
    else
        for (uint64_t i = 0; i < n; i++) {
            mo_split_weight split = mo_weight_split(values[i], 2);
            weights[i] = split.weight;
            wide[i] = split.residual;
        }
}

/* A span of split weights: some blocks at a time become fp32 in the first-level cache, are stepped
 * there as fp32 parameters, and are split again. */
static void mo_step_split(const mo_optim_span *s, void (*step)(const mo_optim_span *))
{
    enum { RUN = 4096 };
    _Alignas(64) float values[RUN];
    for (uint64_t at = 0; at < s->count; at += RUN) {
        uint64_t n = s->count - at < RUN ? s->count - at : (uint64_t)RUN;
        mo_optim_span part = mo_optim_part(s, at, n);
        uint16_t *weights = part.parameter;
        mo_join_weights(weights, part.residual, s->residual_bytes, n, values);
        part.parameter = values;
        part.parameter_dtype = MO_DTYPE_F32;
        step(&part);
        mo_split_weights(values, n, weights, part.residual, s->residual_bytes);
    }
}

/* A launch: `step` for the span of each chunk. */
MO_SPANS void mo_each_span(const mo_optim_step_args *a, uint64_t begin, uint64_t end,
                           void (*step)(const mo_optim_span *))
{
    mo_optim_span span;
    for (uint64_t chunk = begin; chunk < end && !a->control->skip; chunk++) {
        mo_optim_span_of(a, chunk, &span);
        if (span.residual == NULL)
            step(&span);
        else
            mo_step_split(&span, step);
    }
}
