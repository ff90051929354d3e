/*
 * The numerics of the library, each formula once: element formats, rounding, and the random bits of
 * stochastic rounding. docs/guide/numerics.md is the specification; the SIMD forms equal these
 * functions bit for bit.
 *
 * Conversions are integer arithmetic on the bits, so they depend on no rounding mode and on no
 * flush-to-zero setting. Codes of the 16- and 8-bit formats are their bits in a uint16_t or
 * uint8_t.
 */
#ifndef MO_KERNELS_CORE_NUMERICS_H
#define MO_KERNELS_CORE_NUMERICS_H

#include "kernels/core/host_device.h"

/* --- element types --------------------------------------------------------------------------- */

/* Values are those of memopt_dtype. */
enum {
    MO_DTYPE_F32 = 1,
    MO_DTYPE_F16 = 2,
    MO_DTYPE_BF16 = 3,
    MO_DTYPE_F8_E4M3 = 4,
    MO_DTYPE_F8_E5M2 = 5,
    MO_DTYPE_F8_E4M3FNUZ = 10,
    MO_DTYPE_F8_E5M2FNUZ = 11
};

#define MO_F32_INF_BITS 0x7f800000u
#define MO_F32_QUIET_BIT 0x00400000u
#define MO_F32_NAN_BITS 0x7fc00000u /* the NaN that arithmetic of ours makes */

/* Bytes of an element. */
MO_HD static inline uint32_t mo_element_size(uint32_t dtype)
{
    return dtype == MO_DTYPE_F32 ? 4 : dtype <= MO_DTYPE_BF16 ? 2 : 1;
}

MO_HD static inline int mo_f32_is_finite(float value)
{
    return (mo_f32_bits(value) & MO_F32_INF_BITS) != MO_F32_INF_BITS;
}

MO_HD static inline float mo_magnitude(float x)
{
#if MO_NVCC_DEVICE
    return fabsf(x); /* free, as part of another instruction */
#endif
    return mo_f32_from_bits(mo_f32_bits(x) & 0x7fffffffu);
}

MO_HD static inline int mo_f32_is_nan(float value)
{
    return (mo_f32_bits(value) & 0x7fffffffu) > MO_F32_INF_BITS;
}

/* Which NaN an operation makes is the processor's choice; what is stored is always this one. */
MO_HD static inline float mo_f32_one_nan(float value)
{
    uint32_t bits = mo_f32_bits(value); /* integers: compilers take liberties with float NaNs */
    return mo_f32_from_bits((bits & 0x7fffffffu) > MO_F32_INF_BITS ? MO_F32_NAN_BITS : bits);
}

/* --- rounding the magnitude of a finite f32 to a format of `mantissa` bits and `bias` ----------
 *
 * Both return the code without sign; a result beyond the largest finite code is left to the caller
 * (the carry out of the mantissa steps into the exponent as it must). The f32's bits without sign
 * are `a`. The quantum of the target's subnormals is 2^(1 - bias - mantissa); below the target's
 * smallest normal the f32 is significand * 2^-shift quanta.
 */

MO_HD static inline uint32_t mo_significand(uint32_t a)
{
    return a >> 23 ? (a & 0x007fffffu) | 0x00800000u : a;
}

MO_HD static inline uint32_t mo_subnormal_shift(uint32_t a, uint32_t mantissa, uint32_t bias)
{
    uint32_t exponent = a >> 23 ? a >> 23 : 1;
    return 151 - bias - mantissa - exponent;
}

MO_HD static inline int mo_is_small_normal(uint32_t a, uint32_t bias)
{
    return a >> 23 > 127 - bias;
}

/* Round to nearest, ties to even. */
MO_HD static inline uint32_t mo_round_nearest(uint32_t a, uint32_t mantissa, uint32_t bias)
{
    uint32_t value = a, shift = 23 - mantissa, base = (127 - bias) << 23;
    if (!mo_is_small_normal(a, bias)) {
        value = mo_significand(a);
        shift = mo_subnormal_shift(a, mantissa, bias);
        base = 0;
        if (shift > 24) /* less than half a quantum */
            return 0;
    }
    value -= base;
    return (value + ((1u << (shift - 1)) - 1) + ((value >> shift) & 1)) >> shift;
}

