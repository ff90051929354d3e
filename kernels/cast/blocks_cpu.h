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
 * above k: border[k] + 1, in both halves of a word. Known ones are filled in as they are needed. */
typedef struct mo_nvfp4_tables {
    int32_t border[128][8];
    uint8_t known[128];
    float tensor_scale;
} mo_nvfp4_tables;

void mo_nvfp4_borders(mo_nvfp4_tables *tables, uint32_t code);

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
    mo_nvfp4_tables *nvfp4; /* or NULL */
} mo_block_strip;

/* From element `start`, a multiple of 128 or of a block, on. */
typedef void (*mo_strip_function)(const mo_block_strip *strip, uint64_t start);

enum { MO_BLOCKS_DTYPES = 4, MO_BLOCKS_KINDS = 3 };

/* Blocks of bf16, to nearest: makes the scales and codes of the first ones of a strip, raises
 * *amax, and returns how many elements that were. */
typedef uint64_t (*mo_bf16_function)(const mo_block_strip *strip, uint8_t *scales, uint32_t *amax);

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
    mo_bf16_function bf16[MO_BLOCKS_NVFP4 + 1]; /* by the format; or NULL */
} mo_blocks_form;

/* The scalar form. SIMD forms use it for the ragged ends. */
extern const mo_blocks_form mo_blocks_scalar_form;

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

/* --- every type and kind, once: X(kind name, kind, type name, type) ----------------------------
 */

#define MO_BLOCKS_TYPES(X, ...)                                                                    \
    X(__VA_ARGS__, f32, MO_DTYPE_F32)                                                              \
    X(__VA_ARGS__, f16, MO_DTYPE_F16)                                                              \
    X(__VA_ARGS__, bf16, MO_DTYPE_BF16)
#define MO_BLOCKS_PAIRS(X)                                                                         \
    MO_BLOCKS_TYPES(X, e4m3, MO_CODES_E4M3)                                                        \
    MO_BLOCKS_TYPES(X, e5m2, MO_CODES_E5M2)                                                        \
    MO_BLOCKS_TYPES(X, e2m1, MO_CODES_E2M1)

/* A form's table from functions of these names. */
#define MO_BLOCKS_ROW(verb)                                                                        \
    {                                                                                              \
        {0, verb##_e4m3_f32, verb##_e4m3_f16, verb##_e4m3_bf16},                                   \
            {0, verb##_e5m2_f32, verb##_e5m2_f16, verb##_e5m2_bf16},                               \
        {                                                                                          \
            0, verb##_e2m1_f32, verb##_e2m1_f16, verb##_e2m1_bf16                                  \
        }                                                                                          \
    }
#define MO_BLOCKS_FORM(...)                                                                        \
    {                                                                                              \
        {0, amax_f32, amax_f16, amax_bf16}, e8m0_scales, nvfp4_scales,                             \
            {MO_BLOCKS_ROW(nearest), MO_BLOCKS_ROW(stochastic)}, MO_BLOCKS_ROW(decode),            \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

#endif
