/*
 * The vocabulary of vectors on NEON, AArch64's base instructions; vector_avx2.h explains it.
 *
 * A vector is two registers, 8 lanes: what has 16 bits then fills a whole register, and a loop's
 * overhead is halved.
 */
#ifndef MO_KERNELS_CORE_VECTOR_NEON_H
#define MO_KERNELS_CORE_VECTOR_NEON_H

#include "kernels/core/numerics.h"

#include <arm_neon.h>

#define MO_INLINE static inline __attribute__((always_inline))

enum { MO_LANES_N = 8, MO_LANES_D = 4 };
typedef struct VF {
    float32x4_t low, high;
} VF;
typedef struct VI {
    int32x4_t low, high;
} VI;
typedef struct VD {
    float64x2_t low, high;
} VD;
typedef struct VM {
    uint32x4_t low, high;
} VM;

#define MO_WORD1(result, name, type, op)                                                           \
    MO_INLINE result name(type x)                                                                  \
    {                                                                                              \
        return (result){op(x.low), op(x.high)};                                                    \
    }
#define MO_WORD2(result, name, type, op)                                                           \
    MO_INLINE result name(type x, type y)                                                          \
    {                                                                                              \
        return (result){op(x.low, y.low), op(x.high, y.high)};                                     \
    }
#define MO_WORD3(result, name, type1, type2, type3, op)                                            \
    MO_INLINE result name(type1 x, type2 y, type3 z)                                               \
    {                                                                                              \
        return (result){op(x.low, y.low, z.low), op(x.high, y.high, z.high)};                      \
    }
#define MO_SET(result, name, type, op)                                                             \
    MO_INLINE result name(type x)                                                                  \
    {                                                                                              \
        return (result){op(x), op(x)};                                                             \
    }
#define MO_SHIFT(name, type, operator)                                                             \
    MO_INLINE VI name(VI x, int n)                                                                 \
    {                                                                                              \
        return (VI){(int32x4_t)((type)x.low operator n), (int32x4_t)((type)x.high operator n)};    \
    }

#define mo_fma4(a, b, c) vfmaq_f32(c, a, b)
#define mo_fma2(a, b, c) vfmaq_f64(c, a, b)
#define mo_is_nan4(x) vmvnq_u32(vceqq_f32(x, x))
#define mo_min4(x, y) vbslq_f32(vcltq_f32(x, y), x, y) /* y where one is NaN, unlike FMIN */
#define mo_not_zero4(x) vorrq_u32(vcgtzq_f32(x), vcltzq_f32(x))
#define mo_unsigned4(x) vreinterpretq_u32_s32(x)
#define mo_maxu4(x, y) vreinterpretq_s32_u32(vmaxq_u32(mo_unsigned4(x), mo_unsigned4(y)))
#define mo_count4(n, mask) vsubq_s32(n, vreinterpretq_s32_u32(mask))

/* Lanes of 64 bits; of the factors only the lower halves count. */
#define mo_set64_2(x) vreinterpretq_s32_s64(vdupq_n_s64(x))
#define mo_add64_2(x, y)                                                                           \
    vreinterpretq_s32_s64(vaddq_s64(vreinterpretq_s64_s32(x), vreinterpretq_s64_s32(y)))
#define mo_lower64_2(x) vmovn_u64(vreinterpretq_u64_s32(x))
#define mo_mul_wide2(x, y) vreinterpretq_s32_u64(vmull_u32(mo_lower64_2(x), mo_lower64_2(y)))
#define mo_bytes16(x) vreinterpretq_u8_s32(x)
#define mo_bytes16_2(op, x, y) vreinterpretq_s32_u8(op(mo_bytes16(x), mo_bytes16(y)))
#define mo_min_bytes16(x, y) mo_bytes16_2(vminq_u8, x, y)
#define mo_add_bytes16(x, y) mo_bytes16_2(vaddq_u8, x, y)
#define mo_less_bytes16(x, y) mo_bytes16_2(vqsubq_u8, x, y)

