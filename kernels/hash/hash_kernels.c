/* The kernels of the content hash: their names, arguments and forms. */
#include "kernels/hash/hash_cpu.h"

const mo_kernel mo_kernel_hash_granules = {
    .name = "mo_hash_granules",
    .args_size = sizeof(mo_hash_granules_args),
    .threads = MO_HASH_THREADS,
    .cpu = MO_CPU_FORMS(mo_hash_granules_ref, mo_hash_granules_neon, mo_hash_granules_avx2,
                        mo_hash_granules_avx512),
};

/* 0.2 % of the data, compared by one item: a wider form would not pay. */
const mo_kernel mo_kernel_hash_compare = {
    .name = "mo_hash_compare",
    .args_size = sizeof(mo_hash_compare_args),
    .threads = MO_HASH_COMPARE_THREADS,
    .cpu = {mo_hash_compare_ref},
};
