/*
 * Blocks of 16-bit floats in 16-bit lanes, over the vectors of one instruction set: include a
 * vector_*.h first. Where a scale is a power of two, a bf16 magnitude moves by exponents, and its
 * code is a rounded shift: no value passes through f32.
 */
#ifndef MO_KERNELS_CAST_BLOCKS_HALVES_H
#define MO_KERNELS_CAST_BLOCKS_HALVES_H

#include "kernels/cast/blocks_cpu.h"
#include "kernels/core/prefetch.h"

enum { HALVES_N = 2 * MO_LANES_N }; /* halfwords of a vector */

/* --- the largest magnitudes of MO_LANES_N blocks ---------------------------------------------- */

/* Halfword k of each 16 bytes: the largest of those of `vectors` vectors from at + k * step on. */
MO_INLINE VI halves_tree(const unsigned char *at, uint64_t step, uint64_t vectors)
{
    const VI mask = v_seth(0x7fff);
    VI x[8];
    for (uint64_t k = 0; k < 8; k++) {
        x[k] = v_and(v_loadi(at + k * step), mask);
        for (uint64_t v = 1; v < vectors; v++)
            x[k] = v_max_halves(x[k], v_and(v_loadi(at + k * step + v * sizeof(VI)), mask));
    }
    for (int k = 0; k < 8; k += 2)
        x[k] = v_max_halves(v_zip16_low(x[k], x[k + 1]), v_zip16_high(x[k], x[k + 1]));
    for (int k = 0; k < 8; k += 4)
        x[k] = v_max_halves(v_zip32_low(x[k], x[k + 2]), v_zip32_high(x[k], x[k + 2]));
    return v_max_halves(v_zip64_low(x[0], x[4]), v_zip64_high(x[0], x[4]));
}

/* As the bits of 16-bit floats, a lane each. */
MO_INLINE VI halves_largest(const unsigned char *at, uint32_t shift)
{
    const uint64_t bytes = (uint64_t)2 << shift, vectors = bytes / sizeof(VI);
    VI tree[MO_LANES_N / 8];
    if (shift == 4) {
        tree[0] = halves_tree(at, sizeof(VI), 1);
        return v_largest_halves16(tree);
    }
    for (uint64_t t = 0; t < MO_LANES_N / 8; t++)
        tree[t] = halves_tree(at + 8 * t * bytes, bytes, vectors);
    return v_largest_halves(tree);
}

/* --- bf16 blocks with a scale of e8m0 --------------------------------------------------------- */

/* A kind's mantissa, bias, largest code. */
typedef struct halves_kind {
    int mantissa, bias, largest;
} halves_kind;

MO_INLINE halves_kind halves_of(uint32_t kind)
{
    return kind == MO_CODES_E4M3 ? (halves_kind){3, 7, 0x7e} : (halves_kind){2, 15, 0x7b};
}

/* The blocks of a strip. */
typedef struct halves_scales {
    uint32_t base[MO_STRIP_ELEMENTS / 32]; /* what is taken from a magnitude before it is rounded */
    float factors[MO_STRIP_ELEMENTS / 32];
} halves_scales;

/* mo_e8m0_scale of the largest magnitudes of MO_LANES_N blocks, into the lowest bytes of lanes.
 * Returns not 0 if one of them has no base: it is not finite, or its subnormal bf16 might have
 * another code than 0. */
MO_INLINE uint32_t halves_scale(halves_scales *s, uint64_t block, VI amax, uint32_t emax, int bound,
                                VI *codes)
{
    VI exponent = v_srl(amax, 23);
    VI found = v_maxi(v_subi(exponent, v_seti((int)emax)), v_seti(0));
    VI power = v_sll(v_subi(v_seti(254), found), 7);
    VM bad = v_gti(exponent, v_seti(254));
    VI base = v_subi(v_seti(bound), power);
    v_put(s->base + block, base, 0);
    v_store(s->factors + block, v_bits(v_selecti(bad, v_seti(0), v_sll(power, 16))));
    *codes = v_selecti(bad, v_seti(255), found);
    return (uint32_t)v_any(v_selecti(bad, v_seti(1), v_and(base, v_seti((int)0x80000000u))));
}

