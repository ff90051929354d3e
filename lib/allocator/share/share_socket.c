/* Descriptors over a Unix socket, with SCM_RIGHTS. */
#define _GNU_SOURCE /* MSG_CMSG_CLOEXEC */

#include "allocator/share/share_socket.h"

#include "base/checked.h"
#include "base/error.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(MO_SHARE_FILES * sizeof(int))];
} control;

void mo_share_close(const int32_t *files, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        (void)close(files[i]);
}

static memopt_status fail_socket(const char *what, int code)
{
    return mo_fail_driver(MEMOPT_IO_ERROR, code, strerror(code), "%s over the socket failed: %s",
                          what, strerror(code));
}

/* 1 after a wait where the call may be repeated. */
static int wait_for(int socket, short what, int code)
{
    struct pollfd ready = {socket, what, 0};
    const struct timespec moment = {0, 1000000};
    if (code == EINTR)
        return 1;
    if (code == ETOOMANYREFS) /* too many descriptors are under way */
        return nanosleep(&moment, NULL) == 0 || errno == EINTR;
    return (code == EAGAIN || code == EWOULDBLOCK) && (poll(&ready, 1, -1) >= 0 || errno == EINTR);
}

memopt_status mo_share_send(int socket, const void *data, size_t bytes, const int32_t *files,
                            uint64_t count)
{
    control files_of = {0};
    size_t done = 0;
    while (done < bytes) {
        struct iovec part = {(char *)(uintptr_t)data + done, bytes - done};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        if (done == 0 && count > 0) {
            message.msg_control = files_of.bytes;
            message.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
            struct cmsghdr *head = CMSG_FIRSTHDR(&message);
            head->cmsg_level = SOL_SOCKET;
            head->cmsg_type = SCM_RIGHTS;
            head->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
            memcpy(CMSG_DATA(head), files, (size_t)count * sizeof(int));
        }
        ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL);
        if (sent < 0 && !wait_for(socket, POLLOUT, errno))
            return fail_socket("export: sending", errno);
        done += sent > 0 ? (size_t)sent : 0;
    }
    return MEMOPT_OK;
}

/* Takes the descriptors out of a message; those that find no room are closed. */
static void take_files(struct msghdr *message, int32_t *files, uint64_t most, uint64_t *got,
                       uint64_t *extra)
{
    for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head != NULL;
         head = CMSG_NXTHDR(message, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int file;
            memcpy(&file, CMSG_DATA(head) + i * sizeof(int), sizeof file);
            if (*got < most)
                files[(*got)++] = file;
            else {
                (void)close(file);
                ++*extra;
            }
        }
    }
}

memopt_status mo_share_receive(int socket, void *data, size_t bytes, int32_t *files, uint64_t count)
{
    uint64_t got = 0, extra = 0;
    int cut = 0;
    size_t done = 0;
    while (done < bytes) {
        control files_of;
        struct iovec part = {(char *)data + done, bytes - done};
        struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = files_of.bytes,
                                 .msg_controllen = sizeof files_of.bytes};
        ssize_t more = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
        if (more < 0 && wait_for(socket, POLLIN, errno))
            continue;
        int code = errno;
        if (more > 0)
            take_files(&message, files, count, &got, &extra);
        cut |= more > 0 && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
        if (more <= 0) {
            mo_share_close(files, got);
            return more < 0 ? fail_socket("import: receiving", code)
                            : mo_fail(MEMOPT_IO_ERROR,
                                      "import: the other end of the socket was closed, %zu bytes "
                                      "before the end of a message",
                                      bytes - done);
        }
        done += (size_t)more;
    }
    if (got == count && extra == 0 && !cut)
        return MEMOPT_OK;
    mo_share_close(files, got);
    return mo_fail(MEMOPT_INVALID_ARGUMENT,
                   "import: %" PRIu64 " file descriptors came%s, not %" PRIu64
                   "; is the limit of open files reached?",
                   got + extra, cut ? " and more were dropped" : "", count);
}
