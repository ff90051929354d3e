/*
 * Block codes and scales in few instructions: what blocks.h says, bit for bit, with the words of
 * NVIDIA's processors where these have them. Part of blocks.cu.
 */
#ifndef MO_KERNELS_CAST_BLOCKS_WORDS_GPU_H
#define MO_KERNELS_CAST_BLOCKS_WORDS_GPU_H

#include "kernels/core/gpu_magnitudes.h"

#include "kernels/cast/blocks.h"

/* --- scales ---------------------------------------------------------------------------------- */

/* a / b, correctly rounded, where `inverse` is 1 / b and b is 6 or 8 to 15 times a power of two:
 * every significand of a has been tried (tests/kernels_build/test_block_words.cc: a sample). */
MO_DEVICE float mo_short_quotient(float a, float b, float inverse)
{
    float near = a * inverse;
    return mo_fmaf(mo_fmaf(-b, near, a), inverse, near);
}

/* Of any b: the quotient is at most one step off before the last correction, which is then right
 * (Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990). */
MO_DEVICE float mo_quotient(float a, float b, float inverse)
{
    float near = mo_short_quotient(a, b, inverse);
    return mo_fmaf(mo_fmaf(-b, near, a), inverse, near);
}

/* Tensor scales for which mo_nvfp4_scale_near is right. */
MO_DEVICE int mo_nvfp4_is_plain(float tensor_scale)
{
    return tensor_scale >= 0x1p-64f && tensor_scale <= 0x1p64f;
}

/* mo_nvfp4_scale. inverse: 1 / tensor_scale. A magnitude so small that its quotients are not exact
 * has the code 0; one so large that they overflow has the largest. */
MO_DEVICE mo_blocks_scale mo_nvfp4_scale_near(uint32_t amax, float tensor_scale, float inverse)
{
    const float sixth = 1.0f / 6.0f;
    mo_blocks_scale scale = {0x7f, 0.0f};
    float a = mo_short_quotient(mo_f32_from_bits(amax), 6.0f, sixth);
    a = mo_quotient(a, tensor_scale, inverse);
    a = a < 448.0f ? a : 448.0f; /* NaN too */
    uint32_t code;
#if MO_NVCC_DEVICE && __CUDA_ARCH__ >= 890
    asm("{.reg .b16 a; cvt.rn.satfinite.e4m3x2.f32 a, 0f00000000, %1; cvt.u32.u16 %0, a;}"
        : "=r"(code)
        : "f"(a));
#else
    code = mo_f32_as_eight<3, 7>(a, 0x7eu);
#endif
    float value = mo_f32_from_bits(mo_widen<7>(code != 0 ? code : 1, 20)); /* of e4m3 */
    float factor = mo_short_quotient(inverse, value, mo_reciprocal(value));
    if (amax < MO_F32_INF_BITS) {
        scale.code = code;
        scale.factor = code != 0 ? factor : 0.0f;
    }
    return scale;
}

/* --- to codes -------------------------------------------------------------------------------- */

/* The smaller of |value| and limit; limit of NaN. */
MO_DEVICE float mo_magnitude_below(float value, float limit)
{
#if MO_NVCC_DEVICE
    return fminf(fabsf(value), limit);
#else
    float magnitude = mo_magnitude(value);
    return magnitude < limit ? magnitude : limit;
#endif
}

MO_DEVICE uint32_t mo_least_of(uint32_t a, uint32_t b, uint32_t c)
{
    a = a < b ? a : b;
    return a < c ? a : c;
}

/* The upper bytes of four numbers, the first one lowest. */
MO_DEVICE uint32_t mo_upper_bytes(float a, float b, float c, float d)
{
#if MO_NVCC_DEVICE
    uint32_t low, high, all;
    asm("prmt.b32 %0, %1, %2, 0x73;" : "=r"(low) : "f"(a), "f"(b));
    asm("prmt.b32 %0, %1, %2, 0x73;" : "=r"(high) : "f"(c), "f"(d));
    asm("prmt.b32 %0, %1, %2, 0x5410;" : "=r"(all) : "r"(low), "r"(high));
    return all;
#else
    return mo_f32_bits(a) >> 24 | mo_f32_bits(b) >> 24 << 8 | mo_f32_bits(c) >> 24 << 16 |
           (mo_f32_bits(d) & 0xff000000u);
#endif
}

