/* What the CPU forms of Adam-mini share: a form sums squares, and moves some rows. */
#ifndef MO_KERNELS_ADAM_MINI_ADAM_MINI_CPU_H
#define MO_KERNELS_ADAM_MINI_ADAM_MINI_CPU_H

#include "kernels/adam_mini/adam_mini.h"
#include "kernels/reduce/reduce_cpu.h"

/* Some elements of a row; of codes the first is the first of its block. */
typedef struct mo_adam_mini_piece {
    unsigned char *parameter;
    const unsigned char *gradient;
    void *mean;
    float *scales; /* NULL: the mean is f32 */
    uint64_t count;
    float rate, beta1, fresh1, decay;
} mo_adam_mini_piece;

/* The same of some rows. */
typedef struct mo_adam_mini_rows {
    mo_adam_mini_piece piece; /* of the first row; the rate is not set */
    const float *rates;       /* of the first row's block, and of those below */
    uint64_t rows;
    uint64_t left;       /* rows of the first block from the first row on */
    uint64_t block_rows; /* of the others */
    uint64_t columns, row_scales;
    int32_t parameter_dtype, gradient_dtype;
} mo_adam_mini_rows;

typedef void (*mo_adam_mini_move)(const mo_adam_mini_rows *rows);

/* From the piece of a row, one of `rows`, to that of the next. */
static inline void mo_adam_mini_next(const mo_adam_mini_rows *rows, mo_adam_mini_piece *piece)
{
    piece->parameter += rows->columns * mo_element_size((uint32_t)rows->parameter_dtype);
    piece->gradient += rows->columns * mo_element_size((uint32_t)rows->gradient_dtype);
    piece->mean =
        (unsigned char *)piece->mean + rows->columns * (piece->scales ? 1 : sizeof(float));
    if (piece->scales)
        piece->scales += rows->row_scales;
}

/* Does the statement behind it with the piece of each row, which has the rate of its block. */
#define MO_ADAM_MINI_EACH(r, piece, ...)                                                           \
    do {                                                                                           \
        mo_adam_mini_piece piece = (r)->piece;                                                     \
        const float *rate_of = (r)->rates;                                                         \
        uint64_t left = (r)->left;                                                                 \
        for (uint64_t row = 0; row < (r)->rows; row++, left--) {                                   \
            if (left == 0) {                                                                       \
                rate_of++;                                                                         \
                left = (r)->block_rows;                                                            \
            }                                                                                      \
            piece.rate = *rate_of;                                                                 \
            __VA_ARGS__;                                                                           \
            mo_adam_mini_next(r, &piece);                                                          \
        }                                                                                          \
    } while (0)

void mo_adam_mini_squares_run(const void *args, uint64_t begin, uint64_t end,
                              mo_square_function square);
void mo_adam_mini_step_run(const void *args, uint64_t begin, uint64_t end,
                           mo_square_function square, mo_adam_mini_move move);

/* The scalar forms. Elements from `first` on: of an fp32 mean; and of codes whose means are
 * decoded, up to `end`, where it gives the bits of the largest magnitude. */
void mo_adam_mini_tail(const mo_adam_mini_piece *piece, int32_t parameter, int32_t gradient,
                       uint64_t first);
uint32_t mo_adam_mini_tail8(const mo_adam_mini_piece *piece, int32_t parameter, int32_t gradient,
                            uint64_t first, uint64_t end, float *means);

#define MO_ADAM_MINI_DECLARE(isa)                                                                  \
    void mo_adam_mini_squares_##isa(const void *args, uint64_t begin, uint64_t end);               \
    void mo_adam_mini_step_##isa(const void *args, uint64_t begin, uint64_t end);                  \
    void mo_adam_mini_step8_##isa(const void *args, uint64_t begin, uint64_t end);
MO_ADAM_MINI_DECLARE(ref)
MO_ADAM_MINI_DECLARE(neon)
MO_ADAM_MINI_DECLARE(avx2)

void mo_adam_mini_rates_ref(const void *args, uint64_t begin, uint64_t end);

#endif
