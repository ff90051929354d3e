/*
 * Running out of memory at the device's real capacity, recovering from it and from fragmentation,
 * and giving memory back to the driver. Pages are created and mapped but hardly written, so that it
 * is quick on a large device.
 */
#include "driver.h"
#include "support/pausing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t statistic(memopt_allocator *allocator, const char *name)
{
    uint64_t value = 0;
    OK(memopt_allocator_get_stat(allocator, name, &value));
    return value;
}

/* A case's kind is the allocator's: these two. */
enum { CLASSIC, EXPANDABLE };

static const char *config_of(const world *w)
{
    if (w->kind == EXPANDABLE && !w->properties.virtual_memory)
        skip("the device has no virtual memory");
    return w->kind == EXPANDABLE ? "expandable_segments:True" : "expandable_segments:False";
}

/* --- filling a device ---------------------------------------------------------------------- */

enum { MOST_BLOCKS = 4096 };

typedef struct hoard {
    memopt_allocator *allocator;
    void *blocks[MOST_BLOCKS];
    uint64_t sizes[MOST_BLOCKS];
    uint32_t count;
    uint64_t bytes;
    /* What the observer of the last failure was told. */
    uint64_t asked, free_bytes;
    uint32_t told;
    char report[2048];
} hoard;

static void observe(void *user, uint64_t asked, uint64_t free_bytes, const char *report)
{
    hoard *h = user;
    h->asked = asked;
    h->free_bytes = free_bytes;
    h->told++;
    strncpy(h->report, report, sizeof h->report - 1);
}

static hoard *new_hoard(world *w, const char *config)
{
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    hoard *h = host_memory(sizeof *h);
    memset(h, 0, sizeof *h);
    options.oom = observe;
    options.oom_user = h;
    OK(memopt_allocator_create(w->device, config, &options, &h->allocator));
    return h;
}

/* Takes blocks of half the size each time the device has no more, down to `least`. */
static void fill_device(world *w, hoard *h, uint64_t least)
{
    uint64_t size = w->properties.total_memory / 16 / MIB * MIB;
    while (size >= least && h->count < MOST_BLOCKS) {
        void **block = &h->blocks[h->count];
        memopt_status status =
            memopt_allocator_alloc(h->allocator, size, MEMOPT_TAG_ACTIVATIONS, w->stream, block);
        if (status == MEMOPT_OUT_OF_DEVICE_MEMORY) {
            CHECK(*block == NULL && h->asked >= size && h->asked < size + MIB);
            CHECK(strcmp(h->report, memopt_last_error()) == 0);
            size /= 2;
            continue;
        }
        OK(status);
        h->sizes[h->count++] = size;
        h->bytes += size;
    }
    CHECK(h->count > 0 && h->told > 0);
}

static void drop(hoard *h, uint32_t i)
{
    OK(memopt_allocator_free(h->allocator, h->blocks[i]));
    h->blocks[i] = NULL;
    h->bytes -= h->sizes[i];
}

/* The first and the last bytes of the blocks are memory, each its own. */
static void touch(world *w, const hoard *h)
{
    unsigned char byte = 0;
    for (uint32_t i = 0; i < h->count; i++)
        if (h->blocks[i] != NULL) {
            char *end = (char *)h->blocks[i] + h->sizes[i];
            OK(memopt_fill(w->device, h->blocks[i], (int32_t)(i % 251), 512, w->stream));
            OK(memopt_fill(w->device, end - 512, (int32_t)(i % 251), 512, w->stream));
        }
    for (uint32_t i = 0; i < h->count; i++)
        if (h->blocks[i] != NULL) {
            char *end = (char *)h->blocks[i] + h->sizes[i];
            OK(memopt_copy(w->device, &byte, i % 2 ? h->blocks[i] : end - 1, 1, w->stream));
            OK(memopt_stream_sync(w->device, w->stream));
            CHECK(byte == i % 251);
        }
}

