/**
 * @file optim_files.h
 * @brief Exports, imports and files of an optimizer's states, whole or of shards.
 *
 * optim.h includes it. An export has groups, step counts and states in one format for every back
 * end. One thread at a time per optimizer, any thread.
 */
#ifndef MEMOPT_OPTIM_FILES_H
#define MEMOPT_OPTIM_FILES_H

#include <memopt/optim.h>

MEMOPT_BEGIN_DECLS

/**
 * @brief Writes groups, step counts and states into host memory, in a versioned, checksummed format
 *        that is the same on every back end. Waits for the stream.
 * @param optimizer the optimizer.
 * @param bytes the size of buffer, at least *out_bytes.
 * @param stream the stream.
 * @param[out] buffer host memory. NULL: nothing is written and nothing waits; ask so for the size.
 * @param[out] out_bytes the size of the export; may be NULL if buffer is not.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL or bytes is too small.
 * @retval MEMOPT_CORRUPT with page_bytes or trust: an earlier step ended in part; import a saved state.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_FAULT a host allocation or
 *         the driver failed or device memory was misused; see memopt_last_error().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_export_sync(memopt_optimizer *optimizer, uint64_t bytes,
                                                      memopt_stream stream, void *buffer,
                                                      uint64_t *out_bytes);

/**
 * @brief Receives the pieces of an export in their order.
 * @param user the pointer given to memopt_optimizer_export_pieces_sync().
 * @param piece host memory, valid during the call only.
 * @param bytes its size, 1 to 1048576.
 * @return #MEMOPT_OK to continue. Any other value ends the export and is returned unchanged.
 */
typedef memopt_status (*memopt_export_writer)(void *user, const void *piece, uint64_t bytes);

/**
 * @brief Exports as memopt_optimizer_export_sync() does, the same bytes, but in pieces: it needs 1
 *        MiB of page-locked host memory, however large the states are. Waits for the stream.
 * @param optimizer the optimizer.
 * @param writer called for each piece, without a lock held. It must not change the optimizer.
 * @param user passed to writer.
 * @param stream the stream.
 * @retval MEMOPT_OK done: the writer has had all bytes.
 * @retval MEMOPT_INVALID_ARGUMENT optimizer or writer is NULL.
 * @retval MEMOPT_CORRUPT, MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_FAULT as for
 *         memopt_optimizer_export_sync(). What the writer has had is not an export.
 * @return otherwise the value that writer returned.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_export_pieces_sync(memopt_optimizer *optimizer,
                                                             memopt_export_writer writer,
                                                             void *user, memopt_stream stream);

/**
 * @brief Reads the output of memopt_optimizer_export_sync(). Everything is checked before anything
 *        changes. Waits for the stream.
 *
 * With `converts` it takes states of every format of the rule, and those of older versions: AdamW's
 * in the dynamic map of 4 bits (3) and in e4m3 (4), and blocks of other sizes (powers of two from 32
 * to 4096), which are decoded on the host. Moments of another format or of other blocks become f32
 * and then this optimizer's: the bits are those of memopt_dequantize() and memopt_quantize(), and of
 * memopt_cast() to nearest for ::MEMOPT_STATE_BF16. Moments of the same format, step counts and
 * residuals keep their bits. The conversion runs on the device, a part at a time, and takes at most
 * 2 MiB of the optimizer's allocator.
 *
 * It needs 1 MiB of page-locked host memory. The export may be of whole parameters and the optimizer
 * have shards of them; an export of shards is enough for a process that has no other elements.
 * @param optimizer an optimizer of the same rule with the same parameters (count, whole sizes and,
 *        unless it converts, state formats).
 * @param buffer host memory.
 * @param bytes its size.
 * @param converts 1: states of other formats are converted; 0: they are refused.
 * @param stream the stream.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT a pointer is NULL, converts is neither 0 nor 1, the rule,
 *         split_weights or the parameters are not the same, or the export does not have all elements;
 *         the message names the first difference.
 * @retval MEMOPT_CORRUPT the bytes are damaged, cut short, or not an export.
 * @retval MEMOPT_UNSUPPORTED the export has a newer version of the format.
 * @retval MEMOPT_OUT_OF_DEVICE_MEMORY there is no room for the conversion; nothing has changed.
 * @retval MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_FAULT a host allocation or
 *         the driver failed, or device memory was misused; see memopt_last_error(). If the device
 *         fails while states are being copied, some may hold imported values: import again.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_import_sync(memopt_optimizer *optimizer,
                                                      const void *buffer, uint64_t bytes,
                                                      uint32_t converts, memopt_stream stream);

/**
 * @brief Reads bytes of an export, in any order and more than once. It is called on the importing
 *        thread, without a lock held, and must not change the optimizer.
 * @param user the pointer of the ::memopt_export_source.
 * @param offset the first byte, from 0; offset + bytes is at most the source's size.
 * @param bytes how many, 1 to 1048576.
 * @param[out] out_bytes host memory for them.
 * @return #MEMOPT_OK to continue. Any other value ends the import and is returned unchanged.
 */
