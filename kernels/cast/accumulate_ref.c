/* The scalar form of the accumulate kernel. */
#include "kernels/cast/cast_cpu.h"
#include "kernels/core/element_io.h"

void mo_accumulate_scalar(const mo_accumulate_piece *piece, uint64_t start)
{
    int32_t from = (int32_t)piece->source_dtype, to = (int32_t)piece->destination_dtype;
    for (uint64_t i = start; i < piece->count; i++) {
        float sum = mo_load_element(piece->destination, i, to);
        float value = mo_load_element(piece->source, i, from);
        mo_store_element(piece->destination, i, to,
                         mo_accumulate_element(sum, value, piece->scale));
    }
}

void mo_accumulate_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_accumulate_args *a = args;
    for (uint64_t item = begin; item < end; item++) {
        mo_accumulate_piece piece;
        mo_accumulate_piece_of(a, item, &piece);
        mo_accumulate_scalar(&piece, 0);
    }
}
