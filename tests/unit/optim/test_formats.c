/* Companded and bf16 states: codes against a brute search, packing, scales, views, and what
 * is refused. */
#include "fixture.h"
#include "support/forms.h"
#include "support/sweep.h"

#include <math.h>

/* The code of a brute search over the map: nearest, ties to the smaller magnitude; y exact. */
static uint32_t nearest(const float *map, uint32_t codes, double y)
{
    uint32_t best = 0;
    for (uint32_t c = 1; c < codes; c++) {
        double d = fabs((double)map[c] - y), least = fabs((double)map[best] - y);
        if (d < least || (d == least && fabsf(map[c]) < fabsf(map[best])))
            best = c;
    }
    return best;
}

/* Of second moments of 4 bits. */
TEST(codes_of_4_bits)
{
    float map[16];
    uint64_t seed = 4;
    OK(memopt_state_map(MEMOPT_STATE_4BIT, 0, map));
    for (uint32_t c = 0; c < 16; c++) { /* around every value and every midpoint */
        assert_true(map[c] == (float)(c + 1) / 16.0f);
        for (int ulp = -4; ulp <= 4; ulp++)
            for (int half = 0; half < 2; half++) {
                float at = half && c < 15 ? (map[c] + map[c + 1]) / 2 : map[c];
                float y = mo_f32_from_bits(mo_f32_bits(at) + (uint32_t)ulp);
                if (y <= 1.0f)
                    assert_int_equal(mo_code4_unsigned(y), nearest(map, 16, (double)y));
            }
    }
    for (int i = 0; i < 200000; i++) {
        float y = fabsf(uniform(&seed)) * ldexpf(1.0f, -(int)(next_random(&seed) % 12));
        assert_int_equal(mo_code4_unsigned(y), nearest(map, 16, (double)y));
    }
    assert_int_equal(mo_code4_unsigned(1.0000001f), 15);
}

enum { N = 1001 };

/* Quantise and back by the public functions: the absmax kept; packing as documented. */
TEST(tensors_of_4_bits)
{
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
    static float x[N], y[N];
    float map[16];
    uint64_t seed = 9;
    for (int i = 0; i < N; i++)
        x[i] = normal(&seed);
    memopt_tensor values = new_tensor(&w, N, MEMOPT_DTYPE_F32, x);
    memopt_tensor back = new_tensor(&w, N, MEMOPT_DTYPE_F32, NULL);
    memopt_tensor scales = new_tensor(&w, (N + 127) / 128, MEMOPT_DTYPE_F32, NULL);
    memopt_tensor room = new_tensor(&w, N, MEMOPT_DTYPE_F32, NULL);
    memopt_tensor codes = {room.data, (N + 1) / 2, MEMOPT_DTYPE_U8};
    const uint8_t *bytes = codes.data;
    const float *absmax = scales.data;
    OK(memopt_state_map(MEMOPT_STATE_4BIT, 1, map));
    OK(memopt_quantize(w.device, MEMOPT_STATE_4BIT, &codes, &scales, &values, 1, NULL));
    OK(memopt_dequantize(w.device, MEMOPT_STATE_4BIT, &back, &codes, &scales, 1, NULL));
    read_floats(&w, &back, y);
    for (int i = 0; i < N; i++) {
        uint32_t code = i % 2 ? bytes[i / 2] & 15u : bytes[i / 2] >> 4;
        assert_true(y[i] == map[code] * absmax[i / 128]);
        assert_int_equal(code, mo_code4_companded(x[i] * (1.0f / absmax[i / 128])));
        assert_true(fabsf(x[i]) <= absmax[i / 128]);
    }
    assert_int_equal(bytes[N / 2] & 15, 7); /* behind the last element */
    close_world(&w);
}

static uint32_t companded_code(int is_signed, float y)
{
    mo_block_scale one = mo_block_scale_of(0x3f800000u);
    return mo_format_code(MO_STATE_COMPANDED, is_signed, y, &one);
}

