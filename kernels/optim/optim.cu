/*
 * The optimizer's kernels on a GPU. A group of 32 threads works on a block of 256 elements, a pack
 * of eight a thread, so a block's absmax is a reduction over the group and no block waits for
 * another. The code tables are copied to shared memory, where every thread looks up its own entry.
 */
#include "kernels/core/gpu_ahead.h"
#include "kernels/optim/adamw_gpu.h"
#include "kernels/optim/split_weights.h"

enum {
    MO_OPTIM_GROUPS = MO_OPTIM_THREADS / MO_LANES,
    MO_CHUNK_BLOCKS = MO_CHUNK_ELEMENTS / MO_BLOCK_SIZE
};

/* --- types ------------------------------------------------------------------------------------
 *
 * Nearly all programs have tensors of one class of types alone. Where it is known (MO_TYPES, an
 * mo_step_types), everything for the others goes: a third of the code is left. So compilers on the
 * user's machine make a program for each class. */
#if !defined(MO_TYPES)
#define MO_TYPES MO_TYPES_ANY
#endif

MO_DEVICE uint32_t mo_type_of_parameter(const mo_optim_span *s)
{
    return MO_TYPES == MO_TYPES_ANY    ? (uint32_t)s->parameter_dtype
           : MO_TYPES == MO_TYPES_BF16 ? (uint32_t)MO_DTYPE_BF16
                                       : (uint32_t)MO_DTYPE_F32;
}

MO_DEVICE uint32_t mo_type_of_gradient(const mo_optim_span *s)
{
    return MO_TYPES == MO_TYPES_ANY   ? (uint32_t)s->gradient_dtype
           : MO_TYPES == MO_TYPES_F32 ? (uint32_t)MO_DTYPE_F32
                                      : (uint32_t)MO_DTYPE_BF16;
}

MO_DEVICE uint32_t mo_type_of_copy(const mo_optim_span *s)
{
    return MO_TYPES == MO_TYPES_ANY ? (uint32_t)s->copy_dtype : (uint32_t)MO_DTYPE_BF16;
}

MO_DEVICE void *mo_copy_of(const mo_optim_span *s)
{
    return MO_TYPES == MO_TYPES_ANY || MO_TYPES == MO_TYPES_COPY ? s->copy : 0;
}

/* Classes have neither residuals nor stochastic rounding. */
MO_DEVICE void *mo_residual_of(const mo_optim_span *s)
{
    return MO_TYPES == MO_TYPES_ANY ? s->residual : 0;
}

MO_DEVICE int mo_is_stochastic(const mo_optim_span *s)
{
    return MO_TYPES == MO_TYPES_ANY && s->stochastic;
}

/* --- the step -------------------------------------------------------------------------------- */

/* Which of a span's tensors may travel as vectors, and whether its bf16 parameters must not be
 * computed by approximations. */
typedef struct mo_span_aligned {
    int parameter, copy, gradient, m, v, slow, residual;
    int exact;
    mo_near_rates near;
} mo_span_aligned;

/* Whether bf16 parameters are not for mo_adamw_bf16. */
MO_DEVICE int mo_span_is_exact(const mo_optim_span *s)
{
    return mo_copy_of(s) || mo_is_stochastic(s) || mo_residual_of(s) || !mo_coef_is_plain(&s->coef);
}

template <int N, uint32_t FORMAT> MO_DEVICE int mo_moment_aligned(const void *moment)
{
    return FORMAT == MO_STATE_F32    ? mo_aligned_to(moment, 16)
           : FORMAT == MO_STATE_BF16 ? mo_pack_aligned<N>(moment, MO_DTYPE_BF16)
                                     : mo_codes_aligned<FORMAT>(moment);
}

template <int N, uint32_t FORMAT>
MO_DEVICE mo_span_aligned mo_span_alignment(const mo_optim_span *s)
{
    mo_span_aligned a;
    a.parameter = mo_pack_aligned<N>(s->parameter, mo_type_of_parameter(s));
    a.copy = mo_copy_of(s) && mo_pack_aligned<N>(mo_copy_of(s), mo_type_of_copy(s));
    a.gradient = mo_pack_aligned<N>(s->gradient, mo_type_of_gradient(s));
    a.m = mo_moment_aligned<N, FORMAT>(s->m);
    a.v = mo_moment_aligned<N, FORMAT>(s->v);
    a.slow = mo_moment_aligned<N, FORMAT>(s->slow);
    a.residual = mo_aligned_to(mo_residual_of(s), N * s->residual_bytes);
    a.exact = mo_span_is_exact(s);
    a.near = mo_near_rates_of(&s->coef);
    return a;
}

