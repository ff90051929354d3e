/*
 * Blocks are placed one by one, each in the smallest gap between those placed before that live at
 * the same time. The order decides: large ones first is nearly always within a thousandth of the
 * bound. Several orders are tried. Then, from each of them, blocks that stick out move forward by
 * chance, until the bound is met or the work is done that is allowed.
 *
 * A pass takes time in proportion to the square of the count. Where there are many blocks, those
 * that are small together (a thousandth of the bound) are laid out in the order of time instead, in
 * a range of their own, which counts as one block for the others.
 */
#include "allocator/steps/placement.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum {
    FEW = 2048,        /* so many are placed without a range for the small ones */
    MOST = 16384,      /* so many are placed one by one */
    SMALL_PART = 1024, /* of the bound: what the small ones may take, and what is no waste */
    OCTAVES = 32,      /* of sizes */
    ORDERS = 4,
    TRIES = 1024, /* passes from each of them */
    NONE = -1
};
/* Comparisons of blocks that further passes may make. */
static const uint64_t most_work = UINT64_C(1) << 27;

/* A placed block, or a part of one that goes on over the end of the step. */
typedef struct placed {
    uint32_t begin, end;
    uint32_t offset, top;
} placed;

typedef struct turn {
    double key; /* largest first */
    uint32_t rect;
} turn;

typedef struct job {
    mo_placement *all;
    uint32_t *coarse; /* the rects that are placed one by one */
    uint32_t coarse_count;
    mo_rect small; /* the range of the others */
    turn *order;   /* coarse_count + 1 */
    placed *done;  /* by offset */
    uint32_t done_count;
    uint32_t *best; /* offsets, as order */
    uint64_t best_top;
    uint32_t peak; /* a time at which the bound is alive */
    uint64_t work;
    uint64_t random; /* the same sequence in each job */
} job;

static int wraps(const mo_rect *rect)
{
    return rect->end <= rect->begin;
}

static int lives_at(const mo_rect *rect, uint32_t time)
{
    return wraps(rect) ? time >= rect->begin || time < rect->end
                       : time >= rect->begin && time < rect->end;
}

/* The most units alive at once of rects below `size`; changes has room for a step. */
static uint64_t peak_below(const mo_placement *all, uint64_t size, int64_t *changes,
                           uint32_t *out_time)
{
    int64_t live = 0, most = 0;
    memset(changes, 0, ((size_t)all->span + 1) * sizeof *changes);
    for (uint32_t i = 0; i < all->count; i++) {
        const mo_rect *rect = &all->rects[i];
        if (rect->size >= size)
            continue;
        changes[rect->begin] += rect->size;
        changes[rect->end] -= rect->size;
        if (wraps(rect))
            changes[0] += rect->size;
    }
    for (uint32_t t = 0; t < all->span; t++) {
        live += changes[t];
        if (live > most) {
            most = live;
            *out_time = t;
        }
    }
    return (uint64_t)most;
}

/* --- one by one ------------------------------------------------------------------------------- */

static mo_rect *rect_of(job *j, uint32_t index)
{
    return index == j->all->count ? &j->small : &j->all->rects[index];
}

