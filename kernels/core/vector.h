/* The vectors of the instruction set that a file of forms is compiled for. */
#ifndef MO_KERNELS_CORE_VECTOR_H
#define MO_KERNELS_CORE_VECTOR_H

/* mo_store_fence: streaming stores become visible. */
#if defined(__aarch64__)
#include "kernels/core/vector_neon.h"
#define mo_store_fence() ((void)0)
#else
#if defined(__AVX512F__)
#include "kernels/core/vector_avx512.h"
#else
#include "kernels/core/vector_avx2.h"
#endif
#define mo_store_fence() _mm_sfence()
#endif

#endif
