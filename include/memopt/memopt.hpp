/**
 * @file memopt.hpp
 * @brief C++17: owners of libmemopt's handles, and exceptions in place of statuses.
 *
 *     auto device = memopt::open_device("cuda:0");
 *     auto allocator = memopt::make_allocator(device, "expandable_segments:True");
 *     memopt::block block(allocator, bytes, stream);
 *     memopt::check(memopt_fill(device, block.data(), 0, bytes, stream));
 *
 * An owner converts to its C handle: every function of the C interface takes it. It can be moved and
 * not copied. Its destructor ends the handle as the C call does and keeps its result to itself; an
 * end that would fail because something still lives is forced where the interface has a call for it.
 * Declare owners in the order of their use: C++ destroys them in the other one. This header has no
 * part in the library's ABI.
 */
#ifndef MEMOPT_MEMOPT_HPP
#define MEMOPT_MEMOPT_HPP

#include <memopt/memopt.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace memopt {

/// A status that is not MEMOPT_OK, with the library's message.
class error : public std::runtime_error
{
  public:
    explicit error(memopt_status status)
        : std::runtime_error(std::string(memopt_status_name(status)) + ": " + memopt_last_error()),
          status_(status)
    {
    }

    memopt_status status() const noexcept { return status_; }

  private:
    memopt_status status_;
};

/// Throws memopt::error unless the status is MEMOPT_OK. It must come right behind the call, on its
/// thread.
inline void check(memopt_status status)
{
    if (status != MEMOPT_OK)
        throw error(status);
}

/// The owner of a handle that End ends.
template <class T, memopt_status (*End)(T *)> class owner
{
  public:
    using type = T;

    owner() noexcept = default;
    explicit owner(T *handle) noexcept : handle_(handle) {}
    owner(owner &&other) noexcept : handle_(other.release()) {}
    owner(const owner &) = delete;
    owner &operator=(const owner &) = delete;
    owner &operator=(owner &&other) noexcept
    {
        reset(other.release());
        return *this;
    }
    ~owner() { reset(); }

    operator T *() const noexcept { return handle_; }

    /// Gives the handle up without ending it.
    T *release() noexcept { return std::exchange(handle_, nullptr); }

    void reset(T *handle = nullptr) noexcept
    {
        if (T *old = std::exchange(handle_, handle))
            (void)End(old);
    }

  private:
    T *handle_ = nullptr;
};

using device = owner<memopt_device, memopt_device_close>;
using event = owner<memopt_event, memopt_event_destroy>;
using allocator = owner<memopt_allocator, memopt_allocator_destroy_force>;
using region = owner<memopt_region, memopt_region_destroy>;
using schedule = owner<memopt_schedule, memopt_schedule_destroy>;
using offloader = owner<memopt_offloader, memopt_offloader_destroy_force>;
using streamer = owner<memopt_streamer, memopt_streamer_destroy_force>;
using optimizer = owner<memopt_optimizer, memopt_optimizer_destroy>;
using scaler = owner<memopt_scaler, memopt_scaler_destroy>;

/// An owner of what a call creates, whose last parameter is the handle:
/// `auto scaler = memopt::made<memopt::scaler>(memopt_scaler_create, device, nullptr)`.
template <class Owner, class Create, class... Arguments>
Owner made(Create create, Arguments &&...arguments)
{
    typename Owner::type *handle = nullptr;
    check(create(std::forward<Arguments>(arguments)..., &handle));
    return Owner(handle);
}

inline device open_device(const char *name, const memopt_device_options *options = nullptr)
{
    return made<device>(memopt_device_open, name, options);
}

inline allocator make_allocator(memopt_device *device, const char *config = nullptr)
{
    return made<allocator>(memopt_allocator_create, device, config, nullptr);
}

/// A block of an allocator, freed in the order of its stream.
class block
{
  public:
    block(memopt_allocator *allocator, uint64_t bytes, memopt_stream stream = nullptr,
          memopt_tag tag = MEMOPT_TAG_OTHER)
        : allocator_(allocator)
    {
        check(memopt_allocator_alloc(allocator, bytes, tag, stream, &data_));
    }
    block(block &&other) noexcept
        : allocator_(other.allocator_), data_(std::exchange(other.data_, nullptr))
    {
    }
    block &operator=(block &&) = delete;
    ~block()
    {
        if (data_ != nullptr)
            (void)memopt_allocator_free(allocator_, data_);
    }

    void *data() const noexcept { return data_; }

  private:
    memopt_allocator *allocator_;
    void *data_ = nullptr;
};

} // namespace memopt

#endif // MEMOPT_MEMOPT_HPP