/* Split weights: adds the residuals to a pack of bf16 weights. */
template <int N, class INDEX>
MO_DEVICE void mo_join_weights(const mo_optim_span *s, INDEX at, uint32_t rest, int aligned,
                               float p[N])
{
    uint32_t residuals[N], bytes = s->residual_bytes;
    mo_read_pack<N, 0, 1>(mo_residual_of(s), at, rest, bytes, aligned, residuals);
    MO_UNROLL
    for (int k = 0; k < N; k++)
        p[k] = mo_weight_join(mo_f32_bits(p[k]) >> 16, residuals[k] << (bytes == 1 ? 8 : 0));
}

/* ... and writes both, of values whose only NaN is MO_F32_NAN_BITS. */
template <int N, class INDEX>
MO_DEVICE void mo_store_split(const mo_optim_span *s, INDEX at, uint32_t rest,
                              const mo_span_aligned *aligned, const float values[N])
{
    uint32_t weights[N], residuals[N], bytes = s->residual_bytes;
    MO_UNROLL
    for (int k = 0; k < N; k++) {
        mo_split_weight split = mo_weight_split(values[k], bytes);
        weights[k] = split.weight;
        residuals[k] = (uint32_t)split.residual >> (bytes == 1 ? 8 : 0);
    }
    mo_write_pack<N, 0, 2>(s->parameter, at, rest, 2, aligned->parameter, weights);
    mo_write_pack<N, 0, 1>(mo_residual_of(s), at, rest, bytes, aligned->residual, residuals);
}

/* mo_optim_store for a pack. */
template <int N, class INDEX>
MO_DEVICE void mo_store_parameters(const mo_optim_span *s, INDEX at, uint32_t rest,
                                   const mo_span_aligned *aligned, const float values[N],
                                   int any_nan)
{
    uint32_t dtype = mo_type_of_parameter(s), codes[N];
    if (mo_copy_of(s))
        mo_store_pack<N>(mo_copy_of(s), at, rest, mo_type_of_copy(s), aligned->copy, values);
    if (MO_RARE(mo_residual_of(s) != 0)) {
        mo_store_split<N>(s, at, rest, aligned, values);
        return;
    }
    if (mo_is_stochastic(s) && dtype != MO_DTYPE_F32) {
        uint32_t random[4];
        mo_random_block(&s->random, (s->start + at) / 8, random);
        MO_BY_FLOAT(dtype, mo_dither_values, values, 0, random, (uint32_t)(at % 8), codes);
    } else {
        MO_BY_FLOAT(dtype, mo_encode_known, values, any_nan, codes);
    }
    mo_write_pack<N, 0, 2>(s->parameter, at, rest, mo_element_size(dtype), aligned->parameter,
                           codes);
}

/* A rule's step: new moments and their range, and new parameters in p. Where `near`, parameters
 * may become bf16 by approximations: then they are in `words`, and the result is 1. */
template <uint32_t RULE, int N, int CODED>
MO_DEVICE int mo_update_values(const mo_rule_coef *c, const mo_near_rates *rates, int near,
                               const float g[N], float p[N], float m[N], float v[N], float slow[N],
                               mo_pack_range *range, uint32_t words[N / 2])
{
    if (RULE == MO_RULE_ADAMW && CODED) {
        mo_adamw_moments_of<N>(c, g, m, v, range);
        return mo_adamw_parameters<N, 0>(c, rates, near, p, m, v, range, words);
    }
    MO_UNROLL
    for (int k = 0; k < N; k++)
        p[k] = mo_rule_update_raw(RULE, c, g[k], p[k], &m[k], &v[k], &slow[k]);
    range->largest_m = mo_largest<N>(m);
    if (mo_rule_has_second(RULE)) {
        range->largest_v = mo_largest<N>(v);
        range->least_v = mo_least<N>(v);
    }
    if (mo_rule_has_slow(RULE))
        range->largest_slow = mo_largest<N>(slow);
    return 0;
}

