/*
 * The optimizer's kernels on a GPU. A group of 32 threads works on a block of 256 elements, a pack
 * of eight a thread, so a block's absmax is a reduction over the group and no block waits for
 * another. The code tables are copied to shared memory, where every thread looks up its own entry.
 */
#include "kernels/pack.h"

#include "kernels/optim_scalar.h"

enum {
    MO_OPTIM_GROUPS = MO_OPTIM_THREADS / MO_LANES,
    MO_CHUNK_BLOCKS = MO_CHUNK_ELEMENTS / MO_BLOCK_SIZE
};

/* --- 8-bit codes ------------------------------------------------------------------------------ */

typedef struct mo_code_tables {
    uint32_t map_signed[256], map_unsigned[256];
    uint32_t threshold_signed[132], threshold_unsigned[256];
    uint8_t cell_signed[2820], cell_unsigned[2692];
} mo_code_tables;

template <int BYTES> MO_DEVICE void mo_table_copy(void *shared, const void *table)
{
    static_assert(BYTES % 4 == 0, "tables are copied by words");
    for (uint32_t w = mo_thread(); w < BYTES / 4; w += MO_OPTIM_THREADS)
        ((uint32_t *)shared)[w] = ((const uint32_t *)table)[w];
}

/* A barrier is due afterwards. */
MO_DEVICE void mo_maps_load(mo_code_tables *t)
{
    mo_table_copy<sizeof mo_map_signed>(t->map_signed, mo_map_signed);
    mo_table_copy<sizeof mo_map_unsigned>(t->map_unsigned, mo_map_unsigned);
}

MO_DEVICE void mo_cells_load(mo_code_tables *t)
{
    mo_table_copy<sizeof mo_threshold_signed>(t->threshold_signed, mo_threshold_signed);
    mo_table_copy<sizeof mo_threshold_unsigned>(t->threshold_unsigned, mo_threshold_unsigned);
    mo_table_copy<sizeof mo_cell_signed>(t->cell_signed, mo_cell_signed);
    mo_table_copy<sizeof mo_cell_unsigned>(t->cell_unsigned, mo_cell_unsigned);
}

/* mo_code_cell without a branch, for magnitudes of at most 1. */
MO_DEVICE uint32_t mo_cell_code(const uint8_t *cells, const uint32_t *threshold, uint32_t umin,
                                uint32_t bits)
{
    int32_t cell = (int32_t)(bits >> 16) - (int32_t)umin;
    uint32_t code = cells[cell < 0 ? 0 : cell];
    return code - (bits < threshold[code]);
}

/* mo_code_signed for finite y of at most 1: 127 plus or minus the magnitude's code, at least 0. */
MO_DEVICE uint32_t mo_cell_code_signed(const mo_code_tables *t, float y)
{
    uint32_t bits = mo_f32_bits(y), sign = 0u - (bits >> 31);
    uint32_t code =
        mo_cell_code(t->cell_signed, t->threshold_signed, MO_SIGNED_UMIN, bits & 0x7fffffffu);
    int32_t signed_code = (int32_t)((code ^ sign) - sign) + MO_SIGNED_ZERO;
    return (uint32_t)(signed_code < 0 ? 0 : signed_code);
}

/* mo_code_unsigned for finite x, and y of at most 1. */
MO_DEVICE uint32_t mo_cell_code_unsigned(const mo_code_tables *t, float x, float y)
{
    uint32_t code = mo_cell_code(t->cell_unsigned, t->threshold_unsigned, MO_UNSIGNED_UMIN,
                                 mo_f32_bits(y) & 0x7fffffffu);
    code = code == 0 ? 1 : code;
    return x > 0.0f ? code : 0;
}

template <uint32_t LANES> MO_DEVICE uint32_t mo_group_largest(uint32_t value)
{
    MO_UNROLL
    for (uint32_t mask = LANES / 2; mask > 0; mask /= 2) {
        uint32_t other = mo_shuffle_xor_u32(value, mask);
        value = other > value ? other : value;
    }
    return value;
}

