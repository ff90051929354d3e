/*
 * Steps and codes in blocks of any size that is possible, on a GPU; optim.cu comes before it in the
 * unit.
 *
 * A thread block works on the 4096 elements of a tile, two rows of eight elements a thread. So a
 * tile has whole blocks, whatever their size. A block's absmax is a reduction over some of the
 * groups of 32 threads, through shared memory, or over some threads of one group.
 */

enum {
    MO_SIZED_ROWS = 2,
    MO_SIZED_ROW = MO_OPTIM_THREADS * 8,
    MO_SIZED_TILE = MO_SIZED_ROWS * MO_SIZED_ROW
};
static_assert((int)MO_SIZED_TILE == (int)MO_BLOCK_MOST, "a tile has whole blocks");

/* By group of threads, of both rows: the largest magnitudes. */
typedef struct mo_sized_room {
    uint32_t largest[MO_SIZED_ROWS * MO_OPTIM_GROUPS];
} mo_sized_room;

/* Of the largest magnitudes of a thread's rows, those of their blocks. All threads must call it; a
 * barrier is due before the next call. */
MO_DEVICE void mo_sized_largest(mo_sized_room *room, uint32_t shift,
                                uint32_t largest[MO_SIZED_ROWS])
{
    uint32_t group = mo_thread_index() / MO_LANES, groups = (1u << shift) / (8 * MO_LANES);
    MO_UNROLL
    for (uint32_t r = 0; r < MO_SIZED_ROWS; r++) {
        for (uint32_t mask = 1; mask < MO_LANES && mask < (1u << shift) / 8; mask *= 2) {
            uint32_t other = mo_shuffle_xor_u32(largest[r], mask);
            largest[r] = other > largest[r] ? other : largest[r];
        }
        if (mo_thread_index() % MO_LANES == 0)
            room->largest[r * MO_OPTIM_GROUPS + group] = largest[r];
    }
    mo_barrier();
    MO_UNROLL
    for (uint32_t r = 0; r < MO_SIZED_ROWS && groups > 1; r++) {
        uint32_t first = (r * MO_OPTIM_GROUPS + group) & ~(groups - 1);
        for (uint32_t k = 0; k < groups; k++) {
            uint32_t other = room->largest[first + k];
            largest[r] = other > largest[r] ? other : largest[r];
        }
    }
}

/* A row's moment. */
template <uint32_t FORMAT>
MO_DEVICE void mo_sized_decode(const typename mo_codec<FORMAT>::tables *tables, int is_signed,
                               const void *data, const float *scales, uint32_t shift, uint32_t at,
                               uint32_t rest, int aligned, float values[8])
{
    mo_decode_codes<FORMAT>(tables, is_signed, data, &scales[at >> shift], at, rest, aligned,
                            values);
}

/* Of rows with elements; `largest` is the block's. */
template <uint32_t FORMAT>
MO_DEVICE void mo_sized_encode(const typename mo_codec<FORMAT>::tables *tables, int is_signed,
                               const float values[8], uint32_t largest, uint32_t shift, uint32_t at,
                               uint32_t rest, int aligned, void *data, float *scales)
{
    float stored = mo_encode_codes<FORMAT>(tables, is_signed, values, largest, mo_least<8>(values),
                                           at, rest, aligned, data);
    if ((at & ((1u << shift) - 1)) == 0)
        mo_store_as<float>(&scales[at >> shift], stored);
}

/* mo_rule_update_raw of a pack; the rule is the same for all threads. */
template <uint32_t RULE, int N>
MO_DEVICE void mo_update_each(const mo_rule_coef *c, const float g[N], float p[N], float m[N],
                              float v[N], float slow[N])
{
    MO_UNROLL
    for (int k = 0; k < N; k++)
        p[k] = mo_rule_update_raw(RULE, c, g[k], p[k], &m[k], &v[k], &slow[k]);
}

