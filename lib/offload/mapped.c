#include "offload/mapped.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/unnamed_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static memopt_status io_failed(const char *path)
{
    int code = errno;
    return mo_fail_driver(MEMOPT_IO_ERROR, code, mo_errno_name(code),
                          "offloader_map_file: %s cannot be opened: %s", path, strerror(code));
}

static memopt_status check(const char *path, const struct stat *found, uint64_t offset,
                           uint64_t bytes)
{
    uint64_t end;
    if (!S_ISREG(found->st_mode))
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "offloader_map_file: %s is not a regular file",
                       path);
    if (!mo_add_u64(offset, bytes, &end) || end > (uint64_t)found->st_size)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "offloader_map_file: %s has %llu bytes, too few for %llu from %llu on", path,
                       (unsigned long long)found->st_size, (unsigned long long)bytes,
                       (unsigned long long)offset);
    return MEMOPT_OK;
}

static mo_mapped_file *find(mo_mapped_file *file, const struct stat *found)
{
    while (file != NULL && (file->device != found->st_dev || file->inode != found->st_ino))
        file = file->next;
    return file;
}

/* Takes `file` over, on success only. */
static memopt_status add(mo_mapped_file **list, const char *path, int file,
                         const struct stat *found, mo_mapped_file **out_file)
{
    mo_mapped_file *added = mo_calloc(1, sizeof *added);
    if (added != NULL)
        added->path = mo_strdup(path);
    if (added == NULL || added->path == NULL) {
        mo_free(added);
        return MEMOPT_OUT_OF_HOST_MEMORY;
    }
    added->file = file;
    added->device = found->st_dev;
    added->inode = found->st_ino;
    added->next = *list;
    *list = *out_file = added;
    return MEMOPT_OK;
}

memopt_status mo_mapped_open(mo_mapped_file **list, const char *path, uint64_t offset,
                             uint64_t bytes, mo_mapped_file **out_file)
{
    struct stat found;
    mo_mapped_file *known = NULL;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO does not hold the call */
    if (file < 0)
        return io_failed(path);
    memopt_status status =
        fstat(file, &found) != 0 ? io_failed(path) : check(path, &found, offset, bytes);
    int added = 0;
    if (status == MEMOPT_OK && (known = find(*list, &found)) == NULL) {
        status = add(list, path, file, &found, &known);
        added = status == MEMOPT_OK;
    }
    if (!added)
        (void)close(file);
    if (status != MEMOPT_OK)
        return status;
    known->uses++;
    *out_file = known;
    return MEMOPT_OK;
}

static void end(mo_mapped_file *file)
{
    (void)close(file->file);
    mo_free(file->path);
    mo_free(file);
}

void mo_mapped_close(mo_mapped_file **list, mo_mapped_file *file)
{
    if (--file->uses != 0)
        return;
    while (*list != file)
        list = &(*list)->next;
    *list = file->next;
    end(file);
}

void mo_mapped_close_all(mo_mapped_file **list)
{
    while (*list != NULL) {
        mo_mapped_file *next = (*list)->next;
        end(*list);
        *list = next;
    }
}