/* Of the first `rest` values of each thread, over a group of threads. */
template <uint32_t LANES> MO_DEVICE uint32_t mo_block_largest(const float values[8], uint32_t rest)
{
    uint32_t largest = 0;
    MO_UNROLL
    for (uint32_t k = 0; k < 8; k++) {
        uint32_t bits = mo_f32_bits(values[k]) & 0x7fffffffu;
        largest = k < rest && bits > largest ? bits : largest;
    }
    return mo_group_largest<LANES>(largest);
}

/* --- the formats of states: how 32 threads read and write 256 elements, eight each --------------
 */

/* The tables that a format needs lie in shared memory. Codes are of finite values whose block has
 * this scale, so y is at most 1 (448 with e4m3) but for rounding. */
template <uint32_t FORMAT> struct mo_codec;

template <> struct mo_codec<MO_STATE_8BIT> {
    typedef mo_code_tables tables;

    MO_DEVICE void load(tables *t)
    {
        mo_maps_load(t);
        mo_cells_load(t);
    }

    MO_DEVICE float value(const tables *t, int is_signed, uint32_t code, float scale)
    {
        return mo_f32_from_bits((is_signed ? t->map_signed : t->map_unsigned)[code]) * scale;
    }

    MO_DEVICE uint32_t code(const tables *t, int is_signed, float x, const mo_block_scale *scale)
    {
        float y = x * scale->prescale * scale->inverse;
        return is_signed ? mo_cell_code_signed(t, y) : mo_cell_code_unsigned(t, x, y);
    }
};

template <> struct mo_codec<MO_STATE_4BIT> {
    typedef struct {
        uint32_t map[16], threshold[12];
    } tables;

    MO_DEVICE void load(tables *t)
    {
        mo_table_copy<sizeof mo_map4_signed>(t->map, mo_map4_signed);
        mo_table_copy<sizeof mo_threshold4_signed>(t->threshold, mo_threshold4_signed);
    }

    MO_DEVICE float value(const tables *t, int is_signed, uint32_t code, float scale)
    {
        return is_signed ? mo_f32_from_bits(t->map[code]) * scale
                         : mo_decode4_unsigned(code, scale);
    }

    MO_DEVICE uint32_t code(const tables *t, int is_signed, float x, const mo_block_scale *scale)
    {
        float y = x * scale->prescale * scale->inverse;
        return is_signed ? mo_code4_signed_in(t->threshold, y) : mo_code4_unsigned(y);
    }
};

template <> struct mo_codec<MO_STATE_F8> {
    typedef uint32_t tables;

    MO_DEVICE void load(tables *t)
    {
        (void)t;
    }

    MO_DEVICE float value(const tables *t, int is_signed, uint32_t code, float scale)
    {
        (void)t;
        (void)is_signed;
        return mo_decode_as<MO_DTYPE_F8_E4M3>(code) * scale;
    }

    MO_DEVICE uint32_t code(const tables *t, int is_signed, float x, const mo_block_scale *scale)
    {
        (void)t;
        uint32_t code = mo_encode_as<MO_DTYPE_F8_E4M3>(x * scale->prescale * scale->inverse, 1);
        if (is_signed)
            return code;
        return x > 0.0f ? (code == 0 ? 1 : code) : 0;
    }
};

/* Reads codes of eight elements from `at` on, a multiple of eight, of which `rest` exist. */
template <uint32_t FORMAT>
MO_DEVICE void mo_read_codes(const void *data, uint64_t at, uint32_t rest, int aligned,
                             uint32_t codes[8])
{
    if (FORMAT != MO_STATE_4BIT) {
        mo_read_pack<8>(data, at, rest, 1, aligned, codes);
        return;
    }
    uint32_t pairs[4];
    mo_read_pack<4>(data, at / 2, (rest + 1) / 2, 1, aligned, pairs);
    MO_UNROLL
    for (int k = 0; k < 8; k++)
        codes[k] = pairs[k / 2] >> (k % 2 ? 0 : 4) & 15u;
}

