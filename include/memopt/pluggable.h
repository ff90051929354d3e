/**
 * @file pluggable.h
 * @brief Entry points for frameworks that take an allocator as plain function addresses, such as
 *        PyTorch's `torch.cuda.memory.CUDAPluggableAllocator`.
 *
 * These functions have no user pointer, so their state belongs to the process. There is one
 * memopt_allocator per device, created at its first allocation with the settings of
 * memopt_pluggable_configure(). Graphs that are recorded use further ones (see
 * memopt_pluggable_begin_pool()).
 *
 * The functions that return void or an address have the signatures that PyTorch calls. If one of
 * them fails and cannot report it, the failure is logged as an error.
 *
 * **Threads.** Every function may be called from any thread at any time. One exception: no other
 * function may run during memopt_pluggable_configure() and memopt_pluggable_end().
 *
 * **Streams.** As in allocator.h: `stream` is the CUstream or hipStream_t; NULL is the default
 * stream.
 */
#ifndef MEMOPT_PLUGGABLE_H
#define MEMOPT_PLUGGABLE_H

#include <memopt/allocator.h>

MEMOPT_BEGIN_DECLS

/**
 * @brief Reports to the framework that an allocation failed, instead of returning NULL. It has the
 *        signature of `c10::detail::torchCheckFail(char const*, char const*, unsigned, char
 *        const*)`.
 * @param function the function that failed.
 * @param file the library's name.
 * @param line 0.
 * @param message one line. It begins with "CUDA out of memory." or "HIP out of memory." if that is
 *        the reason. Valid during the call only.
 *
 * It is called without a lock held. It may throw a C++ exception or call longjmp. If it returns,
 * the allocation returns NULL.
 */
typedef void (*memopt_pluggable_raise)(const char *function, const char *file, uint32_t line,
                                       const char *message);

/**
 * @brief Finds what throws PyTorch's exceptions, for memopt_pluggable_configure(): a failure
 *        becomes `c10::OutOfMemoryError` (in Python `torch.OutOfMemoryError`) if its message begins
 *        with "CUDA out of memory." or "HIP out of memory.", and `c10::Error` (RuntimeError)
 *        otherwise.
 * @param libc10 the path of torch's libc10.so, which the program has loaded. It stays loaded.
 * @param[out] out_raise the function.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_NOT_FOUND the library is not loaded, or it lacks a function; the message names it.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_pluggable_find_torch(const char *libc10,
                                                     memopt_pluggable_raise *out_raise);

/**
 * @brief Sets how allocators are created. Without this call: backend "cuda", default configuration.
 * @param backend "cuda", "hip" or "cpu". Device index 1 is then "cuda:1". The driver is not loaded
 *        yet.
 * @param config as for memopt_allocator_create(), below 1,000 characters; NULL for defaults.
 * @param raise called by memopt_pluggable_alloc_or_raise(); may be NULL.
 * @retval MEMOPT_OK done, also if it was called with the same values before.
 * @retval MEMOPT_INVALID_ARGUMENT backend is none of these, or config is invalid (the message names
 *         the key) or too long. Nothing changed.
 * @retval MEMOPT_BUSY an allocator already exists with another back end or configuration. Nothing
 *         changed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_pluggable_configure(const char *backend, const char *config,
                                                    memopt_pluggable_raise raise);

/**
 * @brief Allocates device memory: memopt_allocator_alloc() of the device's allocator.
 * @param size bytes; 0 gives NULL.
 * @param device index of the device, 0 to 63.
 * @param stream the stream whose work will use it first.
 * @return the block, aligned to 512 bytes. NULL if it failed; memopt_last_error() has the reason.
 * @since 0.9
 */
MEMOPT_API void *memopt_pluggable_alloc(uint64_t size, int32_t device, memopt_stream stream);

/**
 * @brief Allocates as memopt_pluggable_alloc() does, but reports a failure through
 *        ::memopt_pluggable_raise. For frameworks that do not check the result: PyTorch does not if
 *        a pluggable allocator serves the whole process.
 * @param size as for memopt_pluggable_alloc().
 * @param device as for memopt_pluggable_alloc().
 * @param stream as for memopt_pluggable_alloc().
 * @return the block. NULL if size is 0, or if it failed and no ::memopt_pluggable_raise was
 *        configured or it returned.
 * @since 0.9
 */
MEMOPT_API void *memopt_pluggable_alloc_or_raise(uint64_t size, int32_t device,
                                                 memopt_stream stream);

