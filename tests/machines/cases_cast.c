/* Casts and accumulation: every pair of types. */
#include "machines/digest.h"

#include "kernels/cast/accumulate.h"
#include "kernels/cast/blocks_cpu.h"
#include "kernels/cast/cast_cpu.h"

enum { ROOM = 2 * MO_CHUNK_ELEMENTS + 200 };

static const uint64_t counts[] = {1, 7, 64, 300, 1031};
enum { COUNTS = sizeof counts / sizeof *counts };

static _Alignas(64) unsigned char source[4 * ROOM], destination[4 * ROOM];

/* Segments one behind the other; the first element of each odd one is not aligned to a vector. */
static uint64_t segments(mo_cast_args *args, uint32_t from, uint32_t to)
{
    uint64_t at = 0, chunks = 0;
    for (uint32_t i = 0; i < COUNTS; i++) {
        at = i % 2 ? at + 1 : (at + 63) / 64 * 64;
        args->segments[i] = (mo_cast_segment){source + at * mo_element_size(from),
                                              destination + at * mo_element_size(to),
                                              counts[i],
                                              chunks,
                                              10 + i,
                                              (uint16_t)from,
                                              (uint16_t)to};
        at += counts[i];
        chunks += mo_chunks_of(counts[i]);
    }
    args->count = COUNTS;
    return chunks;
}

static void pair(uint64_t *digest, uint32_t from, uint32_t to)
{
    digest_fill_any(source, 2000, from, from * 100 + to);
    for (uint32_t mode = 0; mode < 8; mode++) {
        mo_cast_args args = {.seed = 0x1234567890abcdefu,
                             .sequence = 7 + mode,
                             .stochastic = mode & 1,
                             .saturate = mode >> 1 & 1,
                             .streaming = mode >> 2 & 1};
        uint64_t chunks = segments(&args, from, to);
        digest_launch(&mo_kernel_cast, &args, chunks);
        for (uint32_t i = 0; i < COUNTS; i++)
            digest_add(digest, args.segments[i].destination, counts[i], mo_element_size(to));
    }
}

/* More than one chunk, from a table, the second tensor in place. */
static void chunks(int stochastic)
{
    static mo_cast_segment table[2];
    const uint64_t length = MO_CHUNK_ELEMENTS + 77, first = mo_chunks_of(length);
    mo_cast_args args = {.seed = 3, .table = table, .count = 2, .stochastic = (uint8_t)stochastic};
    uint64_t digest = DIGEST_START;
    digest_fill_any(source, length, MO_DTYPE_F32, 1);
    digest_fill_any(destination + 2 * length, 500, MO_DTYPE_F16, 2);
    table[0] = (mo_cast_segment){source, destination, length, 0, 0, MO_DTYPE_F32, MO_DTYPE_BF16};
    table[1] = (mo_cast_segment){destination + 2 * length,
                                 destination + 2 * length,
                                 500,
                                 first,
                                 1,
                                 MO_DTYPE_F16,
                                 MO_DTYPE_BF16};
    digest_launch(&mo_kernel_cast, &args, first + 1);
    digest_add(&digest, destination, length + 500, 2);
    digest_report(digest, "mo_cast.chunks.%s", stochastic ? "stochastic" : "nearest");
}

static void accumulate(uint64_t *digest, uint32_t from, uint32_t to)
{
    static const float scales[] = {1.0f, 0.3f, -0x1p100f, 0x1p-130f};
    for (int k = 0; k < 4; k++) {
        mo_accumulate_args args = {.count = 2, .scale = scales[k]};
        digest_fill_any(source, 1400, from, 31 + (uint64_t)k);
        digest_fill_any(destination, 1400, to, 47 + (uint64_t)k);
        args.segments[0] =
            (mo_cast_segment){source, destination, 1031, 0, 0, (uint16_t)from, (uint16_t)to};
        args.segments[1] = (mo_cast_segment){source + 1033 * mo_element_size(from),
                                             destination + 1033 * mo_element_size(to),
                                             300,
                                             1,
                                             0,
                                             (uint16_t)from,
                                             (uint16_t)to};
        digest_launch(&mo_kernel_accumulate, &args, 2);
        digest_add(digest, destination, 1400, mo_element_size(to));
    }
}

enum { BLOCK_ROWS = 129, BLOCK_COLUMNS = 167 };

static const char *const block_names[] = {"",           "mxfp8_e4m3", "mxfp8_e5m2",   "mxfp4",
                                          "nvfp4",      "e4m3_1x128", "e4m3_128x128", "e4m3_tensor",
                                          "e5m2_tensor"};

/* A matrix of rows that end within a block and a byte, in a mode of rounding and scales; its codes
 * and scales lie in `destination` and `scales`. */