/* Everything back: the device has what it had, and the driver says so too. */
static void end_hoard(world *w, hoard *h, const memopt_memory_info *before)
{
    uint64_t released = 0, reserved = statistic(h->allocator, "reserved_bytes.all.current");
    for (uint32_t i = 0; i < h->count; i++)
        if (h->blocks[i] != NULL)
            drop(h, i);
    OK(memopt_allocator_trim_sync(h->allocator, 0, &released));
    CHECK(released >= reserved / 2 && statistic(h->allocator, "reserved_bytes.all.current") == 0);
    memopt_memory_info after = info_of(w);
    CHECK(after.used == before->used);
    /* others may use the device too: a little may be missing */
    CHECK(after.free + after.total / 64 >= before->free);
    const driver *d = driver_enter(w);
    if (d != NULL) {
        size_t free_bytes = 0, total = 0;
        DRIVER_OK(d->memory_info(&free_bytes, &total));
        CHECK(total == after.total && free_bytes + total / 64 >= before->free);
    }
    driver_leave(w);
    OK(memopt_allocator_destroy(h->allocator));
    free(h);
}

/* --- out of memory ------------------------------------------------------------------------- */

/* A size in a message, "12.34 GiB" behind `before`; in bytes, rounded as it is written. */
static uint64_t size_behind(const char *text, const char *before)
{
    static const char units[] = "KMGT";
    const char *at = strstr(text, before);
    double value = 0;
    char unit[8] = "";
    if (at == NULL || sscanf(at + strlen(before), "%lf %7s", &value, unit) != 2)
        return UINT64_MAX;
    const char *known = strchr(units, unit[0]);
    for (const char *u = units; known != NULL && u <= known; u++)
        value *= 1024;
    return (uint64_t)value;
}

static int near(uint64_t a, uint64_t b, uint64_t tolerance)
{
    return a <= b + tolerance && b <= a + tolerance;
}

/* What the observer was told and what the message says, against the device's own numbers. */
static void check_message(world *w, hoard *h)
{
    void *p = NULL;
    uint64_t held = statistic(h->allocator, "allocated_bytes.all.current");
    memopt_memory_info info = info_of(w);
    uint32_t told = h->told;
    uint64_t asked = w->properties.total_memory / 2 / MIB * MIB;
    FAILS(MEMOPT_OUT_OF_DEVICE_MEMORY,
          memopt_allocator_alloc(h->allocator, asked, MEMOPT_TAG_ACTIVATIONS, w->stream, &p));
    CHECK(p == NULL && h->told == told + 1 && h->asked == asked);
    CHECK(near(h->free_bytes, info.free, info.total / 64));
    if (!near(size_behind(h->report, "allocator: "), asked, asked / 128) ||
        !near(size_behind(h->report, "activations, "), info.free, info.total / 64) ||
        !near(size_behind(h->report, " free of "), info.total, info.total / 128) ||
        !near(size_behind(h->report, "held here: "), held, held / 128) ||
        !near(size_behind(h->report, "largest tags: activations "), h->bytes, h->bytes / 128))
        fail(__FILE__, __LINE__, "the message's numbers are wrong: %s", h->report);
    CHECK(statistic(h->allocator, "allocated_bytes.all.current") == held);
    CHECK(statistic(h->allocator, "num_ooms") >= h->told);
}

static void memory_runs_out(world *w)
{
    memopt_memory_info before = info_of(w);
    hoard *h = new_hoard(w, config_of(w));
    fill_device(w, h, 4 * MIB);
    /* what is left is less than the smallest block and what one of its pages rounds up to */
    CHECK(h->bytes + 64 * MIB + before.total / 32 >= before.free);
    check_message(w, h);
    touch(w, h);
    for (uint32_t i = 0; i < h->count; i += 2)
        drop(h, i);
    touch(w, h);
    void *p = NULL; /* small things work again without a trim */
    OK(memopt_allocator_alloc(h->allocator, 3 * MIB, MEMOPT_TAG_OTHER, w->stream, &p));
    OK(memopt_fill(w->device, p, 1, 3 * MIB, w->stream));
    OK(memopt_allocator_free(h->allocator, p));
    touch(w, h);
    end_hoard(w, h, &before);
    OK(memopt_allocator_alloc(w->allocator, MIB, MEMOPT_TAG_OTHER, w->stream, &p));
    OK(memopt_allocator_free(w->allocator, p));
}

