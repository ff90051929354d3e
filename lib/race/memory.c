/*
 * Blocks and the last uses of ranges. What is beyond the bound on memory is forgotten: the range whose
 * last use is longest ago.
 */
#include "race/finder.h"

#include "base/checked.h"

#include <string.h>

#define LEAST_BYTES ((uint64_t)16 << 20)
enum { SHARE = 20 };

/* --- ranges: by age, and what they take -------------------------------------------------------- */

static void unlink_range(memopt_race *race, const mo_race_range *range)
{
    *(range->newer != NULL ? &range->newer->older : &race->newest) = range->older;
    *(range->older != NULL ? &range->older->newer : &race->oldest) = range->newer;
}

static void link_newest(memopt_race *race, mo_race_range *range)
{
    range->newer = NULL;
    range->older = race->newest;
    *(race->newest != NULL ? &race->newest->newer : &race->oldest) = range;
    race->newest = range;
}

static void drop_uses(memopt_race *race, mo_race_use *first)
{
    while (first != NULL) {
        mo_race_use *next = first->next;
        mo_race_give(race, first, sizeof *first);
        first = next;
    }
}

static void drop_range(memopt_race *race, mo_race_range *range)
{
    unlink_range(race, range);
    mo_span_remove(&race->ranges, &range->span);
    drop_uses(race, range->reads.next);
    mo_race_give(race, range->shape, sizeof *range->shape);
    mo_race_give(race, range, sizeof *range);
    race->stats.ranges--;
}

static void drop_ranges(memopt_race *race, uint64_t lo, uint64_t hi)
{
    for (mo_span *span; (span = mo_span_first(race->ranges, lo, hi)) != NULL;)
        drop_range(race, (mo_race_range *)span);
}

/* Host memory within the bound. NULL: there is none, which counts as forgotten. */
static void *take(memopt_race *race, uint64_t bytes)
{
    uint64_t bound = race->options.max_bytes;
    if (bound == 0)
        bound = mo_max_u64(LEAST_BYTES, race->live_bytes_peak / SHARE);
    while (race->stats.bytes + bytes > bound && race->oldest != NULL) {
        drop_range(race, race->oldest);
        race->stats.forgotten++;
    }
    void *pointer = race->stats.bytes + bytes > bound ? NULL : mo_race_take(race, bytes);
    race->stats.forgotten += pointer == NULL;
    return pointer;
}

/* --- checks ------------------------------------------------------------------------------------ */

/* An access that is looked at. */
typedef struct visit {
    memopt_race *race;
    const mo_race_use *use;
    const mo_race_shape *shape;
    uint64_t lo, hi, hash;
    mo_race_range *same, *dead;
} visit;

/* One report for each kind and pair of tags. */
static void add_report(memopt_race *race, const memopt_race_report *report)
{
    for (uint64_t i = 0; i < race->stats.reports; i++) {
        const memopt_race_report *known = &race->found[i];
        if (known->kind == report->kind && known->first.tag == report->first.tag &&
            known->second.tag == report->second.tag)
            return;
    }
    if (race->stats.reports == race->options.max_reports ||
        !mo_race_grow(race, (void **)&race->found, &race->found_capacity, race->stats.reports + 1,
                      sizeof *race->found))
        race->stats.forgotten++;
    else
        race->found[race->stats.reports++] = *report;
}

static memopt_race_side side(const mo_race_use *use)
{
    return (memopt_race_side){use->tag, use->actor, use->write};
}

static memopt_race_report report_of(memopt_race_kind kind, const mo_race_block *block, uint64_t lo,
                                    uint64_t hi)
{
    memopt_race_report report = {.kind = kind, .address = lo, .bytes = hi - lo};
    if (block != NULL) {
        report.memory = block->memory;
        report.block_address = block->span.lo;
        report.block_bytes = block->span.hi - block->span.lo;
    }
    return report;
}

/* The bytes are those of the first block that both are in, or of what is before it. */
static void report_race(const visit *v, const mo_race_range *range, const mo_race_use *old)
{
    uint64_t lo = mo_max_u64(v->lo, range->span.lo), hi = mo_min_u64(v->hi, range->span.hi);
    mo_race_block *block = (mo_race_block *)mo_span_first(v->race->blocks, lo, hi);
    if (block != NULL && block->span.lo > lo) {
        hi = block->span.lo;
        block = NULL;
    }
    memopt_race_report report =
        report_of(!old->write     ? MEMOPT_RACE_WRITE_AFTER_READ
                  : v->use->write ? MEMOPT_RACE_WRITE_AFTER_WRITE
                                  : MEMOPT_RACE_READ_AFTER_WRITE,
                  block, lo, block != NULL ? mo_min_u64(hi, block->span.hi) : hi);
    report.first = side(old);
    report.second = side(v->use);
    report.waiter = v->use->actor;
    report.waited = old->actor;
    add_report(v->race, &report);
}

