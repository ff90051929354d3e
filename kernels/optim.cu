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
    /* Less by 1 where bits < threshold: both are below 2^31. */
    return code - ((bits - threshold[code]) >> 31);
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
    code = code < 1 ? 1 : code;
    return x > 0.0f ? code : 0;
}

MO_DEVICE uint32_t mo_group_largest(uint32_t value)
{
    MO_UNROLL
    for (uint32_t mask = MO_LANES / 2; mask > 0; mask /= 2) {
        uint32_t other = mo_shuffle_xor_u32(value, mask);
        value = other > value ? other : value;
    }
    return value;
}

/* Of the first `rest` values of each thread, over the group; the others become 0. */
MO_DEVICE uint32_t mo_block_largest(float values[8], uint32_t rest)
{
    uint32_t largest = 0;
    if (MO_RARE(rest < 8)) {
        MO_UNROLL
        for (uint32_t k = 0; k < 8; k++)
            values[k] = k < rest ? values[k] : 0.0f;
    }
    MO_UNROLL
    for (uint32_t k = 0; k < 8; k++) {
        uint32_t bits = mo_f32_bits(values[k]) & 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    return mo_group_largest(largest);
}

/* x * prescale * inverse; the first factor is nearly always 1, for all of a group. */
MO_DEVICE void mo_normalise(const float values[8], const mo_block_scale *scale, float y[8])
{
    MO_UNROLL
    for (int k = 0; k < 8; k++)
        y[k] = values[k];
    if (MO_RARE(scale->prescale != 1.0f)) {
        MO_UNROLL
        for (int k = 0; k < 8; k++)
            y[k] *= scale->prescale;
    }
    MO_UNROLL
    for (int k = 0; k < 8; k++)
        y[k] *= scale->inverse;
}

/* mo_encode_* take values whose block has this scale; the same branch for the whole group. A block
 * that is not poisoned holds finite values only, and they come out at most 1. */
MO_DEVICE void mo_encode_signed(const mo_code_tables *t, const float values[8],
                                const mo_block_scale *scale, uint32_t codes[8])
{
    if (MO_RARE(mo_f32_is_nan(scale->inverse))) {
        MO_UNROLL
        for (int k = 0; k < 8; k++)
            codes[k] = MO_SIGNED_ZERO;
        return;
    }
    float y[8];
    mo_normalise(values, scale, y);
    MO_UNROLL
    for (int k = 0; k < 8; k++)
        codes[k] = mo_cell_code_signed(t, y[k]);
}

MO_DEVICE void mo_encode_unsigned(const mo_code_tables *t, const float values[8],
                                  const mo_block_scale *scale, uint32_t codes[8])
{
    if (MO_RARE(mo_f32_is_nan(scale->inverse))) {
        MO_UNROLL
        for (int k = 0; k < 8; k++)
            codes[k] = 0;
        return;
    }
    float y[8];
    mo_normalise(values, scale, y);
    MO_UNROLL
    for (int k = 0; k < 8; k++)
        codes[k] = mo_cell_code_unsigned(t, values[k], y[k]);
}

MO_DEVICE void mo_decode_map(const uint32_t *map, const uint32_t codes[8], float absmax,
                             float values[8])
{
    MO_UNROLL
    for (int k = 0; k < 8; k++)
        values[k] = mo_f32_from_bits(map[codes[k]]) * absmax;
}

/* --- the step --------------------------------------------------------------------------------- */

/* Which of a span's tensors may travel as vectors. */
typedef struct mo_span_aligned {
    int parameter, copy, gradient, m, v;
} mo_span_aligned;

template <int N> MO_DEVICE mo_span_aligned mo_span_alignment(const mo_optim_span *s)
{
    uint32_t state = (s->absmax1 ? 1 : 4) * N;
    mo_span_aligned a;
    a.parameter = mo_pack_aligned<N>(s->parameter, (uint32_t)s->parameter_dtype);
    a.copy = s->copy && mo_pack_aligned<N>(s->copy, (uint32_t)s->copy_dtype);
    a.gradient = mo_pack_aligned<N>(s->gradient, (uint32_t)s->gradient_dtype);
    a.m = mo_aligned_to(s->m, state < 16 ? state : 16);
    a.v = mo_aligned_to(s->v, state < 16 ? state : 16);
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
template <int N>
MO_DEVICE void mo_update_pack(const mo_optim_span *s, const mo_adamw_coef *coef, uint64_t at,
                              uint32_t rest, const mo_span_aligned *aligned, float m[N], float v[N])
{
    float g[N], p[N];
    mo_load_pack<N>(s->gradient, at, rest, (uint32_t)s->gradient_dtype, aligned->gradient, g);
    mo_load_pack<N>(s->parameter, at, rest, (uint32_t)s->parameter_dtype, aligned->parameter, p);
    MO_UNROLL
    for (int k = 0; k < N; k++)
        p[k] = mo_adamw_update(coef, g[k], p[k], &m[k], &v[k]);
    mo_store_parameters<N>(s, at, rest, aligned, p);
}

MO_DEVICE void mo_step32_pack(const mo_optim_span *s, const mo_adamw_coef *coef, uint64_t at,
                              uint32_t rest, const mo_span_aligned *aligned)
{
    enum { N = 4 };
    float m[N], v[N];
    mo_load_pack<N>(s->m, at, rest, MO_DTYPE_F32, aligned->m, m);
    mo_load_pack<N>(s->v, at, rest, MO_DTYPE_F32, aligned->v, v);
    mo_update_pack<N>(s, coef, at, rest, aligned, m, v);
    mo_store_pack<N>(s->m, at, rest, MO_DTYPE_F32, aligned->m, m);
    mo_store_pack<N>(s->v, at, rest, MO_DTYPE_F32, aligned->v, v);
}

MO_DEVICE void mo_step32(const mo_optim_span *s, const mo_adamw_coef *coef)
{
    enum { N = 4 };
    mo_span_aligned aligned = mo_span_alignment<N>(s);
    for (uint64_t at = (uint64_t)mo_thread() * N; at < s->count; at += MO_OPTIM_THREADS * N)
        mo_step32_pack(s, coef, at, mo_pack_rest<N>(s->count, at), &aligned);
}

/* One block of 256 for each group. Groups past the end come along with nothing (rest 0): every
 * thread of a warp reaches the reductions. */
MO_DEVICE void mo_step8_block(const mo_optim_span *s, const mo_adamw_coef *coef,
                              const mo_code_tables *tables, const mo_span_aligned *aligned,
                              uint32_t block)
{
    enum { N = 8 };
    uint32_t lane = mo_thread() % MO_LANES;
    uint64_t at = (uint64_t)block * MO_BLOCK_SIZE + lane * N;
    uint32_t rest = mo_pack_rest<N>(s->count, at), codes[N];
    float m[N] = {0}, v[N] = {0};
    if (rest > 0) {
        mo_read_pack<N>(s->m, at, rest, 1, aligned->m, codes);
        mo_decode_map(tables->map_signed, codes, mo_load_as<float>(&s->absmax1[block]), m);
        mo_read_pack<N>(s->v, at, rest, 1, aligned->v, codes);
        mo_decode_map(tables->map_unsigned, codes, mo_load_as<float>(&s->absmax2[block]), v);
        mo_update_pack<N>(s, coef, at, rest, aligned, m, v);
    }
    mo_block_scale scale1 = mo_block_scale_of(mo_block_largest(m, rest));
    mo_block_scale scale2 = mo_block_scale_of(mo_block_largest(v, rest));
    if (rest == 0)
        return;
    mo_encode_signed(tables, m, &scale1, codes);
    mo_write_pack<N>(s->m, at, rest, 1, aligned->m, codes);
    mo_encode_unsigned(tables, v, &scale2, codes);
    mo_write_pack<N>(s->v, at, rest, 1, aligned->v, codes);
    if (lane == 0) {
        mo_store_as<float>(&s->absmax1[block], scale1.absmax);
        mo_store_as<float>(&s->absmax2[block], scale2.absmax);
    }
}

MO_GLOBAL_ROOM(mo_optim_step, mo_optim_step_args, MO_OPTIM_THREADS, 3)
{
    MO_SHARED(mo_optim_span, span);
    MO_SHARED(mo_code_tables, tables);
    if (args.control->skip)
        return;
    if (mo_thread() == 0)
        mo_optim_span_of(&args, first_item + mo_block(), &span);
    mo_barrier();
    mo_adamw_coef coef = span.coef;
    if (!span.absmax1) {
        mo_step32(&span, &coef);
        return;
    }
    mo_maps_load(&tables);
    mo_cells_load(&tables);
    mo_barrier();
    mo_span_aligned aligned = mo_span_alignment<8>(&span);
    uint32_t blocks = (uint32_t)((span.count + MO_BLOCK_SIZE - 1) / MO_BLOCK_SIZE);
    for (uint32_t block = 0; block < blocks; block += MO_OPTIM_GROUPS)
        mo_step8_block(&span, &coef, &tables, &aligned, block + mo_thread() / MO_LANES);
}

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

/* One block of 256 for each group. Every thread of a warp reaches the reduction; those past the end
 * have nothing. */
MO_DEVICE void mo_quantize_block(const mo_blockcode_args &args, const mo_code_tables *tables,
                                 uint64_t block, int values_aligned, int codes_aligned)
{
    enum { N = 8 };
    uint32_t lane = mo_thread() % MO_LANES;
    uint64_t at = block * MO_BLOCK_SIZE + lane * N;
    uint32_t rest = mo_pack_rest<N>(args.count, at), codes[N];
    float values[N] = {0};
    if (rest > 0)
        mo_load_pack<N>(args.values, at, rest, (uint32_t)args.dtype, values_aligned, values);
    mo_block_scale scale = mo_block_scale_of(mo_block_largest(values, rest));
    if (rest == 0)
        return;
    if (args.is_signed)
        mo_encode_signed(tables, values, &scale, codes);
    else
        mo_encode_unsigned(tables, values, &scale, codes);
    mo_write_pack<N>(args.codes, at, rest, 1, codes_aligned, codes);
    if (lane == 0)
        args.absmax[block] = scale.absmax;
}

MO_GLOBAL(mo_quantize, mo_blockcode_args, MO_OPTIM_THREADS)
{
    MO_SHARED(mo_code_tables, tables);
    mo_cells_load(&tables);
    mo_barrier();
    int values_aligned = mo_pack_aligned<8>(args.values, (uint32_t)args.dtype);
    int codes_aligned = mo_aligned_to(args.codes, 8);
    uint64_t first = (first_item + mo_block()) * MO_CHUNK_BLOCKS + mo_thread() / MO_LANES;
    for (uint32_t b = 0; b < MO_CHUNK_BLOCKS; b += MO_OPTIM_GROUPS)
        mo_quantize_block(args, &tables, first + b, values_aligned, codes_aligned);
}

MO_DEVICE void mo_dequantize_pack(const mo_blockcode_args &args, const uint32_t *map, uint64_t at,
                                  uint32_t rest, int values_aligned, int codes_aligned)
{
    enum { N = 8 };
    uint32_t codes[N];
    float values[N];
    mo_read_pack<N>(args.codes, at, rest, 1, codes_aligned, codes);
    mo_decode_map(map, codes, args.absmax[at / MO_BLOCK_SIZE], values);
    mo_store_pack<N>(args.values, at, rest, (uint32_t)args.dtype, values_aligned, values);
}

MO_GLOBAL(mo_dequantize, mo_blockcode_args, MO_OPTIM_THREADS)
{
    enum { N = 8 };
    MO_SHARED(mo_code_tables, tables);
    mo_maps_load(&tables);
    mo_barrier();
    int values_aligned = mo_pack_aligned<N>(args.values, (uint32_t)args.dtype);
    int codes_aligned = mo_aligned_to(args.codes, 8);
    uint64_t start = (first_item + mo_block()) * MO_CHUNK_ELEMENTS;
    uint64_t end = args.count - start < MO_CHUNK_ELEMENTS ? args.count : start + MO_CHUNK_ELEMENTS;
    const uint32_t *map = args.is_signed ? tables.map_signed : tables.map_unsigned;
    for (uint64_t at = start + mo_thread() * N; at < end; at += MO_OPTIM_THREADS * N)
        mo_dequantize_pack(args, map, at, mo_pack_rest<N>(end, at), values_aligned, codes_aligned);
}
