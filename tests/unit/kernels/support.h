/* What the kernel tests share: the forms that can run here, one-segment casts, random bits. */
#ifndef TEST_KERNELS_SUPPORT_H
#define TEST_KERNELS_SUPPORT_H

#include "support/unit.h"

#include "kernels/cast/cast.h"
#include "support/forms.h"
#include "support/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A format, told by its numbers and not by the library's code. */
typedef struct format {
    const char *name;
    uint16_t dtype;
    uint32_t size;
    int mantissa, bias;
    uint32_t largest;  /* the largest number's code */
    uint32_t overflow; /* what lies beyond it (not saturating) */
} format;

static const format formats[] = {
    {"f32", MO_DTYPE_F32, 4, 23, 127, 0x7f7fffff, 0x7f800000},
    {"f16", MO_DTYPE_F16, 2, 10, 15, 0x7bff, 0x7c00},
    {"bf16", MO_DTYPE_BF16, 2, 7, 127, 0x7f7f, 0x7f80},
    {"e4m3", MO_DTYPE_F8_E4M3, 1, 3, 7, 0x7e, 0x7f},
    {"e5m2", MO_DTYPE_F8_E5M2, 1, 2, 15, 0x7b, 0x7c},
    {"e4m3fnuz", MO_DTYPE_F8_E4M3FNUZ, 1, 3, 8, 0x7f, 0x80},
    {"e5m2fnuz", MO_DTYPE_F8_E5M2FNUZ, 1, 2, 16, 0x7f, 0x80},
};
enum { FORMATS = 7 };

/* No -0 and one NaN, where -0 would be. */
static inline int is_fnuz(const format *f)
{
    return f->dtype >= MO_DTYPE_F8_E4M3FNUZ;
}

/* The value of a code without sign by the definition of such formats, also of the code after the
 * largest, as if the exponent went on. */
static inline double code_value(const format *f, uint32_t code)
{
    int exponent = (int)(code >> f->mantissa);
    uint32_t fraction = code & ((1u << f->mantissa) - 1);
    if (exponent == 0)
        return ldexp(fraction, 1 - f->bias - f->mantissa);
    return ldexp(fraction + (double)(1u << f->mantissa), exponent - f->bias - f->mantissa);
}

/* One tensor through one form of the kernel. */
static inline mo_cast_args cast_args(void *destination, const format *to, const void *source,
                                     const format *from, uint64_t count)
{
    mo_cast_args args = {.seed = 0x1234567890abcdefu, .sequence = 7, .count = 1};
    mo_cast_segment segment = {.source = source,
                               .destination = destination,
                               .count = count,
                               .tensor = 3,
                               .source_dtype = from->dtype,
                               .destination_dtype = to->dtype};
    args.segments[0] = segment;
    return args;
}

#endif
