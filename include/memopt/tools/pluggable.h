/**
 * @file pluggable.h
 * @brief Entry points for frameworks that take an allocator as plain function addresses, such as
 * PyTorch's `torch.cuda.memory.CUDAPluggableAllocator`.
 *
 * Those addresses carry no pointer of the user's, so what is behind them belongs to the process:
 * one memopt_allocator for each device, made at its first allocation as
 * memopt_pluggable_configure() says, and further ones for the graphs that are recorded (see
 * memopt_pluggable_begin_pool()).
 *
 * The functions whose result is void or an address have the signatures that PyTorch calls; what
 * goes wrong in those without a way to tell it is logged as an error.
 *
 * **Threads.** Every function may be called from any thread at any time, but
 * memopt_pluggable_configure() and memopt_pluggable_end() only while no other one runs.
 *
 * **Streams.** As in allocator.h: `stream` is the CUstream or hipStream_t, NULL the default one.
 */
#ifndef MEMOPT_PLUGGABLE_H
#define MEMOPT_PLUGGABLE_H

#include <memopt/allocator.h>

MEMOPT_BEGIN_DECLS

/**
 * @brief Tells the framework that an allocation failed, in place of a returned NULL. It has the
 * signature of `c10::detail::torchCheckFail(char const*, char const*, unsigned, char const*)`.
 * @param function the function that failed.
 * @param file the library's name.
 * @param line 0.
 * @param message one line; begins with "CUDA out of memory." or "HIP out of memory." where that is
 *        why. Valid during the call only.
 *
 * It is called without a lock held and may leave by a C++ exception or longjmp; where it returns,
 * the allocation returns NULL.
 */
typedef void (*memopt_pluggable_raise)(const char *function, const char *file, uint32_t line,
                                       const char *message);

/**
 * @brief Says how allocators are to be made. Without it: backend "cuda", no configuration.
 * @param backend "cuda", "hip" or "cpu"; device index 1 is then "cuda:1". The driver is not loaded
 *        yet.
 * @param config as of memopt_allocator_create(), below 1,000 characters; NULL for defaults.
 * @param raise called by memopt_pluggable_alloc_or_raise(); may be NULL.
 * @retval MEMOPT_OK done; also where the same was said before.
 * @retval MEMOPT_INVALID_ARGUMENT backend is none of these, or config is wrong (the message names
 *         the key) or too long; nothing is changed.
 * @retval MEMOPT_BUSY an allocator was made already, with another back end or configuration;
 *         nothing is changed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_pluggable_configure(const char *backend, const char *config,
                                                    memopt_pluggable_raise raise);

/**
 * @brief Allocates device memory: memopt_allocator_alloc() of the device's allocator.
 * @param size bytes; 0 gives NULL.
 * @param device index of the device, 0 to 63.
 * @param stream the stream whose work will use it first.
 * @return the block, aligned to 512 bytes; NULL where it failed, with the reason in
 *         memopt_last_error().
 * @since 0.9
 */
MEMOPT_API void *memopt_pluggable_alloc(uint64_t size, int32_t device, memopt_stream stream);

/**
 * @brief The same for frameworks that do not look at what comes back, as PyTorch does not where a
 * pluggable allocator serves the whole process: a failure is told by ::memopt_pluggable_raise.
 * @param size as of memopt_pluggable_alloc().
 * @param device as of memopt_pluggable_alloc().
 * @param stream as of memopt_pluggable_alloc().
 * @return the block; NULL where size is 0, or where it failed and no function was configured or
 *         that one returned.
 * @since 0.9
 */
MEMOPT_API void *memopt_pluggable_alloc_or_raise(uint64_t size, int32_t device,
                                                 memopt_stream stream);

/**
 * @brief Frees a block. Work of its stream that uses it may still be pending.
 * @param pointer as given by memopt_pluggable_alloc(); NULL is fine.
 * @param size not looked at.
 * @param device the index that it was allocated with.
 * @param stream not looked at.
 * @since 0.9
 */
