/*
 * Whole blocks of the types that most programs have, all tensors aligned: bf16 parameters and
 * gradients; f32 parameters, whose gradients may be of f32 or bf16 and which may have a bf16 copy. Part
 * of optim.cu.
 *
 * A loop for bf16 and one for f32: there memory takes so much longer than instructions that the types
 * beside the parameter's may be tested in it. A warp has a run of blocks, one after the other. A thread
 * has its eight elements of the next block on their way, of all tensors at once, while it computes this
 * one: a GPU needs that many bytes in flight to reach its memory's speed.
 *
 * There are no branches in the loop for what is seldom: a block with a NaN, or of which approximations
 * do not decide, is not written, and left to the general form.
 */
#ifndef MO_KERNELS_OPTIM_STEP_WHOLE_GPU_H
#define MO_KERNELS_OPTIM_STEP_WHOLE_GPU_H

/* Of a chunk, in shared memory: the blocks that are left to the general form. A group's first thread
 * writes. */
typedef struct mo_left_blocks {
    uint32_t of[MO_CHUNK_BLOCKS];
} mo_left_blocks;

/* A barrier is due afterwards. */
MO_DEVICE void mo_left_begin(mo_left_blocks *left)
{
    if (mo_thread_index() < MO_CHUNK_BLOCKS)
        left->of[mo_thread_index()] = 0;
}

/* Whether there are any, in all threads, which must all ask. */
MO_DEVICE uint32_t mo_left_any(const mo_left_blocks *left)
{
    uint32_t any = 0;
    MO_UNROLL
    for (uint32_t i = mo_thread_index() % MO_LANES; i < MO_CHUNK_BLOCKS; i += MO_LANES)
        any |= left->of[i];
    return !mo_group_all(!any);
}

/* Words of eight elements. */
template <uint32_t DTYPE> struct mo_eight {
    enum { WORDS = DTYPE == MO_DTYPE_F32 ? 8 : 4, BYTES = 4 * WORDS };
};

/* What a thread reads of a block. */
template <uint32_t FORMAT, uint32_t P> struct mo_eight_raw {
    uint32_t m[mo_code_words<FORMAT>::N], v[mo_code_words<FORMAT>::N],
        slow[mo_code_words<FORMAT>::N], p[mo_eight<P>::WORDS], g[mo_eight<P>::WORDS];
    uint32_t m_scale, v_scale, slow_scale;
};

/* Where these are in the tensors, and where the results go. Those of f32 parameters' gradients, whose
 * size is not known, are those of the block that is read next. */
typedef struct mo_eight_place {
    unsigned char *m, *v, *slow, *m_scale, *v_scale, *slow_scale, *p, *copy;
    const unsigned char *g;
    uint32_t g_bytes, has_copy; /* of a thread's gradients; whether there is a copy */
} mo_eight_place;

/* Bytes of a block of 256 elements, and blocks of a turn. */
template <uint32_t RULE, uint32_t FORMAT, uint32_t P> struct mo_whole {
    enum {
        CODES = MO_LANES * 4 * mo_code_words<FORMAT>::N,
        SCALES = 4 * (MO_BLOCK_SIZE / mo_format_block(FORMAT)),
        P_BYTES = MO_LANES * mo_eight<P>::BYTES,
        COPY = MO_BLOCK_SIZE * 2,
        TURN = RULE == MO_RULE_ADAMW && P == MO_DTYPE_BF16 ? 2 : 1
    };
};

template <uint32_t DTYPE> MO_DEVICE void mo_eight_values(const uint32_t *words, float values[8])
{
    MO_UNROLL
    for (int k = 0; k < 8; k++)
        values[k] = mo_f32_from_bits(DTYPE == MO_DTYPE_F32 ? words[k]
                                     : k % 2 == 0          ? words[k / 2] << 16
                                                           : words[k / 2] & 0xffff0000u);
}

