/* Writes an optimizer's groups, step counts and states; layout.h has the format. */
#include "optim/crc32.h"
#include "optim/layout.h"

#include <inttypes.h>
#include <string.h>

memopt_status memopt_optimizer_get_export_size(memopt_optimizer *o, uint64_t *out_bytes)
{
    if (o == NULL || out_bytes == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer export: %s is NULL",
                       o == NULL ? "the handle" : "out_bytes");
    if (mo_device_inherited(o->device))
        return mo_fail_inherited("optimizer_get_export_size");
    *out_bytes = mo_export_bytes(o);
    return MEMOPT_OK;
}

static unsigned char *put_header(const memopt_optimizer *o, unsigned char *at, uint64_t bytes)
{
    memset(at, 0, MO_EXPORT_HEADER);
    memcpy(at, mo_export_magic, sizeof mo_export_magic);
    mo_put_u32(at + 8, mo_export_version(o));
    mo_put_u32(at + 12, MO_EXPORT_HEADER);
    mo_put_u64(at + 16, bytes);
    mo_put_u32(at + 24, o->options.kind);
    mo_put_u32(at + 28, o->options.block_size);
    mo_put_u64(at + 32, o->group_count);
    mo_put_u64(at + 40, o->parameter_count);
    return at + MO_EXPORT_HEADER;
}

static unsigned char *put_groups(const memopt_optimizer *o, unsigned char *at)
{
    uint32_t version = mo_export_version(o);
    for (uint64_t i = 0; i < o->group_count; i++, at += mo_export_group_bytes(version)) {
        const memopt_optimizer_group *g = &o->groups[i];
        mo_put_f64(at, g->lr);
        mo_put_f64(at + 8, g->beta1);
        mo_put_f64(at + 16, g->beta2);
        mo_put_f64(at + 24, g->eps);
        mo_put_f64(at + 32, g->weight_decay);
        mo_put_u32(at + 40, g->maximize);
        mo_put_u32(at + 44, 0);
        if (version == 1)
            continue;
        mo_put_f64(at + 48, g->momentum);
        mo_put_f64(at + 56, g->dampening);
        mo_put_u32(at + 64, g->nesterov);
        mo_put_u32(at + 68, 0);
    }
    return at;
}

/* Step counts and states come by copies in stream order, straight to where they belong. */
static memopt_status fetch(memopt_optimizer *o, unsigned char *parameters, unsigned char *states,
                           memopt_stream stream)
{
    memopt_status status = MEMOPT_OK;
    for (uint64_t i = 0; i < o->parameter_count && status == MEMOPT_OK; i++) {
        const mo_parameter *p = &o->parameters[i];
        unsigned char *at = parameters + i * MO_EXPORT_PARAMETER;
        mo_state_part parts[MO_EXPORT_PARTS];
        int n = mo_state_parts(p, parts);
        memset(at, 0, MO_EXPORT_PARAMETER);
        mo_put_u64(at, p->tensor.count);
        mo_put_u32(at + 8, mo_export_format(p));
        mo_put_u32(at + 12, p->group);
        status = memopt_copy(o->device, at + 16, p->device.steps, sizeof(uint64_t), stream);
        for (int k = 0; k < n && status == MEMOPT_OK; k++) {
            memset(states + parts[k].bytes, 0, (size_t)(parts[k].padded - parts[k].bytes));
            status = memopt_copy(o->device, states, parts[k].data, parts[k].bytes, stream);
            states += parts[k].padded;
        }
    }
    return status;
}

memopt_status memopt_optimizer_export_sync(memopt_optimizer *o, uint64_t bytes,
                                           memopt_stream stream, void *buffer)
{
    if (o == NULL || buffer == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer export: %s is NULL",
                       o == NULL ? "the handle" : "buffer");
    if (mo_device_inherited(o->device))
        return mo_fail_inherited("optimizer_export_sync");
    uint64_t needed = mo_export_bytes(o);
    if (bytes < needed)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer export: %" PRIu64 " bytes of buffer, %" PRIu64 " needed", bytes,
                       needed);
    memopt_status status = mo_optimizer_use_stream(o, stream);
    if (status != MEMOPT_OK)
        return status;
    unsigned char *start = buffer;
    unsigned char *parameters = put_groups(o, put_header(o, start, needed));
    unsigned char *states = parameters + o->parameter_count * MO_EXPORT_PARAMETER;
    status = fetch(o, parameters, states, stream);
    memopt_status waited = memopt_stream_sync(o->device, stream); /* copies write to the buffer */
    if (status == MEMOPT_OK)
        status = waited;
    if (status != MEMOPT_OK)
        return status;
    mo_export_order(o, parameters, states);
    mo_put_u32(start + needed - 8, mo_crc32(start, needed - MO_EXPORT_END));
    mo_put_u32(start + needed - 4, 0);
    return MEMOPT_OK;
}
