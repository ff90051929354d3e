/* Slots of the disk tier and their jobs; see disk.h. */
#include "offload/disk.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "device/device.h"
#include "kernels/hash/hash_bytes.h"

#include <string.h>
#include <unistd.h>

/* --- opening and closing */

memopt_status mo_disk_open(memopt_device *device, const char *path, uint64_t limit, int own_stream,
                           mo_disk **out_disk)
{
    mo_disk *disk = mo_calloc(1, sizeof *disk);
    if (disk == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    disk->device = device;
    disk->file = -1;
    disk->extents.limit = limit / MO_DISK_BLOCK * MO_DISK_BLOCK;
    memopt_status status = MEMOPT_OK;
    if (path != NULL && (disk->path = mo_strdup(path)) == NULL)
        status = MEMOPT_OUT_OF_HOST_MEMORY;
    if (status == MEMOPT_OK && path != NULL)
        status = mo_file_open("offload", "disk_path", path, &disk->file);
    if (status == MEMOPT_OK)
        status = mo_timeline_open(&disk->line, device, own_stream);
    if (status != MEMOPT_OK) {
        (void)mo_disk_close(disk);
        return status;
    }
    *out_disk = disk;
    return MEMOPT_OK;
}

static void free_slots(mo_disk_slot *slot)
{
    while (slot != NULL) {
        mo_disk_slot *next = slot->next;
        mo_free(slot);
        slot = next;
    }
}

memopt_status mo_disk_close(mo_disk *disk)
{
    if (disk == NULL)
        return MEMOPT_OK;
    memopt_status status = mo_timeline_close(&disk->line);
    free_slots(disk->released);
    free_slots(disk->spare);
    mo_mapped_close_all(&disk->mapped);
    mo_extents_close(&disk->extents);
    if (disk->file >= 0)
        (void)close(disk->file);
    mo_free(disk->path);
    mo_free(disk);
    return status;
}

/* --- jobs: on a thread of the driver */

static int file_of(const mo_disk_slot *slot)
{
    return slot->mapped != NULL ? slot->mapped->file : slot->disk->file;
}

static const char *path_of(const mo_disk_slot *slot)
{
    return slot->mapped != NULL ? slot->mapped->path : slot->disk->path;
}

/* What was read has this hash: 0 if it is that of the value, else what is wrong. */
static int compare(mo_disk_slot *slot, uint64_t hash)
{
    if (!slot->hashed) {
        slot->hash = hash;
        slot->hashed = 1;
    }
    return hash == slot->hash ? 0 : MO_DISK_DAMAGED;
}

static void run_job(void *user)
{
    mo_disk_slot *slot = user;
    mo_disk *disk = slot->disk;
    int problem;
    if (slot->writes) {
        slot->hash = mo_hash_bytes(0, slot->memory, slot->bytes);
        slot->hashed = 1;
        problem = mo_file_write(disk->file, slot->memory, slot->bytes, slot->offset);
    } else {
        problem = mo_file_read(file_of(slot), slot->memory, slot->bytes, slot->offset);
        if (problem == 0)
            problem = compare(slot, mo_hash_bytes(0, slot->memory, slot->bytes));
    }
    if (problem == 0)
        atomic_fetch_add_explicit(slot->writes ? &disk->written : &disk->read, slot->bytes,
                                  memory_order_relaxed);
    atomic_store_explicit(&slot->problem, problem, memory_order_release);
}

/* Puts a job on the timeline, and the mark behind it. */
static memopt_status submit(mo_disk *disk, mo_disk_slot *slot, void *memory, int writes)
{
    slot->memory = memory;
    slot->writes = writes;
    atomic_store_explicit(&slot->problem, MO_DISK_PENDING, memory_order_relaxed);
    (writes ? mo_reads : mo_writes)(disk->device, disk->line.stream, "disk tier", memory,
                                    slot->bytes);
    memopt_status status =
        memopt_stream_host_callback(disk->device, disk->line.stream, run_job, slot);
    if (status == MEMOPT_UNSUPPORTED) {
        status = memopt_stream_sync(disk->device, disk->line.stream);
        if (status == MEMOPT_OK)
            run_job(slot);
    }
    return status == MEMOPT_OK ? mo_timeline_mark(&disk->line, &slot->mark) : status;
}

memopt_status mo_disk_result(const mo_disk_slot *slot)
{
    const mo_disk *disk = slot->disk;
    int problem = atomic_load_explicit(&slot->problem, memory_order_acquire);
    const char *verb = slot->writes ? "writing" : "reading";
    if (problem == 0)
        return MEMOPT_OK;
    if (problem > 0)
        return mo_fail_driver(
            MEMOPT_IO_ERROR, problem, mo_errno_name(problem),
            "offload: %s %s %s the disk tier at %s: %s (%s of the file are in use, %s of its file "
            "system are free); the value stays where it was",
            verb, MO_SIZE(slot->bytes), slot->writes ? "to" : "from", path_of(slot),
            strerror(problem), MO_SIZE(disk->extents.used), MO_SIZE(mo_file_room(file_of(slot))));
    if (problem == MO_DISK_PENDING)
        return mo_fail(MEMOPT_DRIVER_ERROR,
                       "offload: %s %s of the disk tier at %s: the driver did not call the host "
                       "function",
                       verb, MO_SIZE(slot->bytes), path_of(slot));
    return mo_fail(problem == MO_FILE_SHORT ? MEMOPT_IO_ERROR : MEMOPT_CORRUPT,
                   "offload: reading %s from the disk tier at %s, %llu bytes into it: %s",
                   MO_SIZE(slot->bytes), path_of(slot), (unsigned long long)slot->offset,
                   problem == MO_FILE_SHORT ? "the file is too short"
                   : slot->mapped != NULL   ? "the bytes are not those of the first read"
                                            : "the bytes are not the ones that were written");
}

/* --- slots */

static uint64_t extent_bytes(const mo_disk_slot *slot)
{
    return mo_ceil_div_u64(slot->bytes, MO_DISK_BLOCK) * MO_DISK_BLOCK;
}

static void retire(mo_disk_slot *slot)
{
    if (slot->mapped != NULL)
        mo_mapped_close(&slot->disk->mapped, slot->mapped);
    else
        mo_extents_give(&slot->disk->extents, slot->offset, extent_bytes(slot));
    slot->next = slot->disk->spare;
    slot->disk->spare = slot;
}

void mo_disk_sweep(mo_disk *disk)
{
    for (mo_disk_slot **place = &disk->released; *place != NULL;) {
        mo_disk_slot *slot = *place;
        int done = 0;
        if (mo_timeline_query(&disk->line, slot->mark, &done) == MEMOPT_OK && done) {
            *place = slot->next;
            retire(slot);
        } else {
            place = &slot->next;
        }
    }
}

void mo_disk_trim(mo_disk *disk)
{
    mo_disk_sweep(disk);
    (void)!ftruncate(disk->file, (off_t)disk->extents.end); /* a failure is harmless */
}

static memopt_status reserve_slot(mo_disk *disk)
{
    mo_disk_sweep(disk);
    if (disk->spare == NULL)
        disk->spare = mo_calloc(1, sizeof *disk->spare);
    return disk->spare == NULL ? MEMOPT_OUT_OF_HOST_MEMORY : MEMOPT_OK;
}

/* The slot that was reserved. */
static mo_disk_slot *new_slot(mo_disk *disk, mo_mapped_file *mapped, uint64_t offset,
                              uint64_t bytes)
{
    mo_disk_slot *slot = disk->spare;
    disk->spare = slot->next;
    slot->disk = disk;
    slot->mapped = mapped;
    slot->offset = offset;
    slot->bytes = bytes;
    slot->mark = 0;
    slot->hashed = 0;
    slot->next = NULL;
    return slot;
}

memopt_status mo_disk_map(mo_disk *disk, const char *path, uint64_t offset, uint64_t bytes,
                          mo_disk_slot **out_slot)
{
    mo_mapped_file *mapped = NULL;
    MO_TRY(reserve_slot(disk));
    MO_TRY(mo_mapped_open(&disk->mapped, path, offset, bytes, &mapped));
    *out_slot = new_slot(disk, mapped, offset, bytes);
    return MEMOPT_OK;
}

memopt_status mo_disk_write(mo_disk *disk, void *memory, uint64_t bytes, mo_disk_slot **out_slot)
{
    uint64_t rounded, offset;
    MO_TRY(reserve_slot(disk));
    if (!mo_round_up_u64(bytes, MO_DISK_BLOCK, &rounded))
        return MEMOPT_LIMIT_REACHED;
    MO_TRY(mo_extents_take(&disk->extents, rounded, &offset));
    mo_disk_slot *slot = new_slot(disk, NULL, offset, bytes);
    memopt_status status = submit(disk, slot, memory, 1);
    if (status != MEMOPT_OK) {
        retire(slot); /* no job is pending: submit waited for one that it could not mark */
        return status;
    }
    *out_slot = slot;
    return MEMOPT_OK;
}

memopt_status mo_disk_read(mo_disk *disk, mo_disk_slot *slot, void *memory)
{
    return submit(disk, slot, memory, 0);
}

memopt_status mo_disk_read_pieces(mo_disk_slot *slot, void *buffer, uint64_t buffer_bytes,
                                  memopt_status (*take)(void *context, const void *piece,
                                                        uint64_t offset, uint64_t bytes),
                                  void *context)
{
    mo_disk *disk = slot->disk;
    uint64_t hash = 0;
    int problem = 0;
    slot->writes = 0;
    for (uint64_t done = 0; problem == 0 && done < slot->bytes;) {
        uint64_t piece = mo_min_u64(buffer_bytes, slot->bytes - done);
        problem = mo_file_read(file_of(slot), buffer, piece, slot->offset + done);
        if (problem != 0)
            break;
        hash = mo_hash_bytes(hash, buffer, piece);
        MO_TRY(take(context, buffer, done, piece));
        done += piece;
    }
    if (problem == 0)
        problem = compare(slot, hash);
    if (problem == 0)
        atomic_fetch_add_explicit(&disk->read, slot->bytes, memory_order_relaxed);
    atomic_store_explicit(&slot->problem, problem, memory_order_relaxed);
    return mo_disk_result(slot);
}

void mo_disk_release(mo_disk_slot *slot)
{
    mo_disk *disk = slot->disk;
    slot->next = disk->released;
    disk->released = slot;
    mo_disk_sweep(disk);
}
