/* The scalar numerics: the generator's published vectors, which bits serve which element, and
 * stochastic rounding, whose probability is counted over all 65,536 random halfwords. */
#include "support.h"

#include "kernels/core/numerics.h"

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The known answers that come with the authors' Random123 for philox4x32-10. */
TEST(philox_known_answers)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } vectors[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        uint32_t out[4];
        mo_philox4x32(vectors[i].counter, vectors[i].key, out);
        assert_memory_equal(out, vectors[i].out, sizeof out);
    }
}

TEST(element_bits_are_halfwords_of_blocks)
{
    uint64_t far = (uint64_t)1 << 40;
    mo_random_stream stream = mo_random_stream_of(1, 2, 3);
    uint32_t key[2] = {1, 0}, counter[4] = {3, 0, 2, 0}, words[4];
    mo_philox4x32(counter, key, words);
    assert_int_equal(stream.key[0], words[0]);
    assert_int_equal(stream.key[1], words[1]);
    assert_int_equal(stream.high[0], words[2]);
    assert_int_equal(stream.high[1], words[3]);
    for (uint64_t element = far - 16; element < far + 16; element++) {
        uint32_t at[4] = {(uint32_t)(element / 8), (uint32_t)(element / 8 >> 32), words[2],
                          words[3]};
        uint16_t halves[8];
        mo_philox4x32(at, stream.key, at);
        memcpy(halves, at, sizeof halves);
        assert_int_equal(mo_random_element(&stream, element), halves[element % 8]);
    }
}

/* Seed, sequence and tensor all count, also their upper halves, and are not exchangeable. */
TEST(streams_differ)
{
    const uint64_t high = (uint64_t)1 << 32;
    const uint64_t inputs[][3] = {{0, 0, 0},    {1, 0, 0},    {0, 1, 0},   {0, 0, 1},
                                  {high, 0, 0}, {0, high, 0}, {0, 0, high}};
    for (size_t i = 0; i < 7; i++)
        for (size_t j = 0; j < i; j++) {
            mo_random_stream a = mo_random_stream_of(inputs[i][0], inputs[i][1], inputs[i][2]);
            mo_random_stream b = mo_random_stream_of(inputs[j][0], inputs[j][1], inputs[j][2]);
            assert_memory_not_equal(&a, &b, sizeof a);
        }
}

static uint32_t stochastic_code(const format *to, float value, uint32_t random)
{
    switch (to->dtype) {
    case MO_DTYPE_F16:
        return mo_f32_to_f16_stochastic(value, random);
    case MO_DTYPE_BF16:
        return mo_f32_to_bf16_stochastic(value, random);
    case MO_DTYPE_F8_E4M3:
        return mo_f32_to_e4m3_stochastic(value, 0, random);
    case MO_DTYPE_F8_E4M3FNUZ:
        return mo_f32_to_e4m3fnuz_stochastic(value, 0, random);
    case MO_DTYPE_F8_E5M2FNUZ:
        return mo_f32_to_e5m2fnuz_stochastic(value, 0, random);
    default:
        return mo_f32_to_e5m2_stochastic(value, 0, random);
    }
}

