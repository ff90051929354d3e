// What a checkpoint region costs beside the work in it, and how fast content is checked.
//
//   callback_alone      a callback that allocates and frees three blocks itself, twice
//   region              the same through forward, recompute, release (one region, three leases)
//   region_random       with a random state of 16 bytes saved and restored
//   copy / hash / exact 16 MiB: a copy of the bytes; forward and recompute with the check on
//
// region minus callback_alone is the cost of a region; it has a forward and a recompute in it.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "memopt/memopt.h"

namespace
{

constexpr uint64_t kLease = 4096;
constexpr uint64_t kChecked = uint64_t{16} << 20;

struct Bench {
    memopt_device *device = nullptr;
    memopt_allocator *allocator = nullptr;
    memopt_region *region = nullptr;
    unsigned char *data = nullptr;
    uint64_t random[2] = {1, 2};
    int leases = 3;

    Bench()
    {
        memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
        options.capacity = uint64_t{256} << 20;
        options.threads = 1;
        memopt_device_open("cpu", &options, &device);
        memopt_allocator_create(device, nullptr, nullptr, &allocator);
    }

    ~Bench()
    {
        memopt_region_destroy(region);
        memopt_allocator_destroy_force(allocator);
        memopt_device_close(device);
    }
};

memopt_status run(void *user, memopt_region *region, memopt_region_pass, memopt_stream)
{
    Bench *b = static_cast<Bench *>(user);
    for (int i = 0; i < b->leases; i++) {
        void *lease = nullptr;
        memopt_status status = memopt_region_alloc(region, kLease, &lease);
        if (status != MEMOPT_OK)
            return status;
        benchmark::DoNotOptimize(lease);
    }
    if (b->data == nullptr)
        return MEMOPT_OK;
    memopt_tensor tensor = {b->data, kChecked, MEMOPT_DTYPE_U8};
    return memopt_region_check(region, "data", &tensor);
}

memopt_status save(void *user, void *state)
{
    std::memcpy(state, static_cast<Bench *>(user)->random, 16);
    return MEMOPT_OK;
}

memopt_status restore(void *user, const void *state)
{
    std::memcpy(static_cast<Bench *>(user)->random, state, 16);
    return MEMOPT_OK;
}

void make(Bench *b, uint32_t check, bool random)
{
    memopt_region_callbacks callbacks = {sizeof callbacks, run, random ? save : nullptr,
                                         random ? restore : nullptr, b};
    memopt_region_options options = MEMOPT_REGION_OPTIONS_INIT;
    options.check = check;
    options.random_bytes = random ? 16 : 0;
    memopt_region_create(b->device, b->allocator, &callbacks, &options, &b->region);
}

void callback_alone(benchmark::State &state)
{
    Bench b;
    for (auto _ : state) {
        for (int pass = 0; pass < 2; pass++) {
            void *blocks[3];
            for (void *&block : blocks)
                memopt_allocator_alloc(b.allocator, kLease, MEMOPT_TAG_ACTIVATIONS, nullptr,
                                       &block);
            for (void *block : blocks)
                memopt_allocator_free(b.allocator, block);
        }
    }
}
BENCHMARK(callback_alone);

void step(benchmark::State &state, Bench *b)
{
    for (auto _ : state) {
        if (memopt_region_forward(b->region, nullptr) != MEMOPT_OK ||
            memopt_region_recompute(b->region, nullptr) != MEMOPT_OK ||
            memopt_region_release(b->region) != MEMOPT_OK)
            state.SkipWithError(memopt_last_error());
    }
}

void region(benchmark::State &state)
{
    Bench b;
    make(&b, MEMOPT_CHECK_NONE, false);
    step(state, &b);
}
BENCHMARK(region);

void region_random(benchmark::State &state)
{
    Bench b;
    make(&b, MEMOPT_CHECK_NONE, true);
    step(state, &b);
}
BENCHMARK(region_random);

void copy_16MiB(benchmark::State &state)
{
    std::vector<unsigned char> from(kChecked, 1), to(kChecked);
    for (auto _ : state) {
        std::memcpy(to.data(), from.data(), kChecked);
        benchmark::ClobberMemory();
    }
    state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kChecked));
}
BENCHMARK(copy_16MiB);

void check_16MiB(benchmark::State &state, uint32_t mode)
{
    Bench b;
    std::vector<unsigned char> data(kChecked, 7);
    b.data = data.data();
    b.leases = 0;
    make(&b, mode, false);
    step(state, &b);
    state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * 2 * kChecked));
}
BENCHMARK_CAPTURE(check_16MiB, hash, uint32_t{MEMOPT_CHECK_HASH});
BENCHMARK_CAPTURE(check_16MiB, exact, uint32_t{MEMOPT_CHECK_EXACT});

} // namespace
