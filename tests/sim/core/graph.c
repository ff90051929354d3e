/*
 * Graph capture and replay.
 *
 * A graph is a list of nodes, each with the nodes that it comes after: what its stream was given
 * before, and what its stream had waited for. Capturing streams and events that were recorded in
 * them hold the nodes at which they stand (`ends`). An executable graph has a stream of its own (a
 * lane) for each stream that took part in the capture: a launch gives every node to its lane after
 * the nodes that it depends on, so the scheduler may run what is independent in any order, and what
 * is told about hazards between streams holds between the branches of a graph too.
 *
 * What breaks the rules of a capture fails and ends the capture, as with real drivers: later calls
 * on its streams fail with CAPTURE_INVALIDATED until the capture is ended. Structs of graphs are
 * never freed, so that handles and the events that point to them are known for what they are.
 */
#include "core/sim.h"

#include <stdlib.h>
#include <string.h>

#define GRAPH_MAGIC 0x6772617068303031u

enum { GLOBAL, THREAD, RELAXED };

typedef struct graph_node {
    sim_op *op;
    sim_nodes after;
    uint64_t lane;
} graph_node;

struct sim_graph {
    uint64_t magic;
    sim_graph *next; /* of the captures under way */
    sim_stream *origin;
    pthread_t thread;
    int mode, invalid, ended, executable, destroyed;
    graph_node *nodes;
    uint64_t count, capacity;
    sim_stream **lanes; /* the streams that were captured; of an executable: its own */
    uint64_t lane_count, lane_capacity;
    sim_clock last; /* an executable's last launch: the next one comes after it */
};

static sim_graph *captures;
static __thread int thread_mode;

/* --- sets of nodes ------------------------------------------------------------------------- */

static void add_node(sim_nodes *set, uint32_t node)
{
    for (uint64_t i = 0; i < set->count; i++)
        if (set->items[i] == node)
            return;
    set->items = sim_grow(set->items, set->count, &set->capacity, sizeof *set->items);
    set->items[set->count++] = node;
}

static void add_nodes(sim_nodes *set, const sim_nodes *other)
{
    for (uint64_t i = 0; i < other->count; i++)
        add_node(set, other->items[i]);
}

/* --- which calls a capture forbids --------------------------------------------------------- */

int sim_capture_exchange(int mode)
{
    int earlier = thread_mode;
    thread_mode = mode;
    return earlier;
}

/* A thread's own captures forbid, unless they are relaxed; those of others if both they and this
 * thread are in the global mode. */
sim_status sim_capture_forbids(void)
{
    sim_status status = SIM_OK;
    if (thread_mode == RELAXED)
        return SIM_OK;
    for (sim_graph *g = captures; g != NULL; g = g->next) {
        int own = pthread_equal(g->thread, pthread_self());
        if (own ? g->mode != RELAXED : thread_mode == GLOBAL && g->mode == GLOBAL)
            status = sim_capture_break(g, SIM_CAPTURE_UNSUPPORTED);
    }
    return status;
}

sim_status sim_capture_conflict(const sim_context *context, int ends)
{
    sim_status status = SIM_OK;
    for (const sim_stream *s = sim_streams; s != NULL; s = s->next) {
        if (s->context != context || !s->blocking || s->capture == NULL)
            continue;
        if (ends)
            s->capture->invalid = 1;
        status = SIM_CAPTURE_IMPLICIT;
    }
    return status;
}

sim_status sim_capture_break(sim_graph *graph, sim_status status)
{
    if (graph->ended)
        return status; /* an event of a capture that is over */
    if (graph->invalid)
        return SIM_CAPTURE_INVALIDATED;
    graph->invalid = 1;
    return status;
}

/* --- capture ------------------------------------------------------------------------------- */

sim_status sim_capture_begin(sim_stream *stream, int mode)
{
    if (stream->capture != NULL)
        return SIM_ILLEGAL_STATE;
    sim_graph *graph = sim_handle_new(sizeof *graph);
    if (graph == NULL)
        return SIM_OUT_OF_MEMORY;
    graph->magic = GRAPH_MAGIC;
    graph->origin = stream;
    graph->thread = pthread_self();
    graph->mode = mode;
    graph->next = captures;
    captures = graph;
    stream->capture = graph;
    stream->ends.count = 0;
    return SIM_OK;
}

int sim_capture_state(const sim_stream *stream)
{
    return stream->capture == NULL ? 0 : stream->capture->invalid ? 2 : 1;
}