template <int N>
MO_DEVICE void mo_update_by(uint32_t rule, const mo_rule_coef *c, const float g[N], float p[N],
                            float m[N], float v[N], float slow[N])
{
    if (rule == MO_RULE_ADAMW)
        mo_update_each<MO_RULE_ADAMW, N>(c, g, p, m, v, slow);
    else if (rule == MO_RULE_LION)
        mo_update_each<MO_RULE_LION, N>(c, g, p, m, v, slow);
    else if (rule == MO_RULE_SGD)
        mo_update_each<MO_RULE_SGD, N>(c, g, p, m, v, slow);
    else if (rule == MO_RULE_ADAM)
        mo_update_each<MO_RULE_ADAM, N>(c, g, p, m, v, slow);
    else if (rule == MO_RULE_RMSPROP_MOMENTUM)
        mo_update_each<MO_RULE_RMSPROP_MOMENTUM, N>(c, g, p, m, v, slow);
    else if (rule == MO_RULE_ADEMAMIX)
        mo_update_each<MO_RULE_ADEMAMIX, N>(c, g, p, m, v, slow);
    else
        mo_update_each<MO_RULE_RMSPROP, N>(c, g, p, m, v, slow); /* and Adagrad */
}

/* Updates a pack's moments in registers and its parameters in memory. */
template <int N, class INDEX>
MO_DEVICE void mo_sized_update(uint32_t rule, const mo_optim_span *s, const mo_rule_coef *coef,
                               INDEX at, uint32_t rest, const mo_span_aligned *aligned, float m[N],
                               float v[N], float slow[N])
{
    float g[N], p[N];
    mo_load_pack<N>(s->gradient, at, rest, (uint32_t)s->gradient_dtype, aligned->gradient, g);
    mo_load_pack<N>(s->parameter, at, rest, (uint32_t)s->parameter_dtype, aligned->parameter, p);
    if (MO_RARE(s->residual != 0))
        mo_join_weights<N>(s, at, rest, aligned->residual, p);
    mo_update_by<N>(rule, coef, g, p, m, v, slow);
    int any_nan = mo_any_nan<N>(p);
    if (MO_RARE(any_nan))
        mo_one_nan<N>(p);
    mo_store_parameters<N>(s, at, rest, aligned, p, any_nan);
}

/* What a thread keeps of a tile between the update and the coding. */
typedef struct mo_sized_moments {
    float m[MO_SIZED_ROWS][8], v[MO_SIZED_ROWS][8], slow[MO_SIZED_ROWS][8];
} mo_sized_moments;

/* Decodes and updates a row; rows past the end have no elements, and magnitudes of 0. */
template <uint32_t FORMAT>
MO_DEVICE void mo_sized_row(uint32_t rule, const mo_optim_span *s, const mo_rule_coef *coef,
                            const typename mo_codec<FORMAT>::tables *tables,
                            const mo_span_aligned *aligned, uint32_t at, uint32_t rest, float m[8],
                            float v[8], float slow[8], uint32_t largest[3])
{
    MO_UNROLL
    for (int k = 0; k < 8; k++)
        m[k] = v[k] = slow[k] = 0.0f;
    largest[0] = largest[1] = largest[2] = 0;
    if (rest == 0)
        return;
    mo_sized_decode<FORMAT>(tables, mo_rule_first_signed(rule), s->m, s->absmax1, s->shift, at,
                            rest, aligned->m, m);
    if (mo_rule_has_second(rule))
        mo_sized_decode<FORMAT>(tables, 0, s->v, s->absmax2, s->shift, at, rest, aligned->v, v);
    if (mo_rule_has_slow(rule))
        mo_sized_decode<FORMAT>(tables, 1, s->slow, s->slow_absmax, s->shift, at, rest,
                                aligned->slow, slow);
    mo_sized_update<8>(rule, s, coef, at, rest, aligned, m, v, slow);
    largest[0] = mo_largest<8>(m);
    largest[1] = mo_largest<8>(v);
    largest[2] = mo_largest<8>(slow);
}

