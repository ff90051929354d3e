/* The GPU's 8-bit codes by steps equal state_codes.h for both signs of the floats from 0 to 1:
 * those around every threshold and every cell's end, and a stride through all; with the argument
 * --all (38 seconds) every one. And the quotients of scales, which are made of products. */
#include "kernels/optim/state_codes_gpu.h"

#include "host_words.h"

#include <stdio.h>
#include <string.h>

namespace
{

const uint32_t TOP = 0x3f800001u; /* x * (1 / absmax) may be one step above 1 */
mo_code_tables tables;
int failures;

void compare(const char *what, float y, uint32_t expected, uint32_t actual)
{
    if (expected != actual && failures++ < 20)
        fprintf(stderr, "%s code of %a is %u, not %u\n", what, (double)y, actual, expected);
}

/* The eight floats from these bits on. */
void check_from(uint32_t first, uint32_t stride)
{
    for (int sign = 0; sign < 2; sign++) {
        float y[8];
        uint32_t words[2];
        for (uint32_t k = 0; k < 8; k++) {
            uint64_t bits = first + (uint64_t)k * stride;
            y[k] = mo_f32_from_bits(bits < TOP ? (uint32_t)bits : TOP);
            y[k] = sign ? -y[k] : y[k];
        }
        mo_codes_of(&tables, 1, y, words);
        for (int k = 0; k < 8; k++)
            compare("signed", y[k], mo_code_signed(y[k]), mo_byte_of(words[k / 4], k % 4));
        if (sign)
            continue;
        float from[8];
        memcpy(from, y, sizeof from);
        mo_from_least(from);
        mo_codes_of(&tables, 0, from, words);
        for (int k = 0; k < 8; k++)
            compare("unsigned", y[k], mo_code_unsigned(1.0f, y[k]),
                    mo_byte_of(words[k / 4], k % 4));
    }
}

/* The quotients that scales need, of each significand; near: how many steps an approximation is
 * off. */
void check_quotients()
{
    for (uint32_t bits = 0x3f800000u; bits < 0x40000000u; bits++) {
        float value = mo_f32_from_bits(bits), exact = 1.0f / value;
        for (int off = -4; off <= 4; off++) {
            float near = mo_f32_from_bits(mo_f32_bits(exact) + (uint32_t)off);
            compare("reciprocal", value, mo_f32_bits(exact),
                    mo_f32_bits(mo_reciprocal_from(value, near)));
        }
    }
    for (uint32_t exponent = 27; exponent <= 227; exponent++) { /* 2^-100 to 2^100 */
        float value = mo_f32_from_bits(exponent << 23 | 0x7fffffu);
        compare("reciprocal", value, mo_f32_bits(1.0f / value), mo_f32_bits(mo_reciprocal(value)));
    }
}

} // namespace

int main(int count, char **words)
{
    uint32_t stride = count > 1 && strcmp(words[1], "--all") == 0 ? 1 : 61;
    memcpy(tables.steps_signed, mo_steps_signed, sizeof mo_steps_signed);
    memcpy(tables.steps_unsigned, mo_steps_unsigned, sizeof mo_steps_unsigned);
    for (uint32_t first = 0; first <= TOP; first += 8 * stride)
        check_from(first, stride);
    for (uint32_t cell = 1; cell <= 0x3f80u; cell++)
        check_from((cell << 16) - 4, 1);
    for (int g = 1; g <= MO_UNSIGNED_TOP; g++)
        check_from(mo_threshold_unsigned[g] - (g > 1 ? 4 : 0), 1);
    for (int g = 1; g <= MO_SIGNED_TOP; g++)
        check_from(mo_threshold_signed[g] - 4, 1);
    check_quotients();
    printf("%d differences\n", failures);
    return failures != 0;
}
