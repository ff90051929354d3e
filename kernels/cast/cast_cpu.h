/*
 * What the CPU forms of the cast kernel share: a piece is one chunk of one tensor, and each form is
 * a table of functions that cast a piece, by source type, destination type and rounding.
 */
#ifndef MO_KERNELS_CAST_CPU_H
#define MO_KERNELS_CAST_CPU_H

#include "kernels/cast/cast.h"

typedef struct mo_cast_piece {
    const unsigned char *source;
    unsigned char *destination;
    uint64_t count; /* elements, at most MO_CHUNK_ELEMENTS */
    uint64_t first; /* number of the first element in its tensor, a multiple of the chunk */
    mo_random_stream stream;
    int saturate;
    int streaming; /* destination is aligned to 64 bytes and to be written past the caches */
} mo_cast_piece;

/* Casts a piece from its element `start` (a multiple of 8) on. */
typedef void (*mo_cast_piece_function)(const mo_cast_piece *piece, uint64_t start);

enum { MO_CAST_DTYPES = 6 };
typedef mo_cast_piece_function mo_cast_table[2][MO_CAST_DTYPES][MO_CAST_DTYPES];

/* The scalar form: [stochastic][source][destination]. SIMD forms use it for the ragged ends. */
extern const mo_cast_table mo_cast_scalar_table;

/* The same type: bits are copied. */
void mo_cast_copy_4(const mo_cast_piece *piece, uint64_t start);
void mo_cast_copy_2(const mo_cast_piece *piece, uint64_t start);
void mo_cast_copy_1(const mo_cast_piece *piece, uint64_t start);

void mo_cast_ref(const void *args, uint64_t begin, uint64_t end);
void mo_cast_avx2(const void *args, uint64_t begin, uint64_t end);
void mo_cast_avx512(const void *args, uint64_t begin, uint64_t end);

/* Runs chunks [begin, end) by the functions of a form's table. Returns 1 if any output was written
 * past the caches, so that a fence is due. */
int mo_cast_run(const mo_cast_args *args, uint64_t begin, uint64_t end, const mo_cast_table table);

#endif
