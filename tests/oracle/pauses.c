/* Pausing and resuming: a member as a whole, or some of its tags; contents are lost, kept in host
 * memory or in a file. */
#include "support/pausing.h"
#include "world.h"

#include <string.h>
#include <unistd.h>

/* Blocks of the tags are idle, and keep or lose their contents; pages of exported ones stay. */
static void set_contents(world *w, uint32_t index, uint64_t tags, int lost)
{
    for (int i = 0; i < ORACLE_SLOTS; i++) {
        slot *s = &w->slots[i];
        if (s->at == NULL || s->member != index || (tags >> s->tag & 1) == 0)
            continue;
        s->lost |= (uint8_t)(lost && !is_exported(w, s));
        s->used = 0;
    }
}

/* Whole pages of the tags go, and nothing else but what is free; the first pause finds every page.
 */
static void check_pages(const world *w, uint32_t index, uint64_t tags,
                        const memopt_pause_report *report)
{
    const member *m = &w->members[index];
    uint64_t stay = model_pages(w, index, MODEL_STAYING, tags);
    uint64_t ours = model_pages(w, index, MODEL_TAGGED, tags);
    uint64_t all = model_pages(w, index, MODEL_ALL, 0);
    if (m->retain && tags != UINT64_MAX)
        REQUIRE(w, m->left >= stay);
    else
        REQUIRE(w, m->left == stay);
    REQUIRE(w, report->shared_bytes == ours + stay - all);
}

static void note_pause(world *w, uint32_t index, uint64_t tags, int lost,
                       const memopt_pause_report *report)
{
    member *m = &w->members[index];
    m->left = world_stat(w, index, "reserved_bytes.all.current");
    if (!w->threads) {
        if (m->paused == 0 && !w->disturbed)
            check_pages(w, index, tags, report);
        shares_paused(w, index, tags);
        set_contents(w, index, tags, lost);
    }
    m->paused |= tags;
    uint32_t i = 0;
    while (m->groups[i] != 0)
        i++;
    m->groups[i] = tags;
}

static memopt_status call_pause(memopt_allocator *handle, memopt_pause how, uint64_t tags,
                                memopt_pause_report *report)
{
    memopt_pause_options options = MEMOPT_PAUSE_OPTIONS_INIT;
    options.tags = tags;
    options.how = how;
    if (how == MEMOPT_PAUSE_FILE)
        options.path = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    return memopt_pool_pause_sync(handle, &options, report);
}

/* tags = 0: all that are not paused. */
static void pause_member(hand *h, uint32_t index, memopt_pause how, uint64_t tags)
{
    world *w = h->w;
    member *m = &w->members[index];
    memopt_pause_report report = MEMOPT_PAUSE_REPORT_INIT;
    if (!has(w, ORACLE_HAS_PAUSES) || (w->graph.capturing && !records(w, index)) ||
        !enter_member(w, index, 1))
        return;
    if (w->threads && how == MEMOPT_PAUSE_DISCARD)
        how = MEMOPT_PAUSE_KEEP;
    int paused = tags == 0 ? m->paused == UINT64_MAX : (m->paused & tags) != 0;
    int busy = paused || w->graph.capturing;
    uint64_t before = world_stat(w, index, "reserved_bytes.all.current");
    memopt_status status = CALL(w, call_pause(m->handle, how, tags, &report));
    memopt_status cannot = m->expandable && !w->disturbed ? MEMOPT_OK : MEMOPT_UNSUPPORTED;
    if (expected(w, status, cannot, busy || w->struck ? MEMOPT_BUSY : MEMOPT_OK)) {
        REQUIRE(w, m->expandable && !busy);
        REQUIRE(w, w->threads || before - report.released_bytes ==
                                     world_stat(w, index, "reserved_bytes.all.current"));
        note_pause(w, index, tags == 0 ? ~m->paused : tags, how == MEMOPT_PAUSE_DISCARD, &report);
    }
    leave_member(w, index);
}

void do_pause(hand *h, const oracle_op *op)
{
    pause_member(h, op->member, op->n != 0 ? MEMOPT_PAUSE_KEEP : MEMOPT_PAUSE_DISCARD, 0);
}

void do_pause_tags(hand *h, const oracle_op *op)
{
    pause_member(h, op->member, op->slot % 3, op->n % (1u << ORACLE_TAGS));
}

/* What was kept is there again, at the same addresses; what was not is written anew. */
static void verify_tags(hand *h, uint32_t index, uint64_t tags)
{
    world *w = h->w;
    for (int i = 0; i < ORACLE_SLOTS; i++) {
        slot *s = &w->slots[i];
        if (s->at == NULL || s->member != index || (tags >> s->tag & 1) == 0)
            continue;
        verify_slot(h, s, s->last);
        if (!s->lost)
            saw(w, ORACLE_HAS_PAUSES);
        else
            write_slot(h, s, s->at);
    }
}

/* Tags that one call has paused come back together: with a failure some of the groups have. */
static void note_resume(hand *h, uint32_t index, uint64_t tags, int done)
{
    world *w = h->w;
    member *m = &w->members[index];
    uint64_t now = paused_tags_of(m->handle), back = m->paused & ~now;
    for (int i = 0; i <= ORACLE_TAGS; i++) {
        uint64_t group = m->groups[i];
        REQUIRE(w, (group & back) == 0 || ((group & back) == group && (group & tags) != 0));
        REQUIRE(w, !done || (group & tags) == 0 || (group & back) == group);
        if ((group & back) != 0)
            m->groups[i] = 0;
    }
    REQUIRE(w, (now & ~m->paused) == 0);
    m->paused = now;
    if (!w->threads)
        verify_tags(h, index, back);
}

static void resume_member(hand *h, uint32_t index, uint64_t tags)
{
    world *w = h->w;
    member *m = &w->members[index];
    if (!has(w, ORACLE_HAS_PAUSES) || (w->graph.capturing && !records(w, index)) ||
        !enter_member(w, index, 1))
        return;
    int idle = tags == 0 ? m->paused == 0 : (tags & ~m->paused) != 0;
    int busy = idle || w->graph.capturing;
    memopt_status status = CALL(w, tags == 0 ? memopt_pool_resume_sync(m->handle, 0)
                                             : memopt_pool_resume_sync(m->handle, tags));
    int done = expected(w, status, idle ? MEMOPT_BUSY : MEMOPT_OUT_OF_DEVICE_MEMORY,
                        busy || w->struck ? MEMOPT_BUSY : MEMOPT_OK);
    REQUIRE(w, !(done && busy));
    if (!busy)
        note_resume(h, index, tags == 0 ? m->paused : tags, done);
    leave_member(w, index);
}

void do_resume(hand *h, const oracle_op *op)
{
    resume_member(h, op->member, 0);
}

void do_resume_tags(hand *h, const oracle_op *op)
{
    resume_member(h, op->member, op->n % (1u << ORACLE_TAGS));
}
