/*
 * Block-scaled formats: codes of 8 or 4 bits, and a scale for each block of a matrix. One kernel
 * quantises many matrices, and one brings them back; docs/guide/numerics.md is the specification.
 *
 * A matrix is cut into items of MO_CHUNK_ELEMENTS elements or fewer: some rows by some columns,
 * whole blocks. Codes and scales lie row by row. A code of 4 bits of an even column is the lower
 * half of its byte, of NF4 the upper half; each row begins with a byte of its own.
 */
#ifndef MO_KERNELS_CAST_BLOCKS_H
#define MO_KERNELS_CAST_BLOCKS_H

#include "kernels/cast/blocks_maps.h"
#include "kernels/core/kernel_launch.h"
#include "kernels/core/numerics.h"

/* Values are those of memopt_block_format. */
enum {
    MO_BLOCKS_MXFP8_E4M3 = 1,
    MO_BLOCKS_MXFP8_E5M2 = 2,
    MO_BLOCKS_MXFP4 = 3,
    MO_BLOCKS_NVFP4 = 4,
    MO_BLOCKS_E4M3_1X128 = 5,
    MO_BLOCKS_E4M3_128X128 = 6,
    MO_BLOCKS_E4M3_TENSOR = 7,
    MO_BLOCKS_E5M2_TENSOR = 8,
    MO_BLOCKS_NF4_32 = 9, /* and so on, twice as wide each */
    MO_BLOCKS_NF4_4096 = 16,
    MO_BLOCKS_DYNAMIC8 = 17,
    MO_BLOCKS_LAST = MO_BLOCKS_DYNAMIC8
};

/* What the codes of a format are. */
enum {
    MO_CODES_E4M3 = 0,
    MO_CODES_E5M2 = 1,
    MO_CODES_E2M1 = 2,
    MO_CODES_NF4 = 3,
    MO_CODES_DYNAMIC8 = 4
};

MO_HD static inline uint32_t mo_blocks_codes(uint32_t format)
{
    if (format >= MO_BLOCKS_NF4_32)
        return format == MO_BLOCKS_DYNAMIC8 ? MO_CODES_DYNAMIC8 : MO_CODES_NF4;
    if (format == MO_BLOCKS_MXFP4 || format == MO_BLOCKS_NVFP4)
        return MO_CODES_E2M1;
    return format == MO_BLOCKS_MXFP8_E5M2 || format == MO_BLOCKS_E5M2_TENSOR ? MO_CODES_E5M2
                                                                             : MO_CODES_E4M3;
}

/* Two codes a byte. */
MO_HD static inline int mo_codes_are_pairs(uint32_t codes)
{
    return codes == MO_CODES_E2M1 || codes == MO_CODES_NF4;
}

/* Codes are places in a map. */
MO_HD static inline int mo_codes_are_mapped(uint32_t codes)
{
    return codes >= MO_CODES_NF4;
}

/* One scale for all of the matrix, known before its values are read. */
MO_HD static inline int mo_blocks_is_tensor(uint32_t format)
{
    return format == MO_BLOCKS_E4M3_TENSOR || format == MO_BLOCKS_E5M2_TENSOR;
}

/* Columns and rows of a block are powers of two: their logarithms. A format of one scale is done in
 * blocks of one row too. */
MO_HD static inline uint32_t mo_blocks_width_bits(uint32_t format)
{
    if (format >= MO_BLOCKS_NF4_32)
        return format == MO_BLOCKS_DYNAMIC8 ? 8 : format - MO_BLOCKS_NF4_32 + 5;
    return format == MO_BLOCKS_NVFP4 ? 4 : format <= MO_BLOCKS_MXFP4 ? 5 : 7;
}

MO_HD static inline uint32_t mo_blocks_height_bits(uint32_t format)
{
    return format == MO_BLOCKS_E4M3_128X128 ? 7 : 0;
}

MO_HD static inline uint32_t mo_blocks_width(uint32_t format)
{
    return 1u << mo_blocks_width_bits(format);
}

MO_HD static inline uint32_t mo_blocks_height(uint32_t format)
{
    return 1u << mo_blocks_height_bits(format);
}

