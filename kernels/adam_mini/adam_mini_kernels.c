/* Adam-mini's kernels: their names, arguments and forms. Processors with AVX-512 use AVX2's. */
#include "kernels/adam_mini/adam_mini_cpu.h"

_Static_assert(sizeof(mo_adam_mini_args) == 168, "layout shared with the GPU");

static uint64_t elements(const void *args)
{
    const mo_adam_mini_args *a = args;
    return a->rows * a->columns;
}

#define KERNEL(name, threads, ...)                                                                 \
    {                                                                                              \
        name, sizeof(mo_adam_mini_args), threads, __VA_ARGS__, elements                            \
    }
#define FORMS(name)                                                                                \
    MO_CPU_FORMS(mo_adam_mini_##name##_ref, mo_adam_mini_##name##_neon, mo_adam_mini_##name##_avx2)

const mo_kernel mo_kernel_adam_mini_squares =
    KERNEL("mo_adam_mini_squares", MO_ADAM_MINI_THREADS, FORMS(squares));
const mo_kernel mo_kernel_adam_mini_rates =
    KERNEL("mo_adam_mini_rates", MO_SUM_THREADS, {mo_adam_mini_rates_ref});
const mo_kernel mo_kernel_adam_mini_step =
    KERNEL("mo_adam_mini_step", MO_ADAM_MINI_THREADS, FORMS(step));
const mo_kernel mo_kernel_adam_mini_step8 =
    KERNEL("mo_adam_mini_step8", MO_ADAM_MINI_THREADS, FORMS(step8));