/* Updates the pack at `at` of m, v and slow in registers, whose range is written, and of the
 * parameters in memory. Returns 0 if none of the parameters is NaN. */
template <uint32_t RULE, int N, int CODED, class INDEX>
MO_DEVICE int mo_update_pack(const mo_optim_span *s, const mo_rule_coef *coef, INDEX at,
                             uint32_t rest, const mo_span_aligned *aligned, float m[N], float v[N],
                             float slow[N], mo_pack_range *range)
{
    float g[N], p[N];
    uint32_t words[N / 2], codes[N];
    mo_load_pack<N>(s->gradient, at, rest, mo_type_of_gradient(s), aligned->gradient, g);
    mo_load_pack<N>(s->parameter, at, rest, mo_type_of_parameter(s), aligned->parameter, p);
    if (MO_RARE(mo_residual_of(s) != 0))
        mo_join_weights<N>(s, at, rest, aligned->residual, p);
    /* A program for one class of types has few packs here, and less to compile. */
    int near =
        MO_TYPES == MO_TYPES_ANY && mo_type_of_parameter(s) == MO_DTYPE_BF16 && !aligned->exact;
    if (mo_update_values<RULE, N, CODED>(coef, &aligned->near, near, g, p, m, v, slow, range,
                                         words)) {
        MO_UNROLL
        for (int k = 0; k < N; k++)
            codes[k] = words[k / 2] >> k % 2 * 16 & 0xffffu;
        mo_write_pack<N, 0, 2>(s->parameter, at, rest, 2, aligned->parameter, codes);
        return 0;
    }
    int any_nan = mo_any_nan<N>(p);
    if (MO_RARE(any_nan))
        mo_one_nan<N>(p);
    mo_store_parameters<N>(s, at, rest, aligned, p, any_nan);
    return any_nan;
}

/* One NaN in moments that are stored as they are; any_nan: in the parameters. A NaN in m, v or slow
 * makes one there, except in Lion's m, which p does not depend on. */
template <uint32_t RULE, int N>
MO_DEVICE void mo_plain_nan(int any_nan, float m[N], float v[N], float slow[N])
{
    if (RULE == MO_RULE_LION)
        any_nan |= mo_any_nan<N>(m);
    if (!MO_RARE(any_nan))
        return;
    mo_one_nan<N>(m);
    if (mo_rule_has_second(RULE))
        mo_one_nan<N>(v);
    if (mo_rule_has_slow(RULE))
        mo_one_nan<N>(slow);
}

template <uint32_t RULE>
MO_DEVICE void mo_step32_pack(const mo_optim_span *s, const mo_rule_coef *coef, uint64_t at,
                              uint32_t rest, const mo_span_aligned *aligned)
{
    enum { N = 4 };
    float m[N] = {0}, v[N] = {0}, slow[N] = {0};
    if (s->m)
        mo_load_pack<N>(s->m, at, rest, MO_DTYPE_F32, aligned->m, m);
    if (mo_rule_has_second(RULE))
        mo_load_pack<N>(s->v, at, rest, MO_DTYPE_F32, aligned->v, v);
    if (mo_rule_has_slow(RULE))
        mo_load_pack<N>(s->slow, at, rest, MO_DTYPE_F32, aligned->slow, slow);
    mo_pack_range range;
    int any_nan = mo_update_pack<RULE, N, 0>(s, coef, at, rest, aligned, m, v, slow, &range);
    mo_plain_nan<RULE, N>(any_nan, m, v, slow);
    if (s->m)
        mo_store_pack<N>(s->m, at, rest, MO_DTYPE_F32, aligned->m, m);
    if (mo_rule_has_second(RULE))
        mo_store_pack<N>(s->v, at, rest, MO_DTYPE_F32, aligned->v, v);
    if (mo_rule_has_slow(RULE))
        mo_store_pack<N>(s->slow, at, rest, MO_DTYPE_F32, aligned->slow, slow);
}

