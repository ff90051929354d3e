/*
 * The formats of states on a GPU: how 32 threads read and write 256 elements, eight each (16
 * threads the 128 of a 4-bit block). The codes are those of state_codes.h, found without branches.
 * Rare cases (values that are not finite, tiny blocks, elements past the end, second moments of 0)
 * are tested once for eight elements.
 */
#ifndef MO_KERNELS_OPTIM_STATE_CODES_GPU_H
#define MO_KERNELS_OPTIM_STATE_CODES_GPU_H

#include "kernels/core/gpu_vector_io.h"

#include "kernels/optim/optim_step.h"

/* --- magnitudes as bits, which grow with them; NaN is the largest ---------------------------- */

/* Every NaN becomes the one that is stored. */
template <int N> MO_DEVICE void mo_one_nan(float values[N])
{
    MO_UNROLL
    for (int k = 0; k < N; k++)
        values[k] = mo_f32_one_nan(values[k]);
}

/* The larger of bits and the bits of value's magnitude; the caller does not distinguish NaNs. */
MO_DEVICE uint32_t mo_larger(uint32_t bits, float value)
{
#if MO_NVCC_DEVICE && __CUDA_ARCH__ >= 800
    float larger;
    asm("{.reg .f32 a; abs.f32 a, %2; max.NaN.f32 %0, %1, a;}"
        : "=f"(larger)
        : "f"(mo_f32_from_bits(bits)), "f"(value));
    return mo_f32_bits(larger);
#else
    uint32_t magnitude = mo_f32_bits(value) & 0x7fffffffu;
    return magnitude > bits ? magnitude : bits;
#endif
}

template <int N> MO_DEVICE uint32_t mo_largest(const float values[N])
{
    uint32_t largest = 0;
    MO_UNROLL
    for (int k = 0; k < N; k++)
        largest = mo_larger(largest, values[k]);
    return largest;
}

/* The least of the bits as signed numbers: at most 0 if any value is not positive. */
template <int N> MO_DEVICE int32_t mo_least(const float values[N])
{
    int32_t least = (int32_t)mo_f32_bits(values[0]);
    MO_UNROLL
    for (int k = 1; k < N; k++) {
        int32_t bits = (int32_t)mo_f32_bits(values[k]);
        least = bits < least ? bits : least;
    }
    return least;
}

/* The larger of |value| and least, bits; value is not NaN. */
MO_DEVICE uint32_t mo_magnitude_from(float value, uint32_t least)
{
#if MO_NVCC_DEVICE
    return mo_f32_bits(fmaxf(fabsf(value), mo_f32_from_bits(least)));
#else
    uint32_t magnitude = mo_f32_bits(value) & 0x7fffffffu;
    return magnitude > least ? magnitude : least;
#endif
}

/* Over a group of threads, all of which must call it. */
template <uint32_t LANES> MO_DEVICE uint32_t mo_group_largest(uint32_t value)
{
    uint32_t lanes = LANES;
#if MO_NVCC_DEVICE && __CUDA_ARCH__ >= 800
    if (LANES == 32) {
        asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(value) : "r"(value));
        lanes = 1;
    }
#endif
    MO_UNROLL
    for (uint32_t mask = lanes / 2; mask > 0; mask /= 2) {
        uint32_t other = mo_shuffle_xor_u32(value, mask);
        value = other > value ? other : value;
    }
    return value;
}

/* --- 8-bit codes ----------------------------------------------------------------------------- */

/* One look-up a code takes 22 KB more of shared memory: too much for AMD's compute units, of whose
 * 64 KB many blocks must live. There a code takes two look-ups. */
#if defined(__HIP__)
#define MO_STEP_CODES 0
#else
#define MO_STEP_CODES 1
#endif

