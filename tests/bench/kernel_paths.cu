/*
 * The main path of each GPU kernel, on its own, for kernel_report.py to count the instructions of:
 * aligned whole packs of types known beforehand, in a row without branches. Every path exists with
 * PACKS of 1 and of 3; the difference is two packs without what surrounds them. Appended to the one
 * text of the kernels.
 */
typedef decltype(mo_optim_span::coef) path_coef;

template <uint32_t FROM, uint32_t TO, int N, int STOCHASTIC, int PACKS>
MO_DEVICE void path_cast(const unsigned char *from, unsigned char *to, mo_random_stream stream)
{
    const uint32_t from_size = mo_element_size(FROM), to_size = mo_element_size(TO);
    MO_UNROLL
    for (int p = 0; p < PACKS; p++) {
        uint64_t at = (uint64_t)mo_thread_index() * N + p * 256 * N;
        uint32_t codes[N], random[4];
        float values[N];
        mo_read_pack<N>(from, at, N, from_size, 1, codes);
        mo_decode_codes<N, FROM>(codes, values);
        if (STOCHASTIC) {
            mo_random_block(&stream, at / 8, random);
            mo_dither_values<N, TO>(values, 1, random, 0, codes);
        } else {
            mo_encode_values<N, TO>(values, 1, codes);
        }
        mo_write_pack<N>(to, at, N, to_size, 1, codes);
    }
}

template <uint32_t DTYPE, int N, int PACKS>
MO_DEVICE void path_scale(unsigned char *data, float factor, float *flag)
{
    int found = 0;
    MO_UNROLL
    for (int p = 0; p < PACKS; p++)
        found |= mo_scale_pack<N>(data, (uint64_t)mo_thread_index() * N + p * 256 * N, N, DTYPE, 1,
                                  factor);
    if (found)
        mo_flag_raise(flag);
}

template <uint32_t DTYPE, int N, int PACKS>
MO_DEVICE void path_check(unsigned char *data, float *flag)
{
    int found = 0;
    MO_UNROLL
    for (int p = 0; p < PACKS; p++)
        found |= mo_check_pack<N>(data, (uint64_t)mo_thread_index() * N + p * 256 * N, N, DTYPE, 1);
    if (found)
        mo_flag_raise(flag);
}

template <uint32_t FROM, uint32_t TO, int N, int PACKS>
MO_DEVICE void path_accumulate(const unsigned char *from, unsigned char *to, float scale)
{
    MO_UNROLL
    for (int p = 0; p < PACKS; p++) {
        uint64_t at = (uint64_t)mo_thread_index() * N + p * 256 * N;
        float values[N], sums[N];
        mo_load_pack<N>(from, at, N, FROM, 1, values);
        mo_load_pack<N>(to, at, N, TO, 1, sums);
        MO_UNROLL
        for (int k = 0; k < N; k++)
            sums[k] = mo_accumulate_element(sums[k], values[k], scale);
        mo_store_pack<N>(to, at, N, TO, 1, sums);
    }
}

template <int PACKS> MO_DEVICE void path_hash(const unsigned char *data, uint64_t *to)
{
    uint64_t sum = 0;
    MO_UNROLL
    for (int p = 0; p < PACKS; p++)
        sum += mo_hash_pair(data, mo_thread_index() + p * 128);
    *to = sum;
}

template <uint32_t DTYPE, int PACKS>
MO_DEVICE void path_squares(const unsigned char *data, double *to)
{
    double sum = 0;
    uint32_t codes[PACKS];
    MO_UNROLL
    for (int p = 0; p < PACKS; p++)
        codes[p] = mo_read_code(data, mo_thread_index() + p * 32, mo_element_size(DTYPE));
    MO_UNROLL
    for (int p = 0; p < PACKS; p++) {
        double value = (double)mo_decode_as<DTYPE>(codes[p]);
        sum += value * value;
    }
    *to = sum;
}

/* Nothing is in the tables here: the compiler must not know. */
MO_DEVICE void path_written(void *tables)
{
    asm volatile("" ::"l"(tables) : "memory");
}

