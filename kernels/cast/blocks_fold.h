/*
 * Columns of a matrix, over the vectors of one instruction set: include a vector_*.h first. They
 * are laid side by side, turned in registers in squares of 16 bytes, or measured.
 */
#ifndef MO_KERNELS_CAST_BLOCKS_TURN_H
#define MO_KERNELS_CAST_BLOCKS_TURN_H

#include "kernels/cast/blocks_cpu.h"
#include "kernels/core/prefetch.h"

#include <string.h>

enum { TURN_HALVES = sizeof(VI) / 2, TURN_WORDS = sizeof(VI) / 4 };

/* 16 columns of as many rows as a vector has bytes. Codes are in the first cache, so their lines
 * can be read in parts. */
MO_INLINE void turn_bytes16(const unsigned char *from, uint64_t pitch, unsigned char *to,
                            uint64_t step)
{
    VI x[16], y[16];
    for (uint64_t k = 0; k < 16; k++)
        x[k] = v_load_parts(from + k * pitch, 16 * pitch);
    for (int round = 0; round < 4; round++) {
        for (int k = 0; k < 8; k++) {
            y[2 * k] = v_turn8_low(x[k], x[k + 8]);
            y[2 * k + 1] = v_turn8_high(x[k], x[k + 8]);
        }
        for (int k = 0; k < 16; k++)
            x[k] = y[k];
    }
    for (uint64_t k = 0; k < 16; k++)
        v_put(to + k * step, x[k], 0);
}

/* Zips of rows half the square apart, as often as a column has a power of two, make columns, which
 * are `step` bytes apart. */
MO_INLINE void turn_halves8(const unsigned char *from, uint64_t pitch, unsigned char *to,
                            uint64_t step)
{
    VI x[8], y[8];
    for (uint64_t k = 0; k < 8; k++)
        x[k] = v_loadi(from + k * pitch);
    for (int round = 0; round < 3; round++) {
        for (int k = 0; k < 4; k++) {
            y[2 * k] = v_zip16_low(x[k], x[k + 4]);
            y[2 * k + 1] = v_zip16_high(x[k], x[k + 4]);
        }
        for (int k = 0; k < 8; k++)
            x[k] = y[k];
    }
    for (uint64_t k = 0; k < 8; k++)
        v_put_parts(to + k * step, 8 * step, x[k]);
}

MO_INLINE void turn_words4(const unsigned char *from, uint64_t pitch, unsigned char *to,
                           uint64_t step)
{
    VI x[4], y[4];
    for (uint64_t k = 0; k < 4; k++)
        x[k] = v_loadi(from + k * pitch);
    for (int round = 0; round < 2; round++) {
        for (int k = 0; k < 2; k++) {
            y[2 * k] = v_zip32_low(x[k], x[k + 2]);
            y[2 * k + 1] = v_zip32_high(x[k], x[k + 2]);
        }
        for (int k = 0; k < 4; k++)
            x[k] = y[k];
    }
    for (uint64_t k = 0; k < 4; k++)
        v_put_parts(to + k * step, 4 * step, x[k]);
}

/* Tiles that are not whole go to the scalar form. */
static void turn_bytes(const unsigned char *values, uint64_t pitch, uint64_t rows, uint64_t columns,
                       unsigned char *turned)
{
    if (rows != MO_BLOCKS_TILE || columns != MO_TURN_COLUMNS) {
        mo_blocks_scalar_form.turn[0](values, pitch, rows, columns, turned);
        return;
    }
    for (uint64_t c = 0; c < MO_TURN_COLUMNS; c += 16)
        for (uint64_t r = 0; r < MO_BLOCKS_TILE; r += sizeof(VI))
            turn_bytes16(values + r * pitch + c, pitch, turned + c * MO_BLOCKS_TILE + r,
                         MO_BLOCKS_TILE);
}

static void turn_halves(const unsigned char *values, uint64_t pitch, uint64_t rows,
                        uint64_t columns, unsigned char *turned)
{
    if (rows != MO_BLOCKS_TILE || columns != MO_TURN_COLUMNS) {
        mo_blocks_scalar_form.turn[1](values, pitch, rows, columns, turned);
        return;
    }
    for (uint64_t c = 0; c < MO_TURN_COLUMNS; c += TURN_HALVES)
        for (uint64_t r = 0; r < MO_BLOCKS_TILE; r += 8)
            turn_halves8(values + r * pitch + 2 * c, pitch, turned + 2 * (c * MO_BLOCKS_TILE + r),
                         2 * MO_BLOCKS_TILE);
}

static void turn_words(const unsigned char *values, uint64_t pitch, uint64_t rows, uint64_t columns,
                       unsigned char *turned)
{
    if (rows != MO_BLOCKS_TILE || columns != MO_TURN_COLUMNS) {
        mo_blocks_scalar_form.turn[2](values, pitch, rows, columns, turned);
        return;
    }
    for (uint64_t c = 0; c < MO_TURN_COLUMNS; c += TURN_WORDS)
        for (uint64_t r = 0; r < MO_BLOCKS_TILE; r += 4)
            turn_words4(values + r * pitch + 4 * c, pitch, turned + 4 * (c * MO_BLOCKS_TILE + r),
                        4 * MO_BLOCKS_TILE);
}

static void spread(unsigned char *to, uint64_t pitch, const unsigned char *from, uint64_t bytes,
                   uint64_t count, int streaming)
{
    for (uint64_t i = 0; i < count; i++)
        for (uint64_t k = 0; k < bytes; k += sizeof(VI))
            v_put(to + i * pitch + k, v_loadi(from + i * bytes + k), streaming);
}

/* --- measured ----------------------------------------------------------------------------------
 */

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
