/* The dynamic maps are the canonical ones, their thresholds are the midpoints, and every form finds
 * the nearest code: at each threshold and beside it in blocks of every scale, and over all fp32 in
 * [0, 1] at a stride (1 with MEMOPT_TEST_LONG set). */
#include "support.h"
#include "support/sweep.h"

#include "support/forms.h"

static uint32_t crc32_of(const void *data, size_t size)
{
    const unsigned char *bytes = data;
    uint32_t crc = ~0u;
    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1)));
    }
    return ~crc;
}

TEST(maps)
{
    assert_int_equal(crc32_of(mo_map_signed, sizeof mo_map_signed), 0x416941e6u);
    assert_int_equal(crc32_of(mo_map_unsigned, sizeof mo_map_unsigned), 0x9495592eu);
    assert_true(mo_f32_from_bits(mo_map_signed[0]) < -0.99296f);
    assert_int_equal(mo_map_signed[127], 0);
    assert_int_equal(mo_map_signed[255], 0x3f800000);
    assert_int_equal(mo_map_unsigned[0], 0);
    for (int k = 1; k < 128; k++)
        assert_int_equal(mo_map_signed[127 - k], mo_map_signed[127 + k] | 0x80000000u);
}

/* |level - y| in double is exact enough here: both are fp32 within a few octaves of each other. */
static uint32_t nearest(const uint32_t *levels, uint32_t top, float y)
{
    uint32_t best = 0;
    double least = 2.0;
    for (uint32_t k = 0; k <= top; k++) {
        double distance = (double)mo_f32_from_bits(levels[k]) - (double)y;
        distance = distance < 0 ? -distance : distance;
        if (distance < least) { /* a tie stays with the smaller magnitude */
            least = distance;
            best = k;
        }
    }
    return best;
}

static void check_near(const uint32_t *levels, uint32_t top, uint32_t bits, int is_signed)
{
    float y = mo_f32_from_bits(bits);
    uint32_t expected = nearest(levels, top, y);
    if (!is_signed && expected == 0 && bits != 0)
        expected = 1;
    if (is_signed) {
        assert_int_equal(mo_code_signed(y), 127 + expected);
        assert_int_equal(mo_code_signed(-y), expected > 127 ? 0 : 127 - expected);
    } else {
        assert_int_equal(mo_code_unsigned(y, y), expected);
    }
}

TEST(thresholds_against_brute_force)
{
    for (uint32_t g = 1; g <= MO_SIGNED_TOP; g++)
        for (uint32_t d = 0; d < 9; d++)
            check_near(mo_map_signed + 127, MO_SIGNED_TOP, mo_threshold_signed[g] + d - 4, 1);
    for (uint32_t g = 2; g <= MO_UNSIGNED_TOP; g++)
        for (uint32_t d = 0; d < 9; d++)
            check_near(mo_map_unsigned, MO_UNSIGNED_TOP, mo_threshold_unsigned[g] + d - 4, 0);
    uint64_t seed = 99;
    for (int i = 0; i < 20000; i++) {
        uint32_t bits = (uint32_t)(next_random(&seed) % 0x3f800001u);
        check_near(mo_map_signed + 127, MO_SIGNED_TOP, bits, 1);
        check_near(mo_map_unsigned, MO_UNSIGNED_TOP, bits, 0);
    }
    for (uint32_t bits = 0; bits < 4; bits++) {
        check_near(mo_map_signed + 127, MO_SIGNED_TOP, bits, 1);
        check_near(mo_map_unsigned, MO_UNSIGNED_TOP, bits, 0);
    }
}

/* Thresholds grow, so that a search by them is a search over intervals: with the test above, every
 * fp32 gets the nearest code. The forms are compared with that search for the whole of [0, 1]. */
