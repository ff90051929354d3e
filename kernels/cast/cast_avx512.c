/* The AVX-512 form of the cast kernel. */
#include "kernels/core/vector_avx512.h"

#include "kernels/cast/cast_simd.h"

void mo_cast_avx512(const void *args, uint64_t begin, uint64_t end)
{
    if (mo_cast_run(args, begin, end, cast_table))
        _mm_sfence();
}

void mo_cast_amax_avx512(const void *args, uint64_t begin, uint64_t end)
{
    if (mo_cast_amax_run(args, begin, end, cast_table, cast_largest_code))
        _mm_sfence();
}
