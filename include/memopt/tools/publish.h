/**
 * @file publish.h
 * @brief Publishes what this process's allocators hold and cache, for monitors.
 *
 * The driver reports how much device memory a process has, but not how much of it is an allocator's
 * cache. A ::memopt_publisher reports that over a Unix socket which only this user (and root) can
 * reach. Each client that connects gets one line of JSON and the end of the file; the publisher
 * does not read what a client sends.
 *
 *     {"memopt": 1, "version": "0.9.0", "pid": 4711, "allocators": [
 *      {"device": "cuda:0", "allocated": 1024, "allocated_peak": 4096, "reserved": 2097152,
 *       "reserved_peak": 2097152, "ooms": 0, "retries": 0}]}
 *
 * (in one line). Numbers are bytes. "memopt" is the version of this format; later versions only add
 * keys. The cache is reserved minus allocated. `memopt monitor` reads this format.
 *
 * There is no hidden thread: the program calls memopt_publisher_serve() from its own loop or from
 * its own thread. The system's socket buffer takes an answer at once or not at all, so a client
 * that reads slowly or never blocks nobody.
 *
 * **Fork.** A child process cannot use its parent's publisher: every function fails except
 * memopt_publisher_close(), which only releases the child's copy. A program that forks without exec
 * should close it in the child, because the copy keeps the socket open.
 *
 * **Threads.** Every function may be called from any thread at any time. One exception: no other
 * function may run during memopt_publisher_close(). Remove an allocator before it is destroyed.
 */
#ifndef MEMOPT_PUBLISH_H
#define MEMOPT_PUBLISH_H

#include <memopt/allocator.h>

MEMOPT_BEGIN_DECLS

/** @brief A socket that reports statistics of allocators. */
typedef struct memopt_publisher memopt_publisher;

/**
 * @brief Creates the socket and listens on it.
 * @param path the path of the socket, below 100 characters. A stale socket at that path is
 *        replaced. NULL: `$XDG_RUNTIME_DIR/memopt/PID.sock`, or `/tmp/memopt-UID/PID.sock` if that
 *        variable does not name a directory of this user. The directory is created with access for
 *        this user only.
 * @param[out] out_publisher the publisher; close it with memopt_publisher_close().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT out_publisher is NULL, path is empty or too long, or path exists
 *         and is not a socket.
 * @retval MEMOPT_BUSY another process or publisher listens on path.
 * @retval MEMOPT_IO_ERROR the directory or the socket cannot be created, or the directory belongs
 *         to another user or is open to others; the message says which and why.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for the handle.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_publisher_open(const char *path, memopt_publisher **out_publisher);

/**
 * @brief Closes a publisher and removes the socket's file.
 * @param publisher the publisher; NULL does nothing.
 * @retval MEMOPT_OK done. The file is not removed if another publisher has replaced it, or in the
 *         child of a fork.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_publisher_close(memopt_publisher *publisher);

/**
 * @brief Publishes an allocator's statistics.
 * @param publisher the publisher.
 * @param allocator the allocator. Remove it before it is destroyed.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, or the allocator is already published.
 * @retval MEMOPT_LIMIT_REACHED 256 allocators are already published.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY a host allocation failed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_publisher_add(memopt_publisher *publisher,
                                              memopt_allocator *allocator);

/**
 * @brief Publishes the allocators behind memopt_pluggable_alloc(): one entry for each device that
 *        has an allocator when a client asks, including the memory of its graphs. Creates no
 *        allocator.
 * @param publisher the publisher. Close it before memopt_pluggable_end().
 * @retval MEMOPT_OK done, also if it was called before.
 * @retval MEMOPT_INVALID_ARGUMENT publisher is NULL.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY a host allocation failed.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_publisher_add_pluggable(memopt_publisher *publisher);

/**
 * @brief Stops publishing an allocator. When the call returns, the publisher no longer uses it.
 * @param publisher the publisher.
 * @param allocator the allocator.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_NOT_FOUND the allocator is not published.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_publisher_remove(memopt_publisher *publisher,
                                                 memopt_allocator *allocator);

/**
 * @brief Returns the path of the socket.
 * @param publisher the publisher.
 * @return the path, valid until the publisher is closed; NULL if publisher is NULL.
 * @since 0.9
 */
MEMOPT_API const char *memopt_publisher_get_path(const memopt_publisher *publisher);

/**
 * @brief Returns a descriptor for the program's own loop. It is readable when a client waits.
 * @param publisher the publisher.
 * @param[out] out_fd the descriptor. Do not close it.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_publisher_get_fd(const memopt_publisher *publisher,
                                                 int32_t *out_fd);

/**
 * @brief Answers the waiting clients, 64 at most, and returns.
 * @param publisher the publisher.
 * @param timeout_ms the most milliseconds to wait for the first client: 0 does not wait, a negative
 *        value waits without limit. A signal ends the wait.
 * @param[out] out_served the number of clients that were answered; may be NULL.
 * @retval MEMOPT_OK done, also without a client.
 * @retval MEMOPT_INVALID_ARGUMENT publisher is NULL.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork.
 * @retval MEMOPT_IO_ERROR the system cannot accept a connection, for example with too many open
 *         files.
 *
 * It allocates nothing. It takes only the locks of the allocators' statistics, while it reads them.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_publisher_serve(memopt_publisher *publisher, int32_t timeout_ms,
                                                uint64_t *out_served);

MEMOPT_END_DECLS

#endif /* MEMOPT_PUBLISH_H */
