// Save-on-CPU: does the copy hide behind compute, what does a call cost, how much is page-locked.
//
//   step/plain       8 layers forward and backward, activations of 4 MiB stay on the device
//   step/offload     the same, packed after each layer and prefetched one layer ahead
//   step/blocking    the same with plain copies on the compute stream, waited for one by one
//   copy/N, value/N  two copies of N bytes by hand; pack, unpack and release of such a value
//   kept             pack, unpack and release of a value below min_bytes
//   waste/...        page-locked bytes over payload, as counters
//
// The layers compute in registers on one thread; the copies need a second core and bandwidth.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "memopt/memopt.h"

extern "C" {
#include "device/device.h"
}

namespace
{

constexpr int kLayers = 8;
constexpr uint64_t kBytes = uint64_t{4} << 20;

struct ComputeArgs {
    uint32_t *data;
    uint64_t rounds;
};

// A few milliseconds of arithmetic that touches little memory.
void compute_cpu(const void *args, uint64_t begin, uint64_t end)
{
    const ComputeArgs *a = static_cast<const ComputeArgs *>(args);
    for (uint64_t item = begin; item < end; item++) {
        uint32_t x = static_cast<uint32_t>(item) + 1;
        for (uint64_t i = 0; i < a->rounds; i++)
            x = x * 1664525u + 1013904223u;
        a->data[item] = x;
    }
}

const mo_kernel compute_kernel = {
    "bench_compute", sizeof(ComputeArgs), 1, {compute_cpu, nullptr, nullptr}, nullptr, nullptr,
    nullptr};

struct Bench {
    memopt_device *device = nullptr;
    memopt_allocator *allocator = nullptr;
    memopt_offloader *offloader = nullptr;
    memopt_stream stream = nullptr;
    void *host[kLayers] = {};

    explicit Bench(uint64_t min_bytes = 0)
    {
        memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
        memopt_offloader_options offload = MEMOPT_OFFLOADER_OPTIONS_INIT;
        options.capacity = uint64_t{1} << 30;
        options.threads = 1;
        offload.min_bytes = min_bytes;
        memopt_device_open("cpu", &options, &device);
        memopt_allocator_create(device, nullptr, nullptr, &allocator);
        memopt_stream_create(device, &stream);
        memopt_offloader_create(device, allocator, &offload, &offloader);
    }

    ~Bench()
    {
        memopt_offloader_destroy_force(offloader);
        memopt_stream_destroy(device, stream);
        for (void *memory : host)
            memopt_host_free(device, memory);
        memopt_allocator_destroy_force(allocator);
        memopt_device_close(device);
    }

    void *alloc(uint64_t bytes)
    {
        void *block = nullptr;
        memopt_allocator_alloc(allocator, bytes, MEMOPT_TAG_ACTIVATIONS, stream, &block);
        return block;
    }