template <uint32_t FORMAT>
MO_DEVICE void mo_write_codes(void *data, uint64_t at, uint32_t rest, int aligned, int is_signed,
                              const uint32_t codes[8])
{
    if (FORMAT != MO_STATE_4BIT) {
        mo_write_pack<8>(data, at, rest, 1, aligned, codes);
        return;
    }
    uint32_t pairs[4], zero = mo_format_zero_code(FORMAT, is_signed);
    MO_UNROLL
    for (uint32_t k = 0; k < 4; k++)
        pairs[k] = codes[2 * k] << 4 | (2 * k + 1 < rest ? codes[2 * k + 1] : zero);
    mo_write_pack<4>(data, at / 2, (rest + 1) / 2, 1, aligned, pairs);
}

/* Alignment at which the codes of eight elements travel at once. */
template <uint32_t FORMAT> MO_DEVICE int mo_codes_aligned(const void *data)
{
    return mo_aligned_to(data, FORMAT == MO_STATE_4BIT ? 4 : 8);
}

template <uint32_t FORMAT>
MO_DEVICE void mo_decode_block(const typename mo_codec<FORMAT>::tables *tables, int is_signed,
                               const void *data, const float *scales, uint64_t at, uint32_t rest,
                               int aligned, float values[8])
{
    uint32_t codes[8];
    mo_read_codes<FORMAT>(data, at, rest, aligned, codes);
    float scale = mo_load_as<float>(&scales[at / mo_format_block(FORMAT)]);
    MO_UNROLL
    for (int k = 0; k < 8; k++)
        values[k] = mo_codec<FORMAT>::value(tables, is_signed, codes[k], scale);
}

/* Every thread of a warp comes here, those past the end with nothing (rest 0). */
template <uint32_t FORMAT>
MO_DEVICE void mo_encode_block(const typename mo_codec<FORMAT>::tables *tables, int is_signed,
                               const float values[8], uint64_t at, uint32_t rest, int aligned,
                               void *data, float *scales)
{
    enum { LANES = FORMAT == MO_STATE_4BIT ? MO_BLOCK4_SIZE / 8 : MO_BLOCK_SIZE / 8 };
    mo_block_scale scale = mo_format_scale(FORMAT, mo_block_largest<LANES>(values, rest));
    if (rest == 0)
        return;
    uint32_t codes[8];
    if (mo_f32_is_nan(scale.inverse)) { /* poisoned; the same branch for the whole group */
        MO_UNROLL
        for (int k = 0; k < 8; k++)
            codes[k] = mo_format_zero_code(FORMAT, is_signed);
    } else {
        MO_UNROLL
        for (int k = 0; k < 8; k++)
            codes[k] = mo_codec<FORMAT>::code(tables, is_signed, values[k], &scale);
    }
    mo_write_codes<FORMAT>(data, at, rest, aligned, is_signed, codes);
    if (mo_thread() % LANES == 0)
        mo_store_as<float>(&scales[at / mo_format_block(FORMAT)], scale.absmax);
}

/* --- the step --------------------------------------------------------------------------------- */

/* Which of a span's tensors may travel as vectors. */
typedef struct mo_span_aligned {
    int parameter, copy, gradient, m, v;
} mo_span_aligned;

template <int N, uint32_t FORMAT>
MO_DEVICE mo_span_aligned mo_span_alignment(const mo_optim_span *s)
{
    mo_span_aligned a;
    a.parameter = mo_pack_aligned<N>(s->parameter, (uint32_t)s->parameter_dtype);
    a.copy = s->copy && mo_pack_aligned<N>(s->copy, (uint32_t)s->copy_dtype);
    a.gradient = mo_pack_aligned<N>(s->gradient, (uint32_t)s->gradient_dtype);
    a.m = FORMAT == MO_STATE_F32 ? mo_aligned_to(s->m, 16) : mo_codes_aligned<FORMAT>(s->m);
    a.v = FORMAT == MO_STATE_F32 ? mo_aligned_to(s->v, 16) : mo_codes_aligned<FORMAT>(s->v);
    return a;
}

