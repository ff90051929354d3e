/*
 * Why an allocation has failed: what it lacked, who has that many bytes, and which of them would
 * have served it. Only counters and one walk over the blocks, at the failure; nothing allocates.
 *
 * Each possible cause has a gain, the bytes that the request could have had without it. The largest
 * gain that covers what was lacking is the cause. Gains below a twentieth of what is held do not
 * count: then it is the live memory itself.
 *
 * A leak shows in the ages of live blocks. The allocator's history, counted in allocations, is cut
 * into slots. Blocks of one tag and size class that are in every slot up to now, while most other
 * blocks of these slots came and went, were added steadily and never freed.
 */
#include "allocator/watch/cause.h"

#include "allocator/blocks/pool.h"
#include "allocator/memory/segment.h"
#include "allocator/memory/segment_common.h"
#include "allocator/streams/events.h"

#include "base/checked.h"

#include <stddef.h>

enum {
    SLOTS = 16,          /* of the history */
    LEAST_SLOTS = 4,     /* in which a leak shows, up to now */
    LEAST_LEAKED = 8,    /* blocks */
    FREED_PER_LIVE = 4,  /* so many blocks came and went for each that lives, where a leak shows */
    COHORTS = 96,        /* tags and size classes that are looked at */
    LEAST_PART = 20,     /* of what is held: less is no cause */
    LEAST_LEAK_PART = 4, /* the same for a leak */
    OUTSIDE_PART = 8     /* of the device: less is what a context takes */
};

/* Live blocks of one tag whose sizes are between two powers of two. */
typedef struct cohort {
    uint64_t bytes[SLOTS];
    uint64_t blocks;
    uint64_t oldest; /* clock of the first allocation */
    uint32_t tag;
    uint32_t octave; /* of the size; 0: unused */
} cohort;

/* Live blocks of a tag: all, or those beside a hole. */
typedef struct holder {
    uint64_t bytes, blocks, oldest, newest;
} holder;

typedef struct survey {
    const memopt_allocator *allocator;
    uint64_t spare;         /* free bytes that could go back to the device */
    uint64_t pages;         /* whole pages in the holes */
    uint64_t largest;       /* free block */
    uint64_t free;          /* bytes */
    uint64_t roundup;       /* that roundup_power2_divisions adds to live blocks */
    uint64_t unsplit;       /* that max_split_size_mb keeps unused in live blocks */
    uint64_t living[SLOTS]; /* live blocks by age */
    holder all[MO_TAGS], pins[MO_TAGS];
    cohort cohorts[COHORTS];
} survey;

/* --- the walk --------------------------------------------------------------------------------- */

static void hold(holder *of, const mo_block *block)
{
    if (of->blocks == 0 || block->freed_at < of->oldest)
        of->oldest = block->freed_at;
    of->newest = mo_max_u64(of->newest, block->freed_at);
    of->bytes += block->requested;
    of->blocks++;
}

static cohort *cohort_of(survey *s, const mo_block *block)
{
    uint32_t octave = 64u - (uint32_t)__builtin_clzll(block->requested | 1);
    uint32_t first = (block->tag * 64u + octave) % COHORTS;
    for (uint32_t i = 0; i < COHORTS; i++) {
        cohort *found = &s->cohorts[(first + i) % COHORTS];
        if (found->octave == 0) {
            found->tag = block->tag;
            found->octave = octave;
            found->oldest = block->freed_at;
        }
        if (found->tag == block->tag && found->octave == octave)
            return found;
    }
    return NULL;
}

/* Allocations of a slot; the last one may have fewer. */
static uint64_t slot_length(const memopt_allocator *allocator)
{
    return allocator->clock / SLOTS + 1;
}

static void note_age(survey *s, const mo_block *block)
{
    cohort *of = cohort_of(s, block);
    uint64_t slot = block->freed_at / slot_length(s->allocator);
    s->living[slot]++;
    if (of == NULL)
        return;
    of->bytes[slot] += block->size;
    of->blocks++;
    of->oldest = mo_min_u64(of->oldest, block->freed_at);
}

static int is_free(const mo_block *block)
{
    return block != NULL && block->state == MO_BLOCK_FREE;
}

static void note_live(survey *s, const mo_block *block)
{
    const memopt_allocator *allocator = s->allocator;
    uint64_t plain = mo_ceil_div_u64(block->requested, MO_BLOCK_UNIT) * MO_BLOCK_UNIT;
    uint64_t rounded = mo_round_size(allocator, block->requested);
    s->roundup += rounded - plain;
    if (block->size >= allocator->max_split && !mo_segment_is_expandable(block->segment))
        s->unsplit += block->size - mo_min_u64(rounded, block->size);
    hold(&s->all[block->tag], block);
    if (is_free(block->prev) || is_free(block->next))
        hold(&s->pins[block->tag], block);
    note_age(s, block);
}

