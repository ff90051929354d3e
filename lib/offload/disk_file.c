/* The file of the disk tier; see disk_file.h. */
#define _GNU_SOURCE /* O_TMPFILE, mkostemp */
#include "offload/disk_file.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/small_file.h"
#include "kernels/hash/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 1 << 30, GRANULES_AT_ONCE = 64 };

_Static_assert(sizeof(off_t) == 8, "files of more than 2 GiB");

MO_REPLACEABLE mo_disk_system mo_disk_calls = {pwrite, pread, 0};

/* --- opening */

static memopt_status cannot(const char *what, const char *path, int code)
{
    return mo_fail_driver(MEMOPT_IO_ERROR, code, mo_disk_errno_name(code),
                          "offload: %s %s: %s; disk_path must be a writable directory, or "
                          "the name of a file to create",
                          what, path, strerror(code));
}

static memopt_status open_named(const char *directory, int *out_file)
{
    static const char pattern[] = "/memopt-offload-XXXXXX";
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
        return cannot("cannot make a file in", directory, code);
    *out_file = file;
    return MEMOPT_OK;
}

static memopt_status open_in(const char *directory, int *out_file)
{
#ifdef O_TMPFILE
    int file = mo_disk_calls.no_unnamed
                   ? -1
                   : open(directory, O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (file >= 0) {
        *out_file = file;
        return MEMOPT_OK;
    }
#endif
    return open_named(directory, out_file);
}

memopt_status mo_disk_file_open(const char *path, int *out_file)
{
    struct stat there;
    if (path[0] == '\0')
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "offload: disk_path is empty");
    if (stat(path, &there) == 0) {
        if (S_ISDIR(there.st_mode))
            return open_in(path, out_file);
        return mo_fail(
            MEMOPT_INVALID_ARGUMENT,
            "offload: disk_path %s exists and is not a directory; name a directory, or a "
            "file that does not exist",
            path);
    }
    int file = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (file < 0)
        return cannot("cannot make", path, errno);
    (void)unlink(path);
    *out_file = file;
    return MEMOPT_OK;
}

/* --- whole reads and writes */

int mo_disk_file_write(int file, const void *from, uint64_t bytes, uint64_t offset)
{
    return mo_write_at(mo_disk_calls.write, file, from, bytes, offset);
}

int mo_disk_file_read(int file, void *to, uint64_t bytes, uint64_t offset)
{
    unsigned char *data = to;
    for (uint64_t done = 0; done < bytes;) {
        size_t piece = (size_t)mo_min_u64(bytes - done, PIECE);
        ssize_t count = mo_disk_calls.read(file, data + done, piece, (off_t)(offset + done));
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return count == 0 ? MO_DISK_SHORT : errno != 0 ? errno : EIO;
        done += (uint64_t)count;
    }
    return 0;
}

uint64_t mo_disk_hash(uint64_t hash, const void *data, uint64_t bytes)
{
    uint64_t granules[GRANULES_AT_ONCE];
    mo_hash_granules_args args = {data, granules, bytes};
    for (uint64_t rest = bytes; rest != 0;) {
        uint64_t piece = mo_min_u64(rest, (uint64_t)GRANULES_AT_ONCE * MO_HASH_GRANULE);
        uint64_t count = mo_ceil_div_u64(piece, MO_HASH_GRANULE);
        args.bytes = piece;
        mo_kernel_hash_granules.cpu[MO_ISA_SCALAR](&args, 0, count);
        for (uint64_t i = 0; i < count; i++)
            hash = mo_hash_term(hash ^ granules[i], 0); /* a bijection of either; in order */
        args.data = (const unsigned char *)args.data + piece;
        rest -= piece;
    }
    return hash;
}

/* --- names */

const char *mo_disk_errno_name(int code)
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
