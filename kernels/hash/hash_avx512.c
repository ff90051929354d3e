/* The AVX-512 form of the content hash. */
#include "kernels/core/vector_avx512.h"

#include "kernels/hash/hash_simd.h"

void mo_hash_granules_avx512(const void *args, uint64_t begin, uint64_t end)
{
    mo_hash_run(args, begin, end, hash_full);
}
