/* Reads an export; layout.h has the format. Everything is checked before anything changes. */
#include "optim/crc32.h"
#include "optim/layout.h"

#include "base/memory.h"

#include <inttypes.h>
#include <string.h>

/* Where the sections of checked bytes start. */
typedef struct sections {
    const unsigned char *groups, *parameters, *states;
    uint32_t version;
} sections;

static memopt_status check_frame(const unsigned char *b, uint64_t bytes)
{
    if (bytes < MO_EXPORT_HEADER + MO_EXPORT_END ||
        memcmp(b, mo_export_magic, sizeof mo_export_magic) != 0)
        return mo_fail(MEMOPT_CORRUPT, "optimizer import: %" PRIu64 " bytes that are not an export",
                       bytes);
    if (mo_get_u32(b + 8) > MO_EXPORT_VERSION)
        return mo_fail(MEMOPT_UNSUPPORTED,
                       "optimizer import: version %" PRIu32
                       " of the format; this library knows up to %d; update libmemopt",
                       mo_get_u32(b + 8), MO_EXPORT_VERSION);
    uint64_t total = mo_get_u64(b + 16);
    if (mo_get_u32(b + 8) == 0 || mo_get_u32(b + 12) != MO_EXPORT_HEADER || total > bytes ||
        total < MO_EXPORT_HEADER + MO_EXPORT_END)
        return mo_fail(MEMOPT_CORRUPT,
                       "optimizer import: the header says %" PRIu64
                       " bytes, the buffer has %" PRIu64 "; the export is cut short or damaged",
                       total, bytes);
    uint32_t crc = mo_crc32(0, b, total - MO_EXPORT_END);
    if (crc != mo_get_u32(b + total - 8) || mo_get_u32(b + total - 4) != 0)
        return mo_fail(MEMOPT_CORRUPT,
                       "optimizer import: the checksum is %08" PRIx32 ", %08" PRIx32
                       " was written; the export is damaged",
                       crc, mo_get_u32(b + total - 8));
    return MEMOPT_OK;
}

/* The same optimizer? Counts and sizes first, so that the sections can be found. */
static memopt_status check_shape(const memopt_optimizer *o, const unsigned char *b)
{
    if (mo_get_u32(b + 24) != o->options.kind || mo_get_u32(b + 28) != o->options.block_size)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer import: kind %" PRIu32 " with blocks of %" PRIu32
                       " was exported; this optimizer has kind %" PRIu32 " with blocks of %" PRIu32,
                       mo_get_u32(b + 24), mo_get_u32(b + 28), o->options.kind,
                       o->options.block_size);
    if (mo_get_u32(b + 8) != mo_export_version(o))
        return mo_fail(MEMOPT_CORRUPT,
                       "optimizer import: version %" PRIu32 " of the format; this optimizer "
                       "needs version %" PRIu32,
                       mo_get_u32(b + 8), mo_export_version(o));
    if (mo_get_u64(b + 32) != o->group_count || mo_get_u64(b + 40) != o->parameter_count)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer import: %" PRIu64 " groups and %" PRIu64
                       " parameters were exported; this optimizer has %" PRIu64 " and %" PRIu64,
                       mo_get_u64(b + 32), mo_get_u64(b + 40), o->group_count, o->parameter_count);
    uint64_t least = MO_EXPORT_HEADER + MO_EXPORT_END +
                     o->group_count * mo_export_group_bytes(mo_export_version(o)) +
                     o->parameter_count * MO_EXPORT_PARAMETER;
    if (mo_get_u64(b + 16) < least)
        return mo_fail(MEMOPT_CORRUPT,
                       "optimizer import: %" PRIu64 " bytes; an export has at least %" PRIu64,
                       mo_get_u64(b + 16), least);
    return MEMOPT_OK;
}

static memopt_optimizer_group get_group(const sections *s, uint64_t index)
{
    const unsigned char *at = s->groups + index * mo_export_group_bytes(s->version);
    memopt_optimizer_group g = MEMOPT_OPTIMIZER_GROUP_INIT;
    g.lr = mo_get_f64(at);
    g.beta1 = mo_get_f64(at + 8);
    g.beta2 = mo_get_f64(at + 16);
    g.eps = mo_get_f64(at + 24);
    g.weight_decay = mo_get_f64(at + 32);
    g.maximize = mo_get_u32(at + 40);
    if (s->version == 1)
        return g;
    g.momentum = mo_get_f64(at + 48);
    g.dampening = mo_get_f64(at + 56);
    g.nesterov = mo_get_u32(at + 64);
    if (s->version != 4)
        return g;
    g.beta3 = mo_get_f64(at + 72);
    g.alpha = mo_get_f64(at + 80);
    g.t_alpha = mo_get_f64(at + 88);
    g.t_beta3 = mo_get_f64(at + 96);
    return g;
}

static memopt_status check_groups(const memopt_optimizer *o, const sections *s)
{
    for (uint64_t i = 0; i < o->group_count; i++) {
        memopt_optimizer_group group = get_group(s, i);
        if (mo_optimizer_group_check(&group) != MEMOPT_OK)
            return mo_fail(MEMOPT_CORRUPT,
                           "optimizer import: a value of group %" PRIu64 " is out of range", i);
    }
    return MEMOPT_OK;
}