static void check_forms(int is_signed, uint32_t stride)
{
    enum { N = MO_CHUNK_ELEMENTS };
    static float x[N];
    static uint8_t codes[MO_ISA_COUNT][N];
    static float absmax[N / MO_BLOCK_SIZE];
    uint64_t bits = 0;
    while (bits <= 0x3f800000u) {
        for (uint32_t i = 0; i < N; i++) {
            x[i] = 1.0f; /* each block's absmax */
            if (i % MO_BLOCK_SIZE != 0 && bits <= 0x3f800000u) {
                x[i] = mo_f32_from_bits((uint32_t)bits | (is_signed ? i << 31 : 0));
                bits += stride;
            }
        }
        mo_blockcode_args args = {x, NULL, absmax, N, MO_DTYPE_F32, (uint32_t)is_signed};
        FOR_EACH_WIDE_FORM (isa, &mo_kernel_quantize8) {
            args.codes = codes[isa];
            mo_kernel_quantize8.cpu[isa](&args, 0, 1);
        }
        for (uint32_t i = 0; i < N; i++) {
            uint8_t code = is_signed ? mo_code_signed(x[i]) : mo_code_unsigned(x[i], x[i]);
            FOR_EACH_WIDE_FORM (isa, &mo_kernel_quantize8)
                if (codes[isa][i] != code)
                    fail_msg("isa %d, bits %08x: code %d, expected %d", isa, mo_f32_bits(x[i]),
                             codes[isa][i], code);
        }
    }
}

TEST(forms_over_zero_to_one)
{
    uint32_t stride = is_long() ? 1 : 257;
    for (uint32_t g = 2; g <= MO_UNSIGNED_TOP; g++)
        assert_true(mo_threshold_unsigned[g] > mo_threshold_unsigned[g - 1]);
    for (uint32_t g = 2; g <= MO_SIGNED_TOP; g++)
        assert_true(mo_threshold_signed[g] > mo_threshold_signed[g - 1]);
    check_forms(0, stride);
    check_forms(1, stride);
}

/* At and beside all thresholds in blocks of any scale: 1 / absmax is rounded there, and subnormal
 * or scaled at the ends. Where it is 1, the scalar form's codes are those of the search. */
static void check_scale(float largest, int is_signed)
{
    const uint32_t *t = is_signed ? mo_threshold_signed : mo_threshold_unsigned;
    uint32_t top = is_signed ? MO_SIGNED_TOP : MO_UNSIGNED_TOP;
    float x[MO_BLOCK_SIZE], absmax;
    uint8_t expected[MO_BLOCK_SIZE], codes[MO_BLOCK_SIZE];
    mo_blockcode_args args = {x, NULL, &absmax, MO_BLOCK_SIZE, MO_DTYPE_F32, (uint32_t)is_signed};
    for (uint32_t shift = 0; shift < 9; shift++) {
        for (uint32_t i = 0; i < MO_BLOCK_SIZE; i++) {
            uint32_t bits = mo_f32_bits(largest);
            if (i > 0 && i <= top) {
                float near = mo_f32_from_bits(t[i]) * largest;
                uint32_t beside = mo_f32_bits(near) + (shift < 4 && near == 0 ? 0 : shift - 4);
                bits = beside < bits ? beside : bits;
            }
            x[i] = mo_f32_from_bits(bits | (is_signed ? (i + shift) << 31 : 0));
        }
        args.codes = expected;
        mo_kernel_quantize8.cpu[MO_ISA_SCALAR](&args, 0, 1);
        for (uint32_t i = 0; i < MO_BLOCK_SIZE && largest == 1.0f; i++)
            assert_int_equal(expected[i],
                             is_signed ? mo_code_signed(x[i]) : mo_code_unsigned(x[i], x[i]));
        args.codes = codes;
        FOR_EACH_WIDE_FORM (isa, &mo_kernel_quantize8) {
            mo_kernel_quantize8.cpu[isa](&args, 0, 1);
            assert_memory_equal(codes, expected, sizeof codes);
        }
    }
}

