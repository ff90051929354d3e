/* Adafactor's kernels: their names, arguments and forms. */
#include "kernels/adafactor/adafactor_cpu.h"

_Static_assert(sizeof(mo_adafactor_args) == 192, "layout shared with the GPU");

static uint64_t elements(const void *args)
{
    const mo_adafactor_args *a = args;
    return a->stack * a->rows * a->columns;
}

#define FORMS(name)                                                                                \
    MO_CPU_FORMS(mo_adafactor_##name##_ref, mo_adafactor_##name##_neon,                            \
                 mo_adafactor_##name##_avx2, mo_adafactor_##name##_avx512)
#define KERNEL(name_, threads_, ...)                                                               \
    const mo_kernel mo_kernel_adafactor_##name_ = {.name = "mo_adafactor_" #name_,                 \
                                                   .args_size = sizeof(mo_adafactor_args),         \
                                                   .threads = threads_,                            \
                                                   .cpu = __VA_ARGS__,                             \
                                                   .elements = elements}

KERNEL(squares, MO_ADAFACTOR_THREADS, FORMS(squares));
KERNEL(rows, MO_ADAFACTOR_THREADS, {mo_adafactor_rows_ref});
KERNEL(columns, MO_ADAFACTOR_THREADS, {mo_adafactor_columns_ref});
KERNEL(update, MO_ADAFACTOR_THREADS, FORMS(update));
KERNEL(vector, MO_ADAFACTOR_THREADS, FORMS(vector));
KERNEL(rate, MO_ONE_THREADS, {mo_adafactor_rate_ref});
KERNEL(apply, MO_ADAFACTOR_THREADS, FORMS(apply));
