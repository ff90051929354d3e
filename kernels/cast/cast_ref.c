/* The scalar form of the cast kernel, and the loop over chunks that all CPU forms share. */
#include "kernels/cast/cast_cpu.h"

#include <string.h>

/* --- elements, by address: memcpy, because the address may be unaligned ---------------- */

static inline uint16_t read16(const unsigned char *at)
{
    uint16_t code;
    memcpy(&code, at, sizeof code);
    return code;
}

static inline float load_f32(const unsigned char *base, uint64_t i)
{
    float value;
    memcpy(&value, base + 4 * i, sizeof value);
    return value;
}

static inline float load_f16(const unsigned char *base, uint64_t i)
{
    return mo_f16_to_f32(read16(base + 2 * i));
}

static inline float load_bf16(const unsigned char *base, uint64_t i)
{
    return mo_bf16_to_f32(read16(base + 2 * i));
}

static inline float load_e4m3(const unsigned char *base, uint64_t i)
{
    return mo_e4m3_to_f32(base[i]);
}

static inline float load_e5m2(const unsigned char *base, uint64_t i)
{
    return mo_e5m2_to_f32(base[i]);
}

static inline float load_e4m3fnuz(const unsigned char *base, uint64_t i)
{
    return mo_e4m3fnuz_to_f32(base[i]);
}

static inline float load_e5m2fnuz(const unsigned char *base, uint64_t i)
{
    return mo_e5m2fnuz_to_f32(base[i]);
}

static inline void store_f32(unsigned char *base, uint64_t i, float value, int saturate)
{
    (void)saturate;
    memcpy(base + 4 * i, &value, sizeof value);
}

static inline void store_f16(unsigned char *base, uint64_t i, float value, int saturate)
{
    (void)saturate;
    uint16_t code = mo_f32_to_f16(value);
    memcpy(base + 2 * i, &code, sizeof code);
}

static inline void store_bf16(unsigned char *base, uint64_t i, float value, int saturate)
{
    (void)saturate;
    uint16_t code = mo_f32_to_bf16(value);
    memcpy(base + 2 * i, &code, sizeof code);
}

static inline void store_e4m3(unsigned char *base, uint64_t i, float value, int saturate)
{
    base[i] = mo_f32_to_e4m3(value, saturate);
}

static inline void store_e5m2(unsigned char *base, uint64_t i, float value, int saturate)
{
    base[i] = mo_f32_to_e5m2(value, saturate);
}

static inline void store_e4m3fnuz(unsigned char *base, uint64_t i, float value, int saturate)
{
    base[i] = mo_f32_to_e4m3fnuz(value, saturate);
}

static inline void store_e5m2fnuz(unsigned char *base, uint64_t i, float value, int saturate)
{
    base[i] = mo_f32_to_e5m2fnuz(value, saturate);
}

static inline void dither_f16(unsigned char *base, uint64_t i, float value, int saturate,
                              uint32_t random)
{
    (void)saturate;
    uint16_t code = mo_f32_to_f16_stochastic(value, random);
    memcpy(base + 2 * i, &code, sizeof code);
}

static inline void dither_bf16(unsigned char *base, uint64_t i, float value, int saturate,
                               uint32_t random)
{
    (void)saturate;
    uint16_t code = mo_f32_to_bf16_stochastic(value, random);
    memcpy(base + 2 * i, &code, sizeof code);
}

static inline void dither_e4m3(unsigned char *base, uint64_t i, float value, int saturate,
                               uint32_t random)
{
    base[i] = mo_f32_to_e4m3_stochastic(value, saturate, random);
}

static inline void dither_e5m2(unsigned char *base, uint64_t i, float value, int saturate,
                               uint32_t random)
{
    base[i] = mo_f32_to_e5m2_stochastic(value, saturate, random);
}

static inline void dither_e4m3fnuz(unsigned char *base, uint64_t i, float value, int saturate,
                                   uint32_t random)
{
    base[i] = mo_f32_to_e4m3fnuz_stochastic(value, saturate, random);
}

static inline void dither_e5m2fnuz(unsigned char *base, uint64_t i, float value, int saturate,
                                   uint32_t random)
{
    base[i] = mo_f32_to_e5m2fnuz_stochastic(value, saturate, random);
}

/* --- pieces ---------------------------------------------------------------------------------- */

#define NEAREST(from, to, from_dtype, to_dtype)                                                    \
    static void nearest_##from##_##to(const mo_cast_piece *piece, uint64_t start)                  \
    {                                                                                              \
        for (uint64_t i = start; i < piece->count; i++)                                            \
            store_##to(piece->destination, i, load_##from(piece->source, i), piece->saturate);     \
    }

/* Eight elements share a block of random bits. */
#define STOCHASTIC(from, to, from_dtype, to_dtype)                                                 \
    static void stochastic_##from##_##to(const mo_cast_piece *piece, uint64_t start)               \
    {                                                                                              \
        uint32_t block[4] = {0};                                                                   \
        for (uint64_t i = start; i < piece->count; i++) {                                          \
            if (i % 8 == 0)                                                                        \
                mo_random_block(&piece->stream, (piece->first + i) / 8, block);                    \
            dither_##to(piece->destination, i, load_##from(piece->source, i), piece->saturate,     \
                        mo_random_bits16(block, (uint32_t)(i % 8)));                               \
        }                                                                                          \
    }