/* States without scales: only how they are read. */
template <uint32_t DTYPE> struct mo_plain_codec {
    typedef struct {
    } tables;

    MO_DEVICE void load(tables *)
    {
    }

    MO_DEVICE void decode(const tables *, int, const uint32_t *words, float, float values[8])
    {
        mo_eight_values<DTYPE>(words, values);
    }
};
template <> struct mo_codec<MO_STATE_F32> : mo_plain_codec<MO_DTYPE_F32> {
};
template <> struct mo_codec<MO_STATE_BF16> : mo_plain_codec<MO_DTYPE_BF16> {
};

/* The gradients of the block AHEAD of the place, or of f32 parameters of the next one. */
template <uint32_t P, int AHEAD>
MO_DEVICE void mo_read_gradients(mo_eight_place *at, uint32_t more, uint32_t *words)
{
    if (P != MO_DTYPE_F32) {
        mo_read_ahead<4, AHEAD * MO_BLOCK_SIZE * 2>(more, at->g, words);
        return;
    }
    mo_read_ahead<4, 0>(more, at->g, words);
    if (MO_TYPES != MO_TYPES_COPY)
        mo_read_ahead<4, 0>(at->g_bytes == 32 ? more : 0, at->g + 16, words + 4);
    at->g += mo_ahead(MO_LANES * at->g_bytes);
}

template <uint32_t P>
MO_DEVICE void mo_gradients_of(const mo_eight_place *at, const uint32_t *words, float g[8])
{
    if (P != MO_DTYPE_F32 || at->g_bytes == 16)
        mo_eight_values<MO_DTYPE_BF16>(words, g);
    else
        mo_eight_values<P>(words, g);
}

/* All but the parameters, of the block AHEAD of the place. */
template <uint32_t RULE, uint32_t FORMAT, uint32_t P, int AHEAD>
MO_DEVICE void mo_read_states(mo_eight_place *at, uint32_t more, mo_eight_raw<FORMAT, P> *raw)
{
    typedef mo_whole<RULE, FORMAT, P> whole;
    enum {
        N = mo_code_words<FORMAT>::N,
        CODES = AHEAD * whole::CODES,
        SCALES = AHEAD * whole::SCALES
    };
    mo_read_ahead<N, CODES>(more, at->m, raw->m);
    if (mo_rule_has_second(RULE))
        mo_read_ahead<N, CODES>(more, at->v, raw->v);
    if (mo_rule_has_slow(RULE))
        mo_read_ahead<N, CODES>(more, at->slow, raw->slow);
    if (mo_format_has_scales(FORMAT)) {
        mo_read_ahead<1, SCALES>(more, at->m_scale, &raw->m_scale);
        if (mo_rule_has_second(RULE))
            mo_read_ahead<1, SCALES>(more, at->v_scale, &raw->v_scale);
        if (mo_rule_has_slow(RULE))
            mo_read_ahead<1, SCALES>(more, at->slow_scale, &raw->slow_scale);
    }
    mo_read_gradients<P, AHEAD>(at, more, raw->g);
}

/* Writes moments that have no scales, if all is `fine`. */
template <uint32_t RULE, uint32_t FORMAT, int CODES>
MO_DEVICE void mo_write_plain(uint32_t fine, const mo_eight_place *at, const mo_rule_coef *coef,
                              const float m[8], const float v[8], const float slow[8])
{
    enum { N = 8, WORDS = mo_code_words<FORMAT>::N };
    uint32_t words[3][N] = {};
    MO_UNROLL
    for (int k = 0; k < N; k++) {
        if (FORMAT == MO_STATE_F32) {
            words[0][k] = mo_f32_bits(m[k]);
            words[1][k] = mo_rule_has_second(RULE) ? mo_f32_bits(v[k]) : 0;
            words[2][k] = mo_rule_has_slow(RULE) ? mo_f32_bits(slow[k]) : 0;
        } else {
            mo_moment_codes codes = mo_moment_codes_of(m[k], v[k], mo_moment_key(coef->step));
            words[0][k / 2] |= (uint32_t)codes.m << k % 2 * 16;
            words[1][k / 2] |= (uint32_t)codes.v << k % 2 * 16;
        }
    }
    mo_write_ahead<WORDS, CODES>(fine, at->m, words[0]);
    if (mo_rule_has_second(RULE))
        mo_write_ahead<WORDS, CODES>(fine, at->v, words[1]);
    if (mo_rule_has_slow(RULE))
        mo_write_ahead<WORDS, CODES>(fine, at->slow, words[2]);
}