static void note_free(survey *s, const mo_block *block)
{
    uint64_t page = s->allocator->granularity;
    s->free += block->size;
    s->largest = mo_max_u64(s->largest, block->size);
    if (!mo_segment_is_expandable(block->segment) && block->size < block->segment->size)
        s->pages += block->size / page * page;
}

static void walk(survey *s, const memopt_allocator *allocator)
{
    s->allocator = allocator;
    s->spare = mo_segment_spare(allocator, UINT64_MAX);
    for (const mo_segment *segment = allocator->segments; segment != NULL; segment = segment->next)
        for (const mo_block *block = segment->first; block != NULL; block = block->next) {
            if (block->state == MO_BLOCK_LIVE)
                note_live(s, block);
            else if (block->state == MO_BLOCK_FREE)
                note_free(s, block);
        }
}

/* --- a leak ----------------------------------------------------------------------------------- */

/* The slots up to now in which the cohort has blocks. */
static unsigned slots_of(const cohort *of, unsigned last)
{
    unsigned count = 0;
    while (count <= last && of->bytes[last - count] != 0)
        count++;
    return count;
}

/* True if most blocks of the last slots were freed again. */
static int most_have_gone(const survey *s, unsigned last, unsigned slots)
{
    uint64_t living = 0;
    uint64_t first = (last + 1 - slots) * slot_length(s->allocator);
    for (unsigned i = 0; i < slots; i++)
        living += s->living[last - i];
    return s->allocator->clock - first >= living * (FREED_PER_LIVE + 1);
}

/* Bytes of a cohort that were added in every slot up to now; a slot counts with at most twice what
 * the others have, because a cohort may hold more than the leak. */