/* mo_optim_store for a pack. */
template <int N>
MO_DEVICE void mo_store_parameters(const mo_optim_span *s, uint64_t at, uint32_t rest,
                                   const mo_span_aligned *aligned, const float values[N])
{
    uint32_t dtype = (uint32_t)s->parameter_dtype, codes[N];
    if (s->stochastic && dtype != MO_DTYPE_F32) {
        uint32_t random[4];
        mo_random_block(&s->random, (s->start + at) / 8, random);
        MO_BY_FLOAT(dtype, mo_dither_values, values, 0, random, (uint32_t)(at % 8), codes);
    } else {
        MO_BY_FLOAT(dtype, mo_encode_values, values, 0, codes);
    }
    mo_write_pack<N>(s->parameter, at, rest, mo_element_size(dtype), aligned->parameter, codes);
    if (s->copy)
        mo_store_pack<N>(s->copy, at, rest, (uint32_t)s->copy_dtype, aligned->copy, values);
}

/* Updates the pack at `at` of m and v in registers and of the parameters in memory. */
template <uint32_t RULE, int N>
MO_DEVICE void mo_update_pack(const mo_optim_span *s, const mo_rule_coef *coef, uint64_t at,
                              uint32_t rest, const mo_span_aligned *aligned, float m[N], float v[N])
{
    float g[N], p[N];
    mo_load_pack<N>(s->gradient, at, rest, (uint32_t)s->gradient_dtype, aligned->gradient, g);
    mo_load_pack<N>(s->parameter, at, rest, (uint32_t)s->parameter_dtype, aligned->parameter, p);
    MO_UNROLL
    for (int k = 0; k < N; k++)
        p[k] = mo_rule_update(RULE, coef, g[k], p[k], &m[k], &v[k]);
    mo_store_parameters<N>(s, at, rest, aligned, p);
}

template <uint32_t RULE>
MO_DEVICE void mo_step32_pack(const mo_optim_span *s, const mo_rule_coef *coef, uint64_t at,
                              uint32_t rest, const mo_span_aligned *aligned)
{
    enum { N = 4 };
    float m[N] = {0}, v[N] = {0};
    if (s->m)
        mo_load_pack<N>(s->m, at, rest, MO_DTYPE_F32, aligned->m, m);
    if (mo_rule_has_second(RULE))
        mo_load_pack<N>(s->v, at, rest, MO_DTYPE_F32, aligned->v, v);
    mo_update_pack<RULE, N>(s, coef, at, rest, aligned, m, v);
    MO_UNROLL
    for (int k = 0; k < N; k++) {
        m[k] = mo_f32_one_nan(m[k]);
        v[k] = mo_rule_has_second(RULE) ? mo_f32_one_nan(v[k]) : 0.0f;
    }
    if (s->m)
        mo_store_pack<N>(s->m, at, rest, MO_DTYPE_F32, aligned->m, m);
    if (mo_rule_has_second(RULE))
        mo_store_pack<N>(s->v, at, rest, MO_DTYPE_F32, aligned->v, v);
}

template <uint32_t RULE> MO_DEVICE void mo_step32(const mo_optim_span *s, const mo_rule_coef *coef)
{
    enum { N = 4 };
    mo_span_aligned aligned = mo_span_alignment<N, MO_STATE_F32>(s);
    for (uint64_t at = (uint64_t)mo_thread() * N; at < s->count; at += MO_OPTIM_THREADS * N)
        mo_step32_pack<RULE>(s, coef, at, mo_pack_rest<N>(s->count, at), &aligned);
}

/* 256 elements for each group. Groups past the end come along with nothing (rest 0): every thread
 * of a warp reaches the reductions. */
template <uint32_t RULE, uint32_t FORMAT>
MO_DEVICE void mo_step_block(const mo_optim_span *s, const mo_rule_coef *coef,
                             const typename mo_codec<FORMAT>::tables *tables,
                             const mo_span_aligned *aligned, uint32_t block)
{
    enum { N = 8 };
    uint64_t at = (uint64_t)block * MO_BLOCK_SIZE + mo_thread() % MO_LANES * N;
    uint32_t rest = mo_pack_rest<N>(s->count, at);
    float m[N] = {0}, v[N] = {0};
    if (rest > 0) {
        mo_decode_block<FORMAT>(tables, 1, s->m, s->absmax1, at, rest, aligned->m, m);
        if (mo_rule_has_second(RULE))
            mo_decode_block<FORMAT>(tables, 0, s->v, s->absmax2, at, rest, aligned->v, v);
        mo_update_pack<RULE, N>(s, coef, at, rest, aligned, m, v);
    }
    mo_encode_block<FORMAT>(tables, 1, m, at, rest, aligned->m, s->m, s->absmax1);
    if (mo_rule_has_second(RULE))
        mo_encode_block<FORMAT>(tables, 0, v, at, rest, aligned->v, s->v, s->absmax2);
}

