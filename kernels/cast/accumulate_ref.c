/* The scalar form of the accumulate kernel, and the kernel itself. */
#include "kernels/cast/accumulate_cpu.h"

#include <string.h>

static float load(const unsigned char *base, uint64_t i, uint32_t dtype)
{
    uint16_t code;
    float value;
    if (dtype == MO_DTYPE_F32) {
        memcpy(&value, base + 4 * i, sizeof value);
        return value;
    }
    memcpy(&code, base + 2 * i, sizeof code);
    return dtype == MO_DTYPE_F16 ? mo_f16_to_f32(code) : mo_bf16_to_f32(code);
}

static void store(unsigned char *base, uint64_t i, uint32_t dtype, float value)
{
    if (dtype == MO_DTYPE_F32) {
        memcpy(base + 4 * i, &value, sizeof value);
        return;
    }
    uint16_t code = dtype == MO_DTYPE_F16 ? mo_f32_to_f16(value) : mo_f32_to_bf16(value);
    memcpy(base + 2 * i, &code, sizeof code);
}

void mo_accumulate_scalar(const mo_accumulate_piece *piece, uint64_t start, float scale)
{
    for (uint64_t i = start; i < piece->count; i++) {
        float sum = load(piece->destination, i, piece->destination_dtype);
        float value = load(piece->source, i, piece->source_dtype);
        store(piece->destination, i, piece->destination_dtype,
              mo_accumulate_element(sum, value, scale));
    }
}

static void accumulate_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_accumulate_args *a = args;
    for (uint64_t item = begin; item < end; item++) {
        mo_accumulate_piece piece;
        mo_accumulate_piece_of(a, item, &piece);
        mo_accumulate_scalar(&piece, 0, a->scale);
    }
}

static uint64_t accumulate_elements(const void *args)
{
    const mo_accumulate_args *a = args;
    uint64_t elements = 0;
    for (uint32_t i = 0; i < a->count; i++)
        elements += a->segments[i].count;
    return elements;
}

_Static_assert(sizeof(mo_accumulate_segment) == 40, "layout shared with the GPU");
_Static_assert(sizeof(mo_accumulate_args) <= MO_KERNEL_ARGS_MAX, "arguments too large");

/* Memory bounds it: wider registers than AVX2's gain nothing. */
const mo_kernel mo_kernel_accumulate = {
    .name = "mo_accumulate",
    .args_size = sizeof(mo_accumulate_args),
    .threads = MO_ACCUMULATE_THREADS,
    .cpu = MO_CPU_FORMS(accumulate_ref, mo_accumulate_avx2),
    .elements = accumulate_elements,
};