/* From element `from` on. */
template <uint32_t RULE>
MO_DEVICE void mo_step32(const mo_optim_span *s, const mo_rule_coef *coef, uint32_t from)
{
    enum { N = 4 };
    mo_span_aligned aligned = mo_span_alignment<N, MO_STATE_F32>(s);
    uint64_t at = from + (uint64_t)mo_thread_index() * N;
    for (; at < s->count; at += MO_OPTIM_THREADS * N)
        mo_step32_pack<RULE>(s, coef, at, mo_pack_rest<N>(s->count, at), &aligned);
}

/* bf16 states of a rule with two moments. */
template <uint32_t RULE>
MO_DEVICE void mo_step16_pack(const mo_optim_span *s, const mo_rule_coef *coef, uint64_t at,
                              uint32_t rest, const mo_span_aligned *aligned, uint32_t key)
{
    enum { N = 8 };
    float m[N], v[N], none[N] = {0};
    uint32_t m_codes[N], v_codes[N];
    mo_pack_range range;
    mo_load_pack<N>(s->m, at, rest, MO_DTYPE_BF16, aligned->m, m);
    mo_load_pack<N>(s->v, at, rest, MO_DTYPE_BF16, aligned->v, v);
    int any_nan = mo_update_pack<RULE, N, 0>(s, coef, at, rest, aligned, m, v, none, &range);
    mo_plain_nan<RULE, N>(any_nan, m, v, none);
    MO_UNROLL
    for (int k = 0; k < N; k++) {
        mo_moment_codes codes = mo_moment_codes_of(m[k], v[k], key);
        m_codes[k] = codes.m;
        v_codes[k] = codes.v;
    }
    mo_write_pack<N, 0, 2>(s->m, at, rest, 2, aligned->m, m_codes);
    mo_write_pack<N, 0, 2>(s->v, at, rest, 2, aligned->v, v_codes);
}

template <uint32_t RULE>
MO_DEVICE void mo_step16(const mo_optim_span *s, const mo_rule_coef *coef, uint32_t from)
{
    enum { N = 8 };
    mo_span_aligned aligned = mo_span_alignment<N, MO_STATE_BF16>(s);
    uint32_t key = mo_moment_key(coef->step);
    uint64_t at = from + (uint64_t)mo_thread_index() * N;
    for (; at < s->count; at += MO_OPTIM_THREADS * N)
        mo_step16_pack<RULE>(s, coef, at, mo_pack_rest<N>(s->count, at), &aligned, key);
}

/* 256 elements for each group. Groups past the end have no elements (rest 0): every thread of a
 * warp must reach the reductions. */
template <uint32_t RULE, uint32_t FORMAT>
MO_DEVICE void mo_step_block(const mo_optim_span *s, const mo_rule_coef *coef,
                             const typename mo_codec<FORMAT>::tables *tables,
                             const mo_span_aligned *aligned, uint32_t block)
{
    enum { N = 8 };
    uint32_t at = block * MO_BLOCK_SIZE + mo_thread_index() % MO_LANES * N;
    uint32_t rest = mo_pack_rest<N>(s->count, at);
    mo_pack_range range = {0, 0, 0, 0};
    float m[N], v[N], slow[N]; /* not used where there are no elements */
    if (rest > 0) {
        mo_decode_block<FORMAT>(tables, mo_rule_first_signed(RULE), s->m, s->absmax1, at, rest,
                                aligned->m, m);
        if (mo_rule_has_second(RULE))
            mo_decode_block<FORMAT>(tables, 0, s->v, s->absmax2, at, rest, aligned->v, v);
        if (mo_rule_has_slow(RULE))
            mo_decode_block<FORMAT>(tables, 1, s->slow, s->slow_absmax, at, rest, aligned->slow,
                                    slow);
        mo_update_pack<RULE, N, 1>(s, coef, at, rest, aligned, m, v, slow, &range);
    }
    uint32_t absmax1 = mo_block_largest<FORMAT>(range.largest_m), absmax2 = 0, slow_absmax = 0;
    if (mo_rule_has_second(RULE))
        absmax2 = mo_block_largest<FORMAT>(range.largest_v);
    if (mo_rule_has_slow(RULE))
        slow_absmax = mo_block_largest<FORMAT>(range.largest_slow);
    if (rest == 0)
        return;
    mo_encode_block<FORMAT>(tables, mo_rule_first_signed(RULE), m, absmax1,
                            mo_rule_first_signed(RULE) ? 0 : mo_least<N>(m), at, rest, aligned->m,
                            s->m, s->absmax1);
    if (mo_rule_has_second(RULE))
        mo_encode_block<FORMAT>(tables, 0, v, absmax2, range.least_v, at, rest, aligned->v, s->v,
                                s->absmax2);
    if (mo_rule_has_slow(RULE))
        mo_encode_block<FORMAT>(tables, MO_SLOW, slow, slow_absmax, 0, at, rest, aligned->slow,
                                s->slow, s->slow_absmax);
}

