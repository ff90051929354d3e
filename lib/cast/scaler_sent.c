/*
 * The scaler's state on the host without a wait: a copy into page-locked memory with an event
 * behind it. There are two places: the last state that has arrived, and the one that is under way.
 * They and the event are made by the first request.
 */
#include "cast/scaler.h"

#include "base/options.h"

memopt_scaler_state mo_scaler_state_of(const mo_scaler_block *block)
{
    return (memopt_scaler_state){sizeof(memopt_scaler_state), block->scale,
                                 block->growth_factor,        block->backoff_factor,
                                 block->growth_interval,      block->growth_tracker};
}

static memopt_status make_places(memopt_scaler *scaler)
{
    memopt_event *event = NULL;
    void *places = NULL;
    if (scaler->sent != NULL)
        return MEMOPT_OK;
    MO_TRY(memopt_event_create(scaler->device, 0, &event));
    memopt_status status = memopt_host_alloc(scaler->device, 2 * sizeof *scaler->sent, &places);
    if (status != MEMOPT_OK) {
        (void)memopt_event_destroy(event);
        return status;
    }
    scaler->sent = places;
    scaler->arrival = event;
    return MEMOPT_OK;
}

/* Takes note of a state that has arrived. NOT_READY where one is still under way. */
static memopt_status look(memopt_scaler *scaler)
{
    if (!scaler->under_way)
        return MEMOPT_OK;
    MO_TRY(memopt_event_query(scaler->arrival));
    scaler->under_way = 0;
    scaler->arrived = !scaler->arrived;
    scaler->arrived_updates = scaler->sent_updates;
    scaler->any_arrived = 1;
    return MEMOPT_OK;
}

memopt_status memopt_scaler_send_state(memopt_scaler *scaler, memopt_stream stream)
{
    int32_t capturing = 0;
    if (scaler == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "scaler send state: scaler is NULL");
    if (mo_device_inherited(scaler->device))
        return mo_fail_inherited("scaler_send_state");
    memopt_status status = mo_stream_capturing(scaler->device, stream, &capturing);
    if (status == MEMOPT_OK && capturing)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "scaler send state: stream %p records a graph; call it outside of the "
                       "capture",
                       (void *)stream);
    if (status == MEMOPT_OK)
        status = make_places(scaler);
    if (status == MEMOPT_OK)
        status = look(scaler);
    if (status != MEMOPT_OK)
        return status == MEMOPT_NOT_READY ? MEMOPT_OK : status;
    MO_TRY(memopt_copy(scaler->device, &scaler->sent[!scaler->arrived], scaler->block,
                       sizeof *scaler->sent, stream));
    MO_TRY(memopt_event_record(scaler->arrival, stream));
    scaler->sent_updates = scaler->updates;
    scaler->under_way = 1;
    return MEMOPT_OK;
}

memopt_status memopt_scaler_get_sent_state(memopt_scaler *scaler, memopt_scaler_state *out_state,
                                           uint64_t *out_updates)
{
    if (scaler == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "scaler get sent state: scaler is NULL");
    if (mo_device_inherited(scaler->device))
        return mo_fail_inherited("scaler_get_sent_state");
    memopt_status status = look(scaler);
    if (status != MEMOPT_OK && status != MEMOPT_NOT_READY)
        return status;
    if (!scaler->any_arrived)
        return MEMOPT_NOT_READY;
    memopt_scaler_state state = mo_scaler_state_of(&scaler->sent[scaler->arrived]);
    status = mo_result_write(out_state, &state, sizeof state, "memopt_scaler_state");
    if (status == MEMOPT_OK && out_updates != NULL)
        *out_updates = scaler->arrived_updates;
    return status;
}

memopt_status mo_scaler_end_sent(memopt_scaler *scaler)
{
    if (scaler->sent == NULL)
        return MEMOPT_OK;
    memopt_status status = memopt_event_destroy(scaler->arrival);
    memopt_status freed = memopt_host_free(scaler->device, scaler->sent);
    return status != MEMOPT_OK ? status : freed;
}