/* Without an allocator: the back end's own status, and nothing is lost by it. */
static void the_limit_is_kept(world *w)
{
    hoard *h = new_hoard(w, "");
    uint64_t limit = 64 * MIB;
    void *p = NULL;
    OK(memopt_allocator_set_limit(h->allocator, limit));
    memopt_memory_info before = info_of(w);
    while (memopt_allocator_alloc(h->allocator, 5 * MIB, MEMOPT_TAG_OTHER, w->stream, &p) ==
           MEMOPT_OK) {
        h->blocks[h->count] = p;
        h->sizes[h->count++] = 5 * MIB;
        h->bytes += 5 * MIB;
        CHECK(h->count < 64);
    }
    CHECK(h->told == 1 && info_of(w).used <= before.used + limit);
    CHECK(h->bytes + 25 * MIB >= limit);
    OK(memopt_allocator_set_limit(h->allocator, 2 * limit));
    OK(memopt_allocator_alloc(h->allocator, 5 * MIB, MEMOPT_TAG_OTHER, w->stream, &p));
    OK(memopt_allocator_free(h->allocator, p));
    end_hoard(w, h, &before);
}

/* --- fragmentation ------------------------------------------------------------------------- */

/* Every other of many blocks goes; then one that is as large as all those holes together. With
 * expandable segments pages move; a classic allocator gives whole segments back. */
static void segments_recover(world *w)
{
    memopt_memory_info before = info_of(w);
    hoard *h = new_hoard(w, config_of(w));
    uint64_t holes = 0;
    void *big = NULL;
    uint64_t size = before.free / 128 / (4 * MIB) * (4 * MIB);
    size = size < 4 * MIB ? 4 * MIB : size;
    while (h->count < MOST_BLOCKS &&
           memopt_allocator_alloc(h->allocator, size, MEMOPT_TAG_OTHER, w->stream,
                                  &h->blocks[h->count]) == MEMOPT_OK) {
        h->sizes[h->count++] = size;
        h->bytes += size;
    }
    CHECK(h->count >= 16);
    for (uint32_t i = 1; i + 1 < h->count; i += 2) {
        drop(h, i);
        holes += size;
    }
    memopt_status status =
        memopt_allocator_alloc(h->allocator, holes, MEMOPT_TAG_OTHER, w->stream, &big);
    CHECK(status == MEMOPT_OK || (w->kind == CLASSIC && status == MEMOPT_OUT_OF_DEVICE_MEMORY));
    touch(w, h);
    if (status == MEMOPT_OK) {
        OK(memopt_fill(w->device, (char *)big + holes - 4096, 3, 4096, w->stream));
        touch(w, h);
        OK(memopt_allocator_free(h->allocator, big));
    }
    for (uint32_t i = 0; i < h->count; i++)
        if (h->blocks[i] != NULL)
            drop(h, i);
    uint64_t most = before.free / 4 * 3 / MIB * MIB; /* and now nearly all of it in one piece */
    OK(memopt_allocator_alloc(h->allocator, most, MEMOPT_TAG_OTHER, w->stream, &big));
    OK(memopt_fill(w->device, (char *)big + most - 4096, 3, 4096, w->stream));
    OK(memopt_allocator_free(h->allocator, big));
    end_hoard(w, h, &before);
}

/* --- giving a part back ---------------------------------------------------------------------- */

enum { PARTS = 5 };

static uint64_t reserved_of(memopt_allocator *allocator)
{
    return statistic(allocator, "reserved_bytes.all.current");
}

static uint64_t trim_to(memopt_allocator *allocator, uint64_t target)
{
    uint64_t released = UINT64_MAX, before = reserved_of(allocator);
    OK(memopt_allocator_trim_sync(allocator, target, &released));
    CHECK(before - reserved_of(allocator) == released);
    return released;
}

