/*
 * Formats of states in vectors: codes to values and back, a block's moments, its scales. A part of
 * step_simd.h, which says what it needs.
 */

/* (code + 1) / 16 of the low four bits: they are the mantissa's end of 2^19 + code / 16. */
MO_INLINE VF lane_value4_unsigned(VI code)
{
    VI bits = v_or(v_and(code, v_seti(15)), v_ints(v_set(0x1p19f)));
    return v_sub(v_bits(bits), v_set(0x1p19f - 0.0625f));
}

/* 16 * y to the nearest integer, less 1. The factor takes a tie, and no other value, below it. */
MO_INLINE VI lane_codes4_unsigned(const VF y[4])
{
    VI code[4];
    for (int k = 0; k < 4; k++) {
        VF whole = v_fma(y[k], v_set(16.0f - 0x1p-20f), v_set(0x1.8p23f));
        code[k] = v_subi(v_ints(whole), v_seti(0x4b400001)); /* 1.5 * 2^23, and 1 */
    }
    return v_bytes(code);
}

MO_INLINE VF lane_magnitude(VF x)
{
    return v_bits(v_and(v_ints(x), v_seti(0x7fffffff)));
}

/* mo_expand_signed. A code is a float as the end of a larger number's mantissa; the product takes
 * that number off, without another rounding. */
MO_INLINE VF lane_value_companded_signed(VI code)
{
    VF x = v_bits(v_addi(code, v_seti(0x4b400000))); /* 1.5 * 2^23 */
    VF root = v_fma(x, v_set(MO_EXPAND_SIGNED), v_set(-0x1.8p23f * MO_EXPAND_SIGNED));
    return v_mul(v_mul(root, root), root);
}

MO_INLINE VF lane_value_companded_unsigned(VI code)
{
    VF x = v_bits(v_addi(code, v_seti(0x4b000003))); /* 2^23 + 3: MO_EXPAND_LEAST is 3 steps */
    VF root = v_fma(x, v_set(MO_EXPAND_STEP), v_set(-0x1p23f * MO_EXPAND_STEP));
    VF square = v_mul(root, root);
    return v_mul(square, square);
}

/* mo_companded_cube_root. */
MO_INLINE VF lane_companded_cube_root(VF y, VF addend)
{
    VI part = v_mul_upper(v_ints(lane_magnitude(y)), MO_COMPAND_THIRD);
    VF r = v_bits(v_addi(part, v_seti(MO_COMPAND_GUESS)));
    VF root = v_mul(y, v_mul(r, r)), u = v_mul(lane_magnitude(root), r);
    VF slope = v_fma(v_fma(v_set(MO_COMPAND_2), u, v_set(MO_COMPAND_1)), u, v_set(MO_COMPAND_0));
    return v_fma(root, slope, addend);
}

/* The code is the lowest byte. */
MO_INLINE VI lane_code_companded_signed(VF y)
{
    return v_ints(lane_companded_cube_root(y, v_set(MO_COMPAND_ROUND)));
}

MO_INLINE VI lane_code_companded_slow(VF y)
{
    VI draw = v_merge(v_seti(MO_COMPAND_SLOW_BITS), v_ints(y), v_seti(MO_COMPAND_SLOW_MASK));
    VF from_middle = v_sub(v_bits(draw), v_set(MO_COMPAND_SLOW_MIDDLE));
    return v_ints(v_add(lane_companded_cube_root(y, from_middle), v_set(MO_COMPAND_ROUND)));
}

/* Of a value that is not negative: what v_second_bytes makes of it. */
MO_INLINE VI lane_code_companded_unsigned(VF y)
{
    VF r = v_bits(v_subi(v_seti((int)MO_COMPAND_FOURTH_GUESS), v_srl(v_ints(y), 2)));
    VF square = v_mul(r, r), root = v_mul(y, square), u = v_mul(root, square);
    VF slope = v_fma(v_set(MO_COMPAND_FOURTH_4), u, v_set(MO_COMPAND_FOURTH_3));
    slope = v_fma(v_fma(slope, u, v_set(MO_COMPAND_FOURTH_2)), u, v_set(MO_COMPAND_FOURTH_1));
    VI draw = v_merge(v_seti(MO_COMPAND_DRAW_BITS), v_ints(y), v_seti(MO_COMPAND_DRAW_MASK));
    VF near = v_fma(slope, u, v_set(MO_COMPAND_FOURTH_0));
    return v_ints(v_fma(v_mul(root, r), near, v_bits(draw)));
}

