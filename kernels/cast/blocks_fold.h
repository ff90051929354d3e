/* The largest magnitude of each column of a matrix, over the vectors of one instruction set:
 * include a vector_*.h first. */
#ifndef MO_KERNELS_CAST_BLOCKS_FOLD_H
#define MO_KERNELS_CAST_BLOCKS_FOLD_H

#include "kernels/cast/blocks_cpu.h"
#include "kernels/core/prefetch.h"

#include <string.h>

/* Raises what is there already by `rows` rows, in whole lines; as many rows more are prefetched. */
MO_INLINE void fold_rows(const unsigned char *values, uint64_t pitch, uint64_t rows, uint64_t bytes,
                         unsigned char *largest, uint64_t size)
{
    const VI mask = v_seti(size == 4 ? 0x7fffffff : 0x7fff7fff);
    for (uint64_t k = 0; k < bytes; k += sizeof(VI)) {
        VI most = v_loadi(largest + k);
        for (uint64_t r = 0; r < rows; r++) {
            const unsigned char *at = values + r * pitch + k;
            VI bits = v_and(v_loadi(at), mask);
            most = size == 4 ? v_maxi(most, bits) : v_max_halves(most, bits);
            if (k % 64 == 0)
                mo_prefetch(at + rows * pitch, 64);
        }
        v_put(largest + k, most, 0);
    }
}

MO_INLINE void fold_columns(const unsigned char *values, uint64_t pitch, uint64_t rows,
                            uint64_t columns, unsigned char *largest, uint64_t size)
{
    const uint64_t bytes = size * columns / 64 * 64, rest = columns - bytes / size;
    uint64_t r = 0;
    memset(largest, 0, bytes);
    for (; r + 8 <= rows; r += 8)
        fold_rows(values + r * pitch, pitch, 8, bytes, largest, size);
    for (; r < rows; r++)
        fold_rows(values + r * pitch, pitch, 1, bytes, largest, size);
    if (rest != 0)
        mo_blocks_scalar_form.fold[size / 4](values + bytes, pitch, rows, rest, largest + bytes);
}

static void fold_halves(const unsigned char *values, uint64_t pitch, uint64_t rows,
                        uint64_t columns, unsigned char *largest)
{
    fold_columns(values, pitch, rows, columns, largest, 2);
}

static void fold_words(const unsigned char *values, uint64_t pitch, uint64_t rows, uint64_t columns,
                       unsigned char *largest)
{
    fold_columns(values, pitch, rows, columns, largest, 4);
}

#endif
