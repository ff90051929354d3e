/* The kernels of the reductions and of the loss scaler: their names, arguments and forms. */
#include "kernels/reduce/reduce_cpu.h"

_Static_assert(sizeof(mo_tensor_segment) == 32, "layout shared with the GPU");
_Static_assert(sizeof(mo_reduce_args) <= MO_KERNEL_ARGS_MAX, "arguments too large");
_Static_assert(sizeof(mo_scale_args) <= MO_KERNEL_ARGS_MAX, "arguments too large");
_Static_assert(sizeof(mo_scaler_block) == 32, "layout shared with the GPU");

static uint64_t reduce_elements(const void *args)
{
    const mo_reduce_args *a = args;
    return mo_tensor_segments_elements(a->table ? a->table : a->segments, a->count);
}

static uint64_t scale_elements(const void *args)
{
    const mo_scale_args *a = args;
    return mo_tensor_segments_elements(a->table ? a->table : a->segments, a->count);
}

const mo_kernel mo_kernel_square_sum = {
    .name = "mo_square_sum",
    .args_size = sizeof(mo_reduce_args),
    .threads = MO_SQUARE_SUM_THREADS,
    .cpu = MO_CPU_FORMS(mo_square_sum_ref, mo_square_sum_neon, mo_square_sum_avx2,
                        mo_square_sum_avx512),
    .elements = reduce_elements,
};

const mo_kernel mo_kernel_check = {
    .name = "mo_check",
    .args_size = sizeof(mo_reduce_args),
    .threads = MO_CHECK_THREADS,
    .cpu = MO_CPU_FORMS(mo_check_ref, mo_check_neon, mo_check_avx2, mo_check_avx512),
    .elements = reduce_elements,
};

const mo_kernel mo_kernel_sum = {
    .name = "mo_sum",
    .args_size = sizeof(mo_sum_args),
    .threads = MO_SUM_THREADS,
    .cpu = {mo_sum_ref},
};

const mo_kernel mo_kernel_scale = {
    .name = "mo_scale",
    .args_size = sizeof(mo_scale_args),
    .threads = MO_SCALE_THREADS,
    .cpu = MO_CPU_FORMS(mo_scale_ref, mo_scale_neon, mo_scale_avx2, mo_scale_avx512),
    .elements = scale_elements,
};

const mo_kernel mo_kernel_norm = {
    .name = "mo_norm",
    .args_size = sizeof(mo_norm_args),
    .threads = MO_ONE_THREADS,
    .cpu = {mo_norm_ref},
};

const mo_kernel mo_kernel_scaler_update = {
    .name = "mo_scaler_update",
    .args_size = sizeof(mo_scaler_update_args),
    .threads = MO_ONE_THREADS,
    .cpu = {mo_scaler_update_ref},
};

const mo_kernel mo_kernel_scaler_set = {
    .name = "mo_scaler_set",
    .args_size = sizeof(mo_scaler_set_args),
    .threads = MO_ONE_THREADS,
    .cpu = {mo_scaler_set_ref},
};
