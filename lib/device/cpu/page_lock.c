/*
 * Which bytes of the device's memory other processes have.
 *
 * A descriptor that is given away is an open file of its own of the device's memory. It stands at
 * the handle's offset, which says where the memory is, and holds a lock of those bytes. The system
 * keeps the lock while a copy of the descriptor or a mapping through it is there, in any process or
 * on its way, and drops it with the last one. So a released handle whose bytes are locked lingers:
 * they are not used again until the lock is gone.
 */
#define _GNU_SOURCE /* F_OFD_SETLK */

#include "device/cpu/cpu.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static struct flock lock_of(short type, uint64_t offset, uint64_t size)
{
    return (struct flock){
        .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)offset, .l_len = (off_t)size};
}

int mo_cpu_is_shared(const mo_cpu_memory *memory, uint64_t offset, uint64_t size)
{
    struct flock found = lock_of(F_WRLCK, offset, size);
    return fcntl(memory->fd, F_OFD_GETLK, &found) != 0 || found.l_type != F_UNLCK;
}

int mo_cpu_open_locked(const mo_cpu_memory *memory, uint64_t offset, uint64_t size)
{
    char name[40];
    struct flock wanted = lock_of(F_RDLCK, offset, size);
    snprintf(name, sizeof name, "/proc/self/fd/%d", memory->fd);
    int file = open(name, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return -1;
    if (fcntl(file, F_OFD_SETLK, &wanted) == 0 && lseek(file, (off_t)offset, SEEK_SET) >= 0)
        return file;
    int code = errno;
    (void)close(file);
    errno = code;
    return -1;
}
