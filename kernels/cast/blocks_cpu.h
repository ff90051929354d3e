/*
 * What the CPU forms of the block kernels share. A strip is a part of one row of an item; each form
 * is a table of functions that work on strips, by the type of the values, the kind of the codes and
 * the rounding.
 */
#ifndef MO_KERNELS_CAST_BLOCKS_CPU_H
#define MO_KERNELS_CAST_BLOCKS_CPU_H

#include "kernels/cast/blocks.h"
#include "kernels/cast/cast_cpu.h"

/* The elements of a strip stay in the first cache between two passes. */
enum { MO_STRIP_ELEMENTS = 4096, MO_STRIP_BLOCKS = MO_STRIP_ELEMENTS / 16 };

/* NVFP4 of a tensor. A scale's code decides from which magnitude of bf16 on an element has a code
 * above k: border[k] + 1. Those of the codes from `first` to `last` are known; one row more, so
 * that 16 bytes can be read from a row's second border on. */
typedef struct mo_nvfp4_tables {
    int16_t border[129][8];
    uint32_t first, last; /* first > last: none */
    float tensor_scale;
} mo_nvfp4_tables;

/* What the 16 codes of e2m1 are in a type of two bytes, by the code of their block's scale: their
 * lower bytes, their upper bytes, and whole. */
typedef struct mo_e2m1_values {
    uint8_t low[16], high[16];
    uint16_t whole[16];
} mo_e2m1_values;

typedef struct mo_e2m1_tables {
    mo_e2m1_values of[256];
    uint8_t known[256];
} mo_e2m1_tables;

/* e4m3 of bf16. From `start` on, 5 binades below the smallest normal number, codes have the same
 * borders in each binade: how far a code's last magnitude but one is from there. */
typedef struct mo_e4m3_borders {
    int8_t second[8], third[16]; /* in the order of a search; 16 bytes can be read from either */
    int16_t start;               /* for a factor from 1 to 2 */
    uint8_t place[128]; /* by a magnitude's mantissa: its code, 8 for each binade above start's */
} mo_e4m3_borders;

/* By the mantissa of a block's largest magnitude; one more for other factors. */
enum { MO_E4M3_ANY = 128, MO_E4M3_TABLES };
typedef struct mo_e4m3_tables {
    mo_e4m3_borders of[MO_E4M3_TABLES];
    uint8_t known[MO_E4M3_TABLES];
    int refused; /* too many codes are subnormal with a scale of the whole tensor */
} mo_e4m3_tables;

/* A block's borders, and where they start. */
typedef struct mo_e4m3_scale {
    const mo_e4m3_borders *borders;
    int16_t start;
} mo_e4m3_scale;

/* Makes a table known, whose factors have the mantissa of this one. */
void mo_e4m3_know(mo_e4m3_tables *tables, uint32_t number, float factor);

/* The factor is not 0. */
static inline mo_e4m3_scale mo_e4m3_scale_of(mo_e4m3_tables *tables, uint32_t number, float factor)
{
    if (!tables->known[number])
        mo_e4m3_know(tables, number, factor);
    const mo_e4m3_borders *of = &tables->of[number];
    const int32_t power = (int32_t)(mo_f32_bits(factor) >> 23) - 127;
    return (mo_e4m3_scale){of, (int16_t)(of->start - power * 128)};
}

/* Makes the borders of these codes known. */
void mo_nvfp4_know(mo_nvfp4_tables *tables, uint32_t first, uint32_t last);

typedef struct mo_block_strip {
    unsigned char *values;
    unsigned char *codes;
    const float *factors; /* of its blocks */
    uint64_t count;       /* elements, at most MO_STRIP_ELEMENTS */
    uint64_t number;      /* of its first element for the random bits, a multiple of 128 */
    uint32_t shift;       /* a block has 2^shift columns */
    int streaming;        /* the output is aligned to 64 bytes and to be written past the caches */
    uint64_t ahead;       /* how many bytes ahead the input is prefetched; 0: not at all */
    mo_random_stream stream;
    mo_nvfp4_tables *nvfp4;     /* or NULL */
    const mo_e2m1_values *e2m1; /* by the scale's code */
    const mo_e4m3_scale *e4m3;  /* of its blocks */
} mo_block_strip;

/* A strip and those below it, which are as far apart as these steps, and the scales of its blocks.
 */
typedef struct mo_strip_rows {
    mo_block_strip strip;
    uint64_t rows, value_step, code_step, number_step;
    unsigned char *scales;
} mo_strip_rows;

/* From element `start`, a multiple of 128 or of a block, on. */
typedef void (*mo_strip_function)(const mo_block_strip *strip, uint64_t start);

enum { MO_BLOCKS_DTYPES = 4, MO_BLOCKS_KINDS = 5 };

/* Blocks of bf16, to nearest: makes the scales and codes of the first ones of a strip, raises
 * *amax, and returns how many elements that were. */
typedef uint64_t (*mo_bf16_function)(const mo_block_strip *strip, uint8_t *scales, uint32_t *amax);

/* Codes of e2m1 to values of two bytes, by the scales' codes: the first ones of a strip. Returns
 * how many. */
typedef uint64_t (*mo_e2m1_function)(const mo_block_strip *strip, const uint8_t *scales);

/* The largest magnitude of each column of some rows, as the bits of such values. */
typedef void (*mo_fold_function)(const unsigned char *values, uint64_t pitch, uint64_t rows,
                                 uint64_t columns, unsigned char *largest);

