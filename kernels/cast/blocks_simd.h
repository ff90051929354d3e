/*
 * The block kernels over the vectors of one instruction set: include a vector_*.h first. What is
 * left over of blocks or groups at the end of a strip goes to the scalar form.
 */
#include "kernels/cast/blocks_e4m3.h"
#include "kernels/cast/blocks_fold.h"
#include "kernels/cast/blocks_halves.h"
#include "kernels/cast/cast_lanes.h"
#include "kernels/core/prefetch.h"

#include <stddef.h>

MO_INLINE cast_f8 blocks_f8(uint32_t kind)
{
    return kind == MO_CODES_E2M1
               ? (cast_f8){1, 1, 0x40c00000u, 0x41000000u}
               : cast_f8_of(kind == MO_CODES_E4M3 ? MO_DTYPE_F8_E4M3 : MO_DTYPE_F8_E5M2);
}

/* --- magnitudes and scales ------------------------------------------------------------------- */

/* The largest magnitude of a block in memory, as bits of its type. Magnitudes of 16-bit floats are
 * compared as integers, two in a lane; a NaN is larger than all. */
MO_INLINE uint32_t blocks_largest(const unsigned char *at, uint64_t width, uint32_t dtype)
{
    const uint64_t size = mo_element_size(dtype), step = sizeof(VI);
    VI mask = v_seti(size == 4 ? 0x7fffffff : 0x7fff7fff), most = v_seti(0);
    if (width * size == 32) /* a vector may be larger */
        return v_largest16(at);
    for (uint64_t k = 0; k < width * size; k += step) {
        VI bits = v_and(v_loadi(at + k), mask);
        most = size == 4 ? v_maxi(most, bits) : v_max_halves(most, bits);
    }
    return size == 4 ? v_largest(most) : v_largest_half(most);
}

/* MO_LANES_N blocks of f32 at a time. Returns where it stopped. */
MO_INLINE uint64_t blocks_amax_words(const mo_block_strip *s, uint64_t i, uint32_t *amax,
                                     uint32_t shift)
{
    const uint64_t bytes = (uint64_t)4 << shift, step = (uint64_t)MO_LANES_N << shift;
    const VI mask = v_seti(0x7fffffff);
    for (; i + step <= s->count; i += step) {
        const unsigned char *at = s->values + 4 * i;
        VI tree[MO_LANES_N / 4], x[4];
        for (uint64_t t = 0; t < MO_LANES_N / 4; t++) {
            for (uint64_t k = 0; k < 4; k++, at += bytes) {
                x[k] = v_and(v_loadi(at), mask);
                for (uint64_t v = sizeof(VI); v < bytes; v += sizeof(VI))
                    x[k] = v_maxi(x[k], v_and(v_loadi(at + v), mask));
            }
            for (int k = 0; k < 4; k += 2)
                x[k] = v_maxi(v_zip32_low(x[k], x[k + 1]), v_zip32_high(x[k], x[k + 1]));
            tree[t] = v_maxi(v_zip64_low(x[0], x[2]), v_zip64_high(x[0], x[2]));
        }
        uint32_t *of = &amax[i >> shift];
        v_put(of, v_maxi(v_largest_words(tree), v_loadi(of)), 0);
    }
    return i;
}

/* MO_LANES_N blocks at a time. Returns where it stopped. */
MO_INLINE uint64_t blocks_amax_halves(const mo_block_strip *s, uint64_t i, uint32_t *amax,
                                      uint32_t dtype, uint32_t shift)
{
    const uint64_t step = (uint64_t)MO_LANES_N << shift;
    for (; i + step <= s->count; i += step) {
        uint32_t *of = &amax[i >> shift];
        VI bits = halves_largest(s->values + 2 * i, shift);
        bits = dtype == MO_DTYPE_BF16 ? v_sll(bits, 16) : v_f16_bits(bits);
        v_put(of, v_maxi(bits, v_loadi(of)), 0);
    }
    return i;
}