/* The stream's place among those that were captured. */
static uint64_t lane_of(sim_graph *graph, sim_stream *stream)
{
    for (uint64_t i = 0; i < graph->lane_count; i++)
        if (graph->lanes[i] == stream)
            return i;
    graph->lanes =
        sim_grow(graph->lanes, graph->lane_count, &graph->lane_capacity, sizeof(sim_stream *));
    graph->lanes[graph->lane_count] = stream;
    return graph->lane_count++;
}

static uint32_t add_to_graph(sim_graph *graph, sim_op *op, const sim_nodes *after, uint64_t lane)
{
    graph->nodes = sim_grow(graph->nodes, graph->count, &graph->capacity, sizeof *graph->nodes);
    graph_node *node = &graph->nodes[graph->count];
    *node = (graph_node){.op = op, .lane = lane};
    add_nodes(&node->after, after);
    return (uint32_t)graph->count++;
}

sim_status sim_capture_append(sim_stream *stream, sim_op *op)
{
    sim_graph *graph = stream->capture;
    if (graph->invalid) {
        sim_op_free(op);
        return SIM_CAPTURE_INVALIDATED;
    }
    uint32_t node = add_to_graph(graph, op, &stream->ends, lane_of(graph, stream));
    stream->ends.count = 0;
    add_node(&stream->ends, node);
    return SIM_OK;
}

sim_status sim_capture_record(sim_event *event, const sim_stream *stream)
{
    if (stream->capture->invalid)
        return SIM_CAPTURE_INVALIDATED;
    event->capture = stream->capture;
    event->ends.count = 0;
    add_nodes(&event->ends, &stream->ends);
    event->records++;
    return SIM_OK;
}

/* A stream outside joins the event's capture; one inside it comes after the event's nodes. */
sim_status sim_capture_wait(sim_stream *stream, const sim_event *event)
{
    sim_graph *own = stream->capture, *other = event->capture;
    if (other == NULL) /* work outside the graph */
        return sim_capture_break(own, SIM_CAPTURE_ISOLATION);
    if (other->ended)
        return own != NULL ? sim_capture_break(own, SIM_CAPTURED_EVENT) : SIM_CAPTURED_EVENT;
    if (other->invalid || (own != NULL && own->invalid))
        return SIM_CAPTURE_INVALIDATED;
    if (stream->legacy)
        return sim_capture_break(other, SIM_CAPTURE_IMPLICIT);
    if (own != NULL && own != other) {
        (void)sim_capture_break(own, SIM_CAPTURE_MERGE);
        return sim_capture_break(other, SIM_CAPTURE_MERGE);
    }
    if (own == NULL)
        stream->ends.count = 0;
    stream->capture = other;
    add_nodes(&stream->ends, &event->ends);
    return SIM_OK;
}

/* Every node is one that the origin's next operation would come after. */
static int all_joined(const sim_graph *graph)
{
    uint64_t reached = 0;
    unsigned char *seen = calloc(graph->count + 1, 1);
    if (seen == NULL)
        return 0;
    for (uint64_t i = 0; i < graph->origin->ends.count; i++)
        seen[graph->origin->ends.items[i]] = 1;
    for (uint64_t i = graph->count; i-- > 0;) {
        if (!seen[i])
            continue;
        reached++;
        for (uint64_t k = 0; k < graph->nodes[i].after.count; k++)
            seen[graph->nodes[i].after.items[k]] = 1;
    }
    free(seen);
    return reached == graph->count;
}

static void clear(sim_graph *graph)
{
    for (uint64_t i = 0; i < graph->count; i++) {
        sim_op_free(graph->nodes[i].op);
        free(graph->nodes[i].after.items);
    }
    free(graph->nodes);
    graph->nodes = NULL;
    graph->count = graph->capacity = 0;
}

static void end_capture(sim_graph *graph)
{
    sim_graph **link = &captures;
    while (*link != NULL && *link != graph)
        link = &(*link)->next;
    if (*link != NULL)
        *link = graph->next;
    for (sim_stream *s = sim_streams; s != NULL; s = s->next)
        if (s->capture == graph)
            s->capture = NULL;
    graph->ended = 1;
}

sim_status sim_capture_end(sim_stream *stream, sim_graph **out_graph)
{
    sim_graph *graph = stream->capture;
    if (graph == NULL)
        return SIM_ILLEGAL_STATE;
    if (graph->origin != stream)
        return SIM_CAPTURE_UNMATCHED;
    if (graph->mode != RELAXED && !pthread_equal(graph->thread, pthread_self()))
        return SIM_CAPTURE_THREAD;
    sim_status status = graph->invalid       ? SIM_CAPTURE_INVALIDATED
                        : !all_joined(graph) ? SIM_CAPTURE_UNJOINED
                                             : SIM_OK;
    end_capture(graph);
    if (status != SIM_OK) {
        clear(graph);
        graph->destroyed = 1;
    }
    *out_graph = status == SIM_OK ? graph : NULL;
    return status;
}

