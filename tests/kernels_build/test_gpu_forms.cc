/* The GPU forms, compiled for the host and run block by block, equal the scalar forms bit for bit:
 * every kernel, every type, ragged and unaligned tensors, tables in the arguments and in memory,
 * warps of 32 and of 64. */
#include "blocks.h"

#include "kernels/cast/cast.h"
#include "kernels/hash/hash.h"
#include "kernels/optim/optim_cpu.h"
#include "kernels/reduce/scale.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

namespace
{

typedef std::vector<unsigned char> Bytes;

uint32_t warp_size;
uint64_t random_state = 1;

uint64_t next_random()
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 32) ^ random_state << 20;
}

[[noreturn]] void fail(const char *what, uint64_t at)
{
    fprintf(stderr, "warps of %u: %s differ at %llu\n", warp_size, what, (unsigned long long)at);
    exit(1);
}

void same_bytes(const char *what, const void *expected, const void *actual, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (((const unsigned char *)expected)[i] != ((const unsigned char *)actual)[i])
            fail(what, i);
}

/* A value of a kind that shakes out mistakes; `wild` allows what is not finite. */
float datum(int wild)
{
    uint64_t r = next_random();
    float x = ((float)(r % 20001) - 10000.0f) / 3000.0f;
    switch (r >> 20 & 15) {
    case 0:
        return x * 0x1p-128f;
    case 1:
        return x * 0x1p-30f;
    case 2:
        return x * 0x1p13f;
    case 3:
        return r & 1 << 25 ? 0.0f : -0.0f;
    case 4:
        return wild ? (r & 1 << 25 ? INFINITY : -INFINITY) : x;
    case 5:
        return wild ? mo_f32_from_bits((uint32_t)next_random() | 0x7f800000u) : x;
    default:
        return x;
    }
}

void fill(void *data, uint64_t count, uint32_t dtype, int wild)
{
    for (uint64_t i = 0; i < count; i++) {
        if (mo_element_size(dtype) == 1)
            ((uint8_t *)data)[i] = (uint8_t)next_random();
        else
            mo_store_element(data, i, (int32_t)dtype, datum(wild));
    }
}

const uint64_t counts[] = {1, 16384 + 77, 255, 7, 16384, 300};
enum { TENSORS = 6, LARGEST = 16384 + 77 + 8 };

/* --- cast ------------------------------------------------------------------------------------ */

void check_cast(uint32_t from, uint32_t to, int stochastic, int saturate, int in_table)
{
    std::vector<Bytes> sources(TENSORS), expected(TENSORS), actual(TENSORS);
    mo_cast_args args[2];
    memset(args, 0, sizeof args);
    uint64_t chunks = 0;
    for (int form = 0; form < 2; form++) {
        mo_cast_args &a = args[form];
        a.seed = 99;
        a.sequence = 7;
        a.count = TENSORS;
        a.stochastic = (uint8_t)stochastic;
        a.saturate = (uint8_t)saturate;
        chunks = 0;
        for (uint32_t t = 0; t < TENSORS; t++) {
            if (form == 0) {
                sources[t].resize(LARGEST * 4);
                fill(sources[t].data(), LARGEST, from, 1);
                expected[t].assign(LARGEST * 4, 0xEE);
                actual[t] = expected[t];
            }
            uint32_t offset = t % 3;
            Bytes &destination = form == 0 ? expected[t] : actual[t];
            a.segments[t] = {sources[t].data() + offset * mo_element_size(from),
                             destination.data() + t % 2 * mo_element_size(to),
                             counts[t],
                             chunks,
                             t + 3,
                             (uint16_t)from,
                             (uint16_t)to};
            chunks += mo_chunks_of(counts[t]);
        }
    }
    std::vector<mo_cast_segment> table(args[1].segments, args[1].segments + TENSORS);
    if (in_table) {
        args[1].table = table.data();
        memset(args[1].segments, 0, sizeof args[1].segments);
    }
    mo_kernel_cast.cpu[0](&args[0], 0, chunks);
    blocks_run(&mo_kernel_cast, &args[1], chunks, warp_size);
    for (int t = 0; t < TENSORS; t++)
        same_bytes("casts", expected[t].data(), actual[t].data(), expected[t].size());
}