template <uint32_t RULE, uint32_t FORMAT>
MO_DEVICE void mo_step_chunk(const mo_optim_step_args &args, uint64_t chunk, mo_optim_span *span,
                             typename mo_codec<FORMAT>::tables *tables)
{
    if (args.control->skip)
        return;
    if (mo_thread() == 0)
        mo_optim_span_of(&args, chunk, span);
    mo_barrier();
    mo_rule_coef coef = span->coef;
    if (!span->absmax1) {
        mo_step32<RULE>(span, &coef);
        return;
    }
    mo_codec<FORMAT>::load(tables);
    mo_barrier();
    mo_span_aligned aligned = mo_span_alignment<8, FORMAT>(span);
    uint32_t blocks = (uint32_t)((span->count + MO_BLOCK_SIZE - 1) / MO_BLOCK_SIZE);
    for (uint32_t block = 0; block < blocks; block += MO_OPTIM_GROUPS)
        mo_step_block<RULE, FORMAT>(span, &coef, tables, &aligned, block + mo_thread() / MO_LANES);
}

#define MO_STEP_KERNEL(name, rule, format)                                                         \
    MO_GLOBAL_ROOM(name, mo_optim_step_args, MO_OPTIM_THREADS, 3)                                  \
    {                                                                                              \
        MO_SHARED(mo_optim_span, span);                                                            \
        MO_SHARED(mo_codec<format>::tables, tables);                                               \
        mo_step_chunk<rule, format>(args, first_item + mo_block(), &span, &tables);                \
    }

MO_STEP_KERNEL(mo_optim_step, MO_RULE_ADAMW, MO_STATE_8BIT)
MO_STEP_KERNEL(mo_step_adamw4, MO_RULE_ADAMW, MO_STATE_4BIT)
MO_STEP_KERNEL(mo_step_adamwf8, MO_RULE_ADAMW, MO_STATE_F8)
MO_STEP_KERNEL(mo_step_lion8, MO_RULE_LION, MO_STATE_8BIT)
MO_STEP_KERNEL(mo_step_sgd8, MO_RULE_SGD, MO_STATE_8BIT)

/* --- before the step -------------------------------------------------------------------------- */

MO_GLOBAL(mo_optim_upload, mo_optim_upload_args, MO_OPTIM_THREADS)
{
    unsigned char *destination = (unsigned char *)args.destination;
    uint32_t bytes = (uint32_t)args.bytes, words = 0;
    (void)first_item;
    if (mo_aligned_to(destination, 4)) {
        words = bytes / 4;
        const uint32_t *payload = (const uint32_t *)(const void *)args.payload;
        for (uint32_t w = mo_thread(); w < words; w += MO_OPTIM_THREADS)
            ((uint32_t *)(void *)destination)[w] = payload[w];
    }
    for (uint32_t i = words * 4 + mo_thread(); i < bytes; i += MO_OPTIM_THREADS)
        destination[i] = args.payload[i];
}

MO_GLOBAL(mo_optim_prologue, mo_optim_prologue_args, MO_OPTIM_THREADS)
{
    MO_SHARED(double, factor);
    (void)first_item;
    if (mo_thread() == 0)
        factor = mo_optim_verdict(&args);
    mo_barrier();
    for (uint32_t i = mo_thread(); i < args.count; i += MO_OPTIM_THREADS)
        mo_optim_prepare(&args, i, factor);
}

/* --- block-wise codes on their own ------------------------------------------------------------ */

/* 256 elements for each group. Every thread of a warp reaches the reduction; those past the end
 * have nothing. */
