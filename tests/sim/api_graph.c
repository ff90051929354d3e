/* Capture and graphs: the checks of both vendors' calls. */
#include "calls.h"

sim_status sim_call_capture_begin(sim_stream *stream, int mode)
{
    if ((uintptr_t)stream <= 1)
        return SIM_CAPTURE_UNSUPPORTED; /* the legacy stream cannot be captured */
    sim_status status = sim_use_stream(&stream);
    if (status == SIM_OK && (mode < 0 || mode > 2))
        status = SIM_INVALID_VALUE;
    return status == SIM_OK ? sim_capture_begin(stream, mode) : status;
}

sim_status sim_call_capture_end(sim_stream *stream, sim_graph **out)
{
    if (out == NULL)
        return SIM_INVALID_VALUE;
    if ((uintptr_t)stream <= 1)
        return SIM_ILLEGAL_STATE;
    sim_status status = sim_use_stream(&stream);
    return status == SIM_OK ? sim_capture_end(stream, out) : status;
}

/* The legacy stream may not be asked while a stream that waits for it captures; asking alone does
 * no harm to the capture. */
sim_status sim_call_stream_capturing(sim_stream *stream, int *out)
{
    sim_status status = SIM_OK;
    if (out == NULL)
        return SIM_INVALID_VALUE;
    if ((uintptr_t)stream <= 1) {
        stream = sim_here()->legacy;
        status = sim_capture_conflict(sim_here(), 0);
    } else
        status = sim_stream_check(stream, sim_here());
    if (status == SIM_OK)
        *out = sim_capture_state(stream);
    return status;
}

sim_status sim_call_exchange_capture_mode(int *mode)
{
    if (mode == NULL || *mode < 0 || *mode > 2)
        return SIM_INVALID_VALUE;
    *mode = sim_capture_exchange(*mode);
    return SIM_OK;
}

sim_status sim_call_graph_instantiate(sim_graph **out, sim_graph *graph, uint64_t flags)
{
    if (out == NULL || flags > 15 || sim_graph_check(graph) != SIM_OK)
        return SIM_INVALID_VALUE;
    return sim_graph_instantiate(graph, out);
}

sim_status sim_call_graph_launch(sim_graph *executable, sim_stream *stream)
{
    sim_status status = sim_use_stream(&stream);
    if (status == SIM_OK)
        status = sim_graph_check(executable);
    return status == SIM_OK ? sim_graph_launch(executable, stream) : status;
}

sim_status sim_call_graph_destroy(sim_graph *graph)
{
    sim_status status = sim_graph_check(graph);
    return status == SIM_OK ? sim_graph_destroy(graph) : status;
}
