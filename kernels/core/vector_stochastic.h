/*
 * Stochastic rounding to 16 bits over the vectors of one instruction set: random bits (numerics.h
 * has the specification) and roundings of values as fp32 bits. Include a vector_*.h first.
 */
#ifndef MO_KERNELS_CORE_VECTOR_STOCHASTIC_H
#define MO_KERNELS_CORE_VECTOR_STOCHASTIC_H

/* --- random bits ----------------------------------------------------------------------------- */

/* Ten rounds on `vectors` times MO_LANES_N / 2 blocks; each word of a block in the low half of a
 * 64-bit lane (the upper halves hold what the multiplication ignores). */
MO_INLINE void mo_philox_lanes(VI (*c)[4], int vectors, const uint32_t key[2])
{
    VI k0 = v_seti((int)key[0]), k1 = v_seti((int)key[1]);
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++) {
        for (int v = 0; v < vectors; v++) {
            VI p0 = v_mul_wide(c[v][0], v_set64(0xd2511f53));
            VI p1 = v_mul_wide(c[v][2], v_set64(0xcd9e8d57));
            c[v][0] = v_xor3(v_srl64(p1, 32), c[v][1], k0);
            c[v][1] = p1;
            c[v][2] = v_xor3(v_srl64(p0, 32), c[v][3], k1);
            c[v][3] = p0;
        }
        k0 = v_addi(k0, v_seti((int)0x9e3779b9u));
        k1 = v_addi(k1, v_seti((int)0xbb67ae85u));
    }
}

/* The random halfwords of 8 MO_LANES_N elements from `element` (a multiple of that) on, in order.
 * The lanes take the blocks in such an order that the transposition of 4 x 4 words in every 16
 * bytes leaves them sorted. */
MO_INLINE void mo_random_lanes(const mo_random_stream *stream, uint64_t element, VI r[4])
{
    enum { Q = MO_LANES_N / 4 };
    static const uint64_t order[8] = {0, 2 * Q, 1, 2 * Q + 1, 2, 2 * Q + 2, 3, 2 * Q + 3};
    uint64_t block = element / 8;
    VI c[2][4], w[4];
    c[0][0] = v_add64(v_set64((long long)block), v_loadi(order));
    c[1][0] = v_add64(c[0][0], v_set64(Q));
    c[0][1] = c[1][1] = v_set64((long long)(block >> 32));
    c[0][2] = c[1][2] = v_set64(stream->high[0]);
    c[0][3] = c[1][3] = v_set64(stream->high[1]);
    mo_philox_lanes(c, 2, stream->key);
    for (int k = 0; k < 4; k++)
        w[k] = v_even32(c[0][k], c[1][k]);
    VI x = v_zip32_low(w[0], w[1]), y = v_zip32_low(w[2], w[3]);
    VI z = v_zip32_high(w[0], w[1]), t = v_zip32_high(w[2], w[3]);
    r[0] = v_zip64_low(x, y);
    r[1] = v_zip64_high(x, y);
    r[2] = v_zip64_low(z, t);
    r[3] = v_zip64_high(z, t);
}

/* Halfwords MO_LANES_N k and following of those in `random`, each in a lane. */
MO_INLINE VI mo_random_lane(const VI *random, int k)
{
    return k & 1 ? v_widen_high(random[k >> 1]) : v_widen_low(random[k >> 1]);
}

/* --- roundings ------------------------------------------------------------------------------- */

MO_INLINE VI mo_magnitude_lanes(VI u)
{
    return v_and(u, v_seti(0x7fffffff));
}

/* mo_round_stochastic. Subnormals: the number of 2^-16 quanta, cut, plus the random bits. */
MO_INLINE VI mo_round_stochastic_lanes(VI a, uint32_t mantissa, uint32_t bias, VI random)
{
    int shift = 23 - (int)mantissa;
    VI noise = shift < 16 ? v_srl(random, 16 - (shift & 15)) : v_sll(random, shift & 15);
    VI normal = v_srl(v_addi(v_subi(a, v_seti((int)(127 - bias) << 23)), noise), shift);
    VI quanta = v_cut(v_mul(v_bits(a), v_bits(v_seti((int)(142 + bias + mantissa) << 23))));
    VI subnormal = v_srl(v_addi(quanta, random), 16);
    return v_selecti(v_gti(a, v_seti((int)(((128 - bias) << 23) - 1))), normal, subnormal);
}

/* The codes are in the upper halves of the lanes; NaNs are quiet. */
MO_INLINE VI mo_bf16_stochastic_quiet(VI u, VI random)
{
    return v_addi(u, v_only(v_gti(v_seti(0x7f7f0000), mo_magnitude_lanes(u)), random));
}

MO_INLINE VI mo_bf16_stochastic_lanes(VI u, VI random)
{
    VI nan = v_only(v_gti(mo_magnitude_lanes(u), v_seti((int)MO_F32_INF_BITS)),
                    v_seti((int)MO_F32_QUIET_BIT));
    return v_or(mo_bf16_stochastic_quiet(u, random), nan);
}

/* The codes are in the lower halves of the lanes. Beyond 65504 a value rounds down. */
MO_INLINE VI mo_f16_stochastic_lanes(VI u, VI random)
{
    VI a = mo_magnitude_lanes(u), largest = v_seti(0x477fe000);
    VI code = mo_round_stochastic_lanes(v_mini(a, largest), 10, 15, random);
    VI payload = v_or(v_and(v_srl(a, 13), v_seti(0x3ff)), v_seti(0x7e00));
    code = v_selecti(v_gti(a, v_seti(0x477fffff)), v_seti(0x7c00), code);
    code = v_selecti(v_gti(a, v_seti((int)MO_F32_INF_BITS)), payload, code);
    return v_or(code, v_and(v_srl(u, 16), v_seti(0x8000)));
}

#endif