MO_SET(VF, v_set, float, vdupq_n_f32)
MO_SET(VI, v_seti, int32_t, vdupq_n_s32)
MO_SET(VI, v_set64, int64_t, mo_set64_2)
MO_WORD2(VF, v_add, VF, vaddq_f32)
MO_WORD2(VF, v_sub, VF, vsubq_f32)
MO_WORD2(VF, v_mul, VF, vmulq_f32)
MO_WORD2(VF, v_div, VF, vdivq_f32)
MO_WORD1(VF, v_sqrt, VF, vsqrtq_f32)
MO_WORD2(VF, v_min, VF, mo_min4)
MO_WORD3(VF, v_fma, VF, VF, VF, mo_fma4)
MO_WORD1(VF, v_bits, VI, vreinterpretq_f32_s32)
MO_WORD1(VI, v_ints, VF, vreinterpretq_s32_f32)
MO_WORD1(VF, v_float, VI, vcvtq_f32_s32)
MO_WORD1(VI, v_cut, VF, vcvtq_s32_f32)
MO_WORD2(VI, v_and, VI, vandq_s32)
MO_WORD2(VI, v_or, VI, vorrq_s32)
MO_WORD2(VI, v_xor, VI, veorq_s32)
#define v_xor3(x, y, z) v_xor(v_xor(x, y), z)
MO_WORD2(VI, v_addi, VI, vaddq_s32)
MO_WORD2(VI, v_subi, VI, vsubq_s32)
MO_WORD2(VI, v_muli, VI, vmulq_s32)
#define v_mul_upper(x, k) v_muli(v_srl(x, 16), v_seti(k))
MO_WORD2(VI, v_maxi, VI, vmaxq_s32)
MO_WORD2(VI, v_mini, VI, vminq_s32)
MO_WORD2(VI, v_maxu, VI, mo_maxu4)
MO_SHIFT(v_sll, uint32x4_t, <<)
MO_SHIFT(v_srl, uint32x4_t, >>)
MO_WORD2(VI, v_add64, VI, mo_add64_2)
MO_WORD2(VI, v_mul_wide, VI, mo_mul_wide2)
MO_SHIFT(v_srl64, uint64x2_t, >>)
MO_WORD2(VI, v_min_bytes, VI, mo_min_bytes16)
MO_WORD2(VI, v_add_bytes, VI, mo_add_bytes16)
MO_WORD2(VI, v_less_bytes, VI, mo_less_bytes16) /* x - y, at least 0 */
MO_SET(VD, v_setd, double, vdupq_n_f64)
MO_WORD2(VD, v_addd, VD, vaddq_f64)
MO_WORD3(VD, v_fmad, VD, VD, VD, mo_fma2)
MO_WORD1(VM, v_is_nan, VF, mo_is_nan4)
MO_WORD1(VM, v_not_zero, VF, mo_not_zero4) /* nor NaN */
MO_WORD2(VM, v_lt, VF, vcltq_f32)
MO_WORD2(VM, v_gti, VI, vcgtq_s32)
MO_WORD2(VM, v_eqi, VI, vceqq_s32)
MO_WORD3(VF, v_select, VM, VF, VF, vbslq_f32)
MO_WORD3(VI, v_selecti, VM, VI, VI, vbslq_s32)

#define v_only(mask, x) v_selecti(mask, x, v_seti(0))

MO_INLINE VI v_count(VI n, VM mask)
{
    return (VI){mo_count4(n.low, mask.low), mo_count4(n.high, mask.high)};
}

/* Whatever NaN an operation made becomes the one that is stored. */
MO_INLINE VF v_one_nan(VF x)
{
    return v_select(v_is_nan(x), v_bits(v_seti((int)MO_F32_NAN_BITS)), x);
}

MO_INLINE VD v_double_low(VF x)
{
    return (VD){vcvt_f64_f32(vget_low_f32(x.low)), vcvt_high_f64_f32(x.low)};
}

MO_INLINE VD v_double_high(VF x)
{
    return (VD){vcvt_f64_f32(vget_low_f32(x.high)), vcvt_high_f64_f32(x.high)};
}

/* Lanes of 64 bits times a constant: the product of the lower halves, and the mixed products in the
 * upper half. */
MO_INLINE int32x4_t mo_mul64_2(int32x4_t a, uint64_t b)
{
    uint32x4_t crossed = vreinterpretq_u32_u64(vdupq_n_u64(b << 32 | b >> 32));
    uint32x4_t mixed = vmulq_u32(vreinterpretq_u32_s32(a), crossed);
    uint64x2_t upper = vshlq_n_u64(vpaddlq_u32(mixed), 32);
    return vreinterpretq_s32_u64(vmlal_u32(upper, mo_lower64_2(a), vdup_n_u32((uint32_t)b)));
}

