/*
 * Graph capture: a graph is the list of what its streams were given, in the order of the calls,
 * and a launch enqueues that list on one stream. (The order of the calls is one that the
 * dependencies allow.) Invalid graphs and ended ones stay allocated, so that handles are known.
 */
#include "core/sim.h"

#include <stdlib.h>

#define GRAPH_MAGIC 0x6772617068303031u

struct sim_graph {
    uint64_t magic;
    sim_stream *origin;
    sim_op *head, *tail;
    int invalid, executable, destroyed, ended;
};

sim_status sim_capture_begin(sim_stream *stream)
{
    if (stream->legacy)
        return SIM_CAPTURE_IMPLICIT;
    if (stream->capture != NULL)
        return SIM_INVALID_VALUE;
    sim_graph *graph = calloc(1, sizeof *graph);
    if (graph == NULL)
        return SIM_OUT_OF_MEMORY;
    graph->magic = GRAPH_MAGIC;
    graph->origin = stream;
    stream->capture = graph;
    return SIM_OK;
}

int sim_capture_state(const sim_stream *stream)
{
    return stream->capture == NULL ? 0 : stream->capture->invalid ? 2 : 1;
}

void sim_capture_invalidate(sim_graph *graph)
{
    graph->invalid = 1;
}

void sim_capture_append(sim_graph *graph, sim_op *op)
{
    op->next = NULL;
    if (op->kind == SIM_RECORD)
        op->kind = SIM_NOTHING; /* an event of a capture is an edge, no node */
    if (graph->tail != NULL)
        graph->tail->next = op;
    else
        graph->head = op;
    graph->tail = op;
}

/* Streams that joined must have come back: their last operation is one that the origin waits for.
 * Only the origin may end it. */
sim_status sim_capture_end(sim_stream *stream, sim_graph **out_graph)
{
    sim_graph *graph = stream->capture;
    if (graph == NULL)
        return SIM_INVALID_VALUE;
    if (graph->origin != stream)
        return SIM_CAPTURE_UNMATCHED;
    for (sim_stream *s = sim_streams; s != NULL; s = s->next)
        if (s->capture == graph)
            s->capture = NULL;
    graph->ended = 1;
    if (graph->invalid)
        return SIM_CAPTURE_INVALIDATED;
    *out_graph = graph;
    return SIM_OK;
}

sim_status sim_graph_check(const sim_graph *graph)
{
    if ((uintptr_t)graph < SIM_PAGE || (uintptr_t)graph % sizeof(void *) != 0 ||
        graph->magic != GRAPH_MAGIC || graph->destroyed)
        return SIM_INVALID_VALUE;
    return SIM_OK;
}

static void clear(sim_graph *graph)
{
    while (graph->head != NULL) {
        sim_op *op = graph->head;
        graph->head = op->next;
        sim_op_free(op);
    }
    graph->tail = NULL;
}

sim_status sim_graph_instantiate(sim_graph *graph, sim_graph **out_executable)
{
    if (graph->executable)
        return SIM_INVALID_VALUE;
    sim_graph *executable = calloc(1, sizeof *executable);
    if (executable == NULL)
        return SIM_OUT_OF_MEMORY;
    executable->magic = GRAPH_MAGIC;
    executable->executable = 1;
    for (const sim_op *op = graph->head; op != NULL; op = op->next) {
        sim_op *copy = sim_op_clone(op);
        if (copy == NULL) {
            clear(executable);
            free(executable);
            return SIM_OUT_OF_MEMORY;
        }
        sim_capture_append(executable, copy);
    }
    *out_executable = executable;
    return SIM_OK;
}

sim_status sim_graph_launch(sim_graph *executable, sim_stream *stream)
{
    sim_status status = SIM_OK;
    if (!executable->executable)
        return SIM_INVALID_VALUE;
    for (const sim_op *op = executable->head; op != NULL && status == SIM_OK; op = op->next) {
        sim_op *copy = sim_op_clone(op);
        status = copy != NULL ? sim_submit(stream, copy) : SIM_OUT_OF_MEMORY;
    }
    return status;
}

sim_status sim_graph_destroy(sim_graph *graph)
{
    clear(graph);
    graph->destroyed = 1;
    return SIM_OK;
}
