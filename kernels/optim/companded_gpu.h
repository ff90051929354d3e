/*
 * Companded states on a GPU: the arithmetic of state_codes.h for the eight elements of a thread.
 * Part of state_codes_gpu.h, which includes it behind what it needs.
 */
#ifndef MO_KERNELS_OPTIM_COMPANDED_GPU_H
#define MO_KERNELS_OPTIM_COMPANDED_GPU_H

/* A code is a float without a conversion: put below the bits of 2^23. */
MO_DEVICE float mo_companded_float(int is_signed, uint32_t code)
{
    return is_signed ? mo_f32_from_bits(0x4b000000u | (code ^ 0x80u)) - 0x1.0001p23f
                     : mo_f32_from_bits(0x4b000000u | code) - 0x1p23f;
}

template <> struct mo_codec<MO_STATE_COMPANDED> {
    typedef uint32_t tables;

    MO_DEVICE void load(tables *t)
    {
        (void)t;
    }

    MO_DEVICE void decode(const tables *t, int is_signed, const uint32_t codes[8], float scale,
                          float values[8])
    {
        (void)t;
        MO_UNROLL
        for (int k = 0; k < 8; k++) {
            float code = mo_companded_float(is_signed, codes[k]);
            values[k] = (is_signed ? mo_expand_signed(code) : mo_expand_unsigned(code)) * scale;
        }
    }

    MO_DEVICE void encode(const tables *t, int is_signed, const float x[8], const float y[8],
                          uint32_t codes[8])
    {
        (void)t;
        MO_UNROLL
        for (int k = 0; k < 8; k++) {
            float least = y[k] > 1.0f ? y[k] : 1.0f;
            codes[k] = is_signed ? mo_code_companded_signed(y[k])
                                 : mo_f32_bits(least + MO_COMPAND_ROUND) & 0xffu;
        }
        if (!is_signed)
            mo_zero_codes(x, codes);
    }
};

#endif
