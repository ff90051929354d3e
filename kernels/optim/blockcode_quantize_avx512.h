/*
 * Block-wise quantise and dequantise, 8 bits, AVX-512: included by a file for each set of
 * instructions, which defines MO_FORM(name), the name with the set's suffix.
 */
#include "kernels/optim/optim_avx512.h"
#include "kernels/optim/optim_forms.h"

MO_INLINE void quantize_block(const mo_blockcode_args *a, uint64_t first, int32_t dtype,
                              int is_signed)
{
    _Alignas(64) float x[MO_BLOCK_SIZE];
    __m512i largest = _mm512_setzero_si512();
    for (uint64_t i = 0; i < MO_BLOCK_SIZE; i += 16) {
        __m512 value = mo_load16(a->values, first + i, dtype);
        __m512i bits = _mm512_and_si512(_mm512_castps_si512(value), _mm512_set1_epi32(0x7fffffff));
        largest = _mm512_max_epu32(largest, bits);
        if (!is_signed) /* negatives, -0 included, count as 0 */
            value = _mm512_castsi512_ps(
                _mm512_max_epi32(_mm512_castps_si512(value), _mm512_setzero_si512()));
        _mm512_store_ps(x + i, value);
    }
    uint32_t top = _mm512_reduce_max_epu32(largest);
    if (top >= MO_F32_INF_BITS) {
        mo_quantize_scalar(a, first, MO_BLOCK_SIZE);
        return;
    }
    mo_block_scale scale = mo_block_scale_of(top);
    float factor = mo_normalize_block(x, &scale, is_signed);
    for (int i = 0; i < MO_BLOCK_SIZE; i += 64) {
        mo_encode64 e; /* one half of the pair is what is wanted; the other falls away */
        e.y[0] = e.y[1] = mo_normalize64(x + i, factor);
        mo_encode64_lines(&e);
        mo_encode64_compare(&e);
        _mm512_storeu_si512(a->codes + first + (uint64_t)i,
                            is_signed ? mo_encode64_signed(&e) : mo_encode64_unsigned(&e));
    }
    a->absmax[first / MO_BLOCK_SIZE] = scale.absmax;
}

static void quantize_run(const mo_blockcode_args *a, uint64_t first, uint64_t last, int32_t dtype)
{
    uint64_t i = first;
    if (a->is_signed)
        for (; i + MO_BLOCK_SIZE <= last; i += MO_BLOCK_SIZE)
            quantize_block(a, i, dtype, 1);
    else
        for (; i + MO_BLOCK_SIZE <= last; i += MO_BLOCK_SIZE)
            quantize_block(a, i, dtype, 0);
    if (i < last)
        mo_quantize_scalar(a, i, (uint32_t)(last - i));
}

void MO_FORM(mo_quantize)(const void *args, uint64_t begin, uint64_t end)
{
    const mo_blockcode_args *a = args;
    uint64_t first = begin * MO_CHUNK_ELEMENTS, last = end * MO_CHUNK_ELEMENTS;
    if (last > a->count)
        last = a->count;
    quantize_run(a, first, last, a->dtype);
}

void MO_FORM(mo_dequantize)(const void *args, uint64_t begin, uint64_t end)
{
    const mo_blockcode_args *a = args;
    uint64_t i = begin * MO_CHUNK_ELEMENTS, last = end * MO_CHUNK_ELEMENTS;
    if (last > a->count)
        last = a->count;
    for (; i + 64 <= last; i += 64) {
        __m512 absmax = _mm512_set1_ps(a->absmax[i / MO_BLOCK_SIZE]);
        mo_f32x64 x = a->is_signed ? mo_decode64_signed(a->codes + i, absmax)
                                   : mo_decode64_unsigned(a->codes + i, absmax);
        for (int k = 0; k < 4; k++)
            x.part[k] = mo_one_nan16(x.part[k]);
        mo_store64(a->values, i, a->dtype, &x);
    }
    mo_dequantize_scalar(a, i, last);
}