/* Eight codes of e2m1 of values times factor; a NaN has the largest. */
MO_DEVICE uint32_t mo_e2m1_word(const float values[8], float factor)
{
    const uint32_t sum = 0xfb000000u; /* of eight times 0x4b000000, each 4 bits further */
    float scaled[8];
    uint32_t word = 0;
    mo_mul8(values, factor, scaled);
    MO_UNROLL
    for (int k = 6; k >= 0; k -= 2) {
        /* Codes if the steps were 1/2, 1 or 2 everywhere: the least is that of the number's own. */
        mo_two a = {{mo_magnitude_below(scaled[k], 6.0f), mo_magnitude_below(scaled[k + 1], 6.0f)}};
        mo_two half = mo_fma2(a, mo_both(2.0f), mo_both(0x1p23f));
        mo_two one = mo_fma2(a, mo_both(1.0f), mo_both(0x1p23f + 2.0f));
        mo_two two = mo_fma2(a, mo_both(0.5f), mo_both(0x1p23f + 4.0f));
        MO_UNROLL
        for (int j = 1; j >= 0; j--)
            word = word * 16 + mo_least_of(mo_f32_bits(half.of[j]), mo_f32_bits(one.of[j]),
                                           mo_f32_bits(two.of[j]));
    }
    uint32_t even = mo_upper_bytes(values[0], values[2], values[4], values[6]);
    uint32_t odd = mo_upper_bytes(values[1], values[3], values[5], values[7]);
    return (word - sum) | (even >> 4 & 0x08080808u) | (odd & 0x80808080u);
}

/* mo_blocks_code of 8 bits without branches, to nearest. */
MO_DEVICE uint32_t mo_eight_code(uint32_t kind, float value, float factor)
{
    float scaled = mo_magnitude(value) * factor;
    uint32_t code = kind == MO_CODES_E4M3 ? mo_f32_as_eight<3, 7>(scaled, 0x7eu)
                                          : mo_f32_as_eight<2, 15>(scaled, 0x7bu);
    return (code & 0x7fu) | (mo_f32_bits(value) >> 24 & 0x80u);
}

/* mo_blocks_code with random bits: one text for all kinds, which need not be quick. */
MO_DEVICE uint32_t mo_drawn_code(uint32_t kind, float value, float factor, uint32_t random)
{
    const uint32_t mantissa = 3 - kind, bias = kind == MO_CODES_E4M3   ? 7
                                               : kind == MO_CODES_E5M2 ? 15
                                                                       : 1;
    const uint32_t largest = kind == MO_CODES_E4M3 ? 0x7e : kind == MO_CODES_E5M2 ? 0x7b : 7;
    const uint32_t nan = kind == MO_CODES_E2M1 ? 7 : 0x7f, sign = kind == MO_CODES_E2M1 ? 8 : 0x80;
    uint32_t a = mo_f32_bits(mo_magnitude(value) * factor);
    uint32_t code = a > MO_F32_INF_BITS ? nan : mo_round_stochastic(a, mantissa, bias, random);
    if (code > largest && a <= MO_F32_INF_BITS) /* to the largest, not past it */
        code = largest;
    return code | (mo_f32_bits(value) >> 31 ? sign : 0);
}

