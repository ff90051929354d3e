/*
 * Companded states on a GPU: the arithmetic of state_codes.h for the eight elements of a thread.
 * Part of state_codes_gpu.h, which includes it behind what it needs.
 */
#ifndef MO_KERNELS_OPTIM_COMPANDED_GPU_H
#define MO_KERNELS_OPTIM_COMPANDED_GPU_H

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

    /* Of y that are not NaN. */
    MO_DEVICE void encode(const tables *t, int is_signed, const float y[8], uint32_t words[2])
    {
        uint32_t codes[8];
        (void)t;
        MO_UNROLL
        for (int k = 0; k < 8; k++) {
            float sum =
                is_signed == MO_SLOW
                    ? mo_companded_cube_root(y[k], mo_companded_slow_draw(y[k])) + MO_COMPAND_ROUND
                : is_signed
                    ? mo_companded_cube_root(y[k], MO_COMPAND_ROUND)
                    : mo_at_least(mo_companded_fourth_root(y[k], mo_companded_draw_gpu(y[k])),
                                  MO_COMPAND_DRAW_LEAST);
            codes[k] = mo_f32_bits(sum);
        }
        words[0] = is_signed ? mo_lower_bytes(codes) : mo_second_bytes(codes);
        words[1] = is_signed ? mo_lower_bytes(codes + 4) : mo_second_bytes(codes + 4);
    }
};

#endif
