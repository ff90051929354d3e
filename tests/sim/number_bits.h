/* Numbers in registers that hold bits: what the translated PTX and code objects share. */
#ifndef MEMOPT_SIM_NUMBER_BITS_H
#define MEMOPT_SIM_NUMBER_BITS_H

#include <stdint.h>
#include <string.h>

static inline float f32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline double f64(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline uint64_t bits_f64(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Towards zero; what does not fit becomes the nearest that does, no number becomes 0. */
static inline uint32_t to_u32(float value)
{
    return value >= 4294967296.0f ? UINT32_MAX : value > 0.0f ? (uint32_t)value : 0;
}

#endif