/* One block at a time. */
MO_INLINE void blocks_amax_singly(const mo_block_strip *s, uint64_t i, uint32_t *amax,
                                  uint32_t dtype, uint32_t shift)
{
    const uint64_t width = 1u << shift, size = mo_element_size(dtype);
    for (; i + width <= s->count; i += width) {
        const unsigned char *at = s->values + i * size;
        uint32_t bits = blocks_largest(at, width, dtype), *of = &amax[i >> shift];
        if (size == 2)
            bits = dtype == MO_DTYPE_BF16 ? bits << 16 : mo_f32_bits(mo_f16_to_f32((uint16_t)bits));
        *of = bits > *of ? bits : *of;
    }
    if (i < s->count)
        mo_blocks_scalar_form.amax[dtype](s, i, amax);
}

MO_INLINE void blocks_amax(const mo_block_strip *s, uint64_t i, uint32_t *amax, uint32_t dtype,
                           uint32_t shift)
{
    if (mo_element_size(dtype) == 2)
        i = blocks_amax_halves(s, i, amax, dtype, shift);
    else
        i = blocks_amax_words(s, i, amax, shift);
    blocks_amax_singly(s, i, amax, dtype, shift);
}

/* mo_e8m0_scale of four vectors of blocks. */
MO_INLINE void blocks_e8m0(const uint32_t *amax, uint32_t emax, uint8_t *codes, float *factors)
{
    VI code[4];
    for (int k = 0; k < 4; k++) {
        VI exponent = v_srl(v_loadi(amax + k * MO_LANES_N), 23);
        VM bad = v_gti(exponent, v_seti(254));
        VI found = v_maxi(v_subi(exponent, v_seti((int)emax)), v_seti(0));
        VI factor = v_sll(v_subi(v_seti(254), found), 23);
        code[k] = v_selecti(bad, v_seti(255), found);
        v_store(factors + k * MO_LANES_N, v_bits(v_selecti(bad, v_seti(0), factor)));
    }
    v_put(codes, v_bytes(code), 0);
}

static void e8m0_scales(const uint32_t *amax, uint64_t count, uint32_t emax, uint8_t *codes,
                        float *factors)
{
    uint64_t b = 0;
    for (; b + CAST_GROUP <= count; b += CAST_GROUP)
        blocks_e8m0(amax + b, emax, codes + b, factors + b);
    mo_blocks_scalar_form.e8m0(amax + b, count - b, emax, codes + b, factors + b);
}

/* a / b from 1 / b as f32: one step from a product gives the rounded quotient (P. Markstein, IBM
 * J. Res. Dev. 34, 1990), far from the ends of the range. */
MO_INLINE VF blocks_quotient(VF a, VF b, VF inverse)
{
    VF q = v_mul(a, inverse);
    return v_fma(v_fma(q, v_sub(v_set(0.0f), b), a), inverse, q);
}

/* amax / 6 / scale. `plain`: the scale is within 2^-60 and 2^60. */
MO_INLINE VF blocks_wanted(VI amax, VF scale, VF inverse, int plain)
{
    const VI least = v_seti(67 << 23), most = v_seti(187 << 23);
    VI out = v_or(v_subi(most, amax), v_subi(amax, least)); /* negative lanes */
    out = v_selecti(v_eqi(amax, v_seti(0)), v_seti(0), out);
    if (!plain || v_any(v_and(out, v_seti((int)0x80000000u))))
        return v_div(v_div(v_bits(amax), v_set(6.0f)), scale);
    VF sixth = blocks_quotient(v_bits(amax), v_set(6.0f), v_set(1.0f / 6.0f));
    return blocks_quotient(sixth, scale, inverse);
}

