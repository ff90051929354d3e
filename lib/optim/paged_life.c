/* Streams, events and areas of paged states from their making to their end; see paged.c. */
#include "optim/optim.h"

memopt_status mo_paged_check(const memopt_optimizer *o, const char *call)
{
    return o->pages.torn ? mo_fail(MEMOPT_CORRUPT,
                                   "%s: an earlier step failed in its middle, so states are of two "
                                   "steps; import a saved state",
                                   call)
                         : MEMOPT_OK;
}

memopt_status mo_paged_open(memopt_optimizer *o)
{
    mo_paged *pages = &o->pages;
    memopt_event **const events[] = {&pages->arrived[0], &pages->arrived[1], &pages->stepped[0],
                                     &pages->stepped[1], &pages->left[0],    &pages->left[1]};
    memopt_stream *const streams[] = {&pages->in, &pages->out};
    memopt_status status = MEMOPT_OK;
    for (size_t i = 0; i < 2 && status == MEMOPT_OK; i++)
        if (*streams[i] == NULL)
            status = memopt_stream_create(o->device, streams[i]);
    for (size_t i = 0; i < 2 && status == MEMOPT_OK; i++)
        status = mo_optimizer_use_stream(o, *streams[i]);
    for (size_t i = 0; i < sizeof events / sizeof *events && status == MEMOPT_OK; i++)
        if (*events[i] == NULL)
            status = memopt_event_create(o->device, 0, events[i]);
    pages->opened = status == MEMOPT_OK;
    return status;
}

memopt_status mo_paged_settle(memopt_optimizer *o)
{
    memopt_stream const streams[] = {o->pages.in, o->pages.out};
    memopt_status result = MEMOPT_OK;
    for (int i = 0; i < 2; i++) {
        memopt_status status =
            streams[i] == NULL ? MEMOPT_OK : memopt_stream_sync(o->device, streams[i]);
        result = result == MEMOPT_OK ? status : result;
    }
    return result;
}

memopt_status mo_paged_close(memopt_optimizer *o)
{
    mo_paged *pages = &o->pages;
    memopt_event *const events[] = {pages->arrived[0], pages->arrived[1], pages->stepped[0],
                                    pages->stepped[1], pages->left[0],    pages->left[1]};
    memopt_stream const streams[] = {pages->in, pages->out};
    if (o->options.page_bytes == 0)
        return MEMOPT_OK;
    memopt_status result = mo_paged_settle(o), status;
    for (int a = 0; a < 2; a++) {
        status = mo_optimizer_release(o, pages->areas[a]);
        result = result == MEMOPT_OK ? status : result;
    }
    for (uint64_t i = 0; i < o->parameter_count; i++) {
        status = memopt_host_free(o->device, o->parameters[i].host);
        result = result == MEMOPT_OK ? status : result;
    }
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        (void)memopt_event_destroy(events[i]);
    for (int i = 0; i < 2; i++) {
        status = streams[i] == NULL ? MEMOPT_OK : memopt_stream_destroy(o->device, streams[i]);
        result = result == MEMOPT_OK ? status : result;
    }
    return result;
}
