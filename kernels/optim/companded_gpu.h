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

    MO_DEVICE float least()
    {
        return 1.0f;
    }

    /* mo_code_companded_signed and _unsigned of y that are not NaN. */
    MO_DEVICE void encode(const tables *t, int is_signed, const float y[8], uint32_t words[2])
    {
        uint32_t codes[8];
        (void)t;
        MO_UNROLL
        for (int k = 0; k < 8; k++) {
            float slope = mo_cubic(mo_magnitude(y[k]), MO_COMPAND_0, MO_COMPAND_1, MO_COMPAND_2,
                                   MO_COMPAND_3);
            codes[k] = mo_f32_bits(is_signed ? mo_fmaf(y[k], slope, MO_COMPAND_ROUND)
                                             : mo_companded_up(y[k]) + MO_COMPAND_ROUND);
        }
        words[0] = mo_lower_bytes(codes);
        words[1] = mo_lower_bytes(codes + 4);
    }
};

/* Codes of positive second moments by approximations: where the root times its scale lies seldom
 * matters to a code. It is at most 2^-20 * 1.25 off (two roots and a reciprocal 2^-22 each, their
 * two products 2^-24; the exact roots, quotient and product 2^-24 each; where it is raised, both
 * sums 2^-24), so the exact one lies between those of a root that much smaller and one that much
 * larger. Raising, fma and rounding are monotone, and raising adds to both: if both give the same
 * code, it is the exact one.
 *
 * Returns 0 if this does not decide. */
MO_DEVICE int mo_companded_near(const float values[8], uint32_t largest, int32_t least,
                                uint32_t words[2])
{
    const float slack = 0x1.6p-20f;
    float y[8], inverse = mo_reciprocal_near(mo_sqrtf_near(mo_f32_from_bits(largest))) * 255.0f;
    uint32_t codes[8], differ = 0;
    MO_UNROLL
    for (int k = 0; k < 8; k++)
        y[k] = mo_sqrtf_near(values[k]) * inverse;
    if (MO_RARE(!(mo_sqrtf_near(mo_f32_from_bits((uint32_t)least)) * inverse > 4.01f))) {
        mo_from_least<MO_STATE_COMPANDED>(y);
        MO_UNROLL
        for (int k = 0; k < 8; k++)
            y[k] = mo_companded_up(y[k]);
    }
    MO_UNROLL
    for (int k = 0; k < 8; k++) {
        codes[k] = mo_f32_bits(mo_fmaf(y[k], 1.0f - slack, MO_COMPAND_ROUND));
        differ |= codes[k] ^ mo_f32_bits(mo_fmaf(y[k], 1.0f + slack, MO_COMPAND_ROUND));
    }
    words[0] = mo_lower_bytes(codes);
    words[1] = mo_lower_bytes(codes + 4);
    return mo_kept(differ) == 0 && mo_scale_is_plain(largest) && least > 0;
}

#endif