MO_INLINE VI halves_base(const halves_scales *s, uint64_t i)
{
    int16_t low;
    __builtin_memcpy(&low, &s->base[i >> 5], sizeof low);
    return v_seth(low);
}

/* The bytes of two vectors of halfwords. The lowest normal numbers count as mantissa + 1 binades,
 * so that 0 stays 0. *odd: not 0 if one of the codes is subnormal, so that it is wrong. */
MO_INLINE VI halves_codes8(const halves_scales *s, uint64_t i, const unsigned char *at,
                           halves_kind f, VI *odd)
{
    const int shift = 7 - f.mantissa, below = f.mantissa + 1;
    VI q[2], h[2] = {v_loadi(at), v_loadi(at + sizeof(VI))};
    for (int k = 0; k < 2; k++) {
        VI a = v_and(h[k], v_seth(0x7fff));
        VI even = v_and(v_srlh(h[k], shift), v_seth(1));
        VI t = v_less_halves(a, halves_base(s, i + (uint64_t)k * HALVES_N));
        q[k] = v_srlh(v_addh(t, even), shift);
    }
    VI bytes = v_pack_halves(q[0], q[1]);
    *odd = v_or(*odd, v_less_bytes(v_setb((char)(((below + 1) << f.mantissa) - 1)),
                                   v_sub_bytes(bytes, v_setb(1))));
    bytes = v_less_bytes(bytes, v_setb((char)(below << f.mantissa)));
    bytes = v_min_bytes(bytes, v_setb((char)f.largest));
    return v_pack_order(v_merge(bytes, v_pack_signed(h[0], h[1]), v_seti((int)0x80808080u)));
}

/* e2m1: the binades below 1 are stretched so that every border between two codes is an odd multiple
 * of 32, with the even one's side to it: a rounded shift by 6 numbers the cells. In packed order.
 */
MO_INLINE VI halves_codes4(const halves_scales *s, uint64_t i, const unsigned char *at)
{
    static const uint8_t code_of[16] = {0, 1, 1, 1, 2, 3, 4, 5, 6, 7, 7};
    VI q[2], h[2] = {v_loadi(at), v_loadi(at + sizeof(VI))};
    for (int k = 0; k < 2; k++) {
        VI a = v_and(h[k], v_seth(0x7fff));
        VI even = v_and(v_srlh(h[k], 6), v_seth(1));
        VI t = v_less_halves(a, halves_base(s, i + (uint64_t)k * HALVES_N));
        t = v_max_halves(v_subh(t, v_seth(32)), v_min_halves(t, v_seth(287)));
        q[k] = v_srlh(v_addh(t, even), 6);
    }
    VI sign = v_srl(v_pack_signed(h[0], h[1]), 4);
    return v_merge(v_lookup(code_of, v_pack_halves(q[0], q[1])), sign, v_seti(0x08080808));
}

/* The codes of MO_LANES_N blocks from element i on. Returns not 0 if some are wrong. */
MO_INLINE uint32_t halves_quantize(const mo_block_strip *strip, const halves_scales *s, uint64_t i,
                                   uint32_t kind, int streaming)
{
    const halves_kind f = halves_of(kind);
    VI odd = v_seti(0);
#pragma GCC unroll 4
    for (const uint64_t end = i + 32 * MO_LANES_N; i < end; i += 4 * HALVES_N) {
        const uint64_t k = i + 2 * HALVES_N;
        const unsigned char *low = strip->values + 2 * i, *high = strip->values + 2 * k;
        mo_prefetch(low + strip->ahead, 4 * sizeof(VI));
        if (kind == MO_CODES_E2M1) {
            VI nibbles = v_pack_low4(halves_codes4(s, i, low), halves_codes4(s, k, high));
            v_put(strip->codes + i / 2, nibbles, streaming);
            continue;
        }
        v_put(strip->codes + i, halves_codes8(s, i, low, f, &odd), streaming);
        v_put(strip->codes + k, halves_codes8(s, k, high, f, &odd), streaming);
    }
    return (uint32_t)v_any(odd);
}

