/*
 * Columns of values laid side by side, over the vectors of one instruction set: include a
 * vector_*.h first. Eight rows, of elements of 4 bytes four, of a vector's width are turned in
 * registers, in squares of 16 bytes.
 */
#ifndef MO_KERNELS_CAST_BLOCKS_TURN_H
#define MO_KERNELS_CAST_BLOCKS_TURN_H

#include "kernels/cast/blocks_cpu.h"

enum { TURN_HALVES = sizeof(VI) / 2, TURN_WORDS = sizeof(VI) / 4 };

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
static void turn_halves(const unsigned char *values, uint64_t pitch, uint64_t rows,
                        uint64_t columns, unsigned char *turned)
{
    if (rows != MO_BLOCKS_TILE || columns != MO_TURN_COLUMNS) {
        mo_blocks_scalar_form.turn[0](values, pitch, rows, columns, turned);
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
        mo_blocks_scalar_form.turn[1](values, pitch, rows, columns, turned);
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

#endif