static uint64_t steady_bytes(const survey *s, const cohort *of, unsigned last)
{
    uint64_t sorted[SLOTS], sum = 0;
    unsigned slots = slots_of(of, last);
    if (slots < LEAST_SLOTS || of->blocks < LEAST_LEAKED || !most_have_gone(s, last, slots))
        return 0;
    for (unsigned i = 0; i < slots; i++) {
        unsigned at = i;
        for (; at > 0 && sorted[at - 1] > of->bytes[last - i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = of->bytes[last - i];
    }
    for (unsigned i = 0; i < slots; i++)
        sum += mo_min_u64(sorted[i], 2 * sorted[slots / 2]);
    return sum;
}

/* The cohort that leaks most; NULL if none does. */
static const cohort *find_leak(const survey *s, uint64_t *out_bytes)
{
    const cohort *found = NULL;
    uint64_t clock = s->allocator->clock;
    *out_bytes = 0;
    if (clock < SLOTS)
        return NULL;
    unsigned last = (unsigned)((clock - 1) / slot_length(s->allocator));
    for (const cohort *of = s->cohorts; of < s->cohorts + COHORTS; of++) {
        uint64_t bytes = of->octave == 0 ? 0 : steady_bytes(s, of, last);
        if (bytes > *out_bytes) {
            *out_bytes = bytes;
            found = of;
        }
    }
    return found;
}

/* --- the decision ----------------------------------------------------------------------------- */

/* The tag that has most of these blocks. */
static uint32_t largest_holder(const holder *holders)
{
    uint32_t largest = 0;
    for (uint32_t tag = 1; tag < MO_TAGS; tag++)
        if (holders[tag].bytes > holders[largest].bytes)
            largest = tag;
    return largest;
}

static void blame(memopt_oom_report *out, uint32_t tag, const holder *of)
{
    out->holder_tag = tag;
    out->holder_bytes = of->bytes;
    out->holder_blocks = of->blocks;
    out->holder_oldest = of->blocks == 0 ? 0 : out->clock - of->oldest;
    out->holder_newest = of->blocks == 0 ? 0 : out->clock - of->newest;
}

/* Whose blocks they are that stand in the way. */
static void blame_by(memopt_oom_report *out, const survey *s, const cohort *leak)
{
    const holder *holders = s->all;
    if (out->cause == MEMOPT_OOM_LEAK && leak != NULL) {
        const holder leaked = {out->leaked_bytes, leak->blocks, leak->oldest, out->clock - 1};
        blame(out, leak->tag, &leaked);
        return;
    }
    if (out->cause == MEMOPT_OOM_FRAGMENTATION || out->cause == MEMOPT_OOM_SEGMENTS)
        holders = s->pins;
    uint32_t tag = largest_holder(holders);
    blame(out, tag, &holders[tag]);
}

static void consider(memopt_oom_report *out, uint64_t *most, uint32_t cause, uint64_t gain,
                     uint64_t least)
{
    if (gain < out->missing_bytes || gain < least || gain <= *most)
        return;
    *most = gain;
    out->cause = cause;
}

/* Causes that do not depend on how much else is held. */
static int is_plain(const memopt_allocator *allocator, const mo_request *request, int waits,
                    memopt_oom_report *out)
{
    out->cause = request->size > allocator->device_total ? MEMOPT_OOM_REQUEST : MEMOPT_OOM_STREAM;
    return out->cause == MEMOPT_OOM_REQUEST ||
           (waits && out->pending_bytes + out->spare_bytes >= out->missing_bytes);
}

static void decide(memopt_allocator *allocator, const mo_request *request, const survey *s,
                   uint64_t need, memopt_oom_report *out)
{
    uint64_t held = mo_max_u64(out->held_bytes, 1), some = held / LEAST_PART, most = 0;
    uint64_t own = mo_own_room(allocator), holes = s->free - s->spare;
    /* One hole of the request's size would have served it, though growth lacks whole pages. */
    uint64_t in_holes = holes >= request->size ? mo_max_u64(holes, out->missing_bytes) : holes;
    int waits = out->pending_bytes > 0 || mo_capturing(allocator);
    if (is_plain(allocator, request, waits, out))
        return;
    out->cause = MEMOPT_OOM_GROWTH;
    if (mo_room(allocator) < need && out->free_bytes >= need) {
        /* A limit is a choice: what is wasted below it counts first, if it is much. */
        out->cause = MEMOPT_OOM_LIMIT;
        most = held / LEAST_LEAK_PART;
    }
    consider(out, &most, MEMOPT_OOM_ROUNDING, out->rounding_bytes, some);
    if (!allocator->config.expandable_segments)
        consider(out, &most, MEMOPT_OOM_SEGMENTS, s->pages, some);
    if (holes >= some && (s->pages < out->missing_bytes || allocator->config.expandable_segments))
        consider(out, &most, MEMOPT_OOM_FRAGMENTATION, in_holes, 0);
    if (own >= need)
        consider(out, &most, MEMOPT_OOM_POOL, out->pool_bytes, some);
    consider(out, &most, MEMOPT_OOM_OUTSIDE, out->outside_bytes, out->total_bytes / OUTSIDE_PART);
    consider(out, &most, MEMOPT_OOM_LEAK, out->leaked_bytes, held / LEAST_LEAK_PART);
}

void mo_cause_find(memopt_allocator *allocator, const mo_request *request,
                   const mo_oom_outside *outside, memopt_oom_report *out)
{
    survey s = {0};
    const mo_stats *stats = &allocator->stats;
    const mo_family *family = allocator->family;
    uint64_t page = allocator->granularity;
    mo_request least = *request;
    least.least = 1;
    walk(&s, allocator);
    uint64_t need = allocator->expandable ? mo_ceil_div_u64(request->size, page) * page
                                          : mo_segment_size(allocator, &least);
    uint64_t usable = mo_min_u64(outside->device_free, mo_room(allocator));
    if (!mo_capturing(allocator))
        usable += s.spare;
    *out = (memopt_oom_report)MEMOPT_OOM_REPORT_INIT;
    out->number = stats->counter[MO_STAT_NUM_OOMS];
    out->clock = allocator->clock;
    out->tag = request->tag;
    out->asked_bytes = request->asked;
    out->missing_bytes = need > usable ? need - usable : need;
    out->total_bytes = allocator->device_total;
    out->free_bytes = outside->device_free;
    out->limit_bytes = mo_min_u64(mo_allowed(allocator), mo_allowed(family->parent));
    out->held_bytes = family->held;
    out->live_bytes = mo_stat_current(stats, MO_STAT_ALLOCATED_BYTES);
    out->requested_bytes = mo_stat_current(stats, MO_STAT_REQUESTED_BYTES);
    out->pending_bytes = mo_stat_current(stats, MO_STAT_ACTIVE_BYTES) - out->live_bytes;
    out->cached_bytes = s.free;
    out->spare_bytes = s.spare;
    out->largest_free_bytes = s.largest;
    out->rounding_bytes = s.roundup + s.unsplit + request->size -
                          mo_ceil_div_u64(request->asked, MO_BLOCK_UNIT) * MO_BLOCK_UNIT;
    out->unsplit_bytes = s.unsplit;
    out->pool_bytes = outside->pools_free;
    uint64_t known =
        allocator->foreign ? allocator->device_total : outside->device_free + family->held;
    out->outside_bytes = allocator->device_total - mo_min_u64(known, allocator->device_total);
    const cohort *leak = find_leak(&s, &out->leaked_bytes);
    decide(allocator, request, &s, need, out);
    blame_by(out, &s, leak);
}