/* A signed code is at most 0.519 steps away (half a one, and what the parabola adds), its
 * negative's is its negative; an unsigned one and a slow one are one of the two beside the value. */
static void check_companded(float y)
{
    const double exact = 127.0 * cbrt((double)y), root = 258.0 * sqrt(sqrt((double)y)) - 3.0;
    const uint32_t code = companded_code(1, y), second = companded_code(0, y);
    const double slow = (double)(int8_t)companded_code(MO_SLOW, -y);
    if (fabs((double)code - exact) > 0.519 || companded_code(1, -y) != (-code & 0xffu))
        fail_msg("signed %a: code %u, exactly %g", (double)y, code, exact);
    if ((double)second < fmax(root - 0.99, 0.0) || (double)second > fmax(root + 0.99, 0.0))
        fail_msg("unsigned %a: code %u, exactly %g", (double)y, second, root);
    if (fabs(slow + exact) > 0.99)
        fail_msg("slow -%a: code %g, exactly %g", (double)y, slow, exact);
}

/* Every code means what it should and is its own value's; every fp32 in [0, 1] gets a code beside
 * it. */
TEST(companded_codes)
{
    float maps[2][256];
    OK(memopt_state_map(MEMOPT_STATE_8BIT, 1, maps[1]));
    OK(memopt_state_map(MEMOPT_STATE_8BIT, 0, maps[0]));
    assert_true(maps[1][0] == 0.0f && maps[1][127] == 1.0f && maps[1][129] == -1.0f);
    assert_true(maps[0][255] == 1.0f);
    for (int c = 0; c < 256; c++) {
        double root = (c + 3) / 258.0, cube = c / 127.0;
        assert_true(fabs((double)maps[0][c] / (root * root * root * root) - 1.0) <= 5e-7);
        assert_int_equal(companded_code(0, maps[0][c]), c);
        if (c < 128) {
            assert_true(fabs((double)maps[1][c] - cube * cube * cube) <= 4e-7 * cube * cube * cube);
            assert_true(c == 0 || maps[1][256 - c] == -maps[1][c]);
        }
        for (int is_signed = 1; is_signed <= MO_SLOW && c != 128; is_signed++)
            assert_int_equal(companded_code(is_signed, maps[1][c]), c);
    }
    for (uint64_t bits = 0; bits <= 0x3f800000u; bits += is_long() ? 1 : 509)
        check_companded(mo_f32_from_bits((uint32_t)bits));
    assert_int_equal(mo_code_companded_signed(NAN), 0);
    assert_int_equal(mo_code_companded_unsigned(NAN), 0);
    assert_int_equal(mo_code_companded_unsigned(-1.0f), 0);
}

/* What is drawn is not coded too large or too small in the mean, wherever it lies between two
 * codes. */
TEST(companded_draws)
{
    uint64_t seed = 2;
    for (int is_signed = 0; is_signed <= MO_SLOW; is_signed += MO_SLOW)
        for (int where = 1; where < 8; where++) {
            double sum = 0.0, wanted = 0.0;
            for (int i = 0; i < 20000; i++) {
                const double c = 5.0 + (double)(next_random(&seed) % 120) + where / 8.0;
                const float noise = 1.0f + 1e-4f * normal(&seed);
                const float y =
                    (float)(is_signed ? -pow(c / 127.0, 3.0) : pow((c + 3.0) / 258.0, 4.0)) * noise;
                sum +=
                    is_signed ? (double)(int8_t)companded_code(is_signed, y) : companded_code(0, y);
                wanted += is_signed ? 127.0 * cbrt((double)y) : 258.0 * sqrt(sqrt((double)y)) - 3.0;
            }
            assert_true(fabs(sum - wanted) < 20000 * 0.008);
        }
}

/* A mean over a thousand steps, coded in each, stays the mean: to nearest its root would be 12 % too
 * large after 3,000. */
