/*
 * Block formats whose codes are places in a map of growing numbers from -1 to 1: NF4's 16 (Dettmers et
 * al., QLoRA, 2023) and the signed dynamic map of 256 (Dettmers et al., 8-bit Optimizers, 2022). Bytes are
 * those of bitsandbytes.
 */
#ifndef MO_KERNELS_CAST_BLOCKS_MAPS_H
#define MO_KERNELS_CAST_BLOCKS_MAPS_H

#include "kernels/core/numerics.h"
#include "kernels/generated/blockcode_tables.h"

enum { MO_NF4_ZERO = 7 }; /* the code of 0 */

MO_LOOKUP_TABLE uint32_t mo_map_nf4[16] = {
    0xbf800000, 0xbf3239b1, 0xbf066b30, 0xbeca32a0, 0xbe91a24d, 0xbe3d353f, 0xbdba7871, 0x00000000,
    0x3da2faff, 0x3e24cae3, 0x3e7c04dd, 0x3ead033a, 0x3ee1a4b8, 0x3f1007ab, 0x3f3913b3, 0x3f800000};

/* The nearest of 2^bits numbers: how many middles between two of them are below x. A NaN gets 0. */
MO_HD static inline uint32_t mo_map_code(const uint32_t *map, uint32_t bits, float x)
{
    uint32_t code = 0;
    for (uint32_t step = 1u << (bits - 1); step != 0; step >>= 1) {
        const uint32_t *at = map + code + step - 1;
        float middle = (mo_f32_from_bits(at[0]) + mo_f32_from_bits(at[1])) * 0.5f;
        code += middle < x ? step : 0;
    }
    return code;
}

#endif
