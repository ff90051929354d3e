/*
 * Every pair of types, once: included by each CPU form after it has defined
 * NEAREST(from, to, from_dtype, to_dtype) and STOCHASTIC(...), which make the functions of a pair.
 * PAIRS is then the form's table. Conversions to f32 and to the same type round nothing, so both
 * halves of the table share them.
 */
#define BOTH(from, to, from_dtype, to_dtype)                                                       \
    NEAREST(from, to, from_dtype, to_dtype) STOCHASTIC(from, to, from_dtype, to_dtype)

/* clang-format off */
BOTH(f32, f16, 1, 2)
BOTH(f32, bf16, 1, 3)
BOTH(f32, e4m3, 1, 4)
BOTH(f32, e5m2, 1, 5)
NEAREST(f16, f32, 2, 1)
BOTH(f16, bf16, 2, 3)
BOTH(f16, e4m3, 2, 4)
BOTH(f16, e5m2, 2, 5)
NEAREST(bf16, f32, 3, 1)
BOTH(bf16, f16, 3, 2)
BOTH(bf16, e4m3, 3, 4)
BOTH(bf16, e5m2, 3, 5)
NEAREST(e4m3, f32, 4, 1)
BOTH(e4m3, f16, 4, 2)
BOTH(e4m3, bf16, 4, 3)
BOTH(e4m3, e5m2, 4, 5)
NEAREST(e5m2, f32, 5, 1)
BOTH(e5m2, f16, 5, 2)
BOTH(e5m2, bf16, 5, 3)
BOTH(e5m2, e4m3, 5, 4)

/* Rows: source f32, f16, bf16, e4m3, e5m2 (from 1); columns: destination in the same order. */
#define ROWS(round)                                                                                \
    {                                                                                              \
        {0},                                                                                       \
        {0, mo_cast_copy_4, round##_f32_f16, round##_f32_bf16, round##_f32_e4m3, round##_f32_e5m2},\
        {0, nearest_f16_f32, mo_cast_copy_2, round##_f16_bf16, round##_f16_e4m3, round##_f16_e5m2},\
        {0, nearest_bf16_f32, round##_bf16_f16, mo_cast_copy_2, round##_bf16_e4m3,                 \
         round##_bf16_e5m2},                                                                       \
        {0, nearest_e4m3_f32, round##_e4m3_f16, round##_e4m3_bf16, mo_cast_copy_1,                 \
         round##_e4m3_e5m2},                                                                       \
        {0, nearest_e5m2_f32, round##_e5m2_f16, round##_e5m2_bf16, round##_e5m2_e4m3,              \
         mo_cast_copy_1},                                                                          \
    }
/* clang-format on */

#define PAIRS                                                                                      \
    {                                                                                              \
        ROWS(nearest), ROWS(stochastic)                                                            \
    }
