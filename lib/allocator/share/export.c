/*
 * Blocks that other processes may import. An exported block keeps its memory: a free is completed
 * when its last export ends, so its pages are those of a block in use, which nothing moves.
 */
#include "allocator/share/export.h"

#include "allocator/blocks/block_life.h"
#include "allocator/memory/observers.h"
#include "allocator/share/share_message.h"
#include "allocator/share/share_socket.h"

#include "base/checked.h"
#include "base/lock.h"
#include "base/memory.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

struct memopt_export {
    memopt_export *next;         /* of the allocator's */
    memopt_allocator *allocator; /* NULL: it was destroyed by force */
    memopt_device *device;
    mo_block *block;
    mo_share_message message;
};

/* --- blocks ----------------------------------------------------------------------------------- */

/* A free that was put off is completed. Lock held. */
static void let_go(memopt_allocator *allocator, mo_block *block)
{
    if (--block->exports != 0 || block->state != MO_BLOCK_PENDING ||
        block->pending != MO_BLOCK_EXPORTED)
        return;
    block->pending = 0;
    mo_block_retire(allocator, block);
}

uint64_t mo_exports_count(const memopt_allocator *allocator)
{
    uint64_t count = 0;
    for (const memopt_export *e = allocator->exports; e != NULL; e = e->next)
        count++;
    return count;
}

void mo_exports_detach(memopt_allocator *allocator)
{
    for (memopt_export *e = allocator->exports; e != NULL; e = e->next) {
        let_go(allocator, e->block);
        e->allocator = NULL;
        e->block = NULL;
    }
    allocator->exports = NULL;
}

/* Lock held. */
static memopt_status check_block(const memopt_allocator *allocator, const mo_block *block,
                                 const void *pointer)
{
    if (block == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "export_create: pointer %p is not the start of a live block of this "
                       "allocator",
                       pointer);
    if (!mo_segment_is_expandable(block->segment))
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "export_create: the block lies in a classic segment; create the allocator "
                       "with expandable_segments:True");
    if (mo_tag_is_paused(allocator, block->tag))
        return mo_fail(MEMOPT_BUSY, "export_create: tag %s is paused; resume it first",
                       allocator->tags[block->tag].name);
    if (block->exports == UINT8_MAX)
        return mo_fail(MEMOPT_LIMIT_REACHED, "export_create: the block has %d exports",
                       block->exports);
    return MEMOPT_OK;
}

static void describe(memopt_export *shared)
{
    const mo_block *block = shared->block;
    uint64_t page = shared->allocator->granularity;
    uint64_t start = (uint64_t)(block->address - block->segment->address);
    mo_share_message *m = &shared->message;
    m->bytes = block->size;
    m->offset = start % page;
    m->page_bytes = page;
    m->pages = mo_ceil_div_u64(m->offset + m->bytes, page);
    mo_share_message_end(m);
}

/* With the family's turn: a pause takes all of a block or nothing. */
static memopt_status enter_block(memopt_export *shared, const void *pointer)
{
    memopt_allocator *allocator = shared->allocator;
    mo_lock(&allocator->lock);
    mo_block *block = mo_block_table_find(&allocator->live, pointer);
    memopt_status status = check_block(allocator, block, pointer);
    if (status == MEMOPT_OK) {
        block->exports++;
        shared->block = block;
        describe(shared);
        shared->next = allocator->exports;
        allocator->exports = shared;
    }
    mo_unlock(&allocator->lock);
    return status;
}

static void leave_block(memopt_export *shared)
{
    memopt_allocator *allocator = shared->allocator;
    mo_lock(&allocator->lock);
    memopt_export **place = &allocator->exports;
    while (*place != shared)
        place = &(*place)->next;
    *place = shared->next;
    let_go(allocator, shared->block);
    mo_unlock(&allocator->lock);
}

/* --- calls ------------------------------------------------------------------------------------ */

