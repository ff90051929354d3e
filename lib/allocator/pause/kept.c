/*
 * The contents of paused pages, in page-locked memory or in a file.
 *
 * Page i of the pause's list lies at i times the page's size, of which only what live blocks have
 * is copied. Frees do not change the places: the pages stay listed. A file is written in pieces of
 * whole pages, each with a hash, through a buffer that is there only meanwhile. What is not in the
 * file for sure after a pause would be lost with the pages, so it is synchronised.
 */
#include "allocator/pause/kept.h"

#include "base/checked.h"
#include "base/lock.h"
#include "base/memory.h"
#include "base/unnamed_file.h"
#include "kernels/hash/hash_bytes.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

/* --- what is copied --------------------------------------------------------------------------- */

/* Bytes of live blocks next to each other, here and where they are kept. */
typedef struct range {
    char *address;
    uint64_t bytes;
    uint64_t offset;
} range;

typedef struct ranges {
    range *list; /* by offset; NULL: they are counted */
    uint64_t count;
    range last;
    uint64_t bytes;
} ranges;

static void add(ranges *out, range next)
{
    range *last = &out->last;
    out->bytes += next.bytes;
    if (out->count > 0 && last->address + last->bytes == next.address &&
        last->offset + last->bytes == next.offset) {
        last->bytes += next.bytes;
    } else {
        *last = next;
        out->count++;
    }
    if (out->list != NULL)
        out->list[out->count - 1] = *last;
}

/* The live parts of page i, found from *at on, a block of the same segment. */
static void add_page(const mo_pause *pause, uint64_t i, uint64_t unit, const mo_block **at,
                     ranges *out)
{
    const mo_paused_page *page = &pause->pages[i];
    char *start = page->segment->address + page->page * unit, *end = start + unit;
    while ((*at)->address + (*at)->size <= start)
        *at = (*at)->next;
    for (const mo_block *b = *at; b != NULL && b->address < end; b = b->next) {
        char *from = b->address > start ? b->address : start;
        char *to = b->address + b->size < end ? b->address + b->size : end;
        if (b->state == MO_BLOCK_LIVE)
            add(out, (range){from, (uint64_t)(to - from), i * unit + (uint64_t)(from - start)});
    }
}

static void walk(const memopt_allocator *allocator, const mo_pause *pause, ranges *out)
{
    const mo_block *at = NULL;
    for (uint64_t i = 0; i < pause->page_count; i++) {
        if (i == 0 || pause->pages[i].segment != pause->pages[i - 1].segment)
            at = pause->pages[i].segment->first;
        add_page(pause, i, allocator->granularity, &at, out);
    }
}

