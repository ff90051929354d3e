/*
 * The formats of states on a GPU: how 32 threads read and write 256 elements, eight each (16
 * threads the 128 of a 4-bit block). The codes are those of state_codes.h, found without branches.
 * Rare cases (values that are not finite, tiny blocks, elements past the end, second moments of 0)
 * are tested once for eight elements.
 */
#ifndef MO_KERNELS_OPTIM_STATE_CODES_GPU_H
#define MO_KERNELS_OPTIM_STATE_CODES_GPU_H

#include "kernels/core/gpu_magnitudes.h"
#include "kernels/core/gpu_vector_io.h"

#include "kernels/optim/optim_step.h"

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

/* --- codes in words: the first one lowest ---------------------------------------------------- */

/* The bytes above bit 24 of four words. */
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

/* The bytes below bit 8 of four words. */
MO_DEVICE uint32_t mo_lower_bytes(const uint32_t of[4])
{
#if defined(__CUDA_ARCH__)
    uint32_t low, high, all;
    asm("prmt.b32 %0, %1, %2, 0x0040;" : "=r"(low) : "r"(of[0]), "r"(of[1]));
    asm("prmt.b32 %0, %1, %2, 0x4000;" : "=r"(high) : "r"(of[2]), "r"(of[3]));
    asm("prmt.b32 %0, %1, %2, 0x7610;" : "=r"(all) : "r"(low), "r"(high));
    return all;
#else
    return (of[0] & 0xffu) | (of[1] & 0xffu) << 8 | (of[2] & 0xffu) << 16 | of[3] << 24;
#endif
}

/* The lower bytes of the halves of two words, whose upper ones are 0. */
MO_DEVICE uint32_t mo_even_bytes(uint32_t low, uint32_t high)
{
#if defined(__CUDA_ARCH__)
    uint32_t all;
    asm("prmt.b32 %0, %1, %2, 0x6420;" : "=r"(all) : "r"(low), "r"(high));
    return all;
#else
    low |= low >> 8;
    high |= high >> 8;
    return (low & 0xffffu) | high << 16;
#endif
}

/* value, or least if that is larger or value is NaN. */
MO_DEVICE float mo_at_least(float value, float least)
{
#if MO_NVCC_DEVICE
    return fmaxf(value, least);
#else
    return value > least ? value : least;
#endif
}

/* The codes of values that are not positive become 0. */
MO_DEVICE void mo_zero_codes(const float values[8], uint32_t words[2])
{
    MO_UNROLL
    for (int k = 0; k < 8; k++)
        words[k / 4] &= values[k] > 0.0f ? ~0u : ~(0xffu << k % 4 * 8);
}

/* The word of a table at a place in bytes. */
MO_DEVICE uint32_t mo_table_word(const uint32_t *table, uint32_t place)
{
    return *(const uint32_t *)(const void *)((const unsigned char *)table + place);
}

/* Numbers that a table in shared memory has for bytes, times a scale. */
MO_DEVICE void mo_decode_bytes(const uint32_t *map, const uint32_t words[2], float scale,
                               float values[8])
{
    MO_UNROLL
    for (int k = 0; k < 8; k++)
        values[k] = mo_f32_from_bits(mo_table_word(map, mo_byte_times(words[k / 4], k % 4, 4)));
    mo_mul8(values, scale, values);
}

/* --- the formats ----------------------------------------------------------------------------- */

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

/* Two neighbours, for their upper halves' places are found from one word. */
MO_DEVICE void mo_step_codes_unsigned(const mo_code_tables *t, const float y[2], uint32_t steps[2])
{
    const uint32_t from = 0u - MO_UNSIGNED_UMIN * 4;
    uint32_t bits[2] = {mo_f32_bits(y[0]), mo_f32_bits(y[1])};
    uint32_t pair = mo_upper_halves(bits[0], bits[1]);
    MO_UNROLL
    for (int k = 0; k < 2; k++)
        steps[k] =
            bits[k] * 256 + mo_table_word(t->steps_unsigned, mo_half_times(pair, k, 4, from));
}