/* Blocks 0, 2 and 4 live, 1 free, 3 freed but pending. */
static void a_trim_stops_at_its_target(world *w)
{
    const uint64_t unit = (w->kind == EXPANDABLE ? 2 : 16) * MIB; /* goes back at once, at most */
    memopt_memory_info before = info_of(w);
    hoard *h = new_hoard(w, config_of(w));
    memopt_stream other;
    OK(memopt_stream_create(w->device, &other));
    for (; h->count < PARTS; h->count++) {
        h->sizes[h->count] = 16 * MIB;
        h->bytes += 16 * MIB;
        OK(memopt_allocator_alloc(h->allocator, 16 * MIB, MEMOPT_TAG_OTHER, w->stream,
                                  &h->blocks[h->count]));
    }
    OK(memopt_allocator_record_stream(h->allocator, h->blocks[3], other));
    drop(h, 1);
    drop(h, 3);
    uint64_t held = reserved_of(h->allocator);
    CHECK(held == PARTS * 16 * MIB);
    CHECK(trim_to(h->allocator, UINT64_MAX) == 0 && trim_to(h->allocator, held) == 0);
    /* The free block suffices: no more than needed goes, and the pending one stays pending. */
    uint64_t released = trim_to(h->allocator, held - 5 * MIB);
    CHECK(released >= 5 * MIB && released < 5 * MIB + unit);
    CHECK(statistic(h->allocator, "active_bytes.all.current") == 4 * 16 * MIB);
    /* It does not suffice: the pending block goes, too, as far as needed. */
    (void)trim_to(h->allocator, held - 21 * MIB);
    uint64_t left = reserved_of(h->allocator);
    CHECK(left <= held - 21 * MIB && left + unit > held - 21 * MIB);
    CHECK(statistic(h->allocator, "active_bytes.all.current") == 3 * 16 * MIB);
    /* Live blocks need more than the target: all that is free goes, and they keep their bytes. */
    touch(w, h);
    (void)trim_to(h->allocator, 1);
    CHECK(reserved_of(h->allocator) == 3 * 16 * MIB && info_of(w).used >= 3 * 16 * MIB);
    touch(w, h);
    OK(memopt_stream_destroy(w->device, other));
    end_hoard(w, h, &before);
}

/* --- pages that move ----------------------------------------------------------------------- */

/* Behind work that takes a while, half of the blocks are free, one by one; a larger one needs their
 * pages. What the stream does before and after is in order, whatever addresses the pages have. */
static void pages_move_behind_work(world *w)
{
    enum { BLOCKS = 8 };
    const uint64_t bytes = 4 * MIB, whole = BLOCKS / 2 * bytes;
    memopt_memory_info before = info_of(w);
    memopt_allocator *allocator;
    void *blocks[BLOCKS], *large;
    unsigned char *host;
    OK(memopt_allocator_create(w->device, config_of(w), NULL, &allocator));
    OK(memopt_allocator_set_limit(allocator, BLOCKS * bytes));
    OK(memopt_host_alloc(w->device, BLOCKS * bytes + whole, (void **)&host));
    for (uint64_t round = 0; round < 3; round++) {
        for (uint64_t i = 0; i < BLOCKS; i++) {
            OK(memopt_allocator_alloc(allocator, bytes, MEMOPT_TAG_OTHER, w->stream, &blocks[i]));
            OK(memopt_fill(w->device, blocks[i], (int)(round * 16 + i), bytes, w->stream));
        }
        for (uint64_t i = 0; i < BLOCKS; i++)
            OK(memopt_copy(w->device, host + i * bytes, blocks[i], bytes, w->stream));
        for (uint64_t i = 0; i < BLOCKS; i += 2)
            OK(memopt_allocator_free(allocator, blocks[i]));
        OK(memopt_allocator_alloc(allocator, whole, MEMOPT_TAG_OTHER, w->stream, &large));
        OK(memopt_fill(w->device, large, (int)(round * 16 + 8), whole, w->stream));
        OK(memopt_copy(w->device, host + BLOCKS * bytes, large, whole, w->stream));
        OK(memopt_stream_sync(w->device, w->stream));
        for (uint64_t i = 0; i < BLOCKS * bytes + whole; i++)
            CHECK(host[i] == round * 16 + (i < BLOCKS * bytes ? i / bytes : 8));
        OK(memopt_allocator_free(allocator, large));
        for (uint64_t i = 1; i < BLOCKS; i += 2)
            OK(memopt_allocator_free(allocator, blocks[i]));
    }
    OK(memopt_host_free(w->device, host));
    OK(memopt_allocator_destroy(allocator));
    CHECK(info_of(w).used == before.used);
}

