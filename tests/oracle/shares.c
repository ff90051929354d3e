/* Blocks that are exported and imported again, here by the same process: an import is the same
 * memory at other addresses, and outlives the block and its export. */
#include "world.h"

#include <string.h>
#include <unistd.h>

enum { MOST_FILES = 512 };

/* Whose entry is held then; NULL: another thread has it. */
static oracle_share *enter_share(world *w, uint64_t index)
{
    oracle_share *e = &w->shares[index % ORACLE_SHARES];
    return has(w, ORACLE_HAS_SHARING) && pthread_mutex_trylock(&e->lock) == 0 ? e : NULL;
}

static void leave_share(oracle_share *e)
{
    pthread_mutex_unlock(&e->lock);
}

/* --- what others ask -------------------------------------------------------------------------- */

int is_exported(const world *w, const slot *s)
{
    for (int i = 0; i < ORACLE_SHARES; i++)
        if (w->shares[i].out != NULL && w->shares[i].block.birth == s->birth)
            return 1;
    return 0;
}

int shares_of(const world *w, uint32_t index)
{
    for (int i = 0; i < ORACLE_SHARES; i++)
        if (w->shares[i].out != NULL && w->shares[i].block.member == index)
            return 1;
    return 0;
}

uint32_t shares_freed(const world *w, uint32_t index, const slot **out)
{
    uint32_t count = 0;
    for (int i = 0; i < ORACLE_SHARES; i++) {
        const oracle_share *e = &w->shares[i];
        int seen = 0;
        for (uint32_t k = 0; k < count; k++)
            seen |= out[k]->birth == e->block.birth;
        if (e->out != NULL && e->freed && e->block.member == index && !seen)
            out[count++] = &e->block;
    }
    return count;
}

uint64_t shares_imported(const world *w)
{
    uint64_t bytes = 0;
    for (int i = 0; i < ORACLE_SHARES; i++)
        bytes += w->shares[i].in != NULL ? w->shares[i].pages : 0;
    return bytes;
}

/* A graph writes to blocks that were freed. */
void shares_block_freed(world *w, const slot *s)
{
    for (int i = 0; i < ORACLE_SHARES; i++) {
        oracle_share *e = &w->shares[i];
        if (e->freed || e->block.birth != s->birth || (e->out == NULL && e->in == NULL))
            continue;
        e->freed = 1;
        e->block = *s;
        e->known &= e->out != NULL && s->member != ORACLE_GRAPH_POOL;
    }
}

/* The pages of a block that is exported no more go, and others come. */
void shares_paused(world *w, uint32_t index, uint64_t tags)
{
    for (int i = 0; i < ORACLE_SHARES; i++) {
        oracle_share *e = &w->shares[i];
        if (e->out == NULL && e->block.member == index && (tags >> e->block.tag & 1) != 0)
            e->known = 0;
    }
}

/* --- exports ---------------------------------------------------------------------------------- */

static void take_export(world *w, oracle_share *e, const slot *s)
{
    char message[MEMOPT_SHARE_MESSAGE_BYTES];
    uint64_t files = 0;
    OK(w, memopt_export_describe(e->out, 0, message, NULL, &files));
    e->slot = (uint8_t)(s - w->slots);
    e->block = *s;
    e->known = 1;
    e->freed = 0;
    e->pages = files * w->members[s->member].handle->granularity;
}

void do_export(hand *h, const oracle_op *op)
{
    world *w = h->w;
    slot *s = enter_block(w, op, 1);
    oracle_share *e = s != NULL ? enter_share(w, op->n) : NULL;
    if (e != NULL && e->out == NULL && e->in == NULL) {
        const member *m = &w->members[s->member];
        memopt_export *out = NULL;
        memopt_status status = CALL(w, memopt_export_create(m->handle, s->at, &out));
        int can = m->expandable;
        if (expected(w, status, can && !w->disturbed ? MEMOPT_OK : MEMOPT_UNSUPPORTED,
                     is_paused(w, s) ? MEMOPT_BUSY : MEMOPT_OK)) {
            REQUIRE(w, can && !is_paused(w, s));
            e->out = out;
            take_export(w, e, s);
        }
    }
    if (e != NULL)
        leave_share(e);
    if (s != NULL)
        leave_block(w, s);
}