/**
 * @brief Sets what this thread's allocations are for, until it sets something else: the tag of
 *        every block that memopt_pluggable_alloc() and memopt_pluggable_alloc_or_raise() give it,
 *        on every device, in pools of graphs, too. Tags count bytes by purpose, and
 *        memopt_pool_pause_sync() can pause some of them.
 * @param name up to 31 characters: "weights", "gradients", "optimizer", "activations", "other", or
 *        one of your own, which each device's allocator gets at its first allocation
 *        (memopt_allocator_register_tag()); NULL: "other", with which every thread begins.
 * @param[out] out_previous what the thread had before, valid as long as the process; may be NULL.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT name is empty or too long. Nothing changed.
 * @retval MEMOPT_LIMIT_REACHED 64 names were used in this process. Nothing changed.
 * @since 0.9
 *
 * While the tag is paused, allocations fail with #MEMOPT_BUSY.
 */
MEMOPT_API memopt_status memopt_pluggable_set_tag(const char *name, const char **out_previous);

/**
 * @brief Frees a block. Work of its stream that uses it may still be pending.
 * @param pointer the block from memopt_pluggable_alloc(); NULL does nothing.
 * @param size ignored.
 * @param device the index with which it was allocated.
 * @param stream ignored.
 * @since 0.9
 */
MEMOPT_API void memopt_pluggable_free(void *pointer, uint64_t size, int32_t device,
                                      memopt_stream stream);

/**
 * @brief Records that another stream uses a block: memopt_allocator_record_stream().
 * @param pointer a live block of any device.
 * @param stream the other stream.
 * @since 0.9
 */
MEMOPT_API void memopt_pluggable_record_stream(void *pointer, memopt_stream stream);

/**
 * @brief Gives cached memory of all devices back: memopt_allocator_trim_sync(). Memory that a graph
 *        may still use is kept.
 * @since 0.9
 */
MEMOPT_API void memopt_pluggable_empty_cache(void);

/**
 * @brief Gives cached memory of a device back until its allocators, those of graphs included, hold
 *        at most `target` bytes: first all memory of released pools, then what
 *        memopt_allocator_trim_sync() gives back. Live blocks and memory that a graph may still
 *        use are not touched.
 * @param device index of the device, 0 to 63. Without an allocator nothing is held, and none is
 *        made.
 * @param target bytes; 0: all that is cached.
 * @param[out] out_released bytes given back; may be NULL. Not written on failure.
 * @retval MEMOPT_OK done. If more than target is in use, all that is cached was given back. While a
 *         stream of the device records a graph, nothing is given back.
 * @retval MEMOPT_INVALID_ARGUMENT device is not 0 to 63.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork of the process that made the allocator.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST, MEMOPT_DEVICE_FAULT a
 *         host allocation, the driver or a wait failed; see memopt_last_error(). Memory that was
 *         not given back stays cached.
 *
 * It waits for the streams whose memory it gives back, and for the device if a released pool holds
 * memory.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_pluggable_trim_to_sync(int32_t device, uint64_t target,
                                                       uint64_t *out_released);

/**
 * @brief Limits the device memory that the allocator holds, memory of graphs included.
 * @param fraction of the device's memory, 0 to 1.
 * @param device index of the device.
 * @since 0.9
 */
MEMOPT_API void memopt_pluggable_memory_fraction(double fraction, int32_t device);

/**
 * @brief Begins a pool for a graph. From now on, allocations on a stream of the device, while that
 *        stream records a graph, come from this pool. Nobody else gets its memory before
 *        memopt_pluggable_release_pool().
 * @param device index of the device.
 * @param id_high first half of the pool's id; an id that is in use continues that pool.
 * @param id_low second half of the pool's id.
 * @param filter ignored: the test is whether the stream records a graph.
 *
 * A graph replays with the addresses of its recording, those of temporaries included, so nobody
 * else may get them while the graph exists. Two graphs of one device cannot be recorded at the same
 * time into different pools: the pool that was begun last gets the allocations. The call may wait
 * for the device if the memory of a released pool is given back.
 * @since 0.9
 */
MEMOPT_API void memopt_pluggable_begin_pool(int32_t device, uint64_t id_high, uint64_t id_low,
                                            void *filter);

/**
 * @brief Ends the allocations of a pool.
 * @param device index of the device.
 * @param id_high as for memopt_pluggable_begin_pool().
 * @param id_low as for memopt_pluggable_begin_pool().
 * @since 0.9
 */
MEMOPT_API void memopt_pluggable_end_pool(int32_t device, uint64_t id_high, uint64_t id_low);

