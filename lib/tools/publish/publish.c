/* A publisher: its allocators, and answering clients. */
#define _GNU_SOURCE /* accept4, struct ucred */

#include "tools/publish/publish.h"

#include "base/error.h"
#include "base/memory.h"
#include "tools/lock.h"
#include "tools/pluggable/pluggable.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { AT_ONCE = 64 };

/* --- opening and closing ------------------------------------------------------------------- */

/* Lock held, or nobody else knows it: room for so many allocators and those of frameworks. */
static int make_room(memopt_publisher *publisher, uint64_t count, int pluggable)
{
    uint64_t room =
        MO_PUBLISH_HEAD + MO_PUBLISH_ENTRY * (count + (pluggable ? (uint64_t)MO_PLUG_DEVICES : 0));
    void *list = publisher->allocators, *text = publisher->text;
    if (!mo_grow(&list, &publisher->capacity, count, sizeof(memopt_allocator *)))
        return 0;
    publisher->allocators = list;
    if (!mo_grow(&text, &publisher->room, room, 1))
        return 0;
    publisher->text = text;
    return 1;
}

static void discard(memopt_publisher *publisher)
{
    mo_free(publisher->allocators);
    mo_free(publisher->text);
    mo_free(publisher);
}

memopt_status memopt_publisher_open(const char *path, memopt_publisher **out_publisher)
{
    if (out_publisher == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "publisher_open: out_publisher is NULL");
    memopt_publisher *publisher = mo_calloc(1, sizeof *publisher);
    if (publisher == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    publisher->owner = getpid();
    memopt_status status = MEMOPT_OUT_OF_HOST_MEMORY;
    if (make_room(publisher, 1, 0))
        status = mo_publish_listen(publisher, path);
    if (status != MEMOPT_OK) {
        discard(publisher);
        return status;
    }
    pthread_mutex_init(&publisher->lock, NULL);
    *out_publisher = publisher;
    return MEMOPT_OK;
}

/* The file, if it is still this socket's. */
static void remove_file(const memopt_publisher *publisher)
{
    struct stat info;
    if (lstat(publisher->path, &info) == 0 && info.st_dev == publisher->device &&
        info.st_ino == publisher->inode)
        (void)unlink(publisher->path);
}

/* In the child of a fork the lock may be held for ever, by a thread of the parent. */
memopt_status memopt_publisher_close(memopt_publisher *publisher)
{
    if (publisher == NULL)
        return MEMOPT_OK;
    if (publisher->owner == getpid()) {
        remove_file(publisher);
        pthread_mutex_destroy(&publisher->lock);
    }
    close(publisher->listener);
    discard(publisher);
    return MEMOPT_OK;
}

static memopt_status check(const memopt_publisher *publisher, const char *call)
{
    if (publisher == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: publisher is NULL", call);
    if (publisher->owner != getpid())
        return mo_fail(
            MEMOPT_UNSUPPORTED,
            "%s: the publisher belongs to process %ld, and this process is a fork of it; "
            "close the publisher and open another one",
            call, (long)publisher->owner);
    return MEMOPT_OK;
}

/* --- allocators ---------------------------------------------------------------------------- */

/* Lock held: the allocator's place, or count. */
static uint64_t find(const memopt_publisher *publisher, const memopt_allocator *allocator)
{
    uint64_t i = 0;
    while (i < publisher->count && publisher->allocators[i] != allocator)
        i++;
    return i;
}

static memopt_status add(memopt_publisher *publisher, memopt_allocator *allocator)
{
    if (find(publisher, allocator) < publisher->count)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "publisher_add: the allocator is already published");
    if (publisher->count == MO_PUBLISH_LIST)
        return mo_fail(MEMOPT_LIMIT_REACHED,
                       "publisher_add: %d allocators are published; remove one, or open another "
                       "publisher",
                       MO_PUBLISH_LIST);
    if (!make_room(publisher, publisher->count + 1, publisher->pluggable))
        return MEMOPT_OUT_OF_HOST_MEMORY;
    publisher->allocators[publisher->count++] = allocator;
    return MEMOPT_OK;
}

memopt_status memopt_publisher_add(memopt_publisher *publisher, memopt_allocator *allocator)
{
    memopt_status status = check(publisher, "publisher_add");
    if (status == MEMOPT_OK && allocator == NULL)
        status = mo_fail(MEMOPT_INVALID_ARGUMENT, "publisher_add: allocator is NULL");
    if (status != MEMOPT_OK)
        return status;
    mo_tools_lock(&publisher->lock);
    status = add(publisher, allocator);
    mo_tools_unlock(&publisher->lock);
    return status;
}

memopt_status memopt_publisher_add_pluggable(memopt_publisher *publisher)
{
    memopt_status status = check(publisher, "publisher_add_pluggable");
    if (status != MEMOPT_OK)
        return status;
    mo_tools_lock(&publisher->lock);
    if (make_room(publisher, publisher->count, 1))
        publisher->pluggable = 1;
    else
        status = MEMOPT_OUT_OF_HOST_MEMORY;
    mo_tools_unlock(&publisher->lock);
    return status;
}

memopt_status memopt_publisher_remove(memopt_publisher *publisher, memopt_allocator *allocator)
{
    memopt_status status = check(publisher, "publisher_remove");
    if (status == MEMOPT_OK && allocator == NULL)
        status = mo_fail(MEMOPT_INVALID_ARGUMENT, "publisher_remove: allocator is NULL");
    if (status != MEMOPT_OK)
        return status;
    mo_tools_lock(&publisher->lock);
    uint64_t at = find(publisher, allocator);
    if (at < publisher->count)
        publisher->allocators[at] = publisher->allocators[--publisher->count];
    else
        status = mo_fail(MEMOPT_NOT_FOUND, "publisher_remove: the allocator is not published");
    mo_tools_unlock(&publisher->lock);
    return status;
}

/* --- serving ------------------------------------------------------------------------------- */

const char *memopt_publisher_get_path(const memopt_publisher *publisher)
{
    return publisher == NULL ? NULL : publisher->path;
}

memopt_status memopt_publisher_get_fd(const memopt_publisher *publisher, int32_t *out_fd)
{
    memopt_status status = check(publisher, "publisher_get_fd");
    if (status == MEMOPT_OK && out_fd == NULL)
        status = mo_fail(MEMOPT_INVALID_ARGUMENT, "publisher_get_fd: out_fd is NULL");
    if (status == MEMOPT_OK)
        *out_fd = publisher->listener;
    return status;
}

/* This user or root; a path that the caller chose may lie anywhere. */
static int is_friend(int client)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(client, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           (peer.uid == geteuid() || peer.uid == 0);
}

/* A new connection's buffer takes the whole answer at once, whatever the client does; 1 on
 * success. */
static int answer(memopt_publisher *publisher, int client)
{
    if (!is_friend(client))
        return 0;
    mo_tools_lock(&publisher->lock);
    uint64_t bytes = mo_publish_answer(publisher);
    ssize_t sent = send(client, publisher->text, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    mo_tools_unlock(&publisher->lock);
    return sent == (ssize_t)bytes;
}

/* 1: continue; 0: no client is waiting, or *out_status is the error. */
static int answer_next(memopt_publisher *publisher, uint64_t *served, memopt_status *out_status)
{
    int client = accept4(publisher->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client < 0) {
        int error = errno;
        if (error == ECONNABORTED || error == EINTR)
            return 1;
        if (error != EAGAIN && error != EWOULDBLOCK)
            *out_status =
                mo_fail_driver(MEMOPT_IO_ERROR, error, strerror(error), "publisher_serve: %s: %s",
                               publisher->path, strerror(error));
        return 0;
    }
    *served += (uint64_t)answer(publisher, client);
    close(client);
    return 1;
}

memopt_status memopt_publisher_serve(memopt_publisher *publisher, int32_t timeout_ms,
                                     uint64_t *out_served)
{
    uint64_t served = 0;
    memopt_status status = check(publisher, "publisher_serve");
    if (status != MEMOPT_OK)
        return status;
    struct pollfd waiting = {.fd = publisher->listener, .events = POLLIN};
    if (timeout_ms != 0)
        (void)poll(&waiting, 1, timeout_ms < 0 ? -1 : timeout_ms);
    for (int i = 0; i < AT_ONCE && answer_next(publisher, &served, &status); i++) {
    }
    if (status == MEMOPT_OK && out_served != NULL)
        *out_served = served;
    return status;
}
