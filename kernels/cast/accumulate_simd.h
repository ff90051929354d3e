/* The accumulate kernel over the vectors of one instruction set: include a vector_*.h first. Types
 * are constants to the compiler. */
#include "kernels/cast/cast_cpu.h"
#include "kernels/core/prefetch.h"

MO_INLINE void accumulate_lanes(unsigned char *to, const unsigned char *from, uint64_t i, VF scale,
                                int32_t to_dtype, int32_t from_dtype)
{
    VF sum = v_load_as(to, i, to_dtype), value = v_load_as(from, i, from_dtype);
    v_store_as(to, i, to_dtype, v_one_nan(v_fma(scale, value, sum)));
}

MO_INLINE void accumulate_typed(const mo_accumulate_piece *piece, int32_t to_dtype,
                                int32_t from_dtype)
{
    enum { GROUP = 2 * MO_LANES_N };
    uint64_t to_size = mo_element_size((uint32_t)to_dtype), i = 0;
    uint64_t from_size = mo_element_size((uint32_t)from_dtype);
    unsigned char *to = piece->destination;
    const VF scale = v_set(piece->scale);
    for (; i + GROUP <= piece->count; i += GROUP) {
        mo_prefetch_page_ahead(to + i * to_size, GROUP * to_size);
        mo_prefetch_page_ahead(piece->source + i * from_size, GROUP * from_size);
        accumulate_lanes(to, piece->source, i, scale, to_dtype, from_dtype);
        accumulate_lanes(to, piece->source, i + MO_LANES_N, scale, to_dtype, from_dtype);
    }
    mo_accumulate_scalar(piece, i);
}

MO_INLINE void accumulate_to(const mo_accumulate_piece *piece, int32_t to_dtype)
{
    if (piece->source_dtype == MO_DTYPE_F32)
        accumulate_typed(piece, to_dtype, MO_DTYPE_F32);
    else if (piece->source_dtype == MO_DTYPE_F16)
        accumulate_typed(piece, to_dtype, MO_DTYPE_F16);
    else
        accumulate_typed(piece, to_dtype, MO_DTYPE_BF16);
}

static void accumulate_run(const mo_accumulate_args *args, uint64_t begin, uint64_t end)
{
    for (uint64_t item = begin; item < end; item++) {
        mo_accumulate_piece piece;
        mo_accumulate_piece_of(args, item, &piece);
        if (piece.destination_dtype == MO_DTYPE_F32)
            accumulate_to(&piece, MO_DTYPE_F32);
        else if (piece.destination_dtype == MO_DTYPE_F16)
            accumulate_to(&piece, MO_DTYPE_F16);
        else
            accumulate_to(&piece, MO_DTYPE_BF16);
    }
}

void MO_FORM(mo_accumulate)(const void *args, uint64_t begin, uint64_t end)
{
    accumulate_run(args, begin, end);
}
