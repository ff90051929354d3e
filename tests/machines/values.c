/* The values that the cases work on, made of integers only. */
#include "machines/digest.h"

static void put(void *to, uint64_t i, uint32_t dtype, uint32_t bits)
{
    uint32_t size = mo_element_size(dtype);
    uint16_t half = (uint16_t)bits;
    if (size == 4)
        memcpy((char *)to + 4 * i, &bits, 4);
    else if (size == 2)
        memcpy((char *)to + 2 * i, &half, 2);
    else
        ((uint8_t *)to)[i] = (uint8_t)bits;
}

/* Bits of an f32 with an exponent in [low, low + span). */
static uint32_t number(uint64_t *state, uint32_t low, uint32_t span)
{
    uint64_t r = next_random(state);
    uint32_t exponent = low + (uint32_t)(r >> 32) % span;
    return (uint32_t)(r & 0x807fffffu) | exponent << 23;
}

static uint32_t of_kind(uint64_t kind, uint64_t *state)
{
    uint64_t r = next_random(state);
    switch (kind) {
    case 0: /* as gradients are */
        return number(state, 110, 16);
    case 1:
        return number(state, 60, 90);
    case 2:
        return r % 50 == 0 ? number(state, 120, 8) : 0;
    case 3: /* subnormal */
        return number(state, 0, 2);
    case 4:
        return number(state, 160, 40);
    case 5:
        return (uint32_t)r & 0x80000000u;
    case 6: /* not finite here and there */
        return r % 100 == 0 ? (uint32_t)r | 0x7f800000u : number(state, 115, 12);
    default: /* subnormal as f16 */
        return number(state, 98, 16);
    }
}

void digest_fill_runs(void *to, uint64_t count, uint32_t dtype, uint64_t seed)
{
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits = of_kind(i / 128 * 5 % 8, &seed);
        if (dtype == MO_DTYPE_F16)
            bits = mo_f32_to_f16(mo_f32_from_bits(bits));
        else if (dtype == MO_DTYPE_BF16)
            bits = mo_f32_to_bf16(mo_f32_from_bits(bits));
        put(to, i, dtype, bits);
    }
}
