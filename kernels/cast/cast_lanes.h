/*
 * Loads, roundings and stores of elements over the vectors of one instruction set: include a
 * vector_*.h first. A group is four vectors of values as f32 bits. Types are constants to the
 * compiler. Adding to round 8-bit floats relies on the default rounding mode.
 */
#ifndef MO_KERNELS_CAST_CAST_LANES_H
#define MO_KERNELS_CAST_CAST_LANES_H

#include "kernels/cast/cast_cpu.h"
#include "kernels/core/vector_stochastic.h"

enum { CAST_GROUP = 4 * MO_LANES_N };

/* --- loads ----------------------------------------------------------------------------------- */

/* A normal number only moves. A subnormal one is that of one exponent more, less 2^-6. Of the two
 * the smaller is right. (A multiplication by 2^120 would do, but subnormal f32 are slow.) */
MO_INLINE VI cast_from_e4m3(VI code)
{
    VI a = v_sll(v_and(code, v_seti(0x7f)), 20), sign = v_sll(v_srl(code, 7), 31);
    VF subnormal = v_sub(v_bits(v_addi(a, v_seti(121 << 23))), v_set(0x1p-6f));
    VI value = v_mini(v_addi(a, v_seti(120 << 23)), v_ints(subnormal));
    value = v_selecti(v_eqi(a, v_seti(0x07f00000)), v_seti((int)MO_F32_NAN_BITS), value);
    return v_or(value, sign);
}

/* The same with other numbers, and one NaN. */
MO_INLINE VI cast_from_fnuz(VI code, int mantissa, int bias)
{
    VI a = v_sll(v_and(code, v_seti(0x7f)), 23 - mantissa), sign = v_sll(v_srl(code, 7), 31);
    VF least = v_bits(v_seti((128 - bias) << 23));
    VF subnormal = v_sub(v_bits(v_addi(a, v_seti((128 - bias) << 23))), least);
    VI value = v_or(v_mini(v_addi(a, v_seti((127 - bias) << 23)), v_ints(subnormal)), sign);
    return v_selecti(v_eqi(code, v_seti(0x80)), v_seti((int)MO_F32_NAN_BITS), value);
}

MO_INLINE void cast_load(const unsigned char *source, uint64_t i, uint32_t from, VI v[4])
{
    for (uint64_t k = 0; k < 4; k++, i += MO_LANES_N)
        if (from == MO_DTYPE_F8_E4M3)
            v[k] = cast_from_e4m3(v_load_codes(source + i));
        else if (from == MO_DTYPE_F8_E4M3FNUZ)
            v[k] = cast_from_fnuz(v_load_codes(source + i), 3, 8);
        else if (from == MO_DTYPE_F8_E5M2FNUZ)
            v[k] = cast_from_fnuz(v_load_codes(source + i), 2, 16);
        else if (from == MO_DTYPE_F8_E5M2)
            v[k] = v_ints(v_load_e5m2(source + i));
        else
            v[k] = v_ints(v_load_as(source, i, (int32_t)from));
}

/* --- 8-bit floats ---------------------------------------------------------------------------- */

typedef struct cast_f8 {
    uint32_t mantissa, bias;
    uint32_t largest, beyond; /* f32 bits of the largest number and of the one after it */
} cast_f8;

MO_INLINE cast_f8 cast_f8_of(uint32_t dtype)
{
    return dtype == MO_DTYPE_F8_E4M3       ? (cast_f8){3, 7, 0x43e00000u, 0x43f00000u}
           : dtype == MO_DTYPE_F8_E4M3FNUZ ? (cast_f8){3, 8, 0x43700000u, 0x43800000u}
           : dtype == MO_DTYPE_F8_E5M2FNUZ ? (cast_f8){2, 16, 0x47600000u, 0x47800000u}
                                           : (cast_f8){2, 15, 0x47600000u, 0x47800000u};
}

/* A magnitude's code without sign; a NaN's is negative. The sum has a last place of one quantum of
 * the result, so it ends in the rounded number of quanta. An overflow counts as the number after
 * the largest, whose code is that of infinity, or e4m3's NaN. */
MO_INLINE VI cast_f8_nearest(VI u, cast_f8 f, int saturate)
{
    int shift = 23 - (int)f.mantissa;
    int first = (shift << 23) + (int)((128 - f.bias) << f.mantissa);
    VF limit = v_bits(v_seti((int)(saturate ? f.largest : f.beyond)));
    VF a = v_min(limit, v_bits(mo_magnitude_lanes(u))); /* a NaN stays */
    VI least = v_seti((int)(128 - f.bias) << 23);
    VI power = v_and(v_maxi(v_ints(a), least), v_seti((int)MO_F32_INF_BITS));
    VF sum = v_fma(v_bits(power), v_set((float)(1 << shift)), a);
    VI quanta = v_subi(v_subi(v_ints(sum), power), v_seti(first));
    return v_addi(quanta, v_srl(power, shift));
}