MO_INLINE int halves_bound(uint32_t kind)
{
    const halves_kind f = halves_of(kind);
    return kind == MO_CODES_E2M1 ? (252 << 7) - 63
                                 : ((253 - f.bias - f.mantissa) << 7) - (1 << (6 - f.mantissa)) + 1;
}

/* The scales of MO_LANES_N blocks from element i on. Returns as halves_scale. */
MO_INLINE uint32_t halves_measure(const mo_block_strip *strip, halves_scales *s, uint64_t i,
                                  uint32_t kind, uint8_t *scales, VI *most)
{
    const uint32_t emax = kind == MO_CODES_E4M3 ? 8 : kind == MO_CODES_E5M2 ? 15 : 2;
    VI code, bits = v_sll(halves_largest(strip->values + 2 * i, 5), 16);
    uint32_t wrong = halves_scale(s, i / 32, bits, emax, halves_bound(kind), &code);
    v_put_bytes(scales + i / 32, code);
    *most = v_maxi(*most, bits);
    return wrong;
}

/* As many blocks of a strip as fill vectors, with their scales, each group's before the codes of
 * the one before it: they wait for nothing then. Groups with wrong codes are made again at the end,
 * by `others`, so that the loop calls nothing. Raises *amax. Returns the number of elements. */
MO_INLINE uint64_t halves_strip(const mo_block_strip *strip, uint8_t *scales, uint32_t *amax,
                                uint32_t kind, int streaming, mo_strip_function others)
{
    const uint64_t step = 32 * MO_LANES_N, count = strip->count / step * step;
    mo_block_strip part = *strip;
    uint32_t wrong = 0, group = 1;
    halves_scales s;
    VI most = v_seti(0);
    if (count == 0)
        return 0;
    wrong = halves_measure(&part, &s, 0, kind, scales, &most);
    for (uint64_t i = step; i < count; i += step, group *= 2) {
        wrong |= 2 * group * halves_measure(&part, &s, i, kind, scales, &most);
        wrong |= group * halves_quantize(&part, &s, i - step, kind, streaming);
    }
    wrong |= group * halves_quantize(&part, &s, count - step, kind, streaming);
    part.factors = s.factors;
    for (uint64_t g = 0; wrong >> g != 0; g++)
        if (wrong >> g & 1) {
            part.count = (g + 1) * step;
            others(&part, g * step);
        }
    uint32_t found = v_largest(most);
    *amax = found > *amax ? found : *amax;
    return count;
}

/* What is taken from the magnitudes of element i's block, so that their upper bits are codes;
 * negative if there is none: see halves_scale. */
MO_INLINE int halves_least(const mo_block_strip *s, uint64_t i, halves_kind f)
{
    const int power = (int)(mo_f32_bits(s->factors[i >> 5]) >> 23) - 127;
    return power == -127 ? -1 : (127 - f.bias - power) * 128;
}

/* Stochastic codes of four vectors of halfwords, by their random ones. Returns 0, and has written
 * nothing, if some are subnormal, or not finite. */