typedef struct alignas(16) mo_code_tables {
    uint32_t map_signed[256], map_unsigned[256];
#if MO_STEP_CODES
    uint32_t steps_signed[2944], steps_unsigned[2692];
#else
    uint32_t threshold_signed[132], threshold_unsigned[256];
    uint8_t cell_signed[2832], cell_unsigned[2704];
#endif
} mo_code_tables;

/* Both are aligned to 16 bytes. */
template <int BYTES> MO_DEVICE void mo_table_copy(void *shared, const void *table)
{
    static_assert(BYTES % 16 == 0, "tables are copied by four words");
    for (uint32_t w = mo_thread_index(); w < BYTES / 16; w += MO_OPTIM_THREADS)
        ((mo_words<4> *)shared)[w] = ((const mo_words<4> *)table)[w];
}

/* A barrier is due afterwards. */
MO_DEVICE void mo_maps_load(mo_code_tables *t)
{
    mo_table_copy<sizeof mo_map_signed>(t->map_signed, mo_map_signed);
    mo_table_copy<sizeof mo_map_unsigned>(t->map_unsigned, mo_map_unsigned);
}

MO_DEVICE void mo_cells_load(mo_code_tables *t)
{
#if MO_STEP_CODES
    mo_table_copy<sizeof mo_steps_signed>(t->steps_signed, mo_steps_signed);
    mo_table_copy<sizeof mo_steps_unsigned>(t->steps_unsigned, mo_steps_unsigned);
#else
    mo_table_copy<sizeof mo_threshold_signed>(t->threshold_signed, mo_threshold_signed);
    mo_table_copy<sizeof mo_threshold_unsigned>(t->threshold_unsigned, mo_threshold_unsigned);
    mo_table_copy<sizeof mo_cell_signed>(t->cell_signed, mo_cell_signed);
    mo_table_copy<sizeof mo_cell_unsigned>(t->cell_unsigned, mo_cell_unsigned);
#endif
}

/* Codes of values that are not positive become 0. */
MO_DEVICE void mo_zero_codes(const float values[8], uint32_t codes[8])
{
    if (MO_RARE(mo_least<8>(values) <= 0)) {
        MO_UNROLL
        for (int k = 0; k < 8; k++)
            codes[k] = values[k] > 0.0f ? codes[k] : 0;
    }
}

/* --- the formats ----------------------------------------------------------------------------- */

/* The bytes above bit 24 of four words, the first one lowest. */
MO_DEVICE uint32_t mo_upper_bytes(const uint32_t of[4])
{
#if defined(__CUDA_ARCH__)
    uint32_t low, high, all;
    asm("prmt.b32 %0, %1, %2, 0x0073;" : "=r"(low) : "r"(of[0]), "r"(of[1]));
    asm("prmt.b32 %0, %1, %2, 0x7300;" : "=r"(high) : "r"(of[2]), "r"(of[3]));
    asm("prmt.b32 %0, %1, %2, 0x7610;" : "=r"(all) : "r"(low), "r"(high));
    return all;
#else
    return of[0] >> 24 | of[1] >> 24 << 8 | of[2] >> 24 << 16 | (of[3] & 0xff000000u);
#endif
}

#if MO_STEP_CODES

/* Codes of magnitudes of at most 1 by steps, in the upper 8 bits: the number's upper bits pick the
 * word of a cell in which the code grows once at most. The sum with the lower bits carries into the
 * code from there on. Magnitudes below the first cell count as its beginning: that is code 1 of the
 * unsigned map, and 0 of the signed one. */

/* In z the bits are those of the generator's steps_signed. */
MO_DEVICE uint32_t mo_step_code_signed(const mo_code_tables *t, float y)
{
    uint32_t sign = (uint32_t)((int32_t)mo_f32_bits(y) >> 31);
    uint32_t z = mo_kept(mo_magnitude_from(y, MO_SIGNED_UMIN << 16) ^ sign ^ 0x3f800000u);
    return z * 128 + t->steps_signed[mo_shift_right((int32_t)z, 17) + 1472];
}