/* Encodes eight values of a moment and writes them and, once, their block's scale. */
template <uint32_t FORMAT, int CODES, int SCALES>
MO_DEVICE void mo_write_moment(uint32_t fine, const typename mo_codec<FORMAT>::tables *tables,
                               int is_signed, const float values[8], const mo_encoding *e,
                               unsigned char *codes, unsigned char *scale)
{
    enum { N = mo_code_words<FORMAT>::N };
    uint32_t words[N], stored = mo_f32_bits(e->stored);
    mo_encode_words<FORMAT>(tables, is_signed, values, e, words);
    mo_write_ahead<N, CODES>(fine, codes, words);
    if (mo_thread_index() % (mo_format_block(FORMAT) / 8) == 0)
        mo_write_ahead<1, SCALES>(fine, scale, &stored);
}

/* Encodes and writes the moments of a block: one branch for scales that are rare. */
template <uint32_t RULE, uint32_t FORMAT, int CODES, int SCALES>
MO_DEVICE void mo_write_coded(uint32_t fine, const mo_eight_place *at,
                              const typename mo_codec<FORMAT>::tables *tables,
                              const mo_pack_range *range, float m[8], float v[8], float slow[8])
{
    const int is_signed = mo_rule_first_signed(RULE);
    uint32_t largest[3] = {mo_block_largest<FORMAT>(range->largest_m), 0, 0};
    int plain = mo_scale_is_plain(largest[0]);
    mo_encoding e[3];
    e[0] = mo_plain_encoding(largest[0], is_signed ? 0 : mo_least<8>(m));
    if (mo_rule_has_second(RULE)) {
        largest[1] = mo_block_largest<FORMAT>(range->largest_v);
        plain &= mo_scale_is_plain(largest[1]);
        e[1] = mo_plain_encoding(largest[1], range->least_v);
    }
    if (mo_rule_has_slow(RULE)) {
        largest[2] = mo_block_largest<FORMAT>(range->largest_slow);
        plain &= mo_scale_is_plain(largest[2]);
        e[2] = mo_plain_encoding(largest[2], 0);
    }
    if (MO_RARE(!plain)) { /* the same for all of a group */
        mo_rare_encoding(m, largest[0], &e[0]);
        if (mo_rule_has_second(RULE))
            mo_rare_encoding(v, largest[1], &e[1]);
        if (mo_rule_has_slow(RULE))
            mo_rare_encoding(slow, largest[2], &e[2]);
    }
    mo_write_moment<FORMAT, CODES, SCALES>(fine, tables, is_signed, m, &e[0], at->m, at->m_scale);
    if (mo_rule_has_second(RULE))
        mo_write_moment<FORMAT, CODES, SCALES>(fine, tables, 0, v, &e[1], at->v, at->v_scale);
    if (mo_rule_has_slow(RULE))
        mo_write_moment<FORMAT, CODES, SCALES>(fine, tables, MO_SLOW, slow, &e[2], at->slow,
                                               at->slow_scale);
}