/* --- reductions and scale -------------------------------------------------------------------- */

struct Segments {
    std::vector<Bytes> data;
    std::vector<mo_tensor_segment> of;
    uint64_t chunks = 0;
};

Segments make_segments(int wild)
{
    Segments s;
    for (uint32_t t = 0; t < TENSORS; t++) {
        uint32_t dtype = t % 3 + 1;
        Bytes bytes(LARGEST * 4);
        fill(bytes.data(), LARGEST, dtype, wild && t == 4);
        s.data.push_back(bytes);
        s.of.push_back({nullptr, counts[t], s.chunks, dtype, 0});
        s.chunks += mo_chunks_of(counts[t]);
    }
    return s;
}

template <class ARGS> void use_segments(ARGS &args, Segments &s, int in_table)
{
    for (uint32_t t = 0; t < TENSORS; t++)
        s.of[t].data = s.data[t].data() + t % 2 * mo_element_size(s.of[t].dtype);
    args.count = TENSORS;
    if (in_table)
        args.table = s.of.data();
    else
        memcpy(args.segments, s.of.data(), TENSORS * sizeof(mo_tensor_segment));
}

void check_reduce(int wild, int in_table)
{
    Segments s = make_segments(wild);
    double sums[2][16] = {};
    float found[2] = {0.0f, 0.0f};
    for (int form = 0; form < 2; form++) {
        mo_reduce_args a;
        memset(&a, 0, sizeof a);
        use_segments(a, s, in_table);
        a.partials = sums[form];
        a.found_inf = &found[form];
        if (form == 0) {
            mo_kernel_square_sum.cpu[0](&a, 0, s.chunks);
            mo_kernel_check.cpu[0](&a, 0, s.chunks);
        } else {
            blocks_run(&mo_kernel_square_sum, &a, s.chunks, warp_size);
            blocks_run(&mo_kernel_check, &a, s.chunks, warp_size);
        }
    }
    for (uint64_t i = 0; i < s.chunks; i++)
        if (mo_f64_bits(sums[0][i]) != mo_f64_bits(sums[1][i]) && sums[0][i] == sums[0][i])
            fail("sums of squares", i);
    if (found[0] != found[1] || found[0] != (float)wild)
        fail("found_inf", 0);
}

void check_sum()
{
    for (uint64_t count : {1u, 31u, 1024u, 1025u, 3000u}) {
        std::vector<double> values(count);
        double sums[2][4] = {};
        for (double &value : values)
            value = (double)datum(0);
        mo_sum_args a = {values.data(), sums[0], count};
        mo_kernel_sum.cpu[0](&a, 0, (count + 1023) / 1024);
        a.destination = sums[1];
        blocks_run(&mo_kernel_sum, &a, (count + 1023) / 1024, warp_size);
        same_bytes("sums", sums[0], sums[1], sizeof sums[0]);
    }
}

void check_scale(int unscale, int wild, int in_table)
{
    Segments forms[2];
    forms[0] = make_segments(wild);
    forms[1] = forms[0];
    float scale = 3.0f, found[2] = {0.0f, 0.0f};
    for (int form = 0; form < 2; form++) {
        mo_scale_args a;
        memset(&a, 0, sizeof a);
        use_segments(a, forms[form], in_table);
        a.scale = unscale ? &scale : nullptr;
        a.factor = &scale;
        a.found_inf = &found[form];
        if (form == 0)
            mo_kernel_scale.cpu[0](&a, 0, forms[0].chunks);
        else
            blocks_run(&mo_kernel_scale, &a, forms[1].chunks, warp_size);
    }
    for (int t = 0; t < TENSORS; t++)
        same_bytes("scaled", forms[0].data[t].data(), forms[1].data[t].data(), LARGEST * 4);
    if (found[0] != found[1] || found[0] != (float)wild)
        fail("found_inf of scale", 0);
}

template <class ARGS> void run_one(int form, const mo_kernel &kernel, const ARGS &args)
{
    if (form == 0)
        kernel.cpu[0](&args, 0, 1);
    else
        blocks_run(&kernel, &args, 1, warp_size);
}

