/* Reads an export; layout.h has the format. Everything is checked before anything changes. */
#include "optim/convert.h"
#include "optim/crc32.h"
#include "optim/layout.h"

#include "base/checked.h"
#include "base/memory.h"

#include <inttypes.h>
#include <string.h>

/* Of the sizes of blocks that an export may have. New ones have their format's own. */
enum { BLOCK_LEAST = 32, BLOCK_MOST = MO_EXPORT_BLOCK_MOST };

/* Where the sections of checked bytes start. */
typedef struct sections {
    const unsigned char *groups, *parameters, *states;
    uint32_t version, block;
    int converts;            /* states of other formats are converted */
    uint64_t bytes, largest; /* in all; elements of the largest parameter to convert */
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

/* The bytes of a residual that a version has. AdEMAMix's version does not say. */
static uint32_t split_of(uint32_t version)
{
    return version == 3 ? 1 : version == 5 ? 2 : 0;
}

static memopt_status check_version(const memopt_optimizer *o, uint32_t version)
{
    int slow = mo_rule_has_slow(o->options.kind);
    int factored = o->options.kind == MEMOPT_OPTIMIZER_ADAFACTOR;
    if ((version == 4) != slow || (version == 6) != factored ||
        (version == 1 && o->options.kind != MEMOPT_OPTIMIZER_ADAMW))
        return mo_fail(MEMOPT_CORRUPT,
                       "optimizer import: version %" PRIu32 " of the format; kind %" PRIu32
                       " is not written so",
                       version, o->options.kind);
    if (!slow && split_of(version) != o->options.split_weights)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer import: split_weights %" PRIu32
                       " was exported; this optimizer has split_weights %" PRIu32,
                       split_of(version), o->options.split_weights);
    return MEMOPT_OK;
}

/* The same optimizer? Counts and sizes first, so that the sections can be found. */
static memopt_status check_shape(const memopt_optimizer *o, const unsigned char *b)
{
    uint32_t version = mo_get_u32(b + 8), block = mo_get_u32(b + 28);
    if (mo_get_u32(b + 24) != o->options.kind)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer import: kind %" PRIu32
                       " was exported; this optimizer has kind %" PRIu32,
                       mo_get_u32(b + 24), o->options.kind);
    memopt_status status = check_version(o, version);
    if (status != MEMOPT_OK)
        return status;
    if (block < BLOCK_LEAST || block > BLOCK_MOST || (block & (block - 1)) != 0)
        return mo_fail(MEMOPT_CORRUPT, "optimizer import: blocks of %" PRIu32 " elements", block);
    if (mo_get_u64(b + 32) != o->group_count || mo_get_u64(b + 40) != o->parameter_count)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer import: %" PRIu64 " groups and %" PRIu64
                       " parameters were exported; this optimizer has %" PRIu64 " and %" PRIu64,
                       mo_get_u64(b + 32), mo_get_u64(b + 40), o->group_count, o->parameter_count);
    uint64_t least = MO_EXPORT_HEADER + MO_EXPORT_END +
                     o->group_count * mo_export_group_bytes(version) +
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
    if (s->version == 6) {
        g.beta2_decay = mo_get_f64(at + 72);
        g.eps2 = mo_get_f64(at + 80);
        g.d = mo_get_f64(at + 88);
    }
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

/* A parameter as it was exported; only its format and block may be others. */
static mo_parameter exported(const memopt_optimizer *o, const sections *s, uint64_t i)
{
    mo_parameter p = o->parameters[i];
    uint32_t format = mo_get_u32(s->parameters + i * MO_EXPORT_PARAMETER + 8);
    p.format = format == 0 ? (uint32_t)MEMOPT_STATE_F32 : format;
    p.block = s->block;
    return p;
}

/* Whether the states' bytes mean the same. */
static int same_states(const mo_parameter *a, const mo_parameter *b)
{
    return a->format == b->format && (!mo_format_has_scales(a->format) || a->block == b->block);
}

static memopt_status fail_format(const mo_parameter *p, const mo_parameter *q, uint64_t i)
{
    static const char hint[] = "import it with `converts` 1";
    if (p->format == q->format)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer import: parameter %" PRIu64
                       " was exported with blocks of %" PRIu32 "; here it has blocks of %" PRIu32
                       "; %s",
                       i, q->block, p->block, hint);
    return mo_fail(MEMOPT_INVALID_ARGUMENT,
                   "optimizer import: parameter %" PRIu64 " was exported with %s states (%" PRIu32
                   "); here it has %s ones (%" PRIu32 "); %s",
                   i, mo_format_name(q->format), q->format, mo_format_name(p->format), p->format,
                   hint);
}