#include "kernels/optim/step_whole_gpu.h"

/* States without scales. WHOLE: by whole blocks, where it may. */
template <uint32_t RULE, uint32_t FORMAT, int WHOLE>
MO_DEVICE void mo_step_plain(const mo_optim_span *span)
{
    mo_rule_coef coef = span->coef;
    uint32_t done = 0;
    if constexpr (WHOLE)
        done = mo_step_classes<RULE, FORMAT>(span, &coef, 0) * MO_BLOCK_SIZE;
    if (done >= span->count)
        return;
    mo_barrier(); /* what follows is read anew: kept, it would take the loop's registers */
    coef = span->coef;
    if (FORMAT == MO_STATE_BF16)
        mo_step16<RULE>(span, &coef, done);
    else
        mo_step32<RULE>(span, &coef, done);
}

template <uint32_t RULE, uint32_t FORMAT>
MO_DEVICE void mo_step_chunk(const mo_optim_step_args &args, uint64_t chunk, mo_optim_span *span,
                             typename mo_codec<FORMAT>::tables *tables)
{
    if (args.control->skip)
        return;
    if (mo_thread_index() == 0)
        mo_optim_span_of(&args, chunk, span);
    mo_barrier();
    if (!span->absmax1) { /* most of an optimizer's are the kernel's of steps.def: by whole blocks */
        mo_step_plain<RULE, MO_STATE_F32, FORMAT == MO_STATE_8BIT && RULE != MO_RULE_ADAMW>(span);
        return;
    }
    mo_rule_coef coef = span->coef;
    mo_codec<FORMAT>::load(tables);
    mo_barrier();
    uint32_t blocks = (uint32_t)((span->count + MO_BLOCK_SIZE - 1) / MO_BLOCK_SIZE);
    uint32_t done = mo_step_classes<RULE, FORMAT>(span, &coef, tables);
    if (done >= blocks)
        return;
    mo_barrier(); /* what follows is read anew: kept, it would take the loop's registers */
    coef = span->coef;
    mo_span_aligned aligned = mo_span_alignment<8, FORMAT>(span);
    for (uint32_t block = done; block < blocks; block += MO_OPTIM_GROUPS)
        mo_step_block<RULE, FORMAT>(span, &coef, tables, &aligned,
                                    block + mo_thread_index() / MO_LANES);
}