void check_scaler()
{
    struct {
        mo_scaler_block block;
        float norm, coefficient;
    } out[2];
    memset(out, 0, sizeof out);
    double sum = 12345.678;
    for (int form = 0; form < 2; form++) {
        mo_scaler_set_args set = {&out[form].block, 65536.0f, 5, 6, 1, 2.0, 0.5};
        mo_scaler_update_args update = {&out[form].block, 0, 0};
        mo_norm_args norm = {&sum, &out[form].norm, &out[form].coefficient, 1.5};
        run_one(form, mo_kernel_scaler_set, set);
        run_one(form, mo_kernel_scaler_update, update);
        run_one(form, mo_kernel_norm, norm);
    }
    same_bytes("scalers", &out[0], &out[1], sizeof out[0]);
    if (out[0].block.scale != 131072.0f)
        fail("scale", 0);
}

/* --- hash ------------------------------------------------------------------------------------ */

void check_hash()
{
    Bytes data(4096 * 3 + 64);
    for (unsigned char &byte : data)
        byte = (unsigned char)next_random();
    for (uint64_t offset : {0u, 1u, 8u, 16u})
        for (uint64_t bytes : {1u, 8u, 13u, 4095u, 4096u, 4097u, 3u * 4096u + 5u}) {
            uint64_t hashes[2][4] = {}, items = (bytes + 4095) / 4096;
            mo_hash_granules_args a = {data.data() + offset, hashes[0], bytes};
            mo_kernel_hash_granules.cpu[0](&a, 0, items);
            a.hashes = hashes[1];
            blocks_run(&mo_kernel_hash_granules, &a, items, warp_size);
            same_bytes("hashes", hashes[0], hashes[1], sizeof hashes[0]);
        }
    std::vector<uint64_t> first(1000, 5), second(1000, 5);
    for (uint64_t place : {1000u, 999u, 700u, 300u, 0u}) {
        if (place < 1000)
            second[place] = 6;
        uint64_t results[2][2];
        memset(results, 0xff, sizeof results);
        for (int form = 0; form < 2; form++)
            for (uint64_t label = 3; label < 5; label++) {
                mo_hash_compare_args a = {first.data(), second.data(), results[form], 1000, label};
                run_one(form, mo_kernel_hash_compare, a);
            }
        same_bytes("comparisons", results[0], results[1], sizeof results[0]);
    }
}

/* --- optimizer ------------------------------------------------------------------------------- */

struct Form {
    const mo_kernel *kernel;
    uint32_t rule, format;
};

const Form forms[] = {
    {&mo_kernel_optim_step, MO_RULE_ADAMW, MO_STATE_8BIT},
    {&mo_kernel_step_adamw4, MO_RULE_ADAMW, MO_STATE_4BIT},
    {&mo_kernel_step_adamwf8, MO_RULE_ADAMW, MO_STATE_F8},
    {&mo_kernel_step_lion8, MO_RULE_LION, MO_STATE_8BIT},
    {&mo_kernel_step_sgd8, MO_RULE_SGD, MO_STATE_8BIT},
};

struct StepCase {
    uint32_t parameter, gradient, copy;
    int eight, stochastic, wild, offset; // eight: coded states
    const Form *form;
};

struct State {
    Bytes parameter, copy, m, v;
    std::vector<float> absmax1, absmax2;
    uint64_t steps = 4;
};

bool same_value(const Bytes &a, const Bytes &b, uint64_t i, uint32_t dtype)
{
    float x = mo_load_element(a.data(), i, (int32_t)dtype);
    float y = mo_load_element(b.data(), i, (int32_t)dtype);
    return mo_f32_bits(x) == mo_f32_bits(y) || (x != x && y != y);
}

/* Which NaN an operation gives is the processor's choice; that it gives one is not. */
void same_values(const char *what, const Bytes &a, const Bytes &b, uint32_t dtype)
{
    for (uint64_t i = 0; i < LARGEST; i++)
        if (!same_value(a, b, i, dtype))
            fail(what, i);
}