static void enter(job *j, uint32_t begin, uint32_t end, uint32_t offset, uint32_t top)
{
    uint32_t low = 0, high = j->done_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (j->done[middle].offset <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    memmove(j->done + low + 1, j->done + low, (j->done_count - low) * sizeof *j->done);
    j->done[low] = (placed){begin, end, offset, top};
    j->done_count++;
}

/* The start of the smallest gap, or the end of all that lives at the same time. */
static uint64_t smallest_gap(const job *j, const mo_rect *rect)
{
    uint64_t at = 0, start = 0, smallest = UINT64_MAX;
    const uint32_t begin = rect->begin, end = rect->end;
    const int wrapped = wraps(rect);
    for (uint32_t i = 0; i < j->done_count; i++) {
        const placed *p = &j->done[i];
        int before = p->begin<end, after = p->end> begin;
        if (wrapped ? !(before | after) : !(before & after))
            continue;
        if (p->offset > at && p->offset - at >= rect->size && p->offset - at < smallest) {
            smallest = p->offset - at;
            start = at;
        }
        at = mo_max_u64(at, p->top);
    }
    return smallest != UINT64_MAX ? start : at;
}

/* The walls behind the holes, which always live. */
static void enter_walls(job *j)
{
    uint32_t at = 0;
    j->done_count = 0;
    for (uint32_t i = 0; i < j->all->hole_count; i++) {
        at += j->all->holes[i];
        enter(j, 0, j->all->span, at, at + 1);
        at++;
    }
}

/* Places all in the order; the end of what is used, UINT64_MAX where units do not suffice. */
static uint64_t pass(job *j)
{
    uint64_t top = j->all->base;
    enter_walls(j);
    for (uint32_t i = 0; i < j->coarse_count; i++) {
        mo_rect *rect = rect_of(j, j->order[i].rect);
        uint64_t at = smallest_gap(j, rect), end = at + rect->size;
        j->work += j->done_count;
        if (end > UINT32_MAX)
            return UINT64_MAX;
        rect->offset = (uint32_t)at;
        top = mo_max_u64(top, end);
        enter(j, rect->begin, wraps(rect) ? j->all->span : rect->end, rect->offset, (uint32_t)end);
        if (wraps(rect) && rect->end > 0)
            enter(j, 0, rect->end, rect->offset, (uint32_t)end);
    }
    return top;
}

static int by_key(const void *a, const void *b)
{
    const turn *x = a, *y = b;
    if (x->key != y->key)
        return x->key > y->key ? -1 : 1;
    return x->rect < y->rect ? -1 : x->rect > y->rect;
}

static double key_of(const job *j, const mo_rect *rect, int order)
{
    double size = rect->size;
    double life = rect->end + (wraps(rect) ? (double)j->all->span : 0) - rect->begin;
    double front = lives_at(rect, j->peak) ? 1e30 : 0;
    switch (order) {
    case 0:
        return size;
    case 1:
        return front + size;
    case 2:
        return size * size * life;
    default:
        return front + size * life;
    }
}

/* One pass; the best so far is kept. */
static void attempt(job *j)
{
    qsort(j->order, j->coarse_count, sizeof *j->order, by_key);
    uint64_t top = pass(j);
    if (top >= j->best_top)
        return;
    j->best_top = top;
    for (uint32_t i = 0; i < j->coarse_count; i++)
        j->best[i] = rect_of(j, j->coarse[i])->offset;
}

static void set_order(job *j, int order)
{
    for (uint32_t i = 0; i < j->coarse_count; i++) {
        const mo_rect *rect = rect_of(j, j->coarse[i]);
        j->order[i] = (turn){key_of(j, rect, order), j->coarse[i]};
    }
}

/* From 1 to 4. */
static double next_factor(job *j)
{
    j->random = j->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return 1 + 3 * (double)(j->random >> 40) / (1 << 24);
}

/* What sticks out over the bound goes before others of up to four times its key. A fixed factor
 * leads small steps round in circles. */
static void promote(job *j)
{
    for (uint32_t i = 0; i < j->coarse_count; i++) {
        const mo_rect *rect = rect_of(j, j->order[i].rect);
        if ((uint64_t)rect->offset + rect->size > j->all->base + j->all->bound)
            j->order[i].key *= next_factor(j);
    }
}

/* As many grains as the bound takes, or a thousandth more. */
static int good_enough(const job *j)
{
    uint64_t grain = j->all->grain, bound = j->all->bound, top = j->best_top - j->all->base;
    return top <= bound + bound / SMALL_PART ||
           mo_ceil_div_u64(top, grain) <= mo_ceil_div_u64(bound, grain);
}

static int may_go_on(const job *j)
{
    uint64_t next = (uint64_t)j->coarse_count * j->coarse_count / 2;
    return !good_enough(j) && j->work + next <= most_work;
}

static memopt_status place_coarse(job *j)
{
    j->best_top = UINT64_MAX;
    for (int order = 0; order < ORDERS && (order == 0 || may_go_on(j)); order++) {
        set_order(j, order);
        attempt(j);
    }
    for (int order = 0; order < ORDERS && may_go_on(j); order++) {
        set_order(j, order);
        for (int i = 0; i < TRIES && may_go_on(j); i++) {
            attempt(j);
            promote(j);
        }
    }
    if (j->best_top == UINT64_MAX)
        return mo_fail(MEMOPT_LIMIT_REACHED, "allocator: a step's blocks take more than 2 TiB");
    for (uint32_t i = 0; i < j->coarse_count; i++)
        rect_of(j, j->coarse[i])->offset = j->best[i];
    return MEMOPT_OK;
}

/* --- the small ones --------------------------------------------------------------------------- */

/* Rects that are alive, by offset. */
typedef struct sweep {
    const mo_rect **live;
    uint32_t count;
    uint64_t top;
} sweep;

/* In the smallest gap above `from`, or behind all. */
static void sweep_in(sweep *s, mo_rect *rect, uint32_t from)
{
    uint64_t at = from, smallest = UINT64_MAX, start = 0;
    uint32_t where = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        uint64_t gap = s->live[i]->offset - at;
        if (gap >= rect->size && gap < smallest) {
            smallest = gap;
            start = at;
            where = i;
        }
        at = (uint64_t)s->live[i]->offset + s->live[i]->size;
    }
    if (smallest == UINT64_MAX) {
        start = at;
        where = s->count;
    }
    memmove(s->live + where + 1, s->live + where, (s->count - where) * sizeof *s->live);
    s->live[where] = rect;
    s->count++;
    rect->offset = (uint32_t)start;
    s->top = mo_max_u64(s->top, start + rect->size);
}

