/* The AVX2 form of the accumulate kernel, 16 elements at a time. */
#include "kernels/cast/cast_cpu.h"
#include "kernels/core/prefetch.h"
#include "kernels/core/vector_io_avx2.h"

MO_INLINE void add_8(unsigned char *to, const unsigned char *from, uint64_t i, __m256 scale,
                     int32_t to_dtype, int32_t from_dtype)
{
    __m256 sum = mo_load8(to, i, to_dtype), value = mo_load8(from, i, from_dtype);
    mo_store8(to, i, to_dtype, mo_one_nan8(_mm256_fmadd_ps(scale, value, sum)));
}

MO_INLINE void add(const mo_accumulate_piece *piece, float scale, int32_t to_dtype,
                   int32_t from_dtype)
{
    const __m256 wide = _mm256_set1_ps(scale);
    uint64_t to_size = mo_element_size((uint32_t)to_dtype), i = 0;
    uint64_t from_size = mo_element_size((uint32_t)from_dtype);
    for (; i + 16 <= piece->count; i += 16) {
        mo_prefetch_page_ahead(piece->destination + i * to_size, 16 * to_size);
        mo_prefetch_page_ahead(piece->source + i * from_size, 16 * from_size);
        add_8(piece->destination, piece->source, i, wide, to_dtype, from_dtype);
        add_8(piece->destination, piece->source, i + 8, wide, to_dtype, from_dtype);
    }
    mo_accumulate_scalar(piece, i, scale);
}

MO_INLINE void add_to(const mo_accumulate_piece *piece, float scale, int32_t to_dtype)
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
