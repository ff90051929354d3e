/* What the CPU forms of Adam-mini share: a form is two functions, on runs of elements. */
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

typedef void (*mo_adam_mini_move)(const mo_adam_mini_piece *piece, int32_t parameter,
                                  int32_t gradient);

void mo_adam_mini_squares_run(const void *args, uint64_t begin, uint64_t end,
                              mo_square_function square);
void mo_adam_mini_step_run(const void *args, uint64_t begin, uint64_t end,
                           mo_square_function square, mo_adam_mini_move move);

/* The scalar forms. Elements [first, count) of a piece: of an fp32 mean, and of means that are
 * decoded, where it gives the bits of the largest magnitude. */
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