/* The code is the lowest byte. */
MO_INLINE VI lane_code4_companded(VF y)
{
    VF a = lane_magnitude(y), slope = v_fma(v_set(MO_COMPAND4_3), a, v_set(MO_COMPAND4_2));
    slope = v_fma(v_fma(slope, a, v_set(MO_COMPAND4_1)), a, v_set(MO_COMPAND4_0));
    return v_ints(v_fma(y, slope, v_set(MO_COMPAND4_ROUND)));
}

/* A coded moment from a block's first element on. */
typedef struct mo_lane_moment {
    const uint8_t *codes;
    VF scale;
    VT table; /* the products of a signed 4-bit map */
} mo_lane_moment;

MO_INLINE mo_lane_moment lane_moment(uint32_t format, const void *data, float scale, uint64_t at)
{
    return (mo_lane_moment){(const uint8_t *)data + mo_format_bytes(format, at), v_set(scale),
                            v_table16(mo_map4_companded, v_set(scale))};
}

/* The values of elements i to i + MO_LANES_N - 1; no 8-bit format. */
MO_INLINE VF lane_value(uint32_t format, int is_signed, const mo_lane_moment *x, uint32_t i)
{
    if (format == MO_STATE_COMPANDED) {
        VF value = is_signed ? lane_value_companded_signed(v_load_signed(x->codes + i))
                             : lane_value_companded_unsigned(v_load_codes(x->codes + i));
        return v_mul(value, x->scale);
    }
    VI code = v_load_codes4(x->codes + i / 2);
    return is_signed ? v_look16(&x->table, code) : v_mul(lane_value4_unsigned(code), x->scale);
}

/* n elements of a moment from `at` on, all of one block, to fp32. n is a multiple of 32 here and
 * where values are coded. */
MO_INLINE void lane_decode(uint32_t format, int is_signed, const void *data, float scale,
                           uint64_t at, uint32_t n, float *values)
{
    if (format == MO_STATE_8BIT) {
        v_decode_8bit(is_signed, (const uint8_t *)data + at, scale, values, n);
        return;
    }
    mo_lane_moment x = lane_moment(format, data, scale, at);
    for (uint32_t i = 0; i < n; i += MO_LANES_N)
        v_store(values + i, lane_value(format, is_signed, &x, i));
}

/* The codes of 4 * MO_LANES_N values. */
MO_INLINE VI lane_codes(uint32_t format, int is_signed, const float *values, VF inverse)
{
    VF y[4];
    for (int k = 0; k < 4; k++)
        y[k] = v_mul(v_load(values + k * MO_LANES_N), inverse);
    if (mo_format_is_4bit(format) && !is_signed)
        return lane_codes4_unsigned(y);
    VI code[4];
    for (int k = 0; k < 4; k++)
        code[k] = format == MO_STATE_COMPANDED4 ? lane_code4_companded(y[k])
                  : is_signed == MO_SLOW        ? lane_code_companded_slow(y[k])
                  : is_signed                   ? lane_code_companded_signed(y[k])
                                                : lane_code_companded_unsigned(y[k]);
    return format == MO_STATE_COMPANDED && !is_signed
               ? v_second_bytes(code, (int32_t)mo_f32_bits(MO_COMPAND_DRAW_LEAST))
               : v_low_bytes(code);
}

/* Values ready for lane_codes. The 8-bit form does this itself. */
MO_INLINE void lane_prescale(uint32_t format, float *values, uint32_t n,
                             const mo_block_scale *scale)
{
    if (format == MO_STATE_8BIT || __builtin_expect(scale->prescale == 1.0f, 1))
        return;
    for (uint32_t i = 0; i < n; i += MO_LANES_N)
        v_store(values + i, v_mul(v_load(values + i), v_set(scale->prescale)));
}

/* A finite, prescaled block. */
MO_INLINE void lane_encode(uint32_t format, int is_signed, float *values, uint32_t n,
                           const mo_block_scale *scale, uint8_t *codes)
{
    if (format == MO_STATE_8BIT) {
        v_encode_8bit(is_signed, values, scale, codes, n);
        return;
    }
    for (uint32_t i = 0; i < n; i += 4 * MO_LANES_N) {
        VI code = lane_codes(format, is_signed, values + i, v_set(scale->inverse));
        if (mo_format_is_4bit(format))
            v_store_bytes4(codes + i / 2, code);
        else
            v_put(codes + i, code, 0);
    }
}

MO_INLINE uint32_t lane_largest(const float *values, uint32_t n)
{
    VI largest = v_seti(0);
    for (uint32_t i = 0; i < n; i += MO_LANES_N)
        largest = v_maxi(largest, v_and(v_ints(v_load(values + i)), v_seti(0x7fffffff)));
    return v_largest(largest);
}