/* An item is one block: the threads that share a block of others are of one warp. */
MO_HD static inline int mo_blocks_is_item(uint32_t format)
{
    return mo_blocks_height_bits(format) != 0 || mo_blocks_width_bits(format) > 8;
}

/* Bytes of a scale. */
MO_HD static inline uint32_t mo_blocks_scale_size(uint32_t format)
{
    return format <= MO_BLOCKS_NVFP4 ? 1 : 4;
}

/* How many units of 2^bits hold `count`. */
MO_HD static inline uint64_t mo_blocks_of(uint64_t count, uint32_t bits)
{
    return (count >> bits) + ((count & (((uint64_t)1 << bits) - 1)) != 0);
}

/* Bytes of a row of codes, and of the first `columns` of one (even, or the whole row). */
MO_HD static inline uint64_t mo_blocks_code_bytes(uint32_t format, uint64_t columns)
{
    return mo_codes_are_pairs(mo_blocks_codes(format)) ? columns / 2 + columns % 2 : columns;
}

/* Elements are numbered for the random bits as if rows had a multiple of this many columns. */
enum { MO_BLOCKS_PITCH_BITS = 7, MO_BLOCKS_PITCH = 1 << MO_BLOCKS_PITCH_BITS };

MO_HD static inline uint64_t mo_blocks_number(uint64_t row, uint64_t column, uint64_t columns)
{
    return (row * mo_blocks_of(columns, MO_BLOCKS_PITCH_BITS) << MO_BLOCKS_PITCH_BITS) + column;
}

typedef struct mo_blocks_segment {
    void *values; /* const to the kernel that quantises */
    void *codes, *scales;
    const float *tensor_amax; /* NVFP4 and formats of one scale: the tensor's largest magnitude, or
                                 NULL; NF4: what its scales are stored less, or NULL */
    uint32_t *amax;           /* raised to the largest magnitude, or NULL */
    uint64_t rows, columns;
    uint64_t first_item, items_across; /* items side by side */
    uint32_t item_rows, item_columns;
    uint32_t tensor; /* its number, for the random stream */
    uint16_t dtype, format;
} mo_blocks_segment;

enum { MO_BLOCKS_SEGMENTS = 45, MO_BLOCKS_THREADS = 256 };

typedef struct mo_blocks_args {
    uint64_t seed, sequence; /* of stochastic rounding */
    uint32_t count;          /* segments */
    uint8_t stochastic;      /* 1: stochastic, 0: to nearest even */
    uint8_t power_of_two;    /* 1: f32 scales are rounded up to powers of two */
    uint8_t streaming;       /* 1: the outputs are too large to stay in the caches */
    uint8_t reserved;
    mo_blocks_segment segments[MO_BLOCKS_SEGMENTS];
} mo_blocks_args;

extern const mo_kernel mo_kernel_blocks_quantize, mo_kernel_blocks_dequantize;

/* Rows and columns of the largest block of more than one row. */
enum { MO_BLOCKS_TILE = 128 };

/* Where an item lies in its matrix. */
typedef struct mo_blocks_item {
    uint64_t row, column;
    uint64_t rows, columns; /* of the item */
} mo_blocks_item;

/* `row`: which item from the top, number / items_across. */
MO_HD static inline mo_blocks_item mo_blocks_item_at(const mo_blocks_segment *s, uint64_t number,
                                                     uint64_t row)
{
    mo_blocks_item item = {row * s->item_rows, (number - row * s->items_across) * s->item_columns,
                           s->item_rows, s->item_columns};
    if (s->rows - item.row < item.rows)
        item.rows = s->rows - item.row;
    if (s->columns - item.column < item.columns)
        item.columns = s->columns - item.column;
    return item;
}

/* --- scales ------------------------------------------------------------------------------------
 *
 * From the largest magnitude of a block, as the bits of an f32 (a NaN's are the largest of all):
 * the scale's code, and the factor that the block's magnitudes are multiplied by before they are
 * rounded. Where the magnitude is not finite, the scale is a NaN and the factor 0.
 */

typedef struct mo_blocks_scale {
    uint32_t code; /* of 8 bits, or the bits of an f32 */
    float factor;
} mo_blocks_scale;