template <uint32_t FORMAT>
MO_DEVICE void mo_quantize_group(const mo_blockcode_args &args,
                                 const typename mo_codec<FORMAT>::tables *tables, uint64_t group,
                                 int values_aligned, int codes_aligned)
{
    enum { N = 8 };
    uint64_t at = group * MO_BLOCK_SIZE + mo_thread() % MO_LANES * N;
    uint32_t rest = mo_pack_rest<N>(args.count, at);
    float values[N] = {0};
    if (rest > 0)
        mo_load_pack<N>(args.values, at, rest, (uint32_t)args.dtype, values_aligned, values);
    mo_encode_block<FORMAT>(tables, args.is_signed != 0, values, at, rest, codes_aligned,
                            args.codes, args.absmax);
}

template <uint32_t FORMAT>
MO_DEVICE void mo_quantize_chunk(const mo_blockcode_args &args, uint64_t chunk,
                                 typename mo_codec<FORMAT>::tables *tables)
{
    mo_codec<FORMAT>::load(tables);
    mo_barrier();
    int values_aligned = mo_pack_aligned<8>(args.values, (uint32_t)args.dtype);
    int codes_aligned = mo_codes_aligned<FORMAT>(args.codes);
    uint64_t first = chunk * MO_CHUNK_BLOCKS + mo_thread() / MO_LANES;
    for (uint32_t b = 0; b < MO_CHUNK_BLOCKS; b += MO_OPTIM_GROUPS)
        mo_quantize_group<FORMAT>(args, tables, first + b, values_aligned, codes_aligned);
}

template <uint32_t FORMAT>
MO_DEVICE void mo_dequantize_pack(const mo_blockcode_args &args,
                                  const typename mo_codec<FORMAT>::tables *tables, uint64_t at,
                                  uint32_t rest, int values_aligned, int codes_aligned)
{
    enum { N = 8 };
    float values[N];
    mo_decode_block<FORMAT>(tables, args.is_signed != 0, args.codes, args.absmax, at, rest,
                            codes_aligned, values);
    MO_UNROLL
    for (int k = 0; k < N; k++)
        values[k] = mo_f32_one_nan(values[k]);
    mo_store_pack<N>(args.values, at, rest, (uint32_t)args.dtype, values_aligned, values);
}

template <uint32_t FORMAT>
MO_DEVICE void mo_dequantize_chunk(const mo_blockcode_args &args, uint64_t chunk,
                                   typename mo_codec<FORMAT>::tables *tables)
{
    enum { N = 8 };
    mo_codec<FORMAT>::load(tables);
    mo_barrier();
    int values_aligned = mo_pack_aligned<N>(args.values, (uint32_t)args.dtype);
    int codes_aligned = mo_codes_aligned<FORMAT>(args.codes);
    uint64_t start = chunk * MO_CHUNK_ELEMENTS;
    uint64_t end = args.count - start < MO_CHUNK_ELEMENTS ? args.count : start + MO_CHUNK_ELEMENTS;
    for (uint64_t at = start + mo_thread() * N; at < end; at += MO_OPTIM_THREADS * N)
        mo_dequantize_pack<FORMAT>(args, tables, at, mo_pack_rest<N>(end, at), values_aligned,
                                   codes_aligned);
}

#define MO_CODE_KERNEL(name, function, format)                                                     \
    MO_GLOBAL(name, mo_blockcode_args, MO_OPTIM_THREADS)                                           \
    {                                                                                              \
        MO_SHARED(mo_codec<format>::tables, tables);                                               \
        function<format>(args, first_item + mo_block(), &tables);                                  \
    }

MO_CODE_KERNEL(mo_quantize, mo_quantize_chunk, MO_STATE_8BIT)
MO_CODE_KERNEL(mo_dequantize, mo_dequantize_chunk, MO_STATE_8BIT)
MO_CODE_KERNEL(mo_quantize4, mo_quantize_chunk, MO_STATE_4BIT)
MO_CODE_KERNEL(mo_dequantize4, mo_dequantize_chunk, MO_STATE_4BIT)
MO_CODE_KERNEL(mo_quantizef8, mo_quantize_chunk, MO_STATE_F8)
MO_CODE_KERNEL(mo_dequantizef8, mo_dequantize_chunk, MO_STATE_F8)