    void compute(void *activation, int scale)
    {
        ComputeArgs args = {static_cast<uint32_t *>(activation), 6000};
        mo_launch(device, stream, &compute_kernel, &args, static_cast<uint64_t>(300 * scale));
    }
};

using Step = bool (*)(Bench &);

bool step_plain(Bench &b)
{
    void *kept[kLayers];
    for (void *&activation : kept)
        b.compute(activation = b.alloc(kBytes), 1);
    for (int i = kLayers - 1; i >= 0; i--) {
        b.compute(kept[i], 2);
        memopt_allocator_free(b.allocator, kept[i]);
    }
    return memopt_stream_sync(b.device, b.stream) == MEMOPT_OK;
}

bool step_offload(Bench &b)
{
    memopt_ticket tickets[kLayers];
    bool good = true;
    for (memopt_ticket &ticket : tickets) {
        void *activation = b.alloc(kBytes);
        b.compute(activation, 1);
        good &=
            memopt_offloader_pack(b.offloader, activation, kBytes, b.stream, &ticket) == MEMOPT_OK;
    }
    for (int i = kLayers - 1; i >= 0; i--) {
        void *activation = nullptr;
        if (i > 0)
            good &= memopt_offloader_prefetch(b.offloader, tickets[i - 1]) == MEMOPT_OK;
        good &=
            memopt_offloader_unpack(b.offloader, tickets[i], b.stream, &activation) == MEMOPT_OK;
        b.compute(activation, 2);
        good &= memopt_offloader_release(b.offloader, tickets[i], b.stream) == MEMOPT_OK;
    }
    return memopt_stream_sync(b.device, b.stream) == MEMOPT_OK && good;
}

bool step_blocking(Bench &b)
{
    for (void *&memory : b.host) {
        if (memory == nullptr)
            memopt_host_alloc(b.device, kBytes, &memory);
        void *activation = b.alloc(kBytes);
        b.compute(activation, 1);
        memopt_copy(b.device, memory, activation, kBytes, b.stream);
        memopt_stream_sync(b.device, b.stream);
        memopt_allocator_free(b.allocator, activation);
    }
    for (int i = kLayers - 1; i >= 0; i--) {
        void *activation = b.alloc(kBytes);
        memopt_copy(b.device, activation, b.host[i], kBytes, b.stream);
        memopt_stream_sync(b.device, b.stream);
        b.compute(activation, 2);
        memopt_allocator_free(b.allocator, activation);
    }
    return memopt_stream_sync(b.device, b.stream) == MEMOPT_OK;
}

// One step before the clock runs: the first one page-locks memory and touches it.
void steps(benchmark::State &state, Step step)
{
    Bench b;
    if (!step(b))
        state.SkipWithError(memopt_last_error());
    for (auto _ : state)
        if (!step(b))
            state.SkipWithError(memopt_last_error());
}
BENCHMARK_CAPTURE(steps, plain, step_plain)
    ->Name("step/plain")
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(steps, offload, step_offload)
    ->Name("step/offload")
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(steps, blocking, step_blocking)
    ->Name("step/blocking")
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// The same bytes, copied out and back by two calls of memcpy.
void copy(benchmark::State &state)
{
    const uint64_t bytes = static_cast<uint64_t>(state.range(0));
    std::vector<char> device(bytes, 1), host(bytes);
    for (auto _ : state) {
        std::memcpy(host.data(), device.data(), bytes);
        benchmark::ClobberMemory();
        std::memcpy(device.data(), host.data(), bytes);
        benchmark::ClobberMemory();
    }
}
BENCHMARK(copy)->Arg(4096)->Arg(1 << 20)->UseRealTime();

void round_trip(benchmark::State &state, Bench *b, uint64_t bytes)
{
    for (auto _ : state) {
        memopt_ticket ticket = 0;
        void *data = nullptr;
        if (memopt_offloader_pack(b->offloader, b->alloc(bytes), bytes, b->stream, &ticket) !=
                MEMOPT_OK ||
            memopt_offloader_unpack(b->offloader, ticket, b->stream, &data) != MEMOPT_OK ||
            memopt_offloader_release(b->offloader, ticket, b->stream) != MEMOPT_OK)
            state.SkipWithError(memopt_last_error());
    }
    memopt_device_sync(b->device);
}

// The calls alone; the copies run on the offloader's threads meanwhile.
void value(benchmark::State &state)
{
    Bench b;
    round_trip(state, &b, static_cast<uint64_t>(state.range(0)));
}
BENCHMARK(value)->Arg(4096)->Arg(1 << 20)->UseRealTime();

void kept(benchmark::State &state)
{
    Bench b(8192);
    round_trip(state, &b, 4096);
}
BENCHMARK(kept)->UseRealTime();

void waste(benchmark::State &state, uint64_t low, uint64_t high)
{
    double ratio = 0;
    for (auto _ : state) {
        Bench b;
        std::vector<memopt_ticket> tickets(static_cast<size_t>((uint64_t{64} << 20) / high));
        uint64_t random = 1;
        for (memopt_ticket &ticket : tickets) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            uint64_t bytes = low + (random >> 33) % (high - low + 1);
            memopt_offloader_pack(b.offloader, b.alloc(bytes), bytes, b.stream, &ticket);
        }
        memopt_offloader_stats stats = {};
        stats.struct_size = sizeof stats;
        memopt_offloader_get_stats(b.offloader, &stats);
        ratio = static_cast<double>(stats.host_bytes) / static_cast<double>(stats.host_bytes_used);
    }
    state.counters["pinned_over_payload"] = ratio;
}
BENCHMARK_CAPTURE(waste, 4KiB_to_64KiB, 4096, 65536)->Iterations(1);
BENCHMARK_CAPTURE(waste, 64KiB_to_2MiB, 65536, 2 << 20)->Iterations(1);
BENCHMARK_CAPTURE(waste, 1MiB_plus_1, (1 << 20) + 1, (1 << 20) + 1)->Iterations(1);

} // namespace
