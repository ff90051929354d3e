/* Operations on blocks: they are written and read in the order of streams, on one or on several. */
#include "world.h"

#include "base/lock.h"

#include <string.h>

/* --- locks ----------------------------------------------------------------------------------- */

static int enter_slot(slot *s)
{
    return pthread_mutex_trylock(&s->lock) == 0;
}

static void leave_slot(slot *s)
{
    pthread_mutex_unlock(&s->lock);
}

static int enter_stream(world *w, uint32_t stream)
{
    return pthread_rwlock_tryrdlock(&w->stream_use[stream]) == 0;
}

static void leave_stream(world *w, uint32_t stream)
{
    pthread_rwlock_unlock(&w->stream_use[stream]);
}

slot *enter_block(world *w, const oracle_op *op, int also_paused)
{
    slot *s = &w->slots[op->slot];
    if (!enter_slot(s))
        return NULL;
    member *m = &w->members[s->member];
    if (s->at != NULL && pthread_rwlock_tryrdlock(&m->use) == 0) {
        if (also_paused || !is_paused(w, s))
            return s;
        pthread_rwlock_unlock(&m->use);
    }
    leave_slot(s);
    return NULL;
}

void leave_block(world *w, slot *s)
{
    pthread_rwlock_unlock(&w->members[s->member].use);
    leave_slot(s);
}

/* --- order ----------------------------------------------------------------------------------- */

/* What comes on `stream` comes after what is on `before`; 0: that stream is taken. */
static int after(hand *h, uint32_t stream, uint32_t before)
{
    world *w = h->w;
    if (stream == before)
        return 1;
    if (!enter_stream(w, before))
        return 0;
    OK(w, memopt_event_record(h->event, w->streams[before]));
    OK(w, memopt_stream_wait_event(w->device, w->streams[stream], h->event));
    leave_stream(w, before);
    return 1;
}

/* A write comes after the last one and all reads. */
static int after_all_uses(hand *h, const slot *s, uint32_t stream)
{
    int ordered = after(h, stream, s->last);
    for (uint32_t i = 0; i < ORACLE_STREAMS && ordered; i++)
        if ((s->used >> i & 1) != 0)
            ordered = after(h, stream, i);
    return ordered;
}

/* --- contents -------------------------------------------------------------------------------- */

/* The host writes page-locked memory at once: nothing may be under way there. */
static void fill_slot(world *w, slot *s, unsigned char *at, uint32_t stream)
{
    s->value = (uint8_t)(1 + atomic_fetch_add(&w->value, 1) % 251);
    s->last = (uint8_t)stream;
    s->used = s->lost = 0;
    if (is_pinned(s->member)) {
        memset(at, s->value, s->bytes);
    } else if (s->whole) {
        graph_fill(w, at, s->value, s->usable, stream);
    } else {
        graph_fill(w, at, s->value, EDGE, stream);
        graph_fill(w, at + s->bytes - EDGE, s->value, EDGE, stream);
    }
}

static void compare(const world *w, const slot *s, const unsigned char *found, uint64_t start,
                    uint64_t bytes)
{
    if (found[0] == s->value && memcmp(found, found + 1, bytes - 1) == 0)
        return;
    uint64_t i = 0;
    while (found[i] == s->value)
        i++;
    int of_slot = s >= w->slots && s < w->slots + ORACLE_SLOTS; /* -1: a freed, exported block */
    oracle_fail(w, "slot %d, byte %llu of %llu at %p is %02x, not %02x",
                of_slot ? (int)(s - w->slots) : -1, (unsigned long long)(start + i),
                (unsigned long long)s->bytes, (void *)s->at, found[i], s->value);
}

void verify_slot(hand *h, slot *s, uint32_t stream)
{
    world *w = h->w;
    void *base = NULL;
    OK(w,
       memopt_allocator_get_block(w->members[s->member].handle, s->at + s->bytes - 1, &base, NULL));
    REQUIRE(w, base == s->at);
    verify_bytes(h, s, s->at, stream);
}