MO_INLINE int halves_stochastic8(const mo_block_strip *s, uint64_t i, uint32_t kind,
                                 const VI random[4])
{
    const halves_kind f = halves_of(kind);
    const int cut = 7 - f.mantissa;
    VI bytes[2], q[2], h[2], odd = v_seti(0);
    int bad = 0;
    for (uint64_t k = 0; k < 4; k++) {
        const int least = halves_least(s, i + k * HALVES_N, f);
        h[k & 1] = v_loadi(s->values + 2 * i + k * sizeof(VI));
        VI a = v_and(h[k & 1], v_seth(0x7fff)), t = v_less_halves(a, v_seth(least));
        q[k & 1] = v_srlh(v_addh(t, v_srlh(random[k], 16 - cut)), cut);
        odd = v_or(odd, v_less_halves(v_seth(least + 127), v_subh(a, v_seth(1))));
        bad |= least;
        if (k % 2 == 0)
            continue;
        VI code = v_min_bytes(v_pack_halves(q[0], q[1]), v_setb((char)f.largest));
        code = v_merge(code, v_pack_signed(h[0], h[1]), v_seti((int)0x80808080u));
        bytes[k >> 1] = v_pack_order(code);
    }
    if (bad < 0 || v_any(odd))
        return 0;
    v_put(s->codes + i, bytes[0], s->streaming);
    v_put(s->codes + i + sizeof(VI), bytes[1], s->streaming);
    return 1;
}

/* --- codes of 8 bits with a scale of e8m0 to bf16 --------------------------------------------- */

/* A magnitude moves by some bits; the tables, by the magnitude up to the smallest normal one, have
 * what is to be added, and the scale's exponent comes on top of all but 0. */
typedef struct halves_decoder {
    uint8_t low[16], high[16];
    int shift, normal, largest;
} halves_decoder;

MO_INLINE halves_decoder halves_decoder_of(uint32_t kind)
{
    static const halves_decoder e4m3 = {{0, 0xf0, 0x60, 0x90, 0xc0, 0xd0, 0xe0, 0xf0, 0},
                                        {0, 0x3a, 0x3b, 0x3b, 0x3b, 0x3b, 0x3b, 0x3b, 0x3c},
                                        4,
                                        8,
                                        0x7e};
    static const halves_decoder e5m2 = {
        {0, 0x60, 0xc0, 0xe0, 0}, {0, 0x37, 0x37, 0x37, 0x38}, 5, 4, 0x7b};
    return kind == MO_CODES_E4M3 ? e4m3 : e5m2;
}

/* What the scale of a vector's block adds to bf16. */
MO_INLINE VI halves_exponents(const mo_block_strip *s, uint64_t i)
{
    return v_seth((int)(mo_f32_bits(s->factors[i >> 5]) >> 16) - (127 << 7));
}

MO_INLINE VI halves_value(VI magnitude, VI added, VI exponent, int shift)
{
    VI moved = v_sll(magnitude, shift), none = v_seti(0);
    VI some = v_subh(none, v_count_halves(none, moved, none));
    return v_addh(v_addh(moved, added), v_and(some, exponent));
}

/* Codes of 8 bits with scales of e8m0 to bf16, two vectors of them at a time, from i on, up to some
 * with a NaN, an infinity or a scale that bf16 cannot take. Returns where they are. */
MO_INLINE uint64_t halves_decode8(const mo_block_strip *strip, uint64_t i, uint32_t kind)
{
    const mo_block_strip part = *strip, *s = &part;      /* stores do not change it */
    const uint32_t least = 17u << 23, most = 239u << 23; /* for either kind */
    const halves_decoder d = halves_decoder_of(kind);
    for (; i + 2 * HALVES_N <= s->count; i += 2 * HALVES_N) {
        VI code = v_zip_order(v_loadi(s->codes + i)), a = v_and(code, v_seti(0x7f7f7f7f));
        uint32_t first = mo_f32_bits(s->factors[i >> 5]);
        uint32_t second = mo_f32_bits(s->factors[(i + HALVES_N) >> 5]);
        if (first - least > most - least || second - least > most - least ||
            v_any(v_less_bytes(a, v_setb((char)d.largest))))
            break;
        VI cell = v_min_bytes(a, v_setb((char)d.normal));
        VI low = v_lookup(d.low, cell), high = v_or(v_lookup(d.high, cell), v_xor(code, a));
        unsigned char *at = s->values + 2 * i;
        if (s->ahead)
            mo_prefetch(s->codes + i + s->ahead, 64);
        v_put(at,
              halves_value(v_zip8_low(a, v_seti(0)), v_zip8_low(low, high), halves_exponents(s, i),
                           d.shift),
              s->streaming);
        v_put(at + sizeof(VI),
              halves_value(v_zip8_high(a, v_seti(0)), v_zip8_high(low, high),
                           halves_exponents(s, i + HALVES_N), d.shift),
              s->streaming);
    }
    return i;
}

