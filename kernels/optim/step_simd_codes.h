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

MO_INLINE VF lane_cubic(VF x, float c0, float c1, float c2, float c3)
{
    return v_fma(v_fma(v_fma(v_set(c3), x, v_set(c2)), x, v_set(c1)), x, v_set(c0));
}

MO_INLINE VF lane_value_companded_signed(VI code)
{
    VF c = v_float(code);
    VF a = v_bits(v_and(v_ints(c), v_seti(0x7fffffff)));
    return v_mul(c, lane_cubic(a, MO_EXPAND_0, MO_EXPAND_1, MO_EXPAND_2, MO_EXPAND_3));
}

MO_INLINE VF lane_value_companded_unsigned(VI code)
{
    VF c = v_float(code);
    return v_mul(v_mul(c, c), v_set(MO_EXPAND_SQUARE));
}

/* The code is the lowest byte. */
MO_INLINE VI lane_code_companded_signed(VF y)
{
    VF a = v_bits(v_and(v_ints(y), v_seti(0x7fffffff)));
    VF slope = lane_cubic(a, MO_COMPAND_0, MO_COMPAND_1, MO_COMPAND_2, MO_COMPAND_3);
    return v_ints(v_fma(y, slope, v_set(MO_COMPAND_ROUND)));
}

/* The code is the lowest byte. */
MO_INLINE VI lane_code4_companded(VF y)
{
    VF a = v_bits(v_and(v_ints(y), v_seti(0x7fffffff)));
    VF slope = lane_cubic(a, MO_COMPAND4_0, MO_COMPAND4_1, MO_COMPAND4_2, MO_COMPAND4_3);
    return v_ints(v_fma(y, slope, v_set(MO_COMPAND4_ROUND)));
}

/* Of a root that is not negative and its normalised value. */
MO_INLINE VI lane_code_companded_root(VF root, VF y)
{
    VF up = v_min(v_add(y, v_set(MO_COMPAND_UP)), v_set(MO_COMPAND_UP_TO));
    VF raised = v_bits(v_maxi(v_ints(y), v_ints(up)));
    VI code = v_ints(v_add(raised, v_set(MO_COMPAND_ROUND)));
    return v_max_bytes(code, v_mini(v_ints(root), v_seti(1)));
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

/* Only states of others have negative scales, whose values have no root. */
MO_INLINE int lane_odd_scale(uint32_t format, float scale)
{
    return format == MO_STATE_COMPANDED && mo_f32_bits(scale) >= MO_F32_INF_BITS;
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

/* The codes of 4 * MO_LANES_N values; with companded second moments, of their roots. */
MO_INLINE VI lane_codes(uint32_t format, int is_signed, const float *values, VF inverse)
{
    VF x[4], y[4];
    for (int k = 0; k < 4; k++) {
        x[k] = v_load(values + k * MO_LANES_N);
        y[k] = v_mul(x[k], inverse);
    }
    if (mo_format_is_4bit(format) && !is_signed)
        return lane_codes4_unsigned(y);
    VI code[4];
    for (int k = 0; k < 4; k++)
        code[k] = format == MO_STATE_COMPANDED4 ? lane_code4_companded(y[k])
                  : is_signed                   ? lane_code_companded_signed(y[k])
                                                : lane_code_companded_root(x[k], y[k]);
    return v_low_bytes(code, is_signed);
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