MO_DEVICE uint32_t mo_step_code_unsigned(const mo_code_tables *t, float y)
{
    uint32_t bits = mo_magnitude_from(y, MO_UNSIGNED_UMIN << 16);
    return bits * 256 + t->steps_unsigned[mo_shift_right((int32_t)bits, 16) - MO_UNSIGNED_UMIN];
}

MO_DEVICE void mo_codes_of(const mo_code_tables *t, int is_signed, const float y[8],
                           uint32_t codes[8])
{
    MO_UNROLL
    for (int k = 0; k < 8; k += 4) {
        uint32_t steps[4];
        MO_UNROLL
        for (int j = 0; j < 4; j++)
            steps[j] =
                is_signed ? mo_step_code_signed(t, y[k + j]) : mo_step_code_unsigned(t, y[k + j]);
        uint32_t bytes = mo_upper_bytes(steps);
        MO_UNROLL
        for (int j = 0; j < 4; j++)
            codes[k + j] = bytes >> 8 * j & 0xffu;
    }
}

#else

/* The code of a magnitude of at most 1 by cells, without a branch: its upper half picks the one
 * threshold that may lie near it. Values below the first cell count as its beginning: code 1 of the
 * unsigned map; in the signed one they are below the threshold. */
MO_DEVICE uint32_t mo_cell_code(const uint8_t *cells, const uint32_t *threshold, uint32_t umin,
                                float y)
{
    uint32_t bits = mo_magnitude_from(y, umin << 16);
    uint32_t code = cells[(bits >> 16) - umin];
    /* Less by 1 where bits < threshold: both are below 2^31. */
    return code + (uint32_t)((int32_t)(bits - threshold[code]) >> 31);
}

/* mo_code_signed for finite y of at most 1: 127 plus or minus the magnitude's code, at least 0. */
MO_DEVICE uint32_t mo_cell_code_signed(const mo_code_tables *t, float y)
{
    int32_t sign = (int32_t)mo_f32_bits(y) >> 31;
    int32_t code = (int32_t)mo_cell_code(t->cell_signed, t->threshold_signed, MO_SIGNED_UMIN, y);
    code = (code ^ sign) + (MO_SIGNED_ZERO - sign);
    return (uint32_t)(code < 0 ? 0 : code);
}

MO_DEVICE void mo_codes_of(const mo_code_tables *t, int is_signed, const float y[8],
                           uint32_t codes[8])
{
    MO_UNROLL
    for (int k = 0; k < 8; k++)
        codes[k] = is_signed ? mo_cell_code_signed(t, y[k])
                             : mo_cell_code(t->cell_unsigned, t->threshold_unsigned,
                                            MO_UNSIGNED_UMIN, y[k]);
}

#endif

/* A format's tables lie in shared memory. Values to code are finite and their block has this scale,
 * so y is at most 1 (448 with e4m3) except for rounding. */
template <uint32_t FORMAT> struct mo_codec;

template <> struct mo_codec<MO_STATE_8BIT> {
    typedef mo_code_tables tables;

    MO_DEVICE void load(tables *t)
    {
        mo_maps_load(t);
        mo_cells_load(t);
    }

    MO_DEVICE void decode(const tables *t, int is_signed, const uint32_t codes[8], float scale,
                          float values[8])
    {
        const uint32_t *map = is_signed ? t->map_signed : t->map_unsigned;
        MO_UNROLL
        for (int k = 0; k < 8; k++)
            values[k] = mo_f32_from_bits(map[codes[k]]) * scale;
    }

    MO_DEVICE void encode(const tables *t, int is_signed, const float x[8], const float y[8],
                          uint32_t codes[8])
    {
        mo_codes_of(t, is_signed, y, codes);
        if (!is_signed)
            mo_zero_codes(x, codes);
    }
};

/* mo_code4_signed for finite y of at most 1. z grows with y; what its cell adds to it makes the
 * code of the upper bits. */