/* One moment of a tile: its scales and codes. */
template <uint32_t FORMAT>
MO_DEVICE void mo_sized_code(const typename mo_codec<FORMAT>::tables *tables, int is_signed,
                             const float values[MO_SIZED_ROWS][8], uint32_t largest[MO_SIZED_ROWS],
                             mo_sized_room *room, uint32_t shift, uint64_t count, uint32_t tile,
                             int aligned, void *data, float *scales)
{
    mo_sized_largest(room, shift, largest);
    MO_UNROLL
    for (uint32_t r = 0; r < MO_SIZED_ROWS; r++) {
        uint32_t at = tile + r * MO_SIZED_ROW + mo_thread_index() * 8;
        uint32_t rest = mo_pack_rest<8>(count, at);
        if (rest > 0)
            mo_sized_encode<FORMAT>(tables, is_signed, values[r], largest[r], shift, at, rest,
                                    aligned, data, scales);
    }
    mo_barrier();
}

template <uint32_t FORMAT>
MO_DEVICE void mo_sized_tile(uint32_t rule, const mo_optim_span *s, const mo_rule_coef *coef,
                             const typename mo_codec<FORMAT>::tables *tables,
                             const mo_span_aligned *aligned, mo_sized_room *room, uint32_t tile)
{
    mo_sized_moments t;
    uint32_t largest[MO_SIZED_ROWS][3], one[MO_SIZED_ROWS];
    MO_UNROLL
    for (uint32_t r = 0; r < MO_SIZED_ROWS; r++) {
        uint32_t at = tile + r * MO_SIZED_ROW + mo_thread_index() * 8;
        mo_sized_row<FORMAT>(rule, s, coef, tables, aligned, at, mo_pack_rest<8>(s->count, at),
                             t.m[r], t.v[r], t.slow[r], largest[r]);
    }
    one[0] = largest[0][0];
    one[1] = largest[1][0];
    mo_sized_code<FORMAT>(tables, mo_rule_first_signed(rule), t.m, one, room, s->shift, s->count,
                          tile, aligned->m, s->m, s->absmax1);
    one[0] = largest[0][1];
    one[1] = largest[1][1];
    if (mo_rule_has_second(rule))
        mo_sized_code<FORMAT>(tables, 0, t.v, one, room, s->shift, s->count, tile, aligned->v, s->v,
                              s->absmax2);
    one[0] = largest[0][2];
    one[1] = largest[1][2];
    if (mo_rule_has_slow(rule))
        mo_sized_code<FORMAT>(tables, 1, t.slow, one, room, s->shift, s->count, tile, aligned->slow,
                              s->slow, s->slow_absmax);
}

/* 32-bit states, of tensors that stay so. */
MO_DEVICE void mo_sized_step32(uint32_t rule, const mo_optim_span *s, const mo_rule_coef *coef)
{
    enum { N = 4 };
    mo_span_aligned aligned = mo_span_alignment<N, MO_STATE_F32>(s);
    for (uint64_t at = (uint64_t)mo_thread_index() * N; at < s->count; at += MO_OPTIM_THREADS * N) {
        uint32_t rest = mo_pack_rest<N>(s->count, at);
        float m[N] = {0}, v[N] = {0}, slow[N] = {0};
        if (s->m)
            mo_load_pack<N>(s->m, at, rest, MO_DTYPE_F32, aligned.m, m);
        if (mo_rule_has_second(rule))
            mo_load_pack<N>(s->v, at, rest, MO_DTYPE_F32, aligned.v, v);
        if (mo_rule_has_slow(rule))
            mo_load_pack<N>(s->slow, at, rest, MO_DTYPE_F32, aligned.slow, slow);
        mo_sized_update<N>(rule, s, coef, at, rest, &aligned, m, v, slow);
        mo_one_nan<N>(m);
        mo_one_nan<N>(v);
        mo_one_nan<N>(slow);
        if (s->m)
            mo_store_pack<N>(s->m, at, rest, MO_DTYPE_F32, aligned.m, m);
        if (mo_rule_has_second(rule))
            mo_store_pack<N>(s->v, at, rest, MO_DTYPE_F32, aligned.v, v);
        if (mo_rule_has_slow(rule))
            mo_store_pack<N>(s->slow, at, rest, MO_DTYPE_F32, aligned.slow, slow);
    }
}