TEST(companded_means)
{
    enum { BLOCKS = 16, STEPS = 3000 };
    static float coded[BLOCKS][MO_BLOCK_SIZE];
    static double exact[BLOCKS][MO_BLOCK_SIZE];
    double ratio = 0.0;
    uint64_t seed = 12;
    for (int t = 0; t < STEPS * BLOCKS; t++) {
        float *v = coded[t % BLOCKS];
        uint32_t largest = 0;
        for (int i = 0; i < MO_BLOCK_SIZE; i++) {
            const float g = normal(&seed);
            exact[t % BLOCKS][i] = 0.999 * exact[t % BLOCKS][i] + 0.001 * (double)(g * g);
            v[i] = fmaf(0.999f, v[i], 0.001f * (g * g));
            largest = mo_f32_bits(v[i]) > largest ? mo_f32_bits(v[i]) : largest;
        }
        const mo_block_scale scale = mo_block_scale_of(largest);
        for (int i = 0; i < MO_BLOCK_SIZE; i++) {
            const uint32_t code = mo_format_code(MO_STATE_COMPANDED, 0, v[i], &scale);
            v[i] = mo_format_value(MO_STATE_COMPANDED, 0, code, scale.absmax);
        }
    }
    for (int i = 0; i < BLOCKS * MO_BLOCK_SIZE; i++)
        ratio += sqrt((double)coded[i % BLOCKS][i / BLOCKS] / exact[i % BLOCKS][i / BLOCKS]) /
                 (BLOCKS * MO_BLOCK_SIZE);
    print_message("  %.4f of the exact root\n", ratio);
    assert_true(fabs(ratio - 1.0) < 0.01);
}

/* 4 bits: what a code stands for, that a code's own value keeps it, and that a value's code is the
 * nearest on the curve but for what the cubic adds. */
TEST(companded4_codes)
{
    float map[16];
    OK(memopt_state_map(MEMOPT_STATE_4BIT, 1, map));
    assert_true(map[7] == 0.0f && map[14] == 1.0f);
    for (int k = 1; k < 8; k++) {
        assert_true(map[7 + k] == (float)k / (float)(14 - k) && map[7 - k] == -map[7 + k]);
        assert_int_equal(mo_code4_companded(map[7 + k]), 7 + k);
    }
    for (uint64_t bits = 0; bits <= 0x3f800000u; bits += is_long() ? 1 : 509) {
        float y = mo_f32_from_bits((uint32_t)bits);
        uint32_t code = mo_code4_companded(y);
        double curve = 14.0 * (double)y / (1.0 + (double)y);
        assert_true(fabs((double)code - 7.0 - curve) <= 0.51);
        assert_true(code >= mo_code4_companded(y * (1.0f - 0x1p-20f))); /* a border has a width */
        assert_int_equal(mo_code4_companded(-y), 14 - code);
    }
    assert_int_equal(mo_code4_companded(NAN), 7);
}

/* Every form codes every fp32 of [-1, 1] as the scalar form. */
static void forms_agree(const mo_kernel *kernel)
{
    enum { COUNT = MO_CHUNK_ELEMENTS };
    static float x[COUNT], absmax[COUNT / MO_BLOCK4_SIZE];
    static uint8_t codes[MO_ISA_COUNT][COUNT];
    for (uint32_t is_signed = 0; is_signed < 2; is_signed++)
        for (uint64_t bits = 0; bits <= 0x3f800000u;) {
            for (uint32_t i = 0; i < COUNT; i++) {
                x[i] = 1.0f; /* each block's absmax */
                if (i % MO_BLOCK4_SIZE != 0 && bits <= 0x3f800000u) {
                    x[i] = mo_f32_from_bits((uint32_t)bits | (is_signed ? i << 31 : 0));
                    bits += is_long() ? 1 : 257;
                }
            }
            mo_blockcode_args args = {x, NULL, absmax, COUNT, MO_DTYPE_F32, is_signed};
            FOR_EACH_FORM (isa, kernel) {
                args.codes = codes[isa];
                kernel->cpu[isa](&args, 0, 1);
                assert_memory_equal(codes[isa], codes[MO_ISA_SCALAR], COUNT);
            }
        }
}