/* Blocks of a multiprocessor for which registers suffice: three moments take more than two, and so
 * do tables but on sm_90. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
#define MO_STEP_ROOM(rule, format) (rule == MO_RULE_ADEMAMIX || format == MO_STATE_8BIT ? 2 : 3)
#else
#define MO_STEP_ROOM(rule, format) (rule == MO_RULE_ADEMAMIX ? 2 : 3)
#endif

#define MO_STEP_KERNEL(name, rule, format)                                                         \
    MO_GLOBAL_ROOM(name, mo_optim_step_args, MO_OPTIM_THREADS, MO_STEP_ROOM(rule, format))         \
    {                                                                                              \
        MO_SHARED(mo_optim_span, span);                                                            \
        MO_SHARED(mo_codec<format>::tables, tables);                                               \
        mo_step_chunk<rule, format>(args, first_item + mo_block_index(), &span, &tables);          \
    }

MO_STEP_KERNEL(mo_step_adamw8, MO_RULE_ADAMW, MO_STATE_8BIT)
MO_STEP_KERNEL(mo_step_adamwc8, MO_RULE_ADAMW, MO_STATE_COMPANDED)
MO_STEP_KERNEL(mo_step_adamwc4, MO_RULE_ADAMW, MO_STATE_COMPANDED4)
MO_STEP_KERNEL(mo_step_lion8, MO_RULE_LION, MO_STATE_8BIT)
MO_STEP_KERNEL(mo_step_sgd8, MO_RULE_SGD, MO_STATE_8BIT)
MO_STEP_KERNEL(mo_step_adam8, MO_RULE_ADAM, MO_STATE_8BIT)
MO_STEP_KERNEL(mo_step_rmsprop8, MO_RULE_RMSPROP, MO_STATE_8BIT)
MO_STEP_KERNEL(mo_step_rmspropm8, MO_RULE_RMSPROP_MOMENTUM, MO_STATE_8BIT)
MO_STEP_KERNEL(mo_step_ademamix8, MO_RULE_ADEMAMIX, MO_STATE_8BIT)
MO_STEP_KERNEL(mo_step_lionc8, MO_RULE_LION, MO_STATE_COMPANDED)
MO_STEP_KERNEL(mo_step_sgdc8, MO_RULE_SGD, MO_STATE_COMPANDED)
MO_STEP_KERNEL(mo_step_adamc8, MO_RULE_ADAM, MO_STATE_COMPANDED)
MO_STEP_KERNEL(mo_step_rmspropc8, MO_RULE_RMSPROP, MO_STATE_COMPANDED)
MO_STEP_KERNEL(mo_step_rmspropmc8, MO_RULE_RMSPROP_MOMENTUM, MO_STATE_COMPANDED)
MO_STEP_KERNEL(mo_step_ademamixc8, MO_RULE_ADEMAMIX, MO_STATE_COMPANDED)

/* A chunk with states that have no scales. */
template <uint32_t RULE, uint32_t FORMAT>
MO_DEVICE void mo_step_plain_chunk(const mo_optim_step_args &args, uint64_t chunk,
                                   mo_optim_span *span)
{
    if (args.control->skip)
        return;
    if (mo_thread_index() == 0)
        mo_optim_span_of(&args, chunk, span);
    mo_barrier();
    if (FORMAT == MO_STATE_BF16 && span->format == MO_STATE_BF16)
        mo_step_plain<RULE, MO_STATE_BF16, 1>(span);
    else
        mo_step_plain<RULE, MO_STATE_F32, 1>(span);
}

#define MO_STEP_PLAIN_KERNEL(name, rule, format)                                                   \
    MO_GLOBAL_ROOM(name, mo_optim_step_args, MO_OPTIM_THREADS, 2)                                  \
    {                                                                                              \
        MO_SHARED(mo_optim_span, span);                                                            \
        mo_step_plain_chunk<rule, format>(args, first_item + mo_block_index(), &span);             \
    }

MO_STEP_PLAIN_KERNEL(mo_step_adamw16, MO_RULE_ADAMW, MO_STATE_BF16)
MO_STEP_PLAIN_KERNEL(mo_step_schedule_free, MO_RULE_SCHEDULE_FREE, MO_STATE_F32)

/* --- before the step ------------------------------------------------------------------------- */

MO_GLOBAL(mo_optim_upload, mo_optim_upload_args, MO_OPTIM_THREADS)
{
    unsigned char *destination = (unsigned char *)args.destination;
    uint32_t bytes = (uint32_t)args.bytes, words = 0;
    (void)first_item;
    if (mo_aligned_to(destination, 4)) {
        words = bytes / 4;
        const uint32_t *payload = (const uint32_t *)(const void *)args.payload;
        for (uint32_t w = mo_thread_index(); w < words; w += MO_OPTIM_THREADS)
            ((uint32_t *)(void *)destination)[w] = payload[w];
    }
    for (uint32_t i = words * 4 + mo_thread_index(); i < bytes; i += MO_OPTIM_THREADS)
        destination[i] = args.payload[i];
}

MO_GLOBAL(mo_optim_prologue, mo_optim_prologue_args, MO_OPTIM_THREADS)
{
    MO_SHARED(double, factor);
    (void)first_item;
    if (mo_thread_index() == 0)
        factor = mo_optim_verdict(&args);
    mo_barrier();
    for (uint32_t i = mo_thread_index(); i < args.count; i += MO_OPTIM_THREADS)
        mo_optim_prepare(&args, i, factor);
}

/* --- block-wise codes on their own ----------------------------------------------------------- */

