/* The cast, the accumulate and the block kernels: their names, arguments and forms. */
#include "kernels/cast/blocks_cpu.h"
#include "kernels/cast/cast_cpu.h"

_Static_assert(sizeof(mo_cast_segment) == 40, "layout shared with the GPU");
_Static_assert(sizeof(mo_cast_args) <= MO_KERNEL_ARGS_MAX, "arguments too large");
_Static_assert(sizeof(mo_blocks_segment) == 88, "layout shared with the GPU");
_Static_assert(sizeof(mo_blocks_args) <= MO_KERNEL_ARGS_MAX, "arguments too large");
_Static_assert(sizeof(mo_accumulate_args) <= MO_KERNEL_ARGS_MAX, "arguments too large");

static uint64_t cast_elements(const void *args)
{
    const mo_cast_args *a = args;
    const mo_cast_segment *segments = a->table ? a->table : a->segments;
    uint64_t elements = 0;
    for (uint32_t i = 0; i < a->count; i++)
        elements += segments[i].count;
    return elements;
}

static uint64_t accumulate_elements(const void *args)
{
    const mo_accumulate_args *a = args;
    uint64_t elements = 0;
    for (uint32_t i = 0; i < a->count; i++)
        elements += a->segments[i].count;
    return elements;
}

static uint64_t blocks_elements(const void *args)
{
    const mo_blocks_args *a = args;
    uint64_t elements = 0;
    for (uint32_t i = 0; i < a->count; i++)
        elements += a->segments[i].rows * a->segments[i].columns;
    return elements;
}

const mo_kernel mo_kernel_cast = {
    .name = "mo_cast",
    .args_size = sizeof(mo_cast_args),
    .threads = MO_CAST_THREADS,
    .cpu = MO_CPU_FORMS(mo_cast_ref, mo_cast_neon, mo_cast_avx2, mo_cast_avx512),
    .elements = cast_elements,
};

const mo_kernel mo_kernel_cast_amax = {
    .name = "mo_cast_amax",
    .args_size = sizeof(mo_cast_args),
    .threads = MO_CAST_THREADS,
    .cpu =
        MO_CPU_FORMS(mo_cast_amax_ref, mo_cast_amax_neon, mo_cast_amax_avx2, mo_cast_amax_avx512),
    .elements = cast_elements,
};

/* Memory bounds it: wider registers than AVX2's gain nothing. */
const mo_kernel mo_kernel_accumulate = {
    .name = "mo_accumulate",
    .args_size = sizeof(mo_accumulate_args),
    .threads = MO_ACCUMULATE_THREADS,
    .cpu = MO_CPU_FORMS(mo_accumulate_ref, mo_accumulate_neon, mo_accumulate_avx2),
    .elements = accumulate_elements,
};

const mo_kernel mo_kernel_blocks_quantize = {
    .name = "mo_blocks_quantize",
    .args_size = sizeof(mo_blocks_args),
    .threads = MO_BLOCKS_THREADS,
    .cpu = MO_CPU_FORMS(mo_blocks_quantize_ref, mo_blocks_quantize_neon, mo_blocks_quantize_avx2,
                        MO_MORE(mo_blocks_quantize_avx512), mo_blocks_quantize_avx512vbmi),
    .elements = blocks_elements,
};

const mo_kernel mo_kernel_blocks_dequantize = {
    .name = "mo_blocks_dequantize",
    .args_size = sizeof(mo_blocks_args),
    .threads = MO_BLOCKS_THREADS,
    .cpu =
        MO_CPU_FORMS(mo_blocks_dequantize_ref, mo_blocks_dequantize_neon, mo_blocks_dequantize_avx2,
                     MO_MORE(mo_blocks_dequantize_avx512), mo_blocks_dequantize_avx512vbmi),
    .elements = blocks_elements,
};