/* Formats that only AdamW has let the compiler know that. */
template <uint32_t FORMAT>
MO_DEVICE void mo_sized_chunk(const mo_sized_step_args &args, uint64_t chunk, mo_optim_span *span,
                              typename mo_codec<FORMAT>::tables *tables, mo_sized_room *room)
{
    const uint32_t rule = FORMAT == MO_STATE_8BIT ? args.rule : (uint32_t)MO_RULE_ADAMW;
    if (args.step.control->skip)
        return;
    if (mo_thread_index() == 0)
        mo_optim_sized_span(&args.step, args.shift, chunk, span);
    mo_barrier();
    mo_rule_coef coef = span->coef;
    if (!span->absmax1) {
        mo_sized_step32(rule, span, &coef);
        return;
    }
    mo_codec<FORMAT>::load(tables);
    mo_barrier();
    mo_span_aligned aligned = mo_span_alignment<8, FORMAT>(span);
    for (uint32_t tile = 0; tile < span->count; tile += MO_SIZED_TILE)
        mo_sized_tile<FORMAT>(rule, span, &coef, tables, &aligned, room, tile);
}

#define MO_SIZED_STEP_KERNEL(name, format, blocks)                                                 \
    MO_GLOBAL_ROOM(name, mo_sized_step_args, MO_OPTIM_THREADS, blocks)                             \
    {                                                                                              \
        MO_SHARED(mo_optim_span, span);                                                            \
        MO_SHARED(mo_codec<format>::tables, tables);                                               \
        MO_SHARED(mo_sized_room, room);                                                            \
        mo_sized_chunk<format>(args, first_item + mo_block_index(), &span, &tables, &room);        \
    }

/* Three moments of two rows need more registers than two blocks leave. */
MO_SIZED_STEP_KERNEL(mo_sized_step8, MO_STATE_8BIT, 1)
MO_SIZED_STEP_KERNEL(mo_sized_step4, MO_STATE_4BIT, 2)
MO_SIZED_STEP_KERNEL(mo_sized_stepf8, MO_STATE_F8, 2)
MO_SIZED_STEP_KERNEL(mo_sized_stepc8, MO_STATE_COMPANDED, 2)
MO_SIZED_STEP_KERNEL(mo_sized_stepc4, MO_STATE_COMPANDED4, 2)

/* --- block-wise codes on their own ----------------------------------------------------------- */

/* A chunk of them: pointers are to its first element. */
template <uint32_t FORMAT>
MO_DEVICE mo_blockcode_args mo_sized_code_chunk(const mo_blockcode_args &args, uint64_t chunk)
{
    uint64_t start = chunk * MO_CHUNK_ELEMENTS;
    mo_blockcode_args part = args;
    part.shift = mo_blockcode_shift(FORMAT, &args);
    part.values = mo_element_at(args.values, start, args.dtype);
    part.codes = args.codes + mo_format_bytes(FORMAT, start);
    part.absmax = args.absmax + (start >> part.shift);
    part.count = mo_chunk_length(args.count, chunk);
    return part;
}