TEST(companded_forms)
{
    forms_agree(&mo_kernel_quantizec8);
    forms_agree(&mo_kernel_quantizec4);
}

/* Quantise and back: the absmax and the largest value are kept, tiny and huge blocks are as exact
 * as others, no second moment vanishes, and a block that is not finite is poisoned. */
TEST(companded_tensors)
{
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
    static float x[N], y[N];
    uint64_t seed = 9;
    memopt_tensor values = new_tensor(&w, N, MEMOPT_DTYPE_F32, NULL);
    memopt_tensor back = new_tensor(&w, N, MEMOPT_DTYPE_F32, NULL);
    memopt_tensor scales = new_tensor(&w, (N + 255) / 256, MEMOPT_DTYPE_F32, NULL);
    memopt_tensor room = new_tensor(&w, N, MEMOPT_DTYPE_F32, NULL);
    memopt_tensor codes = {room.data, N, MEMOPT_DTYPE_U8};
    const uint8_t *bytes = codes.data;
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        for (int i = 0; i < N; i++) {
            static const float sizes[] = {1.0f, 0x1p-120f, 0.0f, 0x1p124f};
            x[i] = normal(&seed) * sizes[i / 256];
            x[i] = is_signed ? x[i] : fabsf(x[i]);
        }
        write_tensor(&w, &values, x);
        OK(memopt_quantize(w.device, MEMOPT_STATE_8BIT, &codes, &scales, &values, is_signed, NULL));
        OK(memopt_dequantize(w.device, MEMOPT_STATE_8BIT, &back, &codes, &scales, is_signed, NULL));
        read_floats(&w, &back, y);
        for (int i = 0; i < N; i++) {
            float absmax = ((const float *)scales.data)[i / 256];
            assert_true(fabsf(x[i]) < absmax || y[i] == x[i]); /* the largest one exactly */
            assert_true(fabsf(x[i] - y[i]) <= 0.0157f * absmax);
            assert_true(is_signed || (y[i] > 0.0f) == (absmax > 0.0f));
        }
    }
    x[300] = INFINITY;
    write_tensor(&w, &values, x);
    OK(memopt_quantize(w.device, MEMOPT_STATE_8BIT, &codes, &scales, &values, 0, NULL));
    OK(memopt_dequantize(w.device, MEMOPT_STATE_8BIT, &back, &codes, &scales, 0, NULL));
    read_floats(&w, &back, y);
    for (int i = 0; i < N; i++) {
        assert_int_equal(isnan(y[i]) != 0, i >= 256 && i < 512);
        assert_true(bytes[i] == 0 || i < 256 || i >= 512);
    }
    close_world(&w);
}

/* The mean of bf16 codes over many steps is the value; each is one of its two neighbours. */
TEST(bf16_codes)
{
    enum { STEPS = 20000 };
    uint64_t seed = 4;
    for (int k = 0; k < 40; k++) {
        float m = normal(&seed) * ldexpf(1.0f, k % 40 - 20), v = fabsf(normal(&seed)) * m * m;
        double mean[2] = {0.0, 0.0}, unit[2] = {fabs((double)m) / 128, (double)v / 128};
        for (uint64_t step = 1; step <= STEPS; step++) {
            mo_moment_codes codes = mo_moment_codes_of(m, v, mo_moment_key(step));
            double near[2] = {(double)mo_bf16_to_f32(codes.m), (double)mo_bf16_to_f32(codes.v)};
            assert_true(fabs(near[0] - (double)m) <= unit[0]);
            assert_true(fabs(near[1] - (double)v) <= unit[1]);
            mean[0] += near[0] / STEPS;
            mean[1] += near[1] / STEPS;
        }
        assert_true(fabs(mean[0] - (double)m) < 0.02 * unit[0]); /* 5 sigma */
        assert_true(fabs(mean[1] - (double)v) < 0.02 * unit[1]);
    }
    for (uint32_t key = 0; key < 1000; key++) {
        mo_moment_codes zero = mo_moment_codes_of(0.0f, 0.0f, key);
        mo_moment_codes tiny = mo_moment_codes_of(-0.0f, 0x1p-149f, key);
        mo_moment_codes huge = mo_moment_codes_of(-0x1.fffffep127f, 0x1.fffffep127f, key);
        mo_moment_codes odd = mo_moment_codes_of(-INFINITY, mo_f32_from_bits(MO_F32_NAN_BITS), key);
        assert_true(zero.m == 0 && zero.v == 0);
        assert_true(tiny.m == 0x8000 && tiny.v == 1);
        assert_true(huge.m == 0xff7f && huge.v == 0x7f7f);
        assert_true(odd.m == 0xff80 && odd.v == 0x7fc0);
    }
}

