/* The steps and codes of step_simd.h on AVX2 with FMA and F16C, and block-wise 8-bit codes. */
#include "kernels/optim/optim_avx2.h"

enum { MO_LANES_N = 8 };
typedef __m256 VF, VM;
typedef __m256i VI;

#define v_set _mm256_set1_ps
#define v_seti _mm256_set1_epi32
#define v_load _mm256_loadu_ps
#define v_store _mm256_storeu_ps
#define v_add _mm256_add_ps
#define v_sub _mm256_sub_ps
#define v_mul _mm256_mul_ps
#define v_div _mm256_div_ps
#define v_sqrt _mm256_sqrt_ps
#define v_min _mm256_min_ps
#define v_fma _mm256_fmadd_ps
#define v_bits _mm256_castsi256_ps
#define v_ints _mm256_castps_si256
#define v_float _mm256_cvtepi32_ps
#define v_ceil_int(x) _mm256_cvttps_epi32(_mm256_ceil_ps(x))
#define v_and _mm256_and_si256
#define v_or _mm256_or_si256
#define v_xor _mm256_xor_si256
#define v_addi _mm256_add_epi32
#define v_subi _mm256_sub_epi32
#define v_maxi _mm256_max_epi32
#define v_mini _mm256_min_epi32
#define v_sll _mm256_slli_epi32
#define v_srl _mm256_srli_epi32
#define v_sra _mm256_srai_epi32
#define v_is_nan(x) _mm256_cmp_ps(x, x, _CMP_UNORD_Q)
#define v_lt(a, b) _mm256_cmp_ps(a, b, _CMP_LT_OQ)
#define v_gti(a, b) _mm256_castsi256_ps(_mm256_cmpgt_epi32(a, b))
#define v_eqi(a, b) _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b))
#define v_select(mask, a, b) _mm256_blendv_ps(b, a, mask)
#define v_selecti(mask, a, b) _mm256_castps_si256(_mm256_blendv_ps(v_bits(b), v_bits(a), mask))
#define v_count(n, mask) _mm256_sub_epi32(n, _mm256_castps_si256(mask))
#define v_load_codes mo_codes8
#define v_store_codes mo_store_codes8
#define v_load_as mo_load8
#define v_store_as mo_store8
#define v_largest mo_largest8

MO_INLINE VF v_table16(const uint32_t *table, VI index)
{
    VF low = _mm256_loadu_ps((const float *)(const void *)table);
    VF high = _mm256_loadu_ps((const float *)(const void *)(table + 8));
    VF upper = v_bits(v_sll(index, 28)); /* the sign: bit 3 of the index */
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, index),
                            _mm256_permutevar8x32_ps(high, index), upper);
}

MO_INLINE void v_decode_8bit(int is_signed, const uint8_t *codes, float scale, float *values)
{
    const uint32_t *map = is_signed ? mo_map_signed : mo_map_unsigned;
    for (int i = 0; i < MO_BLOCK_SIZE; i += 8)
        v_store(values + i, mo_decode8(map, codes + i, v_set(scale)));
}

MO_INLINE void v_encode_8bit(int is_signed, const float *values, const mo_block_scale *scale,
                             uint8_t *codes)
{
    mo_quantize_block8(values, scale, is_signed, codes);
}

#define v_write_stochastic mo_write_stochastic

#include "kernels/optim/step_simd.h"

MO_LANE_STEP(mo_step_adamw4_avx2, MO_RULE_ADAMW, MO_STATE_4BIT)
MO_LANE_STEP(mo_step_adamwf8_avx2, MO_RULE_ADAMW, MO_STATE_F8)
MO_LANE_STEP(mo_step_lion8_avx2, MO_RULE_LION, MO_STATE_8BIT)
MO_LANE_STEP(mo_step_sgd8_avx2, MO_RULE_SGD, MO_STATE_8BIT)
MO_LANE_CODE(mo_quantize4_avx2, mo_dequantize4_avx2, MO_STATE_4BIT)
MO_LANE_CODE(mo_quantizef8_avx2, mo_dequantizef8_avx2, MO_STATE_F8)

void mo_adamw32_span_avx2(const mo_optim_span *s)
{
    mo_lane_coef c = mo_lane_coef_of(&s->coef);
    mo_lane_work w;
    lane_step32(MO_RULE_ADAMW, s, &c, &w);
}

/* --- block-wise 8-bit codes
 * ------------------------------------------------------------------------ */

static void quantize_block(const mo_blockcode_args *a, uint64_t first)
{
    float x[MO_BLOCK_SIZE];
    __m256i largest = _mm256_setzero_si256();
    for (uint64_t i = 0; i < MO_BLOCK_SIZE; i += 8) {
        __m256 value = mo_load8(a->values, first + i, a->dtype);
        __m256i bits = _mm256_castps_si256(value);
        largest = _mm256_max_epu32(largest, _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
        if (!a->is_signed) /* negatives, -0 included, count as 0 */
            value = _mm256_castsi256_ps(_mm256_max_epi32(bits, _mm256_setzero_si256()));
        _mm256_storeu_ps(x + i, value);
    }
    uint32_t top = mo_largest8(largest);
    if (top >= MO_F32_INF_BITS) {
        mo_quantize_block_scalar(MO_STATE_8BIT, a, first, MO_BLOCK_SIZE);
        return;
    }
    mo_block_scale scale = mo_block_scale_of(top);
    mo_quantize_block8(x, &scale, a->is_signed != 0, a->codes + first);
    a->absmax[first / MO_BLOCK_SIZE] = scale.absmax;
}

void mo_quantize_avx2(const void *args, uint64_t begin, uint64_t end)
{
    const mo_blockcode_args *a = args;
    uint64_t i = begin * MO_CHUNK_ELEMENTS, last = end * MO_CHUNK_ELEMENTS;
    if (last > a->count)
        last = a->count;
    for (; i + MO_BLOCK_SIZE <= last; i += MO_BLOCK_SIZE)
        quantize_block(a, i);
    if (i < last)
        mo_quantize_block_scalar(MO_STATE_8BIT, a, i, (uint32_t)(last - i));
}

void mo_dequantize_avx2(const void *args, uint64_t begin, uint64_t end)
{
    const mo_blockcode_args *a = args;
    const uint32_t *map = a->is_signed ? mo_map_signed : mo_map_unsigned;
    uint64_t i = begin * MO_CHUNK_ELEMENTS, last = end * MO_CHUNK_ELEMENTS;
    if (last > a->count)
        last = a->count;
    for (; i + 8 <= last; i += 8) {
        __m256 absmax = _mm256_set1_ps(a->absmax[i / MO_BLOCK_SIZE]);
        mo_store8(a->values, i, a->dtype, mo_one_nan8(mo_decode8(map, a->codes + i, absmax)));
    }
    mo_dequantize_run_scalar(MO_STATE_8BIT, a, i, last);
}
