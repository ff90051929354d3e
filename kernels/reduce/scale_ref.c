/* The scalar form of the scale kernel, and the one-item kernels of the scaler. */
#include "kernels/reduce/reduce_cpu.h"

#include <string.h>

static int scale_f32(unsigned char *data, uint64_t count, float factor)
{
    int found = 0;
    for (uint64_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, data + 4 * i, sizeof value);
        found |= !mo_f32_is_finite(value);
        value = mo_scale_element(value, factor);
        memcpy(data + 4 * i, &value, sizeof value);
    }
    return found;
}

static int scale_f16(unsigned char *data, uint64_t count, float factor)
{
    int found = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint16_t code;
        memcpy(&code, data + 2 * i, sizeof code);
        float value = mo_f16_to_f32(code);
        found |= !mo_f32_is_finite(value);
        code = mo_f32_to_f16(mo_scale_element(value, factor));
        memcpy(data + 2 * i, &code, sizeof code);
    }
    return found;
}

static int scale_bf16(unsigned char *data, uint64_t count, float factor)
{
    int found = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint16_t code;
        memcpy(&code, data + 2 * i, sizeof code);
        float value = mo_bf16_to_f32(code);
        found |= !mo_f32_is_finite(value);
        code = mo_f32_to_bf16(mo_scale_element(value, factor));
        memcpy(data + 2 * i, &code, sizeof code);
    }
    return found;
}

int mo_scale_scalar(unsigned char *data, uint64_t count, uint32_t dtype, float factor)
{
    switch (dtype) {
    case MO_DTYPE_F32:
        return scale_f32(data, count, factor);
    case MO_DTYPE_F16:
        return scale_f16(data, count, factor);
    default:
        return scale_bf16(data, count, factor);
    }
}

void mo_scale_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_scale_run(args, begin, end, mo_scale_scalar);
}

static void norm_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_norm_args *a = args;
    double sum = a->sum ? *a->sum : 0.0;
    (void)begin;
    (void)end;
    if (a->norm)
        *a->norm = mo_norm_of(sum);
    if (a->coefficient)
        *a->coefficient = mo_clip_coefficient(sum, a->max_norm);
}

static void scaler_update_ref(const void *args, uint64_t begin, uint64_t end)
{
    const mo_scaler_update_args *a = args;
    (void)begin;
    (void)end;
    mo_scaler_step(a->block, a->disabled);
}

static void scaler_set_ref(const void *args, uint64_t begin, uint64_t end)
{
    (void)begin;
    (void)end;
    mo_scaler_assign(args);
}

static uint64_t scale_elements(const void *args)
{
    const mo_scale_args *a = args;
    return mo_segments_elements(a->table ? a->table : a->segments, a->count);
}

_Static_assert(sizeof(mo_scale_args) <= MO_KERNEL_ARGS_MAX, "arguments too large");
_Static_assert(sizeof(mo_scaler_block) == 40, "layout shared with the GPU");

const mo_kernel mo_kernel_scale = {
    .name = "mo_scale",
    .args_size = sizeof(mo_scale_args),
    .threads = MO_SCALE_THREADS,
    .cpu = MO_CPU_FORMS(mo_scale_ref, mo_scale_avx2, mo_scale_avx512),
    .elements = scale_elements,
};

const mo_kernel mo_kernel_norm = {
    .name = "mo_norm",
    .args_size = sizeof(mo_norm_args),
    .threads = MO_ONE_THREADS,
    .cpu = {norm_ref},
};

const mo_kernel mo_kernel_scaler_update = {
    .name = "mo_scaler_update",
    .args_size = sizeof(mo_scaler_update_args),
    .threads = MO_ONE_THREADS,
    .cpu = {scaler_update_ref},
};

const mo_kernel mo_kernel_scaler_set = {
    .name = "mo_scaler_set",
    .args_size = sizeof(mo_scaler_set_args),
    .threads = MO_ONE_THREADS,
    .cpu = {scaler_set_ref},
};