/* Away from zero with the probability of the distance, rounded down to a multiple of 2^-16, from 16
 * random bits: the low part of the value, as a fraction of 2^16, plus `random` carries or not. */
MO_HD static inline uint32_t mo_round_stochastic(uint32_t a, uint32_t mantissa, uint32_t bias,
                                                 uint32_t random)
{
    uint32_t shift = 23 - mantissa;
    if (mo_is_small_normal(a, bias)) {
        uint32_t noise = shift < 16 ? random >> (16 - shift) : random << (shift - 16);
        return (a - ((127 - bias) << 23) + noise) >> shift;
    }
    shift = mo_subnormal_shift(a, mantissa, bias);
    if (shift > 40)
        return 0;
    return (uint32_t)((((uint64_t)mo_significand(a) << 16 >> shift) + random) >> 16);
}

/* --- bfloat16 ----------------------------------------------------------------------------------
 * A NaN keeps its sign and the upper 7 bits of its mantissa, and becomes quiet. */

MO_HD static inline float mo_bf16_to_f32(uint16_t code)
{
    return mo_f32_from_bits((uint32_t)code << 16);
}

MO_HD static inline uint16_t mo_f32_to_bf16(float value)
{
    uint32_t u = mo_f32_bits(value);
    if ((u & 0x7fffffffu) > MO_F32_INF_BITS)
        return (uint16_t)(u >> 16 | 0x0040u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

/* random: 16 bits. A finite value never becomes infinite: above the largest finite code there is
 * no number to round up to, so it rounds down. */
MO_HD static inline uint16_t mo_f32_to_bf16_stochastic(float value, uint32_t random)
{
    uint32_t u = mo_f32_bits(value);
    uint32_t a = u & 0x7fffffffu;
    if (a > MO_F32_INF_BITS)
        return (uint16_t)(u >> 16 | 0x0040u);
    if (a >= 0x7f7f0000u) /* the largest finite code and above: nothing is added */
        return (uint16_t)(u >> 16);
    return (uint16_t)((u + random) >> 16);
}

/* --- IEEE binary16 -----------------------------------------------------------------------------
 * A NaN keeps its sign and the upper 10 bits of its mantissa, and becomes quiet, both ways. */

MO_HD static inline float mo_f16_to_f32(uint16_t code)
{
    uint32_t sign = (uint32_t)(code & 0x8000u) << 16;
    uint32_t exponent = (code >> 10) & 0x1fu, mantissa = code & 0x3ffu;
    if (exponent == 0x1f)
        return mo_f32_from_bits(sign | MO_F32_INF_BITS | mantissa << 13 |
                                (mantissa ? MO_F32_QUIET_BIT : 0));
    if (exponent == 0) { /* mantissa * 2^-24, exact in f32 */
        float magnitude = (float)mantissa * (1.0f / 16777216.0f);
        return mo_f32_from_bits(sign | mo_f32_bits(magnitude));
    }
    return mo_f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

MO_HD static inline uint16_t mo_f32_to_f16(float value)
{
    uint32_t u = mo_f32_bits(value);
    uint32_t a = u & 0x7fffffffu, sign = u >> 16 & 0x8000u;
    if (a > MO_F32_INF_BITS)
        return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x3ffu));
    if (a >= 0x47800000u) /* 65536; from 65520 on the rounding below arrives at infinity itself */
        return (uint16_t)(sign | 0x7c00u);
    return (uint16_t)(sign | mo_round_nearest(a, 10, 15));
}

/* random: 16 bits. Infinite from 65536 on; between 65504 and 65536 it rounds down. */
MO_HD static inline uint16_t mo_f32_to_f16_stochastic(float value, uint32_t random)
{
    uint32_t u = mo_f32_bits(value);
    uint32_t a = u & 0x7fffffffu, sign = u >> 16 & 0x8000u;
    if (a > MO_F32_INF_BITS)
        return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x3ffu));
    if (a >= 0x47800000u)
        return (uint16_t)(sign | 0x7c00u);
    if (a >= 0x477fe000u) /* 65504 */
        return (uint16_t)(sign | 0x7bffu);
    return (uint16_t)(sign | mo_round_stochastic(a, 10, 15, random));
}