MO_INLINE VI v_mul64(VI a, uint64_t b)
{
    return (VI){mo_mul64_2(a.low, b), mo_mul64_2(a.high, b)};
}

MO_INLINE int v_any_nan(VF x)
{
    VM nan = v_is_nan(x);
    return vmaxvq_u32(vorrq_u32(nan.low, nan.high)) != 0;
}

MO_INLINE uint32_t v_largest(VI x)
{
    return (uint32_t)vmaxvq_s32(vmaxq_s32(x.low, x.high));
}

MO_INLINE uint32_t v_largestu(VI x)
{
    return vmaxvq_u32(vmaxq_u32(mo_unsigned4(x.low), mo_unsigned4(x.high)));
}

MO_INLINE VF v_max_magnitude(VF top, VF x)
{
    return v_bits(v_maxi(v_ints(top), v_and(v_ints(x), v_seti(0x7fffffff))));
}

/* Whether one of four is NaN. */
MO_INLINE int v_odd4(const VF x[4])
{
    return v_any_nan(x[0]) | v_any_nan(x[1]) | v_any_nan(x[2]) | v_any_nan(x[3]);
}

/* --- elements in memory ---------------------------------------------------------------------- */

MO_INLINE VF v_load(const float *data)
{
    return (VF){vld1q_f32(data), vld1q_f32(data + 4)};
}

MO_INLINE void v_store(float *data, VF x)
{
    vst1q_f32(data, x.low);
    vst1q_f32(data + 4, x.high);
}

MO_INLINE void v_stored(double *data, VD x)
{
    vst1q_f64(data, x.low);
    vst1q_f64(data + 2, x.high);
}

MO_INLINE VI v_loadi(const void *at)
{
    return v_ints(v_load(at));
}

/* AArch64 has no stores past the caches for single vectors: processors find streams themselves. */
MO_INLINE void v_put(void *at, VI x, int streaming)
{
    (void)streaming;
    v_store(at, v_bits(x));
}

/* 8 halfwords, each in a lane, and the lower halves of the lanes. */
MO_INLINE VI mo_widen8(uint16x8_t halves)
{
    return (VI){vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(halves))),
                vreinterpretq_s32_u32(vmovl_high_u16(halves))};
}

MO_INLINE uint16x8_t mo_narrow8(VI x)
{
    return vuzp1q_u16(vreinterpretq_u16_s32(x.low), vreinterpretq_u16_s32(x.high));
}

MO_INLINE uint16x8_t mo_narrow_high8(VI x)
{
    return vuzp2q_u16(vreinterpretq_u16_s32(x.low), vreinterpretq_u16_s32(x.high));
}

/* The compiler must not see where values come from: with a conversion back it would drop both, and
 * with them what makes a NaN quiet. */
MO_INLINE VF mo_from_f16(uint16x8_t codes)
{
    float16x8_t x = vreinterpretq_f16_u16(codes);
    VF values = {vcvt_f32_f16(vget_low_f16(x)), vcvt_high_f32_f16(x)};
    __asm__("" : "+w"(values.low), "+w"(values.high));
    return values;
}

/* Nearest even. */
MO_INLINE uint16x8_t mo_to_f16(VF x)
{
    return vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.low), x.high));
}

MO_INLINE VF v_load_as(const void *data, uint64_t i, int32_t dtype)
{
    if (dtype == MO_DTYPE_F32)
        return v_load((const float *)data + i);
    uint16x8_t halves = vld1q_u16((const uint16_t *)data + i);
    if (dtype == MO_DTYPE_BF16)
        return v_bits(v_sll(mo_widen8(halves), 16));
    return mo_from_f16(halves);
}

/* Nearest even in integers, the code in the upper half of each lane; NaN keeps its upper bits and
 * becomes quiet. */
MO_INLINE VI mo_bf16_bits8(VF x)
{
    VI u = v_ints(x), odd = v_srl(v_sll(u, 15), 31);
    VI rounded = v_addi(v_addi(u, v_seti(0x7fff)), odd);
    return v_selecti(v_is_nan(x), v_or(u, v_seti((int)MO_F32_QUIET_BIT)), rounded);
}

/* Rounds to nearest even. */
MO_INLINE void v_store_as(void *data, uint64_t i, int32_t dtype, VF x)
{
    uint16_t *halves = (uint16_t *)data + i;
    if (dtype == MO_DTYPE_F32)
        v_store((float *)data + i, x);
    else
        vst1q_u16(halves,
                  dtype == MO_DTYPE_BF16 ? mo_narrow_high8(mo_bf16_bits8(x)) : mo_to_f16(x));
}

