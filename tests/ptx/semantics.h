/*
 * What each PTX instruction does, one function for each: PTX ISA 9.0, chapter 9. Registers hold
 * bits; f32 and f64 are their bits. Results that are no number are a GPU's: 0x7fffffff for f32.
 * Where the manual leaves the bits of a NaN open (abs, neg), it is that one too.
 *
 * Included once, by the C that translate.py makes.
 */
#ifndef MEMOPT_PTX_SEMANTICS_H
#define MEMOPT_PTX_SEMANTICS_H

#include "../sim/kernels.h"
#include "../sim/number_bits.h"
#define BY_WARP 0
#include "../sim/parts.h"

#include <fenv.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#pragma GCC diagnostic ignored "-Wunused-label"
#pragma GCC diagnostic ignored "-Woverflow"

enum { SHARED_FROM = 256, LANES = 32, NAN_32 = 0x7FFFFFFF };

/* --- a thread's run -------------------------------------------------------------------------- */

struct ptx_run {
    unsigned char *shared;
    uint32_t shared_bytes;
};

/* *ran: whether this kernel ever ran. */
static struct ptx_run enter(uint32_t shared_bytes, char *ran)
{
    static const char key;
    *ran = 1;
    return (struct ptx_run){shared_bytes != 0 ? calls->shared(shared_bytes, &key) : NULL,
                            shared_bytes};
}

static uint32_t thread_index(const struct ptx_run *run)
{
    return calls->thread();
}

static uint32_t block_index(const struct ptx_run *run)
{
    return calls->block();
}

static uint32_t block_threads(const struct ptx_run *run)
{
    return calls->threads();
}

static void bar_sync(const struct ptx_run *run, uint64_t barrier, int line)
{
    calls->barrier(barrier == 0 ? "ptx" : "ptx, a barrier of another number", line);
}

/* All lanes of the warp give each other their bits: clamp 31, all members. */
static uint32_t shfl_sync_bfly_b32(const struct ptx_run *run, uint32_t value, uint32_t mask,
                                   uint64_t clamp, uint64_t members, int line)
{
    int whole = clamp == 31 && (uint32_t)members == UINT32_MAX;
    return (uint32_t)calls->shuffle_xor(value, whole ? mask % LANES : UINT32_MAX, "ptx", line);
}

/* Lane 0's bits for all. */
static uint32_t shfl_sync_idx_b32(const struct ptx_run *run, uint32_t value, uint64_t lane,
                                  uint64_t clamp, uint64_t members, int line)
{
    for (uint32_t mask = LANES / 2; mask > 0; mask /= 2) {
        uint32_t other = shfl_sync_bfly_b32(run, value, mask, clamp, members, line);
        value = thread_index(run) & mask ? other : value;
    }
    return lane == 0 ? value : UINT32_MAX;
}

static uint32_t redux_sync_max_u32(const struct ptx_run *run, uint32_t value, uint64_t members,
                                   int line)
{
    for (uint32_t mask = LANES / 2; mask > 0; mask /= 2) {
        uint32_t other = shfl_sync_bfly_b32(run, value, mask, 31, members, line);
        value = other > value ? other : value;
    }
    return value;
}

/* Whether it holds in all lanes: a predicate is 0 or 1. */
static uint32_t vote_sync_all_pred(const struct ptx_run *run, uint32_t value, uint64_t members,
                                   int line)
{
    for (uint32_t mask = LANES / 2; mask > 0; mask /= 2)
        value &= shfl_sync_bfly_b32(run, value, mask, 31, members, line);
    return value;
}

/* --- memory ---------------------------------------------------------------------------------- */

static unsigned char *global(const struct ptx_run *run, uint64_t address, uint32_t bytes, int write,
                             int atomic)
{
    if (address % bytes != 0)
        calls->illegal(address, bytes, write, "misaligned");
    calls->touch(address, bytes, write, atomic);
    return (unsigned char *)(uintptr_t)address;
}

