/* Operations on allocators, pools and streams. */
#include "world.h"

#include <stdlib.h>
#include <string.h>

int enter_member(world *w, uint32_t index, int alone)
{
    member *m = &w->members[index];
    if (alone)
        pthread_rwlock_wrlock(&m->use);
    else if (pthread_rwlock_tryrdlock(&m->use) != 0)
        return 0;
    if (m->handle != NULL)
        return 1;
    pthread_rwlock_unlock(&m->use);
    return 0;
}

void leave_member(world *w, uint32_t index)
{
    pthread_rwlock_unlock(&w->members[index].use);
}

int records(const world *w, uint32_t index)
{
    uint32_t streams = 0;
    if (!w->graph.capturing)
        return 0;
    for (uint32_t i = 0; i < ORACLE_MEMBERS; i++)
        if (root_of(i) == root_of(index))
            streams |= w->members[i].streams;
    return (streams >> w->graph.stream & 1) != 0;
}

/* --- giving back ----------------------------------------------------------------------------- */

static void check_trimmed(world *w, uint32_t index, uint64_t target)
{
    const member *m = &w->members[index];
    const slot *kept[ORACLE_SHARES];
    uint64_t held = world_stat(w, index, "reserved_bytes.all.current");
    if (w->threads || w->disturbed || m->paused)
        return;
    if (target == 0) /* nothing is pending */
        REQUIRE(w, world_stat(w, index, "active.all.current") ==
                       m->count + shares_freed(w, index, kept));
    if (m->expandable && held > target)
        REQUIRE(w, held == model_pages(w, index, MODEL_ALL, 0));
}

void do_trim(hand *h, const oracle_op *op)
{
    world *w = h->w;
    uint64_t released = 0;
    if (!enter_member(w, op->member, 0))
        return;
    if (op->member == ORACLE_GRAPH_POOL && !w->graph.capturing)
        graph_drop(w);
    if (!w->graph.capturing || records(w, op->member)) {
        uint64_t before = world_stat(w, op->member, "reserved_bytes.all.current");
        memopt_status status =
            CALL(w, memopt_allocator_trim_sync(w->members[op->member].handle, op->n, &released));
        int done = expected(w, status, MEMOPT_OK, MEMOPT_OK);
        if (w->graph.capturing)
            REQUIRE(w, released == 0);
        else if (done)
            check_trimmed(w, op->member, op->n);
        if (!w->threads)
            REQUIRE(w, !done || before - world_stat(w, op->member, "reserved_bytes.all.current") ==
                                    released);
    }
    leave_member(w, op->member);
}

void do_limit(hand *h, const oracle_op *op)
{
    world *w = h->w;
    if (op->member == ORACLE_PINNED_ROOT || !enter_member(w, op->member, 0))
        return;
    OK(w, CALL(w, memopt_allocator_set_limit(w->members[op->member].handle, op->n)));
    if (!w->threads)
        w->members[op->member].limit = op->n;
    leave_member(w, op->member);
}

/* --- pools ----------------------------------------------------------------------------------- */

void do_pool(hand *h, const oracle_op *op)
{
    world *w = h->w;
    member *m = &w->members[op->member];
    static const uint32_t parents[] = {ORACLE_ROOT, ORACLE_PINNED_ROOT, ORACLE_PROVIDER_ROOT};
    if (is_root(op->member) || w->members[parents[root_of(op->member)]].handle == NULL)
        return;
    pthread_rwlock_wrlock(&m->use);
    if (m->handle == NULL) {
        (void)expected(w, member_create(w, op->member, op->n), MEMOPT_OK, MEMOPT_OK);
        m->streams = 0;
    }
    pthread_rwlock_unlock(&m->use);
}

static void free_all(world *w, uint32_t index)
{
    for (int i = 0; i < ORACLE_SLOTS; i++) {
        slot *s = &w->slots[i];
        pthread_mutex_lock(&s->lock);
        if (s->at != NULL && s->member == index)
            free_slot(w, s);
        pthread_mutex_unlock(&s->lock);
    }
}

static uint64_t blocks_of(world *w, uint32_t index)
{
    uint64_t count = 0;
    for (int i = 0; i < ORACLE_SLOTS; i++) {
        slot *s = &w->slots[i];
        pthread_mutex_lock(&s->lock);
        count += s->at != NULL && s->member == index;
        pthread_mutex_unlock(&s->lock);
    }
    return count;
}

