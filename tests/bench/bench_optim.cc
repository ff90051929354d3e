// Optimizer steps beside a copy with non-temporal stores that moves the same bytes, over the same
// threads, in memory of the same kind (all of it from one allocator). Run with
//   --benchmark_enable_random_interleaving=true --benchmark_repetitions=N
// and compare the minima of a pair: `copy_of/adamw8_bf16/2` moves the bytes that `adamw8_bf16/2`
// must move at least. The last number is the threads; ns_per_element is the time over elements.
//
// MEMOPT_BENCH_ELEMENTS: elements (as a size is written: 32M is 32 Mi; default 64 Mi).
// MEMOPT_BENCH_CONFIG: the allocator's configuration; the default, expandable_segments:False, gives
// huge pages where the system has them, and so is nearest to device memory.
#include <benchmark/benchmark.h>

extern "C" {
#include "device/device.h"
#include "memopt/optim.h"
}

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace
{

constexpr uint64_t kCopyItem = 256 << 10;

void must(memopt_status status)
{
    if (status != MEMOPT_OK) {
        std::fprintf(stderr, "bench_optim: %s\n", memopt_last_error());
        std::exit(1);
    }
}

uint64_t elements()
{
    uint64_t n = uint64_t{64} << 20;
    if (const char *text = std::getenv("MEMOPT_BENCH_ELEMENTS"))
        must(memopt_parse_size(text, &n));
    return n;
}

struct copy_args {
    const unsigned char *source;
    unsigned char *destination;
    uint64_t bytes;
};

#if defined(__x86_64__)
__attribute__((target("avx512f"))) void copy_lines(const copy_args *a, uint64_t at, uint64_t end)
{
    for (; at < end; at += 64)
        _mm512_stream_si512(reinterpret_cast<__m512i *>(a->destination + at),
                            _mm512_load_si512(a->source + at));
    _mm_sfence();
}

__attribute__((target("avx2"))) void copy_half_lines(const copy_args *a, uint64_t at, uint64_t end)
{
    for (; at < end; at += 32)
        _mm256_stream_si256(reinterpret_cast<__m256i *>(a->destination + at),
                            _mm256_load_si256(reinterpret_cast<const __m256i *>(a->source + at)));
    _mm_sfence();
}
#endif

void copy_kernel(const void *args, uint64_t begin, uint64_t end)
{
    const copy_args *a = static_cast<const copy_args *>(args);
    uint64_t first = begin * kCopyItem;
    uint64_t last = end * kCopyItem < a->bytes ? end * kCopyItem : a->bytes;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        copy_lines(a, first, last);
    else
        copy_half_lines(a, first, last);
#else
    std::memcpy(a->destination + first, a->source + first, last - first);
#endif
}

const mo_kernel kCopy = {"copy",  sizeof(copy_args), 256,    {copy_kernel, nullptr, nullptr},
                         nullptr, nullptr,           nullptr};

struct step_case {
    const char *name;
    uint32_t format;
    memopt_dtype parameter, gradient, copy; // the copy is written over the gradient
    bool clip;
    uint32_t kind = MEMOPT_OPTIMIZER_ADAMW;
    uint32_t split = 0; // bytes of a residual

    double bytes() const // read and written at least, per element
    {
        bool half = format == MEMOPT_STATE_4BIT;
        double state = format == MEMOPT_STATE_F32    ? 4
                       : format == MEMOPT_STATE_BF16 ? 2
                       : half                        ? 0.5 + 4.0 / 128
                                                     : 1 + 4.0 / 256;
        bool single = kind == MEMOPT_OPTIMIZER_LION || kind == MEMOPT_OPTIMIZER_SGD ||
                      kind == MEMOPT_OPTIMIZER_RMSPROP || kind == MEMOPT_OPTIMIZER_ADAGRAD;
        double moments = single ? 1 : kind == MEMOPT_OPTIMIZER_ADEMAMIX ? 3 : 2;
        double extra = copy == 0 ? 0.0 : double(memopt_dtype_size(copy));
        double twice = clip ? double(memopt_dtype_size(gradient)) : 0.0;
        return 2.0 * double(memopt_dtype_size(parameter)) + double(memopt_dtype_size(gradient)) +
               2 * moments * state + extra + twice + 2.0 * split;
    }
};

constexpr memopt_dtype F32 = MEMOPT_DTYPE_F32, BF16 = MEMOPT_DTYPE_BF16;

// Without a letter behind the 8: the default codes. adamw8d: the dynamic codes.
const step_case kCases[] = {
    {"adamw8_bf16", MEMOPT_STATE_8BIT, BF16, BF16, 0, false},
    {"adamw8_f32", MEMOPT_STATE_8BIT, F32, F32, 0, false},
    {"adamw8_host", MEMOPT_STATE_8BIT, F32, BF16, BF16, false},
    {"adamw8_host_clip", MEMOPT_STATE_8BIT, F32, BF16, BF16, true},
    {"adamw8_split", MEMOPT_STATE_8BIT, BF16, BF16, 0, false, MEMOPT_OPTIMIZER_ADAMW, 1},
    {"adamw8_split16", MEMOPT_STATE_8BIT, BF16, BF16, 0, false, MEMOPT_OPTIMIZER_ADAMW, 2},
    {"adamw8d_bf16", MEMOPT_STATE_8BIT_DYNAMIC, BF16, BF16, 0, false},
    {"adamw8d_f32", MEMOPT_STATE_8BIT_DYNAMIC, F32, F32, 0, false},
    {"adamw4_bf16", MEMOPT_STATE_4BIT, BF16, BF16, 0, false},
    {"adamw16_bf16", MEMOPT_STATE_BF16, BF16, BF16, 0, false},
    {"adamw32_f32", MEMOPT_STATE_F32, F32, F32, 0, false},
    {"adamw32_bf16", MEMOPT_STATE_F32, BF16, BF16, 0, false},
    {"adam8_bf16", MEMOPT_STATE_8BIT, BF16, BF16, 0, false, MEMOPT_OPTIMIZER_ADAM},
    {"lion8_bf16", MEMOPT_STATE_8BIT, BF16, BF16, 0, false, MEMOPT_OPTIMIZER_LION},
    {"sgd8_bf16", MEMOPT_STATE_8BIT, BF16, BF16, 0, false, MEMOPT_OPTIMIZER_SGD},
    {"rmsprop8_bf16", MEMOPT_STATE_8BIT, BF16, BF16, 0, false, MEMOPT_OPTIMIZER_RMSPROP},
    {"adagrad8_bf16", MEMOPT_STATE_8BIT, BF16, BF16, 0, false, MEMOPT_OPTIMIZER_ADAGRAD},
    {"ademamix8_bf16", MEMOPT_STATE_8BIT, BF16, BF16, 0, false, MEMOPT_OPTIMIZER_ADEMAMIX},
};

// One device and allocator per number of threads; one optimizer at a time, so that the memory of
// every pair is what the last pair used.
struct bench {
    memopt_device *device = nullptr;
    memopt_allocator *allocator = nullptr;

    explicit bench(uint32_t threads)
    {
        memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
        options.threads = threads;
        options.capacity = uint64_t{64} << 30;
        const char *config = std::getenv("MEMOPT_BENCH_CONFIG");
        must(memopt_device_open("cpu", &options, &device));
        must(memopt_allocator_create(device, config ? config : "expandable_segments:False", nullptr,
                                     &allocator));
    }
};

bench &with_threads(uint32_t threads)
{
    static std::map<uint32_t, std::unique_ptr<bench>> all;
    std::unique_ptr<bench> &one = all[threads];
    if (!one)
        one.reset(new bench(threads));
    return *one;
}

memopt_tensor tensor(bench &b, uint64_t n, memopt_dtype dtype)
{
    memopt_tensor t = {nullptr, n, dtype};
    must(memopt_allocator_alloc(b.allocator, n * memopt_dtype_size(dtype), MEMOPT_TAG_OTHER,
                                nullptr, &t.data));
    return t;
}

// Values like those of training, made as f32 pieces and cast.
void fill(bench &b, const memopt_tensor &t, float scale)
{
    constexpr uint64_t kPiece = 1 << 16;
    static float piece[kPiece];
    uint64_t state = 88172645463325252u;
    for (float &x : piece) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        x = scale * float(double(int64_t(state)) / 9223372036854775808.0);
    }
    for (uint64_t i = 0; i < t.count; i += kPiece) {
        uint64_t n = t.count - i < kPiece ? t.count - i : kPiece;
        memopt_tensor from = {piece, n, F32};
        memopt_tensor to = {static_cast<char *>(t.data) + i * memopt_dtype_size(t.dtype), n,
                            t.dtype};
        must(memopt_cast(b.device, &to, &from, 1, nullptr, nullptr));
    }
}

