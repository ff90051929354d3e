/* A file without a name; see unnamed_file.h. */
#define _GNU_SOURCE /* O_TMPFILE, mkostemp */
#include "base/unnamed_file.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/small_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { PIECE = 1 << 30 };

_Static_assert(sizeof(off_t) == 8, "files of more than 2 GiB");

MO_REPLACEABLE mo_file_system mo_file_calls = {pwrite, pread, fdatasync, 0};

/* --- opening */

/* Who asks, for messages. */
typedef struct asker {
    const char *subject, *option;
} asker;

static memopt_status cannot(const asker *who, const char *what, const char *path, int code)
{
    return mo_fail_driver(MEMOPT_IO_ERROR, code, mo_errno_name(code),
                          "%s: %s %s: %s; %s must be a writable directory, or the name of a file "
                          "to create",
                          who->subject, what, path, strerror(code), who->option);
}

static memopt_status open_named(const asker *who, const char *directory, int *out_file)
{
    static const char pattern[] = "/memopt-XXXXXX";
    size_t length = strlen(directory);
    char *name = mo_malloc(length + sizeof pattern);
    if (name == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memcpy(name, directory, length);
    memcpy(name + length, pattern, sizeof pattern);
    int file = mkostemp(name, O_CLOEXEC);
    int code = errno;
    if (file >= 0)
        (void)unlink(name);
    mo_free(name);
    if (file < 0)
        return cannot(who, "cannot make a file in", directory, code);
    *out_file = file;
    return MEMOPT_OK;
}

static memopt_status open_in(const asker *who, const char *directory, int *out_file)
{
#ifdef O_TMPFILE
    int file = mo_file_calls.no_unnamed
                   ? -1
                   : open(directory, O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (file >= 0) {
        *out_file = file;
        return MEMOPT_OK;
    }
#endif
    return open_named(who, directory, out_file);
}

memopt_status mo_file_open(const char *subject, const char *option, const char *path, int *out_file)
{
    const asker who = {subject, option};
    struct stat there;
    if (path[0] == '\0')
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: %s is empty", subject, option);
    if (stat(path, &there) == 0) {
        if (S_ISDIR(there.st_mode))
            return open_in(&who, path, out_file);
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "%s: %s %s exists and is not a directory; name a directory, or a file that "
                       "does not exist",
                       subject, option, path);
    }
    int file = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (file < 0)
        return cannot(&who, "cannot make", path, errno);
    (void)unlink(path);
    *out_file = file;
    return MEMOPT_OK;
}

/* --- whole reads and writes */

int mo_file_write(int file, const void *from, uint64_t bytes, uint64_t offset)
{
    return mo_write_at(mo_file_calls.write, file, from, bytes, offset);
}

int mo_file_read(int file, void *to, uint64_t bytes, uint64_t offset)
{
    unsigned char *data = to;
    for (uint64_t done = 0; done < bytes;) {
        size_t piece = (size_t)mo_min_u64(bytes - done, PIECE);
        ssize_t count = mo_file_calls.read(file, data + done, piece, (off_t)(offset + done));
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return count == 0 ? MO_FILE_SHORT : errno != 0 ? errno : EIO;
        done += (uint64_t)count;
    }
    return 0;
}

int mo_file_sync(int file)
{
    while (mo_file_calls.sync(file) != 0)
        if (errno != EINTR)
            return errno != 0 ? errno : EIO;
    return 0;
}

uint64_t mo_file_room(int file)
{
    struct statvfs system;
    return fstatvfs(file, &system) == 0 ? (uint64_t)system.f_bavail * system.f_frsize : 0;
}

/* --- names */

const char *mo_errno_name(int code)
{
    switch (code) {
    case ENOSPC:
        return "ENOSPC";
    case EDQUOT:
        return "EDQUOT";
    case EFBIG:
        return "EFBIG";
    case EIO:
        return "EIO";
    case ENOENT:
        return "ENOENT";
    case EACCES:
        return "EACCES";
    case EPERM:
        return "EPERM";
    case EROFS:
        return "EROFS";
    case ENOTDIR:
        return "ENOTDIR";
    case EMFILE:
        return "EMFILE";
    default:
        return "errno";
    }
}