/* A second moment falls and rises as the rule says; rounded to nearest it would do neither. */
TEST(bf16_means_move)
{
    enum { COUNT = 4000, STEPS = 2000 };
    static float v[COUNT];
    uint64_t seed = 5;
    for (int rises = 0; rises < 2; rises++) {
        double mean = 0.0, start = 0.0, exact = pow(0.999, STEPS);
        for (int i = 0; i < COUNT; i++) {
            v[i] = 1.0f + (float)(i / 16) / 256;
            start += (double)v[i] / COUNT;
        }
        for (uint64_t step = 1; step <= STEPS; step++)
            for (int i = 0; i < COUNT; i++) {
                float m = (float)(next_random(&seed) % 100000);
                float moved = fmaf(0.999f, v[i], rises ? 0.002f : 0.0f);
                v[i] = mo_bf16_to_f32(mo_moment_codes_of(m, moved, mo_moment_key(step)).v);
            }
        for (int i = 0; i < COUNT; i++)
            mean += (double)v[i] / COUNT;
        double expected = start * exact + (rises ? 2.0 * (1.0 - exact) : 0.0);
        print_message("  from %.4f to %.4f, exact %.4f\n", start, mean, expected);
        assert_true(fabs(mean - expected) < 0.005 * expected);
    }
}

typedef struct expected {
    uint32_t kind, format;
    const char *names[6];
    memopt_dtype moment;
    uint64_t count, scales;
} expected;