#define MO_BLOCKS_LEAST                                                                            \
    0x1p-100f /* smaller magnitudes count as this one: f32 scales are normal                       \
               */

/* The exponent of the largest number of the codes. */
MO_HD static inline uint32_t mo_blocks_emax(uint32_t format)
{
    return format == MO_BLOCKS_MXFP8_E4M3 ? 8 : format == MO_BLOCKS_MXFP8_E5M2 ? 15 : 2;
}

MO_HD static inline mo_blocks_scale mo_e8m0_scale(uint32_t amax, uint32_t emax)
{
    uint32_t exponent = amax >> 23;
    uint32_t code = exponent == 255 ? 255 : exponent > emax ? exponent - emax : 0;
    mo_blocks_scale scale = {code, mo_f32_from_bits(code == 255 ? 0 : (254 - code) << 23)};
    return scale;
}

/* largest: of the codes. */
MO_HD static inline mo_blocks_scale mo_f32_scale(uint32_t amax, float largest, int power_of_two)
{
    mo_blocks_scale scale = {MO_F32_NAN_BITS, 0.0f};
    if (amax >= MO_F32_INF_BITS)
        return scale;
    float a = mo_f32_from_bits(amax);
    a = a < MO_BLOCKS_LEAST ? MO_BLOCKS_LEAST : a;
    scale.code = mo_f32_bits(a / largest);
    scale.factor = largest / a;
    if (power_of_two) {
        scale.code = (scale.code + 0x007fffffu) & MO_F32_INF_BITS;
        scale.factor = mo_f32_from_bits((254u << 23) - scale.code);
    }
    return scale;
}

/* The bits of a tensor's largest magnitude; 0 where it is not given. */
MO_HD static inline uint32_t mo_blocks_tensor_amax(const float *tensor_amax)
{
    return tensor_amax == 0 ? 0 : mo_f32_bits(MO_AT(const float, tensor_amax)) & 0x7fffffffu;
}

/* The scale of a format of one. 0, as of a tensor of zeros, gives 1. */
MO_HD static inline mo_blocks_scale mo_blocks_whole_scale(uint32_t format, const float *tensor_amax,
                                                          int power_of_two)
{
    const uint32_t bits = mo_blocks_tensor_amax(tensor_amax);
    if (bits != 0)
        return mo_f32_scale(bits, mo_blocks_codes(format) == MO_CODES_E5M2 ? 57344.0f : 448.0f,
                            power_of_two);
    mo_blocks_scale scale = {127u << 23, 1.0f};
    return scale;
}

/* NVFP4's scale of a tensor, from its largest magnitude. 0, as of a tensor of zeros, gives 1. */
MO_HD static inline float mo_nvfp4_tensor_scale(const float *tensor_amax)
{
    const uint32_t bits = mo_blocks_tensor_amax(tensor_amax);
    if (bits == 0)
        return 1.0f;
    if (bits >= MO_F32_INF_BITS)
        return mo_f32_from_bits(MO_F32_NAN_BITS);
    float amax = mo_f32_from_bits(bits);
    return (amax < MO_BLOCKS_LEAST ? MO_BLOCKS_LEAST : amax) / 2688.0f;
}

MO_HD static inline mo_blocks_scale mo_nvfp4_scale(uint32_t amax, float tensor_scale)
{
    mo_blocks_scale scale = {0x7f, 0.0f};
    if (amax >= MO_F32_INF_BITS || mo_f32_is_nan(tensor_scale))
        return scale;
    scale.code = mo_f32_to_e4m3(mo_f32_from_bits(amax) / 6.0f / tensor_scale, 1);
    if (scale.code != 0)
        scale.factor = 1.0f / tensor_scale / mo_e4m3_to_f32((uint8_t)scale.code);
    return scale;
}

/* NF4's offset of a tensor's scales. */
MO_HD static inline float mo_nf4_offset(const float *tensor_amax)
{
    return tensor_amax == 0 ? 0.0f : MO_AT(const float, tensor_amax);
}