MEMOPT_API void memopt_pluggable_free(void *pointer, uint64_t size, int32_t device,
                                      memopt_stream stream);

/**
 * @brief Says that work on another stream uses a block: memopt_allocator_record_stream().
 * @param pointer a live block of any device.
 * @param stream the other stream.
 * @since 0.9
 */
MEMOPT_API void memopt_pluggable_record_stream(void *pointer, memopt_stream stream);

/**
 * @brief Gives cached memory of all devices back: memopt_allocator_trim_sync(). Memory that a graph
 * may still use stays.
 * @since 0.9
 */
MEMOPT_API void memopt_pluggable_empty_cache(void);

/**
 * @brief Limits what is held of a device's memory; memory of graphs is not counted.
 * @param fraction of the device's memory, 0 to 1.
 * @param device index of the device.
 * @since 0.9
 */
MEMOPT_API void memopt_pluggable_memory_fraction(double fraction, int32_t device);

/**
 * @brief From now on, what is allocated on a stream of the device while that stream records a graph
 * comes from a pool of its own, whose memory nobody else gets before
 * memopt_pluggable_release_pool().
 * @param device index of the device.
 * @param id_high first half of the pool's name; an id that is in use continues that pool.
 * @param id_low second half.
 * @param filter not looked at: that the stream records is what counts.
 *
 * A graph replays with the addresses that it was recorded with, those of temporaries included, so
 * they must not be given to others while the graph lives. Two graphs of one device cannot be
 * recorded at the same time into different pools: what was begun last takes the allocations. May
 * wait for the device, where the memory of a released pool goes back.
 * @since 0.9
 */
MEMOPT_API void memopt_pluggable_begin_pool(int32_t device, uint64_t id_high, uint64_t id_low,
                                            void *filter);

/**
 * @brief The pool takes no further allocations.
 * @param device index of the device.
 * @param id_high as of memopt_pluggable_begin_pool().
 * @param id_low as of memopt_pluggable_begin_pool().
 * @since 0.9
 */
MEMOPT_API void memopt_pluggable_end_pool(int32_t device, uint64_t id_high, uint64_t id_low);

/**
 * @brief The graph is gone: undoes one memopt_pluggable_begin_pool(). After the last one, the
 * pool's memory goes back to the device, once its blocks are freed. May wait for the device.
 * @param device index of the device.
 * @param id_high as of memopt_pluggable_begin_pool().
 * @param id_low as of memopt_pluggable_begin_pool().
 * @since 0.9
 */
MEMOPT_API void memopt_pluggable_release_pool(int32_t device, uint64_t id_high, uint64_t id_low);

/**
 * @brief The allocators of a device, for statistics and snapshots.
 * @param device index of the device.
 * @param index 0 is the one that serves all but graphs, and is made where it is not there yet;
 * those of graphs follow.
 * @param[out] out_allocator valid until memopt_pluggable_end(); not to be destroyed.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT out_allocator is NULL or device is not 0 to 63.
 * @retval MEMOPT_NOT_FOUND there is no allocator of this index, or no such device.
 * @retval MEMOPT_UNSUPPORTED, MEMOPT_DRIVER_MISSING, MEMOPT_DRIVER_ERROR,
 *         MEMOPT_OUT_OF_HOST_MEMORY as told: the first allocator cannot be made.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_pluggable_get_allocator(int32_t device, uint64_t index,
                                                        memopt_allocator **out_allocator);

/**
 * @brief Ends all allocators and devices behind the entry points, and forgets the configuration.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_BUSY blocks are still allocated; nothing is changed.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST, MEMOPT_DEVICE_FAULT as told; the allocators are
 *         gone all the same.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_pluggable_end(void);

MEMOPT_END_DECLS

#endif /* MEMOPT_PLUGGABLE_H */