void verify_bytes(hand *h, const slot *s, const unsigned char *at, uint32_t stream)
{
    world *w = h->w;
    if (s->lost || !after(h, stream, s->last))
        return;
    uint64_t bytes = s->whole ? s->bytes : EDGE;
    if (is_pinned(s->member)) {
        compare(w, s, at, 0, s->bytes);
        return;
    }
    OK(w, memopt_copy(w->device, h->staging, at, bytes, w->streams[stream]));
    if (!s->whole)
        OK(w, memopt_copy(w->device, h->staging + EDGE, at + s->bytes - EDGE, EDGE,
                          w->streams[stream]));
    OK(w, memopt_stream_sync(w->device, w->streams[stream]));
    compare(w, s, h->staging, 0, bytes);
    if (!s->whole)
        compare(w, s, h->staging + EDGE, s->bytes - EDGE, EDGE);
}

/* --- allocating ------------------------------------------------------------------------------ */

static void check_new(world *w, const slot *s)
{
    void *base = NULL;
    REQUIRE(w, s->at != NULL && (uintptr_t)s->at % 512 == 0);
    OK(w, memopt_allocator_get_block(w->members[s->member].handle, s->at, &base, NULL));
    REQUIRE(w, base == s->at && s->usable >= s->bytes);
    for (int i = 0; i < ORACLE_SLOTS && !w->threads; i++) {
        const slot *other = &w->slots[i];
        if (other != s && other->at != NULL &&
            mo_ranges_overlap(s->at, s->usable, other->at, other->usable))
            oracle_fail(w, "the new block %p overlaps that of slot %d", (void *)s->at, i);
    }
    const slot *kept[ORACLE_SHARES];
    for (uint32_t i = w->threads ? 0 : shares_freed(w, s->member, kept); i > 0; i--)
        if (mo_ranges_overlap(s->at, s->usable, kept[i - 1]->at, kept[i - 1]->usable))
            oracle_fail(w, "the new block %p overlaps a freed one that is exported", (void *)s->at);
}

/* Another thread may be in it. */
static int has_stale(memopt_allocator *allocator)
{
    mo_lock(&allocator->lock);
    int has = allocator->stale != NULL;
    mo_unlock(&allocator->lock);
    return has;
}

static void note_features(world *w, uint32_t index, uint32_t stream)
{
    const member *m = &w->members[index];
    if (m->expandable)
        saw(w, ORACLE_HAS_EXPANDABLE);
    if (m->expandable && (w->unmaps > 0 || has_stale(m->handle)))
        saw(w, ORACLE_HAS_REMAP);
    if (!is_root(index) && index != ORACLE_GRAPH_POOL)
        saw(w, ORACLE_HAS_POOLS);
    if (is_pinned(index))
        saw(w, ORACLE_HAS_PINNED);
    if (root_of(index) == 2)
        saw(w, ORACLE_HAS_PROVIDER);
    (void)stream;
}

static void take_block(world *w, slot *s, void *at, const oracle_op *op)
{
    member *m = &w->members[op->member];
    s->at = at;
    s->bytes = op->n;
    s->member = op->member;
    s->stream = s->last = op->stream;
    s->orphan = s->lost = s->used = 0;
    s->birth = 1 + atomic_fetch_add(&w->births, 1);
    s->tag = (uint8_t)((op->slot + op->n) % ORACLE_TAGS);
    OK(w, memopt_allocator_get_block(m->handle, s->at + s->bytes - 1, NULL, &s->usable));
    s->whole = s->usable < 64 * KIB || (has(w, ORACLE_HAS_PAUSES) && s->usable <= MOST_BYTES);
    if (!w->threads) {
        m->count++;
        m->allocations++;
        m->requested += s->bytes;
        m->peak = m->requested > m->peak ? m->requested : m->peak;
        m->streams |= (uint8_t)(1u << op->stream);
    }
    check_new(w, s);
    note_features(w, op->member, op->stream);
    fill_slot(w, s, s->at, op->stream);
}

