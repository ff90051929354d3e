// Casts, scaling, reductions and hashes of 64 Mi elements beside two yardsticks over the same
// threads. Run with
//   --benchmark_enable_random_interleaving=true --benchmark_repetitions=N
// and compare: `copy_of/cast/f32_bf16/2` is a copy with non-temporal stores that moves as many
// bytes as `cast/f32_bf16/2`; `plain_of/cast/f32_bf16/2` reads as many and writes as many, and
// computes nothing. The last number is how many threads.
#include <benchmark/benchmark.h>

extern "C" {
#include "device/device.h"
#include "memopt/cast.h"
#include "memopt/checkpoint.h"
}

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <immintrin.h>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace
{

constexpr uint64_t kElements = uint64_t{64} << 20;
constexpr uint64_t kCopyItem = 64 << 10; // bytes
constexpr uint64_t kMoveItem = 16 << 10; // elements

void must(memopt_status status)
{
    if (status != MEMOPT_OK) {
        std::fprintf(stderr, "bench_cast: %s\n", memopt_last_error());
        std::exit(1);
    }
}

// The yardstick: half of the bytes read, half written past the caches.
struct copy_args {
    const unsigned char *source;
    unsigned char *destination;
};

__attribute__((target("avx512f"))) void copy_wide(const void *args, uint64_t begin, uint64_t end)
{
    const copy_args *a = static_cast<const copy_args *>(args);
    for (uint64_t at = begin * kCopyItem; at < end * kCopyItem; at += 256)
        for (uint64_t k = 0; k < 256; k += 64)
            _mm512_stream_si512(reinterpret_cast<__m512i *>(a->destination + at + k),
                                _mm512_loadu_si512(a->source + at + k));
    _mm_sfence();
}

__attribute__((target("avx2"))) void copy_narrow(const void *args, uint64_t begin, uint64_t end)
{
    const copy_args *a = static_cast<const copy_args *>(args);
    for (uint64_t at = begin * kCopyItem; at < end * kCopyItem; at += 128)
        for (uint64_t k = 0; k < 128; k += 32)
            _mm256_stream_si256(
                reinterpret_cast<__m256i *>(a->destination + at + k),
                _mm256_loadu_si256(reinterpret_cast<const __m256i *>(a->source + at + k)));
    _mm_sfence();
}

void copy_plain(const void *args, uint64_t begin, uint64_t end)
{
    const copy_args *a = static_cast<const copy_args *>(args);
    std::memcpy(a->destination + begin * kCopyItem, a->source + begin * kCopyItem,
                (end - begin) * kCopyItem);
}

const mo_kernel kCopy = {
    "bench_copy", sizeof(copy_args), 256,    {copy_plain, copy_narrow, copy_wide},
    nullptr,      nullptr,           nullptr};

// Reads R and writes W bytes for each of 64 elements, past the caches where that is not in place.
template <int R, int W, bool IN_PLACE>
__attribute__((target("avx2"))) void move(const void *args, uint64_t begin, uint64_t end)
{
    const copy_args *a = static_cast<const copy_args *>(args);
    for (uint64_t at = begin * kMoveItem; at < end * kMoveItem; at += 64) {
        __m256i seen = _mm256_setzero_si256();
        for (uint64_t k = 0; k < 64 * R; k += 32) {
            const unsigned char *from = a->source + at * R + k;
            __builtin_prefetch(from + 4096);
            seen =
                _mm256_or_si256(seen, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
        }
        __asm__ volatile("" : "+x"(seen));
        for (uint64_t k = 0; k < 64 * W; k += 32) {
            __m256i *to = reinterpret_cast<__m256i *>(a->destination + at * W + k);
            if (IN_PLACE)
                _mm256_store_si256(to, seen);
            else
                _mm256_stream_si256(to, seen);
        }
    }
    _mm_sfence();
}

template <int R, int W, bool IN_PLACE>
const mo_kernel kMove = {
    "bench_move", sizeof(copy_args), 256,    {copy_plain, move<R, W, IN_PLACE>},
    nullptr,      nullptr,           nullptr};

// One device per thread count; two buffers of 256 MiB, touched once.
struct bench_device {
    memopt_device *device = nullptr;
    memopt_scaler *scaler = nullptr;
    unsigned char *from = nullptr, *to = nullptr;
    memopt_dtype filled = 0; // what `from` holds

    explicit bench_device(uint32_t threads)
    {
        memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
        options.threads = threads;
        void *memory = nullptr;
        must(memopt_device_open("cpu", &options, &device));
        must(mo_mem_alloc(device, 4 * kElements, &memory));
        from = static_cast<unsigned char *>(memory);
        must(mo_mem_alloc(device, 4 * kElements, &memory));
        to = static_cast<unsigned char *>(memory);
        must(memopt_scaler_create(device, nullptr, &scaler));
        // Small ordinary floats: as f32, as f16 and as bf16.
        must(memopt_fill(device, from, 0x3b, 4 * kElements, nullptr));
        must(memopt_fill(device, to, 0x3b, 4 * kElements, nullptr));
    }
};

bench_device &device_of(int64_t threads)
{
    static std::map<int64_t, bench_device> devices;
    return devices.try_emplace(threads, static_cast<uint32_t>(threads)).first->second;
}

// Random numbers of a bell curve around 0 in the first 256 MiB, as a network's tensors have them.
void fill_values(bench_device &d, memopt_dtype dtype)
{
    constexpr uint64_t kPattern = uint64_t{1} << 20;
    static std::map<memopt_dtype, std::vector<unsigned char>> patterns;
    std::vector<unsigned char> &pattern = patterns[dtype];
    const uint64_t bytes = kPattern * memopt_dtype_size(dtype);
    if (d.filled == dtype)
        return;
    if (pattern.empty()) {
        std::mt19937 engine(1);
        std::normal_distribution<float> normal;
        std::vector<float> values(kPattern);
        for (float &value : values)
            value = normal(engine);
        pattern.resize(bytes);
        memopt_tensor source = {values.data(), kPattern, MEMOPT_DTYPE_F32};
        memopt_tensor result = {pattern.data(), kPattern, dtype};
        must(memopt_cast(d.device, &result, &source, 1, nullptr, nullptr));
        must(memopt_device_sync(d.device));
    }
    for (uint64_t at = 0; at < kElements * memopt_dtype_size(dtype); at += bytes)
        std::memcpy(d.from + at, pattern.data(), bytes);
    d.filled = dtype;
}

void finish(benchmark::State &state, double bytes_per_element)
{
    state.SetBytesProcessed(static_cast<int64_t>(static_cast<double>(state.iterations()) *
                                                 bytes_per_element * kElements));
    state.counters["ns_per_element"] =
        benchmark::Counter(static_cast<double>(state.iterations()) * kElements * 1e-9,
                           benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

// `bytes`: what is read and written in all, per element.
void copy(benchmark::State &state, uint64_t bytes)
{
    bench_device &d = device_of(state.range(0));
    copy_args args = {d.from, d.to};
    for (auto _ : state)
        must(mo_launch(d.device, nullptr, &kCopy, &args, kElements * bytes / 2 / kCopyItem));
    finish(state, static_cast<double>(bytes));
}

void plain(benchmark::State &state, const mo_kernel *kernel, bool in_place, double bytes)
{
    bench_device &d = device_of(state.range(0));
    copy_args args = {d.from, in_place ? d.from : d.to};
    d.filled = in_place ? 0 : d.filled;
    for (auto _ : state)
        must(mo_launch(d.device, nullptr, kernel, &args, kElements / kMoveItem));
    finish(state, bytes);
}

void cast(benchmark::State &state, memopt_dtype from, memopt_dtype to, bool stochastic)
{
    bench_device &d = device_of(state.range(0));
    fill_values(d, from);
    memopt_cast_options options = MEMOPT_CAST_OPTIONS_INIT;
    memopt_tensor source = {d.from, kElements, from}, result = {d.to, kElements, to};
    options.rounding = stochastic ? MEMOPT_ROUND_STOCHASTIC : MEMOPT_ROUND_NEAREST_EVEN;
    for (auto _ : state)
        must(memopt_cast(d.device, &result, &source, 1, &options, nullptr));
    finish(state, static_cast<double>(memopt_dtype_size(from) + memopt_dtype_size(to)));
}

// A matrix of 4,096 columns; codes and scales lie one behind the other.
void blocks(benchmark::State &state, memopt_block_format format, memopt_dtype dtype, bool back,
            bool stochastic)
{
    bench_device &d = device_of(state.range(0));
    memopt_blocks_options options = MEMOPT_BLOCKS_OPTIONS_INIT;
    memopt_blocks_layout layout = MEMOPT_BLOCKS_LAYOUT_INIT;
    const uint64_t columns = 4096, rows = kElements / columns;
    must(memopt_blocks_get_layout(format, rows, columns, &layout));
    fill_values(d, back ? MEMOPT_DTYPE_F8_E4M3 : dtype);
    if (back)
        std::memset(d.from + layout.code_bytes, 0x3b, layout.scale_bytes); // a normal number
    unsigned char *codes = back ? d.from : d.to, *values = back ? d.to : d.from;
    memopt_blocks matrix = {codes, codes + layout.code_bytes, nullptr, rows, columns, format};
    memopt_tensor tensor = {values, kElements, dtype};
    options.rounding = stochastic ? MEMOPT_ROUND_STOCHASTIC : MEMOPT_ROUND_NEAREST_EVEN;
    for (auto _ : state)
        must(back ? memopt_blocks_dequantize(d.device, &tensor, &matrix, 1, nullptr)
                  : memopt_blocks_quantize(d.device, &matrix, &tensor, 1, &options, nullptr));
    finish(state, static_cast<double>(memopt_dtype_size(dtype)) +
                      static_cast<double>(layout.code_bytes + layout.scale_bytes) / kElements);
}

using scaler_call = memopt_status (*)(const bench_device &, const memopt_tensor *);

memopt_status unscale(const bench_device &d, const memopt_tensor *tensor)
{
    return memopt_scaler_unscale(d.scaler, tensor, 1, nullptr);
}

memopt_status check(const bench_device &d, const memopt_tensor *tensor)
{
    return memopt_check_finite(d.device, tensor, 1, memopt_scaler_get_found_inf(d.scaler), nullptr);
}

// The scale is set to 1 beforehand, so that unscaling again and again changes nothing.
void scaler(benchmark::State &state, scaler_call call, memopt_dtype dtype, double passes)
{
    bench_device &d = device_of(state.range(0));
    fill_values(d, dtype);
    memopt_scaler_state one = {sizeof one, 1.0, 2.0, 0.5, 2000, 0};
    memopt_tensor tensor = {d.from, kElements, dtype};
    must(memopt_scaler_set_state_sync(d.scaler, &one, nullptr));
    for (auto _ : state)
        must(call(d, &tensor));
    finish(state, passes * static_cast<double>(memopt_dtype_size(dtype)));
}

void norm(benchmark::State &state, memopt_dtype dtype)
{
    bench_device &d = device_of(state.range(0));
    fill_values(d, dtype);
    memopt_tensor tensor = {d.from, kElements, dtype};
    float *result = reinterpret_cast<float *>(d.to);
    for (auto _ : state)
        must(memopt_norm(d.device, result, &tensor, 1, 0, nullptr));
    finish(state, static_cast<double>(memopt_dtype_size(dtype)));
}

void hash(benchmark::State &state, memopt_dtype dtype)
{
    bench_device &d = device_of(state.range(0));
    memopt_tensor tensor = {d.from, kElements, dtype};
    for (auto _ : state)
        must(memopt_content_hash(d.device, reinterpret_cast<uint64_t *>(d.to), &tensor, nullptr));
    finish(state, 4);
}

void threads(benchmark::internal::Benchmark *b)
{
    b->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);
}

constexpr memopt_dtype F32 = MEMOPT_DTYPE_F32, F16 = MEMOPT_DTYPE_F16, BF16 = MEMOPT_DTYPE_BF16,
                       E4M3 = MEMOPT_DTYPE_F8_E4M3, E5M2 = MEMOPT_DTYPE_F8_E5M2;

// A benchmark that reads and writes so many bytes an element, and its yardsticks.
#define BESIDE(function, name, read, written, in_place, ...)                                       \
    BENCHMARK_CAPTURE(function, name, __VA_ARGS__)->Apply(threads);                                \
    BENCHMARK_CAPTURE(copy, function##_##name, read + written)                                     \
        ->Apply(threads)                                                                           \
        ->Name("copy_of/" #function "/" #name);                                                    \
    BENCHMARK_CAPTURE(plain, function##_##name, &kMove<read, written, in_place>, in_place,         \
                      read + written)                                                              \
        ->Apply(threads)                                                                           \
        ->Name("plain_of/" #function "/" #name)

BESIDE(cast, f32_bf16, 4, 2, false, F32, BF16, false);
BESIDE(cast, f32_f16, 4, 2, false, F32, F16, false);
BESIDE(cast, bf16_f32, 2, 4, false, BF16, F32, false);
BESIDE(cast, f16_f32, 2, 4, false, F16, F32, false);
BESIDE(cast, f32_bf16_stochastic, 4, 2, false, F32, BF16, true);
BESIDE(cast, f32_f16_stochastic, 4, 2, false, F32, F16, true);
BESIDE(cast, f32_e4m3, 4, 1, false, F32, E4M3, false);
BESIDE(cast, f32_e5m2, 4, 1, false, F32, E5M2, false);
BESIDE(cast, bf16_e4m3, 2, 1, false, BF16, E4M3, false);
BESIDE(cast, e4m3_f32, 1, 4, false, E4M3, F32, false);
BESIDE(cast, e4m3_bf16, 1, 2, false, E4M3, BF16, false);
BESIDE(blocks, f32_mxfp8, 4, 1, false, MEMOPT_BLOCKS_MXFP8_E4M3, F32, false, false);
BESIDE(blocks, bf16_mxfp8, 2, 1, false, MEMOPT_BLOCKS_MXFP8_E4M3, BF16, false, false);
BESIDE(blocks, bf16_tensor, 2, 1, false, MEMOPT_BLOCKS_E4M3_TENSOR, BF16, false, false);
BESIDE(blocks, bf16_mxfp8_stochastic, 2, 1, false, MEMOPT_BLOCKS_MXFP8_E4M3, BF16, false, true);
BESIDE(blocks, mxfp8_bf16, 1, 2, false, MEMOPT_BLOCKS_MXFP8_E4M3, BF16, true, false);
BESIDE(blocks, bf16_1x128, 2, 1, false, MEMOPT_BLOCKS_E4M3_1X128, BF16, false, false);
BESIDE(blocks, bf16_128x128, 2, 1, false, MEMOPT_BLOCKS_E4M3_128X128, BF16, false, false);
// Half a byte a code: the yardsticks move two bytes of 2.5 or 2.6.
BESIDE(blocks, bf16_mxfp4, 2, 0, false, MEMOPT_BLOCKS_MXFP4, BF16, false, false);
BESIDE(blocks, bf16_nvfp4, 2, 0, false, MEMOPT_BLOCKS_NVFP4, BF16, false, false);
BESIDE(blocks, nvfp4_bf16, 0, 2, false, MEMOPT_BLOCKS_NVFP4, BF16, true, false);
BESIDE(blocks, bf16_nf4, 2, 0, false, MEMOPT_BLOCKS_NF4, BF16, false, false);
BESIDE(blocks, nf4_bf16, 0, 2, false, MEMOPT_BLOCKS_NF4, BF16, true, false);
BESIDE(scaler, unscale_f32, 4, 4, true, unscale, F32, 2.0);
BESIDE(scaler, unscale_bf16, 2, 2, true, unscale, BF16, 2.0);
BESIDE(scaler, check_f32, 4, 0, false, check, F32, 1.0);
BESIDE(scaler, check_bf16, 2, 0, false, check, BF16, 1.0);
BESIDE(norm, f32, 4, 0, false, F32);
BESIDE(norm, bf16, 2, 0, false, BF16);
BESIDE(hash, f32, 4, 0, false, F32);
} // namespace