/* mo_nvfp4_scale of four vectors of blocks. factors: or NULL. */
MO_INLINE void blocks_nvfp4(const uint32_t *amax, float tensor_scale, uint8_t *codes,
                            float *factors)
{
    const VF scale = v_set(tensor_scale), inverse = v_set(1.0f / tensor_scale);
    const int plain = tensor_scale > 0x1p-60f && tensor_scale < 0x1p60f;
    VI code[4];
    for (int k = 0; k < 4; k++) {
        VI bits = v_loadi(amax + k * MO_LANES_N);
        VF wanted = blocks_wanted(bits, scale, inverse, plain);
        VI found = cast_f8_nearest(v_ints(wanted), cast_f8_of(MO_DTYPE_F8_E4M3), 1);
        code[k] = v_selecti(v_gti(bits, v_seti((int)MO_F32_INF_BITS - 1)), v_seti(0x7f), found);
        if (factors == NULL)
            continue;
        VI factor = v_ints(v_div(inverse, v_bits(cast_from_e4m3(code[k]))));
        factor = v_selecti(v_gti(code[k], v_seti(0)), factor, v_seti(0));
        factor = v_selecti(v_gti(v_seti(0x7f), code[k]), factor, v_seti(0));
        v_store(factors + k * MO_LANES_N, v_bits(factor));
    }
    v_put(codes, v_pack_bytes(code), 0);
}

static void nvfp4_scales(const uint32_t *amax, uint64_t count, float tensor_scale, uint8_t *codes,
                         float *factors)
{
    uint64_t b = 0;
    if (!mo_f32_is_nan(tensor_scale))
        for (; b + CAST_GROUP <= count; b += CAST_GROUP)
            blocks_nvfp4(amax + b, tensor_scale, codes + b, factors + b);
    if (b < count)
        mo_blocks_scalar_form.nvfp4(amax + b, count - b, tensor_scale, codes + b, factors + b);
}

/* --- codes ----------------------------------------------------------------------------------- */

MO_INLINE VF blocks_factor(const mo_block_strip *s, uint64_t i)
{
    return v_set(s->factors[i >> s->shift]);
}

/* mo_map_code of NF4: the tables have its 15 middles. */
MO_INLINE VI blocks_nf4(const VT *middles, VF x)
{
    VI code = v_selecti(v_lt(v_look16(middles, v_seti(7)), x), v_seti(8), v_seti(0));
    for (int step = 4; step != 0; step >>= 1) {
        VM below = v_lt(v_look16(middles, v_addi(code, v_seti(step - 1))), x);
        code = v_selecti(below, v_addi(code, v_seti(step)), code);
    }
    return code;
}

static void blocks_nf4_middles(float middles[16])
{
    middles[15] = 0.0f;
    for (int k = 0; k < 15; k++)
        middles[k] = (mo_f32_from_bits(mo_map_nf4[k]) + mo_f32_from_bits(mo_map_nf4[k + 1])) * 0.5f;
}

MO_INLINE void blocks_nearest_nf4(const mo_block_strip *s, uint64_t i, uint32_t dtype)
{
    const uint64_t size = mo_element_size(dtype);
    uint32_t of[16];
    blocks_nf4_middles((float *)(void *)of);
    const VT middles = v_table16(of, v_set(1.0f));
    for (; i + CAST_GROUP <= s->count; i += CAST_GROUP) {
        VI u[4], code[4];
        if (s->ahead)
            mo_prefetch(s->values + i * size + s->ahead, CAST_GROUP * size);
        cast_load(s->values, i, dtype, u);
        for (int k = 0; k < 4; k++) {
            VF factor = blocks_factor(s, i + (uint64_t)k * MO_LANES_N);
            code[k] = blocks_nf4(&middles, v_mul(v_bits(u[k]), factor));
        }
        v_store_bytes4(s->codes + i / 2, v_bytes(code));
    }
    if (i < s->count)
        mo_blocks_scalar_form.quantize[0][MO_CODES_NF4][dtype](s, i);
}

/* One group. random: its halfwords, or NULL: to nearest. */
MO_INLINE void blocks_quantize(const mo_block_strip *s, uint64_t i, uint32_t kind, uint32_t dtype,
                               const VI *random)
{
    VI u[4], code[4];
    cast_load(s->values, i, dtype, u);
    for (int k = 0; k < 4; k++) {
        VF factor = blocks_factor(s, i + (uint64_t)k * MO_LANES_N);
        VI scaled = v_ints(v_mul(v_bits(u[k]), factor)); /* its sign is masked out */
        code[k] = random ? cast_f8_stochastic(scaled, blocks_f8(kind), 1, mo_random_lane(random, k))
                         : cast_f8_nearest(scaled, blocks_f8(kind), 1);
    }
    if (kind != MO_CODES_E2M1) {
        v_put(s->codes + i, cast_f8_bytes(code, u), s->streaming);
        return;
    }
    VI sign = v_and(v_srl(v_pack_bytes(u), 4), v_seti(0x08080808));
    v_store_low4(s->codes + i / 2, v_or(v_min_bytes(v_pack_bytes(code), v_seti(0x07070707)), sign));
}

