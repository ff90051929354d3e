/* The AVX2 form of the accumulate kernel. */
#include "kernels/core/vector_avx2.h"

#include "kernels/cast/accumulate_simd.h"

void mo_accumulate_avx2(const void *args, uint64_t begin, uint64_t end)
{
    accumulate_run(args, begin, end);
}