/* New moments, their range, and the words of new parameters. Returns whether these are right. */
template <uint32_t RULE, uint32_t FORMAT, uint32_t P>
MO_DEVICE uint32_t mo_step_eight(const mo_rule_coef *coef, const mo_near_rates *near,
                                 const float g[8], float p[8], float m[8], float v[8],
                                 float slow[8], mo_pack_range *range, uint32_t *words)
{
    enum { N = 8 };
    uint32_t beyond = RULE == MO_RULE_ADAMW ? mo_adamw_beyond(range) : 0;
    if constexpr (RULE == MO_RULE_ADAMW && P == MO_DTYPE_BF16) {
        return mo_adamw_bf16<N>(coef->decay, near, p, m, v, beyond, words);
    } else if constexpr (RULE == MO_RULE_ADAMW && MO_NVCC_DEVICE) {
        uint32_t fine = mo_adamw_f32<N>(coef, range, p, m, v, beyond, words);
        mo_eight_values<P>(words, p);
        return fine;
    } else {
        MO_UNROLL
        for (int k = 0; k < N; k++)
            p[k] = RULE == MO_RULE_ADAMW
                       ? mo_adamw_parameter(coef, p[k], m[k], v[k])
                       : mo_rule_update_raw(RULE, coef, g[k], p[k], &m[k], &v[k], &slow[k]);
        if (RULE != MO_RULE_ADAMW)
            *range = mo_range_of<RULE>(m, v, slow);
        mo_pack_words<N, P>(p, 0, words);
        int nan = mo_any_nan<N>(p);
        if (RULE == MO_RULE_LION && !mo_format_has_scales(FORMAT)) /* p does not depend on m */
            nan |= mo_any_nan<N>(m);
        return !nan && beyond == 0;
    }
}

/* The block AHEAD of the place, of which raw has been read; reads the one behind it if there is
 * `more`. */
template <uint32_t RULE, uint32_t FORMAT, uint32_t P, int AHEAD>
MO_DEVICE void
mo_step_whole_block(const mo_optim_span *s, mo_left_blocks *left, mo_eight_place *at, uint32_t more,
                    const mo_rule_coef *coef, const mo_near_rates *near,
                    const typename mo_codec<FORMAT>::tables *tables, mo_eight_raw<FORMAT, P> *raw)
{
    typedef mo_whole<RULE, FORMAT, P> whole;
    enum { N = 8, CODES = AHEAD * whole::CODES, SCALES = AHEAD * whole::SCALES };
    const int early = RULE == MO_RULE_ADAMW && (P == MO_DTYPE_BF16 || MO_NVCC_DEVICE);
    mo_pack_range range = {0, 0, 0, 0};
    float m[N], v[N], slow[N], g[N], p[N];
    uint32_t words[mo_eight<P>::WORDS];
    mo_codec<FORMAT>::decode(tables, mo_rule_first_signed(RULE), raw->m,
                             mo_f32_from_bits(raw->m_scale), m);
    if (mo_rule_has_second(RULE))
        mo_codec<FORMAT>::decode(tables, 0, raw->v, mo_f32_from_bits(raw->v_scale), v);
    if (mo_rule_has_slow(RULE))
        mo_codec<FORMAT>::decode(tables, 1, raw->slow, mo_f32_from_bits(raw->slow_scale), slow);
    mo_gradients_of<P>(at, raw->g, g);
    mo_eight_values<P>(raw->p, p);
    if (RULE == MO_RULE_ADAMW)
        mo_adamw_moments_of<N>(coef, g, m, v, &range);
    if (early)
        mo_read_states<RULE, FORMAT, P, AHEAD + 1>(at, more, raw);
    uint32_t fine = mo_step_eight<RULE, FORMAT, P>(coef, near, g, p, m, v, slow, &range, words);
    if (!early)
        mo_read_states<RULE, FORMAT, P, AHEAD + 1>(at, more, raw);
    fine = mo_group_all(fine);
    if (MO_RARE(!fine && mo_thread_index() % MO_LANES == 0)) {
        uint32_t block = (uint32_t)(at->p - (unsigned char *)s->parameter) / whole::P_BYTES;
        left->of[block + mo_ahead(AHEAD)] = 1;
    }
    mo_read_ahead<mo_eight<P>::WORDS, (AHEAD + 1) * whole::P_BYTES>(more, at->p, raw->p);
    mo_write_ahead<mo_eight<P>::WORDS, AHEAD * whole::P_BYTES>(fine, at->p, words);
    if (P == MO_DTYPE_F32 && MO_TYPES != MO_TYPES_F32) {
        uint32_t copy[4];
        mo_pack_words<N, MO_DTYPE_BF16>(p, 0, copy);
        mo_write_ahead<4, AHEAD * whole::COPY>(fine & at->has_copy, at->copy, copy);
    }
    if constexpr (mo_format_has_scales(FORMAT))
        mo_write_coded<RULE, FORMAT, CODES, SCALES>(fine, at, tables, &range, m, v, slow);
    else
        mo_write_plain<RULE, FORMAT, CODES>(fine, at, coef, m, v, slow);
}