typedef memopt_status (*memopt_export_reader)(void *user, uint64_t offset, uint64_t bytes,
                                              void *out_bytes);

/** @brief An export that memopt_optimizer_import_pieces_sync() reads. @since 0.9 */
typedef struct memopt_export_source {
    memopt_export_reader reader; /**< Gives its bytes. */
    void *user;                  /**< Passed to reader. */
    uint64_t bytes;              /**< Its size, or more. */
} memopt_export_source;

/**
 * @brief Imports as memopt_optimizer_import_sync() does, from one or more exports, which together
 *        have all elements that the optimizer has, and piece by piece: it needs 1 MiB of page-locked
 *        host memory, however large the states are. Waits for the stream.
 *
 * So the exports of any number of processes, each with its ::memopt_shard, go into any other number
 * and any other cut; no state is coded again. Of each export the headers and checksums are read, then
 * the elements that are wanted. Groups are those of the first export.
 * @param optimizer as for memopt_optimizer_import_sync().
 * @param sources the exports, in any order. They may overlap.
 * @param count their number, at least 1.
 * @param converts as for memopt_optimizer_import_sync().
 * @param stream the stream.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT as for memopt_optimizer_import_sync(), or count is 0, or an
 *         element that the optimizer has is in no export, or exports tell different step counts of a
 *         parameter; the message has the numbers of the parameter and of the export, from 0. Or a
 *         shard begins within a block: an older library's blocks may have more than 256 elements.
 * @retval MEMOPT_CORRUPT, MEMOPT_UNSUPPORTED, MEMOPT_OUT_OF_DEVICE_MEMORY,
 *         MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_FAULT as for
 *         memopt_optimizer_import_sync().
 * @return otherwise the value that a reader returned; behind the checks some states may then hold
 *         imported values: import again.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_import_pieces_sync(memopt_optimizer *optimizer,
                                                             const memopt_export_source *sources,
                                                             uint64_t count, uint32_t converts,
                                                             memopt_stream stream);

/**
 * @brief Writes an export into a file. The file is written as "PATH.part" beside its place, synced
 *        to the disk and renamed, and the folder is synced: whenever the process or the machine ends,
 *        path is the old file or the new one. Waits for the stream.
 * @param optimizer the optimizer.
 * @param path the file, which is replaced if it exists; each process has one of its own.
 * @param stream the stream.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT optimizer or path is NULL, or path is empty.
 * @retval MEMOPT_IO_ERROR the file could not be made, written or renamed: the message says why, and
 *         how many bytes of how many were written. path is as it was, and "PATH.part" is gone. If the
 *         folder could not be synced, path is the new file.
 * @retval MEMOPT_CORRUPT, MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_FAULT as for
 *         memopt_optimizer_export_sync(); path is as it was.
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_save_sync(memopt_optimizer *optimizer, const char *path,
                                                    memopt_stream stream);

/**
 * @brief Imports from files that memopt_optimizer_save_sync() wrote, as
 *        memopt_optimizer_import_pieces_sync() does. Waits for the stream.
 * @param optimizer the optimizer.
 * @param paths the files of all processes, or those that have this one's elements, in any order.
 * @param count their number, at least 1.
 * @param converts as for memopt_optimizer_import_sync().
 * @param stream the stream.
 * @retval MEMOPT_OK done.
 * @retval MEMOPT_INVALID_ARGUMENT as for memopt_optimizer_import_pieces_sync(), or a path is NULL or
 *         not of a regular file.
 * @retval MEMOPT_IO_ERROR a file could not be opened or read; see memopt_last_error().
 * @retval MEMOPT_CORRUPT, MEMOPT_UNSUPPORTED, MEMOPT_OUT_OF_DEVICE_MEMORY,
 *         MEMOPT_OUT_OF_HOST_MEMORY, MEMOPT_DRIVER_ERROR, MEMOPT_DEVICE_FAULT as for
 *         memopt_optimizer_import_sync().
 * @since 0.9
 */
MEMOPT_API memopt_status memopt_optimizer_load_sync(memopt_optimizer *optimizer,
                                                    const char *const *paths, uint64_t count,
                                                    uint32_t converts, memopt_stream stream);

MEMOPT_END_DECLS

#endif /* MEMOPT_OPTIM_FILES_H */
