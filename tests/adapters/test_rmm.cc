/* RMM's own library on our resource: its adaptors and its buffers, on the simulated CUDA driver. */
#include "adapters/memopt_rmm.hpp"

#include <rmm/device_buffer.hpp>
#include <rmm/mr/failure_callback_resource_adaptor.hpp>
#include <rmm/mr/limiting_resource_adaptor.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define CHECK(condition)                                                                           \
    ((condition)                                                                                   \
         ? (void)0                                                                                 \
         : (std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition), std::exit(1)))

static const cuda::stream_ref first{cudaStream_t{nullptr}};

static uint64_t live(memopt_allocator *allocator)
{
    uint64_t bytes = 0;
    memopt::check(memopt_allocator_get_stat(allocator, "allocated_bytes.all.current", &bytes));
    return bytes;
}

static void any_alignment(memopt_allocator *allocator)
{
    memopt_rmm::resource memory(allocator, MEMOPT_TAG_WEIGHTS);
    for (std::size_t alignment = 1; alignment <= 4 << 20; alignment *= 2) {
        void *pointer = memory.allocate(first, 1000, alignment);
        CHECK(reinterpret_cast<std::uintptr_t>(pointer) % alignment == 0);
        CHECK(live(allocator) >= 1000);
        memory.deallocate(first, pointer, 1000, alignment);
        CHECK(live(allocator) == 0);
    }
    memory.deallocate(first, memory.allocate(first, 0), 0);
    memory.deallocate_sync(memory.allocate_sync(5000), 5000);
    CHECK(live(allocator) == 0);
    CHECK(memory == memopt_rmm::resource(allocator));
}

/* Freed on a stream whose work is not done, a block does not go to its own stream before that. */
static void other_streams(memopt_device *device, memopt_allocator *allocator)
{
    memopt_rmm::resource memory(allocator);
    memopt_stream other;
    memopt::check(memopt_stream_create(device, &other));
    const cuda::stream_ref second{reinterpret_cast<cudaStream_t>(other)};
    void *block = memory.allocate(first, 1 << 20);
    memopt::check(memopt_fill(device, block, 1, 1 << 20, other));
    memory.deallocate(second, block, 1 << 20);
    void *next = memory.allocate(first, 1 << 20);
    memopt::check(memopt_fill(device, next, 2, 1 << 20, nullptr));
    memory.deallocate(first, next, 1 << 20);
    memopt::check(memopt_device_sync(device));
    memopt::check(memopt_stream_destroy(device, other));
}

static bool give_up(std::size_t bytes, void *calls)
{
    CHECK(bytes == std::size_t{1} << 40);
    return ++*static_cast<int *>(calls) < 3; /* try again */
}

static void adaptors(memopt_allocator *allocator)
{
    int calls = 0;
    memopt_rmm::resource memory(allocator);
    rmm::mr::statistics_resource_adaptor counted(memory);
    rmm::mr::limiting_resource_adaptor limited(counted, 1 << 20);
    rmm::mr::failure_callback_resource_adaptor<> patient(memory, give_up, &calls);
    void *pointer = limited.allocate(first, 700000, 256);
    CHECK(counted.get_bytes_counter().value == 700000 && live(allocator) >= 700000);
    bool failed = false;
    try {
        limited.deallocate(first, limited.allocate(first, 700000, 256), 700000, 256);
    } catch (const rmm::out_of_memory &) {
        failed = true;
    }
    CHECK(failed);
    limited.deallocate(first, pointer, 700000, 256);
    failed = false;
    try {
        patient.deallocate(first, patient.allocate(first, std::size_t{1} << 40, 256), 0, 256);
    } catch (const rmm::out_of_memory &error) {
        failed = std::strstr(error.what(), "1.00 TiB asked for other") != nullptr;
    }
    CHECK(failed && calls == 3);
    CHECK(live(allocator) == 0);
}

static void buffers(memopt_allocator *allocator)
{
    memopt_rmm::resource memory(allocator);
    rmm::device_buffer buffer(100000, first, memory);
    CHECK(live(allocator) >= 100000);
    rmm::device_buffer moved(std::move(buffer));
    CHECK(memopt_allocator_get_block(allocator, moved.data(), nullptr, nullptr) == MEMOPT_OK);
}

int main()
{
    auto device = memopt::open_device("cuda:0");
    auto allocator = memopt::make_allocator(device, "expandable_segments:True");
    any_alignment(allocator);
    other_streams(device, allocator);
    adaptors(allocator);
    buffers(allocator);
    CHECK(live(allocator) == 0);
    return 0;
}