/* Unsigned values are from the first cell's beginning on. */
MO_DEVICE void mo_codes_of(const mo_code_tables *t, int is_signed, const float y[8],
                           uint32_t words[2])
{
    uint32_t steps[8];
    MO_UNROLL
    for (int k = 0; k < 8; k += 2) {
        if (is_signed) {
            steps[k] = mo_step_code_signed(t, y[k]);
            steps[k + 1] = mo_step_code_signed(t, y[k + 1]);
        } else {
            mo_step_codes_unsigned(t, y + k, steps + k);
        }
    }
    words[0] = mo_upper_bytes(steps);
    words[1] = mo_upper_bytes(steps + 4);
}

#else

/* The code of a magnitude of at most 1 by cells, without a branch: its upper half picks the one
 * threshold that may lie near it. Values below the first cell count as its beginning: code 1 of the
 * unsigned map; in the signed one they are below the threshold. */
MO_DEVICE uint32_t mo_cell_code(const uint8_t *cells, const uint32_t *threshold, uint32_t umin,
                                uint32_t bits)
{
    uint32_t code = cells[(bits >> 16) - umin];
    /* Less by 1 where bits < threshold: both are below 2^31. */
    return code + (uint32_t)((int32_t)(bits - threshold[code]) >> 31);
}

/* mo_code_signed for finite y of at most 1: 127 plus or minus the magnitude's code, at least 0. */
MO_DEVICE uint32_t mo_cell_code_signed(const mo_code_tables *t, float y)
{
    int32_t sign = (int32_t)mo_f32_bits(y) >> 31;
    int32_t code = (int32_t)mo_cell_code(t->cell_signed, t->threshold_signed, MO_SIGNED_UMIN,
                                         mo_magnitude_from(y, MO_SIGNED_UMIN << 16));
    code = (code ^ sign) + (MO_SIGNED_ZERO - sign);
    return (uint32_t)(code < 0 ? 0 : code);
}

MO_DEVICE void mo_codes_of(const mo_code_tables *t, int is_signed, const float y[8],
                           uint32_t words[2])
{
    uint32_t codes[8];
    MO_UNROLL
    for (int k = 0; k < 8; k++)
        codes[k] = is_signed ? mo_cell_code_signed(t, y[k])
                             : mo_cell_code(t->cell_unsigned, t->threshold_unsigned,
                                            MO_UNSIGNED_UMIN, mo_f32_bits(y[k]));
    words[0] = mo_lower_bytes(codes);
    words[1] = mo_lower_bytes(codes + 4);
}

#endif

/* A format's tables lie in shared memory. Values to code are finite and their block has this scale,
 * so y is at most 1 except for rounding, and in unsigned states at least least(),
 * which stands for all below it. Codes of unsigned values that are not positive are the caller's.
 */
template <uint32_t FORMAT> struct mo_codec;

template <> struct mo_codec<MO_STATE_8BIT> {
    typedef mo_code_tables tables;

    MO_DEVICE void load(tables *t)
    {
        mo_maps_load(t);
        mo_cells_load(t);
    }

    MO_DEVICE void decode(const tables *t, int is_signed, const uint32_t words[2], float scale,
                          float values[8])
    {
        mo_decode_bytes(is_signed ? t->map_signed : t->map_unsigned, words, scale, values);
    }

    MO_DEVICE void encode(const tables *t, int is_signed, const float y[8], uint32_t words[2])
    {
        mo_codes_of(t, is_signed, y, words);
    }
};

/* The codes of two values of at most 1, above these. */
#if MO_NVCC_DEVICE
#define MO_CODE4_FROM 0x4b000001u
#else
#define MO_CODE4_FROM 0u
#endif
#define MO_CODE4_SIGNED_FROM 0x4b400000u

