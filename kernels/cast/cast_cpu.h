/*
 * What the CPU forms of the cast and the accumulate kernel share. A piece is one chunk of one
 * tensor; each form of the cast is a table of functions that cast a piece, by source type,
 * destination type and rounding.
 */
#ifndef MO_KERNELS_CAST_CAST_CPU_H
#define MO_KERNELS_CAST_CAST_CPU_H

#include "kernels/cast/accumulate.h"
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

enum { MO_CAST_DTYPES = 12 };
typedef mo_cast_piece_function mo_cast_table[2][MO_CAST_DTYPES][MO_CAST_DTYPES];

/* The scalar form: [stochastic][source][destination]. SIMD forms use it for the ragged ends. */
extern const mo_cast_table mo_cast_scalar_table;

/* The same type: bits are copied. */
void mo_cast_copy_4(const mo_cast_piece *piece, uint64_t start);
void mo_cast_copy_2(const mo_cast_piece *piece, uint64_t start);
void mo_cast_copy_1(const mo_cast_piece *piece, uint64_t start);

void mo_cast_ref(const void *args, uint64_t begin, uint64_t end);
void mo_cast_neon(const void *args, uint64_t begin, uint64_t end);
void mo_cast_avx2(const void *args, uint64_t begin, uint64_t end);
void mo_cast_avx512(const void *args, uint64_t begin, uint64_t end);

/* Runs chunks [begin, end) by the functions of a form's table. Returns 1 if any output was written
 * past the caches, so that a fence is due. */
int mo_cast_run(const mo_cast_args *args, uint64_t begin, uint64_t end, const mo_cast_table table);

/* The same while the largest magnitude of each source is found by the form's function: the largest
 * code without sign of `count` elements. */
typedef uint32_t (*mo_largest_code)(const unsigned char *source, uint64_t count, uint32_t dtype);
int mo_cast_amax_run(const mo_cast_args *args, uint64_t begin, uint64_t end,
                     const mo_cast_table table, mo_largest_code largest);
uint32_t mo_largest_code_scalar(const unsigned char *source, uint64_t count, uint32_t dtype);

void mo_cast_amax_ref(const void *args, uint64_t begin, uint64_t end);
void mo_cast_amax_neon(const void *args, uint64_t begin, uint64_t end);
void mo_cast_amax_avx2(const void *args, uint64_t begin, uint64_t end);
void mo_cast_amax_avx512(const void *args, uint64_t begin, uint64_t end);

