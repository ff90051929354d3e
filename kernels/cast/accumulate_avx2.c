/* The AVX2 form of the accumulate kernel, 16 elements at a time. */
#include "kernels/cast/accumulate_cpu.h"
#include "kernels/core/prefetch.h"
#include "kernels/core/vector_io_avx2.h"

MO_AVX2_INLINE void add_8(unsigned char *to, const unsigned char *from, __m256 scale,
                          uint32_t to_dtype, uint32_t from_dtype)
{
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32((int)MO_F32_NAN_BITS));
    __m256 value = _mm256_castsi256_ps(mo_load_gradients_8(from, from_dtype));
    __m256 sum = _mm256_castsi256_ps(mo_load_gradients_8(to, to_dtype));
    __m256 result = _mm256_fmadd_ps(scale, value, sum);
    result = _mm256_blendv_ps(result, nan, _mm256_cmp_ps(result, result, _CMP_UNORD_Q));
    mo_store_gradients_8(to, _mm256_castps_si256(result), to_dtype);
}

MO_AVX2_INLINE void add(const mo_accumulate_piece *piece, float scale, uint32_t to_dtype,
                        uint32_t from_dtype)
{
    const __m256 wide = _mm256_set1_ps(scale);
    uint64_t i = 0, to_size = mo_element_size(to_dtype), from_size = mo_element_size(from_dtype);
    for (; i + 16 <= piece->count; i += 16) {
        unsigned char *to = piece->destination + i * to_size;
        const unsigned char *from = piece->source + i * from_size;
        mo_ask_ahead(to, 16 * to_size);
        mo_ask_ahead(from, 16 * from_size);
        add_8(to, from, wide, to_dtype, from_dtype);
        add_8(to + 8 * to_size, from + 8 * from_size, wide, to_dtype, from_dtype);
    }
    mo_accumulate_scalar(piece, i, scale);
}

MO_AVX2_INLINE void add_to(const mo_accumulate_piece *piece, float scale, uint32_t to_dtype)
{
    if (piece->source_dtype == MO_DTYPE_F32)
        add(piece, scale, to_dtype, MO_DTYPE_F32);
    else if (piece->source_dtype == MO_DTYPE_F16)
        add(piece, scale, to_dtype, MO_DTYPE_F16);
    else
        add(piece, scale, to_dtype, MO_DTYPE_BF16);
}

void mo_accumulate_avx2(const void *args, uint64_t begin, uint64_t end)
{
    const mo_accumulate_args *a = args;
    for (uint64_t item = begin; item < end; item++) {
        mo_accumulate_piece piece;
        mo_accumulate_piece_of(a, item, &piece);
        if (piece.destination_dtype == MO_DTYPE_F32)
            add_to(&piece, a->scale, MO_DTYPE_F32);
        else if (piece.destination_dtype == MO_DTYPE_F16)
            add_to(&piece, a->scale, MO_DTYPE_F16);
        else
            add_to(&piece, a->scale, MO_DTYPE_BF16);
    }
}