/* The words of eight codes of 8 bits. finite: no value is a NaN or infinite. */
template <uint32_t CODES>
MO_DEVICE void mo_eight_words(const float values[8], float factor, int finite, uint32_t words[2])
{
#if MO_NVCC_DEVICE && __CUDA_ARCH__ >= 890
    if (!MO_RARE(!finite)) { /* the processor's NaN has no sign */
        float scaled[8];
        mo_mul8(values, factor, scaled);
        MO_UNROLL
        for (int w = 0; w < 2; w++) {
            const float *s = scaled + 4 * w;
            if (CODES == MO_CODES_E4M3)
                asm("{.reg .b16 a, b; cvt.rn.satfinite.e4m3x2.f32 a, %2, %1; "
                    "cvt.rn.satfinite.e4m3x2.f32 b, %4, %3; mov.b32 %0, {a, b};}"
                    : "=r"(words[w])
                    : "f"(s[0]), "f"(s[1]), "f"(s[2]), "f"(s[3]));
            else
                asm("{.reg .b16 a, b; cvt.rn.satfinite.e5m2x2.f32 a, %2, %1; "
                    "cvt.rn.satfinite.e5m2x2.f32 b, %4, %3; mov.b32 %0, {a, b};}"
                    : "=r"(words[w])
                    : "f"(s[0]), "f"(s[1]), "f"(s[2]), "f"(s[3]));
        }
        return;
    }
#endif
    (void)finite;
    MO_UNROLL
    for (int w = 0; w < 2; w++) {
        words[w] = 0;
        MO_UNROLL
        for (int k = 0; k < 4; k++)
            words[w] |= mo_eight_code(CODES, values[4 * w + k], factor) << 8 * k;
    }
}

/* --- to values ------------------------------------------------------------------------------- */

#if MO_NVCC_DEVICE

/* Codes of 8 bits of a half of a word as f16, which has all their values. */
template <uint32_t CODES> MO_DEVICE uint32_t mo_eight_halves(uint32_t word, int half)
{
    uint32_t halves;
    if (CODES == MO_CODES_E5M2) {
        asm("prmt.b32 %0, %1, 0, %2;" : "=r"(halves) : "r"(word), "r"(half ? 0x3424 : 0x1404));
        return halves;
    }
#if __CUDA_ARCH__ >= 890
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %1; cvt.rn.f16x2.e4m3x2 %0, a;}"
        : "=r"(halves)
        : "r"(half ? word >> 16 : word));
    return halves;
#else
    return word; /* not for these */
#endif
}

/* Codes `first` and the fourth from there of a word of e2m1 as f16, times 2^-14. */
MO_DEVICE uint32_t mo_four_halves(uint32_t word, int first)
{
    const int left = 9 - 4 * first;
    uint32_t magnitudes = left < 0 ? word >> -left : word << left;
    return (magnitudes & 0x0e000e00u) | (word << (12 - 4 * first) & 0x80008000u);
}

MO_DEVICE void mo_halves_as_f32(uint32_t halves, float *low, float *high)
{
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
        : "=f"(*low), "=f"(*high)
        : "r"(halves));
}

#endif

MO_DEVICE float mo_code_value(uint32_t kind, uint32_t code)
{
    return kind == MO_CODES_E2M1   ? mo_e2m1_as_f32(code)
           : kind == MO_CODES_E4M3 ? mo_e4m3_as_f32(code)
                                   : mo_half_as_f32(code << 8);
}

/* The values of the eight codes of these words times factor. Returns whether one is a NaN, or
 * perhaps one. */
template <uint32_t CODES>
MO_DEVICE int mo_code_values(const uint32_t *words, float factor, float values[8])
{
#if MO_NVCC_DEVICE
    enum { FOUR = CODES == MO_CODES_E2M1, LEAST = CODES == MO_CODES_E4M3 ? 890 : 0 };
    /* The power of e2m1's halves is the factor's, unless that could overflow. */
    const int beyond = FOUR && mo_f32_bits(factor) >= (127u + 113) << 23;
    if (__CUDA_ARCH__ >= LEAST && !MO_RARE(beyond)) {
        MO_UNROLL
        for (int k = 0; k < 4; k++) {
            if (FOUR)
                mo_halves_as_f32(mo_four_halves(words[0], k), &values[k], &values[k + 4]);
            else
                mo_halves_as_f32(mo_eight_halves<CODES>(words[k / 2], k % 2), &values[2 * k],
                                 &values[2 * k + 1]);
        }
        mo_mul8(values, FOUR ? factor * 0x1p14f : factor, values);
        return FOUR ? 0 : mo_any_nan<8>(values);
    }
#endif
    MO_UNROLL
    for (int k = 0; k < 8; k++)
        values[k] = mo_code_value(CODES, CODES == MO_CODES_E2M1 ? words[0] >> 4 * k & 0xfu
                                                                : mo_byte_of(words[k / 4], k % 4));
    mo_mul8(values, factor, values);
    return mo_any_nan<8>(values);
}

#endif