/* A graph's pool serves what is recorded, and nothing else. */
static int is_possible(const world *w, const oracle_op *op)
{
    int recorded = w->graph.capturing && op->stream == w->graph.stream;
    return w->members[op->member].handle != NULL && op->n <= CAPACITY &&
           recorded == (op->member == ORACLE_GRAPH_POOL) &&
           !(recorded && w->graph.count + 2 > MOST_FILLS);
}

/* A block of page-locked memory that could not follow its stream was freed again: it counts. */
static void forget_try(world *w, uint32_t index)
{
    member *m = &w->members[index];
    uint64_t ever = world_stat(w, index, "allocation.all.allocated");
    REQUIRE(w, ever <= m->allocations + 1);
    m->allocations = ever;
    m->peak = world_stat(w, index, "requested_bytes.all.peak");
}

void do_alloc(hand *h, const oracle_op *op)
{
    world *w = h->w;
    slot *s = &w->slots[op->slot];
    member *m = &w->members[op->member];
    void *at = NULL;
    memopt_tag tag = (memopt_tag)((op->slot + op->n) % ORACLE_TAGS);
    if (!enter_slot(s))
        return;
    if (s->at == NULL && pthread_rwlock_tryrdlock(&m->use) == 0) {
        if (is_possible(w, op) && enter_stream(w, op->stream)) {
            memopt_status status =
                CALL(w, memopt_allocator_alloc(m->handle, op->n, tag, w->streams[op->stream], &at));
            int full =
                is_pinned(op->member) ? MEMOPT_OUT_OF_HOST_MEMORY : MEMOPT_OUT_OF_DEVICE_MEMORY;
            int paused = (int)(m->paused >> tag & 1);
            int served = expected(w, status, full, paused ? MEMOPT_BUSY : MEMOPT_OK);
            REQUIRE(w, !served || op->n == 0 || !paused);
            if (served && op->n > 0)
                take_block(w, s, at, op);
            else
                REQUIRE(w, at == NULL);
            if (!served && w->struck && is_pinned(op->member))
                forget_try(w, op->member);
            if (status == full && m->limit != 0)
                saw(w, ORACLE_HAS_LIMITS);
            leave_stream(w, op->stream);
        }
        pthread_rwlock_unlock(&m->use);
    }
    leave_slot(s);
}

/* --- freeing --------------------------------------------------------------------------------- */

void free_slot(world *w, slot *s)
{
    member *m = &w->members[s->member];
    if (!expected(w, CALL(w, memopt_allocator_free(m->handle, s->at)), MEMOPT_OK, MEMOPT_OK))
        return;
    if (!w->threads)
        shares_block_freed(w, s);
    s->at = NULL;
    if (!w->threads) {
        m->count--;
        m->requested -= s->bytes;
    }
}

/* The graph of a block would write to it when it is another's. */
void do_free(hand *h, const oracle_op *op)
{
    slot *s = enter_block(h->w, op, 1);
    if (s == NULL)
        return;
    if (s->member == ORACLE_GRAPH_POOL && !h->w->graph.capturing)
        graph_drop(h->w);
    free_slot(h->w, s);
    leave_block(h->w, s);
}

/* What is no block, is within one, or was freed, is refused and changes nothing. */
void do_bad_free(hand *h, const oracle_op *op)
{
    world *w = h->w;
    slot *s = enter_block(w, op, 1);
    if (s == NULL)
        return;
    memopt_allocator *of = w->members[s->member].handle;
    memopt_allocator *other = NULL; /* alone: another thread may end it */
    if (!w->threads)
        other = w->members[s->member == 0 ? ORACLE_A_POOL : ORACLE_ROOT].handle;
    REQUIRE(w, memopt_allocator_free(of, s->at + 8) == MEMOPT_INVALID_ARGUMENT);
    REQUIRE(w, memopt_allocator_free(of, w->mailbox) == MEMOPT_INVALID_ARGUMENT);
    REQUIRE(w, memopt_allocator_record_stream(of, s->at + 8, NULL) == MEMOPT_INVALID_ARGUMENT);
    if (other != NULL)
        REQUIRE(w, memopt_allocator_free(other, s->at) == MEMOPT_INVALID_ARGUMENT);
    if (!w->threads && s->member != ORACLE_GRAPH_POOL) {
        void *gone = s->at;
        free_slot(w, s);
        if (s->at == NULL) /* an injected fault may have kept the block */
            REQUIRE(w, memopt_allocator_free(of, gone) == MEMOPT_INVALID_ARGUMENT);
    }
    leave_block(w, s);
}

