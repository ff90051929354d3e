/* The short forms of block codes and scales on a GPU equal blocks.h bit for bit: quotients by the
 * numbers that they divide by, NVFP4's scales around every code's borders, e2m1 around every tie,
 * drawn codes. */
#include "kernels/core/gpu_vector_io.h"

#include "kernels/cast/blocks_words_gpu.h"

#include "host_words.h"

#include <stdio.h>

namespace
{

int failures;

void differ(const char *what, uint32_t from, uint32_t expected, uint32_t actual)
{
    if (expected != actual && failures++ < 20)
        fprintf(stderr, "%s of %08x is %08x, not %08x\n", what, from, actual, expected);
}

uint64_t state = 1;

uint32_t random_bits()
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

/* From 2^least to below 2^(least + powers). */
float random_number(int least, uint32_t powers)
{
    uint32_t exponent = (uint32_t)(127 + least) + random_bits() % powers;
    return mo_f32_from_bits(exponent << 23 | random_bits() >> 9);
}

void quotients()
{
    for (uint32_t eighths = 8; eighths < 17; eighths++) {
        const float b = eighths == 16 ? 6.0f : (float)eighths / 8.0f;
        for (uint32_t mantissa = 0; mantissa < 1u << 23; mantissa += 17) {
            const float a = mo_f32_from_bits(127u << 23 | mantissa);
            differ("a short quotient", mo_f32_bits(a), mo_f32_bits(a / b),
                   mo_f32_bits(mo_short_quotient(a, b, 1.0f / b)));
        }
    }
    for (int i = 0; i < 1000000; i++) {
        const float a = random_number(-20, 40), b = random_number(-20, 40);
        differ("a quotient", mo_f32_bits(a), mo_f32_bits(a / b),
               mo_f32_bits(mo_quotient(a, b, 1.0f / b)));
    }
}

void nvfp4_scale(uint32_t amax, float tensor_scale)
{
    mo_blocks_scale expected = mo_nvfp4_scale(amax, tensor_scale);
    mo_blocks_scale scale = mo_nvfp4_scale_near(amax, tensor_scale, 1.0f / tensor_scale);
    differ("NVFP4's code", amax, expected.code, scale.code);
    differ("NVFP4's factor", amax, mo_f32_bits(expected.factor), mo_f32_bits(scale.factor));
}

void nvfp4_scales()
{
    for (int i = 0; i < 300; i++) {
        const float tensor_scale = random_number(-64, 128);
        for (uint32_t code = 0; code < 0x7f; code++) {
            float half = code == 0x7e ? 448.0f : mo_e4m3_to_f32((uint8_t)(code + 1)) * 0.5f;
            float border = (mo_e4m3_to_f32((uint8_t)code) * 0.5f + half) * 6.0f * tensor_scale;
            for (uint32_t away = 0; away < 9; away++)
                nvfp4_scale(mo_f32_bits(border) + away - 4, tensor_scale);
        }
        for (int k = 0; k < 1000; k++)
            nvfp4_scale(random_bits() >> 1, tensor_scale);
        nvfp4_scale(0, tensor_scale);
        nvfp4_scale(1, tensor_scale);
    }
}

void e2m1_words(const float values[8], float factor)
{
    uint32_t expected = 0;
    for (int k = 0; k < 8; k++)
        expected |= mo_blocks_code(MO_CODES_E2M1, values[k], factor, 0, 0) << 4 * k;
    differ("e2m1", mo_f32_bits(values[0]), expected, mo_e2m1_word(values, factor));
}

void e2m1()
{
    const float borders[8] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 6.0f};
    for (uint32_t i = 0; i < 200000; i++) {
        const float factor =
            i % 2 ? random_number(-60, 120) : mo_f32_from_bits((64 + random_bits() % 128) << 23);
        float values[8];
        for (uint32_t k = 0; k < 8; k++) {
            uint32_t bits = mo_f32_bits(borders[(i + k) % 8] / factor) + random_bits() % 5 - 2;
            values[k] = mo_f32_from_bits(bits | (random_bits() & 0x80000000u));
        }
        values[i % 8] = mo_f32_from_bits(random_bits()); /* anything */
        e2m1_words(values, factor);
        e2m1_words(values, 0.0f);
    }
}

void drawn()
{
    for (uint32_t i = 0; i < 3000000; i++) {
        const uint32_t kind = i % 3,
                       bits = i < 100000 ? random_bits() : mo_f32_bits(random_number(-24, 44));
        const float value = mo_f32_from_bits(bits | (i & 1) << 31),
                    factor = i % 5 ? 1.0f : random_number(-2, 4);
        const uint32_t random = random_bits() & 0xffffu;
        differ("a drawn code", bits, mo_blocks_code(kind, value, factor, 1, random),
               mo_drawn_code(kind, value, factor, random));
    }
}

} // namespace

int main()
{
    quotients();
    nvfp4_scales();
    e2m1();
    drawn();
    if (failures)
        fprintf(stderr, "%d differ\n", failures);
    return failures != 0;
}