/* A chunk of them: pointers are to its first element. */
template <uint32_t FORMAT>
MO_DEVICE mo_blockcode_args mo_blockcode_chunk(const mo_blockcode_args &args, uint64_t chunk)
{
    uint64_t start = chunk * MO_CHUNK_ELEMENTS;
    mo_blockcode_args part = args;
    part.values = mo_element_at(args.values, start, args.dtype);
    part.codes = args.codes + mo_format_bytes(FORMAT, start);
    part.absmax = args.absmax + start / mo_format_block(FORMAT);
    part.count = mo_chunk_length(args.count, chunk);
    return part;
}

/* 256 elements of a chunk for each group. Every thread of a warp must reach the reduction; those
 * past the end have no elements. */
template <uint32_t FORMAT>
MO_DEVICE void mo_quantize_group(const mo_blockcode_args &args,
                                 const typename mo_codec<FORMAT>::tables *tables, uint32_t group,
                                 int values_aligned, int codes_aligned)
{
    enum { N = 8 };
    uint32_t at = group * MO_BLOCK_SIZE + mo_thread_index() % MO_LANES * N;
    uint32_t rest = mo_pack_rest<N>(args.count, at);
    float values[N] = {0};
    uint32_t largest = 0;
    if (rest > 0) {
        mo_load_pack<N>(args.values, at, rest, (uint32_t)args.dtype, values_aligned, values);
        largest = mo_largest<N>(values);
        MO_UNROLL
        for (int k = 0; k < N && !args.is_signed; k++)
            values[k] = mo_at_least(values[k], 0.0f); /* where their codes are the same */
    }
    largest = mo_block_largest<FORMAT>(largest);
    if (rest > 0)
        mo_encode_block<FORMAT>(tables, args.is_signed != 0, values, largest, mo_least<N>(values),
                                at, rest, codes_aligned, args.codes, args.absmax);
}

template <uint32_t FORMAT>
MO_DEVICE void mo_quantize_chunk(const mo_blockcode_args &args, uint64_t chunk,
                                 typename mo_codec<FORMAT>::tables *tables)
{
    mo_codec<FORMAT>::load(tables);
    mo_barrier();
    int values_aligned = mo_pack_aligned<8>(args.values, (uint32_t)args.dtype);
    int codes_aligned = mo_codes_aligned<FORMAT>(args.codes);
    mo_blockcode_args part = mo_blockcode_chunk<FORMAT>(args, chunk);
    for (uint32_t b = 0; b < MO_CHUNK_BLOCKS; b += MO_OPTIM_GROUPS)
        mo_quantize_group<FORMAT>(part, tables, b + mo_thread_index() / MO_LANES, values_aligned,
                                  codes_aligned);
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
    if (MO_RARE(mo_any_nan<N>(values)))
        mo_one_nan<N>(values);
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
    mo_blockcode_args part = mo_blockcode_chunk<FORMAT>(args, chunk);
    for (uint64_t at = (uint64_t)mo_thread_index() * N; at < part.count; at += MO_OPTIM_THREADS * N)
        mo_dequantize_pack<FORMAT>(part, tables, at, mo_pack_rest<N>(part.count, at),
                                   values_aligned, codes_aligned);
}

#define MO_CODE_KERNEL(name, function, format)                                                     \
    MO_GLOBAL(name, mo_blockcode_args, MO_OPTIM_THREADS)                                           \
    {                                                                                              \
        MO_SHARED(mo_codec<format>::tables, tables);                                               \
        function<format>(args, first_item + mo_block_index(), &tables);                            \
    }

MO_CODE_KERNEL(mo_quantize8, mo_quantize_chunk, MO_STATE_8BIT)
MO_CODE_KERNEL(mo_dequantize8, mo_dequantize_chunk, MO_STATE_8BIT)
MO_CODE_KERNEL(mo_quantizec8, mo_quantize_chunk, MO_STATE_COMPANDED)
MO_CODE_KERNEL(mo_quantizec4, mo_quantize_chunk, MO_STATE_COMPANDED4)
MO_CODE_KERNEL(mo_dequantizec8, mo_dequantize_chunk, MO_STATE_COMPANDED)
MO_CODE_KERNEL(mo_dequantizec4, mo_dequantize_chunk, MO_STATE_COMPANDED4)