/* Two vectors to bf16, nearest even. */
MO_INLINE void v_store_bf16_pair(uint16_t *halves, VF a, VF b)
{
    v_store_as(halves, 0, MO_DTYPE_BF16, a);
    v_store_as(halves, 8, MO_DTYPE_BF16, b);
}

/* Four vectors to bf16. */
MO_INLINE void v_store_bf16x4(uint16_t *halves, const VF x[4], int careful)
{
    (void)careful;
    v_store_bf16_pair(halves, x[0], x[1]);
    v_store_bf16_pair(halves + 16, x[2], x[3]);
}

MO_INLINE void v_load2_as(const void *data, uint64_t i, int32_t dtype, VF x[2])
{
    x[0] = v_load_as(data, i, dtype);
    x[1] = v_load_as(data, i + 8, dtype);
}

/* --- codes of a byte, a lane each ------------------------------------------------------------ */

MO_INLINE VI v_load_codes(const uint8_t *codes)
{
    return mo_widen8(vmovl_u8(vld1_u8(codes)));
}

MO_INLINE VI v_load_signed(const uint8_t *codes)
{
    int16x8_t halves = vmovl_s8(vreinterpret_s8_u8(vld1_u8(codes)));
    return (VI){vmovl_s16(vget_low_s16(halves)), vmovl_high_s16(halves)};
}

/* e5m2 is the upper byte of f16. */
MO_INLINE VF v_load_e5m2(const uint8_t *codes)
{
    return mo_from_f16(vshll_n_u8(vld1_u8(codes), 8));
}

/* --- narrower lanes, in order ---------------------------------------------------------------- */

/* The lower halves of the lanes of a, then of b. */
MO_INLINE VI v_low_halves(VI a, VI b)
{
    return (VI){vreinterpretq_s32_u16(mo_narrow8(a)), vreinterpretq_s32_u16(mo_narrow8(b))};
}

MO_INLINE VI v_high_halves(VI a, VI b)
{
    return (VI){vreinterpretq_s32_u16(mo_narrow_high8(a)),
                vreinterpretq_s32_u16(mo_narrow_high8(b))};
}

/* The same by turns. */
MO_INLINE VI v_pair_up(VI a, VI b)
{
    return (VI){vsriq_n_s32(b.low, a.low, 16), vsriq_n_s32(b.high, a.high, 16)};
}

/* To f16, to nearest even. */
MO_INLINE VI v_f16(VF a, VF b)
{
    return (VI){vreinterpretq_s32_u16(mo_to_f16(a)), vreinterpretq_s32_u16(mo_to_f16(b))};
}

MO_INLINE int32x4_t mo_pack_bytes16(VI a, VI b)
{
    int16x8_t low = vqmovn_high_s32(vqmovn_s32(a.low), a.high);
    int16x8_t high = vqmovn_high_s32(vqmovn_s32(b.low), b.high);
    return vreinterpretq_s32_s8(vqmovn_high_s16(vqmovn_s16(low), high));
}

/* The lanes of four vectors as signed bytes; what is larger becomes the nearest of -128 and 127. */
MO_INLINE VI v_pack_bytes(const VI v[4])
{
    return (VI){mo_pack_bytes16(v[0], v[1]), mo_pack_bytes16(v[2], v[3])};
}

/* A lane for each halfword of the lower and of the upper half of x. */
#define v_widen_low(x) mo_widen8(vreinterpretq_u16_s32((x).low))
#define v_widen_high(x) mo_widen8(vreinterpretq_u16_s32((x).high))

/* The even lanes of a and b by turns: a0 b0 a2 b2 … */
MO_WORD2(VI, v_even32, VI, vtrn1q_s32)

/* In every 16 bytes by turns: lanes of 32 or 64 bits of the lower, or upper, 8 bytes of a and b. */
#define mo_pairs2(x) vreinterpretq_s64_s32(x)
#define mo_zip64_low2(x, y) vreinterpretq_s32_s64(vzip1q_s64(mo_pairs2(x), mo_pairs2(y)))
#define mo_zip64_high2(x, y) vreinterpretq_s32_s64(vzip2q_s64(mo_pairs2(x), mo_pairs2(y)))
MO_WORD2(VI, v_zip32_low, VI, vzip1q_s32)
MO_WORD2(VI, v_zip32_high, VI, vzip2q_s32)
MO_WORD2(VI, v_zip64_low, VI, mo_zip64_low2)
MO_WORD2(VI, v_zip64_high, VI, mo_zip64_high2)