/* Likewise. Between the largest number and the one after it a value rounds down. */
MO_INLINE VI cast_f8_stochastic(VI u, cast_f8 f, int saturate, VI random)
{
    VI a = mo_magnitude_lanes(u);
    VI code = v_mini(a, v_seti((int)f.largest));
    code = mo_round_stochastic_lanes(code, f.mantissa, f.bias, random);
    code = v_selecti(v_gti(a, v_seti((int)f.beyond - 1)),
                     v_seti((int)((saturate ? f.largest : f.beyond) >> (23 - f.mantissa)) -
                            (int)((127 - f.bias) << f.mantissa)),
                     code);
    return v_selecti(v_gti(a, v_seti((int)MO_F32_INF_BITS)), v_seti(-128), code);
}

/* Four vectors of bytes: NaNs get their code, and all their sign. */
MO_INLINE VI cast_f8_bytes(const VI code[4], const VI u[4])
{
    VI sign = v_and(v_pack_bytes(u), v_seti((int)0x80808080u));
    return v_or(v_min_bytes(v_pack_bytes(code), v_seti(0x7f7f7f7f)), sign);
}

/* fnuz: what is above 127, and a NaN, becomes 0x80; 0 has no sign. */
MO_INLINE VI cast_fnuz_bytes(const VI code[4], const VI u[4])
{
    VI fixed[4];
    for (int k = 0; k < 4; k++)
        fixed[k] = v_selecti(v_gti(code[k], v_seti(127)), v_seti(-128), code[k]);
    VI bytes = v_pack_bytes(fixed), some = v_add_bytes(bytes, v_seti(0x7f7f7f7f));
    VI sign = v_and(v_and(v_pack_bytes(u), some), v_seti((int)0x80808080u));
    return v_or(bytes, sign);
}

/* --- stores ---------------------------------------------------------------------------------- */

MO_INLINE VI cast_bf16_nearest(VI u)
{
    VI odd = v_and(v_srl(u, 16), v_seti(1));
    VI rounded = v_addi(v_addi(u, v_seti(0x7fff)), odd);
    return v_selecti(v_is_nan(v_bits(u)), v_or(u, v_seti((int)MO_F32_QUIET_BIT)), rounded);
}

/* The codes in 32-bit lanes, in their upper halves for bf16. f16 to nearest is left to v_f16. */
MO_INLINE VI cast_code(VI u, uint32_t to, int saturate, const VI *random, int k)
{
    if (to == MO_DTYPE_F16)
        return random ? mo_f16_stochastic_lanes(u, mo_random_lane(random, k)) : u;
    if (to == MO_DTYPE_BF16)
        return random ? mo_bf16_stochastic_lanes(u, mo_random_lane(random, k))
                      : cast_bf16_nearest(u);
    return random ? cast_f8_stochastic(u, cast_f8_of(to), saturate, mo_random_lane(random, k))
                  : cast_f8_nearest(u, cast_f8_of(to), saturate);
}

/* random: the group's halfwords, or NULL: to nearest. An element of n bytes makes n vectors. */
MO_INLINE void cast_store(const mo_cast_piece *p, uint64_t i, uint32_t to, const VI u[4],
                          const VI *random)
{
    unsigned char *at = p->destination + i * mo_element_size(to);
    VI v[4] = {u[0], u[1], u[2], u[3]};
    if (to != MO_DTYPE_F32)
        for (int k = 0; k < 4; k++)
            v[k] = cast_code(u[k], to, p->saturate, random, k);
    for (int k = 0; k < 2; k++)
        if (to == MO_DTYPE_BF16)
            v[k] = v_high_halves(v[2 * k], v[2 * k + 1]);
        else if (to == MO_DTYPE_F16)
            v[k] = random ? v_low_halves(v[2 * k], v[2 * k + 1])
                          : v_f16(v_bits(v[2 * k]), v_bits(v[2 * k + 1]));
    if (mo_element_size(to) == 1)
        v[0] = to >= MO_DTYPE_F8_E4M3FNUZ ? cast_fnuz_bytes(v, u) : cast_f8_bytes(v, u);
    for (uint32_t k = 0; k < mo_element_size(to); k++)
        v_put(at + k * sizeof(VI), v[k], p->streaming);
}

#endif