MO_INLINE void blocks_nearest(const mo_block_strip *s, uint64_t i, uint32_t kind, uint32_t dtype)
{
    const uint64_t size = mo_element_size(dtype);
    if (kind == MO_CODES_NF4) {
        blocks_nearest_nf4(s, i, dtype);
        return;
    }
    for (; kind != MO_CODES_DYNAMIC8 && i + CAST_GROUP <= s->count; i += CAST_GROUP) {
        if (s->ahead)
            mo_prefetch(s->values + i * size + s->ahead, CAST_GROUP * size);
        blocks_quantize(s, i, kind, dtype, NULL);
    }
    if (i < s->count)
        mo_blocks_scalar_form.quantize[0][kind][dtype](s, i);
}

MO_INLINE void blocks_stochastic(const mo_block_strip *strip, uint64_t i, uint32_t kind,
                                 uint32_t dtype)
{
    const mo_block_strip part = *strip, *s = &part; /* stores do not change it */
    const int halves = kind != MO_CODES_E2M1 && dtype == MO_DTYPE_BF16 && s->shift == 5;
    while (!mo_codes_are_mapped(kind) && i + 2 * CAST_GROUP <= s->count) {
        VI random[4];
        mo_random_lanes(&s->stream, s->number + i, random);
        if (halves && halves_stochastic8(s, i, kind, random)) {
            i += 2 * CAST_GROUP;
            continue;
        }
        for (int half = 0; half < 4; half += 2, i += CAST_GROUP)
            blocks_quantize(s, i, kind, dtype, random + half);
    }
    if (i < s->count)
        mo_blocks_scalar_form.quantize[1][kind][dtype](strip, i);
}

/* --- values ---------------------------------------------------------------------------------- */

static const uint32_t blocks_e2m1[16] = {
    0x00000000, 0x3f000000, 0x3f800000, 0x3fc00000, 0x40000000, 0x40400000, 0x40800000, 0x40c00000,
    0x80000000, 0xbf000000, 0xbf800000, 0xbfc00000, 0xc0000000, 0xc0400000, 0xc0800000, 0xc0c00000};

/* The only NaN of v is MO_F32_NAN_BITS: it needs no care. */
MO_INLINE void blocks_store(const mo_cast_piece *piece, uint64_t i, uint32_t dtype, VI v[4])
{
    if (dtype != MO_DTYPE_BF16) {
        cast_store(piece, i, dtype, v, NULL);
        return;
    }
    for (int k = 0; k < 4; k++)
        v[k] = v_addi(v_addi(v[k], v_seti(0x7fff)), v_and(v_srl(v[k], 16), v_seti(1)));
    for (uint64_t k = 0; k < 2; k++)
        v_put(piece->destination + 2 * i + k * sizeof(VI), v_high_halves(v[2 * k], v[2 * k + 1]),
              piece->streaming);
}

enum { BLOCKS_NF4 = MO_STRIP_ELEMENTS / 32 }; /* blocks of a strip, at most */

/* What the codes of each of a strip's blocks are in a type of two bytes. */
MO_INLINE void blocks_nf4_tables(const mo_block_strip *s, uint32_t dtype, uint8_t tables[][32])
{
    const uint64_t last = (s->count - 1) >> s->shift, each = CAST_GROUP / 16;
    uint16_t halves[CAST_GROUP];
    const mo_cast_piece piece = {.destination = (unsigned char *)halves};
    for (uint64_t b = 0; b <= last; b += each) {
        VI v[4];
        for (uint64_t k = 0, lane = 0; k < 4; k++, lane += MO_LANES_N) {
            const float factor = s->factors[b + lane / 16 < last ? b + lane / 16 : last];
            VF map = v_load((const float *)(const void *)(mo_map_nf4 + lane % 16));
            v[k] = v_ints(v_one_nan(v_mul(map, v_set(factor))));
        }
        blocks_store(&piece, 0, dtype, v);
        for (uint64_t t = 0; t < each && b + t <= last; t++)
            v_make_codes4(tables[b + t], halves + 16 * t);
    }
}