/* Descriptors of pages. They are those of a block that is in use, so no lock is needed. */
static memopt_status open_files(const memopt_export *shared, uint64_t first, uint64_t count,
                                int32_t *out_files)
{
    const uint64_t page = shared->message.page_bytes;
    const mo_segment *segment = shared->block->segment;
    uint64_t start = (uint64_t)(shared->block->address - segment->address) / page + first;
    for (uint64_t i = 0; i < count; i++) {
        int file;
        memopt_status status = mo_vm_export(shared->device, segment->pages[start + i], page, &file);
        if (status != MEMOPT_OK) {
            mo_share_close(out_files, i);
            return status;
        }
        out_files[i] = file;
    }
    return MEMOPT_OK;
}

/* A first descriptor shows whether the driver gives any. */
static memopt_status try_file(const memopt_export *shared)
{
    int32_t file = -1;
    MO_TRY(open_files(shared, 0, 1, &file));
    (void)close(file);
    return MEMOPT_OK;
}

static memopt_status enter(memopt_export *shared, const void *pointer)
{
    MO_TRY(mo_share_message_begin(shared->device, &shared->message));
    MO_TRY(mo_family_enter(shared->allocator->family, "export_create"));
    memopt_status status = enter_block(shared, pointer);
    if (status == MEMOPT_OK) {
        status = try_file(shared);
        if (status != MEMOPT_OK)
            leave_block(shared);
    }
    mo_family_leave(shared->allocator->family);
    return status;
}

memopt_status memopt_export_create(memopt_allocator *allocator, void *pointer,
                                   memopt_export **out_export)
{
    MO_NOT_NULL("export_create", allocator, pointer, out_export);
    MO_TRY(mo_check_process(allocator->device, "export_create"));
    memopt_export *shared = mo_calloc(1, sizeof *shared);
    if (shared == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    shared->allocator = allocator;
    shared->device = allocator->device;
    memopt_status status = enter(shared, pointer);
    if (status == MEMOPT_OK)
        *out_export = shared;
    else
        mo_free(shared);
    return status;
}

memopt_status memopt_export_destroy(memopt_export *shared)
{
    if (shared == NULL)
        return MEMOPT_OK;
    if (shared->allocator != NULL && mo_device_inherited(shared->device))
        return mo_fail_inherited("export_destroy");
    if (shared->allocator != NULL)
        leave_block(shared);
    mo_free(shared);
    return MEMOPT_OK;
}

/* A device whose allocators are gone may be closed. */
static memopt_status check(const memopt_export *shared, const char *call)
{
    MO_NOT_NULL(call, shared);
    if (shared->allocator == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "%s: the block's allocator was destroyed by force",
                       call);
    return mo_check_process(shared->device, call);
}

memopt_status memopt_export_describe(const memopt_export *shared, uint64_t room, void *out_message,
                                     int32_t *out_files, uint64_t *out_count)
{
    MO_TRY(check(shared, "export_describe"));
    const uint64_t pages = shared->message.pages;
    MO_NOT_NULL("export_describe", out_message, out_count);
    if (out_files != NULL && room < pages)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "export_describe: room for %" PRIu64 " descriptors; there are %" PRIu64,
                       room, pages);
    if (out_files != NULL)
        MO_TRY(open_files(shared, 0, pages, out_files));
    memcpy(out_message, &shared->message, sizeof shared->message);
    *out_count = pages;
    return MEMOPT_OK;
}

memopt_status memopt_export_send(const memopt_export *shared, int32_t socket)
{
    int32_t files[MO_SHARE_FILES];
    MO_TRY(check(shared, "export_send"));
    memopt_status status = mo_share_send(socket, &shared->message, sizeof shared->message, NULL, 0);
    for (uint64_t done = 0, count; done < shared->message.pages && status == MEMOPT_OK;
         done += count) {
        count = mo_min_u64(shared->message.pages - done, MO_SHARE_FILES);
        status = open_files(shared, done, count, files);
        if (status != MEMOPT_OK)
            return status;
        status = mo_share_send(socket, &count, sizeof count, files, count);
        mo_share_close(files, count);
    }
    return status;
}
