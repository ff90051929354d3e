/* Tables of the block formats that the forms with short ways share: each is made of the scalar
 * form, for the scales that occur. */
#include "kernels/cast/blocks_cpu.h"
#include "kernels/core/element_io.h"

/* --- NVFP4 of bf16 --------------------------------------------------------------------------- */

static uint32_t nvfp4_code(uint32_t magnitude, float factor)
{
    return mo_blocks_code(MO_CODES_E2M1, mo_bf16_to_f32((uint16_t)magnitude), factor, 0, 0);
}

/* Close to the quotient first, then step by step. */
static void nvfp4_borders(mo_nvfp4_tables *tables, uint32_t code)
{
    static const float borders[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    const uint32_t finite = code != 0 && code != 0x7f;
    float factor = finite ? 1.0f / tables->tensor_scale / mo_e4m3_to_f32((uint8_t)code) : 0.0f;
    for (uint32_t k = 0; k < 7; k++) {
        uint32_t first = finite ? mo_f32_bits(borders[k] / factor) >> 16 : 0x7f80;
        first = first > 0x7fff ? 0x7fff : first;
        while (first > 0 && nvfp4_code(first - 1, factor) > k)
            first--;
        while (first < 0x8000 && nvfp4_code(first, factor) <= k)
            first++;
        tables->border[code][k] = (int16_t)((int32_t)first - 1);
    }
}

void mo_nvfp4_know(mo_nvfp4_tables *tables, uint32_t first, uint32_t last)
{
    if (tables->first > tables->last) {
        tables->first = first;
        tables->last = first;
        nvfp4_borders(tables, first);
    }
    while (tables->first > first)
        nvfp4_borders(tables, --tables->first);
    while (tables->last < last)
        nvfp4_borders(tables, ++tables->last);
}

/* --- e2m1 to types of two bytes --------------------------------------------------------------- */

void mo_e2m1_know(mo_item_work *work, uint8_t scale)
{
    const mo_blocks_segment *s = work->segment;
    const float factor = mo_blocks_factor(s->format, scale, work->tensor_scale);
    mo_e2m1_values *of = &work->e2m1->of[scale];
    for (uint32_t code = 0; code < 16; code++) {
        mo_store_element(of->whole, code, s->dtype, mo_blocks_value(MO_CODES_E2M1, code, factor));
        of->low[code] = (uint8_t)of->whole[code];
        of->high[code] = (uint8_t)(of->whole[code] >> 8);
    }
    work->e2m1->known[scale] = 1;
}

/* --- e4m3 of bf16 ----------------------------------------------------------------------------- */

static uint32_t e4m3_code(uint32_t magnitude, float factor)
{
    return mo_blocks_code(MO_CODES_E4M3, mo_bf16_to_f32((uint16_t)magnitude), factor, 0, 0);
}

/* The first magnitude of bf16 whose code is `code` or more. */
static uint32_t e4m3_border(uint32_t code, float factor)
{
    uint32_t first = mo_f32_bits((mo_e4m3_to_f32((uint8_t)code) - 0.125f) / factor) >> 16;
    while (e4m3_code(first - 1, factor) >= code)
        first--;
    while (e4m3_code(first, factor) < code)
        first++;
    return first;
}

/* The borders of the codes from 2 to 4, for a factor from 1 to 2. */
static void e4m3_borders(mo_e4m3_borders *of, float factor)
{
    static const uint8_t second[8] = {2, 4, 2, 2, 6, 6, 6, 6}, third[8] = {1, 1, 3, 3, 5, 5, 7, 7};
    int8_t before[8] = {0};
    const uint32_t start = e4m3_border(0x40, factor);
    for (uint32_t k = 1; k < 8; k++)
        before[k] = (int8_t)(e4m3_border(0x40 + k, factor) - start - 1);
    for (uint32_t k = 0; k < 8; k++) {
        of->second[k] = before[second[k]];
        of->third[k] = before[third[k]];
    }
    of->start = (int16_t)(start - (12 << 7));
    for (int32_t m = 0; m < 128; m++) {
        const int32_t from_start = m - (int32_t)(start & 0x7f), place = from_start & 0x7f;
        of->place[m] = from_start < 0 ? 0 : 8;
        for (uint32_t k = 1; k < 8; k++)
            of->place[m] = (uint8_t)(of->place[m] + (place > before[k]));
    }
}

void mo_e4m3_know(mo_e4m3_tables *tables, uint32_t number, float factor)
{
    const uint32_t mantissa = mo_f32_bits(factor) & 0x007fffffu;
    e4m3_borders(&tables->of[number], mo_f32_from_bits(mantissa | 127u << 23));
    tables->known[number] = 1;
}
