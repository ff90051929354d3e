/*
 * bf16 blocks of e4m3 with a scale of f32, over the vectors of one instruction set: include a
 * vector_*.h first. No value passes through f32: a magnitude's code follows from its exponent, and
 * from its mantissa's place between borders that the scale's mantissa decides.
 */
#ifndef MO_KERNELS_CAST_BLOCKS_E4M3_H
#define MO_KERNELS_CAST_BLOCKS_E4M3_H

#include "kernels/cast/blocks_halves.h"

/* How a block's magnitudes become codes. */
typedef struct halves_finder {
#if defined(V_HAS_LOOKUP128)
    VT128 place;
    VI start;
#else
    const mo_e4m3_borders *of;
    VI start;
#endif
} halves_finder;

#if defined(V_HAS_LOOKUP128)

MO_INLINE halves_finder halves_finder_of(const mo_e4m3_scale *scale)
{
    return (halves_finder){v_table128(scale->borders->place), v_setb((char)(scale->start >> 7))};
}

/* The bytes of two vectors of halfwords of one block: a mantissa's place in its binade is in a
 * table. *odd: as in halves_codes8, or an infinity or a NaN. */
MO_INLINE VI halves_found8(const halves_finder *of, const unsigned char *at, int nans, VI *odd)
{
    VI h[2] = {v_loadi(at), v_loadi(at + sizeof(VI))};
    VI exponent = v_high_bytes(v_addh(h[0], h[0]), v_addh(h[1], h[1]));
    VI binade = v_less_bytes(exponent, of->start);
    if (nans) {
        *odd = v_or(*odd, v_less_bytes(exponent, v_setb((char)254)));
        binade = v_min_bytes(binade, v_setb(22));
    }
    VI place = v_lookup128(&of->place, v_low_bytes_of(h[0], h[1]));
    VI bytes = v_add_bytes(v_sll(binade, 3), place);
    *odd = v_or(*odd, v_min_bytes(v_less_bytes(v_setb(48), bytes), binade));
    bytes = v_less_bytes(bytes, v_setb(40));
    if (nans)
        bytes = v_min_bytes(bytes, v_setb(0x7e));
    return v_merge(bytes, v_high_bytes(h[0], h[1]), v_seti((int)0x80808080u));
}

#else

MO_INLINE halves_finder halves_finder_of(const mo_e4m3_scale *scale)
{
    return (halves_finder){scale->borders, v_seth(scale->start)};
}

/* The bytes of two vectors of halfwords of one block: a binade's eight codes are found between
 * seven borders. *odd: as in halves_codes8, or a NaN. */
MO_INLINE VI halves_found8(const halves_finder *of, const unsigned char *at, int nans, VI *odd)
{
    VI t[2], h[2] = {v_loadi(at), v_loadi(at + sizeof(VI))};
    for (int k = 0; k < 2; k++) {
        VI a = v_and(h[k], v_seth(0x7fff));
        t[k] = v_less_halves(a, of->start);
        if (nans)
            *odd = v_or(*odd, v_less_halves(a, v_seth(0x7f80)));
    }
    VI binade = v_and(v_pack_halves(v_srlh(t[0], 4), v_srlh(t[1], 4)), v_setb((char)0xf8));
    VI place = v_pack_halves(v_and(t[0], v_seth(0x7f)), v_and(t[1], v_seth(0x7f)));
    VI bytes = v_add_bytes(binade, v_search8(of->of->second, of->of->third, place));
    *odd = v_or(*odd, v_less_bytes(v_setb(39), v_sub_bytes(bytes, v_setb(1))));
    bytes = v_min_bytes(v_less_bytes(bytes, v_setb(32)), v_setb(0x7e));
    return v_pack_order(v_merge(bytes, v_pack_signed(h[0], h[1]), v_seti((int)0x80808080u)));
}

#endif

/* Whole blocks of 128. Those with wrong codes are made again at the end, by `others`; where the
 * first four all are, everything is left to it. Returns how many elements of each row are done. */
MO_INLINE uint64_t halves_e4m3(const mo_strip_rows *all, int nans, int streaming,
                               mo_strip_function others)
{
    const uint64_t count = all->strip.count / 128 * 128;
    mo_block_strip part = all->strip;
    uint64_t wrong[MO_BLOCKS_TILE];
    uint32_t blocks = 0, right = 0;
    for (uint64_t r = 0; r < all->rows; r++) {
        wrong[r] = 0;
        for (uint64_t i = 0; i < count; i += 128) {
            const halves_finder of = halves_finder_of(&part.e4m3[i / 128]);
            VI odd = v_seti(0);
            for (uint64_t k = i; k < i + 128; k += 2 * HALVES_N) {
                const unsigned char *at = part.values + 2 * k;
                mo_prefetch(at + part.ahead, 2 * sizeof(VI));
                v_put(part.codes + k, halves_found8(&of, at, nans, &odd), streaming);
            }
            const uint64_t some = (uint64_t)v_any(odd);
            wrong[r] |= some << i / 128;
            right += some == 0;
            if (++blocks == 4 && right == 0)
                return 0;
        }
        part.values += all->value_step;
        part.codes += all->code_step;
    }
    part.values = all->strip.values;
    part.codes = all->strip.codes;
    for (uint64_t r = 0; r < all->rows; r++) {
        for (uint64_t b = 0; wrong[r] >> b != 0; b++)
            if (wrong[r] >> b & 1) {
                part.count = (b + 1) * 128;
                others(&part, b * 128);
            }
        part.values += all->value_step;
        part.codes += all->code_step;
    }
    return count;
}

#endif
