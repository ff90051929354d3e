/* What the CPU forms of cross-entropy share: a form is a function on a stripe, and one on a run of
 * a row's columns. */
#ifndef MO_KERNELS_LOSS_LOSS_CPU_H
#define MO_KERNELS_LOSS_LOSS_CPU_H

#include "kernels/loss/loss.h"

/* The largest of `count` logits, at most MO_LOSS_STRIPE, and the sum of their exponentials. */
typedef void (*mo_stripe_function)(const unsigned char *logits, uint32_t count, uint32_t dtype,
                                   float *largest, float *sum);
/* Gradients in the place of `count` logits, without a target among them. */
typedef void (*mo_gradient_function)(unsigned char *logits, uint32_t count, uint32_t dtype,
                                     float base, float factor);

void mo_logits_add_run(const void *args, uint64_t begin, uint64_t end, mo_stripe_function stripe);
void mo_logits_gradient_run(const void *args, uint64_t begin, uint64_t end,
                            mo_gradient_function gradient);
void mo_gradient_scalar(unsigned char *logits, uint32_t count, uint32_t dtype, float base,
                        float factor);

void mo_logits_add_ref(const void *args, uint64_t begin, uint64_t end);
void mo_logits_add_neon(const void *args, uint64_t begin, uint64_t end);
void mo_logits_add_avx2(const void *args, uint64_t begin, uint64_t end);
void mo_logits_add_avx512(const void *args, uint64_t begin, uint64_t end);
void mo_logits_gradient_ref(const void *args, uint64_t begin, uint64_t end);
void mo_logits_gradient_neon(const void *args, uint64_t begin, uint64_t end);
void mo_logits_gradient_avx2(const void *args, uint64_t begin, uint64_t end);
void mo_logits_gradient_avx512(const void *args, uint64_t begin, uint64_t end);
void mo_losses_ref(const void *args, uint64_t begin, uint64_t end);

#endif