MO_DEVICE uint32_t mo_cell4_code(const uint32_t *cells, float y)
{
    uint32_t sign = (uint32_t)((int32_t)mo_f32_bits(y) >> 31);
    uint32_t z = mo_magnitude_from(y, 0x3b200000u) ^ sign;
    return (z * 128 + cells[z >> 21 & 127]) >> 28;
}

/* mo_code4_unsigned for y of at most 1. */
MO_DEVICE uint32_t mo_code4_unsigned_in(float y)
{
#if MO_NVCC_DEVICE
    /* The least whole number that is not below t, by adding 2^23 rounded up: 1 for code 0. */
    float t = fmaxf(__fmaf_rn(y, 16.0f, -0.5f), 0.5f);
    return mo_f32_bits(__fadd_ru(t, 8388608.0f)) - 0x4b000001u;
#else
    return mo_code4_unsigned(y);
#endif
}

template <> struct mo_codec<MO_STATE_4BIT> {
    typedef struct {
        uint32_t map[16], cell[128];
    } tables;

    MO_DEVICE void load(tables *t)
    {
        mo_table_copy<sizeof mo_map4_signed>(t->map, mo_map4_signed);
        mo_table_copy<sizeof mo_cell4_signed>(t->cell, mo_cell4_signed);
    }

    /* Unsigned: (code + 1) / 16 as the difference of two numbers whose unit is 1 / 16. */
    MO_DEVICE void decode(const tables *t, int is_signed, const uint32_t codes[8], float scale,
                          float values[8])
    {
        MO_UNROLL
        for (int k = 0; k < 8; k++) {
            float number = is_signed ? mo_f32_from_bits(t->map[codes[k]])
                                     : mo_f32_from_bits(0x49000000u | codes[k]) - 524287.9375f;
            values[k] = number * scale;
        }
    }

    MO_DEVICE void encode(const tables *t, int is_signed, const float x[8], const float y[8],
                          uint32_t codes[8])
    {
        (void)x;
        MO_UNROLL
        for (int k = 0; k < 8; k++)
            codes[k] = is_signed ? mo_cell4_code(t->cell, y[k]) : mo_code4_unsigned_in(y[k]);
    }
};

/* The conversions of e4m3 that processors have from Ada and Hopper on: two numbers, the first one
 * lower; to the nearest, at most 448 in magnitude. */
#if MO_NVCC_DEVICE && __CUDA_ARCH__ >= 890 &&                                                      \
    (__CUDA_ARCH__ >= 900 || __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1201)
#define MO_HAS_E4M3 1

MO_DEVICE void mo_e4m3_pair_as_f32(uint32_t low, uint32_t high, float values[2])
{
    asm("{.reg .b16 l, h, p; .reg .b32 both, d;\n\t"
        "shl.b32 d, %3, 8; or.b32 d, d, %2; cvt.u16.u32 p, d;\n\t"
        "cvt.rn.f16x2.e4m3x2 both, p; mov.b32 {l, h}, both;\n\t"
        "cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(values[0]), "=f"(values[1])
        : "r"(low), "r"(high));
}

MO_DEVICE void mo_f32_pair_as_e4m3(float low, float high, uint32_t codes[2])
{
    uint32_t both;
    asm("{.reg .b16 p; cvt.rn.satfinite.e4m3x2.f32 p, %1, %2; cvt.u32.u16 %0, p;}"
        : "=r"(both)
        : "f"(high), "f"(low));
    codes[0] = both & 0xffu;
    codes[1] = both >> 8;
}
#else
#define MO_HAS_E4M3 0
#endif