static void end_export(world *w, oracle_share *e)
{
    OK(w, memopt_export_destroy(e->out));
    e->out = NULL;
    e->known &= !e->freed;
}

void do_end_export(hand *h, const oracle_op *op)
{
    oracle_share *e = enter_share(h->w, op->slot);
    if (e == NULL)
        return;
    if (e->out != NULL)
        end_export(h->w, e);
    leave_share(e);
}

/* --- imports ---------------------------------------------------------------------------------- */

/* The block as it is now, or was when it was freed. */
static slot *block_of(world *w, oracle_share *e)
{
    return e->freed ? &e->block : &w->slots[e->slot];
}

static void verify_import(hand *h, oracle_share *e)
{
    const slot *s = block_of(h->w, e);
    if (h->w->threads || !e->known || e->in == NULL)
        return;
    verify_bytes(h, s, e->at, s->last);
    saw(h->w, ORACLE_HAS_SHARING);
}

static memopt_status open_import(world *w, oracle_share *e)
{
    char message[MEMOPT_SHARE_MESSAGE_BYTES];
    int32_t files[MOST_FILES];
    uint64_t count = 0, bytes = 0;
    void *at = NULL;
    OK(w, memopt_export_describe(e->out, MOST_FILES, message, files, &count));
    memopt_status status = CALL(w, memopt_import_open(w->device, message, sizeof message, files,
                                                      count, &at, &bytes, &e->in));
    REQUIRE(w, status != MEMOPT_OK || bytes == e->block.usable);
    e->at = at;
    for (uint64_t i = 0; i < count; i++)
        (void)close(files[i]);
    return status;
}

static void take_import(hand *h, oracle_share *e, int write)
{
    world *w = h->w;
    verify_import(h, e);
    slot *s = block_of(w, e);
    if (w->threads || !write || e->freed || is_paused(w, s))
        return;
    write_slot(h, s, e->at); /* what is written there is read here */
    verify_slot(h, s, s->stream);
}

/* Waits for the device, which a capture forbids. */
void do_import(hand *h, const oracle_op *op)
{
    world *w = h->w;
    oracle_share *e = w->graph.capturing ? NULL : enter_share(w, op->slot);
    if (e == NULL)
        return;
    if (e->out != NULL && e->in == NULL && expected(w, open_import(w, e), MEMOPT_OK, MEMOPT_OK))
        take_import(h, e, (int)(op->n & 1));
    leave_share(e);
}

static void end_import(hand *h, oracle_share *e)
{
    world *w = h->w;
    verify_import(h, e);
    if (expected(w, CALL(w, memopt_import_destroy(e->in)), MEMOPT_OK, MEMOPT_OK))
        e->in = NULL;
    else
        e->known = 0; /* it may be there in part */
}

void do_end_import(hand *h, const oracle_op *op)
{
    oracle_share *e = h->w->graph.capturing ? NULL : enter_share(h->w, op->slot);
    if (e == NULL)
        return;
    if (e->in != NULL)
        end_import(h, e);
    leave_share(e);
}

/* --- all -------------------------------------------------------------------------------------- */

void shares_verify(hand *h)
{
    for (int i = 0; i < ORACLE_SHARES; i++)
        verify_import(h, &h->w->shares[i]);
}

void shares_end(hand *h)
{
    for (int i = 0; i < ORACLE_SHARES; i++) {
        oracle_share *e = &h->w->shares[i];
        if (e->in != NULL)
            end_import(h, e);
        if (e->out != NULL)
            end_export(h->w, e);
    }
}