MO_INLINE void blocks_put_nf4(const mo_block_strip *s, uint8_t tables[][32], int streaming)
{
    const uint64_t count = s->count / 32 * 32, ahead = s->ahead;
    const uint32_t shift = s->shift;
    const uint8_t *codes = s->codes;
    unsigned char *values = s->values;
    for (uint64_t i = 0; i < count; i += 32) {
        if (i % 128 == 0)
            mo_prefetch(codes + i / 2 + ahead, 64);
        v_put_codes4(values + 2 * i, codes + i / 2, tables[i >> shift], streaming);
    }
}

/* Codes of NF4 to a type of two bytes. Returns how many. */
MO_INLINE uint64_t blocks_decode_nf4(const mo_block_strip *s, uint32_t dtype)
{
    uint8_t tables[BLOCKS_NF4][32];
    blocks_nf4_tables(s, dtype, tables);
    if (s->streaming)
        blocks_put_nf4(s, tables, 1);
    else
        blocks_put_nf4(s, tables, 0);
    return s->count / 32 * 32;
}

MO_INLINE void blocks_decode(const mo_block_strip *strip, uint64_t i, uint32_t kind, uint32_t dtype)
{
    if (kind == MO_CODES_NF4 && mo_element_size(dtype) == 2)
        i = blocks_decode_nf4(strip, dtype);
    const mo_block_strip part = *strip, *s = &part;
    const int pairs = mo_codes_are_pairs(kind);
    const int halves = !pairs && dtype == MO_DTYPE_BF16 && s->shift == 5;
    const mo_cast_piece piece = {.destination = s->values, .streaming = s->streaming};
    const VT table = v_table16(kind == MO_CODES_NF4 ? mo_map_nf4 : blocks_e2m1, v_set(1.0f));
    for (; kind != MO_CODES_DYNAMIC8 && i + CAST_GROUP <= s->count; i += CAST_GROUP) {
        VI v[4];
        if (halves && (i = halves_decode8(s, i, kind)) + CAST_GROUP > s->count)
            break;
        if (!pairs)
            cast_load(s->codes, i, kind == MO_CODES_E4M3 ? MO_DTYPE_F8_E4M3 : MO_DTYPE_F8_E5M2, v);
        for (uint64_t k = 0, at = i; k < 4; k++, at += MO_LANES_N) {
            VF value = kind == MO_CODES_NF4    ? v_look16(&table, v_load_codes4(s->codes + at / 2))
                       : kind == MO_CODES_E2M1 ? v_look16(&table, v_load_low4(s->codes + at / 2))
                                               : v_bits(v[k]);
            v[k] = v_ints(v_one_nan(v_mul(value, blocks_factor(s, at))));
        }
        if (s->ahead)
            mo_prefetch(s->codes + (pairs ? i / 2 : i) + s->ahead, 64);
        blocks_store(&piece, i, dtype, v);
    }
    if (i < s->count)
        mo_blocks_scalar_form.dequantize[kind][dtype](strip, i);
}

/* --- the table ------------------------------------------------------------------------------- */

#define BLOCKS_AMAX(unused, name, dtype)                                                           \
    static void amax_##name(const mo_block_strip *strip, uint64_t start, uint32_t *amax)           \
    {                                                                                              \
        if (strip->shift == 4)                                                                     \
            blocks_amax(strip, start, amax, dtype, 4);                                             \
        else if (strip->shift == 5)                                                                \
            blocks_amax(strip, start, amax, dtype, 5);                                             \
        else if (strip->shift == 6)                                                                \
            blocks_amax(strip, start, amax, dtype, 6);                                             \
        else if (strip->shift == 7)                                                                \
            blocks_amax(strip, start, amax, dtype, 7);                                             \
        else                                                                                       \
            blocks_amax_singly(strip, start, amax, dtype, strip->shift);                           \
    }
