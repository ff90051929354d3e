/*
 * Arithmetic of f32 and f64 as the hardware does it: IEEE mode, subnormals kept, every NaN made
 * quiet; and the steps of a division. Registers hold bits.
 */
#ifndef MEMOPT_GCN_NUMBERS_H
#define MEMOPT_GCN_NUMBERS_H

#include "semantics.h"

/* --- numbers --------------------------------------------------------------------------------- */

#define FLOATS(bits, fused)                                                                        \
    VECTOR2(v_add_f##bits, bits, bits, bits, out##bits(f##bits(a) + f##bits(b), a, b, 0))          \
    VECTOR2(v_mul_f##bits, bits, bits, bits, out##bits(f##bits(a) * f##bits(b), a, b, 0))          \
    VECTOR2(v_max_f##bits, bits, bits, bits, extreme##bits(a, b, 1))                               \
    VECTOR2(v_min_f##bits, bits, bits, bits, extreme##bits(a, b, 0))                               \
    VECTOR3(v_fma_f##bits, bits, out##bits(fused(f##bits(a), f##bits(b), f##bits(c)), a, b, c))

/* IEEE mode: a signalling NaN is made quiet, a quiet one loses to a number; -0 is below 0. */
#define EXTREME(bits, type)                                                                        \
    static type extreme##bits(type a, type b, int most)                                            \
    {                                                                                              \
        if (is_nan##bits(a) && !(a & quiet_##bits))                                                \
            return a | quiet_##bits;                                                               \
        if (is_nan##bits(b) && !(b & quiet_##bits))                                                \
            return b | quiet_##bits;                                                               \
        if (is_nan##bits(a) || is_nan##bits(b))                                                    \
            return is_nan##bits(a) ? b : a;                                                        \
        if (f##bits(a) == f##bits(b))                                                              \
            return (a >> (bits - 1) != 0) == most ? b : a;                                         \
        return (f##bits(a) > f##bits(b)) == most ? a : b;                                          \
    }
EXTREME(32, uint32_t)
EXTREME(64, uint64_t)
FLOATS(32, fmaf)
FLOATS(64, fma)
VECTOR1(v_trunc_f32, 32, 32, out32(truncf(f32(a)), a, 0, 0))
VECTOR3(v_madmk_f32, 32, out32(f32(a) * f32(b) + f32(c), a, b, c)) /* rounded twice */
VECTOR2(v_sub_f32, 32, 32, 32, out32(f32(a) - f32(b), a, b, 0))
VECTOR2(v_subrev_f32, 32, 32, 32, out32(f32(b) - f32(a), a, b, 0))
VECTOR2(v_ldexp_f64, 64, 64, 32, out64(ldexp(f64(a), (int32_t)b), a, 0, 0))
VECTOR1(v_cvt_f64_f32, 64, 32, bits_f64((double)f32(a)))
VECTOR1(v_cvt_f64_u32, 64, 32, bits_f64((double)a))
VECTOR1(v_cvt_f64_i32, 64, 32, bits_f64((double)(int32_t)a))
VECTOR1(v_cvt_f32_f64, 32, 64, bits_f32((float)f64(a)))
VECTOR1(v_cvt_f32_u32, 32, 32, bits_f32((float)a))
VECTOR1(v_cvt_f32_i32, 32, 32, bits_f32((float)(int32_t)a))
VECTOR1(v_cvt_f32_ubyte0, 32, 32, bits_f32((float)(a & 255)))

VECTOR1(v_cvt_u32_f32, 32, 32, to_u32(f32(a)))

/* The hardware's approximations are right to 1 ulp in f32, which lies on either side of the exact
 * value, and to about 2^-23 in f64. */
static uint32_t near32(double exact, uint32_t a)
{
    float value = (float)exact;
    if (approximation * (exact - (double)value) > 0 && isfinite(value))
        value = nextafterf(value, (float)approximation * INFINITY);
    return out32(value, a, 0, 0);
}

static uint64_t near64(double value, uint64_t a)
{
    int64_t step = (int64_t)approximation << 28;
    return out64(value, a, 0, 0) + (uint64_t)(fpclassify(value) == FP_NORMAL ? step : 0);
}
VECTOR1(v_rcp_f32, 32, 32, near32(1.0 / (double)f32(a), a))
VECTOR1(v_rcp_iflag_f32, 32, 32, near32(1.0 / (double)f32(a), a))
VECTOR1(v_sqrt_f32, 32, 32, near32(sqrt((double)f32(a)), a))
VECTOR1(v_rcp_f64, 64, 64, near64(1.0 / f64(a), a))
VECTOR1(v_rsq_f64, 64, 64, near64(1.0 / sqrt(f64(a)), a))

/* --- division -------------------------------------------------------------------------------- */

/* What the steps of a division know of a format. */
typedef struct number_format {
    int fraction_bits, most_exponent, scale, far, least; /* least: of a normal number, a power */
} number_format;

static const number_format format32 = {23, 255, 64, 96, -126};
static const number_format format64 = {52, 2047, 128, 768, -1022};

static int exponent_of(uint64_t a, const number_format *f)
{
    return (int)(a >> f->fraction_bits) & f->most_exponent;
}

/*
 * By which power of two div_scale multiplies its first operand, the denominator or the numerator;
 * *post: the quotient is scaled back at the end (div_fmas). Where the quotient and the reciprocal
 * of the denominator are subnormal, the denominator goes down: the manuals print +64 (+128), which
 * would make an infinity of it, and one power of two alone for div_fmas, which has two.
 */
static int division_scale(uint64_t denominator, uint64_t numerator, double d, double n,
                          int is_denominator, int is_numerator, const number_format *f, int *post)
{
    double least = ldexp(1.0, f->least);
    int difference = exponent_of(numerator, f) - exponent_of(denominator, f);
    int reciprocal_small = exponent_of(denominator, f) >= f->most_exponent - 2;
    int quotient_small = f == &format32 ? fabs(n / d) < least : difference <= f->least;
    *post = 0;
    if (difference >= f->far) {
        *post = 1;
        return is_denominator ? f->scale : 0;
    }
    if (exponent_of(denominator, f) == 0)
        return f->scale;
    if (reciprocal_small && quotient_small) {
        *post = 1;
        return is_denominator ? -f->scale : 0;
    }
    if (reciprocal_small)
        return -f->scale;
    if (quotient_small) {
        *post = 1;
        return is_numerator ? f->scale : 0;
    }
    return exponent_of(numerator, f) <= f->fraction_bits + (f == &format64) ? f->scale : 0;
}

#define DIVISION_SCALE(bits)                                                                       \
    OPERATION uint64_t v_div_scale_f##bits(wave *w, uint32_t *to, const uint32_t *pa,              \
                                           const uint32_t *pb, const uint32_t *pc)                 \
    {                                                                                              \
        uint64_t flags = 0;                                                                        \
        EACH_LANE                                                                                  \
        {                                                                                          \
            const uint##bits##_t a = GET_##bits(pa), b = GET_##bits(pb), c = GET_##bits(pc);       \
            int post = 0, by;                                                                      \
            if (f##bits(b) == 0 || f##bits(c) == 0) {                                              \
                PUT_##bits(to, out##bits(NAN, 0, 0, 0));                                           \
                continue;                                                                          \
            }                                                                                      \
            by = division_scale(b, c, (double)f##bits(b), (double)f##bits(c), a == b, a == c,      \
                                &format##bits, &post);                                             \
            PUT_##bits(to, by == 0 ? a : scaled##bits(a, by));                                     \
            flags |= (uint64_t)post << i;                                                          \
        }                                                                                          \
        return flags;                                                                              \
    }
static uint32_t scaled32(uint32_t a, int by)
{
    return out32(ldexpf(f32(a), by), a, 0, 0);
}

static uint64_t scaled64(uint64_t a, int by)
{
    return out64(ldexp(f64(a), by), a, 0, 0);
}
DIVISION_SCALE(32)
DIVISION_SCALE(64)

#if defined(__aarch64__)
typedef long double wide;
#else
typedef __float128 wide;
#endif

/* a*b + c with more bits than the result has, the last of which tells whether any were lost, so
 * that it rounds once. */
static wide wide_fma(double a, double b, double c)
{
    wide p = (wide)a * b, s = p + c, from_c = s - p;
    wide lost = (p - (s - from_c)) + (c - from_c);
    unsigned __int128 bits;
    memcpy(&bits, &s, sizeof bits);
    if (lost != 0 && !(bits & 1))
        bits += ((lost > 0) == (s > 0)) ? 1 : (unsigned __int128)-1;
    memcpy(&s, &bits, sizeof s);
    return s;
}

static wide power_of_two(int by)
{
    return (wide)ldexp(1.0, by);
}

/* Scales back as div_scale chose: up where the quotient is large, else down. */
#define DIVISION_FMA(bits, type, fused)                                                            \
    OPERATION void v_div_fmas_f##bits(wave *w, uint32_t *to, const uint32_t *pa,                   \
                                      const uint32_t *pb, const uint32_t *pc, uint64_t flags)      \
    {                                                                                              \
        EACH_LANE                                                                                  \
        {                                                                                          \
            const uint##bits##_t a = GET_##bits(pa), b = GET_##bits(pb), c = GET_##bits(pc);       \
            const number_format *f = &format##bits;                                                \
            int by = exponent_of(c, f) > f->most_exponent / 2 ? f->scale : -f->scale;              \
            type plain = fused(f##bits(a), f##bits(b), f##bits(c));                                \
            if ((flags >> i & 1) && isfinite(plain))                                               \
                plain =                                                                            \
                    (type)(wide_fma((double)f##bits(a), (double)f##bits(b), (double)f##bits(c)) *  \
                           power_of_two(by));                                                      \
            PUT_##bits(to, out##bits(plain, a, b, c));                                             \
        }                                                                                          \
    }
DIVISION_FMA(32, float, fmaf)
DIVISION_FMA(64, double, fma)

/* The quotient q of the numerator n and the denominator d, and what has none. Where it overflows,
 * the steps before made a NaN of it, which the manuals pass over. */
#define DIVISION_FIXUP(bits, type)                                                                 \
    static type fixed##bits(type q, type d, type n)                                                \
    {                                                                                              \
        const type sign = (type)1 << (bits - 1), out = (d ^ n) & sign;                             \
        const type infinity = (type)format##bits.most_exponent << format##bits.fraction_bits;      \
        const number_format *f = &format##bits;                                                    \
        d &= (type)~sign;                                                                          \
        if (is_nan##bits(n) || is_nan##bits(d))                                                    \
            return is_nan##bits(n) ? n | quiet_##bits : (d | quiet_##bits | (out ^ (n & sign)));   \
        n &= (type)~sign;                                                                          \
        if ((d == 0 && n == 0) || (d == infinity && n == infinity))                                \
            return sign | infinity | quiet_##bits;                                                 \
        if (d == 0 || n == infinity)                                                               \
            return out | infinity;                                                                 \
        if (d == infinity || n == 0)                                                               \
            return out;                                                                            \
        if (exponent_of(n, f) - exponent_of(d, f) < f->least - f->fraction_bits - 1)               \
            return out;                                                                            \
        return is_nan##bits(q) ? out | infinity : out | (q & (type)~sign);                         \
    }                                                                                              \
    VECTOR3(v_div_fixup_f##bits, bits, fixed##bits(a, b, c))
DIVISION_FIXUP(32, uint32_t)
DIVISION_FIXUP(64, uint64_t)

/* --- two numbers in two registers ------------------------------------------------------------ */

/* The low and the high result take either half of each source: bit k of `low` and of `high`. */
#define HALF(p, choice, k) ((p)[((choice) >> (k)&1) * LANES + i])
#define PACKED2(name, op)                                                                          \
    OPERATION void name(wave *w, uint32_t *to, const uint32_t *pa, const uint32_t *pb, int low,    \
                        int high)                                                                  \
    {                                                                                              \
        EACH_LANE                                                                                  \
        {                                                                                          \
            const uint32_t a = HALF(pa, low, 0), b = HALF(pb, low, 1);                             \
            const uint32_t c = HALF(pa, high, 0), d = HALF(pb, high, 1);                           \
            to[i] = out32(f32(a) op f32(b), a, b, 0);                                              \
            to[LANES + i] = out32(f32(c) op f32(d), c, d, 0);                                      \
        }                                                                                          \
    }
PACKED2(v_pk_add_f32, +)
PACKED2(v_pk_mul_f32, *)

OPERATION void v_pk_fma_f32(wave *w, uint32_t *to, const uint32_t *pa, const uint32_t *pb,
                            const uint32_t *pc, int low, int high)
{
    EACH_LANE
    {
        uint32_t r[2];
        for (int k = 0; k < 2; k++) {
            int choice = k ? high : low;
            uint32_t a = HALF(pa, choice, 0), b = HALF(pb, choice, 1), c = HALF(pc, choice, 2);
            r[k] = out32(fmaf(f32(a), f32(b), f32(c)), a, b, c);
        }
        to[i] = r[0];
        to[LANES + i] = r[1];
    }
}

/* The low word from the first source, the high word from the second. */
OPERATION void v_pk_mov_b32(wave *w, uint32_t *to, const uint32_t *pa, const uint32_t *pb, int low,
                            int high)
{
    EACH_LANE
    {
        const uint32_t a = HALF(pa, low, 0), b = HALF(pb, low, 1);
        to[i] = a;
        to[LANES + i] = b;
    }
}

#endif