template <> struct mo_codec<MO_STATE_F8> {
    typedef uint32_t tables;

    MO_DEVICE void load(tables *t)
    {
        (void)t;
    }

    MO_DEVICE void decode(const tables *t, int is_signed, const uint32_t codes[8], float scale,
                          float values[8])
    {
        (void)t;
        (void)is_signed;
        MO_UNROLL
        for (int k = 0; k < 8; k += 2) {
#if MO_HAS_E4M3
            mo_e4m3_pair_as_f32(codes[k], codes[k + 1], values + k);
#else
            values[k] = mo_decode_as<MO_DTYPE_F8_E4M3>(codes[k]);
            values[k + 1] = mo_decode_as<MO_DTYPE_F8_E4M3>(codes[k + 1]);
#endif
            values[k] *= scale;
            values[k + 1] *= scale;
        }
    }

    MO_DEVICE void encode(const tables *t, int is_signed, const float x[8], const float y[8],
                          uint32_t codes[8])
    {
        const float least = 0x1p-9f; /* code 1 */
        (void)t;
        MO_UNROLL
        for (int k = 0; k < 8; k += 2) {
            float a = is_signed || y[k] > least ? y[k] : least;
            float b = is_signed || y[k + 1] > least ? y[k + 1] : least;
#if MO_HAS_E4M3
            mo_f32_pair_as_e4m3(a, b, codes + k);
#else
            codes[k] = mo_encode_as<MO_DTYPE_F8_E4M3>(a, 1);
            codes[k + 1] = mo_encode_as<MO_DTYPE_F8_E4M3>(b, 1);
#endif
        }
        if (!is_signed)
            mo_zero_codes(x, codes);
    }
};

#include "kernels/optim/companded_gpu.h"

/* Reads codes of eight elements from `at` on, a multiple of eight, of which `rest` exist. */
template <uint32_t FORMAT>
MO_DEVICE void mo_read_codes(const void *data, uint64_t at, uint32_t rest, int aligned,
                             uint32_t codes[8])
{
    if (FORMAT != MO_STATE_4BIT) {
        mo_read_pack<8>(data, at, rest, 1, aligned, codes);
        return;
    }
    uint32_t pairs[4];
    mo_read_pack<4>(data, at / 2, (rest + 1) / 2, 1, aligned, pairs);
    MO_UNROLL
    for (int k = 0; k < 8; k++)
        codes[k] = pairs[k / 2] >> (k % 2 ? 0 : 4) & 15u;
}

template <uint32_t FORMAT>
MO_DEVICE void mo_write_codes(void *data, uint64_t at, uint32_t rest, int aligned, int is_signed,
                              const uint32_t codes[8])
{
    if (FORMAT != MO_STATE_4BIT) {
        mo_write_pack<8>(data, at, rest, 1, aligned, codes);
        return;
    }
    if (aligned && rest == 8) {
        mo_words<1> word = {{0}};
        MO_UNROLL
        for (uint32_t k = 0; k < 8; k++) {
            if (is_signed) /* one shift, with the code's own */
                word.of[0] = word.of[0] << 4 | codes[(7 - k) ^ 1];
            else /* sums: what is added to codes can be added at the end */
                word.of[0] += codes[k] << (k ^ 1) * 4;
        }
        mo_store_words<1, 0>((unsigned char *)data + at / 2, word);
        MO_APART;
        return;
    }
    uint32_t pairs[4], zero = mo_format_zero_code(FORMAT, is_signed);
    MO_UNROLL
    for (uint32_t k = 0; k < 4; k++)
        pairs[k] = codes[2 * k] << 4 | (2 * k + 1 < rest ? codes[2 * k + 1] : zero);
    mo_write_pack<4>(data, at / 2, (rest + 1) / 2, 1, aligned, pairs);
}

/* Alignment at which the codes of eight elements travel at once. */
template <uint32_t FORMAT> MO_DEVICE int mo_codes_aligned(const void *data)
{
    return mo_aligned_to(data, FORMAT == MO_STATE_4BIT ? 4 : 8);
}

