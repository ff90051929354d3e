/**
 * @file share.h
 * @brief Blocks of device memory that several processes use at the same addresses of the device.
 *
 * One process exports a block of its allocator, the other one imports it: both then use the same
 * memory, without a copy. What travels is a message of #MEMOPT_SHARE_MESSAGE_BYTES bytes and a
 * POSIX file descriptor for each page of the block, over a Unix socket. memopt_export_send() and
 * memopt_import_receive() do that; programs with their own transport take message and descriptors
 * from memopt_export_describe() and give them to memopt_import_open().
 *
 * **Lifetimes.** While an export exists, its block keeps its memory: a free is completed when the
 * export ends; trims, moves and pauses leave the pages alone, and a pause leaves the block usable.
 * An import keeps the memory alive by itself: the exporting process may free the block, end or be
 * killed. Descriptors that are under way keep it alive, too. A process that ends gives back what it
 * has imported.
 *
 * **Order.** Streams of two processes have no order: the programs must tell each other when work is
 * complete (memopt_stream_sync(), then a message).
 *
 * **Devices.** Both processes use the same GPU, whatever its number is in each; on the "cpu" device
 * any two processes of a machine can share. The block lies in an expandable segment.
 *
 * **Threads.** Exports may be used from any thread, one call at a time for each; imports alike.
 */
#ifndef MEMOPT_SHARE_H
#define MEMOPT_SHARE_H

#include <memopt/allocator.h>

MEMOPT_BEGIN_DECLS

/** @brief Bytes of the message that describes an exported block. */
#define MEMOPT_SHARE_MESSAGE_BYTES 128

/** @brief A block that other processes may import. */
typedef struct memopt_export memopt_export;

/** @brief A block of another process. */
typedef struct memopt_import memopt_import;

/**
 * @brief Lets other processes import a block.
 * @param allocator the allocator or pool.
 * @param pointer the first byte of a live block of it, in an expandable segment. It may be exported
 *        several times.
 * @param[out] out_export the export; end it with memopt_export_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, or pointer is not the start of a live block.
 * @retval MEMOPT_UNSUPPORTED the block lies in a classic segment (the configuration lacks
 *         expandable_segments:True, or the memory is page-locked or a provider's), the device or
 *         its driver cannot share memory between processes, or this is the child of a fork.
 * @retval MEMOPT_BUSY the block's tag is paused, or the call comes from a range observer.
 * @retval MEMOPT_LIMIT_REACHED the block has 255 exports.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no memory for the handle.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST the driver failed; see memopt_last_error().
 * @since 0.9
 *
 * An importing process sees whole pages: also what lies beside a block that does not fill its first
 * and last page. memopt_allocator_destroy() gives #MEMOPT_BUSY while exports exist.
 * memopt_allocator_destroy_force() ends the block; the export can only be destroyed then, and what
 * is imported stays.
 */
MEMOPT_API memopt_status memopt_export_create(memopt_allocator *allocator, void *pointer,
                                              memopt_export **out_export);

/**
 * @brief Ends an export. What is imported stays. If the block was freed meanwhile, its memory is
 *        free now.
 * @param shared the export; NULL does nothing.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork of the process that made it.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_export_destroy(memopt_export *shared);

/**
 * @brief Writes the message that describes an export, and opens the file descriptors that belong to
 *        it, one for each page.
 * @param shared the export.
 * @param room how many descriptors out_files has room for: at least as many as there are.
 * @param[out] out_message #MEMOPT_SHARE_MESSAGE_BYTES bytes.
 * @param[out] out_files the descriptors, which the caller closes. They are closed by an exec. NULL:
 *        none is opened.
 * @param[out] out_count the number of descriptors.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, room is too small, or the allocator was
 *         destroyed by force.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY no descriptor is left.
 * @retval MEMOPT_UNSUPPORTED the driver cannot do it, or this is the child of a fork.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_LOST the driver failed; see memopt_last_error(). None
 *         is open.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_export_describe(const memopt_export *shared, uint64_t room,
                                                void *out_message, int32_t *out_files,
                                                uint64_t *out_count);

/**
 * @brief Sends an export over a Unix socket, for one memopt_import_receive() at its other end.
 * @param shared the export.
 * @param socket a connected Unix stream or seqpacket socket. Nobody else writes to it meanwhile.
 * @retval MEMOPT_OK all is written.
 * @retval MEMOPT_INVALID_ARGUMENT shared is NULL, or its allocator was destroyed by force.
 * @retval MEMOPT_IO_ERROR the socket failed, or its other end was closed. Close it: a part of the
 *         export may have been written.
 * @return also what memopt_export_describe() returns.
 * @since 0.9
 *
 * It has at most 64 descriptors open at a time, and waits while the socket is full, also if the
 * socket does not block.
 */
MEMOPT_API memopt_status memopt_export_send(const memopt_export *shared, int32_t socket);

/**
 * @brief Imports a block from its message and descriptors.
 * @param device the device that has the memory. It must outlive the import.
 * @param message from memopt_export_describe().
 * @param bytes of it.
 * @param files all descriptors of the export, in order. The caller closes them, at any time.
 * @param count how many.
 * @param[out] out_pointer the first byte of the block.
 * @param[out] out_bytes its size as the exporting allocator rounded it; may be NULL.
 * @param[out] out_import the import; end it with memopt_import_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, the message is cut short or damaged, the
 *         number of descriptors does not fit it, or one of them is not of such memory.
 * @retval MEMOPT_UNSUPPORTED the message is of another version or another device, its pages are no
 *         multiple of this device's, the device or its driver cannot share memory, or this is the
 *         child of a fork.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_OUT_OF_DEVICE_MEMORY, MEMOPT_DRIVER_ERROR,
 *         MEMOPT_DEVICE_LOST host memory, descriptors or the driver; see memopt_last_error().
 *         Nothing is reserved or mapped then.
 * @since 0.9
 *
 * It reserves as many addresses as the block has pages, and at most one page more. The memory
 * counts in the exporting process only.
 */
MEMOPT_API memopt_status memopt_import_open(memopt_device *device, const void *message,
                                            uint64_t bytes, const int32_t *files, uint64_t count,
                                            void **out_pointer, uint64_t *out_bytes,
                                            memopt_import **out_import);

/**
 * @brief Imports the block that memopt_export_send() writes to the other end of a Unix socket.
 * @param device the device that has the memory. It must outlive the import.
 * @param socket a connected Unix stream or seqpacket socket. Nobody else reads from it meanwhile.
 * @param[out] out_pointer the first byte of the block.
 * @param[out] out_bytes its size as the exporting allocator rounded it; may be NULL.
 * @param[out] out_import the import; end it with memopt_import_destroy().
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_IO_ERROR the socket failed, or its other end was closed before all was there.
 * @return also what memopt_import_open() returns. After a failure the socket may hold a rest of the
 *         export: close it. All descriptors that came are closed.
 * @since 0.9
 *
 * Waits for the other end, also if the socket does not block.
 */
MEMOPT_API memopt_status memopt_import_receive(memopt_device *device, int32_t socket,
                                               void **out_pointer, uint64_t *out_bytes,
                                               memopt_import **out_import);

/**
 * @brief Waits for all work of the device and gives an imported block back.
 * @param import the import; NULL does nothing.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_UNSUPPORTED this is the child of a fork of the process that made it.
 * @retval MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_FAULT the wait or the driver failed. The import is as
 *         before, or partly unmapped; the call can be repeated.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_import_destroy(memopt_import *import);

MEMOPT_END_DECLS

#endif /* MEMOPT_SHARE_H */
