/*
 * Where a publisher's socket lies, and making it there.
 *
 * A socket is bound under another name, listens, and is then renamed. So if a named socket refuses
 * a connection, its process is gone and the socket may be replaced.
 */
#define _GNU_SOURCE /* secure_getenv, accept4's flags */

#include "tools/publish/publish.h"

#include "base/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 64, PLACES = 8, NEW_SUFFIX = 8 };

static memopt_status fail_system(const char *what, const char *path, int error)
{
    return mo_fail_driver(MEMOPT_IO_ERROR, error, strerror(error), "publisher_open: %s %s: %s",
                          what, path, strerror(error));
}

/* --- the folder ---------------------------------------------------------------------------- */

/* A folder of this user's that others cannot write to. */
static int is_own_folder(const char *path, mode_t closed)
{
    struct stat info;
    return lstat(path, &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid() &&
           (info.st_mode & closed) == 0;
}

static memopt_status make_folder(char *folder, size_t size)
{
    const char *run = secure_getenv("XDG_RUNTIME_DIR");
    int length;
    if (run != NULL && run[0] == '/' && is_own_folder(run, S_IWGRP | S_IWOTH))
        length = snprintf(folder, size, "%s/memopt", run);
    else
        length = snprintf(folder, size, "/tmp/memopt-%ld", (long)geteuid());
    if (length < 0 || (size_t)length >= size)
        return mo_fail(MEMOPT_IO_ERROR,
                       "publisher_open: the path of XDG_RUNTIME_DIR has %d characters; at most %zu "
                       "fit; give another path",
                       length, size - 1);
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        return fail_system("the folder", folder, errno);
    if (is_own_folder(folder, S_IRWXG | S_IRWXO))
        return MEMOPT_OK;
    return mo_fail(MEMOPT_IO_ERROR,
                   "publisher_open: %s must be owned by uid %ld, mode 0700; correct or remove "
                   "it, or give another path",
                   folder, (long)geteuid());
}

/* --- the socket ---------------------------------------------------------------------------- */

static int new_socket(void)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0)
        (void)fchmod(fd, 0600); /* what bind() gives the file; the folder guards it as well */
    return fd;
}

/* Checks the path: nothing or a dead socket may be replaced, anything else may not. */
static memopt_status check_place(const struct sockaddr_un *address)
{
    struct stat info;
    const char *path = address->sun_path;
    if (lstat(path, &info) != 0)
        return errno == ENOENT ? MEMOPT_OK : fail_system("the socket", path, errno);
    if (!S_ISSOCK(info.st_mode))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "publisher_open: %s exists and is not a socket; give another path", path);
    int fd = new_socket();
    if (fd < 0)
        return fail_system("the socket", path, errno);
    int refused = connect(fd, (const struct sockaddr *)address, sizeof *address) != 0;
    int error = refused ? errno : 0;
    close(fd);
    if (error == ECONNREFUSED || error == ENOENT)
        return MEMOPT_OK;
    return mo_fail(MEMOPT_BUSY,
                   "publisher_open: another publisher listens on %s; give another path", path);
}

/* Binds under a temporary name, listens, and renames. The socket, or -1 with errno. */
static int bind_and_name(const char *path, struct stat *out_info)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s.%d", path, (int)(getpid() % 100000));
    int fd = new_socket();
    if (fd < 0)
        return -1;
    (void)unlink(address.sun_path); /* left by a process that was killed just here */
    if (bind(fd, (const struct sockaddr *)&address, sizeof address) == 0 &&
        listen(fd, BACKLOG) == 0 && lstat(address.sun_path, out_info) == 0 &&
        rename(address.sun_path, path) == 0)
        return fd;
    int error = errno;
    (void)unlink(address.sun_path);
    close(fd);
    errno = error;
    return -1;
}

static memopt_status listen_at(memopt_publisher *publisher, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat info;
    size_t length = strlen(path);
    if (length == 0 || length + NEW_SUFFIX >= sizeof address.sun_path)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "publisher_open: a path has 1 to %zu characters, not %zu",
                       sizeof address.sun_path - NEW_SUFFIX - 1, length);
    memcpy(address.sun_path, path, length + 1);
    memopt_status status = check_place(&address);
    if (status != MEMOPT_OK)
        return status;
    int fd = bind_and_name(path, &info);
    if (fd < 0)
        return fail_system("the socket", path, errno);
    publisher->listener = fd;
    publisher->device = info.st_dev;
    publisher->inode = info.st_ino;
    memcpy(publisher->path, path, length + 1);
    return MEMOPT_OK;
}

memopt_status mo_publish_listen(memopt_publisher *publisher, const char *path)
{
    char folder[MO_PUBLISH_PATH - 32], own[MO_PUBLISH_PATH];
    if (path != NULL)
        return listen_at(publisher, path);
    memopt_status status = make_folder(folder, sizeof folder);
    if (status != MEMOPT_OK)
        return status;
    /* A process may have several; one of another container may have the same number. */
    status = MEMOPT_BUSY;
    for (int i = 0; i < PLACES && status == MEMOPT_BUSY; i++) {
        if (i == 0)
            snprintf(own, sizeof own, "%s/%ld.sock", folder, (long)getpid());
        else
            snprintf(own, sizeof own, "%s/%ld-%d.sock", folder, (long)getpid(), i);
        status = listen_at(publisher, own);
    }
    return status;
}