static void copy_bits(const mo_cast_piece *piece, uint64_t start, uint32_t size)
{
    if (piece->destination != piece->source)
        memcpy(piece->destination + start * size, piece->source + start * size,
               (piece->count - start) * size);
}

void mo_cast_copy_4(const mo_cast_piece *piece, uint64_t start)
{
    copy_bits(piece, start, 4);
}

void mo_cast_copy_2(const mo_cast_piece *piece, uint64_t start)
{
    copy_bits(piece, start, 2);
}

void mo_cast_copy_1(const mo_cast_piece *piece, uint64_t start)
{
    copy_bits(piece, start, 1);
}

#define BOTH(from, to, from_dtype, to_dtype)                                                       \
    NEAREST(from, to, from_dtype, to_dtype) STOCHASTIC(from, to, from_dtype, to_dtype)

MO_CAST_PAIRS(NEAREST, BOTH)

const mo_cast_table mo_cast_scalar_table = MO_CAST_TABLE;

/* --- the loop over chunks -------------------------------------------------------------------- */

static mo_cast_piece piece_of(const mo_cast_args *args, const mo_cast_segment *segment,
                              uint64_t chunk)
{
    uint64_t first = chunk * MO_CHUNK_ELEMENTS;
    mo_cast_piece piece;
    piece.source =
        (const unsigned char *)segment->source + first * mo_element_size(segment->source_dtype);
    piece.destination = segment->destination; /* NULL stays NULL */
    if (piece.destination != NULL)
        piece.destination += first * mo_element_size(segment->destination_dtype);
    piece.count = mo_chunk_length(segment->count, chunk);
    piece.first = first;
    piece.saturate = args->saturate;
    /* In place, the line was just read, so writing it back costs nothing more. */
    piece.streaming = args->streaming && segment->source != segment->destination &&
                      (uintptr_t)piece.destination % 64 == 0;
    return piece;
}

int mo_cast_run(const mo_cast_args *args, uint64_t begin, uint64_t end, const mo_cast_table table)
{
    const mo_cast_segment *segments = args->table ? args->table : args->segments;
    int streamed = 0;
    uint32_t s = mo_chunk_segment(&segments[0].first_chunk, sizeof *segments, args->count, begin);
    mo_random_stream stream = mo_random_stream_of(args->seed, args->sequence, segments[s].tensor);
    for (uint64_t item = begin; item < end; item++) {
        uint64_t chunk = item - segments[s].first_chunk;
        if (chunk * MO_CHUNK_ELEMENTS >= segments[s].count) {
            s++;
            chunk = 0;
            if (args->stochastic)
                stream = mo_random_stream_of(args->seed, args->sequence, segments[s].tensor);
        }
        const mo_cast_segment *segment = &segments[s];
        mo_cast_piece piece = piece_of(args, segment, chunk);
        piece.stream = stream;
        table[args->stochastic][segment->source_dtype][segment->destination_dtype](&piece, 0);
        streamed |= piece.streaming;
    }
    return streamed;
}

/* --- with the largest magnitude -------------------------------------------------------------- */

uint32_t mo_largest_code_scalar(const unsigned char *source, uint64_t count, uint32_t dtype)
{
    const uint32_t size = mo_element_size(dtype);
    uint32_t most = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t code = size == 4   ? mo_f32_bits(load_f32(source, i))
                        : size == 2 ? read16(source + 2 * i)
                                    : source[i];
        code = mo_code_order(dtype, code);
        most = code > most ? code : most;
    }
    return most;
}

enum { PART = 4096 }; /* elements that stay in the first cache between two passes */

/* One chunk, part by part. Returns the largest code. */
static uint32_t run_parts(mo_cast_piece *piece, const mo_cast_segment *segment,
                          mo_cast_piece_function cast, mo_largest_code largest)
{
    const uint64_t count = piece->count;
    uint32_t most = 0;
    for (uint64_t at = 0; at < count; at += PART) {
        piece->count = count - at < PART ? count : at + PART;
        uint32_t code = largest(piece->source + at * mo_element_size(segment->source_dtype),
                                piece->count - at, segment->source_dtype);
        most = code > most ? code : most;
        if (segment->destination != NULL)
            cast(piece, at);
    }
    return most;
}

int mo_cast_amax_run(const mo_cast_args *args, uint64_t begin, uint64_t end,
                     const mo_cast_table table, mo_largest_code largest)
{
    int streamed = 0;
    for (uint64_t item = begin; item < end; item++) {
        uint32_t s = mo_chunk_segment(&args->segments[0].first_chunk, sizeof args->segments[0],
                                      args->count, item);
        const mo_cast_segment *segment = &args->segments[s];
        mo_cast_piece piece = piece_of(args, segment, item - segment->first_chunk);
        piece.stream = mo_random_stream_of(args->seed, args->sequence, segment->tensor);
        uint32_t code = run_parts(
            &piece, segment,
            table[args->stochastic][segment->source_dtype][segment->destination_dtype], largest);
        mo_cell_raise(&args->amax[segment->tensor], mo_code_magnitude(segment->source_dtype, code));
        streamed |= piece.streaming;
    }
    return streamed;
}

void mo_cast_amax_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_cast_amax_run(args, begin, end, mo_cast_scalar_table, mo_largest_code_scalar);
}

void mo_cast_ref(const void *args, uint64_t begin, uint64_t end)
{
    mo_cast_run((const mo_cast_args *)args, begin, end, mo_cast_scalar_table);
}
