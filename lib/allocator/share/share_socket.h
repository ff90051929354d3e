/* Bytes and file descriptors over a Unix socket; waits also where the socket does not block. */
#ifndef MO_ALLOCATOR_SHARE_SOCKET_H
#define MO_ALLOCATOR_SHARE_SOCKET_H

#include "memopt/base.h"

enum { MO_SHARE_FILES = 64 }; /* at a time */

/* Sends `bytes` bytes and with them `count` descriptors. IO_ERROR. */
memopt_status mo_share_send(int socket, const void *data, size_t bytes, const int32_t *files,
                            uint64_t count);
/* Receives so many bytes, and exactly `count` descriptors with them; on failure none is open. */
memopt_status mo_share_receive(int socket, void *data, size_t bytes, int32_t *files,
                               uint64_t count);
void mo_share_close(const int32_t *files, uint64_t count);

#endif
