/* What the CPU forms of the accumulate kernel share. */
#ifndef MO_KERNELS_ACCUMULATE_CPU_H
#define MO_KERNELS_ACCUMULATE_CPU_H

#include "kernels/cast/accumulate.h"

/* The scalar form on elements [start, count); the SIMD form uses it for the ragged end. */
void mo_accumulate_scalar(const mo_accumulate_piece *piece, uint64_t start, float scale);

void mo_accumulate_avx2(const void *args, uint64_t begin, uint64_t end);

#endif
