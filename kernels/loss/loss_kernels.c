/* The kernels of cross-entropy: their names, arguments and forms. */
#include "kernels/loss/loss_cpu.h"

_Static_assert(sizeof(mo_loss_row) == 24, "layout shared with the GPU, and public");

static uint64_t logits_elements(const void *args)
{
    const mo_logits_args *a = args;
    return a->count * a->columns;
}

static uint64_t losses_elements(const void *args)
{
    return ((const mo_losses_args *)args)->count;
}

const mo_kernel mo_kernel_logits_add = {
    .name = "mo_logits_add",
    .args_size = sizeof(mo_logits_args),
    .threads = MO_LOSS_THREADS,
    .cpu = MO_CPU_FORMS(mo_logits_add_ref, mo_logits_add_neon, mo_logits_add_avx2,
                        mo_logits_add_avx512),
    .elements = logits_elements,
};

const mo_kernel mo_kernel_logits_gradient = {
    .name = "mo_logits_gradient",
    .args_size = sizeof(mo_logits_args),
    .threads = MO_LOSS_THREADS,
    .cpu = MO_CPU_FORMS(mo_logits_gradient_ref, mo_logits_gradient_neon, mo_logits_gradient_avx2,
                        mo_logits_gradient_avx512),
    .elements = logits_elements,
};

const mo_kernel mo_kernel_losses = {
    .name = "mo_losses",
    .args_size = sizeof(mo_losses_args),
    .threads = MO_LOSS_THREADS,
    .cpu = {mo_losses_ref},
    .elements = losses_elements,
};