/* 32 at a time: of two blocks of NVFP4, or of one of MXFP4. */
MO_INLINE uint64_t halves_decode4(const mo_block_strip *s, const uint8_t *scales, uint32_t shift,
                                  int streaming)
{
    const mo_e2m1_values *of = s->e2m1;
    const uint8_t *codes = s->codes;
    unsigned char *values = s->values;
    const uint64_t count = s->count / 64 * 64, ahead = s->ahead;
    for (uint64_t i = 0; i < count; i += 64) {
        mo_prefetch(codes + i / 2 + ahead, 32);
        for (uint64_t k = i; k < i + 64; k += 32)
            v_put_pairs(values + 2 * k, codes + k / 2, of[scales[k >> shift]].low,
                        of[scales[(k + 16) >> shift]].low, streaming);
    }
    return count;
}

/* --- bf16 blocks of NVFP4 --------------------------------------------------------------------- */

MO_INLINE void halves_measure16(const unsigned char *values, uint64_t count, uint32_t *largest,
                                uint32_t *amax)
{
    VI most = v_seti(0);
    for (uint64_t i = 0; i < count; i += 16 * MO_LANES_N) {
        VI bits = v_sll(halves_largest(values + 2 * i, 4), 16);
        v_put(largest + i / 16, bits, 0);
        most = v_maxi(most, bits);
    }
    uint32_t found = v_largest(most);
    *amax = found > *amax ? found : *amax;
}

/* How many borders are below each magnitude of a vector, as v_found has it. */
MO_INLINE VI halves_count4(const mo_nvfp4_tables *tables, const uint8_t *scales, VI h)
{
    return v_search7(tables->border[scales[0]], tables->border[scales[V_BLOCKS16 - 1]],
                     v_and(h, v_seth(0x7fff)));
}

MO_INLINE void halves_nvfp4(const mo_block_strip *s, const uint8_t *scales, uint64_t count)
{
    mo_nvfp4_tables *tables = s->nvfp4;
    uint8_t first = 255, last = 0;
    for (uint64_t b = 0; b < count / 16; b++) {
        first = scales[b] < first ? scales[b] : first;
        last = scales[b] > last ? scales[b] : last;
    }
    if (count != 0)
        mo_nvfp4_know(tables, first, last);
    for (uint64_t i = 0; i < count; i += 4 * HALVES_N) {
        const unsigned char *at = s->values + 2 * i;
        VI bytes[2];
        mo_prefetch(at + s->ahead, 4 * sizeof(VI));
        for (uint64_t k = 0; k < 2; k++, at += 2 * sizeof(VI)) {
            const uint8_t *of = scales + i / 16 + 2 * k * V_BLOCKS16;
            VI h[2] = {v_loadi(at), v_loadi(at + sizeof(VI))};
            VI low = halves_count4(tables, of, h[0]);
            VI high = halves_count4(tables, of + V_BLOCKS16, h[1]);
            VI sign = v_srl(v_pack_signed(h[0], h[1]), 4);
            bytes[k] = v_found(v_pack_halves(low, high), sign);
        }
        v_put(s->codes + i / 2, v_pack_low4(bytes[0], bytes[1]), s->streaming);
    }
}

#endif