/* Bytes by turns, of the lower and of the upper half of x and y: they are in order here. */
#define v_zip_order(x) (x)

MO_INLINE VI v_zip8_low(VI x, VI y)
{
    return (VI){mo_bytes16_2(vzip1q_u8, x.low, y.low), mo_bytes16_2(vzip2q_u8, x.low, y.low)};
}

MO_INLINE VI v_zip8_high(VI x, VI y)
{
    return (VI){mo_bytes16_2(vzip1q_u8, x.high, y.high), mo_bytes16_2(vzip2q_u8, x.high, y.high)};
}

/* A word in all lanes, shifted right. */
MO_INLINE VI mo_load_shifted(const uint8_t *pairs, const int32_t shifts[8])
{
    uint32_t word;
    __builtin_memcpy(&word, pairs, sizeof word);
    uint32x4_t all = vdupq_n_u32(word);
    return (VI){vreinterpretq_s32_u32(vshlq_u32(all, vld1q_s32(shifts))),
                vreinterpretq_s32_u32(vshlq_u32(all, vld1q_s32(shifts + 4)))};
}

/* The codes of 4 bits of MO_LANES_N elements, an even one's in the upper half of its byte: in the
 * low bits of each lane, with others above. */
MO_INLINE VI v_load_codes4(const uint8_t *pairs)
{
    static const int32_t shifts[8] = {-4, 0, -12, -8, -20, -16, -28, -24};
    return mo_load_shifted(pairs, shifts);
}

/* The same where an even element's code is in the lower half of its byte. */
MO_INLINE VI v_load_low4(const uint8_t *pairs)
{
    static const int32_t shifts[8] = {0, -4, -8, -12, -16, -20, -24, -28};
    return mo_load_shifted(pairs, shifts);
}

/* --- bytes; v_minb and v_maxb compare signed ones -------------------------------------------- */

#define mo_signed16(x) vreinterpretq_s8_s32(x)
#define mo_setb16(x) vreinterpretq_s32_s8(vdupq_n_s8(x))
#define mo_minb16(x, y) vreinterpretq_s32_s8(vminq_s8(mo_signed16(x), mo_signed16(y)))
#define mo_maxb16(x, y) vreinterpretq_s32_s8(vmaxq_s8(mo_signed16(x), mo_signed16(y)))

MO_SET(VI, v_setb, int8_t, mo_setb16)
MO_WORD2(VI, v_minb, VI, mo_minb16)
MO_WORD2(VI, v_maxb, VI, mo_maxb16)

MO_INLINE int32x4_t mo_bytes_of16(VI a, VI b)
{
    int16x8_t low = vqmovn_high_s32(vqmovn_s32(a.low), a.high);
    int16x8_t high = vqmovn_high_s32(vqmovn_s32(b.low), b.high);
    return vreinterpretq_s32_u8(vqmovun_high_s16(vqmovun_s16(low), high));
}

/* The lanes of four vectors as bytes from 0 to 255. */
MO_INLINE VI v_bytes(const VI v[4])
{
    return (VI){mo_bytes_of16(v[0], v[1]), mo_bytes_of16(v[2], v[3])};
}

/* The lowest bytes of the lanes of four vectors. */
MO_INLINE VI v_low_bytes(const VI x[4])
{
    uint16x8_t h[4];
    for (int k = 0; k < 4; k++)
        h[k] = mo_narrow8(x[k]);
    return (VI){
        vreinterpretq_s32_u8(vuzp1q_u8(vreinterpretq_u8_u16(h[0]), vreinterpretq_u8_u16(h[1]))),
        vreinterpretq_s32_u8(vuzp1q_u8(vreinterpretq_u8_u16(h[2]), vreinterpretq_u8_u16(h[3])))};
}

MO_INLINE int32x4_t mo_second_bytes16(VI a, VI b)
{
    int16x8_t low = vshrn_high_n_s32(vshrn_n_s32(a.low, 8), a.high, 8);
    int16x8_t high = vshrn_high_n_s32(vshrn_n_s32(b.low, 8), b.high, 8);
    return vreinterpretq_s32_u8(vqmovun_high_s16(vqmovun_s16(low), high));
}