static memopt_status check_parameters(const memopt_optimizer *o, const unsigned char *at)
{
    for (uint64_t i = 0; i < o->parameter_count; i++, at += MO_EXPORT_PARAMETER) {
        const mo_parameter *p = &o->parameters[i];
        if (mo_get_u64(at) != p->tensor.count || mo_get_u32(at + 8) != mo_export_format(p) ||
            mo_get_u32(at + 12) != p->group)
            return mo_fail(MEMOPT_INVALID_ARGUMENT,
                           "optimizer import: parameter %" PRIu64 " was exported with %" PRIu64
                           " elements, state format %" PRIu32 ", group %" PRIu32
                           "; here it has %" PRIu64 ", %" PRIu32 ", %" PRIu32
                           " (format 0: none, as of SGD without momentum)",
                           i, mo_get_u64(at), mo_get_u32(at + 8), mo_get_u32(at + 12),
                           p->tensor.count, mo_export_format(p), p->group);
        if (mo_steps_taken(mo_get_u64(at + 16)) >= MO_STEPS_LIMIT)
            return mo_fail(MEMOPT_CORRUPT,
                           "optimizer import: parameter %" PRIu64 " has taken %" PRIu64
                           " steps; the count must be below 2^53",
                           i, mo_get_u64(at + 16));
    }
    return MEMOPT_OK;
}

static memopt_status check(const memopt_optimizer *o, const unsigned char *b, uint64_t bytes,
                           sections *out)
{
    memopt_status status = check_frame(b, bytes);
    if (status == MEMOPT_OK)
        status = check_shape(o, b);
    if (status != MEMOPT_OK)
        return status;
    out->version = mo_get_u32(b + 8);
    out->groups = b + MO_EXPORT_HEADER;
    out->parameters = out->groups + o->group_count * mo_export_group_bytes(out->version);
    out->states = out->parameters + o->parameter_count * MO_EXPORT_PARAMETER;
    status = check_groups(o, out);
    if (status == MEMOPT_OK)
        status = check_parameters(o, out->parameters);
    if (status == MEMOPT_OK && mo_get_u64(b + 16) != mo_export_bytes(o))
        status = mo_fail(MEMOPT_CORRUPT,
                         "optimizer import: %" PRIu64 " bytes for parameters that take %" PRIu64,
                         mo_get_u64(b + 16), mo_export_bytes(o));
    return status;
}

static memopt_status send(memopt_optimizer *o, const sections *s, memopt_stream stream)
{
    memopt_status status = MEMOPT_OK;
    const unsigned char *states = s->states;
    for (uint64_t i = 0; i < o->parameter_count && status == MEMOPT_OK; i++) {
        const mo_parameter *p = &o->parameters[i];
        mo_state_part parts[MO_EXPORT_PARTS];
        int n = mo_state_parts(p, parts);
        status =
            memopt_copy(o->device, p->device.steps, s->parameters + i * MO_EXPORT_PARAMETER + 16,
                        sizeof(uint64_t), stream);
        for (int k = 0; k < n && status == MEMOPT_OK; k++) {
            status = memopt_copy(o->device, parts[k].data, states, parts[k].bytes, stream);
            states += parts[k].padded;
        }
    }
    return status;
}

/* Points the sections of step counts and states at data in this processor's byte order: the buffer
 * itself, or a copy that the caller frees. */
static memopt_status own_order(const memopt_optimizer *o, const unsigned char *buffer, sections *s,
                               unsigned char **out_copy)
{
    *out_copy = NULL;
    if (!MO_BIG_ENDIAN)
        return MEMOPT_OK;
    uint64_t bytes = mo_export_bytes(o);
    unsigned char *copy = mo_malloc(bytes);
    if (copy == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memcpy(copy, buffer, bytes);
    unsigned char *parameters = copy + (s->parameters - buffer);
    unsigned char *states = copy + (s->states - buffer);
    mo_export_order(o, parameters, states);
    s->parameters = parameters;
    s->states = states;
    *out_copy = copy;
    return MEMOPT_OK;
}

memopt_status memopt_optimizer_import_sync(memopt_optimizer *o, const void *buffer, uint64_t bytes,
                                           memopt_stream stream)
{
    sections s;
    unsigned char *copy = NULL;
    if (o == NULL || buffer == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer import: %s is NULL",
                       o == NULL ? "the handle" : "buffer");
    if (mo_device_inherited(o->device))
        return mo_fail_inherited("optimizer_import_sync");
    memopt_status status = check(o, buffer, bytes, &s);
    if (status == MEMOPT_OK)
        status = mo_optimizer_use_stream(o, stream);
    if (status == MEMOPT_OK)
        status = mo_paged_settle(o);
    if (status == MEMOPT_OK)
        status = own_order(o, buffer, &s, &copy);
    if (status != MEMOPT_OK)
        return status;
    status = send(o, &s, stream);
    memopt_status waited = memopt_stream_sync(o->device, stream); /* copies read the buffer */
    mo_free(copy);
    if (status == MEMOPT_OK)
        status = waited;
    if (status != MEMOPT_OK)
        return status;
    for (uint64_t i = 0; i < o->group_count; i++) {
        memopt_optimizer_group before = o->groups[i];
        o->groups[i] = get_group(&s, i);
        o->groups[i].device_lr = before.device_lr;
        o->groups[i].average = before.average;
    }
    o->group_table.current = 0;
    o->pages.torn = 0;
    return MEMOPT_OK;
}