/* One that may be converted, or need not be. */
static memopt_status check_states(const memopt_optimizer *o, const sections *s, uint64_t i)
{
    const mo_parameter *p = &o->parameters[i], q = exported(o, s, i);
    uint32_t format = mo_get_u32(s->parameters + i * MO_EXPORT_PARAMETER + 8);
    int old = mo_format_is_old(format) && o->options.kind == MEMOPT_OPTIMIZER_ADAMW;
    if (format != 0 && !old && mo_optimizer_kernel(o->options.kind, format) == NULL)
        return mo_fail(MEMOPT_CORRUPT,
                       "optimizer import: parameter %" PRIu64 " has state format %" PRIu32
                       ", which kind %" PRIu32 " does not have",
                       i, format, o->options.kind);
    if ((format == 0) != (p->moments == 0))
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer import: parameter %" PRIu64 " was exported with %s states "
                       "(%" PRIu32 "); here it has %s (%" PRIu32 "); SGD without momentum has "
                       "none",
                       i, mo_format_name(format), format, mo_format_name(mo_export_format(p)),
                       mo_export_format(p));
    return s->converts || same_states(p, &q) ? MEMOPT_OK : fail_format(p, &q, i);
}

static memopt_status check_parameter(const memopt_optimizer *o, const sections *s, uint64_t i)
{
    const mo_parameter *p = &o->parameters[i];
    const unsigned char *at = s->parameters + i * MO_EXPORT_PARAMETER;
    if (mo_get_u64(at) != p->tensor.count || mo_get_u32(at + 12) != p->group)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer import: parameter %" PRIu64 " was exported with %" PRIu64
                       " elements in group %" PRIu32 "; here it has %" PRIu64 " in group %" PRIu32,
                       i, mo_get_u64(at), mo_get_u32(at + 12), p->tensor.count, p->group);
    if (mo_get_u32(at + 24) != p->rows || mo_get_u32(at + 28) != p->columns)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer import: parameter %" PRIu64
                       " was exported with matrices of %" PRIu32 " x %" PRIu32
                       "; here they are of %" PRIu32 " x %" PRIu32,
                       i, mo_get_u32(at + 24), mo_get_u32(at + 28), p->rows, p->columns);
    if (mo_steps_taken(mo_get_u64(at + 16)) >= MO_STEPS_LIMIT)
        return mo_fail(MEMOPT_CORRUPT,
                       "optimizer import: parameter %" PRIu64 " has taken %" PRIu64
                       " steps; the count must be below 2^53",
                       i, mo_get_u64(at + 16));
    return check_states(o, s, i);
}

/* And adds up what they take in the export, and finds the largest one to convert. */
static memopt_status check_parameters(const memopt_optimizer *o, sections *s)
{
    s->bytes = (uint64_t)(s->states - s->groups) + MO_EXPORT_HEADER + MO_EXPORT_END;
    for (uint64_t i = 0; i < o->parameter_count; i++) {
        memopt_status status = check_parameter(o, s, i);
        if (status != MEMOPT_OK)
            return status;
        mo_parameter q = exported(o, s, i);
        s->bytes += mo_parts_bytes(&q);
        if (!same_states(&o->parameters[i], &q))
            s->largest = mo_max_u64(s->largest, q.tensor.count);
    }
    return MEMOPT_OK;
}

static memopt_status check(const memopt_optimizer *o, const unsigned char *b, uint64_t bytes,
                           int converts, sections *out)
{
    memopt_status status = check_frame(b, bytes);
    if (status == MEMOPT_OK)
        status = check_shape(o, b);
    if (status != MEMOPT_OK)
        return status;
    *out = (sections){.groups = b + MO_EXPORT_HEADER,
                      .version = mo_get_u32(b + 8),
                      .block = mo_get_u32(b + 28),
                      .converts = converts};
    out->parameters = out->groups + o->group_count * mo_export_group_bytes(out->version);
    out->states = out->parameters + o->parameter_count * MO_EXPORT_PARAMETER;
    status = check_groups(o, out);
    if (status == MEMOPT_OK)
        status = check_parameters(o, out);
    if (status == MEMOPT_OK && mo_get_u64(b + 16) != out->bytes)
        status = mo_fail(MEMOPT_CORRUPT,
                         "optimizer import: %" PRIu64 " bytes for parameters that take %" PRIu64,
                         mo_get_u64(b + 16), out->bytes);
    return status;
}

/* The moments of p from those of q, whose parts lie at `from`. */
static memopt_status convert_moments(const mo_converter *c, const mo_parameter *p,
                                     const mo_parameter *q, const unsigned char *const *from,
                                     const mo_state_part *to)
{
    const uint32_t kind = c->o->options.kind, n = p->moments;
    memopt_status status = MEMOPT_OK;
    for (uint32_t k = 0; k < n && status == MEMOPT_OK; k++) {
        mo_moment moment = {.codes = from[k], .out_codes = to[k].data};
        if (mo_format_has_scales(q->format))
            moment.scales = from[n + k];
        if (mo_format_has_scales(p->format))
            moment.out_scales = to[n + k].data;
        moment.is_signed =
            k == n - 1 && mo_rule_has_second(kind) ? 0 : k != 0 || mo_rule_first_signed(kind);
        status = mo_convert(c, q, p, &moment);
    }
    return status;
}