static void check_range(const visit *v, const mo_race_range *range)
{
    int meet = 0; /* 0: not looked at yet */
    for (const mo_race_use *old = &range->write; old != NULL;
         old = old == &range->write ? (v->use->write ? &range->reads : NULL) : old->next) {
        if (old->seq == 0 || mo_race_is_after(v->race, v->use->actor, old))
            continue;
        if (meet == 0) {
            meet = range == v->same ? 1
                                    : mo_race_shapes_meet(v->shape, range->shape,
                                                          mo_max_u64(v->lo, range->span.lo),
                                                          mo_min_u64(v->hi, range->span.hi));
            v->race->stats.forgotten += meet < 0;
            if (meet != 1)
                return;
        }
        report_race(v, range, old);
    }
}

/* Whether later accesses that race with a use of the range race with this one too. */
static int replaces(const visit *v, const mo_race_range *range)
{
    if (v->shape != NULL || v->lo > range->span.lo || v->hi < range->span.hi || range == v->same)
        return 0;
    return v->use->write || (range->write.seq == 0 && range->reads.actor == v->use->actor &&
                             range->reads.next == NULL);
}

static void look(void *user, mo_span *span)
{
    visit *v = user;
    mo_race_range *range = (mo_race_range *)span;
    if (span->lo == v->lo && span->hi == v->hi && span->extra == v->hash)
        v->same = range;
    check_range(v, range);
    if (v->use->actor != MEMOPT_RACE_HOST && replaces(v, range)) {
        range->dead = v->dead;
        v->dead = range;
    }
}

static mo_race_range *new_range(const visit *v)
{
    memopt_race *race = v->race;
    mo_race_range *range = take(race, sizeof *range);
    if (range == NULL)
        return NULL;
    *range = (mo_race_range){.span = {.lo = v->lo, .hi = v->hi, .extra = v->hash}};
    if (v->shape != NULL) {
        range->shape = take(race, sizeof *range->shape);
        if (range->shape == NULL) {
            mo_race_give(race, range, sizeof *range);
            return NULL;
        }
        *range->shape = *v->shape;
    }
    mo_span_add(&race->ranges, &range->span);
    link_newest(race, range);
    race->stats.ranges++;
    return range;
}

/* The read of the actor in the range, the first unused one, or a new one. */
static mo_race_use *read_of(memopt_race *race, mo_race_range *range, uint32_t actor)
{
    mo_race_use *read = &range->reads;
    while (read->seq != 0 && read->actor != actor && read->next != NULL)
        read = read->next;
    if (read->seq == 0 || read->actor == actor)
        return read;
    mo_race_use *more = mo_race_take(race, sizeof *more);
    race->stats.forgotten += more == NULL;
    if (more != NULL) {
        more->next = NULL;
        read->next = more;
    }
    return more;
}

static void keep(const visit *v, mo_race_range *range)
{
    mo_race_use *place = &range->write;
    if (v->use->write) {
        drop_uses(v->race, range->reads.next);
        range->reads = (mo_race_use){0};
    } else if ((place = read_of(v->race, range, v->use->actor)) == NULL)
        return;
    mo_race_use *next = place->next;
    *place = *v->use;
    place->next = next;
    unlink_range(v->race, range);
    link_newest(v->race, range);
}

void mo_race_touch(memopt_race *race, const mo_race_use *use, const mo_race_shape *shape,
                   uint64_t lo, uint64_t hi)
{
    visit v = {.race = race, .use = use, .shape = shape, .lo = lo, .hi = hi};
    if (shape != NULL)
        v.hash = mo_race_shape_hash(shape);
    mo_span_each(race->ranges, lo, hi, look, &v);
    while (v.dead != NULL) {
        mo_race_range *range = v.dead;
        v.dead = range->dead;
        drop_range(race, range);
    }
    if (use->actor == MEMOPT_RACE_HOST)
        return; /* all that the host enqueues comes after it */
    if (v.same == NULL)
        v.same = new_range(&v);
    if (v.same != NULL)
        keep(&v, v.same);
}

/* --- blocks ------------------------------------------------------------------------------------ */

static mo_race_block *block_at(memopt_race *race, uint64_t address)
{
    return address == UINT64_MAX
               ? NULL
               : (mo_race_block *)mo_span_first(race->blocks, address, address + 1);
}

static void drop_block(memopt_race *race, mo_race_block *block)
{
    drop_uses(race, block->recorded);
    for (mo_race_last *last; (last = block->last) != NULL;) {
        block->last = last->next;
        mo_race_give(race, last, sizeof *last);
    }
    mo_race_give(race, block, sizeof *block);
}

static void leave(memopt_race *race, mo_race_block *block)
{
    mo_span_remove(&race->blocks, &block->span);
    race->live_bytes -= block->span.hi - block->span.lo;
    race->stats.blocks--;
}

void mo_race_memory_fini(memopt_race *race)
{
    for (mo_race_block *block; (block = (mo_race_block *)race->blocks) != NULL;) {
        leave(race, block);
        drop_block(race, block);
    }
    for (uint64_t i = 0; i < race->actor_count; i++)
        for (mo_race_block *block; (block = race->actors[i].freed) != NULL;) {
            race->actors[i].freed = block->next;
            drop_block(race, block);
        }
    drop_ranges(race, 0, UINT64_MAX);
}