State make_state(const StepCase &c)
{
    State s;
    for (Bytes *bytes : {&s.parameter, &s.copy, &s.m, &s.v})
        bytes->assign(LARGEST * 4, 0xEE);
    fill(s.parameter.data(), LARGEST, c.parameter, 0);
    if (c.eight) {
        fill(s.m.data(), LARGEST, MO_DTYPE_F8_E4M3, 0);
        fill(s.v.data(), LARGEST, MO_DTYPE_F8_E4M3, 0);
        for (int i = 0; i < LARGEST / 128 + 1; i++) {
            s.absmax1.push_back(fabsf(datum(0)));
            s.absmax2.push_back(fabsf(datum(0)));
        }
        return s;
    }
    fill(s.m.data(), LARGEST, MO_DTYPE_F32, 0);
    for (uint64_t i = 0; i < LARGEST; i++)
        ((float *)(void *)s.v.data())[i] = fabsf(datum(0));
    return s;
}

void run_step(int form, const StepCase &c, State &s, Bytes &gradient, double square_sum)
{
    static const mo_rule_group group = {1e-3, 0.9, 0.999, 1e-8, 1e-2, 0.9, 0.0, 0, 0, nullptr};
    uint64_t n = LARGEST - 8;
    mo_optim_control control = {1, 0};
    mo_rule_coef coef;
    mo_optim_tensor tensors[2] = {};
    mo_optim_tensor &t = tensors[1];
    uint64_t offset = (uint64_t)c.offset, state = offset * (c.eight ? 1 : 4);
    t.parameter = s.parameter.data() + offset * mo_element_size(c.parameter);
    t.copy = c.copy ? s.copy.data() + offset * mo_element_size(c.copy) : nullptr;
    t.m = s.m.data() + state;
    t.v = s.v.data() + state;
    t.absmax1 = c.eight ? s.absmax1.data() : nullptr;
    t.absmax2 = c.eight ? s.absmax2.data() : nullptr;
    t.steps = &s.steps;
    t.parameter_dtype = (int32_t)c.parameter;
    t.copy_dtype = (int32_t)c.copy;
    t.format = c.eight ? c.form->format : (uint32_t)MO_STATE_F32;
    if (!mo_rule_has_second(c.form->rule)) {
        t.v = nullptr;
        t.absmax2 = nullptr;
    }
    mo_tensor_segment segment = {gradient.data() + offset * mo_element_size(c.gradient), n, 0,
                                 c.gradient, 1};
    float scale = 8.0f, found = 0.0f, norm = 0.0f;
    mo_optim_prologue_args prologue = {tensors, &segment, &group,       &coef, &control,
                                       nullptr, &scale,   &found,       &norm, 3.0,
                                       1,       1,        c.form->rule, 0};
    prologue.square_sum = &square_sum;
    mo_optim_step_args step = {tensors, &segment, &coef, &control, 77, 1, (uint32_t)c.stochastic};
    run_one(form, mo_kernel_optim_prologue, prologue);
    if (control.skip != 0 || found != 0.0f || norm != (float)(sqrt(square_sum) / 8))
        fail("verdicts", 0);
    if (form == 0)
        c.form->kernel->cpu[0](&step, 0, mo_chunks_of(n));
    else
        blocks_run(c.form->kernel, &step, mo_chunks_of(n), warp_size);
}

void check_step(const StepCase &c)
{
    Bytes gradient(LARGEST * 4);
    fill(gradient.data(), LARGEST, c.gradient, c.wild);
    State s[2];
    s[0] = make_state(c);
    s[1] = s[0];
    for (int form = 0; form < 2; form++)
        run_step(form, c, s[form], gradient, 4321.0);
    same_bytes("parameters", s[0].parameter.data(), s[1].parameter.data(), s[0].parameter.size());
    same_bytes("copies", s[0].copy.data(), s[1].copy.data(), s[0].copy.size());
    same_bytes("m", s[0].m.data(), s[1].m.data(), s[0].m.size());
    same_bytes("v", s[0].v.data(), s[1].v.data(), s[0].v.size());
    same_bytes("scales of m", s[0].absmax1.data(), s[1].absmax1.data(), s[0].absmax1.size() * 4);
    same_bytes("scales of v", s[0].absmax2.data(), s[1].absmax2.data(), s[0].absmax2.size() * 4);
    if (s[0].steps != 5 || s[1].steps != 5)
        fail("step counts", 0);
}