/* --- pools --------------------------------------------------------------------------------- */

enum { POOLS = 3 };

static void *block_of(world *w, memopt_allocator *owner, uint64_t bytes, int value)
{
    void *p = NULL;
    OK(memopt_allocator_alloc(owner, bytes, MEMOPT_TAG_OTHER, w->stream, &p));
    OK(memopt_fill(w->device, p, value, bytes, w->stream));
    return p;
}

static void check_block(world *w, const void *p, uint64_t bytes, int value)
{
    unsigned char *host = host_memory(bytes);
    OK(memopt_copy(w->device, host, p, bytes, w->stream));
    OK(memopt_stream_sync(w->device, w->stream));
    for (uint64_t i = 0; i < bytes; i++)
        CHECK(host[i] == value);
    free(host);
}

/* Under one limit of 96 MiB, what one pool has free serves the others, round after round, and what
 * lives in them stays as it is. */
static void pools_share_a_limit(world *w)
{
    memopt_memory_info before = info_of(w);
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    memopt_allocator *parent = NULL;
    memopt_pool *pools[POOLS];
    void *lives[POOLS];
    options.limit = 96 * MIB;
    OK(memopt_allocator_create(w->device, config_of(w), &options, &parent));
    for (int i = 0; i < POOLS; i++) {
        OK(memopt_pool_create(parent, NULL, &pools[i]));
        lives[i] = block_of(w, pools[i], 10 * MIB + 512, i);
    }
    for (int round = 0; round < 2 * POOLS; round++) {
        memopt_pool *one = pools[round % POOLS];
        OK(memopt_allocator_free(one, block_of(w, one, 40 * MIB, 77)));
        CHECK(info_of(w).used <= before.used + options.limit);
        for (int i = 0; i < POOLS; i++)
            check_block(w, lives[i], 10 * MIB + 512, i);
    }
    FAILS(MEMOPT_BUSY, memopt_allocator_destroy(parent));
    for (int i = 0; i < POOLS; i++) {
        OK(memopt_allocator_free(pools[i], lives[i]));
        OK(memopt_allocator_destroy(pools[i]));
    }
    OK(memopt_allocator_destroy(parent));
    CHECK(info_of(w).used == before.used);
}

enum { PAUSED_BLOCKS = 9 };

/* A pool goes and comes back with each way of pausing, while another one uses the memory that it
 * left: the driver has it again, and addresses and contents are the same. */
static void pools_pause(world *w)
{
    memopt_memory_info before = info_of(w);
    memopt_allocator *parent = NULL;
    memopt_pool *pool = NULL;
    void *blocks[PAUSED_BLOCKS];
    uint64_t sizes[PAUSED_BLOCKS], released = 0;
    if (!w->properties.virtual_memory)
        skip("the device has no virtual memory");
    OK(memopt_allocator_create(w->device, "expandable_segments:True", NULL, &parent));
    OK(memopt_pool_create(parent, NULL, &pool));
    for (int i = 0; i < PAUSED_BLOCKS; i++) {
        /* Whole units: a pause copies what rounding adds, too, which nobody has written. */
        sizes[i] = 512 * (uint64_t)(i % 3 == 0 ? 3 : i % 3 == 1 ? 177 : 6145);
        blocks[i] = block_of(w, pool, sizes[i], i + 1);
        OK(memopt_allocator_free(pool, block_of(w, pool, 2 * MIB, 100)));
    }
    for (int round = 0; round < 4; round++) {
        int keep = round != 2;
        OK(pause_pool(pool, keep ? MEMOPT_PAUSE_KEEP : MEMOPT_PAUSE_DISCARD, &released));
        CHECK(released > 0 && statistic(pool, "reserved_bytes.all.current") == 0);
        CHECK(info_of(w).used == before.used + reserved_of(parent));
        void *other = block_of(w, parent, 24 * MIB, 200 + round);
        check_block(w, other, 24 * MIB, 200 + round);
        OK(memopt_allocator_free(parent, other));
        FAILS(MEMOPT_BUSY, memopt_allocator_alloc(pool, 512, MEMOPT_TAG_OTHER, w->stream, &other));
        OK(memopt_pool_resume_sync(pool, 0));
        for (int i = 0; i < PAUSED_BLOCKS; i++) {
            if (!keep)
                OK(memopt_fill(w->device, blocks[i], (uint8_t)(i + 1), sizes[i], w->stream));
            check_block(w, blocks[i], sizes[i], i + 1);
        }
        OK(memopt_allocator_free(pool, block_of(w, pool, 2 * MIB, 100)));
    }
    OK(pause_pool(pool, MEMOPT_PAUSE_KEEP, NULL));
    for (int i = 0; i < PAUSED_BLOCKS; i++)
        OK(memopt_allocator_free(pool, blocks[i]));
    OK(memopt_allocator_destroy(pool));
    OK(memopt_allocator_destroy(parent));
    CHECK(info_of(w).used == before.used && info_of(w).pinned == before.pinned);
}