/* Destroyed unless it has blocks; a root has none while it has pools, and is not tried. */
void do_drop(hand *h, const oracle_op *op)
{
    world *w = h->w;
    member *m = &w->members[op->member];
    if (is_root(op->member) || w->graph.capturing || !enter_member(w, op->member, 1))
        return;
    if (op->member == ORACLE_GRAPH_POOL)
        graph_drop(w);
    if (op->n != 0)
        free_all(w, op->member);
    uint64_t blocks = blocks_of(w, op->member);
    memopt_status status = CALL(w, memopt_allocator_destroy(m->handle));
    if (blocks > 0 || shares_of(w, op->member)) {
        REQUIRE(w, status == MEMOPT_BUSY);
    } else {
        (void)expected(w, status, MEMOPT_OK, MEMOPT_OK);
        m->handle = NULL;
        m->paused = m->limit = m->held = 0;
        memset(m->groups, 0, sizeof m->groups);
        observers_of_pool_end(w, op->member);
    }
    pthread_rwlock_unlock(&m->use);
}

/* --- steps ----------------------------------------------------------------------------------- */

/* A mark may make a plan, which changes where blocks go and nothing else that the model knows. */
void do_step(hand *h, const oracle_op *op)
{
    world *w = h->w;
    if (!enter_member(w, op->member, 0))
        return;
    memopt_status status = CALL(
        w, memopt_allocator_mark_step(w->members[op->member].handle, (memopt_step)(op->n % 3)));
    (void)expected(w, status, is_pinned(op->member) ? MEMOPT_UNSUPPORTED : MEMOPT_OK, MEMOPT_OK);
    leave_member(w, op->member);
}

/* --- streams --------------------------------------------------------------------------------- */

static void orphan(world *w, uint32_t stream)
{
    for (int i = 0; i < ORACLE_SLOTS; i++) {
        slot *s = &w->slots[i];
        pthread_mutex_lock(&s->lock);
        s->used &= (uint8_t) ~(1u << stream);
        s->orphan |= s->stream == stream;
        pthread_mutex_unlock(&s->lock);
    }
}

/* The stream is destroyed, and a new one takes its place; or its handle stands for another one from
 * now on. */
void do_end_stream(hand *h, const oracle_op *op)
{
    world *w = h->w;
    uint32_t stream = op->stream;
    if (stream == 0 || w->graph.capturing)
        return;
    pthread_rwlock_wrlock(&w->stream_use[stream]);
    if (w->graph.stream == stream)
        graph_drop(w);
    if (op->n != 0) {
        OK(w, memopt_stream_release_sync(w->device, w->streams[stream]));
    } else {
        OK(w, memopt_stream_destroy(w->device, w->streams[stream]));
        OK(w, memopt_stream_create(w->device, &w->streams[stream]));
    }
    orphan(w, stream);
    for (uint32_t i = 0; i < ORACLE_MEMBERS && !w->threads; i++)
        w->members[i].streams &= (uint8_t) ~(1u << stream);
    saw(w, ORACLE_HAS_STREAM_ENDS);
    pthread_rwlock_unlock(&w->stream_use[stream]);
}

/* --- histories ------------------------------------------------------------------------------- */

enum { MOST_EVENTS = 4096 };

/* A list of addresses that the events leave. */
static uint64_t live_by_events(const world *w, const memopt_history_event *events, uint64_t count,
                               void **live)
{
    uint64_t alive = 0, at;
    for (uint64_t i = 0; i < count; i++) {
        if (events[i].action == MEMOPT_HISTORY_ALLOC)
            live[alive++] = events[i].address;
        if (events[i].action != MEMOPT_HISTORY_FREE)
            continue;
        for (at = 0; at < alive && live[at] != events[i].address; at++)
            continue;
        REQUIRE(w, at < alive);
        live[at] = live[--alive];
    }
    return alive;
}

/* What is alive follows from the events, and so does what is held. */
void do_history(hand *h, const oracle_op *op)
{
    static memopt_history_event events[MOST_EVENTS];
    static void *live[MOST_EVENTS];
    world *w = h->w;
    uint64_t first = 0, count = 0, held = 0;
    const member *m = &w->members[op->member];
    if (w->threads || m->handle == NULL || !m->history)
        return;
    OK(w, memopt_allocator_read_history(m->handle, 0, MOST_EVENTS, events, &first, &count));
    if (first != 0)
        return; /* some are gone */
    uint64_t alive = live_by_events(w, events, count, live);
    REQUIRE(w, alive == m->count);
    for (int i = 0; i < ORACLE_SLOTS; i++) {
        uint64_t at = 0;
        if (w->slots[i].at == NULL || w->slots[i].member != op->member)
            continue;
        while (at < alive && live[at] != w->slots[i].at)
            at++;
        REQUIRE(w, at < alive);
    }
    for (uint64_t i = 0; i < count; i++) {
        held += events[i].action == MEMOPT_HISTORY_MAP ? events[i].bytes : 0;
        held -= events[i].action == MEMOPT_HISTORY_UNMAP ? events[i].bytes : 0;
    }
    REQUIRE(w, held == world_stat(w, op->member, "reserved_bytes.all.current"));
    if (alive > 0)
        saw(w, ORACLE_HAS_HISTORY);
}