/* Names, types and counts of state tensors; new ones decode to zero; small ones are 32-bit. */
TEST(test_views)
{
    static const expected all[] = {
        {1, 7, {"exp_avg", "exp_avg_sq", "companded1", "companded2"}, MEMOPT_DTYPE_U8, 501, 8},
        {1, 8, {"exp_avg", "exp_avg_sq", "power1", "power2"}, MEMOPT_DTYPE_U8, 1001, 4},
        {1, 6, {"exp_avg", "exp_avg_sq"}, MEMOPT_DTYPE_BF16, 1001, 0},
        {5, 1, {"z", "exp_avg_sq"}, MEMOPT_DTYPE_F32, 1001, 0},
        {2, 1, {"exp_avg"}, MEMOPT_DTYPE_F32, 1001, 0},
        {2, 2, {"exp_avg", "absmax1"}, MEMOPT_DTYPE_U8, 1001, 4},
        {3, 1, {"momentum_buffer"}, MEMOPT_DTYPE_F32, 1001, 0},
        {3, 2, {"momentum_buffer", "absmax1"}, MEMOPT_DTYPE_U8, 1001, 4},
        {9, 1, {"exp_avg", "exp_avg_slow", "exp_avg_sq"}, MEMOPT_DTYPE_F32, 1001, 0},
        {9,
         2,
         {"exp_avg", "exp_avg_slow", "exp_avg_sq", "absmax1", "absmax2", "absmax3"},
         MEMOPT_DTYPE_U8,
         1001,
         4},
        {9,
         8,
         {"exp_avg", "exp_avg_slow", "exp_avg_sq", "power1", "power2", "power3"},
         MEMOPT_DTYPE_U8,
         1001,
         4},
        {6, 8, {"square_avg", "power1"}, MEMOPT_DTYPE_U8, 1001, 0},
    };
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        const expected *e = &all[k];
        world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
        memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
        group.momentum = 0.9;
        memopt_optimizer *o = new_optimizer_of(&w, e->kind, e->format, &group);
        memopt_tensor p = new_tensor(&w, N, MEMOPT_DTYPE_F32, NULL);
        memopt_tensor values = new_tensor(&w, N, MEMOPT_DTYPE_F32, NULL);
        memopt_state_view view[6];
        uint64_t views = 0;
        (void)add_parameter(&w, o, &p);
        for (; views < 6; views++) {
            view[views].struct_size = sizeof view[views];
            memopt_status status = memopt_optimizer_get_state(o, 0, views, &view[views]);
            if (e->names[views] == NULL) {
                assert_int_equal(status, MEMOPT_NOT_FOUND);
                break;
            }
            OK(status);
            assert_string_equal(view[views].name, e->names[views]);
        }
        assert_int_equal(view[0].tensor.dtype, e->moment);
        assert_int_equal(view[0].tensor.count, e->count);
        if (e->scales != 0) {
            uint64_t moments = views / 2;
            for (uint64_t m = 0; m < moments; m++) {
                float *scales = view[moments + m].tensor.data, out[N];
                assert_int_equal(view[moments + m].tensor.count, e->scales);
                for (uint64_t i = 0; i < e->scales && (m == 0 || m + 1 < moments); i++)
                    scales[i] = 1.0f; /* signed codes of new states are zeros by themselves */
                OK(memopt_dequantize(w.device, e->format, &values, &view[m].tensor,
                                     &view[moments + m].tensor, m == 0 || m + 1 < moments, NULL));
                read_floats(&w, &values, out);
                for (int i = 0; i < N; i++)
                    assert_true(out[i] == 0.0f);
            }
        }
        end_optimizer(&w, o);
        const memopt_optimizer_options options = {.kind = e->kind, .state_format = e->format};
        o = make_optimizer(&w, options, &group); /* min_8bit_size 4096 */
        (void)add_parameter(&w, o, &p);
        OK(memopt_optimizer_get_state(o, 0, 0, &view[0]));
        assert_int_equal(view[0].tensor.dtype, MEMOPT_DTYPE_F32);
        OK(memopt_optimizer_step(o, &values, 1, NULL, NULL));
        close_world(&w);
    }
}

