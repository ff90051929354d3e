/*
 * Values between forward and backward (saved.h): the whole of what save-on-CPU asks of a trainer.
 */
#include "saved.h"

memopt_status saved_create(memory *m, memopt_dtype dtype, uint64_t count, saved *out_value)
{
    out_value->ticket = 0;
    return memory_tensor(m, dtype, count, MEMOPT_TAG_ACTIVATIONS, &out_value->tensor);
}

void saved_keep(memory *m, saved *value)
{
    if (m->tape)
        value->ticket = tape_pack(m->tape, value->tensor.data, m->unified ? NULL : &value->away);
}

memopt_status saved_send(memory *m, saved *value)
{
    memopt_tensor *tensor = &value->tensor;
    if (m->tape) /* nobody but the tape's pack holds it from here on */
        return memory_free(m, tensor);
    if (!value->away)
        return MEMOPT_OK;
    TRY(memopt_offloader_pack(m->offloader, tensor->data,
                              tensor->count * memopt_dtype_size(tensor->dtype), NULL,
                              &value->ticket));
    tensor->data = NULL; /* the block belongs to the ticket now */
    return MEMOPT_OK;
}

memopt_status saved_wait(memory *m, const saved *value)
{
    if (!value->ticket)
        return MEMOPT_OK;
    TRY(memopt_offloader_wait_packed(m->offloader, value->ticket, NULL));
    return memory_sync(m);
}

memopt_status saved_prefetch(memory *m, const saved *value)
{
    return value->ticket ? memopt_offloader_prefetch(m->offloader, value->ticket) : MEMOPT_OK;
}

memopt_status saved_fetch(memory *m, saved *value)
{
    if (!value->ticket)
        return MEMOPT_OK;
    if (m->tape) {
        tape_unpack(m->tape, value->ticket);
        return MEMOPT_OK;
    }
    TRY(memopt_offloader_unpack(m->offloader, value->ticket, NULL, &value->tensor.data));
    return memory_sync(m);
}

memopt_status saved_drop(memory *m, saved *value)
{
    if (!value->ticket)
        return memory_free(m, &value->tensor);
    if (m->tape)
        tape_release(m->tape, value->ticket);
    else
        TRY(memopt_offloader_release(m->offloader, value->ticket, NULL));
    value->ticket = 0;
    value->tensor.data = NULL;
    return MEMOPT_OK;
}