/* --- OCP 8-bit floats --------------------------------------------------------------------------
 * e4m3 has no infinity: its only NaN codes are 0x7f and 0xff, its largest number is 448.
 * e5m2 is the upper byte of binary16: infinity 0x7c, largest number 57344. A NaN becomes 0x7f with
 * its sign. `saturate`: overflow and infinity become the largest number; else e4m3 becomes NaN and
 * e5m2 infinity. Conversion to f32 is exact; NaN codes become quiet NaNs: e4m3's the NaN 0x7fc00000
 * with the sign, e5m2's keep their mantissa. */

MO_HD static inline float mo_e4m3_to_f32(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80u) << 24;
    uint32_t exponent = (code >> 3) & 0xfu, mantissa = code & 0x7u;
    if ((code & 0x7fu) == 0x7fu)
        return mo_f32_from_bits(sign | MO_F32_NAN_BITS);
    if (exponent == 0)
        return mo_f32_from_bits(sign | mo_f32_bits((float)mantissa * (1.0f / 512.0f)));
    return mo_f32_from_bits(sign | (exponent + 120) << 23 | mantissa << 20);
}

MO_HD static inline float mo_e5m2_to_f32(uint8_t code)
{
    return mo_f16_to_f32((uint16_t)((uint32_t)code << 8));
}

MO_HD static inline uint8_t mo_e4m3_finish(uint32_t u, uint32_t magnitude, int saturate)
{
    uint32_t sign = u >> 24 & 0x80u;
    if (magnitude > 0x7eu)
        magnitude = saturate ? 0x7eu : 0x7fu;
    return (uint8_t)(sign | magnitude);
}

MO_HD static inline uint8_t mo_f32_to_e4m3(float value, int saturate)
{
    uint32_t u = mo_f32_bits(value);
    uint32_t a = u & 0x7fffffffu;
    if (a > MO_F32_INF_BITS)
        return (uint8_t)((u >> 24 & 0x80u) | 0x7fu);
    return mo_e4m3_finish(u, a >= 0x43f00000u ? 0x7fu : mo_round_nearest(a, 3, 7), saturate);
}

/* random: 16 bits. Between 448 and 480 it rounds down. */
MO_HD static inline uint8_t mo_f32_to_e4m3_stochastic(float value, int saturate, uint32_t random)
{
    uint32_t u = mo_f32_bits(value);
    uint32_t a = u & 0x7fffffffu;
    if (a > MO_F32_INF_BITS)
        return (uint8_t)((u >> 24 & 0x80u) | 0x7fu);
    if (a >= 0x43e00000u) /* 448 */
        return mo_e4m3_finish(u, a >= 0x43f00000u ? 0x7fu : 0x7eu, saturate);
    return mo_e4m3_finish(u, mo_round_stochastic(a, 3, 7, random), saturate);
}

MO_HD static inline uint8_t mo_e5m2_finish(uint32_t u, uint32_t magnitude, int saturate)
{
    uint32_t sign = u >> 24 & 0x80u;
    if (magnitude > 0x7bu)
        magnitude = saturate ? 0x7bu : 0x7cu;
    return (uint8_t)(sign | magnitude);
}

MO_HD static inline uint8_t mo_f32_to_e5m2(float value, int saturate)
{
    uint32_t u = mo_f32_bits(value);
    uint32_t a = u & 0x7fffffffu;
    if (a > MO_F32_INF_BITS)
        return (uint8_t)((u >> 24 & 0x80u) | 0x7fu);
    return mo_e5m2_finish(u, a >= 0x47800000u ? 0x7cu : mo_round_nearest(a, 2, 15), saturate);
}

/* random: 16 bits. Between 57344 and 65536 it rounds down. */
MO_HD static inline uint8_t mo_f32_to_e5m2_stochastic(float value, int saturate, uint32_t random)
{
    uint32_t u = mo_f32_bits(value);
    uint32_t a = u & 0x7fffffffu;
    if (a > MO_F32_INF_BITS)
        return (uint8_t)((u >> 24 & 0x80u) | 0x7fu);
    if (a >= 0x47600000u) /* 57344 */
        return mo_e5m2_finish(u, a >= 0x47800000u ? 0x7cu : 0x7bu, saturate);
    return mo_e5m2_finish(u, mo_round_stochastic(a, 2, 15, random), saturate);
}

