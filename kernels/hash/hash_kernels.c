/* The kernels of the content hash: their names, arguments and forms. */
#include "kernels/hash/hash_cpu.h"

/* AVX2 has no 64-bit multiply: measured, it gains nothing over the scalar form. AVX-512 is 2.5 to 4
 * times as fast. */
const mo_kernel mo_kernel_hash_granules = {
    .name = "mo_hash_granules",
    .args_size = sizeof(mo_hash_granules_args),
    .threads = MO_HASH_THREADS,
    .cpu = MO_CPU_FORMS(mo_hash_granules_ref, 0, mo_hash_granules_avx512),
};

/* 0.2 % of the data, compared by one item: a wider form would not pay. */
const mo_kernel mo_kernel_hash_compare = {
    .name = "mo_hash_compare",
    .args_size = sizeof(mo_hash_compare_args),
    .threads = MO_HASH_COMPARE_THREADS,
    .cpu = {mo_hash_compare_ref},
};