/* The bytes of (x - least) >> 8 of four vectors, 0 where x is smaller. `least` has but its upper
 * byte. */
MO_INLINE VI v_second_bytes(const VI x[4], int32_t least)
{
    (void)least;
    return (VI){mo_second_bytes16(x[0], x[1]), mo_second_bytes16(x[2], x[3])};
}

/* Codes of 4 bits, two a byte, as v_load_codes4 reads them. */
MO_INLINE void v_store_bytes4(uint8_t *pairs, VI x)
{
    uint8x16_t even = vuzp1q_u8(mo_bytes16(x.low), mo_bytes16(x.high));
    uint8x16_t odd = vuzp2q_u8(mo_bytes16(x.low), mo_bytes16(x.high));
    vst1q_u8(pairs, vorrq_u8(vshlq_n_u8(even, 4), odd));
}

MO_INLINE int32x4_t mo_pack_low4(VI x)
{
    uint8x16_t even = vuzp1q_u8(mo_bytes16(x.low), mo_bytes16(x.high));
    uint8x16_t odd = vuzp2q_u8(mo_bytes16(x.low), mo_bytes16(x.high));
    return vreinterpretq_s32_u8(vorrq_u8(even, vshlq_n_u8(odd, 4)));
}

/* The same as v_load_low4 reads them. */
MO_INLINE void v_store_low4(uint8_t *pairs, VI x)
{
    vst1q_u8(pairs, vreinterpretq_u8_s32(mo_pack_low4(x)));
}

/* Halfwords as signed numbers: the larger ones, and the largest, which is not negative. */
#define mo_halves8(x) vreinterpretq_s16_s32(x)
#define mo_max_halves8(x, y) vreinterpretq_s32_s16(vmaxq_s16(mo_halves8(x), mo_halves8(y)))
MO_WORD2(VI, v_max_halves, VI, mo_max_halves8)

MO_INLINE uint32_t v_largest_half(VI x)
{
    return (uint32_t)vmaxvq_s16(vmaxq_s16(mo_halves8(x.low), mo_halves8(x.high)));
}

/* The largest of 16 halfwords in memory without their upper bits. */
MO_INLINE uint32_t v_largest16(const void *at)
{
    return v_largest_half(v_and(v_loadi(at), v_seti(0x7fff7fff)));
}

/* --- halfwords ------------------------------------------------------------------------------- */

#define mo_unsigned8(x) vreinterpretq_u16_s32(x)
#define mo_seth8(x) vreinterpretq_s32_s16(vdupq_n_s16(x))
#define mo_addh8(x, y) vreinterpretq_s32_s16(vaddq_s16(mo_halves8(x), mo_halves8(y)))
#define mo_subh8(x, y) vreinterpretq_s32_s16(vsubq_s16(mo_halves8(x), mo_halves8(y)))
#define mo_less_halves8(x, y) vreinterpretq_s32_u16(vqsubq_u16(mo_unsigned8(x), mo_unsigned8(y)))
#define mo_min_halves8(x, y) vreinterpretq_s32_s16(vminq_s16(mo_halves8(x), mo_halves8(y)))
#define mo_zip16_low8(x, y) vreinterpretq_s32_s16(vzip1q_s16(mo_halves8(x), mo_halves8(y)))
#define mo_zip16_high8(x, y) vreinterpretq_s32_s16(vzip2q_s16(mo_halves8(x), mo_halves8(y)))
#define mo_sub_bytes16(x, y) mo_bytes16_2(vsubq_u8, x, y)
#define mo_any4(x) vmaxvq_u32(vreinterpretq_u32_s32(x))
MO_SET(VI, v_seth, int16_t, mo_seth8)
MO_WORD2(VI, v_addh, VI, mo_addh8)
MO_WORD2(VI, v_subh, VI, mo_subh8)
MO_WORD2(VI, v_less_halves, VI, mo_less_halves8)
MO_WORD2(VI, v_min_halves, VI, mo_min_halves8)
MO_SHIFT(v_srlh, uint16x8_t, >>)
MO_WORD2(VI, v_zip16_low, VI, mo_zip16_low8)
MO_WORD2(VI, v_zip16_high, VI, mo_zip16_high8)
MO_WORD2(VI, v_sub_bytes, VI, mo_sub_bytes16)
#define v_any(x) (mo_any4(vorrq_s32((x).low, (x).high)) != 0)
#define v_merge(x, y, mask) v_or(x, v_and(y, mask))

