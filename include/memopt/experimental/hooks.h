/**
 * @file hooks.h
 * @brief What a library built on libmemopt needs from it beyond the stable interface.
 *
 * **They may change in any version.**
 */
#ifndef MEMOPT_EXPERIMENTAL_HOOKS_H
#define MEMOPT_EXPERIMENTAL_HOOKS_H

#include <memopt/device.h>

MEMOPT_BEGIN_DECLS

struct memopt_allocator; /* of allocator.h */

/**
 * @brief Records the calling thread's last error and logs it.
 * @param status returned unchanged.
 * @param driver_code a driver's own code or errno; 0 where there is none.
 * @param driver_message that code's name, at most 95 characters; "" or NULL where there is none.
 * @param message at most 1,023 characters; what is longer is cut.
 * @return status.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_set_error(memopt_status status, int32_t driver_code,
                                          const char *driver_message, const char *message);

/**
 * @brief Whether an address is that of a live block of an allocator. Any thread may call it.
 * @param allocator the allocator; NULL owns nothing.
 * @param pointer any address; it is not read.
 * @return 1 if memopt_allocator_alloc() returned it and it was not freed since, else 0.
 * @since 0.9
 */
MEMOPT_API int32_t memopt_allocator_owns(struct memopt_allocator *allocator, const void *pointer);

/** A live block that its user is about to give away; see memopt_allocator_take(). */
typedef struct memopt_taken memopt_taken;

/**
 * @brief Takes a block over, to free it with memopt_allocator_free_taken().
 * @param allocator the allocator.
 * @param pointer a live block.
 * @param bytes how many of its bytes are wanted.
 * @param[out] out_taken valid while the block lives. Nothing has to be given back.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT allocator is NULL, pointer is not the start of a live block, or the
 *         block has fewer bytes.
 * @retval MEMOPT_UNSUPPORTED this process was forked from the one that opened the device.
 *
 * Any thread may call it. It does not wait.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_take(struct memopt_allocator *allocator,
                                               const void *pointer, uint64_t bytes,
                                               memopt_taken **out_taken);

/**
 * @brief Frees a block behind the work so far of the streams that use it.
 * @param allocator the allocator.
 * @param taken the block.
 * @param streams as for memopt_allocator_record_stream(); NULL if count is 0.
 * @param count how many they are.
 * @retval MEMOPT_OK freed.
 * @return any other status of memopt_allocator_record_stream() and memopt_allocator_free(); the
 *         block is then live, and some of the streams may be recorded.
 *
 * Any thread may call it, one for a block. It does not wait.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_allocator_free_taken(struct memopt_allocator *allocator,
                                                     memopt_taken *taken,
                                                     const memopt_stream *streams, uint64_t count);

MEMOPT_END_DECLS

#endif /* MEMOPT_EXPERIMENTAL_HOOKS_H */