/* --- fnuz 8-bit floats -------------------------------------------------------------------------
 * Those of AMD's MI300: e4m3 and e5m2 with one more for a bias, no infinity and no -0. Code 0x80 is
 * the only NaN; the largest numbers are 240 and 57344. Overflow and infinity become NaN, or the
 * largest number where `saturate`. As f32, NaN is 0x7fc00000. */

MO_HD static inline float mo_fnuz_to_f32(uint8_t code, uint32_t mantissa_bits, uint32_t bias)
{
    uint32_t sign = (uint32_t)(code & 0x80u) << 24;
    uint32_t exponent = (code & 0x7fu) >> mantissa_bits;
    uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
    if (code == 0x80u)
        return mo_f32_from_bits(MO_F32_NAN_BITS);
    if (exponent == 0) {
        float quantum = mo_f32_from_bits((128 - bias - mantissa_bits) << 23);
        return mo_f32_from_bits(sign | mo_f32_bits((float)mantissa * quantum));
    }
    return mo_f32_from_bits(sign | (exponent + 127 - bias) << 23 |
                            mantissa << (23 - mantissa_bits));
}

MO_HD static inline float mo_e4m3fnuz_to_f32(uint8_t code)
{
    return mo_fnuz_to_f32(code, 3, 8);
}

MO_HD static inline float mo_e5m2fnuz_to_f32(uint8_t code)
{
    return mo_fnuz_to_f32(code, 2, 16);
}

/* `magnitude`: a code that may be beyond the largest one. */
MO_HD static inline uint8_t mo_fnuz_finish(uint32_t u, uint32_t magnitude, int saturate)
{
    if (magnitude > 0x7fu) {
        if (!saturate)
            return 0x80u;
        magnitude = 0x7fu;
    }
    return (uint8_t)(magnitude == 0 ? 0 : (u >> 24 & 0x80u) | magnitude);
}

/* beyond: the f32 bits of the number after the largest one. */
MO_HD static inline uint8_t mo_f32_to_fnuz(float value, int saturate, uint32_t mantissa,
                                           uint32_t bias, uint32_t beyond)
{
    uint32_t u = mo_f32_bits(value), a = u & 0x7fffffffu;
    if (a > MO_F32_INF_BITS)
        return 0x80u;
    return mo_fnuz_finish(u, a >= beyond ? 0x80u : mo_round_nearest(a, mantissa, bias), saturate);
}

/* random: 16 bits. Between the largest number and the one after it a value rounds down. */
MO_HD static inline uint8_t mo_f32_to_fnuz_stochastic(float value, int saturate, uint32_t random,
                                                      uint32_t mantissa, uint32_t bias,
                                                      uint32_t beyond)
{
    uint32_t u = mo_f32_bits(value), a = u & 0x7fffffffu;
    if (a > MO_F32_INF_BITS)
        return 0x80u;
    if (a >= beyond)
        return mo_fnuz_finish(u, 0x80u, saturate);
    uint32_t code = mo_round_stochastic(a, mantissa, bias, random);
    return mo_fnuz_finish(u, code > 0x7fu ? 0x7fu : code, saturate);
}

MO_HD static inline uint8_t mo_f32_to_e4m3fnuz(float value, int saturate)
{
    return mo_f32_to_fnuz(value, saturate, 3, 8, 0x43800000u);
}

MO_HD static inline uint8_t mo_f32_to_e5m2fnuz(float value, int saturate)
{
    return mo_f32_to_fnuz(value, saturate, 2, 16, 0x47800000u);
}

MO_HD static inline uint8_t mo_f32_to_e4m3fnuz_stochastic(float value, int saturate,
                                                          uint32_t random)
{
    return mo_f32_to_fnuz_stochastic(value, saturate, random, 3, 8, 0x43800000u);
}

