/* The NEON form of the accumulate kernel. */
#include "kernels/core/vector_neon.h"

#include "kernels/cast/accumulate_simd.h"

void mo_accumulate_neon(const void *args, uint64_t begin, uint64_t end)
{
    accumulate_run(args, begin, end);
}
