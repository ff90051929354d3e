/*
 * Graphs of a pool: what is recorded is fills of blocks that are allocated, and freed, meanwhile.
 * A simulated driver records them itself. On the cpu device the model keeps the list, and answers
 * the question of whether a stream records.
 */
#include "world.h"

#include <dlfcn.h>
#include <string.h>

/* X(field, parameters, CUDA symbol, HIP symbol) */
#define GRAPH_CALLS(X)                                                                             \
    X(begin, (void *stream, int mode), cuStreamBeginCapture_v2, hipStreamBeginCapture)             \
    X(end, (void *stream, void **out_graph), cuStreamEndCapture, hipStreamEndCapture)              \
    X(instantiate, (void **out, void *graph, unsigned long long flags),                            \
      cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags)                                   \
    X(launch, (void *executable, void *stream), cuGraphLaunch, hipGraphLaunch)                     \
    X(graph_destroy, (void *graph), cuGraphDestroy, hipGraphDestroy)                               \
    X(executable_destroy, (void *executable), cuGraphExecDestroy, hipGraphExecDestroy)             \
    X(retain, (void **out_context, int device), cuDevicePrimaryCtxRetain, hipSetDevice)            \
    X(release, (int device), cuDevicePrimaryCtxRelease_v2, hipSetDevice)                           \
    X(push, (void *context), cuCtxPushCurrent_v2, hipSetDevice)                                    \
    X(pop, (void **out_context), cuCtxPopCurrent_v2, hipSetDevice)                                 \
    X(set_device, (int device), cuCtxSynchronize, hipSetDevice)

typedef struct graph_calls {
#define GRAPH_FIELD(field, parameters, cuda, hip) int(*field) parameters;
    GRAPH_CALLS(GRAPH_FIELD)
#undef GRAPH_FIELD
} graph_calls;

