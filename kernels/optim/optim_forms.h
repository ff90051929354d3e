/* The forms of the optimizer's kernels for each instruction set, and what they are made of. */
#ifndef MO_KERNELS_OPTIM_FORMS_H
#define MO_KERNELS_OPTIM_FORMS_H

#include "kernels/optim/optim_cpu.h"

void mo_adamw32_span_avx512(const mo_optim_span *span);
void mo_adamw32_span_avx2(const mo_optim_span *span); /* the one that rounds stochastically */

#define MO_DECLARE_FORM(name) void name(const void *args, uint64_t begin, uint64_t end);
#define MO_DECLARE_FORMS(name)                                                                     \
    MO_DECLARE_FORM(name##_avx2)                                                                   \
    MO_DECLARE_FORM(name##_avx512)                                                                 \
    MO_DECLARE_FORM(name##_avx512vbmi)

MO_DECLARE_FORMS(mo_optim_step)
MO_DECLARE_FORM(mo_optim_step_avx512bf16)
MO_DECLARE_FORMS(mo_step_adamw4)
MO_DECLARE_FORMS(mo_step_adamwf8)
MO_DECLARE_FORMS(mo_step_lion8)
MO_DECLARE_FORMS(mo_step_sgd8)
MO_DECLARE_FORMS(mo_quantize)
MO_DECLARE_FORMS(mo_dequantize)
MO_DECLARE_FORMS(mo_quantize4)
MO_DECLARE_FORMS(mo_dequantize4)
MO_DECLARE_FORMS(mo_quantizef8)
MO_DECLARE_FORMS(mo_dequantizef8)

#endif