TEST(refusals)
{
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
    memopt_optimizer *o;
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_SGD_INIT;
    uint32_t number;
    float map[256];
#define REFUSED_AS(status, call) assert_int_equal(call, MEMOPT_##status)
    static const struct {
        uint32_t kind, format;
        const char *says;
    } lacking[] = {{MEMOPT_OPTIMIZER_LION, MEMOPT_STATE_4BIT, "Lion"},
                   {MEMOPT_OPTIMIZER_SCHEDULE_FREE, MEMOPT_STATE_8BIT, ""},
                   {MEMOPT_OPTIMIZER_SGD, MEMOPT_STATE_4BIT, ""},
                   {MEMOPT_OPTIMIZER_SGD, MEMOPT_STATE_BF16, ""},
                   {MEMOPT_OPTIMIZER_ADEMAMIX, MEMOPT_STATE_BF16, "AdEMAMix"},
                   {MEMOPT_OPTIMIZER_SCHEDULE_FREE, MEMOPT_STATE_8BIT_DYNAMIC, ""}};
    for (size_t i = 0; i < sizeof lacking / sizeof *lacking; i++) {
        options.kind = lacking[i].kind;
        options.state_format = lacking[i].format;
        FAILS_SAYING(MEMOPT_UNSUPPORTED, lacking[i].says,
                     memopt_optimizer_create(w.allocator, &options, &o));
    }
    options.kind = MEMOPT_OPTIMIZER_ADAMW;
    options.state_format = MEMOPT_STATE_4BIT;
    OK(memopt_optimizer_create(w.allocator, &options, &o));
    group.momentum = -0.1;
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_add_group(o, &group, &number));
    group.momentum = 0.9;
    group.dampening = NAN;
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_add_group(o, &group, &number));
    group.dampening = 0.1;
    group.nesterov = 1;
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_add_group(o, &group, &number));
    group.dampening = 0.0;
    group.momentum = 0.0;
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_add_group(o, &group, &number));
    group.momentum = 0.9;
    group.nesterov = 2;
    REFUSED_AS(INVALID_ARGUMENT, memopt_optimizer_add_group(o, &group, &number));
    group.nesterov = 1;
    OK(memopt_optimizer_add_group(o, &group, &number));
    OK(memopt_optimizer_destroy(o));

    memopt_tensor x = new_tensor(&w, N, MEMOPT_DTYPE_F32, NULL), scales = x, codes = x;
    scales = new_tensor(&w, 8, MEMOPT_DTYPE_F32, NULL);
    codes = new_tensor(&w, N, MEMOPT_DTYPE_F32, NULL);
    codes.dtype = MEMOPT_DTYPE_U8;
    codes.count = 501;
    REFUSED_AS(UNSUPPORTED, memopt_quantize(w.device, 1, &codes, &scales, &x, 1, NULL));
    REFUSED_AS(UNSUPPORTED, memopt_quantize(w.device, 6, &codes, &scales, &x, 1, NULL));
    REFUSED_AS(UNSUPPORTED, memopt_quantize(w.device, 9, &codes, &scales, &x, 1, NULL));
    REFUSED_AS(INVALID_ARGUMENT, memopt_quantize(w.device, 2, &codes, &scales, &x, 1, NULL));
    OK(memopt_quantize(w.device, 7, &codes, &scales, &x, 1, NULL));
    REFUSED_AS(INVALID_ARGUMENT, memopt_quantize(w.device, 7, &codes, &scales, &x, 2, NULL));
    REFUSED_AS(INVALID_ARGUMENT, memopt_quantize(w.device, 7, &codes, &scales, NULL, 1, NULL));
    REFUSED_AS(INVALID_ARGUMENT, memopt_quantize(NULL, 3, &codes, &scales, &x, 1, NULL));
    REFUSED_AS(UNSUPPORTED, memopt_quantize(w.device, 7, &codes, &scales, &codes, 1, NULL));
    codes.count = 500;
    REFUSED_AS(INVALID_ARGUMENT, memopt_quantize(w.device, 7, &codes, &scales, &x, 1, NULL));
    REFUSED_AS(INVALID_ARGUMENT, memopt_dequantize(w.device, 7, &x, &codes, &scales, 1, NULL));
    REFUSED_AS(INVALID_ARGUMENT, memopt_state_map(MEMOPT_STATE_4BIT, 1, NULL));
    REFUSED_AS(UNSUPPORTED, memopt_state_map(MEMOPT_STATE_F32, 1, map));
#undef REFUSED_AS
    close_world(&w);
}

/* Formats of older versions are refused with the name of what to use instead. */
TEST(old_formats)
{
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
    static const struct {
        uint32_t format;
        const char *heir;
    } old[] = {{3, "companded 4-bit (7)"}, {4, "companded (8)"}, {5, "companded (8)"}};
    memopt_tensor x = new_tensor(&w, 128, MEMOPT_DTYPE_F32, NULL);
    memopt_tensor scales = new_tensor(&w, 1, MEMOPT_DTYPE_F32, NULL);
    memopt_tensor codes = new_tensor(&w, 128, MEMOPT_DTYPE_U8, NULL);
    for (size_t i = 0; i < sizeof old / sizeof *old; i++) {
        memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
        memopt_optimizer *o;
        float map[256];
        options.state_format = old[i].format;
        GIVES(MEMOPT_UNSUPPORTED, memopt_optimizer_create(w.allocator, &options, &o));
        assert_non_null(strstr(memopt_last_error(), old[i].heir));
        GIVES(MEMOPT_UNSUPPORTED,
              memopt_quantize(w.device, old[i].format, &codes, &scales, &x, 1, NULL));
        assert_non_null(strstr(memopt_last_error(), old[i].heir));
        GIVES(MEMOPT_UNSUPPORTED, memopt_state_map(old[i].format, 1, map));
        assert_non_null(strstr(memopt_last_error(), old[i].heir));
    }
    close_world(&w);
}

