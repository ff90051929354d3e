/* Adafactor's kernels: their names, arguments and forms. */
#include "kernels/adafactor/adafactor_cpu.h"

_Static_assert(sizeof(mo_adafactor_args) == 112, "layout shared with the GPU");

static uint64_t elements(const void *args)
{
    return ((const mo_adafactor_args *)args)->elements;
}

#define FORMS(name)                                                                                \
    MO_CPU_FORMS(mo_adafactor_##name##_ref, mo_adafactor_##name##_neon,                            \
                 mo_adafactor_##name##_avx2, mo_adafactor_##name##_avx512)
#define KERNEL(name, threads, ...)                                                                 \
    {                                                                                              \
        name, sizeof(mo_adafactor_args), threads, __VA_ARGS__, elements, 0, 0                      \
    }

const mo_kernel mo_kernel_adafactor_squares =
    KERNEL("mo_adafactor_squares", MO_ADAFACTOR_THREADS, FORMS(squares));
const mo_kernel mo_kernel_adafactor_rows =
    KERNEL("mo_adafactor_rows", MO_ADAFACTOR_THREADS, {mo_adafactor_rows_ref});
const mo_kernel mo_kernel_adafactor_columns =
    KERNEL("mo_adafactor_columns", MO_ADAFACTOR_THREADS, {mo_adafactor_columns_ref});
const mo_kernel mo_kernel_adafactor_update =
    KERNEL("mo_adafactor_update", MO_ADAFACTOR_THREADS, FORMS(update));
const mo_kernel mo_kernel_adafactor_rate =
    KERNEL("mo_adafactor_rate", MO_SUM_THREADS, {mo_adafactor_rate_ref});
const mo_kernel mo_kernel_step_adafactor =
    KERNEL("mo_adafactor_apply", MO_ADAFACTOR_THREADS, FORMS(apply));