#define BLOCKS_STRIPS(kind_name, kind, name, dtype)                                                \
    static void nearest_##kind_name##_##name(const mo_block_strip *strip, uint64_t start)          \
    {                                                                                              \
        blocks_nearest(strip, start, kind, dtype);                                                 \
    }                                                                                              \
    static void stochastic_##kind_name##_##name(const mo_block_strip *strip, uint64_t start)       \
    {                                                                                              \
        blocks_stochastic(strip, start, kind, dtype);                                              \
    }                                                                                              \
    static void decode_##kind_name##_##name(const mo_block_strip *strip, uint64_t start)           \
    {                                                                                              \
        blocks_decode(strip, start, kind, dtype);                                                  \
    }

MO_BLOCKS_TYPES(BLOCKS_AMAX, )
MO_BLOCKS_PAIRS(BLOCKS_STRIPS)

#define BLOCKS_MX(kind_name, kind)                                                                 \
    static uint64_t bf16_##kind_name(const mo_block_strip *strip, uint8_t *scales, uint32_t *amax) \
    {                                                                                              \
        return strip->streaming                                                                    \
                   ? halves_strip(strip, scales, amax, kind, 1, nearest_##kind_name##_bf16)        \
                   : halves_strip(strip, scales, amax, kind, 0, nearest_##kind_name##_bf16);       \
    }
BLOCKS_MX(e4m3, MO_CODES_E4M3)
BLOCKS_MX(e5m2, MO_CODES_E5M2)
BLOCKS_MX(e2m1, MO_CODES_E2M1)

/* All scales of a strip, then all codes. */
static uint64_t bf16_nvfp4(const mo_block_strip *strip, uint8_t *scales, uint32_t *amax)
{
    const uint64_t step = 16 * CAST_GROUP, count = strip->count / step * step;
    const float tensor_scale = strip->nvfp4->tensor_scale;
    uint32_t largest[MO_STRIP_BLOCKS];
    if (mo_f32_is_nan(tensor_scale))
        return 0;
    halves_measure16(strip->values, count, largest, amax);
    for (uint64_t b = 0; b < count / 16; b += CAST_GROUP)
        blocks_nvfp4(largest + b, tensor_scale, scales + b, NULL);
    halves_nvfp4(strip, scales, count);
    return count;
}

static uint64_t halves_e2m1(const mo_block_strip *strip, const uint8_t *scales)
{
    if (strip->shift == 4)
        return strip->streaming ? halves_decode4(strip, scales, 4, 1)
                                : halves_decode4(strip, scales, 4, 0);
    return strip->streaming ? halves_decode4(strip, scales, 5, 1)
                            : halves_decode4(strip, scales, 5, 0);
}

static uint64_t bf16_scaled(const mo_strip_rows *rows, int nans)
{
    if (nans)
        return rows->strip.streaming ? halves_e4m3(rows, 1, 1, nearest_e4m3_bf16)
                                     : halves_e4m3(rows, 1, 0, nearest_e4m3_bf16);
    return rows->strip.streaming ? halves_e4m3(rows, 0, 1, nearest_e4m3_bf16)
                                 : halves_e4m3(rows, 0, 0, nearest_e4m3_bf16);
}

static const mo_blocks_form blocks_form =
    MO_BLOCKS_FORM(halves_e2m1, bf16_scaled, 0, bf16_e4m3, bf16_e5m2, bf16_e2m1, bf16_nvfp4);

/* The kernels of an instruction set; `fence` follows writes past the caches. */
void MO_FORM(mo_blocks_quantize)(const void *args, uint64_t begin, uint64_t end)
{
    if (mo_blocks_quantize_run(args, begin, end, &blocks_form))
        mo_store_fence();
}

void MO_FORM(mo_blocks_dequantize)(const void *args, uint64_t begin, uint64_t end)
{
    if (mo_blocks_dequantize_run(args, begin, end, &blocks_form))
        mo_store_fence();
}