/* Random work on three members under one limit: blocks come and go, pools pause and resume, each in
 * turn takes what the others have free. Every block always holds what was written to it. */
enum { MEMBERS = 3, MIXED_BLOCKS = 40 };

typedef struct mixed {
    world *w;
    uint64_t random;
    memopt_allocator *members[MEMBERS]; /* the parent and its pools */
    struct {
        void *data;
        uint64_t bytes;
        int owner, value;
    } blocks[MIXED_BLOCKS];
} mixed;

static uint64_t below(mixed *m, uint64_t limit)
{
    return next_random(&m->random) % limit;
}

/* Fills an empty place, or checks and frees what is there. */
static void change_block(mixed *m, int i)
{
    int owner = (int)below(m, MEMBERS);
    uint64_t bytes = 512 * (1 + below(m, below(m, 3) == 0 ? 12288 : 256));
    if (m->blocks[i].data != NULL && !pool_is_paused(m->members[m->blocks[i].owner])) {
        check_block(m->w, m->blocks[i].data, m->blocks[i].bytes, m->blocks[i].value);
        OK(memopt_allocator_free(m->members[m->blocks[i].owner], m->blocks[i].data));
        m->blocks[i].data = NULL;
    }
    if (m->blocks[i].data != NULL)
        return;
    memopt_status status = memopt_allocator_alloc(m->members[owner], bytes, MEMOPT_TAG_OTHER,
                                                  m->w->stream, &m->blocks[i].data);
    if (pool_is_paused(m->members[owner])) {
        CHECK(status == MEMOPT_BUSY);
        return;
    }
    if (status == MEMOPT_OUT_OF_DEVICE_MEMORY)
        return;
    OK(status);
    m->blocks[i].bytes = bytes;
    m->blocks[i].owner = owner;
    m->blocks[i].value = (int)below(m, 256);
    OK(memopt_fill(m->w->device, m->blocks[i].data, (uint8_t)m->blocks[i].value, bytes,
                   m->w->stream));
}

/* Pauses a member that is not paused, resumes one that is, if there is memory. */
static void change_member(memopt_allocator *member)
{
    if (!pool_is_paused(member)) {
        OK(pause_pool(member, MEMOPT_PAUSE_KEEP, NULL));
        return;
    }
    memopt_status status = memopt_pool_resume_sync(member, 0);
    if (status != MEMOPT_OUT_OF_DEVICE_MEMORY)
        OK(status);
}

static void end_mixed(mixed *m)
{
    for (int i = 0; i < MIXED_BLOCKS; i++) {
        int owner = m->blocks[i].owner;
        if (m->blocks[i].data == NULL)
            continue;
        if (!pool_is_paused(m->members[owner]))
            check_block(m->w, m->blocks[i].data, m->blocks[i].bytes, m->blocks[i].value);
        OK(memopt_allocator_free(m->members[owner], m->blocks[i].data));
    }
    for (int i = MEMBERS - 1; i >= 0; i--)
        OK(memopt_allocator_destroy(m->members[i]));
}

