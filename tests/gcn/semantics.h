/*
 * What each instruction of an AMD GPU does to a wave, one function for each, named like it: the
 * RDNA 2 and CDNA 2 instruction set manuals. A vector instruction changes the lanes that exec
 * names. Here those on integers, and comparisons; arithmetic of numbers is in numbers.h.
 *
 * The C that translate.py makes defines LANES, and GFX9 for gfx90a.
 */
#ifndef MEMOPT_GCN_SEMANTICS_H
#define MEMOPT_GCN_SEMANTICS_H

#include "wave.h"

/* The low 24 bits as a signed number. */
static inline int32_t signed24(uint32_t a)
{
    return (int32_t)(a << 8) >> 8;
}

/* --- the bits of numbers ---------------------------------------------------------------------- */

static const uint32_t quiet_32 = 1u << 22;
static const uint64_t quiet_64 = 1ull << 51;

static int is_nan32(uint32_t a)
{
    return (a & 0x7FFFFFFF) > 0x7F800000;
}

static int is_nan64(uint64_t a)
{
    return (a & INT64_MAX) > 0x7FF0000000000000;
}

/* A result that is no number is the first operand that is none, made quiet. */
static uint32_t out32(float value, uint32_t a, uint32_t b, uint32_t c)
{
    if (!isnan(value))
        return bits_f32(value);
    return is_nan32(a)   ? a | quiet_32
           : is_nan32(b) ? b | quiet_32
           : is_nan32(c) ? c | quiet_32
                         : 0x7FC00000;
}

static uint64_t out64(double value, uint64_t a, uint64_t b, uint64_t c)
{
    if (!isnan(value))
        return bits_f64(value);
    return is_nan64(a)   ? a | quiet_64
           : is_nan64(b) ? b | quiet_64
           : is_nan64(c) ? c | quiet_64
                         : 0x7FF8000000000000;
}

/* --- scalar instructions --------------------------------------------------------------------- */

/* A result, and scc. */
#define SCALAR(name, type, value, condition)                                                       \
    static type name(wave *w, type a, type b)                                                      \
    {                                                                                              \
        type r = (type)(value);                                                                    \
        w->scc = (condition);                                                                      \
        return r;                                                                                  \
    }
#define SCALAR_COMPARE(name, type, op)                                                             \
    static void name(wave *w, type a, type b)                                                      \
    {                                                                                              \
        w->scc = a op b;                                                                           \
    }

