// What an allocation and its free cost the host, in the cases the field measures. glibc's malloc of
// the same sizes stands beside each as the yardstick of the machine and the moment.
#include <benchmark/benchmark.h>

#include <memopt/memopt.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

namespace
{

void need(memopt_status status)
{
    if (status != MEMOPT_OK) {
        std::fprintf(stderr, "%s\n", memopt_last_error());
        std::abort();
    }
}

// splitmix64
uint64_t next_random(uint64_t &state)
{
    uint64_t z = (state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

// From 512 B to about 512 KiB, as activations of a small model are.
uint64_t random_size(uint64_t &state)
{
    uint64_t r = next_random(state);
    return ((r >> 8) % 512 + 1) << (r % 11);
}

struct Memopt {
    memopt_device *device = nullptr;
    memopt_allocator *allocator = nullptr;

    explicit Memopt(const char *config, uint64_t capacity = UINT64_C(16) << 30)
    {
        memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
        options.capacity = capacity;
        options.threads = 1;
        need(memopt_device_open("cpu", &options, &device));
        need(memopt_allocator_create(device, config, nullptr, &allocator));
    }
    ~Memopt()
    {
        need(memopt_allocator_destroy_force(allocator));
        need(memopt_device_close(device));
    }
    void *take(uint64_t bytes, memopt_stream stream = nullptr)
    {
        void *pointer;
        need(memopt_allocator_alloc(allocator, bytes, MEMOPT_TAG_ACTIVATIONS, stream, &pointer));
        return pointer;
    }
    void give(void *pointer)
    {
        need(memopt_allocator_free(allocator, pointer));
    }
};

struct Glibc {
    explicit Glibc(const char *)
    {
    }
    void *take(uint64_t bytes)
    {
        void *pointer = std::malloc(bytes);
        benchmark::DoNotOptimize(pointer);
        return pointer;
    }
    void give(void *pointer)
    {
        std::free(pointer);
    }
};

// The same size again and again.
template <class A> void ping_pong(benchmark::State &state, const char *config)
{
    A a(config);
    for (auto _ : state)
        a.give(a.take(4096));
}

// `live` blocks of random sizes; each step replaces a random one.
template <class A> void with_live(benchmark::State &state, const char *config)
{
    A a(config);
    uint64_t random = 1;
    std::vector<void *> live(static_cast<size_t>(state.range(0)));
    for (void *&block : live)
        block = a.take(random_size(random));
    for (auto _ : state) {
        void *&block = live[next_random(random) % live.size()];
        a.give(block);
        block = a.take(random_size(random));
    }
    for (void *block : live)
        a.give(block);
}

// A pair of 5 MiB beside free blocks that are too small, each with unmapped addresses behind it.
void holes_expandable(benchmark::State &state)
{
    const uint64_t mib = UINT64_C(1) << 20;
    Memopt a("expandable_segments:True", UINT64_C(512) << 30);
    std::vector<void *> pins, holes;
    for (int64_t i = 0; i < state.range(0); i++) {
        pins.push_back(a.take(2 * mib));
        holes.push_back(a.take(9 * mib));
        if (holes.size() == 100) {
            for (void *hole : holes)
                a.give(hole);
            holes.clear();
            need(memopt_allocator_trim_sync(a.allocator, 0, nullptr));
            for (int k = 0; k < 100; k++)
                holes.push_back(a.take(3 * mib));
            for (void *hole : holes)
                a.give(hole);
            holes.clear();
        }
    }
    for (auto _ : state)
        a.give(a.take(5 * mib));
}

// A pair on one of many streams.
void streams_expandable(benchmark::State &state)
{
    Memopt a("expandable_segments:True");
    std::vector<memopt_stream> streams(static_cast<size_t>(state.range(0)));
    for (memopt_stream &stream : streams) {
        need(memopt_stream_create(a.device, &stream));
        a.give(a.take(4096, stream));
    }
    for (auto _ : state)
        a.give(a.take(4096, streams.front()));
    for (memopt_stream stream : streams)
        need(memopt_stream_destroy(a.device, stream));
}

// Threads share one allocator and one stream.
template <class A> void threads(benchmark::State &state, const char *config)
{
    static A *shared;
    if (state.thread_index() == 0)
        shared = new A(config);
    for (auto _ : state)
        shared->give(shared->take(4096));
    if (state.thread_index() == 0) {
        delete shared;
        shared = nullptr;
    }
}

// Threads share one allocator, each with a stream of its own.
void threads_own_streams(benchmark::State &state)
{
    static Memopt *shared;
    static std::vector<memopt_stream> streams;
    if (state.thread_index() == 0) {
        shared = new Memopt("expandable_segments:True");
        streams.resize(static_cast<size_t>(state.threads()));
        for (memopt_stream &stream : streams)
            need(memopt_stream_create(shared->device, &stream));
    }
    for (auto _ : state)
        shared->give(shared->take(4096, streams[static_cast<size_t>(state.thread_index())]));
    if (state.thread_index() == 0) {
        for (memopt_stream stream : streams)
            need(memopt_stream_destroy(shared->device, stream));
        delete shared;
        shared = nullptr;
    }
}

const char expandable[] = "expandable_segments:True";

// A pair while something else is there: what it costs beside pair/plain.
void pair_plain(benchmark::State &state)
{
    ping_pong<Memopt>(state, expandable);
}

void pair_history(benchmark::State &state)
{
    memopt_history_options options = MEMOPT_HISTORY_OPTIONS_INIT;
    Memopt a(expandable);
    need(memopt_allocator_set_history(a.allocator, &options));
    for (auto _ : state)
        a.give(a.take(4096));
}

// Eight tags in turn.
void pair_tags(benchmark::State &state)
{
    Memopt a(expandable);
    std::vector<memopt_tag> tags(8);
    for (size_t i = 0; i < tags.size(); i++)
        need(memopt_allocator_register_tag(a.allocator, ("tag " + std::to_string(i)).c_str(),
                                           &tags[i]));
    uint64_t pairs = 0;
    for (auto _ : state) {
        void *pointer;
        need(memopt_allocator_alloc(a.allocator, 4096, tags[pairs++ % 8], nullptr, &pointer));
        a.give(pointer);
    }
}

// A block is freed that a stream uses which is at work until the end.
void pair_pending(benchmark::State &state)
{
    Memopt a(expandable);
    memopt_stream stream;
    std::mutex busy;
    need(memopt_stream_create(a.device, &stream));
    busy.lock();
    need(memopt_stream_host_callback(
        a.device, stream,
        [](void *user) { std::lock_guard<std::mutex> wait(*static_cast<std::mutex *>(user)); },
        &busy));
    void *block = a.take(4096);
    need(memopt_allocator_record_stream(a.allocator, block, stream));
    a.give(block);
    for (auto _ : state)
        a.give(a.take(4096));
    busy.unlock();
    need(memopt_stream_destroy(a.device, stream));
}

// A step of so many allocations and their frees, the same each time, with a plan or without. The
// rate is of allocations.
template <bool planned> void step(benchmark::State &state)
{
    Memopt a(expandable);
    const size_t count = static_cast<size_t>(state.range(0));
    std::vector<void *> live(count);
    auto run = [&] {
        uint64_t random = 7;
        size_t alive = 0;
        if (planned)
            need(memopt_allocator_mark_step(a.allocator, MEMOPT_STEP_NEXT));
        for (size_t i = 0; i < count; i++) {
            live[alive++] = a.take(random_size(random));
            if (next_random(random) % 3 != 0)
                continue;
            size_t which = alive - 1 - next_random(random) % std::min<size_t>(alive, 8);
            a.give(live[which]);
            live[which] = live[--alive];
        }
        while (alive > 0)
            a.give(live[--alive]);
    };
    for (int i = 0; i < 8; i++)
        run();
    for (auto _ : state)
        run();
    state.SetItemsProcessed(static_cast<int64_t>(count) * state.iterations());
}

void step_plan(benchmark::State &state)
{
    step<true>(state);
}
void step_plain(benchmark::State &state)
{
    step<false>(state);
}

void ping_pong_classic(benchmark::State &state)
{
    ping_pong<Memopt>(state, "");
}
void ping_pong_expandable(benchmark::State &state)
{
    ping_pong<Memopt>(state, expandable);
}
void ping_pong_malloc(benchmark::State &state)
{
    ping_pong<Glibc>(state, "");
}
void live_classic(benchmark::State &state)
{
    with_live<Memopt>(state, "");
}
void live_expandable(benchmark::State &state)
{
    with_live<Memopt>(state, expandable);
}
void live_malloc(benchmark::State &state)
{
    with_live<Glibc>(state, "");
}
void threads_expandable(benchmark::State &state)
{
    threads<Memopt>(state, expandable);
}
void threads_malloc(benchmark::State &state)
{
    threads<Glibc>(state, "");
}

BENCHMARK(ping_pong_classic);
BENCHMARK(ping_pong_expandable);
BENCHMARK(ping_pong_malloc);
BENCHMARK(live_classic)->Arg(200)->Arg(2000)->Arg(20000);
BENCHMARK(live_expandable)->Arg(200)->Arg(2000)->Arg(20000);
BENCHMARK(live_malloc)->Arg(200)->Arg(2000)->Arg(20000);
BENCHMARK(holes_expandable)->Arg(500)->Arg(4000)->Arg(16000);
BENCHMARK(streams_expandable)->Arg(10)->Arg(1900);
BENCHMARK(pair_plain)->Name("pair/plain");
BENCHMARK(pair_history)->Name("pair/history");
BENCHMARK(pair_tags)->Name("pair/tags");
BENCHMARK(pair_pending)->Name("pair/pending");
BENCHMARK(step_plain)->Name("step/plain")->Arg(200)->Arg(2000);
BENCHMARK(step_plan)->Name("step/plan")->Arg(200)->Arg(2000);
BENCHMARK(threads_expandable)->Threads(1)->Threads(2)->Threads(4);
BENCHMARK(threads_own_streams)->Threads(1)->Threads(2);
BENCHMARK(threads_malloc)->Threads(1)->Threads(2)->Threads(4);

} // namespace
