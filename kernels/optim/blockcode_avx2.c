/* Block-wise quantise and dequantise on AVX2. */
#include "kernels/optim/optim_avx2.h"
#include "kernels/optim/optim_forms.h"

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
        mo_quantize_scalar(a, first, MO_BLOCK_SIZE);
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
        mo_quantize_scalar(a, i, (uint32_t)(last - i));
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
    mo_dequantize_scalar(a, i, last);
}
