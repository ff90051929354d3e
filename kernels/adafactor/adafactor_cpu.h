/* What the CPU forms of Adafactor share: a form is a set of functions on a row of a tile. */
#ifndef MO_KERNELS_ADAFACTOR_ADAFACTOR_CPU_H
#define MO_KERNELS_ADAFACTOR_ADAFACTOR_CPU_H

#include "kernels/adafactor/adafactor.h"

/* A row of a tile. */
typedef struct mo_adafactor_piece {
    unsigned char *parameter;
    const unsigned char *gradient;
    uint32_t count; /* at most MO_TILE_COLUMNS */
    float *columns; /* squares: the sums so far; else the factors, of a vector the moments */
    float row;      /* the row's factor */
    float cap, scale, keep, rate, fresh;
    int vector;
} mo_adafactor_piece;

/* Adds each square to its column; the sum of all. */
typedef float (*mo_adafactor_squares)(const mo_adafactor_piece *piece, uint32_t gradient);
/* The sum of the update's squares. */
typedef float (*mo_adafactor_length)(const mo_adafactor_piece *piece, uint32_t gradient);
/* Moves the parameter, and the moments of a vector. */
typedef void (*mo_adafactor_apply)(const mo_adafactor_piece *piece, uint32_t parameter,
                                   uint32_t gradient);

void mo_adafactor_squares_run(const void *args, uint64_t begin, uint64_t end,
                              mo_adafactor_squares squares);
void mo_adafactor_update_run(const void *args, uint64_t begin, uint64_t end,
                             mo_adafactor_length length);
void mo_adafactor_apply_run(const void *args, uint64_t begin, uint64_t end,
                            mo_adafactor_apply apply);

/* The scalar forms over columns [first, count); `lanes` are those of the columns before. */
void mo_adafactor_squares_tail(const mo_adafactor_piece *piece, uint32_t gradient, uint32_t first,
                               float lanes[MO_STRIPE_LANES]);
void mo_adafactor_length_tail(const mo_adafactor_piece *piece, uint32_t gradient, uint32_t first,
                              float lanes[MO_STRIPE_LANES]);
void mo_adafactor_apply_tail(const mo_adafactor_piece *piece, uint32_t parameter, uint32_t gradient,
                             uint32_t first);

#define MO_ADAFACTOR_DECLARE(isa)                                                                  \
    void mo_adafactor_squares_##isa(const void *args, uint64_t begin, uint64_t end);               \
    void mo_adafactor_update_##isa(const void *args, uint64_t begin, uint64_t end);                \
    void mo_adafactor_apply_##isa(const void *args, uint64_t begin, uint64_t end);
MO_ADAFACTOR_DECLARE(ref)
MO_ADAFACTOR_DECLARE(neon)
MO_ADAFACTOR_DECLARE(avx2)
MO_ADAFACTOR_DECLARE(avx512)

void mo_adafactor_rows_ref(const void *args, uint64_t begin, uint64_t end);
void mo_adafactor_columns_ref(const void *args, uint64_t begin, uint64_t end);
void mo_adafactor_rate_ref(const void *args, uint64_t begin, uint64_t end);

#endif