/* The place of a thread in block `block` of a span. */
template <uint32_t RULE, uint32_t FORMAT, uint32_t P>
MO_DEVICE mo_eight_place mo_eight_place_of(const mo_optim_span *s, uint32_t block)
{
    enum { N = mo_code_words<FORMAT>::N };
    mo_eight_place at;
    uint32_t eight = block * MO_LANES + mo_thread_index() % MO_LANES;
    uint32_t scale = eight / (mo_format_block(FORMAT) / 8) * 4;
    at.m = (unsigned char *)s->m + eight * 4 * N;
    at.m_scale = (unsigned char *)s->absmax1 + scale;
    at.v = mo_rule_has_second(RULE) ? (unsigned char *)s->v + eight * 4 * N : 0;
    at.v_scale = mo_rule_has_second(RULE) ? (unsigned char *)s->absmax2 + scale : 0;
    at.slow = mo_rule_has_slow(RULE) ? (unsigned char *)s->slow + eight * 4 * N : 0;
    at.slow_scale = mo_rule_has_slow(RULE) ? (unsigned char *)s->slow_absmax + scale : 0;
    at.p = (unsigned char *)s->parameter + eight * mo_eight<P>::BYTES;
    at.g_bytes = mo_type_of_gradient(s) == MO_DTYPE_F32 ? 32 : 16;
    at.g = (const unsigned char *)s->gradient + eight * at.g_bytes;
    at.has_copy = mo_copy_of(s) != 0;
    at.copy = (unsigned char *)mo_copy_of(s) + eight * 16;
    return at;
}

/* On to the next turn. */
template <uint32_t RULE, uint32_t FORMAT, uint32_t P> MO_DEVICE void mo_advance(mo_eight_place *at)
{
    typedef mo_whole<RULE, FORMAT, P> whole;
    const uint32_t codes = mo_ahead(whole::TURN * whole::CODES);
    const uint32_t scales = mo_ahead(whole::TURN * whole::SCALES);
    at->m += codes;
    at->m_scale += scales;
    if (mo_rule_has_second(RULE)) {
        at->v += codes;
        at->v_scale += scales;
    }
    if (mo_rule_has_slow(RULE)) {
        at->slow += codes;
        at->slow_scale += scales;
    }
    at->p += mo_ahead(whole::TURN * whole::P_BYTES);
    at->copy += mo_ahead(whole::TURN * whole::COPY);
    if (P != MO_DTYPE_F32)
        at->g += mo_ahead(whole::TURN * whole::P_BYTES);
}

/* The whole blocks of a chunk, an even number in each half of a warp of 64. A turn's places are constants
 * away from one another: where there are two, pointers move half as often. */
template <uint32_t RULE, uint32_t FORMAT, uint32_t P>
MO_DEVICE void mo_step_whole(const mo_optim_span *s, mo_left_blocks *left_blocks,
                             const mo_rule_coef *coef,
                             const typename mo_codec<FORMAT>::tables *tables, uint32_t whole)
{
    enum { TURN = mo_whole<RULE, FORMAT, P>::TURN };
    const uint32_t halves = mo_warp_size() / MO_LANES;
    const uint32_t run = MO_CHUNK_BLOCKS / MO_OPTIM_GROUPS * halves, first = mo_warp_index() * run;
    uint32_t left = first >= whole ? 0 : first + run < whole ? run : whole - first;
    const mo_near_rates near = mo_near_rates_of(coef);
    mo_eight_raw<FORMAT, P> raw;
    if (left == 0)
        return;
    mo_eight_place at =
        mo_eight_place_of<RULE, FORMAT, P>(s, first + mo_thread_index() / MO_LANES % halves);
    mo_read_states<RULE, FORMAT, P, 0>(&at, 1, &raw);
    mo_read_ahead<mo_eight<P>::WORDS, 0>(1, at.p, raw.p);
    MO_ROLLED
    while (left != 0) {
        left -= TURN * halves;
        if (TURN == 2)
            mo_step_whole_block<RULE, FORMAT, P, 0>(s, left_blocks, &at, 1, coef, &near, tables,
                                                    &raw);
        mo_step_whole_block<RULE, FORMAT, P, TURN - 1>(s, left_blocks, &at, mo_kept(left), coef,
                                                       &near, tables, &raw);
        mo_advance<RULE, FORMAT, P>(&at);
    }
}

