/* One element of f32, f16 or bf16 as fp32 and back, for the scalar forms. */
#ifndef MO_KERNELS_CORE_ELEMENT_IO_H
#define MO_KERNELS_CORE_ELEMENT_IO_H

#include "kernels/core/numerics.h"

/* At any address. */
typedef float mo_unaligned_f32 __attribute__((aligned(1)));
typedef uint16_t mo_unaligned_u16 __attribute__((aligned(1)));

static inline float mo_load_element(const void *data, uint64_t i, int32_t dtype)
{
    if (dtype == MO_DTYPE_F32)
        return ((const mo_unaligned_f32 *)data)[i];
    uint16_t code = ((const mo_unaligned_u16 *)data)[i];
    return dtype == MO_DTYPE_BF16 ? mo_bf16_to_f32(code) : mo_f16_to_f32(code);
}

/* Rounds to nearest even. */
static inline void mo_store_element(void *data, uint64_t i, int32_t dtype, float value)
{
    if (dtype == MO_DTYPE_F32)
        ((mo_unaligned_f32 *)data)[i] = value;
    else
        ((mo_unaligned_u16 *)data)[i] =
            dtype == MO_DTYPE_BF16 ? mo_f32_to_bf16(value) : mo_f32_to_f16(value);
}

#endif