/* The code at or below a magnitude, searched by value. */
static uint32_t code_below(const format *to, double magnitude)
{
    uint32_t low = 0, high = to->largest + 1;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (code_value(to, middle) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Over all random halfwords the upper neighbour comes floor(65536 * distance) times, else the lower
 * one. */
static void count_ups(const format *to, float value)
{
    double magnitude = fabs((double)value);
    uint32_t sign = signbit(value) ? 1u << (8 * to->size - 1) : 0, ups = 0;
    uint32_t below = code_below(to, magnitude);
    double low = code_value(to, below), high = code_value(to, below + 1);
    uint32_t wanted = (uint32_t)floor((magnitude - low) / (high - low) * 65536);
    for (uint32_t random = 0; random < 65536; random++) {
        uint32_t code = stochastic_code(to, value, random);
        if (code == ((below + 1) | sign))
            ups++;
        else if (code != (is_fnuz(to) && below == 0 ? 0 : below | sign))
            fail_msg("%s of %a by %x: %x is no neighbour", to->name, (double)value, random, code);
    }
    if (ups != wanted)
        fail_msg("%s of %a: up %u times, not %u", to->name, (double)value, ups, wanted);
}

TEST(stochastic_probability_is_the_distance)
{
    uint64_t seed = 1;
    for (int f = 1; f < FORMATS; f++) {
        const format *to = &formats[f];
        for (int i = 0; i < 150; i++) {
            uint32_t code = (uint32_t)(next_random(&seed) % to->largest);
            if (i < 30) /* subnormals and the smallest normals */
                code = (uint32_t)(next_random(&seed) % (2u << to->mantissa));
            double low = code_value(to, code), high = code_value(to, code + 1);
            double part = (double)(next_random(&seed) >> 11) * 0x1p-53;
            float value = (float)(low + (high - low) * part);
            if ((double)value >= code_value(to, to->largest))
                continue;
            count_ups(to, i % 2 ? value : -value);
        }
        for (uint32_t code = 0; code <= 4; code++) /* exact values never move */
            count_ups(to, (float)code_value(to, code));
    }
}

TEST(stochastic_edges)
{
    static const struct {
        int f;
        uint32_t input, code;
    } edges[] = {
        {2, 0x7f7f0000, 0x7f7f}, {2, 0x7f7fffff, 0x7f7f}, {2, 0xff7fffff, 0xff7f},
        {2, 0x7f800000, 0x7f80}, {2, 0x7f800001, 0x7fc0}, {2, 0xffbfffff, 0xffff},
        {1, 0x477fe000, 0x7bff}, {1, 0x477fffff, 0x7bff}, {1, 0x47800000, 0x7c00},
        {1, 0xff800000, 0xfc00}, {1, 0x7f800001, 0x7e00}, {1, 0x7fffffff, 0x7fff},
        {1, 0x2b7fffff, 0x0000}, /* below 2^-40: the distance is below 2^-16 */
        {3, 0x43e00001, 0x7e},   {3, 0x43efffff, 0x7e},   {3, 0x43f00000, 0x7f},
        {4, 0x47600001, 0x7b},   {4, 0x477fffff, 0x7b},   {4, 0x47800000, 0x7c},
        {4, 0xff800001, 0xff},   {2, 0x80000000, 0x8000}, {1, 0x80000001, 0x8000},
        {5, 0x43700001, 0x7f},   {5, 0xc37fffff, 0xff},   {5, 0x43800000, 0x80},
        {6, 0x47600001, 0x7f},   {6, 0xc77fffff, 0xff},   {6, 0x47800000, 0x80},
        {5, 0xff800000, 0x80},   {6, 0xff800001, 0x80},   {5, 0x80000001, 0x00},
    };
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
        for (uint32_t random = 0; random < 65536; random += 255)
            assert_int_equal(
                stochastic_code(&formats[edges[i].f], float_of(edges[i].input), random),
                edges[i].code);
}

/* The mean over 100,000 draws of the generator. */
TEST(stochastic_mean)
{
    static const float values[] = {1.2345f, 3.14159e-3f, 0.99712f, 1.0e4f + 0.37f};
    enum { DRAWS = 100000 };
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
        mo_random_stream stream = mo_random_stream_of(11, v, 0);
        double bf16 = 0, f16 = 0, value = (double)values[v];
        for (uint64_t i = 0; i < DRAWS; i++) {
            uint32_t random = mo_random_element(&stream, i);
            bf16 += (double)mo_bf16_to_f32(mo_f32_to_bf16_stochastic(values[v], random));
            f16 += (double)mo_f16_to_f32(mo_f32_to_f16_stochastic(values[v], random));
        }
        assert_true(fabs(bf16 / DRAWS - value) < 3e-5 * value);
        assert_true(fabs(f16 / DRAWS - value) < 3e-5 * value);
    }
}

TEST(classification)
{
    assert_true(mo_f32_is_finite(float_of(0x7f7fffff)) && mo_f32_is_finite(float_of(0x80000001)));
    assert_false(mo_f32_is_finite(float_of(0x7f800000)) || mo_f32_is_finite(float_of(0xffc00000)));
    assert_true(mo_f32_is_nan(float_of(0xff800001)));
    assert_false(mo_f32_is_nan(float_of(0xff800000)));
    assert_int_equal(bits_of(mo_fmaf(float_of(0x3f800001), float_of(0x3f800001), -1.0f)),
                     bits_of(0x1.000001p-22f));
}
