/*
 * Companded states on a GPU: the arithmetic of state_codes.h for the eight elements of a thread.
 * Part of state_codes_gpu.h, which includes it behind what it needs.
 */
#ifndef MO_KERNELS_OPTIM_COMPANDED_GPU_H
#define MO_KERNELS_OPTIM_COMPANDED_GPU_H

template <> struct mo_codec<MO_STATE_COMPANDED> {
    typedef struct alignas(16) {
        uint32_t map_signed[256], map_unsigned[256];
    } tables;

    MO_DEVICE void load(tables *t)
    {
        static_assert(MO_OPTIM_THREADS == 256, "a thread for each code");
        uint32_t code = mo_thread_index();
        t->map_signed[code] = mo_f32_bits(mo_format_value(MO_STATE_COMPANDED, 1, code, 1.0f));
        t->map_unsigned[code] = mo_f32_bits(mo_format_value(MO_STATE_COMPANDED, 0, code, 1.0f));
    }

    MO_DEVICE void decode(const tables *t, int is_signed, const uint32_t words[2], float scale,
                          float values[8])
    {
        mo_decode_bytes(is_signed ? t->map_signed : t->map_unsigned, words, scale, values);
    }

    /* mo_code_companded_signed or _slow, of y that are not NaN. */
    MO_DEVICE void encode(const tables *t, int is_signed, const float y[8], uint32_t words[2])
    {
        uint32_t codes[8];
        (void)t;
        MO_UNROLL
        for (int k = 0; k < 8; k++)
            codes[k] = mo_f32_bits(
                is_signed == MO_SLOW
                    ? mo_companded_cube_root(y[k], mo_companded_slow_draw(y[k])) + MO_COMPAND_ROUND
                    : mo_companded_cube_root(y[k], MO_COMPAND_ROUND));
        words[0] = mo_lower_bytes(codes);
        words[1] = mo_lower_bytes(codes + 4);
    }
};

/* Codes of second moments by approximations: where the fourth root lies seldom matters to a code.
 * It is at most 2^-20 * 0.88 off (the square of it by two roots and a reciprocal 2^-22 each, their
 * two products and the exact roots, quotient and product 2^-24 each, of which a root leaves half;
 * the two last roots 2^-22 and 2^-24). So the exact one lies between one that much smaller and one
 * that much larger. Adding and comparing are monotone: if both give the same code, it is the exact
 * one.
 *
 * Returns 0 if this does not decide. */
MO_DEVICE int mo_companded_near(const float values[8], uint32_t largest, uint32_t words[2])
{
    const float slack = 0x1p-20f, square = MO_COMPAND_TOP * MO_COMPAND_TOP;
    float inverse = mo_reciprocal_near(mo_sqrtf_near(mo_f32_from_bits(largest))) * square;
    uint32_t codes[8], differ = 0;
    MO_UNROLL
    for (int k = 0; k < 8; k++) {
        float root = mo_sqrtf_near(mo_sqrtf_near(values[k]) * inverse);
        float draw = mo_companded_draw(values[k]);
        float low = mo_fmaf(root, 1.0f - slack, draw), high = mo_fmaf(root, 1.0f + slack, draw);
        codes[k] = mo_f32_bits(mo_at_least(low, MO_COMPAND_DRAW_LEAST));
        differ |= codes[k] ^ mo_f32_bits(mo_at_least(high, MO_COMPAND_DRAW_LEAST));
    }
    words[0] = mo_second_bytes(codes);
    words[1] = mo_second_bytes(codes + 4);
    return mo_kept(differ >> 8) == 0 && mo_scale_is_plain(largest);
}

/* Returns the absmax to store. In a poisoned block all codes are 0. */
MO_DEVICE float mo_companded_second(const float values[8], uint32_t largest, uint32_t words[2])
{
    if (!MO_RARE(!mo_companded_near(values, largest, words)))
        return mo_f32_from_bits(largest);
    mo_block_scale scale = mo_block_scale_companded_of(largest);
    uint32_t codes[8];
    MO_UNROLL
    for (int k = 0; k < 8; k++)
        codes[k] = mo_code_companded_unsigned(values[k], mo_sqrtf(values[k]) * scale.inverse);
    words[0] = mo_lower_bytes(codes);
    words[1] = mo_lower_bytes(codes + 4);
    return scale.absmax;
}

#endif
