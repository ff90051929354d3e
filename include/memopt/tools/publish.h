/**
 * @file publish.h
 * @brief Letting a monitor see what this process's allocators hold and cache.
 *
 * The driver tells how much device memory a process has, not how much of it is an allocator's
 * cache. A ::memopt_publisher answers that over a Unix socket which only this user (and root) can
 * reach: who connects gets one line of JSON and the end of the file; nothing that he sends is
 * looked at.
 *
 *     {"memopt": 1, "version": "0.9.0", "pid": 4711, "allocators": [
 *      {"device": "cuda:0", "allocated": 1024, "allocated_peak": 4096, "reserved": 2097152,
 *       "reserved_peak": 2097152, "ooms": 0, "retries": 0}]}
 *
 * (in one line). Numbers are bytes; "memopt" is the version of this format, which gains keys only.
 * "cached" is what reserved has more than allocated. `memopt monitor` reads it.
 *
 * There is no hidden thread: the program calls memopt_publisher_serve() from its own loop or from a
 * thread that it made for that. An answer goes into the connection's buffer in the system at once
 * or not at all, so a client that reads slowly, or never, holds nobody up.
 *
 * **Fork.** A child has no part in its parent's publisher: there every function but
 * memopt_publisher_close() fails, and that one only ends the child's copy. A program that forks
 * without exec should close it in the child, since the copy keeps the socket alive.
 *
 * **Threads.** Every function may be called from any thread at any time, but
 * memopt_publisher_close() only while no other one runs. An allocator must be removed before it is
 * destroyed.
 */
#ifndef MEMOPT_PUBLISH_H
#define MEMOPT_PUBLISH_H

#include <memopt/allocator.h>

MEMOPT_BEGIN_DECLS

/** @brief A socket that tells about allocators. */
typedef struct memopt_publisher memopt_publisher;

/**
 * @brief Makes the socket and listens on it.
 * @param path where it is to lie, below 100 characters; what is left of a socket that nobody
 *        listens on any more is replaced. NULL: `$XDG_RUNTIME_DIR/memopt/PID.sock`, or
 *        `/tmp/memopt-UID/PID.sock` where that variable names no folder of this user's; the folder
 *        is made, with access for this user alone.
 * @param[out] out_publisher the publisher; ended by memopt_publisher_close().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT out_publisher is NULL, path is empty or too long, or something
 *         that is no socket lies there.
 * @retval MEMOPT_BUSY somebody listens on path.
 * @retval MEMOPT_IO_ERROR the folder or the socket cannot be made, or the folder belongs to another
 *         user or is open to others; the message tells which and why.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for the handle.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_publisher_open(const char *path, memopt_publisher **out_publisher);

/**
 * @brief Ends it and removes the socket's file.
 * @param publisher the publisher; NULL is fine.
 * @retval MEMOPT_OK done. The file stays where another one has taken its place, and in the child of
 *         a fork.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_publisher_close(memopt_publisher *publisher);

/**
 * @brief Publishes an allocator's statistics.
 * @param publisher the publisher.
 * @param allocator the allocator; to be removed before it is destroyed.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, or it is published already.
 * @retval MEMOPT_LIMIT_REACHED 256 are published already.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for the list.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_publisher_add(memopt_publisher *publisher,
                                              memopt_allocator *allocator);

/**
 * @brief Publishes what is behind memopt_pluggable_alloc(): one entry for each device that has an
 * allocator by the time of an answer, with the memory of its graphs. Makes none.
 * @param publisher the publisher; to be closed before memopt_pluggable_end().
 * @retval MEMOPT_OK done; also where it was said before.
 * @retval MEMOPT_INVALID_ARGUMENT publisher is NULL.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for the answer.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_publisher_add_pluggable(memopt_publisher *publisher);

/**
 * @brief Publishes an allocator no longer. After it returned, nothing of the publisher uses it.
 * @param publisher the publisher.
 * @param allocator the allocator.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_NOT_FOUND it is not published.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_publisher_remove(memopt_publisher *publisher,
                                                 memopt_allocator *allocator);

/**
 * @brief Where the socket lies.
 * @param publisher the publisher.
 * @return the path, valid until it is closed; NULL where publisher is NULL.
 * @since 0.9
 */
MEMOPT_API const char *memopt_publisher_get_path(const memopt_publisher *publisher);

/**
 * @brief What to wait for in the program's own loop: readable where somebody is to be answered.
 * @param publisher the publisher.
 * @param[out] out_fd the descriptor; not to be closed.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_publisher_get_fd(const memopt_publisher *publisher,
                                                 int32_t *out_fd);

/**
 * @brief Answers who is waiting, 64 at most, and returns.
 * @param publisher the publisher.
 * @param timeout_ms the most milliseconds to wait for the first one: 0 does not wait, below 0 waits
 *        as long as it takes. A signal ends the wait as well.
 * @param[out] out_served how many were answered; may be NULL.
 * @retval MEMOPT_OK done; there may have been none.
 * @retval MEMOPT_INVALID_ARGUMENT publisher is NULL.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork.
 * @retval MEMOPT_IO_ERROR the system does not let it accept (too many open files, say).
 *
 * It allocates nothing, and takes no lock but those under which the allocators keep their
 * statistics, for as long as reading them takes.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_publisher_serve(memopt_publisher *publisher, int32_t timeout_ms,
                                                uint64_t *out_served);

MEMOPT_END_DECLS

#endif /* MEMOPT_PUBLISH_H */