/* What the message about an unknown format lists is what the rule has, and it steps. */
TEST(listed_formats)
{
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
    memopt_tensor p = new_tensor(&w, 300, MEMOPT_DTYPE_F32, NULL);
    memopt_tensor g = new_tensor(&w, 300, MEMOPT_DTYPE_F32, NULL);
    for (uint32_t kind = 1; kind <= MEMOPT_OPTIMIZER_ADEMAMIX; kind++)
        for (uint32_t format = 1; format <= MO_STATE_FORMATS; format++) {
            memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
            memopt_optimizer *o = NULL;
            char entry[16];
            options.kind = kind;
            options.state_format = 99;
            GIVES(MEMOPT_UNSUPPORTED, memopt_optimizer_create(w.allocator, &options, &o));
            snprintf(entry, sizeof entry, " (%u)", format);
            int listed = strstr(memopt_last_error(), entry) != NULL;
            options.state_format = format;
            if (!listed) {
                GIVES(MEMOPT_UNSUPPORTED, memopt_optimizer_create(w.allocator, &options, &o));
                continue;
            }
            o = new_optimizer_of(&w, kind, format, NULL);
            (void)add_parameter(&w, o, &p);
            OK(memopt_optimizer_step(o, &g, 1, NULL, NULL));
            end_optimizer(&w, o);
        }
    close_world(&w);
}

/* A group's own limit, for parameters that are added later; 0 is the options'. */
TEST(limit_of_a_group)
{
    static const uint64_t limits[] = {0, 1, 300, 301, UINT64_MAX};
    static const memopt_dtype types[] = {MEMOPT_DTYPE_F32, MEMOPT_DTYPE_U8, MEMOPT_DTYPE_U8,
                                         MEMOPT_DTYPE_F32, MEMOPT_DTYPE_F32};
    world w = open_world(MEMOPT_STREAM_ORDER_EAGER, 0);
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    memopt_state_view view = MEMOPT_STATE_VIEW_INIT;
    memopt_optimizer *o;
    uint64_t index, bytes;
    uint32_t number;
    options.state_format = MEMOPT_STATE_8BIT_DYNAMIC;
    OK(memopt_optimizer_create(w.allocator, &options, &o));
    for (uint32_t i = 0; i < 5; i++) {
        memopt_tensor p = new_tensor(&w, 300, MEMOPT_DTYPE_F32, NULL);
        group.min_8bit_size = limits[i];
        OK(memopt_optimizer_add_group(o, &group, &number));
        OK(memopt_optimizer_add_parameter(o, number, &p, NULL, NULL, &index));
        OK(memopt_optimizer_get_state(o, index, 0, &view));
        assert_int_equal(view.tensor.dtype, types[i]);
    }
    group.min_8bit_size = 1; /* states that exist stay; later ones follow it */
    OK(memopt_optimizer_set_group(o, 4, &group));
    OK(memopt_optimizer_get_state(o, 4, 0, &view));
    assert_int_equal(view.tensor.dtype, MEMOPT_DTYPE_F32);
    unsigned char *saved = export_all(&w, o, &bytes); /* an import keeps the limit */
    OK(memopt_optimizer_import_sync(o, saved, bytes, 0, NULL));
    memopt_tensor p = new_tensor(&w, 300, MEMOPT_DTYPE_F32, NULL);
    OK(memopt_optimizer_add_parameter(o, 4, &p, NULL, NULL, &index));
    OK(memopt_optimizer_get_state(o, index, 0, &view));
    assert_int_equal(view.tensor.dtype, MEMOPT_DTYPE_U8);
    free(saved);
    OK(memopt_optimizer_destroy(o));
    close_world(&w);
}
