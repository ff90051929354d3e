/* The content hash, compiled for AVX-512. */
#include "kernels/hash/hash_cpu.h"

void mo_hash_granules_avx512(const void *args, uint64_t begin, uint64_t end)
{
    mo_hash_granules_loop(args, begin, end);
}
