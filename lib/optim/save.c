/*
 * Exports in files. A file is written beside its place and then takes it, so that there is always a
 * whole one: the old one, or the new one.
 */
#define _GNU_SOURCE /* O_CLOEXEC, O_DIRECTORY */
#include "optim/optim.h"

#include "base/memory.h"
#include "base/unnamed_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static memopt_status cannot(const char *call, const char *verb, const char *path, int error)
{
    return mo_fail_driver(MEMOPT_IO_ERROR, error, mo_errno_name(error), "%s: cannot %s %s: %s",
                          call, verb, path, strerror(error));
}

/* --- saving ------------------------------------------------------------------------------------ */

typedef struct output {
    const char *path;
    int file;
    uint64_t written, all; /* bytes */
} output;

static memopt_status write_piece(void *user, const void *piece, uint64_t bytes)
{
    output *out = user;
    const int error = mo_file_write(out->file, piece, bytes, out->written);
    if (error != 0)
        return mo_fail_driver(MEMOPT_IO_ERROR, error, mo_errno_name(error),
                              "optimizer save: cannot write %s: %s, behind %" PRIu64 " of %" PRIu64
                              " bytes",
                              out->path, strerror(error), out->written, out->all);
    out->written += bytes;
    return MEMOPT_OK;
}

/* The name is in the folder for sure. path may change. */
static memopt_status sync_folder(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash != NULL)
        slash[slash == path] = 0;
    const char *folder = slash == NULL ? "." : path;
    int file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = file < 0 || (fsync(file) != 0 && errno != EINVAL); /* EINVAL: it has no fsync */
    int error = errno;
    if (file >= 0)
        (void)close(file);
    return failed ? cannot("optimizer save", "sync the folder", folder, error) : MEMOPT_OK;
}

/* name: of the file that becomes `path`; it may change. */
static memopt_status save_as(memopt_optimizer *o, const char *path, char *name,
                             memopt_stream stream)
{
    output out = {.path = name};
    MO_TRY(memopt_optimizer_export_sync(o, 0, stream, NULL, &out.all));
    if (unlink(name) != 0 && errno != ENOENT) /* of a process that was killed */
        return cannot("optimizer save", "replace", name, errno);
    out.file = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (out.file < 0)
        return cannot("optimizer save", "create", name, errno);
    memopt_status status = memopt_optimizer_export_pieces_sync(o, write_piece, &out, stream);
    int error = status == MEMOPT_OK ? mo_file_sync(out.file) : 0;
    if (close(out.file) != 0 && error == 0)
        error = errno;
    if (status == MEMOPT_OK && error == 0 && rename(name, path) != 0)
        error = errno;
    if (status == MEMOPT_OK && error != 0)
        status = cannot("optimizer save", "write", path, error);
    if (status != MEMOPT_OK) {
        (void)unlink(name);
        return status;
    }
    return sync_folder(name);
}

memopt_status memopt_optimizer_save_sync(memopt_optimizer *o, const char *path,
                                         memopt_stream stream)
{
    if (o == NULL || path == NULL || path[0] == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer save: %s",
                       o == NULL ? "the handle is NULL" : "path is NULL or empty");
    if (mo_device_inherited(o->device))
        return mo_fail_inherited("optimizer_save_sync");
    const size_t length = strlen(path) + sizeof ".part";
    char *name = mo_malloc(length);
    if (name == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    snprintf(name, length, "%s.part", path);
    memopt_status status = save_as(o, path, name, stream);
    mo_free(name);
    return status;
}

/* --- loading ----------------------------------------------------------------------------------- */

typedef struct input {
    const char *path;
    int file;
} input;

static memopt_status read_piece(void *user, uint64_t offset, uint64_t bytes, void *out)
{
    const input *in = user;
    const int error = mo_file_read(in->file, out, bytes, offset);
    if (error == MO_FILE_SHORT)
        return mo_fail(MEMOPT_IO_ERROR,
                       "optimizer load: %s ends before byte %" PRIu64 "; it became shorter",
                       in->path, offset + bytes);
    return error == 0 ? MEMOPT_OK : cannot("optimizer load", "read", in->path, error);
}

static memopt_status open_input(const char *path, input *in, memopt_export_source *out)
{
    struct stat about;
    in->path = path;
    in->file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (path == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer load: a path is NULL");
    if (in->file < 0 || fstat(in->file, &about) != 0)
        return cannot("optimizer load", "open", path, errno);
    if (!S_ISREG(about.st_mode))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer load: %s is not a regular file", path);
    *out = (memopt_export_source){read_piece, in, (uint64_t)about.st_size};
    return MEMOPT_OK;
}

static memopt_status load(memopt_optimizer *o, const char *const *paths, uint64_t count,
                          uint32_t converts, memopt_stream stream, input *inputs,
                          memopt_export_source *sources)
{
    memopt_status status = MEMOPT_OK;
    uint64_t opened = 0;
    while (opened < count && status == MEMOPT_OK) {
        status = open_input(paths[opened], &inputs[opened], &sources[opened]);
        opened++;
    }
    if (status == MEMOPT_OK)
        status = memopt_optimizer_import_pieces_sync(o, sources, count, converts, stream);
    while (opened-- > 0)
        if (inputs[opened].file >= 0)
            (void)close(inputs[opened].file);
    return status;
}

memopt_status memopt_optimizer_load_sync(memopt_optimizer *o, const char *const *paths,
                                         uint64_t count, uint32_t converts, memopt_stream stream)
{
    if (o == NULL || paths == NULL || count == 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer load: %s",
                       o == NULL       ? "the handle is NULL"
                       : paths == NULL ? "paths is NULL"
                                       : "count is 0");
    if (mo_device_inherited(o->device))
        return mo_fail_inherited("optimizer_load_sync");
    input *inputs = mo_calloc(count, sizeof *inputs);
    memopt_export_source *sources = mo_calloc(count, sizeof *sources);
    memopt_status status = inputs == NULL || sources == NULL
                               ? MEMOPT_OUT_OF_HOST_MEMORY
                               : load(o, paths, count, converts, stream, inputs, sources);
    mo_free(inputs);
    mo_free(sources);
    return status;
}
