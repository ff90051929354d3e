/*
 * Whole blocks of the types that most programs have, all tensors aligned: bf16 parameters and
 * gradients; f32 both; f32 parameters with bf16 gradients and a bf16 copy. Part of optim.cu.
 *
 * Types and alignments are known to the compiler here. A thread has the eight elements of the next
 * block on their way, of all tensors at once, while it computes this one: a GPU needs that many
 * bytes in flight to reach its memory's speed.
 */
#ifndef MO_KERNELS_OPTIM_STEP_WHOLE_GPU_H
#define MO_KERNELS_OPTIM_STEP_WHOLE_GPU_H

/* Words of eight elements. */
template <uint32_t DTYPE> struct mo_eight {
    enum { WORDS = DTYPE == MO_DTYPE_F32 ? 8 : 4, BYTES = 4 * WORDS };
};

/* What a thread reads of a block. */
template <uint32_t FORMAT, uint32_t P, uint32_t G> struct mo_eight_raw {
    uint32_t m[mo_code_words<FORMAT>::N], v[mo_code_words<FORMAT>::N],
        slow[mo_code_words<FORMAT>::N], p[mo_eight<P>::WORDS], g[mo_eight<G>::WORDS];
    float m_scale, v_scale, slow_scale;
};

template <int WORDS> MO_DEVICE void mo_read_words(const void *data, uint32_t offset, uint32_t *to)
{
    enum { PART = WORDS < 4 ? WORDS : 4 };
    MO_UNROLL
    for (int w = 0; w < WORDS; w += PART) {
        mo_words<PART> raw = mo_load_words<PART, 0>((const unsigned char *)data + offset + 4 * w);
        MO_UNROLL
        for (int k = 0; k < PART; k++)
            to[w + k] = raw.of[k];
    }
}

template <int WORDS>
MO_DEVICE void mo_write_words(void *data, uint32_t offset, const uint32_t *from)
{
    enum { PART = WORDS < 4 ? WORDS : 4 };
    MO_UNROLL
    for (int w = 0; w < WORDS; w += PART) {
        mo_words<PART> raw;
        MO_UNROLL
        for (int k = 0; k < PART; k++)
            raw.of[k] = from[w + k];
        mo_store_words<PART, 0>((unsigned char *)data + offset + 4 * w, raw);
    }
}

template <uint32_t DTYPE> MO_DEVICE void mo_eight_values(const uint32_t *words, float values[8])
{
    MO_UNROLL
    for (int k = 0; k < 8; k++)
        values[k] = mo_f32_from_bits(DTYPE == MO_DTYPE_F32 ? words[k]
                                     : k % 2 == 0          ? words[k / 2] << 16
                                                           : words[k / 2] & 0xffff0000u);
}

template <uint32_t RULE, uint32_t FORMAT, uint32_t P, uint32_t G>
MO_DEVICE mo_eight_raw<FORMAT, P, G> mo_read_whole(const mo_optim_span *s, uint32_t at)
{
    enum { N = mo_code_words<FORMAT>::N };
    mo_eight_raw<FORMAT, P, G> raw;
    uint32_t codes = at / (8 / (4 * N)), block = at / mo_format_block(FORMAT);
    mo_read_words<N>(s->m, codes, raw.m);
    if (mo_rule_has_second(RULE))
        mo_read_words<N>(s->v, codes, raw.v);
    if (mo_rule_has_slow(RULE))
        mo_read_words<N>(s->slow, codes, raw.slow);
    mo_read_words<mo_eight<G>::WORDS>(s->gradient, at / 8 * mo_eight<G>::BYTES, raw.g);
    mo_read_words<mo_eight<P>::WORDS>(s->parameter, at / 8 * mo_eight<P>::BYTES, raw.p);
    raw.m_scale = mo_load_as<float>(&s->absmax1[block]);
    raw.v_scale = mo_rule_has_second(RULE) ? mo_load_as<float>(&s->absmax2[block]) : 0.0f;
    raw.slow_scale = mo_rule_has_slow(RULE) ? mo_load_as<float>(&s->slow_absmax[block]) : 0.0f;
    return raw;
}

/* Codes of eight parameters, or of their copy. */
template <uint32_t DTYPE>
MO_DEVICE void mo_eight_codes(const float values[8], int any_nan, uint32_t *words)
{
    enum { N = 8 };
    uint32_t codes[N];
    mo_encode_known<N, DTYPE>(values, any_nan, codes);
    MO_UNROLL
    for (int w = 0; w < mo_eight<DTYPE>::WORDS; w++)
        words[w] = DTYPE == MO_DTYPE_F32 ? codes[w] : codes[2 * w] | codes[2 * w + 1] << 16;
}

/* New moments, their range, and the words of new parameters in p. */
template <uint32_t RULE, uint32_t P>
MO_DEVICE void mo_update_whole(const mo_rule_coef *c, const mo_near_rates *near, const float g[8],
                               float p[8], float m[8], float v[8], float slow[8],
                               mo_pack_range *range, uint32_t *words, int *out_nan)
{
    enum { N = 8 };
    *out_nan = 0;
    if (mo_update_values<RULE, N, 1>(c, near, P == MO_DTYPE_BF16, g, p, m, v, slow, range, words))
        return;
    *out_nan = mo_any_nan<N>(p);
    if (MO_RARE(*out_nan))
        mo_one_nan<N>(p);
    mo_eight_codes<P>(p, *out_nan, words);
}