static void pools_do_anything(world *w)
{
    memopt_memory_info before = info_of(w);
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    if (!w->properties.virtual_memory)
        skip("the device has no virtual memory");
    mixed m = {.w = w, .random = w->options->seed};
    options.limit = 40 * MIB;
    OK(memopt_allocator_create(w->device, "expandable_segments:True", &options, &m.members[0]));
    for (int i = 1; i < MEMBERS; i++)
        OK(memopt_pool_create(m.members[0], NULL, &m.members[i]));
    for (uint64_t step = 0; step < w->options->rounds; step++) {
        change_block(&m, (int)below(&m, MIXED_BLOCKS));
        if (below(&m, 6) == 0)
            change_member(m.members[below(&m, MEMBERS)]);
        if (below(&m, 16) == 0)
            OK(memopt_allocator_trim_sync(m.members[below(&m, MEMBERS)], 4 * MIB, NULL));
        CHECK(info_of(w).used <= before.used + options.limit);
    }
    end_mixed(&m);
    CHECK(info_of(w).used == before.used && info_of(w).pinned == before.pinned);
}

/* --- page-locked memory ----------------------------------------------------------------------- */

enum { SENT = 64, SENT_BYTES = 200 * 1000 };

/* The host fills a block, sends it, frees it at once and goes on with the next one: what is still
 * being copied is not overwritten, and memory is reused all the same. */
static void freed_pinned_blocks_wait_for_copies(world *w)
{
    memopt_memory_info before = info_of(w);
    memopt_allocator_options options = MEMOPT_ALLOCATOR_OPTIONS_INIT;
    memopt_allocator *pinned;
    unsigned char *values = host_memory(SENT);
    void *target;
    options.memory = MEMOPT_MEMORY_PINNED;
    options.limit = 4 * MIB;
    OK(memopt_allocator_create(w->device, "", &options, &pinned));
    OK(memopt_allocator_alloc(w->allocator, (uint64_t)SENT * SENT_BYTES, MEMOPT_TAG_OTHER,
                              w->stream, &target));
    for (int i = 0; i < SENT; i++) {
        memopt_stream stream = i % 3 == 0 ? w->other : w->stream;
        void *block;
        OK(memopt_allocator_alloc(pinned, SENT_BYTES, MEMOPT_TAG_OTHER, stream, &block));
        values[i] = (unsigned char)(i * 3 + 1);
        memset(block, values[i], SENT_BYTES);
        OK(memopt_copy(w->device, (char *)target + (size_t)i * SENT_BYTES, block, SENT_BYTES,
                       stream));
        OK(memopt_allocator_free(pinned, block));
    }
    OK(memopt_device_sync(w->device));
    for (int i = 0; i < SENT; i++)
        check_block(w, (char *)target + (size_t)i * SENT_BYTES, SENT_BYTES, values[i]);
    CHECK(statistic(pinned, "reserved_bytes.all.peak") <= options.limit);
    OK(memopt_allocator_free(w->allocator, target));
    OK(memopt_allocator_destroy(pinned));
    CHECK(info_of(w).pinned == before.pinned);
    free(values);
}

const conformance_case memory_cases[] = {
    {"oom_expandable", memory_runs_out, 0, EXPANDABLE, 0},
    {"oom_classic", memory_runs_out, 0, CLASSIC, 0},
    {"oom_limit", the_limit_is_kept, 0, 0, 0},
    {"fragments_expandable", segments_recover, 0, EXPANDABLE, 0},
    {"fragments_classic", segments_recover, 0, CLASSIC, 0},
    {"trim_expandable", a_trim_stops_at_its_target, 0, EXPANDABLE, 0},
    {"trim_classic", a_trim_stops_at_its_target, 0, CLASSIC, 0},
    {"moves_behind_work", pages_move_behind_work, 0, EXPANDABLE, 0},
    {"pools_expandable", pools_share_a_limit, 0, EXPANDABLE, 0},
    {"pools_classic", pools_share_a_limit, 0, CLASSIC, 0},
    {"pools_pause", pools_pause, 0, 0, 0},
    {"pools_stress", pools_do_anything, 0, 0, 0},
    {"pinned_cache", freed_pinned_blocks_wait_for_copies, 0, 0, 0},
    {NULL, NULL, 0, 0, 0},
};
