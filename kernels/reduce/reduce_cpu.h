/*
 * What the CPU forms of reduce and scale share: a piece is a run of elements of one tensor, and a
 * form is a set of functions on pieces.
 */
#ifndef MO_KERNELS_REDUCE_REDUCE_CPU_H
#define MO_KERNELS_REDUCE_REDUCE_CPU_H

#include "kernels/reduce/scale.h"

/* The sum of squares of `count` elements, at most MO_CHUNK_ELEMENTS. */
typedef double (*mo_square_function)(const unsigned char *data, uint64_t count, uint32_t dtype);
/* 1 if any element is not finite. */
typedef int (*mo_check_function)(const unsigned char *data, uint64_t count, uint32_t dtype);
/* Multiplies in place; 1 if any element was not finite before. */
typedef int (*mo_scale_function)(unsigned char *data, uint64_t count, uint32_t dtype, float factor);

void mo_square_sum_run(const void *args, uint64_t begin, uint64_t end, mo_square_function square);
void mo_check_run(const void *args, uint64_t begin, uint64_t end, mo_check_function check);
void mo_scale_run(const void *args, uint64_t begin, uint64_t end, mo_scale_function scale);

/* The scalar forms; SIMD forms use them for the ragged ends. */
int mo_check_scalar(const unsigned char *data, uint64_t count, uint32_t dtype);
int mo_scale_scalar(unsigned char *data, uint64_t count, uint32_t dtype, float factor);
/* Adds the squares of `count` elements, fewer than the lanes, to lanes[0 .. count). */
void mo_square_tail(const unsigned char *data, uint64_t count, uint32_t dtype,
                    double lanes[MO_STRIPE_LANES]);

/* mo_square_function of each instruction set, for kernels that sum squares themselves. */
double mo_squares_ref(const unsigned char *data, uint64_t count, uint32_t dtype);
double mo_squares_neon(const unsigned char *data, uint64_t count, uint32_t dtype);
double mo_squares_avx2(const unsigned char *data, uint64_t count, uint32_t dtype);
double mo_squares_avx512(const unsigned char *data, uint64_t count, uint32_t dtype);

void mo_sum_ref(const void *args, uint64_t begin, uint64_t end);
void mo_norm_ref(const void *args, uint64_t begin, uint64_t end);
void mo_scaler_update_ref(const void *args, uint64_t begin, uint64_t end);
void mo_scaler_set_ref(const void *args, uint64_t begin, uint64_t end);
void mo_square_sum_ref(const void *args, uint64_t begin, uint64_t end);
void mo_square_sum_neon(const void *args, uint64_t begin, uint64_t end);
void mo_square_sum_avx2(const void *args, uint64_t begin, uint64_t end);
void mo_square_sum_avx512(const void *args, uint64_t begin, uint64_t end);
void mo_check_ref(const void *args, uint64_t begin, uint64_t end);
void mo_check_neon(const void *args, uint64_t begin, uint64_t end);
void mo_check_avx2(const void *args, uint64_t begin, uint64_t end);
void mo_check_avx512(const void *args, uint64_t begin, uint64_t end);
void mo_scale_ref(const void *args, uint64_t begin, uint64_t end);
void mo_scale_neon(const void *args, uint64_t begin, uint64_t end);
void mo_scale_avx2(const void *args, uint64_t begin, uint64_t end);
void mo_scale_avx512(const void *args, uint64_t begin, uint64_t end);

#endif