static mo_blocks_args blocks_args(uint32_t format, uint32_t dtype, uint32_t mode, void *scales,
                                  uint32_t *amax)
{
    static float tensor_amax = 1e4f;
    const int known = format == MO_BLOCKS_NVFP4 || mo_blocks_is_tensor(format);
    mo_blocks_args args = {.seed = 0x1234567890abcdefu,
                           .sequence = 7 + mode,
                           .count = 1,
                           .stochastic = mode & 1,
                           .power_of_two = mode >> 1 & 1,
                           .streaming = mode & 1};
    args.segments[0] = (mo_blocks_segment){.values = source,
                                           .codes = destination,
                                           .scales = scales,
                                           .tensor_amax = known && mode & 2 ? &tensor_amax : NULL,
                                           .amax = amax,
                                           .rows = BLOCK_ROWS,
                                           .columns = BLOCK_COLUMNS,
                                           .items_across = 1,
                                           .item_rows = 50,
                                           .item_columns = BLOCK_COLUMNS,
                                           .tensor = 5,
                                           .dtype = (uint16_t)dtype,
                                           .format = (uint16_t)format};
    digest_fill_runs(source, BLOCK_ROWS * BLOCK_COLUMNS, dtype, 17 + mode);
    if (mode == 1)
        digest_fill_any(source, 2000, dtype, 9);
    return args;
}

/* Tiles of the largest blocks; returns how many. */
static uint64_t blocks_tiles(mo_blocks_segment *s)
{
    s->items_across = 2;
    s->item_rows = MO_BLOCKS_TILE;
    s->item_columns = MO_BLOCKS_TILE;
    return 4;
}

static void add_blocks(uint64_t *digest, uint32_t format, const void *scales)
{
    uint64_t count = mo_blocks_of(BLOCK_ROWS, mo_blocks_height_bits(format)) *
                     mo_blocks_of(BLOCK_COLUMNS, mo_blocks_width_bits(format));
    digest_add(digest, destination, BLOCK_ROWS * mo_blocks_code_bytes(format, BLOCK_COLUMNS), 1);
    digest_add(digest, scales, mo_blocks_is_tensor(format) ? 1 : count,
               mo_blocks_scale_size(format));
}

/* There and back. */
static void blocks(uint64_t *there, uint64_t *back, uint32_t format, uint32_t dtype)
{
    static uint32_t scales[260 * 11];
    for (uint32_t mode = 0; mode < 4; mode++) {
        uint32_t amax = 0;
        mo_blocks_args args = blocks_args(format, dtype, mode, scales, &amax);
        uint64_t items = mo_blocks_height(format) > 1 ? blocks_tiles(&args.segments[0]) : 3;
        digest_launch(&mo_kernel_blocks_quantize, &args, items);
        add_blocks(there, format, scales);
        digest_add_u64(there, amax);
        args.segments[0].amax = NULL;
        digest_launch(&mo_kernel_blocks_dequantize, &args, items);
        digest_add(back, source, BLOCK_ROWS * BLOCK_COLUMNS, mo_element_size(dtype));
    }
}

/* A cast of each type with the largest magnitude, over more than a chunk. */
static void cast_amax(uint64_t *digest, uint32_t from)
{
    const uint64_t length = MO_CHUNK_ELEMENTS + 77;
    for (uint32_t mode = 0; mode < 4; mode++) {
        uint32_t amax[2] = {0};
        mo_cast_args args = {.seed = 3, .amax = amax, .count = 1, .stochastic = mode & 1};
        args.segments[0] =
            (mo_cast_segment){source, destination, length, 0, 1, (uint16_t)from, MO_DTYPE_BF16};
        digest_fill_any(source, length, from, 5 + mode);
        if (mode & 2) /* numbers only: the upper bits of an exponent go */
            for (uint64_t i = 0; i < length * mo_element_size(from); i++)
                source[i] =
                    (from >= MO_DTYPE_F8_E4M3FNUZ && source[i] % 128 == 0) ? 0 : source[i] & 0xbf;
        digest_launch(&mo_kernel_cast_amax, &args, mo_chunks_of(length));
        digest_add(digest, destination, length, 2);
        digest_add_u64(digest, amax[1]);
    }
}

/* Every type that is cast: between the numbers of floats are those of other types. */
#define FOR_EACH_FLOAT(dtype)                                                                      \
    for (uint32_t dtype = MO_DTYPE_F32; dtype < MO_CAST_DTYPES; dtype++)                           \
        if (mo_cast_scalar_table[0][dtype][dtype] != NULL)

void digest_blocks(void)
{
    uint64_t amax = DIGEST_START;
    for (uint32_t format = MO_BLOCKS_MXFP8_E4M3; format <= MO_BLOCKS_E5M2_TENSOR; format++) {
        uint64_t there = DIGEST_START, back = DIGEST_START;
        for (uint32_t dtype = MO_DTYPE_F32; dtype <= MO_DTYPE_BF16; dtype++)
            blocks(&there, &back, format, dtype);
        digest_report(there, "mo_blocks_quantize.%s", block_names[format]);
        digest_report(back, "mo_blocks_dequantize.%s", block_names[format]);
    }
    FOR_EACH_FLOAT(from)
    cast_amax(&amax, from);
    digest_report(amax, "mo_cast_amax");
}

void digest_casts(void)
{
    FOR_EACH_FLOAT(from)
    {
        uint64_t digest = DIGEST_START;
        FOR_EACH_FLOAT(to)
        pair(&digest, from, to);
        digest_report(digest, "mo_cast.%s", digest_dtype(from));
    }
    chunks(0);
    chunks(1);
    for (uint32_t to = MO_DTYPE_F32; to <= MO_DTYPE_BF16; to++) {
        uint64_t digest = DIGEST_START;
        for (uint32_t from = MO_DTYPE_F32; from <= MO_DTYPE_BF16; from++)
            accumulate(&digest, from, to);
        digest_report(digest, "mo_accumulate.%s", digest_dtype(to));
    }
}