TEST(forms_at_scales)
{
    uint64_t seed = 31;
    int rounds = is_long() ? 500 : 20;
    for (uint32_t exponent = 0; exponent < 255; exponent++)
        for (int k = 0; k < rounds; k++) {
            uint32_t mantissa = k == 0 ? 0 : k == 1 ? 0x7fffff : (uint32_t)next_random(&seed) >> 9;
            check_scale(mo_f32_from_bits(exponent << 23 | mantissa), k & 1);
            check_scale(mo_f32_from_bits(exponent << 23 | mantissa), ~k & 1);
        }
}

static float wild(uint64_t *seed, int kind)
{
    float x = normal(seed);
    uint32_t r = (uint32_t)next_random(seed);
    if (kind == 0)
        return x;
    if (kind == 1)
        return x * mo_f32_from_bits((r % 60 + 80) << 23);
    if (kind == 2)
        return x * 0x1p-127f;
    if (kind == 3)
        return r % 500 == 0 ? mo_f32_from_bits(0x7f800000u) : x;
    if (kind == 4)
        return r % 2 ? -0.0f : 0.0f;
    return mo_f32_from_bits(r); /* anything, NaN too */
}

/* All sizes, types and kinds of data: quantise and dequantise of each form equal the scalar. */
TEST(forms_on_wild_data)
{
    enum { N = 700 };
    float x[N], out[2][N], absmax[2][3];
    uint8_t codes[2][N];
    uint64_t seed = 4711;
    for (uint64_t n = 1; n < N; n++) {
        int32_t dtype = 1 + (int32_t)(n % 3);
        uint32_t is_signed = n / 3 % 2;
        for (uint64_t i = 0; i < n; i++)
            mo_store_element(x, i, dtype, wild(&seed, (int)(n % 6)));
        mo_blockcode_args args = {x, codes[0], absmax[0], n, dtype, is_signed};
        mo_blockcode_args back = {out[0], codes[0], absmax[0], n, dtype, is_signed};
        mo_kernel_quantize8.cpu[MO_ISA_SCALAR](&args, 0, 1);
        mo_kernel_dequantize8.cpu[MO_ISA_SCALAR](&back, 0, 1);
        FOR_EACH_WIDE_FORM (isa, &mo_kernel_quantize8) {
            args.codes = back.codes = codes[1];
            args.absmax = back.absmax = absmax[1];
            back.values = out[1];
            mo_kernel_quantize8.cpu[isa](&args, 0, 1);
            assert_memory_equal(codes[0], codes[1], n);
            assert_memory_equal(absmax[0], absmax[1], (n + 255) / 256 * 4);
            mo_kernel_dequantize8.cpu[isa](&back, 0, 1);
            for (uint64_t i = 0; i < n; i++)
                assert_true(same_element(out[0], out[1], i, dtype));
        }
    }
}

TEST(special_blocks)
{
    mo_block_scale zero = mo_block_scale_of(0), bad = mo_block_scale_of(0x7f800000u);
    assert_true(zero.inverse == 0.0f && zero.absmax == 0.0f);
    assert_true(mo_f32_is_nan(bad.absmax));
    mo_block_scale tiny = mo_block_scale_of(1); /* the smallest subnormal */
    assert_true(tiny.prescale == 0x1p100f && mo_f32_is_finite(tiny.inverse));
    assert_int_equal(mo_code_signed(0x1p-149f * tiny.prescale * tiny.inverse), 255);
    assert_int_equal(mo_code_signed(0.0f), 127);
    assert_int_equal(mo_code_signed(-0.0f), 127);
    assert_int_equal(mo_code_signed(-1.0f), 0);
    assert_int_equal(mo_code_unsigned(0.0f, 0.0f), 0);
    assert_int_equal(mo_code_unsigned(0x1p-149f, 0.0f), 1); /* its quotient underflowed */
    assert_int_equal(mo_code_unsigned(-3.0f, -1.0f), 0);
}