void sim_capture_leave(sim_stream *stream)
{
    sim_graph *graph = stream->capture;
    if (graph == NULL)
        return;
    graph->invalid = 1;
    stream->capture = NULL;
    if (graph->origin == stream) {
        end_capture(graph);
        clear(graph);
    }
}

/* --- graphs -------------------------------------------------------------------------------- */

sim_status sim_graph_check(const sim_graph *graph)
{
    if ((uintptr_t)graph < SIM_PAGE || (uintptr_t)graph % sizeof(void *) != 0 ||
        graph->magic != GRAPH_MAGIC || graph->destroyed)
        return SIM_INVALID_VALUE;
    return SIM_OK;
}

sim_status sim_graph_destroy(sim_graph *graph)
{
    clear(graph);
    for (uint64_t i = 0; i < graph->lane_count && graph->executable; i++)
        (void)sim_stream_destroy(graph->lanes[i]);
    graph->lane_count = 0;
    graph->destroyed = 1;
    return SIM_OK;
}

sim_status sim_graph_instantiate(sim_graph *graph, sim_graph **out_executable)
{
    sim_status status = graph->executable ? SIM_INVALID_VALUE : SIM_OK;
    sim_graph *run = status == SIM_OK ? sim_handle_new(sizeof *run) : NULL;
    if (run == NULL)
        return status != SIM_OK ? status : SIM_OUT_OF_MEMORY;
    run->magic = GRAPH_MAGIC;
    run->executable = run->ended = 1;
    for (uint64_t i = 0; i < graph->lane_count && status == SIM_OK; i++) {
        sim_stream *lane = NULL;
        status = sim_stream_create(graph->origin->context, 0, &lane);
        if (status == SIM_OK)
            (void)lane_of(run, lane);
    }
    for (uint64_t i = 0; i < graph->count && status == SIM_OK; i++) {
        const graph_node *node = &graph->nodes[i];
        sim_op *op = sim_op_clone(node->op);
        if (op == NULL)
            status = SIM_OUT_OF_MEMORY;
        else
            (void)add_to_graph(run, op, &node->after, node->lane);
    }
    if (status == SIM_OK)
        *out_executable = run;
    else
        (void)sim_graph_destroy(run);
    return status;
}

/* In a capture a graph becomes part of the new one, in the order in which it was recorded. */
static sim_status capture_launch(const sim_graph *run, sim_stream *stream)
{
    sim_status status = SIM_OK;
    for (uint64_t i = 0; i < run->count && status == SIM_OK; i++) {
        sim_op *op = sim_op_clone(run->nodes[i].op);
        status = op != NULL ? sim_capture_append(stream, op) : SIM_OUT_OF_MEMORY;
    }
    return status;
}

/* A place on the stream that comes after `also`. */
static sim_status mark(sim_stream *stream, const sim_clock *also)
{
    sim_op *op = sim_op_new(SIM_NOTHING, stream->context);
    return op != NULL ? sim_submit_after(stream, op, also) : SIM_OUT_OF_MEMORY;
}

sim_status sim_graph_launch(sim_graph *run, sim_stream *stream)
{
    if (!run->executable)
        return SIM_INVALID_VALUE;
    if (stream->capture != NULL)
        return capture_launch(run, stream);
    sim_clock *done = calloc(run->count + 1, sizeof *done);
    sim_status status = done != NULL ? mark(stream, &run->last) : SIM_OUT_OF_MEMORY;
    sim_clock all = stream->clock;
    for (uint64_t i = 0; i < run->count && status == SIM_OK; i++) {
        const graph_node *node = &run->nodes[i];
        sim_op *op = sim_op_clone(node->op);
        sim_clock needs = stream->clock;
        for (uint64_t k = 0; k < node->after.count; k++)
            sim_join(&needs, &done[node->after.items[k]]);
        status =
            op != NULL ? sim_submit_after(run->lanes[node->lane], op, &needs) : SIM_OUT_OF_MEMORY;
        done[i] = run->lanes[node->lane]->clock;
        sim_join(&all, &done[i]);
    }
    if (status == SIM_OK)
        status = mark(stream, &all);
    run->last = stream->clock;
    free(done);
    return status;
}