/* mo_code4_unsigned. */
MO_DEVICE void mo_codes4_unsigned(const float y[2], uint32_t codes[2])
{
#if MO_NVCC_DEVICE
    /* The least whole number that is not below t, by adding 2^23 rounded up: 1 for code 0. */
    mo_two t = mo_fma2(mo_two_of(y), mo_both(16.0f), mo_both(-0.5f));
    for (int k = 0; k < 2; k++)
        codes[k] = mo_f32_bits(__fadd_ru(fmaxf(t.of[k], 0.5f), 8388608.0f));
#else
    codes[0] = mo_code4_unsigned(y[0]);
    codes[1] = mo_code4_unsigned(y[1]);
#endif
}

/* mo_code4_companded of what is no NaN. */
MO_DEVICE void mo_codes4_signed(const float y[2], uint32_t codes[2])
{
    const mo_two size = {{mo_magnitude(y[0]), mo_magnitude(y[1])}};
    mo_two sum = mo_fma2(mo_both(MO_COMPAND4_3), size, mo_both(MO_COMPAND4_2));
    sum = mo_fma2(sum, size, mo_both(MO_COMPAND4_1));
    sum = mo_fma2(sum, size, mo_both(MO_COMPAND4_0));
    sum = mo_fma2(mo_two_of(y), sum, mo_both(MO_COMPAND4_ROUND));
    codes[0] = mo_f32_bits(sum.of[0]);
    codes[1] = mo_f32_bits(sum.of[1]);
}

/* Two codes a byte. */
template <> struct mo_codec<MO_STATE_COMPANDED4> {
    typedef struct alignas(16) {
        mo_words<2> pairs_signed[256], pairs_unsigned[256]; /* of both codes of a byte */
    } tables;

    MO_DEVICE void load(tables *t)
    {
        static_assert(MO_OPTIM_THREADS == 256, "a thread for each byte");
        uint32_t byte = mo_thread_index(), codes[2] = {byte >> 4, byte & 15u};
        MO_UNROLL
        for (int k = 0; k < 2; k++) {
            t->pairs_signed[byte].of[k] =
                mo_f32_bits(mo_format_value(MO_STATE_COMPANDED4, 1, codes[k], 1.0f));
            t->pairs_unsigned[byte].of[k] =
                mo_f32_bits(mo_format_value(MO_STATE_COMPANDED4, 0, codes[k], 1.0f));
        }
    }

    MO_DEVICE void decode(const tables *t, int is_signed, const uint32_t words[1], float scale,
                          float values[8])
    {
        const mo_words<2> *pairs = is_signed ? t->pairs_signed : t->pairs_unsigned;
        MO_UNROLL
        for (int k = 0; k < 8; k += 2) {
            uint32_t place = mo_byte_times(words[0], k / 2, 8);
            mo_words<2> pair =
                *(const mo_words<2> *)(const void *)((const unsigned char *)pairs + place);
            values[k] = mo_f32_from_bits(pair.of[0]);
            values[k + 1] = mo_f32_from_bits(pair.of[1]);
        }
        mo_mul8(values, scale, values);
    }

    MO_DEVICE void encode(const tables *t, int is_signed, const float y[8], uint32_t words[1])
    {
        (void)t;
        words[0] = 0u - (is_signed ? MO_CODE4_SIGNED_FROM : MO_CODE4_FROM) * 0x11111111u;
        MO_UNROLL
        for (uint32_t k = 0; k < 8; k += 2) {
            uint32_t codes[2];
            if (is_signed)
                mo_codes4_signed(y + k, codes);
            else
                mo_codes4_unsigned(y + k, codes);
            words[0] += (codes[0] << (k + 1) * 4) + (codes[1] << k * 4);
        }
    }
};

/* All that is below the first cell of the unsigned map becomes its beginning. */
MO_DEVICE void mo_from_least(float y[8])
{
    const float least = mo_f32_from_bits(MO_UNSIGNED_UMIN << 16);
    MO_UNROLL
    for (int k = 0; k < 8; k++)
        y[k] = y[k] > least ? y[k] : least;
}

