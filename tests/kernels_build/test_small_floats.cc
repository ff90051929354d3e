/* The GPU forms of the conversions equal numerics.h bit for bit: every code, and of the floats
 * those around every tie and every code, and a stride through all. In packs, so that a NaN has
 * company. */
#include "kernels/core/gpu_vector_io.h"

#include "host_words.h"

#include <stdio.h>

namespace
{

enum { N = 8 };

int failures;

void differ(const char *what, uint32_t from, uint32_t expected, uint32_t actual)
{
    if (failures++ < 20)
        fprintf(stderr, "%s of %08x is %08x, not %08x\n", what, from, actual, expected);
}

uint32_t reference(uint32_t dtype, float value, int saturate)
{
    switch (dtype) {
    case MO_DTYPE_F16:
        return mo_f32_to_f16(value);
    case MO_DTYPE_BF16:
        return mo_f32_to_bf16(value);
    case MO_DTYPE_F8_E4M3:
        return mo_f32_to_e4m3(value, saturate);
    default:
        return mo_f32_to_e5m2(value, saturate);
    }
}

float decoded(uint32_t dtype, uint32_t code)
{
    switch (dtype) {
    case MO_DTYPE_F16:
        return mo_f16_to_f32((uint16_t)code);
    case MO_DTYPE_BF16:
        return mo_bf16_to_f32((uint16_t)code);
    case MO_DTYPE_F8_E4M3:
        return mo_e4m3_to_f32((uint8_t)code);
    default:
        return mo_e5m2_to_f32((uint8_t)code);
    }
}

template <uint32_t DTYPE> void encode(const char *name, const uint32_t bits[N], int saturate)
{
    float values[N];
    uint32_t codes[N];
    for (int k = 0; k < N; k++)
        values[k] = mo_f32_from_bits(bits[k]);
    mo_encode_values<N, DTYPE>(values, saturate, codes);
    for (int k = 0; k < N; k++) {
        uint32_t expected = reference(DTYPE, values[k], saturate);
        if (codes[k] != expected)
            differ(name, bits[k], expected, codes[k]);
    }
}

void encode_all(const uint32_t bits[N])
{
    encode<MO_DTYPE_F16>("f16", bits, 0);
    encode<MO_DTYPE_BF16>("bf16", bits, 0);
    for (int saturate = 0; saturate < 2; saturate++) {
        encode<MO_DTYPE_F8_E4M3>("e4m3", bits, saturate);
        encode<MO_DTYPE_F8_E5M2>("e5m2", bits, saturate);
    }
}

template <uint32_t DTYPE> void decode(const char *name, uint32_t count)
{
    for (uint32_t first = 0; first < count; first += N) {
        uint32_t codes[N];
        float values[N];
        for (uint32_t k = 0; k < N; k++)
            codes[k] = first + k;
        mo_decode_codes<N, DTYPE>(codes, values);
        for (uint32_t k = 0; k < N; k++) {
            uint32_t expected = mo_f32_bits(decoded(DTYPE, first + k));
            if (mo_f32_bits(values[k]) != expected)
                differ(name, first + k, expected, mo_f32_bits(values[k]));
        }
    }
}

} // namespace

int main()
{
    decode<MO_DTYPE_F16>("f32 of f16", 1 << 16);
    decode<MO_DTYPE_BF16>("f32 of bf16", 1 << 16);
    decode<MO_DTYPE_F8_E4M3>("f32 of e4m3", 1 << 8);
    decode<MO_DTYPE_F8_E5M2>("f32 of e5m2", 1 << 8);
    /* Whatever is tied in f16 or in bf16, in an 8-bit format or below the smallest normal, has
     * lower 13 bits of 0 or 0x1000. */
    for (uint32_t upper = 0; upper < 1u << 19; upper++) {
        const uint32_t lower[N] = {0, 1, 2, 0xfff, 0x1000, 0x1001, 0x1ffe, 0x1fff};
        uint32_t bits[N];
        for (int k = 0; k < N; k++)
            bits[k] = upper << 13 | lower[k];
        encode_all(bits);
    }
    for (uint64_t first = 0; first < 1ull << 32; first += N * 4093) {
        uint32_t bits[N];
        for (int k = 0; k < N; k++)
            bits[k] = (uint32_t)(first + (uint64_t)k * 4093);
        encode_all(bits);
    }
    if (failures)
        fprintf(stderr, "%d differ\n", failures);
    return failures != 0;
}