void report(benchmark::State &state, double bytes)
{
    double n = double(elements()), done = double(state.iterations());
    state.counters["ns_per_element"] = benchmark::Counter(
        n * done * 1e-9, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
    state.SetBytesProcessed(int64_t(done * n * bytes));
}

void step(benchmark::State &state, const step_case &c)
{
    bench &b = with_threads(uint32_t(state.range(0)));
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    memopt_optimizer_group group = MEMOPT_OPTIMIZER_GROUP_INIT;
    group.momentum = 0.9;
    memopt_step_options step_options = MEMOPT_STEP_OPTIONS_INIT;
    memopt_optimizer *o;
    uint32_t number;
    uint64_t index;
    options.kind = c.kind;
    options.state_format = c.format;
    options.split_weights = c.split;
    step_options.max_norm = c.clip ? 1.0 : 0.0;
    memopt_tensor p = tensor(b, elements(), c.parameter), g = tensor(b, elements(), c.gradient);
    fill(b, p, 0.3f);
    fill(b, g, 0.01f);
    must(memopt_optimizer_create(b.allocator, &options, &o));
    must(memopt_optimizer_add_group(o, &group, &number));
    memopt_parameter_options of_parameter = MEMOPT_PARAMETER_OPTIONS_INIT;
    if (c.copy)
        of_parameter.model_copy = g;
    must(memopt_optimizer_add_parameter(o, number, &p, &of_parameter, nullptr, &index));
    must(memopt_optimizer_step(o, &g, 1, &step_options, nullptr));
    for (auto _ : state)
        must(memopt_optimizer_step(o, &g, 1, &step_options, nullptr));
    report(state, c.bytes());
    must(memopt_optimizer_destroy(o));
    must(memopt_allocator_free(b.allocator, p.data));
    must(memopt_allocator_free(b.allocator, g.data));
}

void copy(benchmark::State &state, const step_case &c)
{
    bench &b = with_threads(uint32_t(state.range(0)));
    uint64_t bytes = uint64_t(double(elements()) * c.bytes() / 2) / 64 * 64;
    memopt_tensor from = tensor(b, bytes / 2, BF16), to = tensor(b, bytes / 2, BF16);
    must(memopt_fill(b.device, from.data, 1, bytes, nullptr));
    must(memopt_fill(b.device, to.data, 2, bytes, nullptr));
    copy_args args = {static_cast<unsigned char *>(from.data),
                      static_cast<unsigned char *>(to.data), bytes};
    for (auto _ : state)
        must(mo_launch(b.device, nullptr, &kCopy, &args, (bytes + kCopyItem - 1) / kCopyItem));
    report(state, c.bytes());
    must(memopt_allocator_free(b.allocator, from.data));
    must(memopt_allocator_free(b.allocator, to.data));
}

const bool registered = [] {
    for (const step_case &c : kCases)
        for (int threads = 1; threads <= 2; threads++) {
            benchmark::RegisterBenchmark(c.name, [&c](benchmark::State &s) { step(s, c); })
                ->Arg(threads)
                ->UseRealTime()
                ->Unit(benchmark::kMillisecond);
            benchmark::RegisterBenchmark((std::string("copy_of/") + c.name).c_str(),
                                         [&c](benchmark::State &s) { copy(s, c); })
                ->Arg(threads)
                ->UseRealTime()
                ->Unit(benchmark::kMillisecond);
        }
    return true;
}();

} // namespace
