/* What the forms of the step kernel for one instruction set are made of. */
#ifndef MO_KERNELS_OPTIM_FORMS_H
#define MO_KERNELS_OPTIM_FORMS_H

#include "kernels/optim_scalar.h"

void mo_adamw8_span_avx512(const mo_optim_span *span);
void mo_adamw32_span_avx512(const mo_optim_span *span);
void mo_adamw32_span_avx2(const mo_optim_span *span); /* the one that rounds stochastically */

void mo_optim_step_avx2(const void *args, uint64_t begin, uint64_t end);
void mo_optim_step_avx512(const void *args, uint64_t begin, uint64_t end);
void mo_quantize_avx2(const void *args, uint64_t begin, uint64_t end);
void mo_quantize_avx512(const void *args, uint64_t begin, uint64_t end);
void mo_dequantize_avx2(const void *args, uint64_t begin, uint64_t end);
void mo_dequantize_avx512(const void *args, uint64_t begin, uint64_t end);

#define MO_LANE_FORMS(name)                                                                        \
    void name##_avx2(const void *args, uint64_t begin, uint64_t end);                              \
    void name##_avx512(const void *args, uint64_t begin, uint64_t end);

MO_LANE_FORMS(mo_step_adamw4)
MO_LANE_FORMS(mo_step_adamwf8)
MO_LANE_FORMS(mo_step_lion8)
MO_LANE_FORMS(mo_step_sgd8)
MO_LANE_FORMS(mo_quantize4)
MO_LANE_FORMS(mo_dequantize4)
MO_LANE_FORMS(mo_quantizef8)
MO_LANE_FORMS(mo_dequantizef8)

#endif
