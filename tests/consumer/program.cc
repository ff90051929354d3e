// A program of someone else in C++17: owners of handles, which end in order, and errors as exceptions.
#include <memopt/memopt.hpp>

#include <cstdio>
#include <cstring>

namespace
{

int use(memopt_device *device, memopt_allocator *allocator)
{
    memopt::block block(allocator, 1 << 20), moved(std::move(block));
    memopt::check(memopt_fill(device, moved.data(), 7, 1 << 20, nullptr));
    memopt_optimizer_options options = MEMOPT_OPTIMIZER_OPTIONS_INIT;
    auto optimizer = memopt::made<memopt::optimizer>(memopt_optimizer_create, allocator, &options);
    auto scaler = memopt::made<memopt::scaler>(memopt_scaler_create, device, nullptr);
    memopt::scaler other;
    other = std::move(scaler);
    try {
        memopt::block(allocator, uint64_t{1} << 40);
    } catch (const memopt::error &error) {
        return block.data() == nullptr && scaler == nullptr && other != nullptr &&
                       error.status() == MEMOPT_OUT_OF_DEVICE_MEMORY &&
                       std::strstr(error.what(), "OUT_OF_DEVICE_MEMORY: ") != nullptr
                   ? 0
                   : 1;
    }
    return 1;
}

} // namespace

int main(int count, char **words)
{
    memopt_device_options options = MEMOPT_DEVICE_OPTIONS_INIT;
    options.capacity = 64 << 20;
    auto device = memopt::open_device(count > 1 ? words[1] : "cpu", &options);
    auto allocator = memopt::make_allocator(device);
    int failed = use(device, allocator);
    memopt_memory_info info = MEMOPT_MEMORY_INFO_INIT;
    allocator.reset();
    memopt::check(memopt_device_get_memory_info(device, &info));
    failed |= info.used != 0; /* all that the allocator held is back */
    memopt_device *handle = device.release();
    failed |= memopt_device_close(handle) != MEMOPT_OK; /* nothing of it lives */
    std::puts(failed ? "wrong" : "as expected");
    return failed;
}