/* The driver's calls, with its context current until driver_leave; NULL on the cpu device. */
static const graph_calls *driver_enter(const world *w)
{
    static graph_calls calls;
    const driver_hooks *driver = driver_of(w->c->device);
    int cuda = w->c->device[0] == 'c';
    void *context = NULL;
    if (driver == NULL)
        return NULL;
    if (calls.begin == NULL) {
#define GRAPH_LOAD(field, parameters, cuda_name, hip_name)                                         \
    {                                                                                              \
        void *found = dlsym(driver->library, cuda ? #cuda_name : #hip_name);                       \
        REQUIRE(w, found != NULL);                                                                 \
        memcpy(&calls.field, &found, sizeof found);                                                \
    }
        GRAPH_CALLS(GRAPH_LOAD)
    }
    if (cuda) {
        REQUIRE(w, calls.retain(&context, 0) == 0);
        REQUIRE(w, calls.push(context) == 0);
    } else {
        REQUIRE(w, calls.set_device(0) == 0);
    }
    return &calls;
}

static void driver_leave(const world *w, const graph_calls *d)
{
    void *context = NULL;
    if (w->c->device[0] != 'c')
        return;
    REQUIRE(w, d->pop(&context) == 0);
    REQUIRE(w, d->release(0) == 0); /* the library holds it too */
}

int graph_is_capturing(const world *w, memopt_stream stream)
{
    return w->graph.capturing && stream == w->streams[w->graph.stream];
}

void graph_fill(world *w, void *at, uint8_t value, uint64_t bytes, uint32_t stream)
{
    graph *g = &w->graph;
    int recorded = g->capturing && stream == g->stream;
    if (recorded)
        g->fills[g->count++] = (fill){at, bytes, value};
    if (!recorded || driver_of(w->c->device) != NULL)
        OK(w, memopt_fill(w->device, at, value, bytes, w->streams[stream]));
}

void graph_drop(world *w)
{
    graph *g = &w->graph;
    if (g->capturing)
        do_end_capture(&(hand){.w = w}, NULL);
    const graph_calls *d = g->executable != NULL ? driver_enter(w) : NULL;
    if (d != NULL) {
        OK(w, memopt_stream_sync(w->device, w->streams[g->stream]));
        REQUIRE(w, d->executable_destroy(g->executable) == 0);
        driver_leave(w, d);
    }
    g->executable = NULL;
    g->count = 0;
}

/* Every allocator must know the stream: what knows none that records gives memory back meanwhile.
 */
static int make_known(world *w, uint32_t stream)
{
    for (uint32_t i = 0; i < ORACLE_MEMBERS; i++) {
        member *m = &w->members[i];
        void *at = NULL;
        if (m->handle == NULL || !is_root(i))
            continue;
        if (m->paused ||
            memopt_allocator_alloc(m->handle, 1, 0, w->streams[stream], &at) != MEMOPT_OK)
            return 0;
        OK(w, memopt_allocator_free(m->handle, at));
        m->allocations++;
        m->peak = m->requested + 1 > m->peak ? m->requested + 1 : m->peak;
        m->streams |= (uint8_t)(1u << stream);
    }
    return 1;
}

void do_capture(hand *h, const oracle_op *op)
{
    world *w = h->w;
    graph *g = &w->graph;
    const member *m = &w->members[ORACLE_GRAPH_POOL];
    if (g->capturing || op->stream == 0 || m->handle == NULL || m->paused)
        return;
    graph_drop(w);
    if (!make_known(w, op->stream))
        return;
    for (int i = 0; i < ORACLE_SLOTS; i++) { /* older blocks of the stream have their contents */
        slot *s = &w->slots[i];
        if (s->at != NULL && s->last == op->stream)
            OK(w, memopt_stream_sync(w->device, w->streams[op->stream]));
    }
    const graph_calls *d = driver_enter(w);
    if (d != NULL) {
        REQUIRE(w, d->begin(w->streams[op->stream], (int)(op->n % 3)) == 0);
        driver_leave(w, d);
    }
    g->stream = op->stream;
    g->capturing = 1;
}

static int is_live(const world *w, const fill *f)
{
    for (int i = 0; i < ORACLE_SLOTS; i++) {
        const slot *s = &w->slots[i];
        if (s->at != NULL && (unsigned char *)f->at >= s->at &&
            (unsigned char *)f->at + f->bytes <= s->at + s->usable)
            return 1;
    }
    return 0;
}

/* In adversarial order the cpu device takes a write to a freed block for a fault. */
static void launch(world *w)
{
    graph *g = &w->graph;
    const graph_calls *d = driver_enter(w);
    if (d != NULL) {
        REQUIRE(w, d->launch(g->executable, w->streams[g->stream]) == 0);
        driver_leave(w, d);
        return;
    }
    for (uint64_t i = 0; i < g->count; i++) {
        const fill *f = &g->fills[i];
        if (!w->adversarial || is_live(w, f))
            OK(w, memopt_fill(w->device, f->at, f->value, f->bytes, w->streams[g->stream]));
    }
}

/* The first replay follows at once: blocks have their contents then. */
void do_end_capture(hand *h, const oracle_op *op)
{
    world *w = h->w;
    graph *g = &w->graph;
    void *recorded = NULL;
    (void)op;
    if (!g->capturing)
        return;
    const graph_calls *d = driver_enter(w);
    if (d != NULL) {
        REQUIRE(w, d->end(w->streams[g->stream], &recorded) == 0); /* nothing has spoilt it */
        if (g->count > 0)
            REQUIRE(w, d->instantiate(&g->executable, recorded, 0) == 0);
        if (recorded != NULL)
            REQUIRE(w, d->graph_destroy(recorded) == 0);
        driver_leave(w, d);
    }
    g->capturing = 0;
    if (g->count > 0)
        launch(w);
}

/* All addresses of the graph are written again, those of freed blocks as well: they are kept for
 * it, also over a pause. */
void do_replay(hand *h, const oracle_op *op)
{
    world *w = h->w;
    graph *g = &w->graph;
    (void)op;
    if (g->capturing || g->count == 0 || w->members[ORACLE_GRAPH_POOL].paused)
        return;
    for (uint32_t i = 0; i < ORACLE_STREAMS; i++) {
        if (i == g->stream)
            continue;
        OK(w, memopt_event_record(h->event, w->streams[i]));
        OK(w, memopt_stream_wait_event(w->device, w->streams[g->stream], h->event));
    }
    launch(w);
    saw(w, ORACLE_HAS_GRAPHS);
    for (int i = 0; i < ORACLE_SLOTS; i++) {
        slot *s = &w->slots[i];
        for (uint64_t k = 0; s->at != NULL && k < g->count; k++)
            if (g->fills[k].at == s->at) {
                s->value = g->fills[k].value;
                s->last = g->stream;
                s->lost = s->used = 0;
            }
    }
}
