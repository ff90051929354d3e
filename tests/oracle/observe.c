/* Observers of ranges: what they are told, in which order, and that it is what the driver has. */
#include "world.h"

#include <string.h>

static const uint32_t root_members[ORACLE_ROOTS] = {ORACLE_ROOT, ORACLE_PINNED_ROOT,
                                                    ORACLE_PROVIDER_ROOT};

/* One event comes to all observers, first to the one that was added first; the next one later. */
static void check_order(const oracle_observer *o, const memopt_range_event *event)
{
    world *w = o->w;
    uint32_t root = root_of(o->member);
    REQUIRE(w, event->generation >= w->generation[root]);
    if (event->generation == w->generation[root])
        REQUIRE(w, o->order > w->last_order[root]);
    w->generation[root] = event->generation;
    w->last_order[root] = o->order;
}

static void follow(oracle_observer *o, const memopt_range_event *event)
{
    world *w = o->w;
    picture driver = {0};
    uintptr_t start = (uintptr_t)event->address;
    if (!is_pinned(o->member)) {
        driver_picture(w->device, w->c->device, &driver);
        REQUIRE(w,
                picture_covers(&driver, start, event->bytes)); /* before it goes, after it came */
        picture_end(&driver);
    }
    if (event->kind == MEMOPT_RANGE_MAPPED)
        REQUIRE(w, picture_add(&o->seen, start, event->bytes));
    else
        REQUIRE(w, picture_remove(&o->seen, start, event->bytes));
}

/* Where a range goes or stays whatever an observer says, one that has refused cannot tell. */
static memopt_status observe(void *user, const memopt_range_event *event)
{
    oracle_observer *o = user;
    world *w = o->w;
    memopt_status status = MEMOPT_OK;
    pthread_mutex_lock(&w->observing);
    REQUIRE(w, event->struct_size == sizeof *event && event->bytes > 0);
    REQUIRE(w, event->kind == MEMOPT_RANGE_MAPPED || event->kind == MEMOPT_RANGE_UNMAPPING);
    REQUIRE(w, is_root(o->member) || event->allocator == w->members[o->member].handle);
    check_order(o, event);
    o->events++;
    if (o->refuse != 0 && o->events >= o->refuse && !w->graph.capturing) {
        o->refuse = 0;
        w->refused = w->disturbed = 1;
        o->gap = w->seen->struck_ever = 1;
        status = ORACLE_REFUSED;
    } else if (!o->gap) {
        follow(o, event);
    }
    saw(w, ORACLE_HAS_OBSERVERS);
    pthread_mutex_unlock(&w->observing);
    return status;
}

static memopt_status add(world *w, oracle_observer *o, uint32_t index, uint64_t refuse)
{
    o->w = w;
    o->member = (uint8_t)index;
    o->refuse = refuse;
    o->events = 0;
    o->gap = 0;
    o->order = ++w->orders;
    o->seen.count = 0;
    memopt_status status = CALL(
        w, memopt_allocator_add_range_observer(w->members[index].handle, observe, o, &o->number));
    o->of = status == MEMOPT_OK ? w->members[index].handle : NULL;
    return status;
}

void observe_root(world *w, uint32_t root)
{
    OK(w, add(w, &w->roots[root], root_members[root], 0));
}

/* An event that tells of what there is has a number of its own for each observer. */
void do_observe(hand *h, const oracle_op *op)
{
    world *w = h->w;
    oracle_observer *o = &w->extra[op->slot % ORACLE_OBSERVERS];
    if (!w->threads && o->of == NULL && w->members[op->member].handle != NULL)
        (void)expected(w, add(w, o, op->member, op->n), MEMOPT_OK, MEMOPT_OK);
}

void do_unobserve(hand *h, const oracle_op *op)
{
    world *w = h->w;
    oracle_observer *o = &w->extra[op->slot % ORACLE_OBSERVERS];
    if (w->threads || o->of == NULL)
        return;
    OK(w, memopt_allocator_remove_range_observer(o->of, o->number));
    REQUIRE(w, memopt_allocator_remove_range_observer(o->of, o->number) == MEMOPT_NOT_FOUND);
    o->of = NULL;
}

void observers_of_pool_end(world *w, uint32_t index)
{
    for (int i = 0; i < ORACLE_OBSERVERS; i++)
        if (w->extra[i].of != NULL && w->extra[i].member == index) {
            if (!w->disturbed)
                REQUIRE(w, w->extra[i].seen.count == 0);
            w->extra[i].of = NULL;
        }
}

/* What is mapped at old addresses, too. */
static uint64_t stale_bytes(const world *w, uint32_t index)
{
    uint64_t bytes = 0;
    for (const mo_block *b = w->members[index].handle->stale; b != NULL; b = b->right)
        bytes += b->size;
    return bytes;
}

void observers_check(world *w)
{
    picture driver = {0};
    uint64_t all = 0;
    if (!has(w, ORACLE_HAS_OBSERVERS))
        return;
    driver_picture(w->device, w->c->device, &driver);
    for (uint32_t r = 0; r < ORACLE_ROOTS; r += 2) { /* those of device memory */
        const picture *seen = &w->roots[r].seen;
        for (uint64_t i = 0; i < seen->count; i++)
            REQUIRE(w, picture_covers(&driver, seen->ranges[i].start,
                                      seen->ranges[i].end - seen->ranges[i].start));
        all += picture_bytes(seen);
    }
    if (!w->faulted)
        all += shares_imported(w);
    REQUIRE(w, w->faulted ? all <= picture_bytes(&driver) : all == picture_bytes(&driver));
    for (int i = 0; i < ORACLE_OBSERVERS; i++) {
        const oracle_observer *o = &w->extra[i];
        if (o->of == NULL || o->gap)
            continue;
        if (is_root(o->member))
            REQUIRE(w, picture_equals(&o->seen, &w->roots[root_of(o->member)].seen));
        else if (!w->faulted)
            REQUIRE(w, picture_bytes(&o->seen) ==
                           world_stat(w, o->member, "reserved_bytes.all.current") +
                               stale_bytes(w, o->member));
    }
    picture_end(&driver);
}