/* Nearly every absmax is from 2^-100 to 2^100: the block is finite, and its prescale is 1. */
MO_DEVICE int mo_scale_is_plain(uint32_t largest)
{
    return largest - 0x0d800000u <= 0x71800000u - 0x0d800000u;
}

#include "kernels/optim/companded_gpu.h"

/* Words of the codes of eight elements. */
template <uint32_t FORMAT> struct mo_code_words {
    enum {
        N = FORMAT == MO_STATE_F32      ? 8
            : FORMAT == MO_STATE_BF16   ? 4
            : mo_format_is_4bit(FORMAT) ? 1
                                        : 2
    };
};

/* Reads codes of eight elements from `at` on, a multiple of eight, of which `rest` exist. */
template <uint32_t FORMAT, class INDEX>
MO_DEVICE void mo_read_codes(const void *data, INDEX at, uint32_t rest, int aligned,
                             uint32_t words[mo_code_words<FORMAT>::N])
{
    enum { N = mo_code_words<FORMAT>::N, PER_BYTE = 2 / N };
    const unsigned char *from = (const unsigned char *)data + at / PER_BYTE;
    if (aligned && rest == 8) {
        mo_words<N> raw = mo_load_words<N, 0>(from);
        MO_UNROLL
        for (int w = 0; w < N; w++)
            words[w] = raw.of[w];
        MO_APART;
        return;
    }
    MO_UNROLL
    for (int w = 0; w < N; w++)
        words[w] = 0;
    MO_ROLLED
    for (uint32_t k = 0; k < 4 * N; k++) {
        if (N == 2)
            words[0] = words[0] >> 8 | words[N - 1] << 24;
        words[N - 1] >>= 8;
        words[N - 1] |= k * PER_BYTE < rest ? (uint32_t)mo_load_as<uint8_t>(from + k) << 24 : 0;
    }
}

template <uint32_t FORMAT>
MO_DEVICE void mo_write_codes(void *data, uint32_t at, uint32_t rest, int aligned, int is_signed,
                              uint32_t words[mo_code_words<FORMAT>::N])
{
    enum { N = mo_code_words<FORMAT>::N, PER_BYTE = 2 / N };
    unsigned char *to = (unsigned char *)data + at / PER_BYTE;
    if (aligned && rest == 8) {
        mo_words<N> raw;
        MO_UNROLL
        for (int w = 0; w < N; w++)
            raw.of[w] = words[w];
        mo_store_words<N, 0>(to, raw);
        MO_APART;
        return;
    }
    if (mo_format_is_4bit(FORMAT) && rest % 2 != 0) { /* behind a last element of even index */
        uint32_t at_half = rest / 2 * 8;
        words[0] = (words[0] & ~(15u << at_half)) | mo_format_zero_code(FORMAT, is_signed)
                                                        << at_half;
    }
    MO_ROLLED
    for (uint32_t k = 0; k * PER_BYTE < rest; k++) {
        mo_store_as<uint8_t>(to + k, (uint8_t)words[0]);
        words[0] >>= 8;
        if (N == 2) {
            words[0] |= words[N - 1] << 24;
            words[N - 1] >>= 8;
        }
    }
}

/* Alignment at which the codes of eight elements travel at once. */
template <uint32_t FORMAT> MO_DEVICE int mo_codes_aligned(const void *data)
{
    return mo_aligned_to(data, mo_format_is_4bit(FORMAT) ? 4 : 8);
}

/* Values past the end are 0; they stay so in a step, which has gradients and parameters of 0 there
 * (or make NaN, where all of the block does). So a block's absmax is that of its existing
 * elements. */