#define mo_larger_halves8(a, b) vreinterpretq_s16_u16(vcgtq_s16(mo_halves8(a), mo_halves8(b)))
#define mo_count_halves8(n, a, b)                                                                  \
    vreinterpretq_s32_s16(vsubq_s16(mo_halves8(n), mo_larger_halves8(a, b)))
MO_WORD3(VI, v_count_halves, VI, VI, VI, mo_count_halves8)
enum { V_BLOCKS16 = 1 };

MO_INLINE int16x8_t mo_look_halves8(const int16_t *table, int16x8_t at)
{
    uint8x16_t bytes = vreinterpretq_u8_s16(vld1q_s16(table));
    return vreinterpretq_s16_u8(vqtbl1q_u8(bytes, vreinterpretq_u8_s16(at)));
}

/* Indices of both bytes of a halfword, 2 * k and 2 * k + 1. */
MO_INLINE int16x8_t mo_search7_8(const int16_t *table, int16x8_t a)
{
    int16x8_t above = vreinterpretq_s16_u16(vcgtq_s16(a, vdupq_n_s16(table[3])));
    int16x8_t at = vaddq_s16(vandq_s16(above, vdupq_n_s16(0x0808)), vdupq_n_s16(0x0100));
    above = vreinterpretq_s16_u16(vcgtq_s16(a, mo_look_halves8(table + 1, at)));
    at = vaddq_s16(vandq_s16(above, vdupq_n_s16(0x0404)), at);
    above = vreinterpretq_s16_u16(vcgtq_s16(a, mo_look_halves8(table, at)));
    return vsubq_s16(vandq_s16(at, vdupq_n_s16(0xff)), above);
}

MO_INLINE VI v_search7(const int16_t *first, const int16_t *second, VI a)
{
    (void)second;
    return (VI){vreinterpretq_s32_s16(mo_search7_8(first, mo_halves8(a.low))),
                vreinterpretq_s32_s16(mo_search7_8(first, mo_halves8(a.high)))};
}

MO_INLINE VI v_pack_halves(VI a, VI b)
{
    return (VI){
        vreinterpretq_s32_u8(vqmovun_high_s16(vqmovun_s16(mo_halves8(a.low)), mo_halves8(a.high))),
        vreinterpretq_s32_u8(vqmovun_high_s16(vqmovun_s16(mo_halves8(b.low)), mo_halves8(b.high)))};
}

MO_INLINE VI v_pack_signed(VI a, VI b)
{
    return (VI){
        vreinterpretq_s32_s8(vqmovn_high_s16(vqmovn_s16(mo_halves8(a.low)), mo_halves8(a.high))),
        vreinterpretq_s32_s8(vqmovn_high_s16(vqmovn_s16(mo_halves8(b.low)), mo_halves8(b.high)))};
}

#define v_pack_order(x) (x)

MO_INLINE void v_put_bytes(uint8_t *at, VI x)
{
    vst1_u8(at, vmovn_u16(mo_narrow8(x)));
}

MO_INLINE VI v_pack_low4(VI a, VI b)
{
    return (VI){mo_pack_low4(a), mo_pack_low4(b)};
}

MO_INLINE VI v_largest_halves(const VI *x)
{
    return mo_widen8(vreinterpretq_u16_s16(vmaxq_s16(mo_halves8(x->low), mo_halves8(x->high))));
}

MO_INLINE VI v_largest_words(const VI *x)
{
    return (VI){vmaxq_s32(x[0].low, x[0].high), vmaxq_s32(x[1].low, x[1].high)};
}

#define v_f16_bits(x) v_ints(mo_from_f16(mo_narrow8(x)))
#define v_largest_halves16 v_largest_halves

/* --- look-ups -------------------------------------------------------------------------------- */

/* 64 bytes as a table for TBL. */
MO_INLINE uint8x16x4_t mo_table64(const void *bytes)
{
    const uint8_t *b = bytes;
    return (uint8x16x4_t){{vld1q_u8(b), vld1q_u8(b + 16), vld1q_u8(b + 32), vld1q_u8(b + 48)}};
}

MO_INLINE int32x4_t mo_byte_index4(int32x4_t index, int32_t mask)
{
    index = vandq_s32(index, vdupq_n_s32(mask));
    return vmlaq_s32(vdupq_n_s32(0x03020100), index, vdupq_n_s32(0x04040404));
}