/* p's states from those that lie at `at`, of q. */
static memopt_status send_states(const mo_converter *c, const mo_parameter *p,
                                 const mo_parameter *q, const unsigned char *at)
{
    mo_state_part from[MO_EXPORT_PARTS], to[MO_EXPORT_PARTS];
    const unsigned char *places[MO_EXPORT_PARTS];
    memopt_status status = MEMOPT_OK;
    int count = mo_state_parts(q, from), last = mo_state_parts(p, to) - 1, k = 0;
    for (int i = 0; i < count; at += from[i++].padded)
        places[i] = at;
    if (!same_states(p, q)) {
        status = convert_moments(c, p, q, places, to);
        k = p->split ? count - 1 : count; /* the residual is as it is */
    }
    for (; k < count && status == MEMOPT_OK; k++)
        status = memopt_copy(c->o->device, to[last - (count - 1 - k)].data, places[k],
                             from[k].bytes, c->stream);
    return status;
}

static memopt_status send(memopt_optimizer *o, const sections *s, const mo_converter *c)
{
    memopt_status status = MEMOPT_OK;
    const unsigned char *states = s->states;
    for (uint64_t i = 0; i < o->parameter_count && status == MEMOPT_OK; i++) {
        const mo_parameter *p = &o->parameters[i], q = exported(o, s, i);
        status =
            memopt_copy(o->device, p->device.steps, s->parameters + i * MO_EXPORT_PARAMETER + 16,
                        sizeof(uint64_t), c->stream);
        if (status == MEMOPT_OK)
            status = send_states(c, p, &q, states);
        states += mo_parts_bytes(&q);
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
    unsigned char *copy = mo_malloc(s->bytes);
    if (copy == NULL)
        return MEMOPT_OUT_OF_HOST_MEMORY;
    memcpy(copy, buffer, s->bytes);
    unsigned char *parameters = copy + (s->parameters - buffer);
    unsigned char *states = copy + (s->states - buffer), *at = states;
    for (uint64_t i = 0; i < o->parameter_count; i++) {
        mo_state_part parts[MO_EXPORT_PARTS];
        mo_parameter q = exported(o, s, i);
        mo_export_turn(parameters + i * MO_EXPORT_PARAMETER + 16, 8, 8);
        for (int k = 0, n = mo_state_parts(&q, parts); k < n; at += parts[k++].padded)
            mo_export_turn(at, parts[k].bytes, parts[k].word);
    }
    s->parameters = parameters;
    s->states = states;
    *out_copy = copy;
    return MEMOPT_OK;
}

/* Everything that can be refused has been. */
static memopt_status send_all(memopt_optimizer *o, const unsigned char *buffer, sections *s,
                              memopt_stream stream)
{
    mo_converter converter;
    unsigned char *copy = NULL;
    memopt_status status = mo_converter_begin(o, s->largest, stream, &converter);
    if (status != MEMOPT_OK)
        return status;
    status = own_order(o, buffer, s, &copy);
    if (status == MEMOPT_OK)
        status = send(o, s, &converter);
    mo_keep_first(&status, memopt_stream_sync(o->device, stream)); /* copies read the buffer */
    mo_keep_first(&status, mo_converter_end(&converter));
    mo_free(copy);
    return status;
}

static memopt_status import_any(memopt_optimizer *o, const void *buffer, uint64_t bytes,
                                int converts, memopt_stream stream)
{
    sections s;
    if (o == NULL || buffer == NULL)
        return mo_fail(MEMOPT_INVALID_ARGUMENT, "optimizer import: %s is NULL",
                       o == NULL ? "the handle" : "buffer");
    if (mo_device_inherited(o->device))
        return mo_fail_inherited("optimizer import");
    memopt_status status = check(o, buffer, bytes, converts, &s);
    if (status == MEMOPT_OK)
        status = mo_optimizer_use_stream(o, stream);
    if (status == MEMOPT_OK)
        status = mo_paged_settle(o);
    if (status == MEMOPT_OK)
        status = send_all(o, buffer, &s, stream);
    if (status != MEMOPT_OK)
        return status;
    for (uint64_t i = 0; i < o->group_count; i++) {
        memopt_optimizer_group before = o->groups[i];
        o->groups[i] = get_group(&s, i);
        o->groups[i].device_lr = before.device_lr;
        o->groups[i].average = before.average;
        o->groups[i].min_8bit_size = before.min_8bit_size;
        o->groups[i].max_ratio = before.max_ratio;
        o->groups[i].trust_clip = before.trust_clip;
        o->groups[i].uncorrected = before.uncorrected;
    }
    o->group_table.current = 0;
    o->pages.torn = 0;
    return MEMOPT_OK;
}

memopt_status memopt_optimizer_import_sync(memopt_optimizer *o, const void *buffer, uint64_t bytes,
                                           uint32_t converts, memopt_stream stream)
{
    if (converts > 1)
        return mo_fail(MEMOPT_INVALID_ARGUMENT,
                       "optimizer import: converts is %" PRIu32 ", must be 0 or 1", converts);
    return import_any(o, buffer, bytes, (int)converts, stream);
}
