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

/* mo_companded_draw. From two instructions with a constant each no compiler makes one. */
MO_DEVICE float mo_companded_draw_gpu(float x)
{
#if MO_NVCC_DEVICE
    uint32_t bits;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" /* a & b | c */
        : "=r"(bits)
        : "r"(mo_f32_bits(x)), "r"(MO_COMPAND_DRAW_MASK), "r"(MO_COMPAND_DRAW_BITS));
    return mo_f32_from_bits(bits);
#else
    return mo_companded_draw(x);
#endif
}

/* Codes of second moments by approximations: where the fourth root lies seldom matters to a code.
 * It is at most 2^-20 * 1.32 off: of an approximation a root leaves half (two roots 2^-22 each, so
 * 2^-22 * 1.5, of the value and of the largest one; its reciprocal 2^-22 and the two products 2^-24
 * each; the exact roots, quotient and product 2^-24 each). So the exact one lies between one that
 * much smaller and one that much larger. Adding and comparing are monotone: if both give the same
 * code, it is the exact one.
 *
 * Sums that are below code 0 become its least one, where CLAMPED. Returns 0 if this does not
 * decide; else a word that has bit 24 if no sum was below code 0. */
template <int CLAMPED>
MO_DEVICE uint32_t mo_companded_near(const float values[8], uint32_t largest, uint32_t words[2])
{
    const float slack = 0x1.6p-20f;
    float top = mo_sqrtf_near(mo_sqrtf_near(mo_f32_from_bits(largest)));
    float inverse = mo_reciprocal_near(top) * MO_COMPAND_TOP;
    float less = inverse * (1.0f - slack), more = inverse * (1.0f + slack);
    uint32_t codes[8], differ = 0, all = ~0u;
    MO_UNROLL
    for (int k = 0; k < 8; k++) {
        float root = mo_sqrtf_near(mo_sqrtf_near(values[k]));
        float draw = mo_companded_draw_gpu(values[k]);
        float low = mo_fmaf(root, less, draw), high = mo_fmaf(root, more, draw);
        if (CLAMPED) {
            low = mo_at_least(low, MO_COMPAND_DRAW_LEAST);
            high = mo_at_least(high, MO_COMPAND_DRAW_LEAST);
        }
        codes[k] = mo_f32_bits(low);
        differ |= codes[k] ^ mo_f32_bits(high);
        all &= codes[k];
    }
    words[0] = mo_second_bytes(codes);
    words[1] = mo_second_bytes(codes + 4);
    return mo_kept(differ & 0xffffff00u) == 0 ? all : 0;
}

/* Returns the absmax to store. In a poisoned block all codes are 0. */
MO_DEVICE float mo_companded_second(const float values[8], uint32_t largest, uint32_t words[2])
{
    const uint32_t from_0 = 1u << 24; /* of sums from 2^15 to below 2^17 */
    if (!MO_RARE(!mo_scale_is_plain(largest))) {
        uint32_t near = mo_companded_near<0>(values, largest, words);
        if (MO_RARE(!(near & from_0)))
            near = mo_companded_near<1>(values, largest, words);
        if (!MO_RARE(!(near & from_0)))
            return mo_f32_from_bits(largest);
    }
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
