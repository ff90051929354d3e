/*
 * The steps and codes of step_simd.h on AVX-512: included by a file for each set of instructions,
 * which defines MO_FORM(name), the name with the set's suffix.
 */
#include "kernels/optim/optim_avx512.h"

enum { MO_LANES_N = 16 };
typedef __m512 VF;
typedef __mmask16 VM;
typedef __m512i VI;

#define v_set _mm512_set1_ps
#define v_seti _mm512_set1_epi32
#define v_load _mm512_loadu_ps
#define v_store _mm512_storeu_ps
#define v_add _mm512_add_ps
#define v_sub _mm512_sub_ps
#define v_mul _mm512_mul_ps
#define v_div _mm512_div_ps
#define v_sqrt _mm512_sqrt_ps
#define v_min _mm512_min_ps
#define v_fma _mm512_fmadd_ps
#define v_bits _mm512_castsi512_ps
#define v_ints _mm512_castps_si512
#define v_float _mm512_cvtepi32_ps
#define v_ceil_int(x) _mm512_cvt_roundps_epi32(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC)
#define v_and _mm512_and_si512
#define v_or _mm512_or_si512
#define v_xor _mm512_xor_si512
#define v_addi _mm512_add_epi32
#define v_subi _mm512_sub_epi32
#define v_maxi _mm512_max_epi32
#define v_mini _mm512_min_epi32
#define v_sll _mm512_slli_epi32
#define v_srl _mm512_srli_epi32
#define v_sra _mm512_srai_epi32
#define v_is_nan(x) _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q)
#define v_lt(a, b) _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ)
#define v_gti _mm512_cmpgt_epi32_mask
#define v_eqi _mm512_cmpeq_epi32_mask
#define v_select(mask, a, b) _mm512_mask_blend_ps(mask, b, a)
#define v_selecti(mask, a, b) _mm512_mask_blend_epi32(mask, b, a)
#define v_count(n, mask) _mm512_mask_sub_epi32(n, mask, n, _mm512_set1_epi32(-1))
#define v_load_as mo_load16
#define v_store_as mo_store16
#define v_largest(x) ((uint32_t)_mm512_reduce_max_epi32(x))

MO_INLINE VI v_load_codes(const uint8_t *codes)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)codes));
}

MO_INLINE void v_store_codes(uint8_t *codes, VI code)
{
    _mm_storeu_si128((__m128i *)(void *)codes, _mm512_cvtepi32_epi8(code));
}

MO_INLINE VF v_table16(const uint32_t *table, VI index)
{
    return _mm512_permutexvar_ps(index, _mm512_loadu_ps((const float *)(const void *)table));
}

MO_INLINE void v_decode_8bit(int is_signed, const uint8_t *codes, float scale, float *values)
{
    for (int i = 0; i < MO_BLOCK_SIZE; i += 64) {
        mo_f32x64 x = is_signed ? mo_decode64_signed(codes + i, v_set(scale))
                                : mo_decode64_unsigned(codes + i, v_set(scale));
        for (int k = 0; k < 4; k++)
            v_store(values + i + 16 * k, x.part[k]);
    }
}

/* The stages of coding take a signed and an unsigned state; the compiler drops the unused half.
 */
MO_INLINE void v_encode_8bit(int is_signed, const float *values, const mo_block_scale *scale,
                             uint8_t *codes)
{
    _Alignas(64) float x[MO_BLOCK_SIZE];
    for (int i = 0; i < MO_BLOCK_SIZE; i += 16)
        _mm512_store_ps(x + i, v_load(values + i));
    float factor = mo_normalize_block(x, scale, is_signed);
    for (int i = 0; i < MO_BLOCK_SIZE; i += 64) {
        mo_encode64 e;
        e.y[0] = e.y[1] = mo_normalize64(x + i, factor);
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

#include "kernels/optim/step_simd.h"

MO_LANE_STEP(MO_FORM(mo_step_adamw4), MO_RULE_ADAMW, MO_STATE_4BIT)
MO_LANE_STEP(MO_FORM(mo_step_adamwf8), MO_RULE_ADAMW, MO_STATE_F8)
MO_LANE_STEP(MO_FORM(mo_step_lion8), MO_RULE_LION, MO_STATE_8BIT)
MO_LANE_STEP(MO_FORM(mo_step_sgd8), MO_RULE_SGD, MO_STATE_8BIT)
MO_LANE_CODE(MO_FORM(mo_quantize), MO_FORM(mo_dequantize), MO_STATE_8BIT)
MO_LANE_CODE(MO_FORM(mo_quantize4), MO_FORM(mo_dequantize4), MO_STATE_4BIT)
MO_LANE_CODE(MO_FORM(mo_quantizef8), MO_FORM(mo_dequantizef8), MO_STATE_F8)