SCALAR(s_add_u32, uint32_t, a + b, r < a)
SCALAR(s_addc_u32, uint32_t, a + b + w->scc, (uint64_t)a + b + w->scc > UINT32_MAX)
SCALAR(s_sub_u32, uint32_t, a - b, a < b)
SCALAR(s_subb_u32, uint32_t, a - b - w->scc, a < (uint64_t)b + w->scc)
SCALAR(s_add_i32, uint32_t, a + b, (~(a ^ b) & (a ^ r)) >> 31)
SCALAR(s_sub_i32, uint32_t, a - b, ((a ^ b) & (a ^ r)) >> 31)
SCALAR(s_min_u32, uint32_t, a < b ? a : b, a < b)
SCALAR(s_max_u32, uint32_t, a > b ? a : b, a > b)
SCALAR(s_mul_i32, uint32_t, a *b, w->scc)
SCALAR(s_mul_hi_u32, uint32_t, (uint64_t)a *b >> 32, w->scc)
SCALAR(s_lshl_b32, uint32_t, a << (b & 31), r != 0)
SCALAR(s_lshr_b32, uint32_t, a >> (b & 31), r != 0)
/* b: the first bit, and from bit 16 on how many */
SCALAR(s_bfe_u32, uint32_t, (uint64_t)a >> (b & 31) & ((UINT64_C(1) << (b >> 16 & 63)) - 1), r != 0)
SCALAR(s_bfm_b32, uint32_t, ((1u << (a & 31)) - 1) << (b & 31), w->scc)
SCALAR(s_lshl_b64, uint64_t, a << (b & 63), r != 0)
SCALAR(s_lshr_b64, uint64_t, a >> (b & 63), r != 0)
#define SCALAR_BITS(bits)                                                                          \
    SCALAR(s_and_b##bits, uint##bits##_t, a &b, r != 0)                                            \
    SCALAR(s_or_b##bits, uint##bits##_t, a | b, r != 0)                                            \
    SCALAR(s_xor_b##bits, uint##bits##_t, a ^ b, r != 0)                                           \
    SCALAR(s_andn2_b##bits, uint##bits##_t, a & ~b, r != 0)                                        \
    SCALAR(s_orn2_b##bits, uint##bits##_t, a | ~b, r != 0)                                         \
    SCALAR(s_cselect_b##bits, uint##bits##_t, w->scc ? a : b, w->scc)
SCALAR_BITS(32)
SCALAR_BITS(64)
SCALAR_COMPARE(s_cmp_eq_u32, uint32_t, ==)
SCALAR_COMPARE(s_cmp_lg_u32, uint32_t, !=)
SCALAR_COMPARE(s_cmp_lt_u32, uint32_t, <)
SCALAR_COMPARE(s_cmp_gt_u32, uint32_t, >)
SCALAR_COMPARE(s_cmp_le_u32, uint32_t, <=)
SCALAR_COMPARE(s_cmp_ge_u32, uint32_t, >=)
SCALAR_COMPARE(s_cmp_lg_i32, int32_t, !=)
SCALAR_COMPARE(s_cmp_lt_i32, int32_t, <)
SCALAR_COMPARE(s_cmp_gt_i32, int32_t, >)
SCALAR_COMPARE(s_cmp_eq_u64, uint64_t, ==)
SCALAR_COMPARE(s_cmp_lg_u64, uint64_t, !=)

static void s_bitcmp1_b32(wave *w, uint32_t a, uint32_t b)
{
    w->scc = a >> (b & 31) & 1;
}

static void s_bitcmp0_b32(wave *w, uint32_t a, uint32_t b)
{
    w->scc = !(a >> (b & 31) & 1);
}

static uint32_t s_not_b32(wave *w, uint32_t a)
{
    w->scc = a != 0xffffffffu;
    return ~a;
}

static uint32_t s_brev_b32(wave *w, uint32_t a)
{
    uint32_t r = 0;
    for (int i = 0; i < 32; i++)
        r |= (a >> i & 1) << (31 - i);
    return r;
}

OPERATION void s_and_saveexec(wave *w, uint32_t to, uint64_t a)
{
    uint64_t before = mask(w, EXEC);
    put_mask(w, EXEC, a & before);
    put_mask(w, to, before);
    w->scc = mask(w, EXEC) != 0;
}

OPERATION void s_or_saveexec(wave *w, uint32_t to, uint64_t a)
{
    uint64_t before = mask(w, EXEC);
    put_mask(w, EXEC, a | before);
    put_mask(w, to, before);
    w->scc = mask(w, EXEC) != 0;
}

OPERATION void s_andn2_saveexec(wave *w, uint32_t to, uint64_t a)
{
    uint64_t before = mask(w, EXEC);
    put_mask(w, EXEC, a & ~before);
    put_mask(w, to, before);
    w->scc = mask(w, EXEC) != 0;
}

static uint32_t v_readfirstlane_b32(const wave *w, const uint32_t *a)
{
    uint64_t on = mask(w, EXEC);
    return a[on != 0 ? __builtin_ctzll(on) : 0];
}

/* --- vector instructions --------------------------------------------------------------------- */

#define GET_32(p) (p)[i]
#define GET_64(p) ((p)[i] | (uint64_t)(p)[LANES + i] << 32)
#define PUT_32(p, x) (p)[i] = (uint32_t)(x)
#define PUT_64(p, x)                                                                               \
    do {                                                                                           \
        uint64_t x_ = (uint64_t)(x);                                                               \
        (p)[i] = (uint32_t)x_;                                                                     \
        (p)[LANES + i] = (uint32_t)(x_ >> 32);                                                     \
    } while (0)

/* Operands a, b, c of so many bits each, as bits. */
#define VECTOR1(name, bits, bits_a, value)                                                         \
    OPERATION void name(wave *w, uint32_t *to, const uint32_t *pa)                                 \
    {                                                                                              \
        EACH_LANE                                                                                  \
        {                                                                                          \
            const uint##bits_a##_t a = GET_##bits_a(pa);                                           \
            PUT_##bits(to, value);                                                                 \
        }                                                                                          \
    }
#define VECTOR2(name, bits, bits_a, bits_b, value)                                                 \
    OPERATION void name(wave *w, uint32_t *to, const uint32_t *pa, const uint32_t *pb)             \
    {                                                                                              \
        EACH_LANE                                                                                  \
        {                                                                                          \
            const uint##bits_a##_t a = GET_##bits_a(pa);                                           \
            const uint##bits_b##_t b = GET_##bits_b(pb);                                           \
            PUT_##bits(to, value);                                                                 \
        }                                                                                          \
    }
#define VECTOR3(name, bits, value)                                                                 \
    OPERATION void name(wave *w, uint32_t *to, const uint32_t *pa, const uint32_t *pb,             \
                        const uint32_t *pc)                                                        \
    {                                                                                              \
        EACH_LANE                                                                                  \
        {                                                                                          \
            const uint##bits##_t a = GET_##bits(pa), b = GET_##bits(pb), c = GET_##bits(pc);       \
            PUT_##bits(to, value);                                                                 \
        }                                                                                          \
    }

VECTOR1(v_mov_b32, 32, 32, a)
VECTOR1(v_not_b32, 32, 32, ~a)
VECTOR1(v_bfrev_b32, 32, 32, s_brev_b32(w, a))
VECTOR2(v_add_u32, 32, 32, 32, a + b)
VECTOR2(v_sub_u32, 32, 32, 32, a - b)
VECTOR2(v_sub_u32_clamp, 32, 32, 32, a > b ? a - b : 0)
VECTOR2(v_subrev_u32, 32, 32, 32, b - a)
VECTOR2(v_and_b32, 32, 32, 32, a &b)
VECTOR2(v_or_b32, 32, 32, 32, a | b)
VECTOR2(v_xor_b32, 32, 32, 32, a ^ b)
VECTOR2(v_min_u32, 32, 32, 32, a < b ? a : b)
VECTOR2(v_max_u32, 32, 32, 32, a > b ? a : b)
VECTOR2(v_min_i32, 32, 32, 32, (int32_t)a < (int32_t)b ? a : b)
VECTOR2(v_max_i32, 32, 32, 32, (int32_t)a > (int32_t)b ? a : b)
VECTOR2(v_lshlrev_b32, 32, 32, 32, b << (a & 31))
VECTOR2(v_lshrrev_b32, 32, 32, 32, b >> (a & 31))
VECTOR2(v_ashrrev_i32, 32, 32, 32, (int32_t)b >> (a & 31))
/* 16 bits: what is above them becomes 0, or stays from GFX10 on. */
#ifdef GFX9
VECTOR2(v_lshlrev_b16, 32, 32, 32, b << (a & 15) & 0xFFFF)
VECTOR2(v_lshrrev_b16, 32, 32, 32, (b & 0xFFFF) >> (a & 15))
#else
VECTOR2(v_lshlrev_b16, 32, 32, 32, (b << (a & 15) & 0xFFFF) | (to[i] & 0xFFFF0000))
VECTOR2(v_lshrrev_b16, 32, 32, 32, (b & 0xFFFF) >> (a & 15) | (to[i] & 0xFFFF0000))
#endif
VECTOR2(v_lshlrev_b64, 64, 32, 64, b << (a & 63))
VECTOR2(v_lshrrev_b64, 64, 32, 64, b >> (a & 63))
VECTOR2(v_mul_lo_u32, 32, 32, 32, a *b)
VECTOR2(v_mul_hi_u32, 32, 32, 32, (uint64_t)a *b >> 32)
VECTOR2(v_mul_u32_u24, 32, 32, 32, (uint64_t)(a & 0xFFFFFF) * (b & 0xFFFFFF))
VECTOR2(v_mul_i32_i24, 32, 32, 32, (int64_t)signed24((uint32_t)a) * signed24((uint32_t)b))
VECTOR2(v_mul_hi_i32_i24, 32, 32, 32,
        (uint64_t)((int64_t)signed24((uint32_t)a) * signed24((uint32_t)b)) >> 32)
VECTOR3(v_mad_u32_u24, 32, (a & 0xFFFFFF) * (b & 0xFFFFFF) + c)
VECTOR3(v_mad_i32_i24, 32, (uint32_t)((int64_t)signed24((uint32_t)a) * signed24((uint32_t)b)) + c)
VECTOR3(v_add3_u32, 32, a + b + c)
VECTOR3(v_xad_u32, 32, (a ^ b) + c)
VECTOR3(v_or3_b32, 32, a | b | c)
VECTOR3(v_xor3_b32, 32, a ^ b ^ c)
VECTOR3(v_and_or_b32, 32, (a & b) | c)
VECTOR3(v_lshl_or_b32, 32, a << (b & 31) | c)
VECTOR3(v_lshl_add_u32, 32, (a << (b & 31)) + c)
VECTOR3(v_add_lshl_u32, 32, (a + b) << (c & 31))
VECTOR3(v_alignbit_b32, 32, ((uint64_t)a << 32 | b) >> (c & 31))

static uint32_t below(uint32_t lane)
{
    return lane >= 32 ? UINT32_MAX : (1u << lane) - 1;
}
VECTOR2(v_mbcnt_lo_u32_b32, 32, 32, 32, (uint32_t)__builtin_popcount(a &below(i)) + b)
VECTOR2(v_mbcnt_hi_u32_b32, 32, 32, 32,
        (uint32_t)__builtin_popcount(i < 32 ? 0 : a & below(i - 32)) + b)

static uint32_t bit_field(uint32_t a, uint32_t from, uint32_t count)
{
    return a >> (from & 31) & ((1u << (count & 31)) - 1);
}

static uint32_t signed_bit_field(uint32_t a, uint32_t from, uint32_t count)
{
    uint32_t bits = bit_field(a, from, count), sign = count & 31 ? 1u << ((count & 31) - 1) : 0;
    return (bits ^ sign) - sign;
}
VECTOR3(v_bfe_u32, 32, bit_field(a, b, c))
VECTOR3(v_bfe_i32, 32, signed_bit_field(a, b, c))
VECTOR3(v_bfi_b32, 32, (a & b) | (~a & c))

static uint32_t max3(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t most = a > b ? a : b;
    return most > c ? most : c;
}

static uint32_t min3(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t least = a < b ? a : b;
    return least < c ? least : c;
}

VECTOR3(v_min3_u32, 32, min3(a, b, c))

static int32_t signed_min3(int32_t a, int32_t b, int32_t c)
{
    int32_t least = a < b ? a : b;
    return least < c ? least : c;
}
VECTOR3(v_max3_u32, 32, max3(a, b, c))
VECTOR3(v_min3_i32, 32, signed_min3((int32_t)a, (int32_t)b, (int32_t)c))

/* A byte of the eight, a sign spread over a byte, zeros or ones. */
static uint32_t chosen_byte(uint64_t bytes, uint32_t which)
{
    if (which < 8)
        return bytes >> which * 8 & 255;
    if (which < 12)
        return bytes >> ((which - 8) * 16 + 15) & 1 ? 255 : 0;
    return which == 12 ? 0 : 255;
}

static uint32_t permute(uint32_t a, uint32_t b, uint32_t choice)
{
    uint32_t r = 0;
    for (int k = 0; k < 32; k += 8)
        r |= chosen_byte((uint64_t)a << 32 | b, choice >> k & 255) << k;
    return r;
}
VECTOR3(v_perm_b32, 32, permute(a, b, c))

OPERATION void v_cndmask_b32(wave *w, uint32_t *to, const uint32_t *a, const uint32_t *b,
                             uint64_t choice)
{
    EACH_LANE to[i] = choice >> i & 1 ? b[i] : a[i];
}

/* Results with a carry: the mask of the lanes that have one. */
#define CARRY(name, value, out)                                                                    \
    OPERATION uint64_t name(wave *w, uint32_t *to, const uint32_t *pa, const uint32_t *pb,         \
                            uint64_t in)                                                           \
    {                                                                                              \
        uint64_t carries = 0;                                                                      \
        EACH_LANE                                                                                  \
        {                                                                                          \
            const uint64_t a = pa[i], b = pb[i], carry = in >> i & 1;                              \
            to[i] = (uint32_t)(value);                                                             \
            carries |= (uint64_t)(out) << i;                                                       \
        }                                                                                          \
        return carries;                                                                            \
    }
CARRY(v_add_co_ci_u32, a + b + carry, a + b + carry > UINT32_MAX)
CARRY(v_sub_co_ci_u32, a - b - carry, a < b + carry)
CARRY(v_subrev_co_ci_u32, b - a - carry, b < a + carry)

OPERATION uint64_t v_mad_u64_u32(wave *w, uint32_t *to, const uint32_t *pa, const uint32_t *pb,
                                 const uint32_t *pc)
{
    uint64_t carries = 0;
    EACH_LANE
    {
        const uint64_t c = GET_64(pc), sum = (uint64_t)pa[i] * pb[i] + c;
        PUT_64(to, sum);
        carries |= (uint64_t)(sum < c) << i;
    }
    return carries;
}

/* --- comparisons ----------------------------------------------------------------------------- */

#define COMPARE(name, type, bits, of, op)                                                          \
    OPERATION uint64_t v_cmp_##name(wave *w, const uint32_t *pa, const uint32_t *pb)               \
    {                                                                                              \
        uint64_t r = 0;                                                                            \
        EACH_LANE                                                                                  \
        {                                                                                          \
            const type a = of(GET_##bits(pa)), b = of(GET_##bits(pb));                             \
            r |= (uint64_t)(op) << i;                                                              \
        }                                                                                          \
        return r;                                                                                  \
    }
#define COMPARE_INTEGERS(name, type, bits)                                                         \
    COMPARE(eq_##name, type, bits, (type), a == b)                                                 \
    COMPARE(ne_##name, type, bits, (type), a != b)                                                 \
    COMPARE(lt_##name, type, bits, (type), a < b)                                                  \
    COMPARE(le_##name, type, bits, (type), a <= b)                                                 \
    COMPARE(gt_##name, type, bits, (type), a > b)                                                  \
    COMPARE(ge_##name, type, bits, (type), a >= b)
#define COMPARE_FLOATS(bits, type)                                                                 \
    COMPARE(eq_f##bits, type, bits, f##bits, a == b)                                               \
    COMPARE(lt_f##bits, type, bits, f##bits, a < b)                                                \
    COMPARE(le_f##bits, type, bits, f##bits, a <= b)                                               \
    COMPARE(gt_f##bits, type, bits, f##bits, a > b)                                                \
    COMPARE(ge_f##bits, type, bits, f##bits, a >= b)                                               \
    COMPARE(neq_f##bits, type, bits, f##bits, !(a == b))                                           \
    COMPARE(nlt_f##bits, type, bits, f##bits, !(a < b))                                            \
    COMPARE(nle_f##bits, type, bits, f##bits, !(a <= b))                                           \
    COMPARE(ngt_f##bits, type, bits, f##bits, !(a > b))                                            \
    COMPARE(nge_f##bits, type, bits, f##bits, !(a >= b))                                           \
    COMPARE(lg_f##bits, type, bits, f##bits, a<b || a> b)                                          \
    COMPARE(nlg_f##bits, type, bits, f##bits, !(a < b || a > b))                                   \
    COMPARE(o_f##bits, type, bits, f##bits, !isunordered(a, b))                                    \
    COMPARE(u_f##bits, type, bits, f##bits, isunordered(a, b))
COMPARE_INTEGERS(u16, uint16_t, 32)
COMPARE_INTEGERS(u32, uint32_t, 32)
COMPARE_INTEGERS(i32, int32_t, 32)
COMPARE_INTEGERS(u64, uint64_t, 64)
COMPARE_INTEGERS(i64, int64_t, 64)
COMPARE_FLOATS(32, float)
COMPARE_FLOATS(64, double)

/* The bit of a number's class: a signalling NaN, a quiet one, then from -inf up to +inf. */
static uint32_t class_of(int kind, int negative, int signalling)
{
    if (kind == FP_NAN)
        return signalling ? 1 : 2;
    int size = kind == FP_INFINITE ? 3 : kind == FP_NORMAL ? 2 : kind == FP_SUBNORMAL ? 1 : 0;
    return 1u << (negative ? 5 - size : 6 + size);
}

static uint32_t class_f32(uint32_t a)
{
    return class_of(fpclassify(f32(a)), (int)(a >> 31), !(a & quiet_32));
}

static uint32_t class_f64(uint64_t a)
{
    return class_of(fpclassify(f64(a)), (int)(a >> 63), !(a & quiet_64));
}

#define COMPARE_CLASS(bits)                                                                        \
    OPERATION uint64_t v_cmp_class_f##bits(wave *w, const uint32_t *pa, const uint32_t *pb)        \
    {                                                                                              \
        uint64_t r = 0;                                                                            \
        EACH_LANE r |= (uint64_t)((class_f##bits(GET_##bits(pa)) & pb[i]) != 0) << i;              \
        return r;                                                                                  \
    }
COMPARE_CLASS(32)
COMPARE_CLASS(64)

#endif