template <uint32_t RULE, uint32_t FORMAT, uint32_t P, uint32_t G, int COPY>
MO_DEVICE void mo_step_whole_block(const mo_optim_span *s, const mo_rule_coef *coef,
                                   const mo_near_rates *near,
                                   const typename mo_codec<FORMAT>::tables *tables,
                                   const mo_eight_raw<FORMAT, P, G> *raw, uint32_t at)
{
    enum { N = 8 };
    const int is_signed = mo_rule_first_signed(RULE);
    mo_pack_range range = {0, 0, 0, 0};
    float m[N], v[N], slow[N], g[N], p[N];
    uint32_t words[mo_eight<P>::WORDS];
    int any_nan;
    mo_codec<FORMAT>::decode(tables, is_signed, raw->m, raw->m_scale, m);
    if (mo_rule_has_second(RULE))
        mo_codec<FORMAT>::decode(tables, 0, raw->v, raw->v_scale, v);
    if (mo_rule_has_slow(RULE))
        mo_codec<FORMAT>::decode(tables, 1, raw->slow, raw->slow_scale, slow);
    mo_eight_values<G>(raw->g, g);
    mo_eight_values<P>(raw->p, p);
    mo_update_whole<RULE, P>(coef, near, g, p, m, v, slow, &range, words, &any_nan);
    mo_write_words<mo_eight<P>::WORDS>(s->parameter, at / 8 * mo_eight<P>::BYTES, words);
    if (COPY) {
        uint32_t copy[4];
        mo_eight_codes<MO_DTYPE_BF16>(p, any_nan, copy);
        mo_write_words<4>(s->copy, at * 2, copy);
    }
    mo_encode_block<FORMAT>(tables, is_signed, m, mo_block_largest<FORMAT>(range.largest_m),
                            is_signed ? 0 : mo_least<N>(m), at, N, 1, s->m, s->absmax1);
    if (mo_rule_has_second(RULE))
        mo_encode_block<FORMAT>(tables, 0, v, mo_block_largest<FORMAT>(range.largest_v),
                                range.least_v, at, N, 1, s->v, s->absmax2);
    if (mo_rule_has_slow(RULE))
        mo_encode_block<FORMAT>(tables, 1, slow, mo_block_largest<FORMAT>(range.largest_slow), 0,
                                at, N, 1, s->slow, s->slow_absmax);
}

/* The whole blocks of a chunk, from the group's own on. */
template <uint32_t RULE, uint32_t FORMAT, uint32_t P, uint32_t G, int COPY>
MO_DEVICE void mo_step_whole(const mo_optim_span *span, const mo_rule_coef *coef,
                             const typename mo_codec<FORMAT>::tables *tables, uint32_t whole)
{
    const uint32_t stride = MO_OPTIM_GROUPS * MO_BLOCK_SIZE, end = whole * MO_BLOCK_SIZE;
    const mo_near_rates near = mo_near_rates_of(coef);
    mo_optim_span s = *span;
    uint32_t at = mo_thread_index() * 8; /* MO_LANES threads of eight are a block */
    if (at >= end)
        return;
    mo_eight_raw<FORMAT, P, G> now = mo_read_whole<RULE, FORMAT, P, G>(&s, at), ahead;
    MO_ROLLED
    for (; at < end; at += stride) {
        uint32_t next = at + stride < end ? at + stride : at; /* the last one once more */
        ahead = mo_read_whole<RULE, FORMAT, P, G>(&s, next);
        mo_step_whole_block<RULE, FORMAT, P, G, COPY>(&s, coef, &near, tables, &now, at);
        now = ahead;
    }
}

/* Does the whole blocks of a chunk if it is of one of the classes; returns how many. */
template <uint32_t RULE, uint32_t FORMAT>
MO_DEVICE uint32_t mo_step_classes(const mo_optim_span *s, const mo_rule_coef *coef,
                                   const typename mo_codec<FORMAT>::tables *tables,
                                   const mo_span_aligned *aligned)
{
    uint32_t whole = (uint32_t)s->count / MO_BLOCK_SIZE;
    whole -= whole % (mo_warp_size() / MO_LANES); /* so that all of a warp take part */
    int states = aligned->m && (!mo_rule_has_second(RULE) || aligned->v) &&
                 (!mo_rule_has_slow(RULE) || aligned->slow) && s->m != 0;
    int narrow = s->gradient_dtype == MO_DTYPE_BF16;
    if (!states || !aligned->parameter || !aligned->gradient || s->residual || s->stochastic)
        return 0;
    if (s->parameter_dtype == MO_DTYPE_BF16 && narrow && !aligned->exact)
        mo_step_whole<RULE, FORMAT, MO_DTYPE_BF16, MO_DTYPE_BF16, 0>(s, coef, tables, whole);
    else if (s->parameter_dtype == MO_DTYPE_F32 && s->gradient_dtype == MO_DTYPE_F32 && !s->copy)
        mo_step_whole<RULE, FORMAT, MO_DTYPE_F32, MO_DTYPE_F32, 0>(s, coef, tables, whole);
    else if (s->parameter_dtype == MO_DTYPE_F32 && narrow && aligned->copy &&
             s->copy_dtype == MO_DTYPE_BF16)
        mo_step_whole<RULE, FORMAT, MO_DTYPE_F32, MO_DTYPE_BF16, 1>(s, coef, tables, whole);
    else
        return 0;
    return whole;
}

#endif
