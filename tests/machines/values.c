/* The values that the cases work on, made of integers only. */
#include "machines/digest.h"

const char *digest_dtype(uint32_t dtype)
{
    static const char *const names[] = {"",   "f32", "f16", "bf16", "e4m3",     "e5m2",
                                        NULL, NULL,  NULL,  NULL,   "e4m3fnuz", "e5m2fnuz"};
    return dtype < sizeof names / sizeof *names ? names[dtype] : "new";
}

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

/* Half of them lie on or beside the middle between two numbers of a smaller type. */
static uint32_t any_f32(uint64_t *state)
{
    static const uint32_t special[] = {
        0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345, 0x7f812345,
        0xff800001, 0x00000001, 0x807fffff, 0x00800000, 0x7f7fffff, 0x7f7f8000, 0x477fefff,
        0x477ff000, 0x47800000, 0x43e00000, 0x43e7ffff, 0x43e80000, 0x43f00000, 0x47600000,
        0x47700000, 0x33000000, 0x33000001, 0x3a800000, 0x3b000000, 0x37000000, 0x37800000};
    uint64_t r = next_random(state);
    uint32_t bits = number(state, 127 - 28, 28 + 18), cut = 0xffffffffu << (12 + r % 10);
    switch (r >> 32 & 7) {
    case 0:
        return special[(r >> 40) % (sizeof special / sizeof *special)];
    case 1:
        return (uint32_t)(r >> 8);
    case 2:
    case 3:
        return bits;
    case 4:
        return (bits & cut) + 1;
    case 5:
        return (bits & cut) - 1;
    default:
        return bits & cut;
    }
}

void digest_fill_any(void *to, uint64_t count, uint32_t dtype, uint64_t seed)
{
    for (uint64_t i = 0; i < count; i++)
        put(to, i, dtype, dtype == MO_DTYPE_F32 ? any_f32(&seed) : (uint32_t)next_random(&seed));
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