/* A copy is of bf16. */
template <int P, int G, int COPY, int STATE, uint32_t FORMAT>
MO_DEVICE mo_optim_span path_span(const mo_optim_span *in)
{
    mo_optim_span span = *in;
    span.parameter_dtype = P;
    span.gradient_dtype = G;
    span.copy_dtype = MO_DTYPE_BF16;
    span.stochastic = 0;
    span.count = 16384;
    if (!mo_format_has_scales(FORMAT))
        span.absmax1 = 0;
    if (STATE)
        __builtin_assume(span.m != 0);
    else
        span.m = 0;
    if (COPY)
        __builtin_assume(span.copy != 0);
    else
        span.copy = 0;
    return span;
}

template <uint32_t RULE, uint32_t FORMAT, int P, int G, int COPY, int PACKS>
MO_DEVICE void path_step(const mo_optim_span *in)
{
    typedef typename mo_codec<FORMAT>::tables tables_of_format;
    MO_SHARED(tables_of_format, tables);
    path_written(&tables);
    mo_barrier();
    mo_optim_span span = path_span<P, G, COPY, 1, FORMAT>(in);
    path_coef coef = span.coef;
    mo_span_aligned aligned = {1, COPY, 1, 1, 1, 1, 0, 0, mo_near_rates_of(&coef)};
    MO_UNROLL
    for (uint32_t p = 0; p < PACKS; p++)
        mo_step_block<RULE, FORMAT>(&span, &coef, &tables, &aligned,
                                    p * MO_OPTIM_GROUPS + mo_thread_index() / MO_LANES);
}

template <uint32_t RULE, int STATE, int P, int G, int PACKS>
MO_DEVICE void path_step32(const mo_optim_span *in)
{
    mo_optim_span span = path_span<P, G, 0, STATE, MO_STATE_F32>(in);
    path_coef coef = span.coef;
    mo_span_aligned aligned = {1, 0, 1, 1, 1, 1, 0, 1, mo_near_rates_of(&coef)};
    MO_UNROLL
    for (uint32_t p = 0; p < PACKS; p++)
        mo_step32_pack<RULE>(&span, &coef, mo_thread_index() * 4 + p * 1024, 4, &aligned);
}

template <uint32_t RULE, int P, int G, int PACKS>
MO_DEVICE void path_step16(const mo_optim_span *in)
{
    mo_optim_span span = path_span<P, G, 0, 1, MO_STATE_BF16>(in);
    path_coef coef = span.coef;
    mo_span_aligned aligned = {1, 0, 1, 1, 1, 1, 0, 1, mo_near_rates_of(&coef)};
    MO_UNROLL
    for (uint32_t p = 0; p < PACKS; p++)
        mo_step16_pack<RULE>(&span, &coef, mo_thread_index() * 8 + p * 2048, 8, &aligned,
                             mo_moment_key(coef.step));
}

template <uint32_t FORMAT, uint32_t DTYPE, int SIGNED, int PACKS>
MO_DEVICE void path_quantize(mo_blockcode_args args)
{
    typedef typename mo_codec<FORMAT>::tables tables_of_format;
    MO_SHARED(tables_of_format, tables);
    path_written(&tables);
    mo_barrier();
    args.dtype = DTYPE;
    args.is_signed = SIGNED;
    args.count = 1 << 20;
    MO_UNROLL
    for (uint32_t p = 0; p < PACKS; p++)
        mo_quantize_group<FORMAT>(args, &tables, p * MO_OPTIM_GROUPS + mo_thread_index() / MO_LANES,
                                  1, 1);
}

template <uint32_t FORMAT, uint32_t DTYPE, int SIGNED, int PACKS>
MO_DEVICE void path_dequantize(mo_blockcode_args args)
{
    typedef typename mo_codec<FORMAT>::tables tables_of_format;
    MO_SHARED(tables_of_format, tables);
    path_written(&tables);
    mo_barrier();
    args.dtype = DTYPE;
    args.is_signed = SIGNED;
    MO_UNROLL
    for (uint32_t p = 0; p < PACKS; p++)
        mo_dequantize_pack<FORMAT>(args, &tables, mo_thread_index() * 8 + p * 2048, 8, 1, 1);
}