/* VT: a table of 16 floats, each times the factor; v_look16 takes the low four bits of an index. */
typedef struct VT {
    uint8x16x4_t bytes;
} VT;

MO_INLINE VT v_table16(const uint32_t *table, VF factor)
{
    const float *f = (const float *)(const void *)table;
    VT result;
    for (int k = 0; k < 4; k++)
        result.bytes.val[k] = vreinterpretq_u8_f32(vmulq_f32(vld1q_f32(f + 4 * k), factor.low));
    return result;
}

#define mo_look16_4(table, index)                                                                  \
    vreinterpretq_f32_u8(                                                                          \
        vqtbl4q_u8((table)->bytes, vreinterpretq_u8_s32(mo_byte_index4(index, 15))))

MO_INLINE void v_put_pairs(unsigned char *at, const uint8_t *pairs, const uint8_t *first,
                           const uint8_t *second, int streaming)
{
    const uint8_t *tables[2] = {first, second};
    (void)streaming;
    for (int k = 0; k < 2; k++) {
        uint8x8_t x = vld1_u8(pairs + 8 * k);
        uint8x8x2_t codes = vzip_u8(vand_u8(x, vdup_n_u8(15)), vshr_n_u8(x, 4));
        uint8x16_t index = vcombine_u8(codes.val[0], codes.val[1]);
        uint8x16x2_t bytes = {
            {vqtbl1q_u8(vld1q_u8(tables[k]), index), vqtbl1q_u8(vld1q_u8(tables[k] + 16), index)}};
        vst2q_u8(at + 32 * k, bytes);
    }
}

MO_INLINE void v_make_codes4(uint8_t *table, const uint16_t *halves)
{
    uint8x16x2_t bytes = vld2q_u8((const uint8_t *)halves);
    vst1q_u8(table, bytes.val[0]);
    vst1q_u8(table + 16, bytes.val[1]);
}

MO_INLINE void v_put_codes4(unsigned char *at, const uint8_t *pairs, const uint8_t *table,
                            int streaming)
{
    uint8x16_t low = vld1q_u8(table), high = vld1q_u8(table + 16), x = vld1q_u8(pairs);
    uint8x16x2_t codes = vzipq_u8(vshrq_n_u8(x, 4), vandq_u8(x, vdupq_n_u8(15)));
    (void)streaming;
    for (int k = 0; k < 2; k++) {
        uint8x16x2_t bytes = {{vqtbl1q_u8(low, codes.val[k]), vqtbl1q_u8(high, codes.val[k])}};
        vst2q_u8(at + 32 * k, bytes);
    }
}

MO_INLINE VF v_look16(const VT *table, VI index)
{
    return (VF){mo_look16_4(table, index.low), mo_look16_4(table, index.high)};
}

#define v_found(found, sign)                                                                       \
    v_merge(v_lookup((const uint8_t[16]){0, 1, 0, 0, 2, 3, 0, 0, 4, 5, 0, 0, 6, 7}, found), sign,  \
            v_seti(0x08080808))

/* One of 16 bytes by each byte of the index, below 16. */
MO_INLINE VI v_lookup(const uint8_t table[16], VI index)
{
    uint8x16_t t = vld1q_u8(table);
    return (VI){vreinterpretq_s32_u8(vqtbl1q_u8(t, mo_bytes16(index.low))),
                vreinterpretq_s32_u8(vqtbl1q_u8(t, mo_bytes16(index.high)))};
}

MO_INLINE int32x4_t mo_search8_16(const int8_t *second, const int8_t *third, int32x4_t a)
{
    int8x16_t x = mo_signed16(a);
    uint8x16_t at = vandq_u8(vcgtq_s8(x, vdupq_n_s8(second[1])), vdupq_n_u8(4));
    uint8x16_t above = vcgtq_s8(x, vqtbl1q_s8(vld1q_s8(second), at));
    at = vorrq_u8(at, vandq_u8(above, vdupq_n_u8(2)));
    above = vcgtq_s8(x, vqtbl1q_s8(vld1q_s8(third), at));
    return vreinterpretq_s32_u8(vsubq_u8(at, above));
}

MO_INLINE VI v_search8(const int8_t *second, const int8_t *third, VI a)
{
    return (VI){mo_search8_16(second, third, a.low), mo_search8_16(second, third, a.high)};
}

#endif