/* The number that all scales of a matrix have in common. */
MO_HD static inline float mo_blocks_tensor_number(uint32_t format, const float *tensor_amax)
{
    return format >= MO_BLOCKS_NF4_32 ? mo_nf4_offset(tensor_amax)
                                      : mo_nvfp4_tensor_scale(tensor_amax);
}

/* Codes in a map of numbers up to 1: the largest magnitude, stored less the offset. */
MO_HD static inline mo_blocks_scale mo_map_scale(uint32_t amax, float offset)
{
    mo_blocks_scale scale = {MO_F32_NAN_BITS, 0.0f};
    if (amax >= MO_F32_INF_BITS || (mo_f32_bits(offset) & 0x7fffffffu) >= MO_F32_INF_BITS)
        return scale;
    float a = mo_f32_from_bits(amax);
    scale.code = mo_f32_bits(a - offset);
    scale.factor = 1.0f / (a < 1e-38f ? 1e-38f : a);
    return scale;
}

/* tensor: mo_blocks_tensor_number(). */
MO_HD static inline mo_blocks_scale mo_blocks_scale_of(uint32_t format, uint32_t amax, float tensor,
                                                       int power_of_two)
{
    if (format >= MO_BLOCKS_NF4_32)
        return mo_map_scale(amax, tensor);
    if (format <= MO_BLOCKS_MXFP4)
        return mo_e8m0_scale(amax, mo_blocks_emax(format));
    return format == MO_BLOCKS_NVFP4 ? mo_nvfp4_scale(amax, tensor)
                                     : mo_f32_scale(amax, 448.0f, power_of_two);
}

/* What a block's code values are multiplied by, from the code of its scale. */
MO_HD static inline float mo_blocks_factor(uint32_t format, uint32_t code, float tensor)
{
    if (format <= MO_BLOCKS_MXFP4)
        return mo_e8m0_to_f32((uint8_t)code);
    if (format == MO_BLOCKS_NVFP4)
        return tensor * mo_e4m3_to_f32((uint8_t)code);
    if (format >= MO_BLOCKS_NF4_32)
        return mo_f32_from_bits(code) + tensor;
    return mo_f32_from_bits(code);
}

/* --- elements --------------------------------------------------------------------------------- */

/* The code of one element; `value` is multiplied without its sign, which a NaN keeps too, unless codes
 * are mapped. random: 16 bits, where `stochastic`. */
MO_HD static inline uint32_t mo_blocks_code(uint32_t codes, float value, float factor,
                                            int stochastic, uint32_t random)
{
    uint32_t u = mo_f32_bits(value);
    float scaled = mo_f32_from_bits(u & 0x7fffffffu) * factor;
    uint32_t code;
    if (codes == MO_CODES_NF4)
        return mo_map_code(mo_map_nf4, 4, value * factor);
    if (codes == MO_CODES_DYNAMIC8)
        return mo_map_code(mo_map_signed, 8, value * factor);
    if (codes == MO_CODES_E2M1) {
        code = stochastic ? mo_f32_to_e2m1_stochastic(scaled, random) : mo_f32_to_e2m1(scaled);
        return (code & 0x7u) | (u >> 28 & 0x8u);
    }
    if (codes == MO_CODES_E4M3)
        code =
            stochastic ? mo_f32_to_e4m3_stochastic(scaled, 1, random) : mo_f32_to_e4m3(scaled, 1);
    else
        code =
            stochastic ? mo_f32_to_e5m2_stochastic(scaled, 1, random) : mo_f32_to_e5m2(scaled, 1);
    return (code & 0x7fu) | (u >> 24 & 0x80u);
}

MO_HD static inline float mo_blocks_value(uint32_t codes, uint32_t code, float factor)
{
    float value = codes == MO_CODES_E2M1       ? mo_e2m1_to_f32((uint8_t)code)
                  : codes == MO_CODES_E4M3     ? mo_e4m3_to_f32((uint8_t)code)
                  : codes == MO_CODES_E5M2     ? mo_e5m2_to_f32((uint8_t)code)
                  : codes == MO_CODES_DYNAMIC8 ? mo_f32_from_bits(mo_map_signed[code])
                                               : mo_f32_from_bits(mo_map_nf4[code]);
    return mo_f32_one_nan(value * factor);
}

#endif