/* path_NAME_1 and path_NAME_3, of the call with PACKS in it. */
#define PATH(name, parameters, call1, call3)                                                       \
    extern "C" __global__ void __launch_bounds__(256, 1) path_##name##_1 parameters                \
    {                                                                                              \
        call1;                                                                                     \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(256, 1) path_##name##_3 parameters                \
    {                                                                                              \
        call3;                                                                                     \
    }
#define CAST(name, from, to, n, stochastic)                                                        \
    PATH(name, (const unsigned char *a, unsigned char *b, mo_random_stream s),                     \
         (path_cast<from, to, n, stochastic, 1>(a, b, s)),                                         \
         (path_cast<from, to, n, stochastic, 3>(a, b, s)))
#define SIMPLE(name, parameters, function, arguments, ...)                                         \
    PATH(name, parameters, (function<__VA_ARGS__, 1> arguments),                                   \
         (function<__VA_ARGS__, 3> arguments))

CAST(cast_f32_bf16, MO_DTYPE_F32, MO_DTYPE_BF16, 4, 0)
CAST(cast_f32_bf16_stochastic, MO_DTYPE_F32, MO_DTYPE_BF16, 8, 1)
CAST(cast_bf16_f32, MO_DTYPE_BF16, MO_DTYPE_F32, 4, 0)
CAST(cast_f32_f16, MO_DTYPE_F32, MO_DTYPE_F16, 4, 0)
CAST(cast_f16_f32, MO_DTYPE_F16, MO_DTYPE_F32, 4, 0)
CAST(cast_f32_e4m3, MO_DTYPE_F32, MO_DTYPE_F8_E4M3, 4, 0)
CAST(cast_bf16_e4m3, MO_DTYPE_BF16, MO_DTYPE_F8_E4M3, 8, 0)
CAST(cast_bf16_e5m2, MO_DTYPE_BF16, MO_DTYPE_F8_E5M2, 8, 0)
CAST(cast_e4m3_bf16, MO_DTYPE_F8_E4M3, MO_DTYPE_BF16, 8, 0)
#define ACCUMULATE(name, from, to, n)                                                              \
    SIMPLE(name, (const unsigned char *a, unsigned char *b, float c), path_accumulate, (a, b, c),  \
           from, to, n)
ACCUMULATE(accumulate_bf16_f32, MO_DTYPE_BF16, MO_DTYPE_F32, 4)
ACCUMULATE(accumulate_bf16_bf16, MO_DTYPE_BF16, MO_DTYPE_BF16, 8)
SIMPLE(scale_f32, (unsigned char *a, float b, float *c), path_scale, (a, b, c), MO_DTYPE_F32, 4)
SIMPLE(scale_bf16, (unsigned char *a, float b, float *c), path_scale, (a, b, c), MO_DTYPE_BF16, 8)
SIMPLE(scale_f16, (unsigned char *a, float b, float *c), path_scale, (a, b, c), MO_DTYPE_F16, 8)
SIMPLE(check_f32, (unsigned char *a, float *b), path_check, (a, b), MO_DTYPE_F32, 4)
SIMPLE(check_bf16, (unsigned char *a, float *b), path_check, (a, b), MO_DTYPE_BF16, 8)
PATH(hash, (const unsigned char *a, uint64_t *b), path_hash<1>(a, b), path_hash<3>(a, b))
SIMPLE(squares_f32, (const unsigned char *a, double *b), path_squares, (a, b), MO_DTYPE_F32)
SIMPLE(squares_bf16, (const unsigned char *a, double *b), path_squares, (a, b), MO_DTYPE_BF16)
#define STEP(name, rule, format, type)                                                             \
    SIMPLE(name, (const mo_optim_span *a), path_step, (a), rule, format, type, type, 0)
#define STEP32(name, rule, state, type)                                                            \
    SIMPLE(name, (const mo_optim_span *a), path_step32, (a), rule, state, type, type)
#define CODE(name, path, format, is_signed)                                                        \
    SIMPLE(name, (mo_blockcode_args a), path, (a), format, MO_DTYPE_F32, is_signed)

STEP(step8_bf16, MO_RULE_ADAMW, MO_STATE_8BIT, MO_DTYPE_BF16)
STEP(step8_f32, MO_RULE_ADAMW, MO_STATE_8BIT, MO_DTYPE_F32)
SIMPLE(step8_master, (const mo_optim_span *a), path_step, (a), MO_RULE_ADAMW, MO_STATE_8BIT,
       MO_DTYPE_F32, MO_DTYPE_BF16, 1)
STEP(step4_bf16, MO_RULE_ADAMW, MO_STATE_4BIT, MO_DTYPE_BF16)
STEP(step4_f32, MO_RULE_ADAMW, MO_STATE_4BIT, MO_DTYPE_F32)
STEP(stepf8_bf16, MO_RULE_ADAMW, MO_STATE_F8, MO_DTYPE_BF16)
STEP(stepf8_f32, MO_RULE_ADAMW, MO_STATE_F8, MO_DTYPE_F32)
STEP(stepc8_bf16, MO_RULE_ADAMW, MO_STATE_COMPANDED, MO_DTYPE_BF16)
STEP(stepc4_bf16, MO_RULE_ADAMW, MO_STATE_COMPANDED4, MO_DTYPE_BF16)
STEP(ademamix8_bf16, MO_RULE_ADEMAMIX, MO_STATE_8BIT, MO_DTYPE_BF16)
STEP(lion8_bf16, MO_RULE_LION, MO_STATE_8BIT, MO_DTYPE_BF16)
STEP(sgd8_bf16, MO_RULE_SGD, MO_STATE_8BIT, MO_DTYPE_BF16)
SIMPLE(step16_bf16, (const mo_optim_span *a), path_step16, (a), MO_RULE_ADAMW, MO_DTYPE_BF16,
       MO_DTYPE_BF16)
STEP32(step32_bf16, MO_RULE_ADAMW, 1, MO_DTYPE_BF16)
STEP32(step32_f32, MO_RULE_ADAMW, 1, MO_DTYPE_F32)
STEP32(schedule_free_f32, MO_RULE_SCHEDULE_FREE, 1, MO_DTYPE_F32)
STEP32(ademamix32_f32, MO_RULE_ADEMAMIX, 1, MO_DTYPE_F32)
STEP32(lion32_f32, MO_RULE_LION, 1, MO_DTYPE_F32)
STEP32(sgd32_f32, MO_RULE_SGD, 1, MO_DTYPE_F32)
STEP32(sgd_plain_f32, MO_RULE_SGD, 0, MO_DTYPE_F32)
CODE(quantize_signed, path_quantize, MO_STATE_8BIT, 1)
CODE(quantize_unsigned, path_quantize, MO_STATE_8BIT, 0)
CODE(dequantize, path_dequantize, MO_STATE_8BIT, 1)
CODE(quantize4_signed, path_quantize, MO_STATE_4BIT, 1)
CODE(quantize4_unsigned, path_quantize, MO_STATE_4BIT, 0)
CODE(dequantize4, path_dequantize, MO_STATE_4BIT, 1)
CODE(quantizef8_signed, path_quantize, MO_STATE_F8, 1)
CODE(quantizef8_unsigned, path_quantize, MO_STATE_F8, 0)
CODE(dequantizef8, path_dequantize, MO_STATE_F8, 1)
CODE(quantizec8_signed, path_quantize, MO_STATE_COMPANDED, 1)
CODE(quantizec8_unsigned, path_quantize, MO_STATE_COMPANDED, 0)
CODE(dequantizec8, path_dequantize, MO_STATE_COMPANDED, 1)
CODE(quantizec4_signed, path_quantize, MO_STATE_COMPANDED4, 1)