MO_DEVICE float mo_shared_f32(float value)
{
    return mo_f32_from_bits(mo_shared_value(mo_f32_bits(value)));
}

/* Coefficients in registers that the threads of a warp share: GFX9 has too few of these beside the
 * places of states without scales. */
MO_DEVICE mo_rule_coef mo_shared_coef(const mo_rule_coef *c)
{
    mo_rule_coef shared;
    shared.beta1 = mo_shared_f32(c->beta1);
    shared.one_minus_beta1 = mo_shared_f32(c->one_minus_beta1);
    shared.beta2 = mo_shared_f32(c->beta2);
    shared.one_minus_beta2 = mo_shared_f32(c->one_minus_beta2);
    shared.decay = mo_shared_f32(c->decay);
    shared.rate = mo_shared_f32(c->rate);
    shared.eps = mo_shared_f32(c->eps);
    shared.factor = mo_shared_f32(c->factor);
    shared.beta3 = mo_shared_f32(c->beta3);
    shared.one_minus_beta3 = mo_shared_f32(c->one_minus_beta3);
    shared.mix = mo_shared_f32(c->mix);
    shared.reserved = 0;
    shared.step = c->step;
    return shared;
}

/* Does the whole blocks of a chunk if it is of one of the classes; returns how many, of which some may
 * be left. */
template <uint32_t RULE, uint32_t FORMAT>
MO_DEVICE uint32_t mo_step_classes(const mo_optim_span *s, mo_left_blocks *left,
                                   const typename mo_codec<FORMAT>::tables *tables)
{
    const mo_rule_coef copied = mo_format_has_scales(FORMAT) ? mo_shared_coef(&s->coef) : s->coef;
    const mo_rule_coef *coef = &copied;
    const mo_span_aligned aligned = mo_span_alignment<RULE, FORMAT>(s);
    uint32_t whole = (uint32_t)s->count / MO_BLOCK_SIZE;
    whole -= whole % (2 * mo_warp_size() / MO_LANES); /* all of a warp take part, in pairs */
    int wide = mo_type_of_parameter(s) == MO_DTYPE_F32;
    int narrow = mo_type_of_gradient(s) == MO_DTYPE_BF16;
    int near = RULE != MO_RULE_ADAMW || mo_coef_is_plain(coef); /* for approximations */
    if (!aligned.states || s->m == 0 || !aligned.parameter || !aligned.gradient ||
        mo_residual_of(s) || mo_is_stochastic(s))
        return 0;
#if defined(__HIP__)
    if (mo_rule_has_slow(RULE)) /* three moments have more places than there are scalar registers */
        return 0;
#elif MO_NVCC_DEVICE
    if (RULE == MO_RULE_ADAMW && wide) /* mo_adamw_f32 */
        near = near && coef->eps > 0.0f;
#endif
    if (mo_type_of_parameter(s) == MO_DTYPE_BF16 && narrow && !mo_copy_of(s) && near)
        mo_step_whole<RULE, FORMAT, MO_DTYPE_BF16>(s, left, coef, tables, whole);
    else if (wide && (narrow || mo_type_of_gradient(s) == MO_DTYPE_F32) &&
             (near || !MO_NVCC_DEVICE) &&
             (!mo_copy_of(s) || (aligned.copy && mo_type_of_copy(s) == MO_DTYPE_BF16)))
        mo_step_whole<RULE, FORMAT, MO_DTYPE_F32>(s, left, coef, tables, whole);
    else
        return 0;
    return whole;
}

#endif
