/* The AVX2 form of the content hash. */
#include "kernels/core/vector_avx2.h"

#include "kernels/hash/hash_simd.h"

void mo_hash_granules_avx2(const void *args, uint64_t begin, uint64_t end)
{
    mo_hash_run(args, begin, end, hash_full);
}