/* Values past the end are 0; they stay so in a step, which has gradients and parameters of 0 there
 * (or make NaN, where all of the block does). So a block's absmax is that of its existing
 * elements. */
template <uint32_t FORMAT>
MO_DEVICE void mo_decode_block(const typename mo_codec<FORMAT>::tables *tables, int is_signed,
                               const void *data, const float *scales, uint64_t at, uint32_t rest,
                               int aligned, float values[8])
{
    uint32_t codes[8];
    mo_read_codes<FORMAT>(data, at, rest, aligned, codes);
    float scale = mo_load_as<float>(&scales[at / mo_format_block(FORMAT)]);
    mo_codec<FORMAT>::decode(tables, is_signed, codes, scale, values);
    if (MO_RARE(rest < 8)) {
        MO_UNROLL
        for (uint32_t k = 0; k < 8; k++)
            values[k] = k < rest ? values[k] : 0.0f;
    }
}

/* Nearly every absmax is from 2^-100 to 2^100: the block is finite, and its prescale is 1. */
MO_DEVICE int mo_scale_is_plain(uint32_t largest)
{
    return largest - 0x0d800000u <= 0x71800000u - 0x0d800000u;
}

/* mo_format_scale of such an absmax. */
template <uint32_t FORMAT> MO_DEVICE mo_block_scale mo_plain_scale(int is_signed, uint32_t largest)
{
    if (FORMAT == MO_STATE_COMPANDED)
        return mo_format_scale(FORMAT, is_signed, largest);
    mo_block_scale s;
    s.absmax = mo_f32_from_bits(largest);
    if (FORMAT == MO_STATE_F8)
        s.absmax = s.absmax / 448.0f;
    s.prescale = 1.0f;
    s.inverse = 1.0f / s.absmax;
    return s;
}

/* y * prescale * inverse. Of a poisoned block, which stores codes of zeros, x becomes 0 too. */
MO_DEVICE void mo_normalise_odd(float x[8], const mo_block_scale *scale, float y[8])
{
    int poisoned = mo_f32_is_nan(scale->inverse);
    MO_UNROLL
    for (int k = 0; k < 8; k++) {
        y[k] = poisoned ? 0.0f : y[k] * scale->prescale * scale->inverse;
        x[k] = poisoned ? 0.0f : x[k];
    }
}

/* Every thread of a warp must call this, those past the end with rest 0 and values of 0. largest:
 * mo_largest of the values, which are overwritten. */
template <uint32_t FORMAT>
MO_DEVICE void mo_encode_block(const typename mo_codec<FORMAT>::tables *tables, int is_signed,
                               float values[8], uint32_t largest, uint64_t at, uint32_t rest,
                               int aligned, void *data, float *scales)
{
    enum { LANES = FORMAT == MO_STATE_4BIT ? MO_BLOCK4_SIZE / 8 : MO_BLOCK_SIZE / 8 };
    float y[8];
    uint32_t codes[8];
    largest = mo_group_largest<LANES>(largest);
    if (rest == 0)
        return;
    mo_block_scale scale;
    MO_UNROLL
    for (int k = 0; k < 8; k++)
        y[k] = mo_format_measure(FORMAT, is_signed, values[k]);
    if (MO_RARE(!mo_scale_is_plain(largest))) { /* the same for all of a group */
        scale = mo_format_scale(FORMAT, is_signed, largest);
        mo_normalise_odd(values, &scale, y);
    } else {
        scale = mo_plain_scale<FORMAT>(is_signed, largest);
        MO_UNROLL
        for (int k = 0; k < 8; k++)
            y[k] *= scale.inverse;
    }
    mo_codec<FORMAT>::encode(tables, is_signed, values, y, codes);
    mo_write_codes<FORMAT>(data, at, rest, aligned, is_signed, codes);
    if (mo_thread_index() % LANES == 0)
        mo_store_as<float>(&scales[at / mo_format_block(FORMAT)], scale.absmax);
}

#endif
