/* What must be true between operations, by sums over the list of live blocks. */
#include "world.h"

#include "base/memory.h"
#include "support/allocator_check.h"
#include "support/pausing.h"

#include <stdlib.h>
#include <string.h>

static int by_number(const void *a, const void *b)
{
    uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return (x > y) - (x < y);
}

static int counts(const world *w, const slot *s, model_blocks which, uint64_t tags)
{
    int tagged = (int)(tags >> s->tag & 1);
    if (which == MODEL_TAGGED)
        return tagged;
    return which == MODEL_ALL || !tagged || is_exported(w, s);
}

uint64_t model_pages(const world *w, uint32_t index, model_blocks which, uint64_t tags)
{
    enum { MOST = 1 << 17, BLOCKS = ORACLE_SLOTS + ORACLE_SHARES };
    static uintptr_t pages[MOST];
    const slot *blocks[BLOCKS];
    uint64_t granularity = w->members[index].handle->granularity, count = 0, distinct = 0;
    uint32_t all = shares_freed(w, index, blocks);
    for (int i = 0; i < ORACLE_SLOTS; i++)
        if (w->slots[i].at != NULL && w->slots[i].member == index)
            blocks[all++] = &w->slots[i];
    for (uint32_t i = 0; i < all; i++) {
        const slot *s = blocks[i];
        if (!counts(w, s, which, tags))
            continue;
        uintptr_t page = (uintptr_t)s->at / granularity;
        for (; page * granularity < (uintptr_t)s->at + s->usable && count < MOST; page++)
            pages[count++] = page;
    }
    qsort(pages, count, sizeof pages[0], by_number);
    for (uint64_t i = 0; i < count; i++)
        distinct += i == 0 || pages[i] != pages[i - 1];
    return distinct * granularity;
}

static void check_tags(const world *w, uint32_t index)
{
    uint64_t bytes[ORACLE_TAGS] = {0}, blocks[ORACLE_TAGS] = {0};
    for (int i = 0; i < ORACLE_SLOTS; i++) {
        const slot *s = &w->slots[i];
        if (s->at != NULL && s->member == index) {
            bytes[s->tag] += s->bytes;
            blocks[s->tag]++;
        }
    }
    for (memopt_tag tag = 0; tag < ORACLE_TAGS; tag++) {
        memopt_tag_stats stats = {.struct_size = sizeof stats};
        OK(w, memopt_allocator_get_tag_stats(w->members[index].handle, tag, &stats));
        REQUIRE(w, stats.current_bytes == bytes[tag] && stats.blocks == blocks[tag]);
    }
}

/* A limit binds what grows; what was held before may stay. */
static void check_limit(const world *w, uint64_t limit, uint64_t before, uint64_t now)
{
    if (!w->threads && limit != 0 && now > limit && now > before)
        oracle_fail(w, "%llu bytes are held, %llu before, with a limit of %llu",
                    (unsigned long long)now, (unsigned long long)before, (unsigned long long)limit);
}

static uint64_t check_member(world *w, uint32_t index)
{
    member *m = &w->members[index];
    uint64_t count = 0, requested = 0;
    for (int i = 0; i < ORACLE_SLOTS; i++)
        if (w->slots[i].at != NULL && w->slots[i].member == index) {
            count++;
            requested += w->slots[i].bytes;
        }
    OK(w, mo_allocator_check(m->handle));
    uint64_t reserved = world_stat(w, index, "reserved_bytes.all.current");
    REQUIRE(w, world_stat(w, index, "allocation.all.current") == count);
    REQUIRE(w, world_stat(w, index, "requested_bytes.all.current") == requested);
    if (!w->threads) {
        REQUIRE(w, count == m->count && requested == m->requested);
        REQUIRE(w, world_stat(w, index, "allocation.all.allocated") == m->allocations);
        REQUIRE(w, world_stat(w, index, "requested_bytes.all.peak") == m->peak);
    }
    REQUIRE(w, pool_is_paused(m->handle) == (m->paused == UINT64_MAX));
    REQUIRE(w, paused_tags_of(m->handle) == m->paused);
    if (!m->paused)
        REQUIRE(w, reserved >= world_stat(w, index, "allocated_bytes.all.current"));
    else if (!w->disturbed && m->paused == UINT64_MAX)
        REQUIRE(w, reserved <= m->left);
    check_limit(w, m->limit, m->held, reserved);
    check_tags(w, index);
    return reserved;
}

static void check_apart(const world *w)
{
    for (int i = 0; i < ORACLE_SLOTS; i++)
        for (int k = 0; k < i; k++) {
            const slot *a = &w->slots[i], *b = &w->slots[k];
            if (a->at != NULL && b->at != NULL &&
                mo_ranges_overlap(a->at, a->usable, b->at, b->usable))
                oracle_fail(w, "the blocks of slots %d and %d overlap", k, i);
        }
}

void model_check(world *w)
{
    static const uint32_t roots[ORACLE_ROOTS] = {ORACLE_ROOT, ORACLE_PINNED_ROOT,
                                                 ORACLE_PROVIDER_ROOT};
    memopt_memory_info info = {.struct_size = sizeof info};
    uint64_t held[ORACLE_ROOTS] = {0}, before[ORACLE_ROOTS] = {0};
    int paused = 0;
    for (uint32_t i = 0; i < ORACLE_MEMBERS; i++) {
        member *m = &w->members[i];
        if (m->handle == NULL)
            continue;
        uint64_t reserved = check_member(w, i);
        held[root_of(i)] += reserved;
        before[root_of(i)] += m->held;
        m->held = reserved;
        paused |= m->paused != 0;
    }
    for (uint32_t r = 0; r < ORACLE_ROOTS; r++)
        if (w->members[roots[r]].handle != NULL)
            check_limit(w, w->members[roots[r]].limit, before[r], held[r]);
    OK(w, memopt_device_get_memory_info(w->device, &info));
    /* A handle that the driver did not release is kept without a page. */
    REQUIRE(w, w->faulted ? info.used >= held[0] + held[2] : info.used == held[0] + held[2]);
    REQUIRE(w, w->provided == held[2]);
    if (paused ? info.pinned < w->pinned_base + held[1] : info.pinned != w->pinned_base + held[1])
        oracle_fail(w, "%llu bytes are page-locked: %llu ours, %llu in segments",
                    (unsigned long long)info.pinned, (unsigned long long)w->pinned_base,
                    (unsigned long long)held[1]);
    check_apart(w);
    observers_check(w);
    check_violations(w);
}