/* Raises a cell that other threads raise too. */
static inline void mo_cell_raise(uint32_t *cell, uint32_t bits)
{
    uint32_t seen = __atomic_load_n(cell, __ATOMIC_RELAXED);
    while (seen < bits &&
           !__atomic_compare_exchange_n(cell, &seen, bits, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* --- every pair of types, once ----------------------------------------------------------------
 *
 * MO_CAST_PAIRS makes the functions of a form: NEAREST(from, to, from_dtype, to_dtype) defines the
 * one that rounds to nearest, BOTH the stochastic one too. MO_CAST_TABLE is then the form's table.
 * Conversions to f32 and to the same type round nothing, so both halves of the table share them.
 */

/* clang-format off */
#define MO_CAST_PAIRS(NEAREST, BOTH)                                                              \
    BOTH(f32, f16, 1, 2)                                                                          \
    BOTH(f32, bf16, 1, 3)                                                                         \
    BOTH(f32, e4m3, 1, 4)                                                                         \
    BOTH(f32, e5m2, 1, 5)                                                                         \
    BOTH(f32, e4m3fnuz, 1, 10)                                                                    \
    BOTH(f32, e5m2fnuz, 1, 11)                                                                    \
    NEAREST(f16, f32, 2, 1)                                                                       \
    BOTH(f16, bf16, 2, 3)                                                                         \
    BOTH(f16, e4m3, 2, 4)                                                                         \
    BOTH(f16, e5m2, 2, 5)                                                                         \
    BOTH(f16, e4m3fnuz, 2, 10)                                                                    \
    BOTH(f16, e5m2fnuz, 2, 11)                                                                    \
    NEAREST(bf16, f32, 3, 1)                                                                      \
    BOTH(bf16, f16, 3, 2)                                                                         \
    BOTH(bf16, e4m3, 3, 4)                                                                        \
    BOTH(bf16, e5m2, 3, 5)                                                                        \
    BOTH(bf16, e4m3fnuz, 3, 10)                                                                   \
    BOTH(bf16, e5m2fnuz, 3, 11)                                                                   \
    NEAREST(e4m3, f32, 4, 1)                                                                      \
    BOTH(e4m3, f16, 4, 2)                                                                         \
    BOTH(e4m3, bf16, 4, 3)                                                                        \
    BOTH(e4m3, e5m2, 4, 5)                                                                        \
    BOTH(e4m3, e4m3fnuz, 4, 10)                                                                   \
    BOTH(e4m3, e5m2fnuz, 4, 11)                                                                   \
    NEAREST(e5m2, f32, 5, 1)                                                                      \
    BOTH(e5m2, f16, 5, 2)                                                                         \
    BOTH(e5m2, bf16, 5, 3)                                                                        \
    BOTH(e5m2, e4m3, 5, 4)                                                                        \
    BOTH(e5m2, e4m3fnuz, 5, 10)                                                                   \
    BOTH(e5m2, e5m2fnuz, 5, 11)                                                                   \
    NEAREST(e4m3fnuz, f32, 10, 1)                                                                 \
    BOTH(e4m3fnuz, f16, 10, 2)                                                                    \
    BOTH(e4m3fnuz, bf16, 10, 3)                                                                   \
    BOTH(e4m3fnuz, e4m3, 10, 4)                                                                   \
    BOTH(e4m3fnuz, e5m2, 10, 5)                                                                   \
    BOTH(e4m3fnuz, e5m2fnuz, 10, 11)                                                              \
    NEAREST(e5m2fnuz, f32, 11, 1)                                                                 \
    BOTH(e5m2fnuz, f16, 11, 2)                                                                    \
    BOTH(e5m2fnuz, bf16, 11, 3)                                                                   \
    BOTH(e5m2fnuz, e4m3, 11, 4)                                                                   \
    BOTH(e5m2fnuz, e5m2, 11, 5)                                                                   \
    BOTH(e5m2fnuz, e4m3fnuz, 11, 10)

/* Rows: source, columns: destination, both by the type's number; 6 to 9 are integers and f64. */
#define MO_CAST_ROWS(round)                                                                       \
    {                                                                                             \
        {0},                                                                                      \
        {0, mo_cast_copy_4, round##_f32_f16, round##_f32_bf16,                                    \
         round##_f32_e4m3, round##_f32_e5m2, 0, 0, 0, 0,                                          \
         round##_f32_e4m3fnuz, round##_f32_e5m2fnuz},                                             \
        {0, nearest_f16_f32, mo_cast_copy_2, round##_f16_bf16,                                    \
         round##_f16_e4m3, round##_f16_e5m2, 0, 0, 0, 0,                                          \
         round##_f16_e4m3fnuz, round##_f16_e5m2fnuz},                                             \
        {0, nearest_bf16_f32, round##_bf16_f16, mo_cast_copy_2,                                   \
         round##_bf16_e4m3, round##_bf16_e5m2, 0, 0, 0, 0,                                        \
         round##_bf16_e4m3fnuz, round##_bf16_e5m2fnuz},                                           \
        {0, nearest_e4m3_f32, round##_e4m3_f16, round##_e4m3_bf16,                                \
         mo_cast_copy_1, round##_e4m3_e5m2, 0, 0, 0, 0,                                           \
         round##_e4m3_e4m3fnuz, round##_e4m3_e5m2fnuz},                                           \
        {0, nearest_e5m2_f32, round##_e5m2_f16, round##_e5m2_bf16,                                \
         round##_e5m2_e4m3, mo_cast_copy_1, 0, 0, 0, 0,                                           \
         round##_e5m2_e4m3fnuz, round##_e5m2_e5m2fnuz},                                           \
        {0}, {0}, {0}, {0},                                                                       \
        {0, nearest_e4m3fnuz_f32, round##_e4m3fnuz_f16, round##_e4m3fnuz_bf16,                    \
         round##_e4m3fnuz_e4m3, round##_e4m3fnuz_e5m2, 0, 0, 0, 0,                                \
         mo_cast_copy_1, round##_e4m3fnuz_e5m2fnuz},                                              \
        {0, nearest_e5m2fnuz_f32, round##_e5m2fnuz_f16, round##_e5m2fnuz_bf16,                    \
         round##_e5m2fnuz_e4m3, round##_e5m2fnuz_e5m2, 0, 0, 0, 0,                                \
         round##_e5m2fnuz_e4m3fnuz, mo_cast_copy_1},                                              \
    }
/* clang-format on */

#define MO_CAST_TABLE                                                                              \
    {                                                                                              \
        MO_CAST_ROWS(nearest), MO_CAST_ROWS(stochastic)                                            \
    }

/* --- accumulate ------------------------------------------------------------------------------ */

/* The scalar form on elements [start, count); the SIMD form uses it for the ragged end. */
void mo_accumulate_scalar(const mo_accumulate_piece *piece, uint64_t start);

void mo_accumulate_ref(const void *args, uint64_t begin, uint64_t end);
void mo_accumulate_neon(const void *args, uint64_t begin, uint64_t end);
void mo_accumulate_avx2(const void *args, uint64_t begin, uint64_t end);

#endif
