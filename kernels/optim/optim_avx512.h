/* Loads, stores and roundings of the optimizer's AVX-512 forms: 16 or 64 elements as fp32. */
#ifndef MO_KERNELS_OPTIM_OPTIM_AVX512_H
#define MO_KERNELS_OPTIM_OPTIM_AVX512_H

#include "kernels/core/vector_avx512.h"
#include "kernels/core/vector_stochastic.h"
#include "kernels/optim/optim_cpu.h"
#include "kernels/optim/state_codes_avx512.h"
#include "kernels/optim/step_simd_rules.h"

/* The random bits of 64 elements from `first` (a multiple of 64) on, 32 halfwords a vector: eight
 * Philox blocks, one in each 64-bit lane. */
MO_INLINE void mo_random64(const mo_random_stream *r, uint64_t first, __m512i out[2])
{
    __m512i block = _mm512_add_epi64(_mm512_set1_epi64((long long)(first / 8)),
                                     _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
    __m512i c[1][4] = {{block, _mm512_srli_epi64(block, 32), _mm512_set1_epi64(r->high[0]),
                        _mm512_set1_epi64(r->high[1])}};
    mo_philox_lanes(c, 1, r->key);
    __m512i low = _mm512_mask_blend_epi32(0xaaaa, c[0][0], _mm512_slli_epi64(c[0][1], 32));
    __m512i high = _mm512_mask_blend_epi32(0xaaaa, c[0][2], _mm512_slli_epi64(c[0][3], 32));
    __m512i even = _mm512_unpacklo_epi64(low, high), odd = _mm512_unpackhi_epi64(low, high);
    out[0] = _mm512_permutex2var_epi64(even, _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0), odd);
    out[1] = _mm512_permutex2var_epi64(even, _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4), odd);
}

/* Stochastic; first: the index in the tensor of element i, a multiple of 64. */
MO_INLINE void mo_store64_stochastic(void *data, uint64_t i, int32_t dtype, const mo_f32x64 *x,
                                     const mo_random_stream *random, uint64_t first)
{
    uint16_t *halves = (uint16_t *)data + i;
    __m512i bits[2];
    mo_random64(random, first, bits);
    for (int k = 0; k < 4; k++) {
        __m512i u = _mm512_castps_si512(x->part[k]), r = mo_random_lane(bits, k);
        __m512i code = dtype == MO_DTYPE_BF16 ? v_srl(mo_bf16_stochastic_lanes(u, r), 16)
                                              : mo_f16_stochastic_lanes(u, r);
        _mm256_storeu_si256((__m256i *)(void *)(halves + 16 * k), _mm512_cvtepi32_epi16(code));
    }
}

/* --- what step_simd.h needs ------------------------------------------------------------------ */

MO_INLINE void v_decode_8bit(int is_signed, const uint8_t *codes, float scale, float *values,
                             uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 64) {
        mo_f32x64 x = is_signed ? mo_decode64_signed(codes + i, v_set(scale))
                                : mo_decode64_unsigned(codes + i, v_set(scale));
        for (int k = 0; k < 4; k++)
            v_store(values + i + 16 * (uint32_t)k, x.part[k]);
    }
}

/* n is MO_BLOCK_SIZE. `values` are aligned and may be changed. The stages of coding take a signed
 * and an unsigned state; the compiler drops the unused half. */
MO_INLINE void v_encode_8bit(int is_signed, float *values, const mo_block_scale *scale,
                             uint8_t *codes, uint32_t n)
{
    float factor = mo_normalize_block(values, scale, is_signed);
    for (uint32_t i = 0; i < n; i += 64) {
        mo_encode64 e;
        e.y[0] = e.y[1] = mo_normalize64(values + i, factor);
        mo_encode64_lines(&e);
        mo_encode64_compare(&e);
        _mm512_storeu_si512(codes + i,
                            is_signed ? mo_encode64_signed(&e) : mo_encode64_unsigned(&e));
    }
}

MO_INLINE void v_write_stochastic(const mo_optim_span *s, uint64_t at, uint64_t n,
                                  const float *values)
{
    for (uint64_t i = 0; i < n; i += 64) {
        mo_f32x64 x;
        for (int k = 0; k < 4; k++)
            x.part[k] = v_load(values + i + 16 * (uint64_t)k);
        mo_store64_stochastic(s->parameter, at + i, s->parameter_dtype, &x, &s->random,
                              s->start + at + i);
    }
}

/* --- what step_coded.h needs ------------------------------------------------------------------ */

#if defined(__AVX512VBMI__)
#define V_TYPES 1
#else
#define V_TYPES 0
#endif
#define V_MASTER(format) 1
enum { V_PART = 64, MO_HALVES = 0, MO_EVEN_ODD = 1 };

#define v_order(f) ((void)(f), MO_HALVES)
#define v_turns(f) ((f).format == MO_STATE_8BIT)

MO_INLINE void v_decode_part(int is_signed, const uint8_t *codes, VF scale, int order, VF x[4])
{
    mo_f32x64 y = is_signed ? mo_decode64_signed(codes, scale) : mo_decode64_unsigned(codes, scale);
    (void)order;
    MO_EACH x[i] = y.part[i];
}

typedef int v_steps;
#define v_steps_of(is_signed) 0

typedef float v_coder; /* the factor of mo_normalize64 */

MO_INLINE void v_coder_of(int is_signed, const mo_block_scale *scale, float *values, v_coder *coder)
{
    *coder = mo_normalize_block(values, scale, is_signed);
}

typedef mo_encode64 v_coding;

MO_INLINE void v_code_begin(const float *m, const v_coder *coder, const float *v,
                            const v_coder *other, v_coding *x)
{
    x->y[0] = mo_normalize64(m, *coder);
    x->y[1] = mo_normalize64(v, *other);
    mo_encode64_lines(x);
}

#define v_code_compare mo_encode64_compare

MO_INLINE void v_code_end(const v_steps *steps, int is_signed, const float *values,
                          const v_coder *coder, int order, const v_coding *x, uint8_t *codes)
{
    (void)steps, (void)values, (void)coder, (void)order;
    v_put(codes, is_signed ? mo_encode64_signed(x) : mo_encode64_unsigned(x), 0);
}

#endif
