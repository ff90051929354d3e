/* Memory of the "cpu" device that other processes map; see page_lock.c. */
#define _GNU_SOURCE /* F_DUPFD_CLOEXEC */

#include "device/cpu/cpu.h"

#include "base/lock.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static memopt_status fail_open(int code)
{
    if (code == EMFILE || code == ENFILE || code == ENOMEM || code == ENOLCK)
        return mo_fail_driver(MEMOPT_OUT_OF_HOST_MEMORY, code, strerror(code),
                              "cpu: vm_export: no file descriptor or lock is left (%s); raise "
                              "ulimit -n",
                              strerror(code));
    return mo_fail_driver(MEMOPT_UNSUPPORTED, code, strerror(code),
                          "cpu: sharing between processes needs /proc and locks of open files, "
                          "which this system refuses (%s)",
                          strerror(code));
}

memopt_status mo_cpu_vm_export(memopt_device *device, mo_vm_handle given, uint64_t size,
                               int *out_file)
{
    mo_cpu_memory *memory = &mo_cpu(device)->memory;
    memopt_status status = MEMOPT_INVALID_ARGUMENT;
    mo_lock(&memory->lock);
    mo_cpu_handle *handle = mo_cpu_find_handle(memory, given, size, "vm_export");
    if (handle != NULL && handle->file >= 0)
        status = mo_fail(MEMOPT_UNSUPPORTED, "cpu: vm_export: the memory is another process's");
    else if (handle != NULL &&
             !mo_ranges_reserve(&memory->lingering, memory->lingering.count + memory->exported + 1))
        status = MEMOPT_OUT_OF_HOST_MEMORY;
    else if (handle != NULL) {
        int file = mo_cpu_open_locked(memory, handle->offset, size);
        status = file >= 0 ? MEMOPT_OK : fail_open(errno);
        if (file >= 0)
            *out_file = file;
    }
    if (status == MEMOPT_OK && !handle->exported) {
        handle->exported = 1;
        memory->exported++;
    }
    mo_unlock(&memory->lock);
    return status;
}

/* The offset where the descriptor stands, or -1 where it is not one of vm_export with so many
 * bytes. */
static off_t offset_in(int file, uint64_t size)
{
    static const char ours[] = "/memfd:memopt-device-memory";
    char name[40], target[sizeof ours];
    struct stat stat;
    off_t offset = lseek(file, 0, SEEK_CUR);
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    ssize_t length = readlink(name, target, sizeof target);
    if (offset < 0 || offset % (off_t)sysconf(_SC_PAGESIZE) != 0 || fstat(file, &stat) != 0 ||
        (uint64_t)offset + size > (uint64_t)stat.st_size || length < (ssize_t)sizeof ours - 1 ||
        memcmp(target, ours, sizeof ours - 1) != 0)
        return -1;
    return offset;
}

memopt_status mo_cpu_vm_import(memopt_device *device, int file, uint64_t size,
                               mo_vm_handle *out_handle)
{
    mo_cpu_memory *memory = &mo_cpu(device)->memory;
    off_t offset = offset_in(file, size);
    if (offset < 0)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "cpu: vm_import: descriptor %d is not of %s of memory of a \"cpu\" device",
                       file, MO_SIZE(size));
    int own = fcntl(file, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return fail_open(errno);
    mo_cpu_handle *handle = mo_calloc(1, sizeof *handle);
    if (handle != NULL)
        *handle = (mo_cpu_handle){.offset = (uint64_t)offset, .size = size, .file = own};
    mo_lock(&memory->lock);
    int kept = handle != NULL &&
               mo_ranges_insert(&memory->handles, (uintptr_t)handle, sizeof *handle, handle);
    mo_unlock(&memory->lock);
    if (!kept) {
        (void)close(own);
        mo_free(handle);
        return MEMOPT_OUT_OF_HOST_MEMORY;
    }
    *out_handle = (mo_vm_handle)handle;
    return MEMOPT_OK;
}

/* Any two "cpu" devices of a machine. */
memopt_status mo_cpu_identity(memopt_device *device, uint8_t *out_bytes)
{
    static const uint8_t identity[MO_IDENTITY_BYTES] = "host memory";
    (void)device;
    memcpy(out_bytes, identity, sizeof identity);
    return MEMOPT_OK;
}