typedef struct mo_blocks_form {
    /* Raises amax[b] to the bits of the largest magnitude of block b of the strip. */
    void (*amax[MO_BLOCKS_DTYPES])(const mo_block_strip *strip, uint64_t start, uint32_t *amax);
    /* mo_e8m0_scale and mo_nvfp4_scale of `count` blocks. */
    void (*e8m0)(const uint32_t *amax, uint64_t count, uint32_t emax, uint8_t *codes,
                 float *factors);
    void (*nvfp4)(const uint32_t *amax, uint64_t count, float tensor_scale, uint8_t *codes,
                  float *factors);
    mo_strip_function quantize[2][MO_BLOCKS_KINDS][MO_BLOCKS_DTYPES]; /* [stochastic] */
    mo_strip_function dequantize[MO_BLOCKS_KINDS][MO_BLOCKS_DTYPES];
    mo_fold_function fold[2]; /* of elements of 2 bytes, of 4 */
    mo_e2m1_function e2m1;    /* or NULL */
    /* Whole blocks of bf16 to e4m3, to nearest, all of finite scales. `nans`: there may be some,
     * and magnitudes above the largest code. Returns how many elements of each row, from the first
     * on. Or NULL. */
    uint64_t (*e4m3)(const mo_strip_rows *rows, int nans);
    mo_bf16_function bf16[MO_BLOCKS_NVFP4 + 1]; /* by the format; or NULL */
} mo_blocks_form;

/* The scalar form. SIMD forms use it for the ragged ends. */
extern const mo_blocks_form mo_blocks_scalar_form;

/* What the strips of an item have in common. */
typedef struct mo_item_work {
    const mo_blocks_args *args;
    const mo_blocks_segment *segment;
    const mo_blocks_form *form;
    float tensor_scale;
    mo_nvfp4_tables *nvfp4;
    mo_e2m1_tables *e2m1;
    mo_e4m3_tables *e4m3;
    uint32_t width_bits, height, amax;
    mo_blocks_scale whole; /* of all of its blocks, where known */
    int known;
    uint64_t across; /* blocks of a row of the matrix */
    mo_random_stream stream;
    int streamed;
} mo_item_work;

/* Makes the values of all codes with this scale known. */
void mo_e2m1_know(mo_item_work *work, uint8_t scale);

/* Runs items [begin, end) by the functions of a form. Return 1 if any output was written past the
 * caches, so that a fence is due. */
int mo_blocks_quantize_run(const mo_blocks_args *args, uint64_t begin, uint64_t end,
                           const mo_blocks_form *form);
int mo_blocks_dequantize_run(const mo_blocks_args *args, uint64_t begin, uint64_t end,
                             const mo_blocks_form *form);

#define MO_BLOCKS_DECLARE(isa)                                                                     \
    void mo_blocks_quantize_##isa(const void *args, uint64_t begin, uint64_t end);                 \
    void mo_blocks_dequantize_##isa(const void *args, uint64_t begin, uint64_t end);
MO_BLOCKS_DECLARE(ref)
MO_BLOCKS_DECLARE(neon)
MO_BLOCKS_DECLARE(avx2)
MO_BLOCKS_DECLARE(avx512)
MO_BLOCKS_DECLARE(avx512vbmi)

/* --- every type and kind, once: X(kind name, kind, type name, type) --------------------------- */

#define MO_BLOCKS_TYPES(X, ...)                                                                    \
    X(__VA_ARGS__, f32, MO_DTYPE_F32)                                                              \
    X(__VA_ARGS__, f16, MO_DTYPE_F16)                                                              \
    X(__VA_ARGS__, bf16, MO_DTYPE_BF16)
#define MO_BLOCKS_PAIRS(X)                                                                         \
    MO_BLOCKS_TYPES(X, e4m3, MO_CODES_E4M3)                                                        \
    MO_BLOCKS_TYPES(X, e5m2, MO_CODES_E5M2)                                                        \
    MO_BLOCKS_TYPES(X, e2m1, MO_CODES_E2M1)                                                        \
    MO_BLOCKS_TYPES(X, nf4, MO_CODES_NF4)                                                          \
    MO_BLOCKS_TYPES(X, dynamic8, MO_CODES_DYNAMIC8)

/* A form's table from functions of these names. */
#define MO_BLOCKS_ROW(verb)                                                                        \
    {                                                                                              \
        {0, verb##_e4m3_f32, verb##_e4m3_f16, verb##_e4m3_bf16},                                   \
            {0, verb##_e5m2_f32, verb##_e5m2_f16, verb##_e5m2_bf16},                               \
            {0, verb##_e2m1_f32, verb##_e2m1_f16, verb##_e2m1_bf16},                               \
            {0, verb##_nf4_f32, verb##_nf4_f16, verb##_nf4_bf16},                                  \
        {                                                                                          \
            0, verb##_dynamic8_f32, verb##_dynamic8_f16, verb##_dynamic8_bf16                      \
        }                                                                                          \
    }
#define MO_BLOCKS_FORM(e2m1, e4m3, ...)                                                            \
    {                                                                                              \
        {0, amax_f32, amax_f16, amax_bf16}, e8m0_scales, nvfp4_scales,                             \
            {MO_BLOCKS_ROW(nearest), MO_BLOCKS_ROW(stochastic)}, MO_BLOCKS_ROW(decode),            \
            {fold_halves, fold_words}, e2m1, e4m3,                                                 \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

#endif
