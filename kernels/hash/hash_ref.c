/* The content hash: the scalar form, the comparison, and the table of forms. */
#include "kernels/hash/hash_cpu.h"

static void granules_scalar(const void *args, uint64_t begin, uint64_t end)
{
    mo_hash_granules_loop(args, begin, end);
}

static void compare_scalar(const void *args, uint64_t begin, uint64_t end)
{
    const mo_hash_compare_args *a = args;
    (void)begin;
    (void)end;
    if (a->result[0] != UINT64_MAX)
        return;
    for (uint64_t i = 0; i < a->count; i++) {
        if (a->first[i] != a->second[i]) {
            a->result[0] = a->label;
            a->result[1] = i;
            return;
        }
    }
}

/* AVX2 has no 64-bit multiply: measured, it gains nothing over the scalar form. AVX-512 is 2.5 to 4
 * times as fast. */
const mo_kernel mo_kernel_hash_granules = {
    .name = "mo_hash_granules",
    .args_size = sizeof(mo_hash_granules_args),
    .threads = MO_HASH_THREADS,
    .cpu = MO_CPU_FORMS(granules_scalar, 0, mo_hash_granules_avx512),
};

/* 0.2 % of the data, compared by one item: a wider form would not pay. */
const mo_kernel mo_kernel_hash_compare = {
    .name = "mo_hash_compare",
    .args_size = sizeof(mo_hash_compare_args),
    .threads = MO_HASH_COMPARE_THREADS,
    .cpu = {compare_scalar},
};
