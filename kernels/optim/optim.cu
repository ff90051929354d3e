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

/* Which of a span's tensors may travel as vectors. */
typedef struct mo_span_aligned {
    int parameter, copy, gradient, residual, states;
} mo_span_aligned;

template <uint32_t FORMAT> MO_DEVICE int mo_moment_aligned(const void *moment)
{
    return mo_format_has_scales(FORMAT) ? mo_codes_aligned<FORMAT>(moment)
                                        : mo_aligned_to(moment, 16);
}

template <uint32_t RULE, uint32_t FORMAT>
MO_DEVICE mo_span_aligned mo_span_alignment(const mo_optim_span *s)
{
    mo_span_aligned a;
    a.parameter = mo_pack_aligned<8>(s->parameter, mo_type_of_parameter(s));
    a.copy = mo_copy_of(s) && mo_pack_aligned<8>(mo_copy_of(s), mo_type_of_copy(s));
    a.gradient = mo_pack_aligned<8>(s->gradient, mo_type_of_gradient(s));
    a.residual = mo_aligned_to(mo_residual_of(s), 8 * s->residual_bytes);
    a.states = mo_moment_aligned<FORMAT>(s->m) &&
               (!mo_rule_has_second(RULE) || mo_moment_aligned<FORMAT>(s->v)) &&
               (!mo_rule_has_slow(RULE) || mo_moment_aligned<FORMAT>(s->slow));
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

/* mo_optim_store for a pack: one loop over the copy and the parameters, as the code is the same. */
template <int N>
MO_DEVICE void mo_store_parameters(const mo_optim_span *s, uint32_t at, uint32_t rest,
                                   const mo_span_aligned *aligned, const float values[N],
                                   int any_nan)
{
    const uint32_t last = mo_residual_of(s) ? 1 : 2;
    MO_ROLLED
    for (uint32_t i = mo_copy_of(s) ? 0 : 1; i < last; i++) {
        uint32_t dtype = i == 0 ? mo_type_of_copy(s) : mo_type_of_parameter(s), codes[N];
        if (i == 1 && mo_is_stochastic(s) && dtype != MO_DTYPE_F32) {
            uint32_t random[4];
            mo_random_block(&s->random, (s->start + at) / 8, random);
            MO_BY_FLOAT(dtype, mo_dither_values, values, 0, random, 0u, codes);
        } else {
            MO_BY_FLOAT(dtype, mo_encode_known, values, any_nan, codes);
        }
        mo_write_pack<N, 0, 2>(i == 0 ? mo_copy_of(s) : s->parameter, at, rest,
                               mo_element_size(dtype), i == 0 ? aligned->copy : aligned->parameter,
                               codes);
    }
    if (MO_RARE(mo_residual_of(s) != 0))
        mo_store_split<N>(s, at, rest, aligned, values);
}

/* Updates the pack at `at` of m, v and slow in registers, and of the parameters in memory. Returns 0 if
 * none of the parameters is NaN. */
template <uint32_t RULE>
MO_DEVICE int mo_update_pack(const mo_optim_span *s, const mo_rule_coef *coef, uint32_t at,
                             uint32_t rest, const mo_span_aligned *aligned, float m[8], float v[8],
                             float slow[8])
{
    enum { N = 8 };
    float g[N], p[N];
    mo_load_pack<N>(s->gradient, at, rest, mo_type_of_gradient(s), aligned->gradient, g);
    mo_load_pack<N>(s->parameter, at, rest, mo_type_of_parameter(s), aligned->parameter, p);
    if (MO_RARE(mo_residual_of(s) != 0))
        mo_join_weights<N>(s, at, rest, aligned->residual, p);
    MO_UNROLL
    for (int k = 0; k < N; k++)
        p[k] = mo_rule_update_raw(RULE, coef, g[k], p[k], &m[k], &v[k], &slow[k]);
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

/* Values of a moment. Past the end they are 0; they stay so in a step, which has gradients and
 * parameters of 0 there. `plain`: 32-bit states of a kernel for others. */
template <uint32_t FORMAT>
MO_DEVICE void mo_read_moment(const typename mo_codec<FORMAT>::tables *tables, int plain,
                              int is_signed, const void *data, const float *scales, uint32_t at,
                              uint32_t rest, int aligned, float values[8])
{
    if constexpr (mo_format_has_scales(FORMAT)) {
        if (!plain) {
            mo_decode_block<FORMAT>(tables, is_signed, data, scales, at, rest, aligned, values);
            return;
        }
    }
    uint32_t dtype = FORMAT == MO_STATE_BF16 && !plain ? MO_DTYPE_BF16 : MO_DTYPE_F32;
    mo_load_pack<8>(data, at, rest, dtype, aligned, values);
}

/* Writes a pack of moments that are stored as they are. */
template <uint32_t RULE>
MO_DEVICE void mo_write_f32(const mo_optim_span *s, uint32_t at, uint32_t rest, int aligned,
                            const float m[8], const float v[8], const float slow[8])
{
    if (s->m)
        mo_store_pack<8>(s->m, at, rest, MO_DTYPE_F32, aligned, m);
    if (mo_rule_has_second(RULE))
        mo_store_pack<8>(s->v, at, rest, MO_DTYPE_F32, aligned, v);
    if (mo_rule_has_slow(RULE))
        mo_store_pack<8>(s->slow, at, rest, MO_DTYPE_F32, aligned, slow);
}

/* ... as bf16, of a rule with two. */
MO_DEVICE void mo_write_bf16(const mo_optim_span *s, uint64_t step, uint32_t at, uint32_t rest,
                             int aligned, const float m[8], const float v[8])
{
    uint32_t m_codes[8], v_codes[8];
    MO_UNROLL
    for (int k = 0; k < 8; k++) {
        mo_moment_codes codes = mo_moment_codes_of(m[k], v[k], mo_moment_key(step));
        m_codes[k] = codes.m;
        v_codes[k] = codes.v;
    }
    mo_write_pack<8, 0, 2>(s->m, at, rest, 2, aligned, m_codes);
    mo_write_pack<8, 0, 2>(s->v, at, rest, 2, aligned, v_codes);
}

/* ... and as codes. All threads of a warp must call this. */
template <uint32_t RULE, uint32_t FORMAT>
MO_DEVICE void mo_write_codes_of(const mo_optim_span *s,
                                 const typename mo_codec<FORMAT>::tables *tables, uint32_t at,
                                 uint32_t rest, int aligned, float m[8], float v[8], float slow[8])
{
    const int is_signed = mo_rule_first_signed(RULE);
    uint32_t largest[3] = {mo_block_largest<FORMAT>(mo_largest<8>(m)), 0, 0};
    if (mo_rule_has_second(RULE))
        largest[1] = mo_block_largest<FORMAT>(mo_largest<8>(v));
    if (mo_rule_has_slow(RULE))
        largest[2] = mo_block_largest<FORMAT>(mo_largest<8>(slow));
    if (rest == 0)
        return;
    mo_encode_block<FORMAT>(tables, is_signed, m, largest[0], is_signed ? 0 : mo_least<8>(m), at,
                            rest, aligned, s->m, s->absmax1);
    if (mo_rule_has_second(RULE))
        mo_encode_block<FORMAT>(tables, 0, v, largest[1], mo_least<8>(v), at, rest, aligned, s->v,
                                s->absmax2);
    if (mo_rule_has_slow(RULE))
        mo_encode_block<FORMAT>(tables, MO_SLOW, slow, largest[2], 0, at, rest, aligned, s->slow,
                                s->slow_absmax);
}

/* The eight elements at `at`, of which `rest` exist. Threads without any (rest 0) take part too. */
template <uint32_t RULE, uint32_t FORMAT>
MO_DEVICE void mo_step_pack(const mo_optim_span *s, const mo_rule_coef *coef,
                            const typename mo_codec<FORMAT>::tables *tables, int plain,
                            const mo_span_aligned *aligned, uint32_t at, uint32_t rest)
{
    enum { N = 8 };
    float m[N] = {0}, v[N] = {0}, slow[N] = {0};
    int any_nan = 0;
    if (rest > 0) {
        if (s->m)
            mo_read_moment<FORMAT>(tables, plain, mo_rule_first_signed(RULE), s->m, s->absmax1, at,
                                   rest, aligned->states, m);
        if (mo_rule_has_second(RULE))
            mo_read_moment<FORMAT>(tables, plain, 0, s->v, s->absmax2, at, rest, aligned->states,
                                   v);
        if (mo_rule_has_slow(RULE))
            mo_read_moment<FORMAT>(tables, plain, 1, s->slow, s->slow_absmax, at, rest,
                                   aligned->states, slow);
        any_nan = mo_update_pack<RULE>(s, coef, at, rest, aligned, m, v, slow);
    }
    if constexpr (mo_format_has_scales(FORMAT)) {
        if (!plain) {
            mo_write_codes_of<RULE, FORMAT>(s, tables, at, rest, aligned->states, m, v, slow);
            return;
        }
    }
    mo_plain_nan<RULE, N>(any_nan, m, v, slow);
    if (FORMAT == MO_STATE_BF16 && !plain)
        mo_write_bf16(s, coef->step, at, rest, aligned->states, m, v);
    else
        mo_write_f32<RULE>(s, at, rest, aligned->states, m, v, slow);
}

#include "kernels/optim/step_whole_gpu.h"

/* The general form: the blocks of a chunk from `done` on, and those left before. 256 elements for each
 * group. */
template <uint32_t RULE, uint32_t FORMAT>
MO_DEVICE void mo_step_rest(const mo_optim_span *s, const mo_left_blocks *left,
                            const typename mo_codec<FORMAT>::tables *tables, int plain,
                            uint32_t first, uint32_t done)
{
    const mo_rule_coef coef = s->coef;
    mo_span_aligned aligned = mo_span_alignment<RULE, FORMAT>(s);
    if (plain)
        aligned.states = mo_span_alignment<RULE, MO_STATE_F32>(s).states;
    MO_ROLLED
    for (; first * MO_BLOCK_SIZE < s->count; first += MO_OPTIM_GROUPS) {
        uint32_t block = first + mo_thread_index() / MO_LANES;
        uint32_t at = block * MO_BLOCK_SIZE + mo_thread_index() % MO_LANES * 8;
        uint32_t rest = block >= done || left->of[block] ? mo_pack_rest<8>(s->count, at) : 0;
        mo_step_pack<RULE, FORMAT>(s, &coef, tables, plain, &aligned, at, rest);
    }
}

/* A chunk of a tensor whose states are of the format or, whatever that is, of 32 bits. WHOLE: these
 * are done by whole blocks too, where they may: most of an optimizer's states of 32 bits are for the
 * kernel of steps.def. */
template <uint32_t RULE, uint32_t FORMAT, int WHOLE>
MO_DEVICE void mo_step_chunk(const mo_optim_step_args &args, uint64_t chunk, mo_optim_span *span,
                             mo_left_blocks *left, typename mo_codec<FORMAT>::tables *tables)
{
    uint32_t done = 0;
    if (args.control->skip)
        return;
    mo_left_begin(left);
    if (mo_thread_index() == 0)
        mo_optim_span_of(&args, chunk, span);
    mo_barrier();
    int plain = mo_format_has_scales(FORMAT) ? span->absmax1 == 0 : span->format != FORMAT;
    if (!plain) {
        mo_codec<FORMAT>::load(tables);
        mo_barrier();
        done = mo_step_classes<RULE, FORMAT>(span, left, tables);
    } else if constexpr (WHOLE) {
        done = mo_step_classes<RULE, MO_STATE_F32>(span, left, 0);
    }
    mo_barrier(); /* what follows is read anew: kept, it would take the loops' registers */
    uint32_t first = mo_left_any(left) ? 0 : done - done % MO_OPTIM_GROUPS;
    if (first < done || done * MO_BLOCK_SIZE < span->count)
        mo_step_rest<RULE, FORMAT>(span, left, tables, plain, first, done);
}

/* Blocks of a multiprocessor for which registers suffice: three moments take more than two, and so do
 * states without codes, and tables but AdamW's. */
#define MO_STEP_ROOM(rule, format)                                                                 \
    (rule == MO_RULE_ADEMAMIX || !mo_format_has_scales(format) ||                                  \
             (format == MO_STATE_8BIT && rule != MO_RULE_ADAMW)                                    \
         ? 2                                                                                       \
         : 3)

#define MO_STEP_KERNEL(name, rule, format, whole)                                                  \
    MO_GLOBAL_ROOM(name, mo_optim_step_args, MO_OPTIM_THREADS, MO_STEP_ROOM(rule, format))         \
    {                                                                                              \
        MO_SHARED(mo_optim_span, span);                                                            \
        MO_SHARED(mo_left_blocks, left);                                                           \
        MO_SHARED(mo_codec<format>::tables, tables);                                               \
        mo_step_chunk<rule, format, whole>(args, first_item + mo_block_index(), &span, &left,      \
                                           &tables);                                               \
    }

MO_STEP_KERNEL(mo_step_adamw8, MO_RULE_ADAMW, MO_STATE_8BIT, 0)
MO_STEP_KERNEL(mo_step_adamwc8, MO_RULE_ADAMW, MO_STATE_COMPANDED, 0)
MO_STEP_KERNEL(mo_step_adamwc4, MO_RULE_ADAMW, MO_STATE_COMPANDED4, 0)
MO_STEP_KERNEL(mo_step_lion8, MO_RULE_LION, MO_STATE_8BIT, 1)
MO_STEP_KERNEL(mo_step_sgd8, MO_RULE_SGD, MO_STATE_8BIT, 1)
MO_STEP_KERNEL(mo_step_adam8, MO_RULE_ADAM, MO_STATE_8BIT, 1)
MO_STEP_KERNEL(mo_step_rmsprop8, MO_RULE_RMSPROP, MO_STATE_8BIT, 1)
MO_STEP_KERNEL(mo_step_rmspropm8, MO_RULE_RMSPROP_MOMENTUM, MO_STATE_8BIT, 1)
MO_STEP_KERNEL(mo_step_ademamix8, MO_RULE_ADEMAMIX, MO_STATE_8BIT, 1)
MO_STEP_KERNEL(mo_step_lionc8, MO_RULE_LION, MO_STATE_COMPANDED, 0)
MO_STEP_KERNEL(mo_step_sgdc8, MO_RULE_SGD, MO_STATE_COMPANDED, 0)
MO_STEP_KERNEL(mo_step_adamc8, MO_RULE_ADAM, MO_STATE_COMPANDED, 0)
MO_STEP_KERNEL(mo_step_rmspropc8, MO_RULE_RMSPROP, MO_STATE_COMPANDED, 0)
MO_STEP_KERNEL(mo_step_rmspropmc8, MO_RULE_RMSPROP_MOMENTUM, MO_STATE_COMPANDED, 0)
MO_STEP_KERNEL(mo_step_ademamixc8, MO_RULE_ADEMAMIX, MO_STATE_COMPANDED, 0)
MO_STEP_KERNEL(mo_step_adamw16, MO_RULE_ADAMW, MO_STATE_BF16, 1)
MO_STEP_KERNEL(mo_step_schedule_free, MO_RULE_SCHEDULE_FREE, MO_STATE_F32, 0)

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
