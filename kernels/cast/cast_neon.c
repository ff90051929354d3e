/* The NEON form of the cast kernel. */
#include "kernels/core/vector_neon.h"

#include "kernels/cast/cast_simd.h"

void mo_cast_neon(const void *args, uint64_t begin, uint64_t end)
{
    mo_cast_run(args, begin, end, cast_table);
}

void mo_cast_amax_neon(const void *args, uint64_t begin, uint64_t end)
{
    mo_cast_amax_run(args, begin, end, cast_table, cast_largest_code);
}