/* --- using ----------------------------------------------------------------------------------- */

static memopt_status record(world *w, slot *s, uint32_t stream)
{
    if (stream == s->stream && !s->orphan)
        return MEMOPT_OK;
    return CALL(
        w, memopt_allocator_record_stream(w->members[s->member].handle, s->at, w->streams[stream]));
}

/* Another stream reads the block, or writes it; it need not be done when the block is freed. */
static void use_slot(hand *h, slot *s, uint32_t stream, int write)
{
    world *w = h->w;
    uint64_t bytes = s->bytes < EDGE ? s->bytes : EDGE;
    if (!expected(w, record(w, s, stream), MEMOPT_OK, MEMOPT_OK))
        return;
    write = write && !is_pinned(s->member);
    if (write ? !after_all_uses(h, s, stream) : !after(h, stream, s->last))
        return;
    if (write)
        fill_slot(w, s, s->at, stream);
    else if (!s->lost) {
        /* The default stream runs on the calling thread. */
        void *to = stream == 0 ? h->staging + MOST_BYTES : w->mailbox + stream * EDGE;
        OK(w, memopt_copy(w->device, to, s->at, bytes, w->streams[stream]));
    }
    s->used |= (uint8_t)(1u << stream);
}

/* Events are recorded, which a capture forbids. */
void do_use(hand *h, const oracle_op *op)
{
    world *w = h->w;
    slot *s = w->graph.capturing ? NULL : enter_block(w, op, 0);
    if (s == NULL)
        return;
    if (enter_stream(w, op->stream)) {
        use_slot(h, s, op->stream, (int)(op->n & 1));
        leave_stream(w, op->stream);
    }
    leave_block(w, s);
}

void write_slot(hand *h, slot *s, unsigned char *at)
{
    world *w = h->w;
    uint32_t stream = s->stream;
    if (is_pinned(s->member)) /* the host writes when all is over */
        for (uint32_t i = 0; i < ORACLE_STREAMS; i++)
            if ((s->used >> i & 1) != 0) {
                if (!enter_stream(w, i))
                    return;
                OK(w, memopt_stream_sync(w->device, w->streams[i]));
                leave_stream(w, i);
            }
    if (s->orphan && !expected(w, record(w, s, stream), MEMOPT_OK, MEMOPT_OK))
        return;
    if (after_all_uses(h, s, stream)) {
        fill_slot(w, s, at, stream);
        s->used = (uint8_t)(s->orphan ? 1u << stream : 0);
    }
}

void do_write(hand *h, const oracle_op *op)
{
    world *w = h->w;
    slot *s = w->graph.capturing ? NULL : enter_block(w, op, 0);
    if (s == NULL)
        return;
    if (enter_stream(w, s->stream)) {
        write_slot(h, s, s->at);
        leave_stream(w, s->stream);
    }
    leave_block(w, s);
}

void do_verify(hand *h, const oracle_op *op)
{
    world *w = h->w;
    slot *s = w->graph.capturing ? NULL : enter_block(w, op, 0);
    if (s == NULL)
        return;
    if (enter_stream(w, op->stream)) {
        verify_slot(h, s, op->stream);
        leave_stream(w, op->stream);
    }
    leave_block(w, s);
}

void do_sync(hand *h, const oracle_op *op)
{
    world *w = h->w;
    if (w->graph.capturing || !enter_stream(w, op->stream))
        return;
    OK(w, memopt_stream_sync(w->device, w->streams[op->stream]));
    leave_stream(w, op->stream);
}
