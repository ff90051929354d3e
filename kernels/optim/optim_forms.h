/* Which functions in files of their own the forms of an instruction set call. */
#ifndef MO_KERNELS_OPTIM_OPTIM_FORMS_H
#define MO_KERNELS_OPTIM_OPTIM_FORMS_H

#include "kernels/optim/optim_cpu.h"

#if defined(__aarch64__)
#define MO_SPANS_FORM(name) name##_neon
#elif defined(__AVX512F__)
#define MO_SPANS_FORM(name) name##_avx512
#else
#define MO_SPANS_FORM(name) name##_avx2
#endif
#if !defined(MO_SPANS)
#define MO_SPANS
#define mo_each_span MO_SPANS_FORM(mo_each_span)
#endif

/* AVX-512's forms use AVX2's. */
#if defined(__aarch64__)
#define MO_SCALAR_FORM(name) name##_neon
#else
#define MO_SCALAR_FORM(name) name##_avx2
#endif
#if !defined(MO_SCALAR)
#define MO_SCALAR
#define mo_step32_scalar MO_SCALAR_FORM(mo_step32_scalar)
#define mo_step16_scalar MO_SCALAR_FORM(mo_step16_scalar)
#define mo_step_block_scalar MO_SCALAR_FORM(mo_step_block_scalar)
#define mo_quantize_block_scalar MO_SCALAR_FORM(mo_quantize_block_scalar)
#define mo_dequantize_run_scalar MO_SCALAR_FORM(mo_dequantize_run_scalar)
#endif

#endif