/**
 * @brief Releases a pool after its graph is destroyed: undoes one memopt_pluggable_begin_pool().
 *        After the last release, the pool's memory goes back to the device when its blocks are
 *        freed. May wait for the device.
 * @param device index of the device.
 * @param id_high as for memopt_pluggable_begin_pool().
 * @param id_low as for memopt_pluggable_begin_pool().
 * @since 0.9
 */
MEMOPT_API void memopt_pluggable_release_pool(int32_t device, uint64_t id_high, uint64_t id_low);

/**
 * @brief Returns an allocator of a device, for statistics and snapshots.
 * @param device index of the device.
 * @param index 0: the allocator for everything except graphs; it is created if it does not exist. 1
 *        and above: those of graphs.
 * @param[out] out_allocator the allocator, valid until memopt_pluggable_end(). Do not destroy it.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT out_allocator is NULL or device is not 0 to 63.
 * @retval MEMOPT_NOT_FOUND there is no allocator with this index, or no such device.
 * @retval MEMOPT_UNSUPPORTED, MEMOPT_DRIVER_MISSING, MEMOPT_DRIVER_ERROR, MEMOPT_OUT_OF_HOST_MEMORY
 *         the first allocator cannot be created; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_pluggable_get_allocator(int32_t device, uint64_t index,
                                                        memopt_allocator **out_allocator);

/**
 * @brief Returns the id of the pool behind an allocator of memopt_pluggable_get_allocator().
 * @param device index of the device.
 * @param index as for memopt_pluggable_get_allocator(); 0 has the id 0, 0.
 * @param[out] out_high first half of the id, as given to memopt_pluggable_begin_pool().
 * @param[out] out_low second half of the id.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or device is not 0 to 63.
 * @retval MEMOPT_NOT_FOUND there is no allocator with this index.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_pluggable_get_pool(int32_t device, uint64_t index,
                                                   uint64_t *out_high, uint64_t *out_low);

/**
 * @brief Finds the contiguous device memory around a block: of a classic segment all, of an
 *        expandable one the mapped range. Libraries that register memory for transfers need it.
 * @param pointer a live block of any device.
 * @param[out] out_bytes the size of the range; may be NULL. Not written on failure.
 * @return the range's first byte; NULL if no allocator has given out the block. It takes time in
 *         proportion to the number of blocks. The range stays mapped while the block lives; its
 *         other parts may be unmapped and mapped again.
 * @since 0.9
 */
MEMOPT_API void *memopt_pluggable_base_alloc(void *pointer, uint64_t *out_bytes);

/**
 * @brief Is told when memopt_pluggable_alloc_or_raise() finds no memory, before the failure is
 *        raised.
 * @param device index of the device.
 * @param asked the requested bytes.
 * @param allocated bytes in blocks of the device's first allocator.
 * @param free_bytes bytes that are free on the device.
 *
 * It is called without a lock held, on the thread that allocates, and may call the library. It must
 * return.
 */
typedef void (*memopt_pluggable_observer)(int32_t device, uint64_t asked, uint64_t allocated,
                                          uint64_t free_bytes);

/**
 * @brief Sets who is told when memory runs out.
 * @param observer the only one from now on; NULL: nobody. Until memopt_pluggable_end().
 * @since 0.9
 */
MEMOPT_API void memopt_pluggable_observe(memopt_pluggable_observer observer);

/**
 * @brief Lets allocators that are created from now on record their traces, from their first block
 *        on: memopt_allocator_trace() to FOLDER/DEVICE-TIME-NUMBER.csv, with the microseconds
 *        since 1970 at which it begins and a new number for each. A file that cannot be written is
 *        logged, and the allocator works without it.
 * @param folder an existing folder, below 1,000 characters; NULL: no more traces.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT the name is too long.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_pluggable_trace(const char *folder);

/**
 * @brief Lets allocators that are created from now on keep a history, from their first event on:
 *        memopt_allocator_set_history().
 * @param options how; NULL: no more histories. What its pointers refer to stays valid until
 *        memopt_pluggable_end().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT options->struct_size is too small.
 * @retval MEMOPT_UNSUPPORTED options sets a field that this version does not know.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_pluggable_history(const memopt_history_options *options);

/**
 * @brief Destroys all allocators and closes all devices behind these functions, and forgets the
 *        configuration, the observer, the folder of traces and the options of histories.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_BUSY blocks are still allocated. Nothing changed.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST, MEMOPT_DEVICE_FAULT a wait or a driver call
 *         failed; the allocators are destroyed anyway.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_pluggable_end(void);

MEMOPT_END_DECLS

#endif /* MEMOPT_PLUGGABLE_H */