template <uint32_t FORMAT, class INDEX>
MO_DEVICE void mo_decode_block(const typename mo_codec<FORMAT>::tables *tables, int is_signed,
                               const void *data, const float *scales, INDEX at, uint32_t rest,
                               int aligned, float values[8])
{
    uint32_t words[mo_code_words<FORMAT>::N];
    mo_read_codes<FORMAT>(data, at, rest, aligned, words);
    float scale = mo_load_as<float>(&scales[at / mo_format_block(FORMAT)]);
    mo_codec<FORMAT>::decode(tables, is_signed, words, scale, values);
    if (MO_RARE(rest < 8)) {
        MO_UNROLL
        for (uint32_t k = 0; k < 8; k++)
            values[k] = k < rest ? values[k] : 0.0f;
    }
}

/* Of the largest magnitudes of its packs, the block's. All threads of a warp must call this. */
template <uint32_t FORMAT> MO_DEVICE uint32_t mo_block_largest(uint32_t largest)
{
    return mo_group_largest<mo_format_block(FORMAT) / 8>(largest);
}

/* What encodes a moment of a block: its scale, what values are multiplied with, and mo_least. */
typedef struct mo_encoding {
    float stored, inverse;
    int32_t least;
} mo_encoding;

/* Of a block whose scale is plain. */
MO_DEVICE mo_encoding mo_plain_encoding(uint32_t largest, int32_t least)
{
    mo_encoding e;
    e.stored = mo_f32_from_bits(largest);
    e.inverse = mo_reciprocal(e.stored);
    e.least = least;
    return e;
}

/* Of any block: its values get their prescale. Those of a poisoned one, which stores codes of
 * zeros, become 0. */
MO_DEVICE void mo_rare_encoding(float values[8], uint32_t largest, mo_encoding *e)
{
    mo_block_scale scale = mo_block_scale_of(largest);
    int poisoned = mo_f32_is_nan(scale.inverse);
    MO_UNROLL
    for (int k = 0; k < 8; k++)
        values[k] = poisoned ? 0.0f : values[k] * scale.prescale;
    e->stored = scale.absmax;
    e->inverse = poisoned ? 0.0f : scale.inverse;
    e->least = 0;
}

/* The codes of eight values. */
template <uint32_t FORMAT>
MO_DEVICE void mo_encode_words(const typename mo_codec<FORMAT>::tables *tables, int is_signed,
                               const float values[8], const mo_encoding *e,
                               uint32_t words[mo_code_words<FORMAT>::N])
{
    const float cell = mo_f32_from_bits(MO_UNSIGNED_UMIN << 16);
    float y[8];
    mo_mul8(values, e->inverse, y);
    if (FORMAT == MO_STATE_8BIT && !is_signed &&
        MO_RARE(!(mo_f32_from_bits((uint32_t)e->least) * e->inverse >= cell)))
        mo_from_least(y);
    mo_codec<FORMAT>::encode(tables, is_signed, y, words);
    if (FORMAT == MO_STATE_8BIT && !is_signed && MO_RARE(e->least <= 0))
        mo_zero_codes(values, words);
}

/* Writes the codes of eight values, of which `rest` exist, more than none. A block's first thread
 * stores its scale. */
template <uint32_t FORMAT>
MO_DEVICE void mo_encode_block(const typename mo_codec<FORMAT>::tables *tables, int is_signed,
                               float values[8], uint32_t largest, int32_t least, uint32_t at,
                               uint32_t rest, int aligned, void *data, float *scales)
{
    uint32_t words[mo_code_words<FORMAT>::N];
    mo_encoding e = mo_plain_encoding(largest, least);
    if (MO_RARE(!mo_scale_is_plain(largest))) /* the same for all of a group */
        mo_rare_encoding(values, largest, &e);
    mo_encode_words<FORMAT>(tables, is_signed, values, &e, words);
    mo_write_codes<FORMAT>(data, at, rest, aligned, is_signed, words);
    if (mo_thread_index() % (mo_format_block(FORMAT) / 8) == 0)
        mo_store_as<float>(&scales[at / mo_format_block(FORMAT)], e.stored);
}

#endif