struct Code {
    const mo_kernel *quantize, *dequantize;
    uint32_t format;
};

const Code all_codes[] = {
    {&mo_kernel_quantize, &mo_kernel_dequantize, MO_STATE_8BIT},
    {&mo_kernel_quantize4, &mo_kernel_dequantize4, MO_STATE_4BIT},
    {&mo_kernel_quantizef8, &mo_kernel_dequantizef8, MO_STATE_F8},
};

void check_blockcode(const Code &code, uint32_t dtype, uint32_t is_signed, int wild, int offset)
{
    Bytes values(LARGEST * 4), codes[2], back[2];
    std::vector<float> absmax[2];
    uint64_t n = LARGEST - 8;
    fill(values.data(), LARGEST, dtype, wild);
    for (int form = 0; form < 2; form++) {
        codes[form].assign(LARGEST, 0xEE);
        back[form].assign(LARGEST * 4, 0xEE);
        absmax[form].assign(n / 128 + 1, -1.0f);
        mo_blockcode_args a = {values.data() + (uint32_t)offset * mo_element_size(dtype),
                               codes[form].data() + offset,
                               absmax[form].data(),
                               n,
                               (int32_t)dtype,
                               is_signed};
        mo_blockcode_args b = a;
        b.values = back[form].data() + (uint32_t)offset * mo_element_size(dtype);
        if (form == 0) {
            code.quantize->cpu[0](&a, 0, mo_chunks_of(n));
            code.dequantize->cpu[0](&b, 0, mo_chunks_of(n));
        } else {
            blocks_run(code.quantize, &a, mo_chunks_of(n), warp_size);
            blocks_run(code.dequantize, &b, mo_chunks_of(n), warp_size);
        }
    }
    same_bytes("codes", codes[0].data(), codes[1].data(), LARGEST);
    same_bytes("absmax", absmax[0].data(), absmax[1].data(), absmax[0].size() * 4);
    same_values("decoded", back[0], back[1], dtype);
}

void check_upload()
{
    for (uint64_t bytes : {1u, 3u, 4u, 1000u, 3968u})
        for (int offset = 0; offset < 3; offset++) {
            Bytes out[2];
            mo_optim_upload_args a;
            for (unsigned char &byte : a.payload)
                byte = (unsigned char)next_random();
            for (int form = 0; form < 2; form++) {
                out[form].assign(4000, 0xEE);
                a.destination = out[form].data() + offset;
                a.bytes = bytes;
                run_one(form, mo_kernel_optim_upload, a);
            }
            same_bytes("uploads", out[0].data(), out[1].data(), 4000);
        }
}

void check_all()
{
    for (uint32_t from = 1; from <= 5; from++)
        for (uint32_t to = 1; to <= 5; to++)
            for (int mode = 0; mode < 3; mode++)
                check_cast(from, to, mode == 1, mode != 0, (int)(from + to) % 2);
    for (int flags = 0; flags < 8; flags++) {
        check_reduce(flags & 1, flags >> 1 & 1);
        check_scale(flags >> 2, flags & 1, flags >> 1 & 1);
    }
    check_sum();
    check_scaler();
    check_hash();
    check_upload();
    for (const Form &form : forms)
        for (uint32_t p = 1; p <= 3; p++)
            for (uint32_t g = 1; g <= 3; g++)
                for (int flags = 0; flags < 4; flags++) {
                    StepCase c = {p,
                                  g,
                                  flags == 2 ? 0u : (p + g) % 3 + 1,
                                  flags & 1,
                                  flags >> 1,
                                  flags < 2 && (p + g) % 3 != 0,
                                  (int)(p + g) % 2,
                                  &form};
                    check_step(c);
                }
    for (int flags = 0; flags < 8; flags++)
        for (uint32_t dtype = 1; dtype <= 3; dtype++)
            for (const Code &code : all_codes)
                check_blockcode(code, dtype, flags & 1, flags >> 1 & 1, flags >> 2);
}

} // namespace

int main()
{
    for (warp_size = 32; warp_size <= 64; warp_size *= 2)
        check_all();
    printf("every GPU form equals its scalar form, in warps of 32 and 64\n");
    return 0;
}
