/*
 * A memopt_allocator as a memory resource of RMM (26.06 and later) and of anything that takes one by
 * cuda::mr::resource: RMM's adaptors, containers and libraries on it (cuDF, cuML) then take their device memory from it.
 *
 *     rmm::mr::set_current_device_resource(memopt_rmm::resource(allocator));
 *
 * A resource borrows the allocator, which must outlive it and every copy of it. Copies are equal. Any thread may
 * use it. Out of memory is rmm::out_of_memory with the library's message, so that RMM's failure_callback_resource_adaptor
 * and its users' retries work; every other failure is memopt::error.
 */
#ifndef MEMOPT_RMM_HPP
#define MEMOPT_RMM_HPP

#include <memopt/memopt.hpp>

#include <cuda/memory_resource>
#include <cuda/stream>
#include <rmm/error.hpp>

#include <cstddef>
#include <cstdint>

namespace memopt_rmm
{

class resource
{
  public:
    explicit resource(memopt_allocator *allocator, memopt_tag tag = MEMOPT_TAG_OTHER) noexcept
        : allocator_(allocator), tag_(tag)
    {
    }

    /// For work on the stream. The alignment is a power of two; up to 512 costs nothing.
    void *allocate(cuda::stream_ref stream, std::size_t bytes,
                   std::size_t alignment = BLOCK_ALIGNMENT)
    {
        const std::size_t more = alignment > BLOCK_ALIGNMENT ? alignment - BLOCK_ALIGNMENT : 0;
        if (bytes > SIZE_MAX - more)
            throw rmm::out_of_memory("memopt: more bytes than there are addresses");
        void *block = nullptr;
        const memopt_status status = memopt_allocator_alloc(
            allocator_, bytes == 0 ? 0 : bytes + more, tag_, handle(stream), &block);
        if (status == MEMOPT_OUT_OF_DEVICE_MEMORY || status == MEMOPT_OUT_OF_HOST_MEMORY)
            throw rmm::out_of_memory(memopt_last_error());
        memopt::check(status);
        if (more == 0)
            return block;
        const auto address = reinterpret_cast<std::uintptr_t>(block) + alignment - 1;
        return reinterpret_cast<void *>(address & ~(std::uintptr_t{alignment} - 1));
    }

    /// What the stream has now may still use it, whichever stream it was allocated for.
    void deallocate(cuda::stream_ref stream, void *pointer, std::size_t,
                    std::size_t = BLOCK_ALIGNMENT) noexcept
    {
        void *block = nullptr;
        if (pointer == nullptr ||
            memopt_allocator_get_block(allocator_, pointer, &block, nullptr) != MEMOPT_OK)
            return;
        if (memopt_allocator_record_stream(allocator_, block, handle(stream)) == MEMOPT_OK &&
            memopt_allocator_free(allocator_, block) == MEMOPT_OK)
            return;
        /* No event could be had: wait for the stream instead. */
        (void)memopt_stream_sync(device(), handle(stream));
        (void)memopt_allocator_free(allocator_, block);
    }

    /// For any stream, at once.
    void *allocate_sync(std::size_t bytes, std::size_t alignment = BLOCK_ALIGNMENT)
    {
        const cuda::stream_ref first{cudaStream_t{nullptr}};
        void *pointer = allocate(first, bytes, alignment);
        const memopt_status status = memopt_stream_sync(device(), nullptr);
        if (status != MEMOPT_OK) {
            const memopt::error failed(status);
            deallocate(first, pointer, bytes, alignment);
            throw failed;
        }
        return pointer;
    }

    /// No work uses it any more.
    void deallocate_sync(void *pointer, std::size_t bytes,
                         std::size_t alignment = BLOCK_ALIGNMENT) noexcept
    {
        deallocate(cuda::stream_ref{cudaStream_t{nullptr}}, pointer, bytes, alignment);
    }

    bool operator==(const resource &other) const noexcept
    {
        return allocator_ == other.allocator_;
    }
    bool operator!=(const resource &other) const noexcept
    {
        return !(*this == other);
    }

    friend void get_property(const resource &, cuda::mr::device_accessible) noexcept
    {
    }

  private:
    static constexpr std::size_t BLOCK_ALIGNMENT = 512;

    static memopt_stream handle(cuda::stream_ref stream) noexcept
    {
        return reinterpret_cast<memopt_stream>(stream.get());
    }

    memopt_device *device() const noexcept
    {
        memopt_allocator_info info = MEMOPT_ALLOCATOR_INFO_INIT;
        (void)memopt_allocator_get_info(allocator_, &info);
        return info.device;
    }

    memopt_allocator *allocator_;
    memopt_tag tag_;
};

static_assert(cuda::mr::resource_with<resource, cuda::mr::device_accessible>,
              "this RMM's resources are others: the adapter is for RMM 26.06 and later");

} // namespace memopt_rmm

#endif // MEMOPT_RMM_HPP