static int is_recorded(const mo_race_block *block, uint32_t stream)
{
    const mo_race_use *use = block->recorded;
    while (use != NULL && use->actor != stream)
        use = use->next;
    return use != NULL;
}

void mo_race_block_recorded(memopt_race *race, uint64_t address, uint32_t stream)
{
    mo_race_block *block = block_at(race, address);
    if (block == NULL || is_recorded(block, stream))
        return;
    mo_race_use *use = take(race, sizeof *use);
    if (use == NULL) {
        block->unknown = 1;
        return;
    }
    *use = (mo_race_use){.actor = stream, .next = block->recorded};
    block->recorded = use;
}

/* --- blocks freed in use ----------------------------------------------------------------------- */

typedef struct search {
    memopt_race *race;
    mo_race_block *block;
} search;

/* The block's last use by each stream that its own does not come after. */
static void keep_last(const search *s, const mo_span *span, const mo_race_use *use)
{
    mo_race_last *last = s->block->last;
    if (use->seq == 0 || mo_race_is_after(s->race, s->block->stream, use) ||
        is_recorded(s->block, use->actor))
        return;
    while (last != NULL && last->use.actor != use->actor)
        last = last->next;
    if (last == NULL) {
        last = mo_race_take(s->race, sizeof *last);
        s->race->stats.forgotten += last == NULL;
        if (last == NULL)
            return;
        *last = (mo_race_last){.next = s->block->last};
        s->block->last = last;
    }
    if (last->use.seq < use->seq) {
        last->use = *use;
        last->lo = span->lo;
        last->hi = span->hi;
    }
}

static void look_for_last(void *user, mo_span *span)
{
    const mo_race_range *range = (const mo_race_range *)span;
    keep_last(user, span, &range->write);
    for (const mo_race_use *read = &range->reads; read != NULL; read = read->next)
        keep_last(user, span, read);
}

void mo_race_block_end(memopt_race *race, uint64_t address, uint64_t tag)
{
    mo_race_block *block = block_at(race, address);
    search s = {race, block};
    if (block == NULL || block->span.lo != address)
        return;
    leave(race, block);
    if (block->memory == MEMOPT_RACE_DEVICE && !block->unknown) {
        mo_race_follow_host(race, block->stream);
        mo_span_each(race->ranges, block->span.lo, block->span.hi, look_for_last, &s);
    }
    if (!race->options.inherit || block->memory != MEMOPT_RACE_DEVICE || block->last != NULL)
        drop_ranges(race, block->span.lo, block->span.hi);
    if (block->last == NULL) {
        drop_block(race, block);
        return;
    }
    mo_race_actor *actor = &race->actors[block->stream];
    block->freed_tag = tag;
    block->next = NULL;
    *(actor->freed != NULL ? actor->freed_tail : &actor->freed) = block;
    actor->freed_tail = &block->next;
}

static void report_freed(memopt_race *race, const mo_race_block *block, uint64_t tag)
{
    for (const mo_race_last *last = block->last; last != NULL; last = last->next) {
        if (mo_race_is_after(race, block->stream, &last->use))
            continue;
        memopt_race_report report = report_of(MEMOPT_RACE_FREED_IN_USE, block, last->lo, last->hi);
        report.first = side(&last->use);
        report.second = (memopt_race_side){tag, block->stream, 1};
        report.freed_tag = block->freed_tag;
        report.waiter = block->stream;
        report.waited = last->use.actor;
        add_report(race, &report);
    }
}

/* An allocation of the stream may get any block that was freed on it. */
static void reuse(memopt_race *race, uint32_t stream, uint64_t tag)
{
    mo_race_actor *actor = &race->actors[stream];
    mo_race_follow_host(race, stream);
    for (mo_race_block *block; (block = actor->freed) != NULL;) {
        actor->freed = block->next;
        report_freed(race, block, tag);
        drop_block(race, block);
    }
}

void mo_race_block_begin(memopt_race *race, uint64_t lo, uint64_t hi, memopt_race_memory memory,
                         uint32_t stream, uint64_t tag)
{
    if (memory == MEMOPT_RACE_DEVICE)
        reuse(race, stream, tag);
    if (lo == hi)
        return;
    for (mo_race_block *old;
         (old = (mo_race_block *)mo_span_first(race->blocks, lo, hi)) != NULL;) {
        leave(race, old);
        drop_ranges(race, old->span.lo, old->span.hi);
        drop_block(race, old);
        race->stats.forgotten++;
    }
    if (!race->options.inherit)
        drop_ranges(race, lo, hi);
    race->live_bytes_peak = mo_max_u64(race->live_bytes_peak, race->live_bytes + (hi - lo));
    mo_race_block *block = take(race, sizeof *block);
    if (block == NULL)
        return;
    *block = (mo_race_block){.span = {.lo = lo, .hi = hi}, .memory = memory, .stream = stream};
    mo_span_add(&race->blocks, &block->span);
    race->live_bytes += hi - lo;
    race->stats.blocks++;
}