/* The list is freed by the caller. Lock held. */
static memopt_status find_ranges(const memopt_allocator *allocator, const mo_pause *pause,
                                 ranges *out)
{
    ranges counted = {0}, listed = {0};
    walk(allocator, pause, &counted);
    listed.list = mo_calloc(counted.count + 1, sizeof *listed.list);
    if (listed.list == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    walk(allocator, pause, &listed);
    *out = listed;
    return MEMOPT_OK;
}

/* --- copies ----------------------------------------------------------------------------------- */

/* True if copies are over for sure. */
static int quiet(memopt_allocator *allocator)
{
    return mo_work_is_over(memopt_device_sync(allocator->device));
}

/* Copies what is kept at [start, +bytes) out to `memory` or back in, and waits for it. *first: the
 * first range that may lie there. */
static memopt_status copy(memopt_allocator *allocator, mo_kept *kept, const ranges *all,
                          uint64_t *first, uint64_t start, uint64_t bytes, int out)
{
    memopt_status status = MEMOPT_OK;
    while (*first < all->count && all->list[*first].offset + all->list[*first].bytes <= start)
        ++*first;
    for (uint64_t i = *first; i < all->count && status == MEMOPT_OK; i++) {
        const range *each = &all->list[i];
        uint64_t from = mo_max_u64(each->offset, start);
        uint64_t to = mo_min_u64(each->offset + each->bytes, start + bytes);
        if (from >= to)
            break;
        char *inside = each->address + (from - each->offset), *host = kept->memory + (from - start);
        status = memopt_copy(allocator->device, out ? host : inside, out ? inside : host, to - from,
                             NULL);
    }
    memopt_status waited = memopt_stream_sync(allocator->device, NULL);
    mo_keep_first(&status, waited);
    kept->in_flight = !mo_work_is_over(waited) && !quiet(allocator);
    return status;
}

/* --- files ------------------------------------------------------------------------------------ */

enum { BUFFER_BYTES = 8 << 20 };

/* The pieces of a file. */
typedef struct pieces {
    uint64_t bytes; /* of each but the last */
    uint64_t all;
    uint64_t count;
} pieces;

static pieces pieces_of(const memopt_allocator *allocator, const mo_pause *pause)
{
    uint64_t unit = allocator->granularity;
    pieces p = {mo_max_u64(BUFFER_BYTES / unit, 1) * unit, pause->page_count * unit, 0};
    p.bytes = mo_min_u64(p.bytes, p.all);
    p.count = mo_ceil_div_u64(p.all, p.bytes);
    return p;
}

static memopt_status fail_file(const memopt_allocator *allocator, const char *call, int problem)
{
    const char *why = problem == MO_FILE_SHORT ? "it is too short" : strerror(problem);
    return mo_fail_driver(MEMOPT_IO_ERROR, problem == MO_FILE_SHORT ? 0 : problem,
                          mo_errno_name(problem),
                          "%s: the file of \"%s\": %s; see to it and "
                          "repeat the call",
                          call, allocator->name, why);
}

static memopt_status save_piece(memopt_allocator *allocator, mo_pause *pause, const ranges *all,
                                uint64_t *first, uint64_t start, uint64_t bytes, uint64_t *out_hash)
{
    mo_kept *kept = &pause->kept;
    memset(kept->memory, 0, bytes);
    MO_TRY(copy(allocator, kept, all, first, start, bytes, 1));
    *out_hash = mo_hash_bytes(0, kept->memory, bytes);
    int problem = mo_file_write(kept->file, kept->memory, bytes, start);
    return problem == 0 ? MEMOPT_OK : fail_file(allocator, "pool_pause", problem);
}

static memopt_status load_piece(memopt_allocator *allocator, mo_pause *pause, const ranges *all,
                                uint64_t *first, uint64_t start, uint64_t bytes, uint64_t hash)
{
    mo_kept *kept = &pause->kept;
    int problem = mo_file_read(kept->file, kept->memory, bytes, start);
    if (problem != 0)
        return fail_file(allocator, "pool_resume", problem);
    if (mo_hash_bytes(0, kept->memory, bytes) != hash)
        return mo_fail(MEMOPT_CORRUPT,
                       "pool_resume: the file of \"%s\" is damaged in the %s from byte %" PRIu64
                       " on: what was read is not what was written",
                       allocator->name, MO_SIZE(bytes), start);
    return copy(allocator, kept, all, first, start, bytes, 0);
}

static memopt_status move_pieces(memopt_allocator *allocator, mo_pause *pause, const ranges *all,
                                 int out)
{
    pieces p = pieces_of(allocator, pause);
    memopt_status status = MEMOPT_OK;
    for (uint64_t i = 0, first = 0; i < p.count && status == MEMOPT_OK; i++) {
        uint64_t start = i * p.bytes, bytes = mo_min_u64(p.bytes, p.all - start);
        uint64_t *hash = &pause->kept.hashes[i];
        status = out ? save_piece(allocator, pause, all, &first, start, bytes, hash)
                     : load_piece(allocator, pause, all, &first, start, bytes, *hash);
    }
    int problem = status == MEMOPT_OK && out ? mo_file_sync(pause->kept.file) : 0;
    return problem == 0 ? status : fail_file(allocator, "pool_pause", problem);
}

/* The buffer is there only while something moves. */
static memopt_status drop_memory(memopt_allocator *allocator, mo_kept *kept)
{
    if (kept->in_flight && !quiet(allocator))
        return mo_fail(MEMOPT_DRIVER_ERROR,
                       "pool_pause: copies of \"%s\" may still run; repeat the call",
                       allocator->name);
    kept->in_flight = 0;
    void *memory = kept->memory;
    kept->memory = NULL;
    return memopt_host_free(allocator->device, memory);
}

/* Without lock. */
static memopt_status move_by_file(memopt_allocator *allocator, mo_pause *pause, const ranges *all,
                                  int out)
{
    mo_kept *kept = &pause->kept;
    pieces p = pieces_of(allocator, pause);
    void *buffer = NULL;
    memopt_status status = drop_memory(allocator, kept); /* of a call that has failed */
    if (status == MEMOPT_OK)
        status = memopt_host_alloc(allocator->device, p.bytes, &buffer);
    if (status != MEMOPT_OK)
        return status;
    kept->memory = buffer;
    status = move_pieces(allocator, pause, all, out);
    (void)drop_memory(allocator, kept);
    return status;
}

/* --- calls ------------------------------------------------------------------------------------ */

/* Without lock. */
static memopt_status save(memopt_allocator *allocator, mo_pause *pause, const ranges *all)
{
    mo_kept *kept = &pause->kept;
    void *memory = NULL;
    uint64_t first = 0, bytes = pause->page_count * allocator->granularity;
    if (kept->file < 0) {
        memopt_status status = memopt_host_alloc(allocator->device, bytes, &memory);
        kept->memory = memory;
        return status == MEMOPT_OK ? copy(allocator, kept, all, &first, 0, bytes, 1) : status;
    }
    kept->hashes = mo_calloc(pieces_of(allocator, pause).count, sizeof *kept->hashes);
    return kept->hashes == NULL ? MEMOPT_OUT_OF_HOST_MEMORY
                                : move_by_file(allocator, pause, all, 1);
}

memopt_status mo_kept_open(mo_kept *kept, const char *path)
{
    return mo_file_open("pool_pause", "path", path, &kept->file);
}

memopt_status mo_kept_save(memopt_allocator *allocator, mo_pause *pause, uint64_t *out_bytes)
{
    ranges all;
    memopt_status status = find_ranges(allocator, pause, &all);
    if (status != MEMOPT_OK)
        return status;
    mo_unlock(&allocator->lock);
    if (all.count > 0)
        status = save(allocator, pause, &all);
    mo_free(all.list);
    mo_lock(&allocator->lock);
    *out_bytes = all.bytes;
    return status;
}

memopt_status mo_kept_load(memopt_allocator *allocator, mo_pause *pause)
{
    ranges all;
    mo_kept *kept = &pause->kept;
    uint64_t first = 0;
    if (kept->memory == NULL && kept->hashes == NULL)
        return MEMOPT_OK;
    memopt_status status = find_ranges(allocator, pause, &all);
    if (status != MEMOPT_OK)
        return status;
    mo_unlock(&allocator->lock);
    if (kept->file >= 0)
        status = move_by_file(allocator, pause, &all, 0);
    else
        status = copy(allocator, kept, &all, &first, 0, UINT64_MAX, 0);
    mo_free(all.list);
    mo_lock(&allocator->lock);
    return status;
}

memopt_status mo_kept_drop(memopt_allocator *allocator, mo_kept *kept, int anyway)
{
    if (kept->file >= 0)
        (void)close(kept->file);
    kept->file = -1;
    mo_free(kept->hashes);
    kept->hashes = NULL;
    if (anyway && kept->in_flight)
        (void)quiet(allocator);
    kept->in_flight = kept->in_flight && !anyway;
    return drop_memory(allocator, kept);
}