static inline void red_global_max_u32(unsigned char *at, uint32_t value)
{
    uint32_t *cell = (uint32_t *)(void *)at, seen = __atomic_load_n(cell, __ATOMIC_RELAXED);
    while (seen < value &&
           !__atomic_compare_exchange_n(cell, &seen, value, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

static unsigned char *param(const struct ptx_run *run, uint64_t address, uint32_t bytes, int write,
                            int atomic)
{
    return global(run, address, bytes, write, atomic);
}

static unsigned char *shared(const struct ptx_run *run, uint64_t address, uint32_t bytes, int write,
                             int atomic)
{
    uint64_t offset = address - SHARED_FROM;
    if (offset > run->shared_bytes || bytes > run->shared_bytes - offset)
        calls->illegal(address, bytes, write, "outside the block's shared memory");
    if (address % bytes != 0)
        calls->illegal(address, bytes, write, "misaligned, in shared memory");
    calls->touch((uintptr_t)run->shared + offset, bytes, write, atomic);
    return run->shared + offset;
}

#define MEMORY(kind, type)                                                                         \
    static type load_##kind(const unsigned char *at)                                               \
    {                                                                                              \
        type value;                                                                                \
        memcpy(&value, at, sizeof value);                                                          \
        return value;                                                                              \
    }                                                                                              \
    static void store_##kind(unsigned char *at, type value)                                        \
    {                                                                                              \
        memcpy(at, &value, sizeof value);                                                          \
    }
MEMORY(u8, uint8_t)
MEMORY(u16, uint16_t)
MEMORY(u32, uint32_t)
MEMORY(u64, uint64_t)
MEMORY(f32, uint32_t)
MEMORY(f64, uint64_t)

/* --- integers -------------------------------------------------------------------------------- */

#define TWO(name, type, value)                                                                     \
    static type name(type a, type b)                                                               \
    {                                                                                              \
        return (type)(value);                                                                      \
    }
#define COMPARE(name, type, value)                                                                 \
    static uint32_t name(type a, type b)                                                           \
    {                                                                                              \
        return value;                                                                              \
    }
/* A count of bits to shift by beyond the width shifts all out. */
#define SHIFTS(bits)                                                                               \
    static uint##bits##_t shl_b##bits(uint##bits##_t a, uint32_t by)                               \
    {                                                                                              \
        return by < bits ? (uint##bits##_t)(a << by) : 0;                                          \
    }                                                                                              \
    static uint##bits##_t shr_u##bits(uint##bits##_t a, uint32_t by)                               \
    {                                                                                              \
        return by < bits ? (uint##bits##_t)(a >> by) : 0;                                          \
    }                                                                                              \
    static int##bits##_t shr_s##bits(int##bits##_t a, uint32_t by)                                 \
    {                                                                                              \
        return (int##bits##_t)(a >> (by < bits ? by : bits - 1));                                  \
    }
#define INTEGERS(bits)                                                                             \
    SHIFTS(bits)                                                                                   \
    TWO(add_s##bits, uint##bits##_t, a + b)                                                        \
    TWO(sub_s##bits, uint##bits##_t, a - b)                                                        \
    TWO(mul_lo_s##bits, uint##bits##_t, (uint64_t)a *b)                                            \
    TWO(and_b##bits, uint##bits##_t, a &b)                                                         \
    TWO(or_b##bits, uint##bits##_t, a | b)                                                         \
    TWO(xor_b##bits, uint##bits##_t, a ^ b)                                                        \
    TWO(div_u##bits, uint##bits##_t, b == 0 ? (uint##bits##_t) - 1 : a / b)                        \
    TWO(rem_u##bits, uint##bits##_t, b == 0 ? a : a % b)                                           \
    TWO(min_u##bits, uint##bits##_t, a < b ? a : b)                                                \
    TWO(max_u##bits, uint##bits##_t, a > b ? a : b)                                                \
    TWO(min_s##bits, int##bits##_t, a < b ? a : b)                                                 \
    TWO(max_s##bits, int##bits##_t, a > b ? a : b)                                                 \
    COMPARE(setp_eq_s##bits, int##bits##_t, a == b)                                                \
    COMPARE(setp_ne_s##bits, int##bits##_t, a != b)                                                \
    COMPARE(setp_eq_b##bits, uint##bits##_t, a == b)                                               \
    COMPARE(setp_lt_s##bits, int##bits##_t, a < b)                                                 \
    COMPARE(setp_gt_s##bits, int##bits##_t, a > b)                                                 \
    COMPARE(setp_ne_u##bits, uint##bits##_t, a != b)                                               \
    COMPARE(setp_lt_u##bits, uint##bits##_t, a < b)                                                \
    COMPARE(setp_le_u##bits, uint##bits##_t, a <= b)                                               \
    COMPARE(setp_gt_u##bits, uint##bits##_t, a > b)                                                \
    COMPARE(setp_ge_u##bits, uint##bits##_t, a >= b)                                               \
    static uint##bits##_t neg_s##bits(uint##bits##_t a)                                            \
    {                                                                                              \
        return (uint##bits##_t)(0 - a);                                                            \
    }                                                                                              \
    static uint##bits##_t not_b##bits(uint##bits##_t a)                                            \
    {                                                                                              \
        return (uint##bits##_t) ~a;                                                                \
    }                                                                                              \
    static uint##bits##_t selp_b##bits(uint##bits##_t a, uint##bits##_t b, uint32_t p)             \
    {                                                                                              \
        return p ? a : b;                                                                          \
    }
INTEGERS(16)
INTEGERS(32)
INTEGERS(64)
#define selp_u16 selp_b16
#define selp_u32 selp_b32
#define selp_s32 selp_b32
#define selp_f32 selp_b32
#define selp_u64 selp_b64
#define selp_f64 selp_b64

TWO(and_pred, uint32_t, a &b)
TWO(or_pred, uint32_t, a | b)
TWO(xor_pred, uint32_t, a ^ b)

static uint32_t not_pred(uint32_t a)
{
    return !a;
}

static uint32_t mul_wide_u16(uint16_t a, uint16_t b)
{
    return (uint32_t)a * b;
}

static uint64_t mul_wide_u32(uint32_t a, uint32_t b)
{
    return (uint64_t)a * b;
}

static int64_t mul_wide_s32(int32_t a, int32_t b)
{
    return (int64_t)a * b;
}

static uint32_t max_s16x2(uint32_t a, uint32_t b)
{
    return (uint16_t)max_s16((int16_t)a, (int16_t)b) |
           (uint32_t)max_s16((int16_t)(a >> 16), (int16_t)(b >> 16)) << 16;
}

static uint32_t mad_lo_s32(uint32_t a, uint32_t b, uint32_t c)
{
    return a * b + c;
}

static uint64_t mad_lo_s64(uint64_t a, uint64_t b, uint64_t c)
{
    return a * b + c;
}

/* For the bits of a, b and c the bit of the table. */
static uint32_t lop3_b32(uint32_t a, uint32_t b, uint32_t c, uint64_t table)
{
    uint32_t result = 0;
    for (uint32_t row = 0; row < 8; row++)
        if (table >> row & 1)
            result |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
    return result;
}

/* The sum of c and the products of bytes; of a's halves with b's lower two bytes. */
static uint32_t dp4a_u32_u32(uint32_t a, uint32_t b, uint32_t c)
{
    for (int i = 0; i < 32; i += 8)
        c += (a >> i & 255) * (b >> i & 255);
    return c;
}

static uint32_t dp2a_lo_u32_u32(uint32_t a, uint32_t b, uint32_t c)
{
    return c + (a & 0xFFFF) * (b & 255) + (a >> 16) * (b >> 8 & 255);
}

static uint32_t bfe_u32(uint32_t a, uint32_t from, uint32_t count)
{
    from &= 255;
    count &= 255;
    return from >= 32 ? 0 : count >= 32 ? a >> from : a >> from & ((1u << count) - 1);
}

/* Each of the lower four half bytes of how picks one of eight bytes, or its sign eight times. */
static uint32_t prmt_b32(uint32_t a, uint32_t b, uint32_t how)
{
    uint64_t from = (uint64_t)b << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t pick = how >> 4 * i & 15, byte = from >> (pick & 7) * 8 & 255;
        result |= (pick & 8 ? byte >> 7 ? 255u : 0u : byte) << 8 * i;
    }
    return result;
}

/* The upper half of b:a, shifted to the left. */
static uint32_t shf_l_wrap_b32(uint32_t a, uint32_t b, uint32_t by)
{
    return (uint32_t)(((uint64_t)b << 32 | a) << (by & 31) >> 32);
}

static uint32_t copysign_f32(uint32_t sign, uint32_t value)
{
    return (sign & 0x80000000u) | (value & 0x7FFFFFFFu);
}

static uint64_t bfi_b64(uint64_t a, uint64_t into, uint32_t from, uint32_t count)
{
    from &= 255;
    count &= 255;
    if (from >= 64 || count == 0)
        return into;
    uint64_t mask = (count >= 64 ? UINT64_MAX : (1ull << count) - 1) << from;
    return (into & ~mask) | (a << from & mask);
}

#define CONVERT(name, to, from)                                                                    \
    static to name(from a)                                                                         \
    {                                                                                              \
        return (to)a;                                                                              \
    }
CONVERT(cvt_u64_u32, uint64_t, uint32_t)
CONVERT(cvt_u32_u64, uint32_t, uint64_t)
CONVERT(cvt_s64_s32, int64_t, int32_t)
CONVERT(cvt_u16_u32, uint16_t, uint32_t)
CONVERT(cvt_u32_u16, uint32_t, uint16_t)
CONVERT(cvt_u32_u8, uint32_t, uint8_t)
CONVERT(cvt_s32_s16, int32_t, int16_t)
CONVERT(cvt_s32_s8, int32_t, int8_t)
CONVERT(cvta_global_u64, uint64_t, uint64_t)

/* --- numbers --------------------------------------------------------------------------------- */

static uint32_t out_f32(float value)
{
    return isnan(value) ? NAN_32 : bits_f32(value);
}

#define FLOATS(bits, type, in, out)                                                                \
    TWO(add_rn_f##bits, uint##bits##_t, out(in(a) + in(b)))                                        \
    TWO(sub_rn_f##bits, uint##bits##_t, out(in(a)-in(b)))                                          \
    TWO(mul_rn_f##bits, uint##bits##_t, out(in(a)*in(b)))                                          \
    TWO(div_rn_f##bits, uint##bits##_t, out(in(a) / in(b)))                                        \
    COMPARE(setp_eq_f##bits, uint##bits##_t, in(a) == in(b))                                       \
    COMPARE(setp_ne_f##bits, uint##bits##_t, in(a) < in(b) || in(a) > in(b))                       \
    COMPARE(setp_lt_f##bits, uint##bits##_t, in(a) < in(b))                                        \
    COMPARE(setp_gt_f##bits, uint##bits##_t, in(a) > in(b))                                        \
    COMPARE(setp_le_f##bits, uint##bits##_t, in(a) <= in(b))                                       \
    COMPARE(setp_ge_f##bits, uint##bits##_t, in(a) >= in(b))                                       \
    COMPARE(setp_equ_f##bits, uint##bits##_t, !(in(a) < in(b) || in(a) > in(b)))                   \
    COMPARE(setp_neu_f##bits, uint##bits##_t, in(a) != in(b))                                      \
    COMPARE(setp_ltu_f##bits, uint##bits##_t, !(in(a) >= in(b)))                                   \
    COMPARE(setp_leu_f##bits, uint##bits##_t, !(in(a) > in(b)))                                    \
    COMPARE(setp_geu_f##bits, uint##bits##_t, !(in(a) < in(b)))                                    \
    COMPARE(setp_gtu_f##bits, uint##bits##_t, !(in(a) <= in(b)))                                   \
    COMPARE(setp_nan_f##bits, uint##bits##_t, isnan(in(a)) || isnan(in(b)))                        \
    COMPARE(setp_num_f##bits, uint##bits##_t, !isnan(in(a)) && !isnan(in(b)))                      \
    /* One that is no number gives way to the other; −0 is below 0. */                           \
    static type least_##bits(type a, type b)                                                       \
    {                                                                                              \
        return isnan(a) ? b : isnan(b) ? a : a < b || (a == b && signbit(a)) ? a : b;              \
    }                                                                                              \
    TWO(min_f##bits, uint##bits##_t, out(least_##bits(in(a), in(b))))                              \
    TWO(max_f##bits, uint##bits##_t, out(-least_##bits(-in(a), -in(b))))                           \
    static uint##bits##_t sqrt_rn_f##bits(uint##bits##_t a)                                        \
    {                                                                                              \
        return out((type)sqrt(in(a)));                                                             \
    }                                                                                              \
    static uint##bits##_t abs_f##bits(uint##bits##_t a)                                            \
    {                                                                                              \
        return out((type)fabs(in(a)));                                                             \
    }                                                                                              \
    static uint##bits##_t neg_f##bits(uint##bits##_t a)                                            \
    {                                                                                              \
        return out(-in(a));                                                                        \
    }
FLOATS(32, float, f32, out_f32)
FLOATS(64, double, f64, bits_f64)

static uint32_t max_NaN_f32(uint32_t a, uint32_t b)
{
    return isnan(f32(a)) || isnan(f32(b)) ? NAN_32 : max_f32(a, b);
}

static uint32_t min_NaN_f32(uint32_t a, uint32_t b)
{
    return isnan(f32(a)) || isnan(f32(b)) ? NAN_32 : min_f32(a, b);
}

static uint32_t fma_rn_f32(uint32_t a, uint32_t b, uint32_t c)
{
    return out_f32(__builtin_fmaf(f32(a), f32(b), f32(c)));
}

static uint32_t rcp_rn_f32(uint32_t a)
{
    return out_f32(1.0f / f32(a));
}

/* Approximations flush what is not normal to 0, and are off to either side. */
static uint32_t flushed(uint32_t a)
{
    return (a & 0x7f800000u) == 0 ? a & 0x80000000u : a;
}

static uint32_t off(uint32_t bits)
{
    uint32_t magnitude = bits & 0x7fffffffu;
    int normal = magnitude >= 0x00800010u && magnitude < 0x7f7ffff0u;
    return flushed(normal ? bits + (uint32_t)approximation : bits);
}

static uint32_t rcp_approx_ftz_f32(uint32_t a)
{
    return off(bits_f32(1.0f / f32(flushed(a))));
}

static uint32_t sqrt_approx_ftz_f32(uint32_t a)
{
    return off(bits_f32(sqrtf(f32(flushed(a)))));
}

static uint32_t rsqrt_approx_ftz_f32(uint32_t a)
{
    return off(bits_f32((float)(1.0 / sqrt((double)f32(flushed(a))))));
}

/* Pairs of f32. */
static uint64_t fma_rn_f32x2(uint64_t a, uint64_t b, uint64_t c)
{
    return fma_rn_f32((uint32_t)a, (uint32_t)b, (uint32_t)c) |
           (uint64_t)fma_rn_f32((uint32_t)(a >> 32), (uint32_t)(b >> 32), (uint32_t)(c >> 32))
               << 32;
}

static uint64_t mul_rn_f32x2(uint64_t a, uint64_t b)
{
    return mul_rn_f32((uint32_t)a, (uint32_t)b) |
           (uint64_t)mul_rn_f32((uint32_t)(a >> 32), (uint32_t)(b >> 32)) << 32;
}

static uint32_t add_rp_f32(uint32_t a, uint32_t b)
{
    volatile float left = f32(a), sum;
    (void)fesetround(FE_UPWARD);
    sum = left + f32(b);
    (void)fesetround(FE_TONEAREST);
    return out_f32(sum);
}

/* --- numbers of other widths ----------------------------------------------------------------- */

static uint64_t cvt_f64_f32(uint32_t a)
{
    return bits_f64((double)f32(a));
}

static uint32_t cvt_rn_f32_f64(uint64_t a)
{
    return out_f32((float)f64(a));
}

static uint64_t cvt_rn_f64_u64(uint64_t a)
{
    return bits_f64((double)a);
}

static uint64_t rcp_rn_f64(uint64_t a)
{
    return bits_f64(1.0 / f64(a));
}

static uint32_t cvt_rn_f32_u32(uint32_t a)
{
    return out_f32((float)a);
}

static inline uint32_t cvt_rn_f32_u16(uint16_t a)
{
    return out_f32((float)a);
}

static uint64_t cvt_rn_f64_s32(uint32_t a)
{
    return bits_f64((double)(int32_t)a);
}

static uint32_t cvt_rn_f32_s32(uint32_t a)
{
    return out_f32((float)(int32_t)a);
}

static uint32_t cvt_rzi_u32_f32(uint32_t a)
{
    return to_u32(f32(a));
}

/* A binary format: its exponent's and fraction's bits, the code that all above it become (an
 * infinity, or the largest number), and its NaN. */
typedef struct format {
    int exponent_bits, fraction_bits;
    uint32_t most, nan;
} format;

static const format f16 = {5, 10, 0x7C00, 0x7FFF}, bf16 = {8, 7, 0x7F80, 0x7FFF};
static const format e4m3 = {4, 3, 0x7E, 0x7F}, e5m2 = {5, 2, 0x7B, 0x7F}; /* saturating */

/* The number of a code without its sign; a NaN's code is beyond the others. */
static float widen(uint32_t code, const format *f)
{
    int exponent = (int)(code >> f->fraction_bits), bias = (1 << (f->exponent_bits - 1)) - 1;
    uint32_t fraction = code & ((1u << f->fraction_bits) - 1);
    if (exponent != 0)
        fraction |= 1u << f->fraction_bits;
    return ldexpf((float)fraction, (exponent != 0 ? exponent : 1) - bias - f->fraction_bits);
}

/* To nearest, ties to even, in whole steps of the format at the number's size. */
static uint32_t narrow(float value, const format *f)
{
    int bias = (1 << (f->exponent_bits - 1)) - 1, exponent;
    uint32_t sign = (signbit(value) ? 1u : 0u) << (f->exponent_bits + f->fraction_bits);
    if (isnan(value))
        return f->nan;
    if (value == 0 || isinf(value))
        return sign | (value == 0 ? 0 : f->most);
    (void)frexp((double)value, &exponent);
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    double steps = nearbyint(ldexp(fabs((double)value), f->fraction_bits - exponent));
    /* A step too many carries into the exponent by itself. */
    uint64_t code = (uint64_t)steps + ((uint64_t)(exponent + bias - 1) << f->fraction_bits);
    return sign | (uint32_t)(code < f->most ? code : f->most);
}

static uint32_t cvt_f32_f16(uint16_t a)
{
    uint32_t code = a & 0x7FFF;
    float value = code > f16.most ? NAN : code == f16.most ? INFINITY : widen(code, &f16);
    return out_f32(a >> 15 ? -value : value);
}

static uint32_t cvt_rn_f16x2_f32(uint32_t high, uint32_t low)
{
    return narrow(f32(high), &f16) << 16 | narrow(f32(low), &f16);
}

static uint32_t cvt_rn_bf16x2_f32(uint32_t high, uint32_t low)
{
    return narrow(f32(high), &bf16) << 16 | narrow(f32(low), &bf16);
}

/* Pairs of bf16: here only magnitudes, whose bits grow with them. */
#define PAIRS(name, value)                                                                         \
    static uint32_t name(uint32_t a, uint32_t b)                                                   \
    {                                                                                              \
        uint32_t result = 0;                                                                       \
        for (int i = 0; i < 32; i += 16) {                                                         \
            uint32_t x = a >> i & 0xFFFF, y = b >> i & 0xFFFF;                                     \
            if ((x | y) >> 15)                                                                     \
                abort();                                                                           \
            result |= (value) << i;                                                                \
        }                                                                                          \
        return result;                                                                             \
    }
PAIRS(max_NaN_bf16x2, x > bf16.most || y > bf16.most ? bf16.nan : x > y ? x : y)
PAIRS(min_bf16x2, x > bf16.most ? y : y > bf16.most ? x : x < y ? x : y)

static uint32_t abs_bf16x2(uint32_t a)
{
    return a & 0x7FFF7FFFu;
}

static uint16_t cvt_rn_satfinite_e4m3x2_f32(uint32_t high, uint32_t low)
{
    return (uint16_t)(narrow(f32(high), &e4m3) << 8 | narrow(f32(low), &e4m3));
}

static uint16_t cvt_rn_satfinite_e5m2x2_f32(uint32_t high, uint32_t low)
{
    return (uint16_t)(narrow(f32(high), &e5m2) << 8 | narrow(f32(low), &e5m2));
}

static uint32_t half_of_e4m3(uint32_t code)
{
    float value = (code & 127) == e4m3.nan ? NAN : widen(code & 127, &e4m3);
    return narrow(code >> 7 & 1 ? -value : value, &f16);
}

static uint32_t cvt_rn_f16x2_e4m3x2(uint16_t a)
{
    return half_of_e4m3(a >> 8) << 16 | half_of_e4m3(a & 255);
}

#endif