template <uint32_t FORMAT>
MO_DEVICE void mo_sized_quantize(const mo_blockcode_args &args, uint64_t chunk,
                                 typename mo_codec<FORMAT>::tables *tables, mo_sized_room *room)
{
    mo_codec<FORMAT>::load(tables);
    mo_barrier();
    mo_blockcode_args part = mo_sized_code_chunk<FORMAT>(args, chunk);
    int values_aligned = mo_pack_aligned<8>(args.values, (uint32_t)args.dtype);
    int codes_aligned = mo_codes_aligned<FORMAT>(args.codes);
    for (uint32_t tile = 0; tile < part.count; tile += MO_SIZED_TILE) {
        float values[MO_SIZED_ROWS][8] = {{0}};
        uint32_t largest[MO_SIZED_ROWS] = {0};
        MO_UNROLL
        for (uint32_t r = 0; r < MO_SIZED_ROWS; r++) {
            uint32_t at = tile + r * MO_SIZED_ROW + mo_thread_index() * 8;
            uint32_t rest = mo_pack_rest<8>(part.count, at);
            if (rest > 0) {
                mo_load_pack<8>(part.values, at, rest, (uint32_t)part.dtype, values_aligned,
                                values[r]);
                largest[r] = mo_largest<8>(values[r]);
            }
        }
        mo_sized_code<FORMAT>(tables, part.is_signed != 0, values, largest, room, part.shift,
                              part.count, tile, codes_aligned, part.codes, part.absmax);
    }
}

template <uint32_t FORMAT>
MO_DEVICE void mo_sized_dequantize(const mo_blockcode_args &args, uint64_t chunk,
                                   typename mo_codec<FORMAT>::tables *tables, mo_sized_room *)
{
    mo_codec<FORMAT>::load(tables);
    mo_barrier();
    mo_blockcode_args part = mo_sized_code_chunk<FORMAT>(args, chunk);
    int values_aligned = mo_pack_aligned<8>(args.values, (uint32_t)args.dtype);
    int codes_aligned = mo_codes_aligned<FORMAT>(args.codes);
    for (uint32_t at = mo_thread_index() * 8; at < part.count; at += MO_SIZED_ROW) {
        uint32_t rest = mo_pack_rest<8>(part.count, at);
        float values[8];
        mo_sized_decode<FORMAT>(tables, part.is_signed != 0, part.codes, part.absmax, part.shift,
                                at, rest, codes_aligned, values);
        mo_one_nan<8>(values);
        mo_store_pack<8>(part.values, at, rest, (uint32_t)part.dtype, values_aligned, values);
    }
}

#define MO_SIZED_CODE_KERNEL(name, function, format)                                               \
    MO_GLOBAL(name, mo_blockcode_args, MO_OPTIM_THREADS)                                           \
    {                                                                                              \
        MO_SHARED(mo_codec<format>::tables, tables);                                               \
        MO_SHARED(mo_sized_room, room);                                                            \
        function<format>(args, first_item + mo_block_index(), &tables, &room);                     \
    }

MO_SIZED_CODE_KERNEL(mo_sized_quantize8, mo_sized_quantize, MO_STATE_8BIT)
MO_SIZED_CODE_KERNEL(mo_sized_dequantize8, mo_sized_dequantize, MO_STATE_8BIT)
MO_SIZED_CODE_KERNEL(mo_sized_quantize4, mo_sized_quantize, MO_STATE_4BIT)
MO_SIZED_CODE_KERNEL(mo_sized_dequantize4, mo_sized_dequantize, MO_STATE_4BIT)
MO_SIZED_CODE_KERNEL(mo_sized_quantizef8, mo_sized_quantize, MO_STATE_F8)
MO_SIZED_CODE_KERNEL(mo_sized_dequantizef8, mo_sized_dequantize, MO_STATE_F8)
MO_SIZED_CODE_KERNEL(mo_sized_quantizec8, mo_sized_quantize, MO_STATE_COMPANDED)
MO_SIZED_CODE_KERNEL(mo_sized_quantizec4, mo_sized_quantize, MO_STATE_COMPANDED4)
MO_SIZED_CODE_KERNEL(mo_sized_dequantizec8, mo_sized_dequantize, MO_STATE_COMPANDED)
MO_SIZED_CODE_KERNEL(mo_sized_dequantizec4, mo_sized_dequantize, MO_STATE_COMPANDED4)
