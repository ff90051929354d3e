/* What the tests of the disk tier share: a folder, system calls that fail, an offloader that
 * spills. */
#ifndef TEST_OFFLOAD_DISK_SUPPORT_H
#define TEST_OFFLOAD_DISK_SUPPORT_H

#include "support.h"

#include <dirent.h>
#include <errno.h>
#include <unistd.h>

static char disk_folder[] = "/tmp/memopt-disk-test-XXXXXX";

static inline int make_folder(void **unused)
{
    return mkdtemp(disk_folder) == NULL;
}

/* Names in the folder. */
static inline int files_left(void)
{
    DIR *folder = opendir(disk_folder);
    assert_non_null(folder);
    int count = 0;
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder))
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static inline int remove_folder(void **unused)
{
    return rmdir(disk_folder); /* fails if a file is left */
}

static inline memopt_offloader_options spilling(uint64_t host_limit, uint64_t disk_limit)
{
    memopt_offloader_options options = MEMOPT_OFFLOADER_OPTIONS_INIT;
    options.host_limit = host_limit;
    options.overflow = MEMOPT_OVERFLOW_SPILL;
    options.disk_path = disk_folder;
    options.disk_limit = disk_limit;
    return options;
}

static inline world open_spilling(uint64_t host_limit, uint64_t disk_limit)
{
    memopt_offloader_options options = spilling(host_limit, disk_limit);
    return open_world(MEMOPT_STREAM_ORDER_EAGER, 0, 256 * MIB, &options);
}

/* Unpacks and compares; the ticket stays. */
static inline int is_value(world *w, memopt_ticket ticket, int value, uint64_t bytes)
{
    void *data = NULL;
    OK(memopt_offloader_unpack(w->offloader, ticket, w->s, &data));
    return holds(w, data, value, bytes, w->s);
}

static inline void release_all(world *w, const memopt_ticket *tickets, int count)
{
    for (int i = 0; i < count; i++)
        OK(memopt_offloader_release(w->offloader, tickets[i], w->s));
}

/* The invariants of the lists, the file and the counters. NULL, or the first broken one. */
static inline const char *broken_disk(memopt_offloader *o)
{
    uint64_t listed = 0, stored = 0, on_disk = 0, on_disk_bytes = 0, slots = 0, on_host = 0;
    for (int list = 0; list < MO_LIST_COUNT; list++) {
        uint64_t before = 0;
        for (uint64_t at = o->lists[list].oldest; at != 0; at = o->packed[at - 1].newer) {
            const mo_packed *value = &o->packed[at - 1];
            if (value->ticket == 0 || value->range == NULL || value->fixed ||
                value->older != before)
                return "a list is broken";
            if ((value->slot != NULL) != (list == MO_LIST_STORED))
                return "a value is in the wrong list";
            if (list != MO_LIST_STORED && value->range->slab->small != (list == MO_LIST_SMALL))
                return "a value is in the list of another size";
            stored += value->slot != NULL ? value->bytes : 0;
            before = at;
            listed++;
        }
        if (o->lists[list].newest != before)
            return "a list does not end with its newest";
    }
    for (uint64_t i = 0; i < o->packed_count; i++) {
        const mo_packed *value = &o->packed[i];
        if (value->ticket == 0)
            continue;
        on_host += value->range != NULL && !value->fixed;
        slots += value->slot != NULL && !value->fixed;
        if (value->slot != NULL && value->range == NULL) {
            on_disk++;
            on_disk_bytes += value->bytes;
        }
    }
    for (const mo_disk_slot *slot = o->disk->released; slot != NULL; slot = slot->next)
        slots++;
    if (listed != on_host || stored != o->stored_bytes)
        return "the lists do not have all that is on the host";
    if (on_disk != o->stats.disk_tickets || on_disk_bytes != o->stats.disk_bytes_used)
        return "the counters are wrong";
    if (slots != o->disk->extents.in_use || o->disk->extents.end > o->disk->extents.limit)
        return "the file's space is wrong";
    return broken_pool(&o->pool);
}

/* --- a disk that fails */

/* The fail_write-th write from now and all after it fail with `problem`; 0: none. Positive: an
 * errno; negative: as many bytes fewer than asked are written, once. */
static _Atomic int fail_write, fail_read, disk_problem, disk_writes, disk_reads;
static _Atomic int write_at_most; /* bytes a call; 0: all */

static inline ssize_t faulty_write(int file, const void *from, size_t bytes, off_t offset)
{
    disk_writes++;
    if (fail_write != 0 && disk_writes >= fail_write) {
        errno = disk_problem;
        return -1;
    }
    if (write_at_most != 0 && bytes > (size_t)write_at_most)
        bytes = (size_t)write_at_most;
    return pwrite(file, from, bytes, offset);
}

static inline ssize_t faulty_read(int file, void *to, size_t bytes, off_t offset)
{
    disk_reads++;
    if (fail_read != 0 && disk_reads >= fail_read) {
        errno = disk_problem;
        return disk_problem == 0 ? 0 : -1; /* 0: the file ends */
    }
    if (write_at_most != 0 && bytes > (size_t)write_at_most)
        bytes = (size_t)write_at_most;
    return pread(file, to, bytes, offset);
}

static inline int healthy_disk(void **unused)
{
    fail_write = fail_read = disk_problem = disk_writes = disk_reads = write_at_most = 0;
    mo_file_calls = (mo_file_system){faulty_write, faulty_read, fdatasync, 0};
    return 0;
}

#endif