MO_HD static inline uint8_t mo_f32_to_e5m2fnuz_stochastic(float value, int saturate,
                                                          uint32_t random)
{
    return mo_f32_to_fnuz_stochastic(value, saturate, random, 2, 16, 0x47800000u);
}

/* --- OCP e2m1 and e8m0 -------------------------------------------------------------------------
 * e2m1 has 4 bits and no infinity or NaN: what exceeds its largest number, 6, becomes 6 with its
 * sign, and so does a NaN. e8m0 has 8 bits of exponent: code e is 2^(e - 127), 255 a NaN. */

MO_HD static inline float mo_e2m1_to_f32(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x8u) << 28;
    uint32_t exponent = (code >> 1) & 0x3u, mantissa = code & 0x1u;
    if (exponent == 0)
        return mo_f32_from_bits(sign | (mantissa ? 0x3f000000u : 0));
    return mo_f32_from_bits(sign | (exponent + 126) << 23 | mantissa << 22);
}

MO_HD static inline uint8_t mo_f32_to_e2m1(float value)
{
    uint32_t u = mo_f32_bits(value);
    uint32_t a = u & 0x7fffffffu;
    return (uint8_t)((u >> 28 & 0x8u) | (a >= 0x40c00000u ? 0x7u : mo_round_nearest(a, 1, 1)));
}

/* random: 16 bits. */
MO_HD static inline uint8_t mo_f32_to_e2m1_stochastic(float value, uint32_t random)
{
    uint32_t u = mo_f32_bits(value);
    uint32_t a = u & 0x7fffffffu;
    return (uint8_t)((u >> 28 & 0x8u) |
                     (a >= 0x40c00000u ? 0x7u : mo_round_stochastic(a, 1, 1, random)));
}

MO_HD static inline float mo_e8m0_to_f32(uint8_t code)
{
    if (code == 0xffu)
        return mo_f32_from_bits(MO_F32_NAN_BITS);
    return mo_f32_from_bits(code ? (uint32_t)code << 23 : 0x00400000u);
}

/* --- random bits: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
 * SC 2011) --------------------------------------------------------------------------------------
 *
 * (seed, sequence, tensor) selects a stream of random bits; element i of the tensor takes 16 of
 * them, always the same ones: halfword i % 8 (lower half of each word first) of block i / 8.
 */

/* One block: 128 bits of counter, 64 of key. out may be counter. */
MO_HD static inline void mo_philox4x32(const uint32_t counter[4], const uint32_t key[2],
                                       uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c0, p1 = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* A stream: the key, and the upper half of the counter, of all its blocks. */
typedef struct mo_random_stream {
    uint32_t key[2];
    uint32_t high[2];
} mo_random_stream;

/* The stream's four words are the block of key `seed` and counter (tensor, sequence). */
MO_HD static inline mo_random_stream mo_random_stream_of(uint64_t seed, uint64_t sequence,
                                                         uint64_t tensor)
{
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t words[4] = {(uint32_t)tensor, (uint32_t)(tensor >> 32), (uint32_t)sequence,
                         (uint32_t)(sequence >> 32)};
    mo_philox4x32(words, key, words);
    mo_random_stream stream = {{words[0], words[1]}, {words[2], words[3]}};
    return stream;
}

/* Block number `block` of the stream: the bits of elements 8 * block .. 8 * block + 7. */
MO_HD static inline void mo_random_block(const mo_random_stream *stream, uint64_t block,
                                         uint32_t out[4])
{
    uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), stream->high[0],
                           stream->high[1]};
    mo_philox4x32(counter, stream->key, out);
}

/* The 16 bits of element `slot` (0..7) of a block. */
MO_HD static inline uint32_t mo_random_bits16(const uint32_t block[4], uint32_t slot)
{
    return block[slot >> 1] >> ((slot & 1) * 16) & 0xffffu;
}

/* The 16 bits of one element; where neighbours are needed too, mo_random_block is cheaper. */
MO_HD static inline uint32_t mo_random_element(const mo_random_stream *stream, uint64_t element)
{
    uint32_t block[4];
    mo_random_block(stream, element >> 3, block);
    return mo_random_bits16(block, (uint32_t)(element & 7));
}

#endif
