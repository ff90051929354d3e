/* Streams, events and what is not a kernel on them: the checks of both vendors' calls. */
#include "calls.h"

sim_status sim_call_synchronize(void)
{
    return sim_context_sync(sim_here());
}

sim_status sim_call_stream_create(sim_stream **out, unsigned flags)
{
    return out != NULL && flags <= 1 ? sim_stream_create(sim_here(), flags == 0, out)
                                     : SIM_INVALID_VALUE;
}

sim_status sim_call_stream_destroy(sim_stream *stream)
{
    if ((uintptr_t)stream <= 2)
        return SIM_INVALID_HANDLE;
    sim_status status = sim_use_stream(&stream);
    return status == SIM_OK ? sim_stream_destroy(stream) : status;
}

sim_status sim_call_stream_sync(sim_stream *stream)
{
    sim_status status = sim_use_stream(&stream);
    return status == SIM_OK ? sim_stream_sync(stream) : status;
}

sim_status sim_call_stream_query(sim_stream *stream)
{
    sim_status status = sim_use_stream(&stream);
    return status == SIM_OK ? sim_stream_query(stream) : status;
}

sim_status sim_call_stream_wait(sim_stream *stream, sim_event *event, unsigned flags)
{
    sim_status status = sim_use_stream(&stream);
    if (status == SIM_OK)
        status = sim_event_check(event);
    if (status == SIM_OK && flags > 1)
        status = SIM_INVALID_VALUE;
    return status == SIM_OK ? sim_stream_wait(stream, event) : status;
}

sim_status sim_call_host_function(sim_stream *stream, void (*function)(void *user), void *user)
{
    sim_status status = sim_use_stream(&stream);
    return status == SIM_OK ? sim_host_function(stream, function, user) : status;
}

sim_status sim_call_stream_callback(sim_stream *stream,
                                    void (*function)(sim_stream *stream, int32_t code, void *user),
                                    void *user, unsigned flags)
{
    sim_stream *named = stream;
    sim_status status = sim_use_stream(&stream);
    if (status == SIM_OK && flags != 0)
        status = SIM_INVALID_VALUE;
    return status == SIM_OK ? sim_stream_callback(stream, named, function, user) : status;
}

/* Flags: blocking wait, no timing, for other processes; HIP adds two on the release scope. */
sim_status sim_call_event_create(sim_event **out, unsigned flags)
{
    unsigned known = sim_is_hip ? 0xE0000007u : 7u;
    if (out == NULL || (flags & ~known) != 0)
        return SIM_INVALID_VALUE;
    return sim_event_create(sim_here(), (flags & 2) == 0, out);
}

sim_status sim_call_event_destroy(sim_event *event)
{
    sim_status status = sim_event_check(event);
    return status == SIM_OK ? sim_event_destroy(event) : status;
}

sim_status sim_call_event_record(sim_event *event, sim_stream *stream)
{
    sim_status status = sim_use_stream(&stream);
    if (status == SIM_OK)
        status = sim_event_check(event);
    return status == SIM_OK ? sim_event_record(event, stream) : status;
}

sim_status sim_call_event_query(sim_event *event)
{
    sim_status status = sim_event_check(event);
    return status == SIM_OK ? sim_event_query(event) : status;
}

sim_status sim_call_event_sync(sim_event *event)
{
    sim_status status = sim_event_check(event);
    return status == SIM_OK ? sim_event_sync(event) : status;
}

sim_status sim_call_event_elapsed(float *out, sim_event *start, sim_event *end)
{
    sim_status status = sim_event_check(start);
    if (status == SIM_OK)
        status = sim_event_check(end);
    if (status == SIM_OK && out == NULL)
        status = SIM_INVALID_VALUE;
    return status == SIM_OK ? sim_event_elapsed(start, end, out) : status;
}
