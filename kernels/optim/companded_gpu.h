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

/* mo_companded_cube_root of two. */
MO_DEVICE mo_two mo_companded_cube_roots(mo_two y, mo_two addend)
{
    mo_two r, u;
    MO_UNROLL
    for (int k = 0; k < 2; k++)
        r.of[k] = mo_inverse_cube_root_near(mo_magnitude(y.of[k]));
    mo_two root = mo_mul2(y, mo_mul2(r, r));
    MO_UNROLL
    for (int k = 0; k < 2; k++)
        u.of[k] = mo_magnitude(root.of[k]) * r.of[k];
    mo_two slope = mo_fma2(mo_both(MO_COMPAND_2), u, mo_both(MO_COMPAND_1));
    return mo_fma2(root, mo_fma2(slope, u, mo_both(MO_COMPAND_0)), addend);
}

/* mo_companded_fourth_root of two. */
MO_DEVICE mo_two mo_companded_fourth_roots(mo_two y, mo_two addend)
{
    mo_two r;
    MO_UNROLL
    for (int k = 0; k < 2; k++)
        r.of[k] = mo_f32_from_bits(MO_COMPAND_FOURTH_GUESS - (mo_f32_bits(y.of[k]) >> 2));
    mo_two square = mo_mul2(r, r), root = mo_mul2(y, square), u = mo_mul2(root, square);
    mo_two slope = mo_fma2(mo_both(MO_COMPAND_FOURTH_4), u, mo_both(MO_COMPAND_FOURTH_3));
    slope = mo_fma2(slope, u, mo_both(MO_COMPAND_FOURTH_2));
    slope = mo_fma2(slope, u, mo_both(MO_COMPAND_FOURTH_1));
    return mo_fma2(mo_mul2(root, r), mo_fma2(slope, u, mo_both(MO_COMPAND_FOURTH_0)), addend);
}

/* The codes of two sums from 2^15 on, and 0 of smaller ones, in the halves of a word. */
MO_DEVICE uint32_t mo_drawn_codes(mo_two sum)
{
#if MO_NVCC_DEVICE && __CUDA_ARCH__ >= 900
    uint32_t both; /* bits 8 to 23 are those of a negative number below 2^15 */
    asm("{.reg .b32 a; prmt.b32 a, %1, %2, 0x6521; max.s16x2 %0, a, %3;}"
        : "=r"(both)
        : "r"(mo_f32_bits(sum.of[0])), "r"(mo_f32_bits(sum.of[1])), "r"(0));
    return both;
#else
    uint32_t bits[2];
    MO_UNROLL
    for (int k = 0; k < 2; k++)
        bits[k] = mo_f32_bits(mo_at_least(sum.of[k], MO_COMPAND_DRAW_LEAST));
    return (bits[0] >> 8 & 0xffu) | (bits[1] & 0xff00u) << 8;
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

    MO_DEVICE void encode_signed(int is_signed, const float y[8], uint32_t words[2])
    {
        const mo_two round = mo_both(MO_COMPAND_ROUND), one = mo_both(1.0f);
        uint32_t codes[8];
        MO_UNROLL
        for (int k = 0; k < 8; k += 2) {
            mo_two two = mo_two_of(y + k), draw, sum;
            draw.of[0] = mo_companded_slow_draw(y[k]);
            draw.of[1] = mo_companded_slow_draw(y[k + 1]);
            sum = is_signed == MO_SLOW ? mo_fma2(mo_companded_cube_roots(two, draw), one, round)
                                       : mo_companded_cube_roots(two, round);
            codes[k] = mo_f32_bits(sum.of[0]);
            codes[k + 1] = mo_f32_bits(sum.of[1]);
        }
        words[0] = mo_lower_bytes(codes);
        words[1] = mo_lower_bytes(codes + 4);
    }

    /* Of y that are not NaN. Unsigned ones are not negative. */
    MO_DEVICE void encode(const tables *t, int is_signed, const float y[8], uint32_t words[2])
    {
        uint32_t halves[4];
        (void)t;
        if (is_signed) {
            encode_signed(is_signed, y, words);
            return;
        }
        MO_UNROLL
        for (int k = 0; k < 8; k += 2) {
            mo_two draw;
            draw.of[0] = mo_companded_draw_gpu(y[k]);
            draw.of[1] = mo_companded_draw_gpu(y[k + 1]);
            halves[k / 2] = mo_drawn_codes(mo_companded_fourth_roots(mo_two_of(y + k), draw));
        }
        words[0] = mo_even_bytes(halves[0], halves[1]);
        words[1] = mo_even_bytes(halves[2], halves[3]);
    }
};

#endif