static void sweep_out(sweep *s, const mo_rect *rect)
{
    uint32_t low = 0, high = s->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (s->live[middle]->offset < rect->offset)
            low = middle + 1;
        else
            high = middle;
    }
    memmove(s->live + low, s->live + low + 1, (s->count - low - 1) * sizeof *s->live);
    s->count--;
}

/* Lays rects below `size` out in the order of time; those that go on over the end of a step lie
 * below the others. ending[t] lists rects by their end. */
static uint64_t lay_out_small(mo_placement *all, uint64_t size, int64_t *ending, int64_t *chain,
                              sweep *s)
{
    uint64_t floor = 0;
    for (uint32_t t = 0; t <= all->span; t++)
        ending[t] = NONE;
    for (uint32_t i = 0; i < all->count; i++) {
        mo_rect *rect = &all->rects[i];
        if (rect->size >= size)
            continue;
        if (wraps(rect)) {
            rect->offset = (uint32_t)floor;
            floor += rect->size;
            continue;
        }
        chain[i] = ending[rect->end];
        ending[rect->end] = i;
    }
    s->top = floor;
    uint32_t gone = 0;
    for (uint32_t i = 0; i < all->count; i++) {
        mo_rect *rect = &all->rects[i];
        if (rect->size >= size || wraps(rect))
            continue;
        for (; gone <= rect->begin; gone++)
            for (int64_t r = ending[gone]; r != NONE; r = chain[r])
                sweep_out(s, &all->rects[r]);
        sweep_in(s, rect, (uint32_t)floor);
    }
    return s->top;
}

static memopt_status place_small(job *j, uint64_t size, int64_t *ending)
{
    mo_placement *all = j->all;
    int64_t *chain = mo_calloc(all->count, sizeof *chain);
    sweep s = {mo_calloc(all->count + 1, sizeof *s.live), 0, 0};
    memopt_status status = MEMOPT_OUT_OF_HOST_MEMORY;
    if (chain != NULL && s.live != NULL) {
        uint64_t top = lay_out_small(all, size, ending, chain, &s);
        j->small = (mo_rect){(uint32_t)top, 0, all->span, 0};
        status = MEMOPT_OK;
    }
    mo_free(chain);
    mo_free(s.live);
    return status;
}

/* --- all of them ------------------------------------------------------------------------------ */

static uint32_t count_from(const mo_placement *all, uint64_t size)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < all->count; i++)
        count += all->rects[i].size >= size;
    return count;
}

/* The size from which rects are placed one by one. */
static uint64_t choose_size(const mo_placement *all, int64_t *changes)
{
    uint64_t size = 0, most = all->bound / SMALL_PART;
    uint32_t time;
    if (all->count <= FEW)
        return 0;
    for (unsigned octave = 1; octave < OCTAVES; octave++) {
        uint64_t next = UINT64_C(1) << octave;
        if (count_from(all, size) <= FEW)
            break;
        if (peak_below(all, next, changes, &time) > most && count_from(all, size) <= MOST)
            break;
        size = next;
    }
    return size;
}

static memopt_status make_room(job *j, uint64_t size)
{
    uint32_t n = count_from(j->all, size) + 1;
    j->coarse = mo_calloc(n, sizeof *j->coarse);
    j->order = mo_calloc(n, sizeof *j->order);
    j->best = mo_calloc(n, sizeof *j->best);
    j->done = mo_calloc((size_t)n * 2 + j->all->hole_count, sizeof *j->done);
    if (j->coarse == NULL || j->order == NULL || j->best == NULL || j->done == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    for (uint32_t i = 0; i < j->all->count; i++)
        if (j->all->rects[i].size >= size)
            j->coarse[j->coarse_count++] = i;
    return MEMOPT_OK;
}

static memopt_status run(job *j, int64_t *changes)
{
    mo_placement *all = j->all;
    all->bound = peak_below(all, UINT64_MAX, changes, &j->peak);
    uint64_t size = choose_size(all, changes);
    MO_TRY(make_room(j, size));
    if (size > 0)
        MO_TRY(place_small(j, size, changes));
    if (j->small.size > 0)
        j->coarse[j->coarse_count++] = all->count;
    memopt_status status = place_coarse(j);
    for (uint32_t i = 0; i < all->count && status == MEMOPT_OK; i++)
        if (all->rects[i].size < size)
            all->rects[i].offset += j->small.offset;
    if (status == MEMOPT_OK)
        all->top = (uint32_t)(j->best_top - all->base);
    return status;
}

memopt_status mo_placement_find(mo_placement *all)
{
    job j = {.all = all};
    all->base = all->hole_count;
    for (uint32_t i = 0; i < all->hole_count; i++)
        all->base += all->holes[i];
    int64_t *changes = mo_calloc((size_t)all->span + 1, sizeof *changes);
    memopt_status status = changes == NULL ? MEMOPT_OUT_OF_HOST_MEMORY : run(&j, changes);
    mo_free(changes);
    mo_free(j.coarse);
    mo_free(j.order);
    mo_free(j.best);
    mo_free(j.done);
    return status;
}
